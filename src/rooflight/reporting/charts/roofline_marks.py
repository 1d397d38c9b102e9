"""What a roofline shows, whoever draws it: the roofs of a device, ops, modules and the whole step as marks; and the
same as a table.

A mark stands under the roofs twice where counters ran: by formula (useful FLOPs, compulsory bytes) and as counted
(executed FLOPs, DRAM bytes); its time is the same. Marks that the mathematics cannot tell apart are one, with a count:
the blocks of a deep model are one mark, whose figures are sums.
"""

from __future__ import annotations

import dataclasses
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from msgspec.structs import replace

from rooflight import formatting
from rooflight.analysis.verdicts import NOT_COUNTED, Judge, Verdict
from rooflight.errors import BadInput
from rooflight.formatting import tera
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.hardware.roofs import Roof, Roofs, roofs_of, unit_name
from rooflight.ledger import OUTSIDE, Ledger, Op
from rooflight.metrics import Origin
from rooflight.prediction.resolve_devices import ceilings_of
from rooflight.reporting.columns import column
from rooflight.reporting.sections.kernel_verdicts import ALL_KERNELS, all_of, kernel_verdict, timed_groups
from rooflight.reporting.sections.op_families import OTHER, family_of_all, family_of_kernel
from rooflight.reporting.table import Column, Table, kernel_name, table_of
from rooflight.summary.facts import MeasuredFact, Number, adds_up
from rooflight.summary.measured import is_measured
from rooflight.summary.measured_rows import MeasuredRow
from rooflight.summary.sums import OpGroup

Kind = Literal["op", "module", "region", "kernel", "step"]
SINGLE: tuple[Kind, ...] = ("op", "kernel")
"""What others are made of: their shares of the time add up."""
Basis = Literal["as counted", "by formula"]
_USED = 0.002
"""A roof is one of the step's from this part of its units' time on: a few instructions in fp64 are none."""


_JOIN = "; logs are joined by `rooflight import ncu.csv nsys.csv -o kernels.json`"


class NoRoofline(BadInput):
    """There is nothing to draw, and why."""


@dataclass(frozen=True, eq=False)
class RooflineMark:
    """Ops, modules or the step. Figures of a merged mark are sums over all that it stands for. Two marks with the same
    figures are two marks."""

    kind: Kind
    name: str
    """The op, or the type of the module."""
    time_s: float
    share: float | None
    """Of the time of all kernels; regions of a program may lie inside one another and have none."""
    places: Mapping[Basis, Verdict]
    """Under the roofs; only where it has FLOPs and bytes."""
    verdict: Verdict
    """What is said of it in words and numbers, with or without FLOPs: as counted where counters ran. Where they saw too
    little to judge, its FLOPs and bytes are by formula, and no percentage and no bound are told."""
    module: str = ""
    phase: str = ""
    family: str = OTHER
    count: int = 1

    @property
    def basis(self) -> str:
        """Of what is told: a counter may be missing for one of the two."""
        flops, moved = self.verdict.flops_basis == "executed", self.verdict.bytes_basis == "DRAM"
        if flops == moved:
            return "as counted" if flops else "by formula"
        return "FLOPs counted, bytes by formula" if flops else "bytes counted, FLOPs by formula"


@dataclass(frozen=True)
class RooflineMarks:
    """All of a step, the slowest first."""

    title: str
    roofs: Roofs
    used: tuple[Roof, ...]
    """Theoretical roofs of the units that the step's work runs on, the one most of the time goes to first."""
    times: Origin
    how: str
    """Where times and sustained roofs are from, in sentences."""
    bases: tuple[Basis, ...]
    marks: tuple[RooflineMark, ...]
    without_flops: Mapping[Basis, tuple[int, float]]
    """Ops that took time and have no FLOPs, and their share of it: a logarithmic scale has no place for them."""

    @property
    def device(self) -> Device:
        return self.roofs.device

    @property
    def step(self) -> RooflineMark | None:
        return next((mark for mark in self.marks if mark.kind == "step"), None)


