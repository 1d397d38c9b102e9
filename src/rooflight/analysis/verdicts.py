"""A verdict on every layer of a step, and on the step: which roof it lies under, how far from it, what bounds it.

Work is what the counters saw, unit by unit, each against its own peak; bytes are those of the DRAM. Where something was
not counted, the formula stands in for it, and the verdict says so. Of a step that was only estimated the times are
predicted for a device that must be named.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
from msgspec.structs import replace

from rooflight import metrics
from rooflight.analysis import verdict_text
from rooflight.analysis.advice import Advisor
from rooflight.analysis.judged_device import judged_on, predicted_times
from rooflight.analysis.roofline_position import SHORT_S, Basis, RooflineWork, UnitWork, Unknown, work_of
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Demand, Roofs, demand_of, roofs_of
from rooflight.ledger import Ledger, Measurement, total
from rooflight.metrics import Bound, Fit, Origin, Side
from rooflight.prediction.device_run import DeviceRun, device_runs
from rooflight.prediction.rebuilt import as_run_on, step_of, traces_of
from rooflight.prediction.resolve_devices import memories_on, predictor_of
from rooflight.prediction.result import Advice, Prediction
from rooflight.prediction.tiers import Predictor
from rooflight.prediction.traces import Traces
from rooflight.summary import By
from rooflight.summary.facts import Number
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import MeasuredRow, rows
from rooflight.summary.measured_step import busy_s, busy_share, executed, is_host_bound, moved, utilisation, wall_s
from rooflight.summary.sums import OpGroup, Whole

Far = Literal["", "short kernels", "L2 cache", "neither roof"]
"""Why work is far from its roof; empty where it is not."""

TOTAL = "total"
NOT_COUNTED = Whole(executed=False, cuda=False, dram=False)
"""Formulas stand in for every counter."""


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds a layer, a type, an op, a region or a whole step. Unknown is `None`, and `reason` says why."""

    name: str
    type: str = ""
    depth: int = 0
    time_s: float | None = None
    """Of its kernels."""
    share: float | None = None
    """Of the time of all kernels."""
    kernels: int | None = None
    flops: Number | None = None
    flops_basis: Basis | None = None
    bytes: Number | None = None
    bytes_basis: Basis | None = None
    units: tuple[UnitWork, ...] = ()
    intensity: float | None = None
    """FLOPs per byte, of what stands above."""
    estimated_intensity: float | None = None
    """FLOPs that must be computed, by formula, per compulsory byte."""
    ridge: float | None = None
    side: Side | None = None
    """Of the ridge: that of all of it, while `bound` may be the other where most of the time is."""
    attainable_flops_per_s: float | None = None
    flops_per_s: float | None = None
    roof_time_s: float | None = None
    """The least time that the roofs allow."""
    percent_of_roof: float | None = None
    """`roof_time_s` over its time; of several sets of ops, those of each added up."""
    percent_of_compute: float | None = None
    percent_of_memory: float | None = None
    percent_of_cache: float | None = None
    """Its compulsory bytes over those that the memory could have moved in its time, where DRAM bytes were counted: the
    cache gave what is more than `percent_of_memory`. `None` of fused ops, which do not move what is between them."""
    bound: Side | None = None
    """The roof that it lies under; of several sets of ops, the one with more of their time."""
    far: Far = ""
    """Why it is far from that roof, where it is."""
    parts: int = 1
    """Sets of ops that kernels belong to."""
    advice: Advice | None = None
    host_bound: bool | None = None
    """Does the whole step wait for the host?"""
    reason: str = ""

    @property
    def side_text(self) -> str:
        return {"memory": "left: memory roof", "compute": "right: compute roof"}.get(self.side or "", "")

    @property
    def evidence(self) -> str:
        """The numbers that the verdict is made of, in words; why there is none, where there is none."""
        return verdict_text.evidence(self)

    @property
    def sentence(self) -> str:
        """What would help, and by how much."""
        return verdict_text.advised(self)


class StepVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What bounds the step, and what would help. Everything under the roofs is of the time in which the GPU works."""

    device: str | None
    times: Origin
    bound: Bound | None
    whole: Verdict
    wall_s: float | None = None
    busy_s: float | None = None
    busy_share: float | None = None
    sides: dict[Side, float] = {}
    """Parts of the kernels' time under each roof."""
    far: dict[Far, float] = {}
    """Parts of the kernels' time that are far from their roof, by why."""
    percent_of_roof: float | None = None
    """The least time of every set of ops under its own roof, one after the other, over the time the GPU is busy."""
    intensity: float | None = None
    """FLOPs that must be computed for every compulsory byte, by formula."""
    mfu: float | None = None
    fit: Fit | None = None
    """Into the memory of the device; of a run, it did."""
    advice: tuple[Advice, ...] = ()
    """For the whole step, best first; then a larger batch, which is another step."""
    predictor: str = ""
    """What predicts the gains."""
    reason: str = ""

    @property
    def gain(self) -> float | None:
        """What the best change of this very step gains; `None` without a verdict."""
        gains = [advice.gain for advice in self.advice if advice.samples == 1]
        return None if self.bound is None else max(gains, default=0.0)

    @property
    def percent_of_op_roofs(self) -> float | None:
        """As `percent_of_roof` was called."""
        return self.percent_of_roof

    @property
    def sentence(self) -> str:
        return verdict_text.step_line(self)


def verdicts(ledger: Ledger, by: By = "module", *, on: Device | None = None) -> list[Verdict]:
    """One verdict a row, in the order of the summary. A measured step is judged on its own device; an estimate on the
    one that is given."""
    return Judge(ledger, on=on).verdicts(by)


def step_verdict(ledger: Ledger, *, on: Device | None = None) -> StepVerdict:
    """The verdict on the whole step, with advice."""
    return Judge(ledger, on=on).step()


