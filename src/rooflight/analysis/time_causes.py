"""Why an op took longer than the roofs allow: kernels beside the product, padding, partial waves, launches, the speed
that the device sustains.

The least time is that of the useful FLOPs and the compulsory bytes at the data sheet's peaks. Causes are seconds that
follow from kernel names, grids and tiles, from the clock of kernels that only move data, and from the device's own
micro-benchmarks; never from how long the product itself took.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rooflight.analysis.cause import Cause, Explained, kernels_of_ops
from rooflight.analysis.traffic_causes import HITS, explain_traffic
from rooflight.errors import BadInput
from rooflight.hardware.devices import recognise_name
from rooflight.hardware.roofs import Demand, Roofs, demand_of, roofs_of
from rooflight.ledger import Kernel, Ledger, Op
from rooflight.ops.kernel_names import KernelRole, role_of
from rooflight.ops.kernel_products import product_of_each
from rooflight.ops.tile_padding import executed_tiles
from rooflight.prediction.resolve_devices import ceilings_of
from rooflight.summary.facts import op_values

BESIDE = "kernels beside the product"
PADDED = "tile padding"
WAVE = "partial wave"
LAUNCH = "launch of short kernels"
SUSTAINED = "sustained below the peak"
CACHED = "from the L2"

_LAUNCH_S = 1.6e-6
"""What a kernel takes that has nothing to do: the median of those with at most two blocks among single ops
(benchmarks/h200/results/instructions)."""
_BESIDE = frozenset({"layout", "cast", "sum of parts", "pointwise", "reduction", "bookkeeping"})


def explain_time(ledger: Ledger, traffic: Sequence[Explained] | None = None) -> list[Explained]:
    """Every op whose kernels were timed and whose work is known. Empty where the device is not. `traffic`: that of the
    ledger, where it is explained already."""
    device = recognise_name(ledger.header.device)
    if device is None or device.kind != "gpu":
        return []
    roofs = roofs_of(device, ceilings_of(device, None))
    kernels = kernels_of_ops(ledger)
    traffic = explain_traffic(ledger) if traffic is None else traffic
    hits = {row.op.index: -cause.amount for row in traffic for cause in row.causes if cause.name == HITS}
    rows = []
    for op, values in zip(ledger.ops, op_values(ledger), strict=True):
        demand = demand_of(op)
        if demand is None or "kernel_time_s" not in values:
            continue
        try:
            asked = demand.roof_s(roofs)
            causes = tuple(_causes(op, demand, kernels[op.index], roofs, hits.get(op.index, 0.0)))
        except BadInput:  # a precision that the device has no roof for
            continue
        rows.append(Explained(op, asked, values["kernel_time_s"].value, causes))
    return rows


def _causes(op: Op, demand: Demand, kernels: Sequence[Kernel], roofs: Roofs, hits: float) -> Iterator[Cause]:
    names = [role_of(kernel.name) if kernel.kind == "kernel" else None for kernel in kernels]
    beside = [
        kernel
        for kernel, name in zip(kernels, names, strict=True)
        if demand.matrix_flops and (kernel.kind != "kernel" or (name is not None and name.role in _BESIDE))
    ]
    main = [kernel for kernel in kernels if kernel not in beside]
    if beside:
        spent = math.fsum(kernel.time_s or 0.0 for kernel in beside)
        counted = f"{len(beside)} kernel{'s' if len(beside) > 1 else ''}"
        yield Cause(BESIDE, spent, f"copies, casts, sums and fills: the clock of {counted}")
    compute_s, memory_s = demand.compute_s(roofs), demand.memory_s(roofs)
    sustained, least = demand.roof_s(roofs, measured=True), max(compute_s, memory_s)
    if sustained > least:
        yield Cause(SUSTAINED, sustained - least, "the best that micro-benchmarks of the device reach")
    if main:
        yield Cause(
            LAUNCH, _LAUNCH_S * len(main), f"{len(main)} × {_LAUNCH_S * 1e6:.1f} µs, what an empty kernel takes"
        )
    if compute_s > memory_s:
        yield from _tiles(op, demand, kernels, names, roofs)
    elif hits:
        yield from _cached(hits, roofs)


def _tiles(
    op: Op, demand: Demand, kernels: Sequence[Kernel], names: Sequence[KernelRole | None], roofs: Roofs
) -> Iterator[Cause]:
    """Work of tiles that are not full, and blocks that wait for the last wave."""
    per_flop = 1.0 / roofs.matrix(demand.precision, measured=True).flops_per_s
    sms = int(roofs.device.sms.value)
    padded = 0.0
    for kernel, name, product in zip(kernels, names, product_of_each(op, names), strict=True):
        tiled = executed_tiles(name, kernel.grid, product) if name is not None and product is not None else None
        if tiled is None or kernel.grid is None or tiled.blocks == 0:
            continue
        padded += tiled.flops - product.useful_flops if product is not None else 0
        if name is not None and name.segmented:  # blocks share the last tiles
            continue
        # As if a multiprocessor took one tile at a time: those without one wait for the others.
        at_once = min(math.prod(kernel.grid), sms)
        rounds = tiled.blocks / at_once
        late = math.ceil(rounds) * sms / tiled.blocks - 1
        if late > 0.005:
            yield Cause(
                WAVE,
                late * tiled.flops * per_flop,
                f"{tiled.blocks:,} tiles, {at_once} at once on {sms} "
                f"multiprocessors: {rounds:.2f} rounds, in {math.ceil(rounds)}",
            )
    if padded:
        yield Cause(PADDED, padded * per_flop, "FLOPs of tiles that are not full, at the sustained peak")


def _cached(hits: float, roofs: Roofs) -> Iterator[Cause]:
    dram, cache = roofs.slope(measured=True), roofs.slope("l2", measured=True)
    spared = hits / dram.bytes_per_s - hits / max(cache.bytes_per_s, dram.bytes_per_s)
    if spared:
        yield Cause(CACHED, -spared, f"{hits:,.0f} bytes that still lie in the L2 need no DRAM")