def marks_of(ledger: Ledger, *, on: Device | None = None, judge: Judge | None = None) -> RooflineMarks:
    """A measured GPU step on its own device, an estimate with times predicted for `on`, and so a step that ran on a
    CPU, which has no roof of its own. `judge`: of this ledger on that device, where there is one already. `NoRoofline`
    where there is nothing to draw."""
    try:
        judge, how = _judge(ledger, on, judge)
    except BadInput as error:
        raise NoRoofline(error.code, error.text) from None
    device = judge.device
    if device is None:
        raise NoRoofline("no-device", judge.reason)
    ceilings = ceilings_of(device, judge.predictor)
    roofs = roofs_of(device, ceilings)
    log = not ledger.ops and bool(ledger.kernels)
    if not log and not judge.regions and (reason := judge.whole(by_formula=True).reason) and judge.whole().reason:
        raise NoRoofline("no-roofline", reason)
    candidates = _kernels(judge, ledger) if log else _regions(judge) if judge.regions else _of_step(judge)
    marks = sorted((mark for mark in candidates if mark.places), key=lambda mark: -mark.time_s)
    if not marks:
        raise NoRoofline(
            "no-roofline",
            f"nothing of {ledger.header.model} has {'FLOPs, DRAM bytes' if log else 'both FLOPs'} and a time on "
            f"{device.title}: there is nothing to put under its roofs" + (_JOIN if log else ""),
        )
    bases = tuple(basis for basis in get_args(Basis) if any(basis in mark.places for mark in marks))
    without_flops = {}
    for basis in bases:
        idle = [mark for mark in candidates if mark.kind in SINGLE and basis not in mark.places]
        without_flops[basis] = sum(mark.count for mark in idle), sum(mark.share or 0 for mark in idle)
    sustained = "" if ceilings is None else f"Sustained roofs: {ceilings.source}."
    return RooflineMarks(
        title=ledger.header.model,
        roofs=roofs,
        used=_used(marks, roofs),
        times=judge.times,
        how=" ".join(filter(None, (how, sustained))),
        bases=bases,
        marks=tuple(marks),
        without_flops=without_flops,
    )


def _judge(ledger: Ledger, on: Device | None, judge: Judge | None) -> tuple[Judge, str]:
    """And where its times are from, where that must be said. `judge`: where there is one already."""
    ran_on = recognise_name(ledger.header.device)
    if is_measured(ledger):
        on_cpu = ledger.header.target == "cpu" or (ran_on is not None and ran_on.kind == "cpu")
        if not on_cpu or on is None:
            return judge or Judge(ledger, on=None if ran_on is not None else on), ""
        if judge is None or judge.device != on:
            judge = Judge(replace(ledger, measurements=(), kernels=()), on=on)
        return judge, f"The step ran on a CPU: times are predicted for {on.title}, of the ops that the CPU ran."
    judge = judge or Judge(ledger, on=on)
    used = judge.predictor
    return judge, "" if used is None else f"Times are predicted for {used.device.title} ({used.tier}: {used.source})."


def _of_step(judge: Judge) -> list[RooflineMark]:
    step_s = sum(fact.values.get("kernel_time_s", 0) for fact in judge.measured.facts)
    growing = [*_merged_ops(judge), *_merged_modules(judge)]
    marks = [_mark(judge, gathered, step_s) for gathered in growing if gathered.values.get("kernel_time_s")]
    return [*marks, *_whole(judge)]


@dataclass
class _GrowingMark:
    """A mark while it grows."""

    kind: Kind
    name: str
    phase: str
    family: str
    modules: list[str] = field(default_factory=list)
    ops: list[int] = field(default_factory=list)
    facts: list[MeasuredFact] = field(default_factory=list)
    """Of modules: each set of ops is held against its own roof, as in every table."""
    values: dict[str, Number] = field(default_factory=lambda: defaultdict(int))
    counted_only: bool = False
    """Its ops ran in other kernels, too: what of their formulas is done here nobody knows."""

    def add(
        self, module: str, ops: Iterable[int], values: Mapping[str, Number], facts: Sequence[MeasuredFact] = ()
    ) -> None:
        self.modules.append(module)
        self.ops += ops
        self.facts += facts
        for name, value in values.items():
            if adds_up(name):
                self.values[name] += value


def _merged_ops(judge: Judge) -> list[_GrowingMark]:
    """Sets of ops that kernels belong to, those alike as one: same ops, phase, type of module and work."""
    ledger = judge.measured.ledger
    timed = {ops: values for ops, values in judge.measured.by_ops.items() if values.get("kernel_time_s") and ops}
    sets_with = Counter(index for ops in timed for index in ops)
    types = {module.path: module.type for module in ledger.modules}
    merged: dict[object, _GrowingMark] = {}
    for ops, values in timed.items():
        rows = [ledger.ops[index] for index in ops]
        shared = any(sets_with[index] > 1 for index in ops)
        alike = sorted((op.name, op.phase, types.get(op.module, op.module), op.precision, _work(op)) for op in rows)
        key = (shared, *alike)
        if key not in merged:
            names = _joined(op.packet.removeprefix("aten::") for op in rows)
            phases = _joined(op.phase for op in rows)
            merged[key] = _GrowingMark("op", names, phases, family_of_all(rows), counted_only=shared)
        merged[key].add(_joined(op.module for op in rows), ops, values)
    return list(merged.values())