class Judge:
    """A step on its device, looked at once for many questions. `traces`: of its model, where others have them."""

    def __init__(self, ledger: Ledger, *, on: Device | None = None, traces: Traces | None = None) -> None:
        self.device, self.reason = judged_on(ledger, on)
        self.cell: DeviceRun | None = None
        """The prediction that its times are of, where they are predicted."""
        self.otherwise = ""
        """What must be said of ops that this device would run in other kernels."""
        if not is_measured(ledger) and self.predictor is not None:
            traces = traces or traces_of(ledger)
            there, self.otherwise = as_run_on(ledger, self.predictor.device, traces)
            self.cell = device_runs(step_of(there, traces), [self.predictor])[0]
        if self.cell is None:
            self.measured = Measured(ledger)
        else:  # with the ops that it would run, as those of a fused optimizer
            self.measured = Measured(self.cell.step.ledger, predicted_times(self.cell))
        self.times: Origin = self.measured.origin if is_measured(ledger) else "predicted"
        self._parts_by_ops: dict[Whole, dict[tuple[int, ...], _Part | None]] = defaultdict(dict)
        self._wholes: dict[bool, Verdict] = {}

    @cached_property
    def predictor(self) -> Predictor | None:
        return None if self.device is None else predictor_of(self.device, None, None)[0]

    @property
    def device_title(self) -> str:
        return "" if self.device is None else self.device.title

    @cached_property
    def prediction(self) -> Prediction | None:
        """Of a step that was not measured: what `rooflight predict` says of it, without advice and memory."""
        return None if self.cell is None else self.cell.prediction()

    @cached_property
    def fit(self) -> Fit | None:
        """What was measured ran; of a predicted step the memory is played through."""
        if self.cell is not None and self.device is not None:
            return memories_on(self.device).of(self.cell.step, self.device).fit
        return "fits" if is_measured(self.measured.ledger) else None

    @cached_property
    def mfu(self) -> float | None:
        if self.prediction is not None:
            return self.prediction.mfu
        used = utilisation(self.measured)
        return None if used is None else used.mfu

    @cached_property
    def advisor(self) -> Advisor:
        return Advisor(self.measured, self.predictor, self.cell)

    @cached_property
    def _roofs(self) -> Roofs | None:
        return None if self.device is None else roofs_of(self.device)

    @cached_property
    def _host_bound(self) -> bool | None:
        return is_host_bound(self.measured)

    def rows(self, by: By = "module") -> list[MeasuredRow]:
        return rows(self.measured, by)

    @cached_property
    def regions(self) -> list[Measurement]:
        """Pieces of a program, in place of layers."""
        return [row for row in self.measured.ledger.measurements if row.scope == "region"]

    def verdicts(self, by: By = "module", *, advised: bool = True) -> list[Verdict]:
        if self.regions:
            return [self._region(row) for row in self.regions]
        return self.of(self.rows(by), advised=advised)

    def of(self, rows: Sequence[MeasuredRow], *, advised: bool = True) -> list[Verdict]:
        """Verdicts on rows, folded ones too; without advice they cost far less."""
        advice: Sequence[Advice | None] = [None] * len(rows)
        if advised and self.device is not None:
            advice = self.advisor.rows([row.group for row in rows])
        return [self._row(row, best) for row, best in zip(rows, advice, strict=True)]

    def _row(self, row: MeasuredRow, advice: Advice | None) -> Verdict:
        sums, estimate = row.sums, row.estimate
        plain = Verdict(
            name=row.name,
            type=estimate.type,
            depth=estimate.depth,
            time_s=_float(sums.time_s),
            share=row.share,
            kernels=_int(sums.get("kernels")),
            host_bound=self._host_bound,
            estimated_intensity=estimate.totals.intensity,
        )
        return replace(self.judged(plain, sums.values, row.group, sums.whole), advice=advice)

    def _region(self, row: Measurement) -> Verdict:
        """Its time on the GPU is from the first to the last of its work there, gaps included."""
        values = {name: value.value for name, value in row.quantities.items()}
        plain = Verdict(
            name=row.name, type="region", time_s=_float(values.get("gpu_span_s")), kernels=_int(values.get("kernels"))
        )
        known = self.measured.executed_is_known(values)
        return self.judged(plain, values, OpGroup((), ()), Whole(executed=known, cuda=known, dram=True))

    def judged(self, plain: Verdict, values: Mapping[str, Number], group: OpGroup, whole: Whole) -> Verdict:
        """The same with its place under the roofs, or with the reason why it has none."""
        if self._roofs is None:
            return replace(plain, reason=self.reason)
        if not plain.time_s:
            return replace(plain, reason="no kernel ran for it, or none that was timed")
        try:
            work = self._work(values, group.ops, whole)
        except Unknown as why:
            return replace(plain, reason=str(why))
        parts = self._parts(group, whole)
        return _placed(plain, work, parts, plain.time_s, fused=self.measured.ledger.header.is_compiled)

    def _work(self, values: Mapping[str, Number], indices: Sequence[int], whole: Whole) -> RooflineWork:
        assert self._roofs is not None
        demands = [demand for index in indices if (demand := self._demands[index]) is not None]
        return work_of(values, demands, self._roofs, flops_counted=whole.executed, bytes_counted=whole.dram)

    @cached_property
    def _demands(self) -> list[Demand | None]:
        """Of every op: it is asked for with every row that the op is in."""
        return [demand_of(op) for op in self.measured.ledger.ops]

    def _parts(self, group: OpGroup, whole: Whole) -> list[_Part]:
        """Every set of ops that kernels belong to, under its own roof; those of which nothing is known are left out.

        A row has all facts of a set of ops or none, so each set is judged once for all rows around it."""
        known = self._parts_by_ops[whole]
        sets = dict.fromkeys(fact.ops for fact in group.facts)
        for ops in sets:
            if ops not in known:
                known[ops] = self._part(ops, whole)
        return [part for ops in sets if (part := known[ops]) is not None]

    def _part(self, ops: tuple[int, ...], whole: Whole) -> _Part | None:
        values = self.measured.by_ops[ops]
        if not values.get("kernel_time_s"):
            return None
        try:
            work = self._work(values, ops, whole)
        except Unknown:
            return None
        return _Part(work, float(values["kernel_time_s"]), int(values.get("kernels", 0)))

    def whole(self, *, by_formula: bool = False) -> Verdict:
        """The whole step under the roofs, without advice; `by_formula`: as if nothing had been counted."""
        if by_formula not in self._wholes:
            self._wholes[by_formula] = self._whole(by_formula=by_formula)
        return self._wholes[by_formula]

    def _whole(self, *, by_formula: bool) -> Verdict:
        measured = self.measured
        busy = busy_s(measured)
        total_s = measured.total.time_s
        plain = Verdict(
            name=TOTAL,
            time_s=_float(total_s if busy is None else busy),
            share=None if total_s is None else 1.0,
            kernels=_int(measured.total.get("kernels")),
            host_bound=self._host_bound,
            estimated_intensity=total(measured.ledger.ops).intensity,
        )
        done, traffic = executed(measured), moved(measured)
        values = {**measured.total.values, **({} if done is None else done.values)}
        values |= {} if traffic is None else traffic.values
        counted = Whole(executed=done is not None, cuda=done is not None, dram=traffic is not None)
        if by_formula:
            return self.judged(plain, values, measured.whole, NOT_COUNTED)
        of_ops = measured.of_ops
        as_one = (counted.executed and not of_ops.executed) or (counted.dram and not of_ops.dram)
        # Where only the step as a whole was counted, nothing tells what its ops have of that.
        return self.judged(plain, values, OpGroup(measured.whole.ops, ()) if as_one else measured.whole, counted)

    def step(self) -> StepVerdict:
        return self._step

    @cached_property
    def _step(self) -> StepVerdict:
        measured = self.measured
        whole = self.whole()
        reason = self.reason or whole.reason
        if self.regions:
            reason = "these are regions of a program, not a step: each has its own verdict"
        verdict = StepVerdict(
            device=None if self.device is None else self.device.title,
            times=self.times,
            bound=None,
            whole=whole,
            wall_s=_float(wall_s(measured)),
            busy_s=_float(busy_s(measured)),
            busy_share=busy_share(measured),
            reason=reason,
        )
        return verdict if reason else self._with_bounds(verdict)

    def _with_bounds(self, verdict: StepVerdict) -> StepVerdict:
        whole, fused = verdict.whole, self.measured.ledger.header.is_compiled
        parts = self._parts(self.measured.whole, self.measured.of_ops)
        total_s = sum(part.time_s for part in parts)
        sides: dict[Side, float] = defaultdict(float)
        far: dict[Far, float] = defaultdict(float)
        for part in parts:
            sides[part.work.side] += part.time_s / total_s
            why = _far(part.work, part.time_s, part.kernels, part.work.roof_s, fused=fused)
            far[why] += part.time_s / total_s if why else 0.0
        bound = metrics.bound(sides["compute"], sides["memory"], host_bound=self._host_bound)
        if not total_s and whole.side is not None and not self._host_bound:  # nothing is known of its ops
            bound = whole.side
        predictor, roof_s = self.predictor, sum(part.work.roof_s for part in parts)
        percent = metrics.percent_of_roof(roof_s, whole.time_s) if parts else whole.percent_of_roof
        return replace(
            verdict,
            bound=bound,
            sides=dict(sides),
            far={why: share for why, share in far.items() if share},
            whole=replace(whole, bound=whole.bound if bound == "host" else bound, percent_of_roof=percent),
            percent_of_roof=percent,
            intensity=whole.estimated_intensity,
            mfu=self.mfu,
            fit=self.fit,
            advice=self.advisor.step(),
            predictor="" if predictor is None else f"{predictor.tier}: {predictor.source}",
        )


