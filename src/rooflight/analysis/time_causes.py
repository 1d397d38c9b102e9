"""Why an op took longer than the roofs allow, as a path of limits: each cause is how much later the op is over by it.

The least time is that of the useful FLOPs and the compulsory bytes at the data sheet's peaks. From there the path goes
on to what the clock was, what the device sustains, which tiles are not full, which multiprocessors wait, what the L2,
the latency of loops and the start of kernels take, and ends at what micro-benchmarks of such kernels took. A cause that
hides behind a longer one costs nothing. Everything follows from kernel names, grids, shapes and micro-benchmarks, and
from the clock of kernels that only move data; never from how long the product itself took.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rooflight.analysis.cause import Cause, Explained, kernels_of_ops
from rooflight.analysis.cpu_causes import explain_cpu_time, is_explicable
from rooflight.analysis.device_speed import DeviceSpeed
from rooflight.analysis.kernel_rates import KernelRate, KernelWork, convolution_works
from rooflight.analysis.traffic_causes import HITS, PASSES, REREAD, explain_traffic
from rooflight.errors import BadInput
from rooflight.hardware.devices import recognise_name
from rooflight.hardware.roofs import Demand, demand_of
from rooflight.ledger import Kernel, Ledger, Op
from rooflight.ops.kernel_names import KernelRole, role_of
from rooflight.ops.kernel_products import product_of_each
from rooflight.ops.tile_padding import executed_tiles
from rooflight.summary.facts import op_values

BESIDE = "kernels beside the product"
CLOCK = "clock below nominal"
SUSTAINED = "sustained below the peak"
TRAFFIC = "bytes read again"
CACHED = "from the L2"
PADDED = "tile padding"
WAVE = "partial wave"
CACHE = "bandwidth of the L2"
ISSUE = "instructions of the arithmetic"
FLIGHT = "too few bytes in flight"
LATENCY = "latency of dependent steps"
UNITS = "units not kept busy"
LAUNCH = "start of kernels"
SUCH = "such kernels in micro-benchmarks"

_LAUNCH_S = 1.6e-6
"""What a kernel takes that has nothing to do: the median of those with at most two blocks among single ops
(benchmarks/h200/results/instructions)."""
_MEMORY_S = 0.65e-6
"""From a load to its value, from DRAM: what is in flight in this time is all that moves in it (Little's law)."""
_LOADED = 16
"""Bytes that a thread has under way: one load of the largest size."""
_UNROLLED = 4
"""Such loads that a thread starts before it waits for the first."""
_RESIDENT = 2048
"""Threads that a multiprocessor runs at once."""
_LEAST_LEFT = 0.3
"""Of what micro-benchmarks of an op took with all its kernels: at least so much is the product's."""
_CAREFUL = 0.95
"""The part of what micro-benchmarks took that is believed: too much explained is worse than too little, and in a step a
kernel finds more in the caches than alone. Of the random nets that were kept for learning, half of the ops are slower
than so, weighted by time."""
_BESIDE = frozenset({"layout", "cast", "sum of parts", "pointwise", "reduction", "bookkeeping"})
_TRANSPOSES = re.compile("[tT]ranspose")
_CUDNN_ATTENTION = re.compile("cudnn.*_sdpa_")


def explain_time(ledger: Ledger, traffic: Sequence[Explained] | None = None) -> list[Explained]:
    """Every op whose kernels were timed and whose work is known. Empty where the device is not. `traffic`: that of the
    ledger, where it is explained already."""
    if is_explicable(ledger):
        return explain_cpu_time(ledger)
    device = recognise_name(ledger.header.device)
    if device is None or device.kind != "gpu":
        return []
    kernels = kernels_of_ops(ledger)
    traffic = explain_traffic(ledger) if traffic is None else traffic
    moved = {row.op.index: {cause.name: cause.amount for cause in row.computed} for row in traffic}
    on = DeviceSpeed.of(ledger, device)
    rows = []
    for op, values in zip(ledger.ops, op_values(ledger), strict=True):
        demand = demand_of(op)
        if demand is None or "kernel_time_s" not in values:
            continue
        try:
            asked = demand.roof_s(on.roofs)
            causes = tuple(_TimePath(op, demand, kernels[op.index], on, moved.get(op.index, {})).causes())
        except BadInput:  # a precision that the device has no roof for
            continue
        rows.append(Explained(op, asked, values["kernel_time_s"].value, causes))
    return rows


def is_beside(kernel: Kernel) -> bool:
    """Does it copy, convert, add up or fill around a matrix kernel?"""
    if kernel.kind != "kernel":
        return True
    name = role_of(kernel.name)
    if name is None:
        return _TRANSPOSES.search(kernel.name) is not None
    return name.role in _BESIDE


@dataclass
class _TimePath:
    """One op on its way from the least time to what its kernels take."""

    op: Op
    demand: Demand
    kernels: Sequence[Kernel]
    on: DeviceSpeed
    moved: Mapping[str, float]
    """Why its DRAM bytes are not the compulsory ones."""
    at: float = 0.0
    """How far the path is."""
    found: list[Cause] = field(default_factory=list)

    def causes(self) -> Iterator[Cause]:
        demand, on = self.demand, self.on
        main = [kernel for kernel in self.kernels if not (demand.matrix_flops and is_beside(kernel))]
        beside = [kernel for kernel in self.kernels if demand.matrix_flops and is_beside(kernel)]
        beside_s = math.fsum(kernel.time_s or 0.0 for kernel in beside)
        if beside:
            counted = f"{len(beside)} kernel{'s' if len(beside) > 1 else ''}"
            yield Cause(BESIDE, beside_s, f"copies, casts, sums and fills: the clock of {counted}")
        if not main:
            return
        names = [role_of(kernel.name) if kernel.kind == "kernel" else None for kernel in main]
        works = self._works(main, names)
        most = self._most_s(works, beside_s)
        starts = math.fsum(rate.start_s + work.rounds * rate.round_s for work, rate in works) or _LAUNCH_S * len(main)
        room = math.inf if most is None else max(most - _LAUNCH_S * len(main), demand.roof_s(on.roofs))
        self.at = demand.roof_s(on.roofs)
        self._limits(main, names, works, room)
        self._go(self.at + starts, max(most or math.inf, self.at), LAUNCH, _starts(len(main), starts))
        if most is not None:
            source = "of kernels of that name" if works else "of such ops"
            self._go(most, most, SUCH, f"{most * 1e6:.1f} µs by micro-benchmarks {source}")
        yield from self.found

    def _works(self, main: Sequence[Kernel], names: Sequence[KernelRole | None]) -> list[tuple[KernelWork, KernelRate]]:
        """What the kernels of a convolution do, and how fast such kernels are; empty where one of them is not known."""
        found = convolution_works(self.op, main, names, self.on.device)
        pairs = []
        for work in found:
            rate = None if work is None else self.on.rates.get((work.kind, work.make))
            if work is None or rate is None:
                return []
            pairs.append((work, rate))
        return pairs

    def _most_s(self, works: Sequence[tuple[KernelWork, KernelRate]], beside_s: float) -> float | None:
        """What micro-benchmarks of these kernels, or else of such ops, took."""
        if works:
            return _CAREFUL * math.fsum(work.seconds(rate) for work, rate in works)
        like = self.on.like_s.get(self.op.index)
        # A layer in one op was timed with torch's own attention: that says nothing of cuDNN's.
        is_other = "cudnn" not in self.op.name and any(_CUDNN_ATTENTION.search(kernel.name) for kernel in self.kernels)
        return None if like is None or is_other else max(_CAREFUL * like - beside_s, _LEAST_LEFT * like)

    def _go(self, to: float, most: float, name: str, evidence: str) -> None:
        """Up to a limit, if it is not passed already, and no farther than such kernels go."""
        to = min(to, most)
        if to > self.at:
            self.found.append(Cause(name, to - self.at, evidence))
            self.at = to

    def _limits(
        self,
        main: Sequence[Kernel],
        names: Sequence[KernelRole | None],
        works: Sequence[tuple[KernelWork, KernelRate]],
        room: float,
    ) -> None:
        demand, roofs, on = self.demand, self.on.roofs, self.on
        compute = demand.compute_s(roofs) * on.slower
        self._go(max(compute, demand.memory_s(roofs)), room, CLOCK, on.clock)
        compute = demand.compute_s(roofs, measured=True) * on.slower
        best = "the best that micro-benchmarks of the device reach"
        self._go(max(compute, demand.memory_s(roofs, measured=True)), room, SUSTAINED, best)
        memory = self._memory(compute, room)
        if demand.matrix_flops:
            padded, late, why = self._tiles(main, names)
            self._go(compute + padded, room, PADDED, "FLOPs of tiles that are not full, at the sustained peak")
            self._go(compute + padded + late, room, WAVE, why)
        if works:
            self._loops(works, room)
        else:
            self._threads(main, memory, room)

    def _memory(self, compute: float, room: float) -> float:
        """Of the bytes that really move: less where they lie in the L2, more where they are read again."""
        demand, roofs, moved = self.demand, self.on.roofs, self.moved
        dram = roofs.slope(measured=True)
        memory = demand.memory_s(roofs, measured=True)
        known = any(slope.level == "l2" for slope in roofs.memory)
        cache = roofs.slope("l2", measured=True) if known else dram
        hits = -moved.get(HITS, 0.0)
        spared = hits / dram.bytes_per_s - hits / max(cache.bytes_per_s, dram.bytes_per_s)
        lower = max(compute, memory - spared)
        if spared and lower < self.at:
            self.found.append(
                Cause(CACHED, lower - self.at, f"{hits:,.0f} bytes that still lie in the L2 need no DRAM")
            )
            self.at = lower
        again = moved.get(REREAD, 0.0) + (moved.get(PASSES, 0.0) if not demand.matrix_flops else 0.0)
        memory += again / dram.bytes_per_s - spared
        self._go(max(compute, memory), room, TRAFFIC, f"{again:,.0f} bytes go through the DRAM once more")
        return memory

    def _tiles(self, kernels: Sequence[Kernel], names: Sequence[KernelRole | None]) -> tuple[float, float, str]:
        """Seconds of work in tiles that are not full, and of multiprocessors that wait for the last round."""
        per_flop = self.on.slower / self.on.roofs.matrix(self.demand.precision, measured=True).flops_per_s
        sms = int(self.on.device.sms.value)
        padded = waited = 0.0
        why = ""
        for kernel, name, product in zip(kernels, names, product_of_each(self.op, names), strict=True):
            tiled = executed_tiles(name, kernel.grid, product) if name is not None and product is not None else None
            if tiled is None or product is None or kernel.grid is None or tiled.blocks == 0:
                continue
            padded += max(0, tiled.flops - product.useful_flops)
            if name is not None and name.segmented:  # blocks share the last tiles
                continue
            # As if a multiprocessor took one tile at a time: those without one wait for the others.
            at_once = min(math.prod(kernel.grid), sms)
            rounds = tiled.blocks / at_once
            late = math.ceil(rounds) * sms / tiled.blocks - 1
            if late > 0.005:
                waited += late * tiled.flops
                why = why or (
                    f"{tiled.blocks:,} tiles, {at_once} at once on {sms} "
                    f"multiprocessors: {rounds:.2f} rounds, in {math.ceil(rounds)}"
                )
        return padded * per_flop, waited * per_flop, why

    def _loops(self, works: Sequence[tuple[KernelWork, KernelRate]], room: float) -> None:
        """What the blocks of a convolution load, and how long they wait for it."""
        cache = math.fsum(work.l2_bytes / rate.l2_bytes_per_s for work, rate in works)
        loaded = math.fsum(work.l2_bytes for work, _ in works)
        self._go(cache, room, CACHE, f"blocks load {loaded / 1e6:,.1f} MB, each its own rows and columns")
        waits = math.fsum(max(cache_s, waits_s) for _, cache_s, waits_s, _ in (w.limits_s(r) for w, r in works))
        work, rate = max(works, key=lambda pair: pair[0].steps * pair[1].step_s)
        why = f"{work.steps:,.0f} steps one after the other, {rate.step_s * 1e9:,.0f} ns each in {work.make[:40]}"
        self._go(waits, room, LATENCY, why)
        limits = [work.limits_s(rate) for work, rate in works]
        work, rate = max(works, key=lambda pair: pair[0].limits_s(pair[1])[0])
        busy = rate.busy * (work.tile / 16384) ** rate.larger
        why = f"{busy:.0%} of a multiprocessor's peak is what such tiles reach in {work.make[:40]}"
        self._go(math.fsum(max(row[:3]) for row in limits), room, UNITS, why)

    def _threads(self, main: Sequence[Kernel], memory: float, room: float) -> None:
        """Kernels without tiles: every thread has a load under way, and every value its instructions."""
        demand, on = self.demand, self.on
        if not demand.matrix_flops and on.instructions is not None:
            told = [one for kernel in main if (one := on.instructions.of(self.op, kernel)) is not None]
            if told:
                # An instruction of every lane a cycle: half of what the peak counts, with its two FLOPs each.
                issue = 2 * math.fsum(one.flops for one in told) / on.roofs.other(demand.precision).flops_per_s
                self._go(issue * on.slower, room, ISSUE, max(told, key=lambda one: one.flops).like)
        launched = [
            (math.prod(kernel.grid), math.prod(kernel.block)) for kernel in main if kernel.grid and kernel.block
        ]
        grids = [(blocks, threads) for blocks, threads in launched if blocks > 0 and threads > 0]
        if demand.matrix_flops or not grids:
            return
        sms = int(on.device.sms.value)
        needed = on.roofs.slope(measured=True).bytes_per_s * _MEMORY_S / _LOADED
        each_bytes = demand.bytes / len(grids)  # as if every kernel went over as much as every other
        flight = waits = 0.0
        for blocks, threads in grids:
            running = min(blocks, sms * max(1, _RESIDENT // max(threads, 1))) * threads
            flight += memory / len(grids) * max(1.0, needed / running)
            loads = math.ceil(each_bytes / (blocks * threads) / (_UNROLLED * _LOADED))
            waits += loads * math.ceil(blocks * threads / running) * _MEMORY_S
        fewest = min(min(blocks, sms * max(1, _RESIDENT // max(threads, 1))) * threads for blocks, threads in grids)
        why = f"{fewest:,} threads run at once, of {needed:,.0f} that keep the memory busy"
        self._go(flight, room, FLIGHT, why)
        self._go(waits, room, LATENCY, f"rounds of loads in a thread, {_MEMORY_S * 1e9:.0f} ns each")


def _starts(kernels: int, seconds: float) -> str:
    return f"{kernels} × {seconds / kernels * 1e6:.1f} µs before, after and between the rounds of a kernel's blocks"