def _work(op: Op) -> tuple[int, ...]:
    cost = op.cost
    if cost is None:
        return ()
    parts = (cost.flops, cost.other_flops, cost.recompute_flops, cost.bytes_read, cost.bytes_written)
    return tuple(-1 if part is None else part for part in parts)


def _merged_modules(judge: Judge) -> list[_GrowingMark]:
    """Leaf modules and children of the model, with the loss; those that run one op only are that op's mark already, and
    so are functions."""
    rows = [row for row in judge.rows("module") if row.estimate.kind in ("module", "outside")]
    parents = {row.name.rpartition(".")[0] for row in rows if row.estimate.depth}
    merged: dict[object, _GrowingMark] = {}
    for row in rows:
        depth = row.estimate.depth
        leaf = depth > 0 and row.name not in parents
        if not (leaf or depth == 1 or row.name in OUTSIDE) or not row.sums.time_s:
            continue
        if len({fact.ops for fact in row.group.facts if fact.values.get("kernel_time_s")}) < 2:
            continue
        key = _like(row)
        if key not in merged:
            phases = _joined(judge.measured.ledger.ops[index].phase for index in row.group.ops)
            family = _slowest_family(judge, row) if leaf or not depth else OTHER
            merged[key] = _GrowingMark("module", row.estimate.type if depth else row.name, phases, family)
        merged[key].add(row.name, row.group.ops, row.sums.values, row.group.facts)
    return list(merged.values())


def _slowest_family(judge: Judge, row: MeasuredRow) -> str:
    """A batch norm that counts its batches is still one: what most of the time goes to."""
    slowest = max(row.group.facts, key=lambda fact: fact.values.get("kernel_time_s", 0))
    return family_of_all([judge.measured.ledger.ops[index] for index in slowest.ops])


def _like(row: MeasuredRow) -> object:
    of, sums = row.estimate, row.estimate.totals
    return of.type, of.depth, of.calls, of.output, sums.flops, sums.other_flops, sums.bytes


def _mark(judge: Judge, gathered: _GrowingMark, step_s: float) -> RooflineMark:
    """Judged by formula and, where something was counted, as counted."""
    time_s = gathered.values["kernel_time_s"]
    plain = Verdict(name=gathered.name, time_s=float(time_s), kernels=round(gathered.values.get("kernels", 0)) or None)
    group = OpGroup(tuple(gathered.ops), tuple(gathered.facts))
    counters = judge.measured.total.whole
    places: dict[Basis, Verdict] = {}
    if counters.executed or counters.dram:
        places["as counted"] = judge.judged(plain, gathered.values, group, counters)
    if not gathered.counted_only:
        places["by formula"] = judge.judged(plain, gathered.values, group, NOT_COUNTED)
    return RooflineMark(
        gathered.kind,
        gathered.name,
        float(time_s),
        time_s / step_s,
        _drawable(places),
        _verdict(places) or plain,
        module=place_of(gathered.modules),
        phase=gathered.phase,
        family=gathered.family,
        count=len(gathered.modules),
    )


def _whole(judge: Judge) -> list[RooflineMark]:
    places: dict[Basis, Verdict] = {}
    counters = judge.measured.total.whole
    if counters.executed or counters.dram:
        places["as counted"] = judge.whole()
    formula = places["by formula"] = judge.whole(by_formula=True)
    if not formula.time_s:
        return []
    name = judge.measured.ledger.header.model
    verdict = _verdict(places) or formula
    return [RooflineMark("step", name, formula.time_s, 1.0, _drawable(places), verdict)]


def _regions(judge: Judge) -> list[RooflineMark]:
    """Pieces of a program: counted, without ops that formulas could tell of."""
    return [
        RooflineMark("region", row.name, row.time_s, None, _drawable({"as counted": row}), row)
        for row in judge.verdicts()
        if row.time_s
    ]


