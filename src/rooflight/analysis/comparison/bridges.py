"""The bridges of a comparison: FLOPs, bytes, time and memory from A to B, each by its causes."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

from msgspec.structs import replace as in_fields

from rooflight.analysis.cause import Explained, kernels_of_ops
from rooflight.analysis.comparison import bridge as causes
from rooflight.analysis.comparison.align import Alignment
from rooflight.analysis.comparison.bridge import Bridge, Contribution, bridge
from rooflight.analysis.comparison.factors import bytes_by_factor
from rooflight.analysis.comparison.fusion import KeptInside, kept_inside
from rooflight.analysis.comparison.matched_work import MatchedWork, SideWork, matched_work
from rooflight.analysis.comparison.spread import overlap, spread_of
from rooflight.analysis.comparison.why import Reasons
from rooflight.analysis.comparison.work_causes import WorkContext, WorkQuantity, contributions, other_attention
from rooflight.analysis.device_speed import clock_mhz
from rooflight.analysis.flop_causes import explain_flops
from rooflight.analysis.host_causes import HOST, explain_host
from rooflight.formatting import seconds, whole_bytes
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.hardware.roofs import Roofs, roofs_of
from rooflight.ledger import Ledger, Measurement, Op, Value, total
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS
from rooflight.summary import has_formulas
from rooflight.summary.facts import Number, compulsory_bytes_of, op_values, useful_flops_of
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s, wall_s

_COVERED = 0.5
"""Ops must make up so much of what was counted of the step on both sides, or it is not taken apart by them."""
WALL = "wall time"
FORMULA_BYTES = "bytes by formula"
"""What bytes are called where nothing counted those of DRAM."""
_HALF = "cuda_flops_fp16"


def is_run(side: Measured) -> bool:
    """Was it measured, or predicted? Of a log without ops nothing can be matched."""
    return bool(side.ledger.ops) and bool(side.facts or side.step)


class Bridges:
    """Two runs, matched once for all quantities. `devices`: where they ran, or are predicted to run."""

    def __init__(
        self,
        sides: tuple[Measured, Measured],
        reasons: tuple[Reasons, Reasons],
        alignment: Alignment,
        devices: tuple[Device | None, Device | None],
    ) -> None:
        self._sides, self._reasons, self._alignment, self._devices = sides, reasons, alignment, devices
        self._headers = sides[0].ledger.header, sides[1].ledger.header

    def all(self) -> list[Bridge]:
        """As far as both sides know a quantity. Ranks share no clock: several together are not taken apart."""
        if any(len(side.ranks) > 1 for side in self._sides) or not all(map(is_run, self._sides)):
            return []
        found = (self._flops(), self._bytes(), self._time())
        return [replace(one, is_within_noise=self._is_noise(one)) for one in found if one is not None]

    def _is_noise(self, one: Bridge) -> bool:
        """Of the wall time: what is counted varies by far less than it differs."""
        walls = [side.step.get("wall_time_s") for side in self._sides]
        if one.what != WALL or walls[0] is None or walls[1] is None:
            return False
        return overlap(spread_of(walls[0]), spread_of(walls[1]))

    @cached_property
    def _works(self) -> list[MatchedWork]:
        return matched_work(*self._sides, self._alignment)

    @cached_property
    def _roofs(self) -> tuple[Roofs, Roofs] | None:
        a, b = self._devices
        if a is None or b is None or a.kind != "gpu" or b.kind != "gpu":
            return None
        return roofs_of(a), roofs_of(b)

    def _context(
        self, quantity: WorkQuantity, value: Callable[[SideWork], Number], explained: Sequence[Sequence[Explained]]
    ) -> WorkContext:
        of_a, of_b = ({row.op.index: row for row in rows} for rows in explained)
        knows_traffic = all(side.traffic for side in self._reasons)
        attention = other_attention(self._alignment.only_a, self._alignment.only_b)
        return WorkContext(
            quantity, value, self._headers, (of_a, of_b), self._roofs, self._clocks, knows_traffic, attention
        )

    @cached_property
    def _clocks(self) -> tuple[float, float] | None:
        a, b = map(clock_mhz, self._headers)
        same = self._headers[0].device == self._headers[1].device
        return (a, b) if same and a and b and a != b else None

    def _flops(self) -> Bridge | None:
        names = [name for name in EXECUTED_FLOPS if all(_knows(side, name) for side in self._sides)]
        counted = any(name in side.known or name in side.step for side in self._sides for name in EXECUTED_FLOPS)
        if not names:
            return None if counted else self._by_formula("FLOPs")
        lacking = any(_knows(side, name) for side in self._sides for name in EXECUTED_FLOPS if name not in names)
        what = "executed FLOPs of the units that both sides counted" if lacking else "executed FLOPs"
        explained = [explain_flops(_with_kernel_counters(side.ledger)) for side in self._sides]
        return self._counted("FLOPs", what, names, explained)

    def _bytes(self) -> Bridge | None:
        if not all(_knows(side, name) for side in self._sides for name in DRAM_BYTES):
            counted = any(_knows(side, name) for side in self._sides for name in DRAM_BYTES)
            return None if counted else self._by_formula("DRAM bytes")
        return self._counted("DRAM bytes", "DRAM bytes", DRAM_BYTES, [side.traffic for side in self._reasons])

    def _counted(
        self, quantity: WorkQuantity, what: str, names: Sequence[str], explained: Sequence[Sequence[Explained]]
    ) -> Bridge:
        """What hardware counters saw."""

        def value(work: SideWork) -> Number:
            return sum(work.values.get(name, 0) for name in names)

        ends = _ends(self._sides, names, self._works, value)
        context = self._context(quantity, value, explained)
        parts: list[Contribution] = []
        localised = self._is_localised(value, ends)
        if localised:
            parts = [part for work in self._works for part in contributions(work, context)]
        if quantity == "DRAM bytes":
            parts += self._fusion(localised=localised)
        return bridge(quantity, "flop" if quantity == "FLOPs" else "byte", what, ends, parts)

    def _is_localised(self, value: Callable[[SideWork], Number], ends: tuple[Number, Number]) -> bool:
        of_works = [math.fsum(value((work.a, work.b)[place]) for work in self._works) for place in (0, 1)]
        return all(part >= _COVERED * whole for part, whole in zip(of_works, ends, strict=True))

    def _fusion(self, *, localised: bool) -> Iterator[Contribution]:
        """Bytes that fused kernels keep inside: as many as the other side's ops moved for them."""
        kept = kept_inside(self._sides[0].ledger), kept_inside(self._sides[1].ledger)
        a, b = (inside.bytes * self._moved_share(1 - place) for place, inside in enumerate(kept))
        if not a and not b:
            return
        most = max(kept, key=lambda inside: inside.bytes)
        evidence = f"{_of_values(most)} stay inside kernels, {whole_bytes(most.bytes)} by formula"
        yield Contribution(causes.FUSION, a - b, None, evidence, ops=most.values)
        if localised:
            evidence = "what fused kernels move beyond that: passes over the same values, and other cache contents"
            yield Contribution(causes.FUSED_PASSES, b - a, None, evidence, "observed", 0)

    def _moved_share(self, place: int) -> float:
        """DRAM bytes by compulsory ones, of the ops of fused groups on a side: caches give the rest."""
        side = self._sides[place]
        groups = [(work.a, work.b)[place] for work in self._works if work.kind == "fused"]
        counted = [group for group in groups if any(name in group.values for name in DRAM_BYTES)]
        moved = math.fsum(group.values.get(name, 0) for group in counted for name in DRAM_BYTES)
        asked = sum(compulsory_bytes_of(op) for group in counted for op in group.ops)
        if not moved or not asked:
            moved = math.fsum(side.step[name].value for name in DRAM_BYTES if name in side.step)
            asked = total(side.ledger.ops).bytes
        return min(moved / asked, 1.0) if asked else 1.0

    def _time(self) -> Bridge | None:
        def value(work: SideWork) -> Number:
            return work.values.get("kernel_time_s", work.values.get("host_time_s", 0))

        sums = [math.fsum(value((work.a, work.b)[place]) for work in self._works) for place in (0, 1)]
        walls, busy = [wall_s(side) for side in self._sides], [busy_s(side) for side in self._sides]
        context = self._context("time", value, [side.time for side in self._reasons])
        parts = [part for work in self._works for part in contributions(work, context)] if all(sums) else []
        if walls[0] is None or walls[1] is None:
            ends = (sums[0], sums[1])
            return bridge("time", "second", "sum of kernel times", ends, parts) if all(sums) else None
        parts += self._around_kernels(walls, busy, sums)
        return bridge("time", "second", WALL, (walls[0], walls[1]), parts)

    def _around_kernels(
        self, walls: Sequence[Number | None], busy: Sequence[Number | None], sums: Sequence[float]
    ) -> Iterator[Contribution]:
        """What of the wall time no kernel runs in, and what runs side by side."""
        worked = [sums[place] if busy[place] is None else busy[place] for place in (0, 1)]
        # Ops are timed in other runs than the step: where these took longer, nothing tells what is between them.
        idle = [max((walls[place] or 0) - (worked[place] or 0), 0.0) for place in (0, 1)]
        counts = [side.total.get("kernels") for side in self._sides]
        on_gpu = any(one is not None for one in busy)
        evidence = f"{seconds(idle[0])} → {seconds(idle[1])} in which "
        if on_gpu:
            evidence += "no kernel runs"
            if all(counts):
                evidence += f"; {counts[0]:,.0f} → {counts[1]:,.0f} kernels"
            executions = [header.execution for header in self._headers]
            if executions[0] != executions[1]:
                evidence += f"; {executions[0]} → {executions[1]}"
            evidence += self._host_change(idle)
        else:
            evidence += "no op runs: Python, and torch around its ops"
        yield Contribution(causes.LAUNCHES if on_gpu else causes.BETWEEN, idle[1] - idle[0], None, evidence, "observed")
        overlaps = [0.0 if one is None else min(one - summed, 0.0) for one, summed in zip(busy, sums, strict=True)]
        text = "union of the kernels less their sum"
        yield Contribution(causes.OVERLAP, overlaps[1] - overlaps[0], None, text, "observed")

    def _host_change(self, idle: Sequence[float]) -> str:
        """What of it changed most, where the profiler saw on both sides what the host did meanwhile."""
        parts = [
            {part.name: part.amount for part in explain_host(side.ledger, idle[place])}
            for place, side in enumerate(self._sides)
        ]
        if any(HOST in side for side in parts):
            return ""
        names = dict.fromkeys((*parts[0], *parts[1]))
        before, after = ({name: side.get(name, 0.0) for name in names} for side in parts)
        most = max(names, key=lambda name: abs(after[name] - before[name]))
        return f"; most of it {most.removeprefix('host: ')}, {seconds(before[most])} → {seconds(after[most])}"

    def _by_formula(self, quantity: WorkQuantity) -> Bridge | None:
        """Of two steps of which nothing was counted; `None` where they do not differ."""
        ledgers = [side.ledger for side in self._sides]
        if not all(map(has_formulas, ledgers)):
            return None
        of_op = useful_flops_of if quantity == "FLOPs" else compulsory_bytes_of
        ends = [sum(map(of_op, ledger.ops)) for ledger in ledgers]
        if ends[0] == ends[1]:
            return None
        parts = list(self._formula_parts(quantity, of_op))
        if quantity == "FLOPs":
            found = bridge(quantity, "flop", "useful FLOPs", (ends[0], ends[1]), parts)
        else:
            found = bridge(FORMULA_BYTES, "byte", "compulsory bytes", (ends[0], ends[1]), parts)
        return replace(found, is_by_formula=True)

    def _formula_parts(self, quantity: WorkQuantity, of_op: Callable[[Op], int]) -> Iterator[Contribution]:
        a, b = (side.ledger for side in self._sides)
        context = self._context(quantity, lambda work: sum(map(of_op, work.ops)), [(), ()])
        partners = self._alignment.partners
        for op in a.ops:
            if op.index not in partners:
                yield from contributions(MatchedWork("only A", SideWork((op,), {"": 0}), SideWork()), context)
                continue
            other = b.ops[partners[op.index]]
            if quantity == "FLOPs":
                yield Contribution(causes.SIZES, of_op(other) - of_op(op), other, "by formula")
                continue
            by_factor = bytes_by_factor(op, other)
            yield Contribution(causes.SIZES, by_factor.get("sizes", 0.0), other, "by formula")
            yield Contribution(causes.PRECISION, by_factor.get("precision", 0.0), other, "by formula: bytes of a value")
        taken = set(partners.values())
        for op in b.ops:
            if op.index not in taken:
                yield from contributions(MatchedWork("only B", SideWork(), SideWork((op,), {"": 0})), context)