@dataclass(frozen=True)
class _Part:
    """A set of ops that ran in kernels of their own."""

    work: RooflineWork
    time_s: float
    kernels: int


def _placed(plain: Verdict, work: RooflineWork, parts: Sequence[_Part], time_s: float, *, fused: bool) -> Verdict:
    roof_s, bound = work.roof_s, work.side
    if len(parts) > 1:
        # Each under its own roof: what they add up to is what a plan for all of them could reach.
        roof_s = sum(part.work.roof_s for part in parts)
        of_memory = sum(part.time_s for part in parts if part.work.side == "memory")
        bound = metrics.side(sum(part.time_s for part in parts) - of_memory, of_memory)
    return replace(
        plain,
        flops=work.flops,
        flops_basis=work.flops_basis,
        bytes=work.bytes,
        bytes_basis=work.bytes_basis,
        units=work.units,
        intensity=work.intensity,
        ridge=work.ridge,
        side=work.side,
        parts=max(len(parts), 1),
        attainable_flops_per_s=work.flops / roof_s if roof_s else 0.0,
        flops_per_s=work.flops / time_s,
        roof_time_s=roof_s,
        percent_of_roof=metrics.percent_of_roof(roof_s, time_s),
        percent_of_compute=metrics.percent_of_roof(work.compute_s, time_s),
        percent_of_memory=metrics.percent_of_roof(work.memory_s, time_s),
        percent_of_cache=_cache_percent(work, time_s, fused=fused),
        bound=bound,
        far=_far(work, time_s, plain.kernels, roof_s, fused=fused),
    )


def _cache_percent(work: RooflineWork, time_s: float, *, fused: bool) -> float | None:
    if work.bytes_basis != "DRAM" or work.compulsory_bytes is None or fused:
        return None
    return metrics.percent_of_roof(work.compulsory_bytes / work.bandwidth_bytes_per_s, time_s)


def _far(work: RooflineWork, time_s: float, kernels: int | None, roof_s: float, *, fused: bool) -> Far:
    if kernels and time_s / kernels < SHORT_S:
        return "short kernels"
    if 100 * roof_s >= metrics.FAR_PERCENT * time_s:
        return ""
    return "L2 cache" if (_cache_percent(work, time_s, fused=fused) or 0) >= metrics.FAR_PERCENT else "neither roof"


def _float(value: Number | None) -> float | None:
    return None if value is None else float(value)


def _int(value: Number | None) -> int | None:
    return None if value is None else round(value)