def _kernels(judge: Judge, ledger: Ledger) -> list[RooflineMark]:
    """Of somebody's log: each kernel with all its launches, and all of them together."""
    timed = timed_groups(ledger)
    whole = all_of(timed)
    spent_s = math.fsum(group.time_s or 0.0 for group in timed)
    marks = []
    for group in (*timed, *([whole] if len(timed) > 1 and whole.kernels else [])):
        place, time_s, is_whole = kernel_verdict(judge, group), group.time_s or 0.0, group is whole
        marks.append(
            RooflineMark(
                "step" if is_whole else "kernel",
                str(kernel_name(group.name)),
                time_s,
                time_s / spent_s,
                _drawable({"as counted": place}),
                place,
                module=ALL_KERNELS if is_whole else "",
                family=OTHER if is_whole else family_of_kernel(group.name),
                count=group.calls,
            )
        )
    return marks


def _drawable(places: Mapping[Basis, Verdict]) -> dict[Basis, Verdict]:
    return {basis: place for basis, place in places.items() if place.intensity and place.flops_per_s}


def _verdict(places: Mapping[Basis, Verdict]) -> Verdict | None:
    counted, formula = places.get("as counted"), places.get("by formula")
    if counted is None or formula is None or counted.bound is not None:
        return counted or formula
    # The counters do not bear out what the formula says of the roof.
    return replace(formula, percent_of_roof=None, bound=None)


def _used(marks: Sequence[RooflineMark], roofs: Roofs) -> tuple[Roof, ...]:
    seconds: dict[tuple[str, str], float] = defaultdict(float)
    for mark in marks:
        if mark.kind in ("op", "kernel", "region") or len(marks) == 1:
            for place in mark.places.values():
                for unit in place.units:
                    seconds[unit.unit, unit.precision] += unit.seconds
    by_unit = {
        (unit_name(roofs.device, roof.unit), roof.precision): roof for roof in roofs.compute if not roof.measured
    }
    least = _USED * sum(seconds.values())
    kinds = sorted(seconds, key=lambda kind: -seconds[kind])
    return tuple(by_unit[kind] for kind in kinds if seconds[kind] >= least and kind in by_unit)


def place_of(paths: Sequence[str]) -> str:
    """Where a merged mark is: `h.[0-11].attn` where that says all, else the first and how many more."""
    distinct = list(dict.fromkeys(paths))
    first = distinct[0].split(".")
    split = [path.split(".") for path in distinct]
    if len(distinct) > 1 and all(len(parts) == len(first) for parts in split):
        (at, *more) = (i for i, column in enumerate(zip(*split, strict=True)) if len(set(column)) > 1)
        if not more and all(parts[at].isdigit() for parts in split):
            numbers = sorted(int(parts[at]) for parts in split)
            if numbers == list(range(numbers[0], numbers[-1] + 1)):
                return ".".join([*first[:at], f"[{numbers[0]}-{numbers[-1]}]", *first[at + 1 :]])
    return f"{distinct[0]} and {len(distinct) - 1} more" if len(distinct) > 1 else distinct[0]


def _joined(names: Iterable[str]) -> str:
    """Each once; a long list is cut."""
    distinct = list(dict.fromkeys(name for name in names if name))
    more = f" + {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return " + ".join(distinct[:3]) + more


_TELLING = 20
"""Rows for who has no picture: what takes the most time."""


def marks_table(marks: Sequence[RooflineMark], note: str = "") -> Table:
    """Of each what counters saw where they ran, else what formulas say; the slowest first."""
    table = table_of(
        (
            (column("what"), lambda mark: (mark.module or "whole step") if mark.kind == "step" else mark.kind),
            (Column("op or layer", right=False), lambda mark: mark.name),
            (Column("where", right=False), lambda mark: mark.module),
            (column("phase", optional=3), lambda mark: mark.phase),
            (Column("count", formatting.exact, optional=4), lambda mark: mark.count),
            (column("time_s", heading="time"), lambda mark: mark.time_s),
            (column("share", optional=1), lambda mark: mark.share),
            (Column("basis", right=False, whole=True), lambda mark: mark.basis),
            (column("flops", optional=2), lambda mark: mark.verdict.flops),
            (column("bytes", optional=2), lambda mark: mark.verdict.bytes),
            (column("intensity"), lambda mark: mark.verdict.intensity),
            (column("flops_per_s", heading="TFLOP/s", write=tera), lambda mark: mark.verdict.flops_per_s),
            (column("percent_of_roof"), lambda mark: mark.verdict.percent_of_roof),
            (column("bound"), lambda mark: mark.verdict.bound),
        ),
        marks,
    )
    step = frozenset(number for number, mark in enumerate(marks) if mark.kind == "step")
    return dataclasses.replace(table, emphasised=step, note=note, telling=_TELLING)