def _of_values(kept: KeptInside) -> str:
    return f"{kept.values:,} intermediate results"


def _knows(side: Measured, name: str) -> bool:
    """FLOPs on 16 bits are left out on purpose where no tensor has 16: there are none."""
    return name in side.step or name in side.known or _is_nought(side, name)


def _is_nought(side: Measured, name: str) -> bool:
    return name == _HALF and not side.has_half and ("cuda_flops_fp32" in side.step or "cuda_flops_fp32" in side.known)


def _ends(
    sides: tuple[Measured, Measured],
    names: Sequence[str],
    works: Sequence[MatchedWork],
    value: Callable[[SideWork], Number],
) -> tuple[Number, Number]:
    """Of the range around the step, where there is one; else of all ops."""
    ends: list[Number] = []
    for place, side in enumerate(sides):
        if all(name in side.step or _is_nought(side, name) for name in names):
            ends.append(sum(side.step[name].value for name in names if name in side.step))
        else:
            ends.append(math.fsum(value((work.a, work.b)[place]) for work in works))
    return ends[0], ends[1]


def _with_kernel_counters(ledger: Ledger) -> Ledger:
    """A ledger whose ops have what was counted of the kernels that are theirs alone: so that those of a compiled step
    are explained as those of an eager one."""
    values = op_values(ledger)
    more = []
    for index, kernels in kernels_of_ops(ledger).items():
        if any(name in values[index] for name in EXECUTED_FLOPS):
            continue
        sums: dict[str, Number] = defaultdict(int)
        for kernel in kernels:
            for name in EXECUTED_FLOPS:
                if name in kernel.quantities:
                    sums[name] += kernel.quantities[name].value
        if sums:
            counted = {name: Value(amount, "sum of its kernels") for name, amount in sums.items()}
            more.append(Measurement(scope="op", ops=(index,), quantities=counted))
    return in_fields(ledger, measurements=(*ledger.measurements, *more)) if more else ledger


def device_of_side(side: Measured, on: Device | None) -> Device | None:
    """Where a side ran, or is predicted to run."""
    return on if side.origin == "predicted" and on is not None else recognise_name(side.ledger.header.device)
