"""Makes a device's table of counted kernels from ledgers of single ops."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from rooflight.analysis.cause import kernels_of_ops
from rooflight.analysis.instruction_counts import (
    CountedKernel,
    Instructions,
    InstructionTable,
    executes_blocks,
    signature,
    values_of,
    work,
)
from rooflight.ledger import Kernel, Ledger, Op
from rooflight.metrics import CUDA_FLOPS
from rooflight.ops.direct_convolutions import is_direct, results_of, taps_inside
from rooflight.summary.facts import op_values, useful_flops_of

_BY_VALUES = re.compile(r"Sqrt<|embedding_backward|embedding_dense|nll_loss|max_pool_backward")
"""What these execute depends on the numbers they work on, zeros and indices that come twice: no count tells it."""
_STRAIGHT = 0.002
"""A count that lies on the line between its neighbours, so nearly, is left out of the table."""


def table_of(
    device: str, ledgers: Iterable[Ledger], wanted: Callable[[int], bool] = lambda index: True
) -> InstructionTable:
    """`wanted`: of the ops with these numbers only."""
    held = list(ledgers)
    first = _table(device, held, wanted, None)
    return _table(device, held, wanted, Instructions(first))


def _table(
    device: str, ledgers: Sequence[Ledger], wanted: Callable[[int], bool], others: Instructions | None
) -> InstructionTable:
    found: dict[tuple[str, str, str], dict[float, float]] = defaultdict(dict)
    torch = ""
    for ledger in ledgers:
        torch = ledger.header.torch or torch
        for op, kernel, values, known in _counts(ledger, others):
            if not values or not wanted(op.index) or _BY_VALUES.search(kernel.name):
                continue
            where = float(f"{work(op, kernel) / values:.4g}")
            for unit, flops in known.items():
                points = found[(*signature(op, kernel), unit)]
                points[where] = min(flops / values, points.get(where, math.inf))  # rather too little than too much
    kernels = [CountedKernel(*key, _thinned(sorted(points.items()))) for key, points in sorted(found.items())]
    # A unit that a kernel does not use says nothing, but that the kernel is known.
    kept = [one for one in kernels if one.unit == CUDA_FLOPS[0] or any(count for _, count in one.points)]
    return InstructionTable(device, torch, tuple(kept))


def _counts(ledger: Ledger, others: Instructions | None) -> Iterator[tuple[Op, Kernel, int, dict[str, float]]]:
    """Kernels without matrix work whose FLOPs are known, with the values they go over. Of direct convolutions what is
    left beside the products."""
    kernels = kernels_of_ops(ledger)
    for op, values in zip(ledger.ops, op_values(ledger), strict=True):
        of_op = [kernel for kernel in kernels[op.index] if kernel.kind == "kernel"]
        counted = {unit: values[unit].value for unit in CUDA_FLOPS if unit in values}
        for kernel in of_op:
            own = _own(op, kernel, of_op, counted, others)
            if own and op.packet.startswith("aten::convolution") and is_direct(kernel):
                left = own[CUDA_FLOPS[0]] - 2 * taps_inside(op)
                yield op, kernel, results_of(op, kernel), {**own, CUDA_FLOPS[0]: left}
            elif own and (not useful_flops_of(op) or "attention" in op.name):
                yield op, kernel, values_of(op, kernel), own


def _own(
    op: Op, kernel: Kernel, of_op: Sequence[Kernel], counted: dict[str, float], others: Instructions | None
) -> dict[str, float]:
    """By the kernel's own counters; else what the op executed, less the other kernels where all of them are known."""
    own = {unit: kernel.quantities[unit].value for unit in CUDA_FLOPS if unit in kernel.quantities}
    if own or not counted:
        return own
    beside = [other for other in of_op if other is not kernel and "FillFunctor" not in other.name]
    if not beside:
        return counted
    if others is None or not executes_blocks(op, kernel):
        return {}
    told = [others.of(op, other, counted) for other in beside]
    if any(one is None for one in told):
        return {}
    less = math.fsum(one.flops for one in told if one is not None)
    return {**counted, CUDA_FLOPS[0]: counted[CUDA_FLOPS[0]] - less}


def _thinned(points: list[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Without those that the others tell."""
    kept = list(points)
    place = 1
    while place < len(kept) - 1:
        (x0, y0), (x, y), (x1, y1) = kept[place - 1 : place + 2]
        straight = y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        if abs(straight - y) <= _STRAIGHT * abs(y):
            del kept[place]
        else:
            place += 1
    return tuple((x, float(f"{y:.5g}")) for x, y in kept)
