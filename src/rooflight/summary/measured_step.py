"""The whole step, measured: where its time goes, how fast it is, and whether the counters agree with themselves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace

from rooflight import formatting, metrics, summary
from rooflight.ledger import Ledger, total
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS, QUANTITIES, ratio
from rooflight.summary.facts import Number, adds_up
from rooflight.summary.measured import Measured
from rooflight.summary.peak_rates import PeakRate, peak, unit_peak


@dataclass(frozen=True)
class TimePart:
    """A piece of the step's wall time; the pieces up to a sum add up to it."""

    name: str
    time_s: Number
    share: float | None
    """Of the wall time."""
    is_sum: bool = False
    rank: int | None = None
    """Where there are several."""


def wall_s(measured: Measured, ranks: Container[int] | None = None) -> Number | None:
    """Of the slowest rank, or of the slowest among some of them."""
    return _time("wall_time_s", measured, ranks)


def busy_s(measured: Measured, ranks: Container[int] | None = None) -> Number | None:
    """Of the same rank that `wall_s` is of: two ranks' times make no ratio."""
    return _time("gpu_busy_s", measured, ranks)


def _time(name: str, measured: Measured, ranks: Container[int] | None) -> Number | None:
    steps = [values for rank, values in measured.steps.items() if ranks is None or rank in ranks]
    if not steps:
        return None
    slowest = max(steps, key=lambda values: values["wall_time_s"].value if "wall_time_s" in values else 0)
    return slowest[name].value if name in slowest else None


def busy_share(measured: Measured) -> float | None:
    return metrics.busy_share(busy_s(measured), wall_s(measured))


def is_host_bound(measured: Measured) -> bool | None:
    return metrics.is_host_bound(busy_s(measured), wall_s(measured))


def time_parts(measured: Measured) -> list[TimePart]:
    """From the sum of the ops to the wall, with a name for each gap. Of several ranks, each for itself."""
    if len(measured.ranks) == 1:
        return _time_parts(measured, wall_s(measured), busy_s(measured), measured.total.time_s)
    # A kernel of no op is of no rank either: the ops' sums are left out.
    return [
        replace(part, name=f"rank {rank}: {part.name}", rank=rank)
        for rank in measured.ranks
        for part in _time_parts(measured, wall_s(measured, {rank}), busy_s(measured, {rank}), None)
    ]


def _time_parts(measured: Measured, wall: Number | None, busy: Number | None, ops: Number | None) -> list[TimePart]:
    on_gpu = measured.total.get("kernel_time_s") is not None
    parts: list[tuple[str, Number, bool]] = []
    if ops is not None:
        outside = measured.attributed[0] if on_gpu else 0
        parts.append(("kernels of the ops" if on_gpu else "ops, one after the other", ops - outside, False))
        if outside:
            parts.append(("kernels of no op", outside, False))
        if on_gpu and busy is not None and abs(busy - ops) > 1e-6 * busy:
            parts.append((_overlap_name(ops, busy), busy - ops, False))
    if busy is not None:
        parts.append(("GPU-busy", busy, True))
    if wall is not None:
        reached = busy if busy is not None else ops
        if reached is not None:
            parts.append((_idle_name(wall - reached, on_gpu=on_gpu or busy is not None), wall - reached, False))
        parts.append(("wall", wall, True))
    return [TimePart(name, time, ratio(time, wall), is_sum) for name, time, is_sum in parts]


def _overlap_name(ops: Number, busy: Number) -> str:
    if busy >= ops or (ops - busy) < 0.005 * ops:
        return "difference of the medians"
    return "streams running side by side"


def _idle_name(idle: Number, *, on_gpu: bool) -> str:
    if idle < 0:
        return "the plain step was faster than the profiled one"
    return "GPU idle: launch gaps, host" if on_gpu else "between the ops: Python, autograd"


@dataclass(frozen=True)
class SelfCheck:
    """One counter: the sum over all ops against one range around the step."""

    name: str
    sum_of_ops: Number
    whole_step: Number
    missing: int
    """Ops that ran and have no value in the sum."""
    low: Number | None = None
    """Least and greatest of the whole step's repeats."""
    high: Number | None = None

    @property
    def difference(self) -> Number:
        return self.sum_of_ops - self.whole_step

    @property
    def relative(self) -> float | None:
        if not self.difference:
            return 0.0
        return ratio(self.difference, self.whole_step)

    @property
    def spread(self) -> float | None:
        """By how much the repeats of the whole step differ from each other."""
        if self.low is None or self.high is None:
            return None
        return 0.0 if self.low == self.high else ratio(self.high - self.low, self.whole_step)


def self_check(measured: Measured) -> list[SelfCheck]:
    """Every counter that was read both ways and is not idle."""
    order = [*EXECUTED_FLOPS, *DRAM_BYTES, "l2_bytes", "l1_bytes"]
    order += sorted(name for name in measured.known if name not in QUANTITIES and adds_up(name))
    sums, checks = measured.total, []
    for name in order:
        if name in measured.known and name in measured.step and name in sums.values:
            step = measured.step[name]
            missing = sums.missing.get(name, 0)
            checks.append(SelfCheck(name, sums.values[name], step.value, missing, step.low, step.high))
    return [check for check in checks if check.sum_of_ops or check.whole_step]


@dataclass(frozen=True)
class Rates:
    """How fast the step was, by the wall: of all ranks together, what was counted of those that have counters."""

    samples_per_s: float | None
    tokens_per_s: float | None
    useful_flops_per_s: float | None
    executed_flops_per_s: float | None
    dram_bytes_per_s: float | None


@dataclass(frozen=True)
class Counted:
    """Counters of the whole step, by quantity, summed over the ranks that have all of them."""

    values: Mapping[str, Number]
    ranks: frozenset[int]

    @property
    def sum(self) -> Number:
        return sum(self.values.values())


def executed(measured: Measured) -> Counted | None:
    """What all units executed, from the range around the step, else from the ops; `None` where a unit is unknown."""
    return _counted(measured, EXECUTED_FLOPS, measured.executed_is_known)


def moved(measured: Measured) -> Counted | None:
    """DRAM bytes, from the same."""
    return _counted(measured, DRAM_BYTES, lambda names: all(name in names for name in DRAM_BYTES))


def _counted(measured: Measured, names: tuple[str, ...], is_known: Callable[[Container[str]], bool]) -> Counted | None:
    steps = {rank: values for rank, values in measured.steps.items() if is_known(values)}
    if steps:
        counted = {name: [step[name].value for step in steps.values() if name in step] for name in names}
        return Counted({name: sum(values) for name, values in counted.items() if values}, frozenset(steps))
    sums = {name: value for name in names if (value := measured.total.get(name)) is not None}
    return Counted(sums, measured.ranks_with(names)) if is_known(sums) else None


def executed_flops(measured: Measured) -> Number | None:
    done = executed(measured)
    return None if done is None else done.sum


def dram_bytes(measured: Measured) -> Number | None:
    traffic = moved(measured)
    return None if traffic is None else traffic.sum


def useful_flops(ledger: Ledger) -> int | None:
    """`None` when no op has a formula."""
    return total(ledger.ops).flops if summary.has_formulas(ledger) else None


def rates(measured: Measured, *, while_busy: bool = False) -> Rates:
    """Per second of wall time, or of the time in which the GPU was busy."""
    time_of = busy_s if while_busy else wall_s
    time, ledger = time_of(measured), measured.ledger
    done, traffic = executed(measured), moved(measured)
    return Rates(
        samples_per_s=metrics.throughput(summary.samples(ledger), time),
        tokens_per_s=metrics.throughput(summary.tokens(ledger), time),
        useful_flops_per_s=ratio(useful_flops(ledger), time),
        executed_flops_per_s=None if done is None else ratio(done.sum, time_of(measured, done.ranks)),
        dram_bytes_per_s=None if traffic is None else ratio(traffic.sum, time_of(measured, traffic.ranks)),
    )


@dataclass(frozen=True)
class Utilisation:
    """How much of what the device could have done the step used."""

    precision: str
    """The one that most of the useful FLOPs run in ..."""
    peak: PeakRate
    """... and the most of it that the device does in a second."""
    mfu: float | None
    """Useful FLOPs at the peaks of the precisions they run in, of that time."""
    mfu_causal: float | None
    """The same without the half of attention that a causal mask leaves out; `None` where no attention is causal."""
    hfu: float | None
    """The share of that time which the units would need for what they executed, each at its own peak, one after the
    other. Of the ranks that have counters."""
    roofs: Mapping[str, PeakRate]
    """The peaks that `hfu` is made with, by quantity."""
    peaks: Mapping[str, PeakRate]
    """Those that `mfu` is made with, by precision, the one of most FLOPs first."""

    @property
    def peaks_text(self) -> str:
        """`494.5 TFLOP/s tf32`, of several precisions each."""
        return ", ".join(f"{formatting.peak_tera(peak.flops_per_s)} {name}" for name, peak in self.peaks.items())


def flops_by_precision(ledger: Ledger, *, causal: bool = False) -> Counter[str]:
    """Useful FLOPs by the precision that ops run in; `causal`: without the half that a causal mask leaves out."""
    flops: Counter[str] = Counter()
    for op in ledger.ops:
        if op.cost is not None and op.cost.flops:
            flops[op.precision] += (op.cost.flops_causal if causal else None) or op.cost.flops
    return flops


def main_precision(ledger: Ledger) -> str | None:
    """The precision of most of the useful FLOPs."""
    flops = flops_by_precision(ledger)
    return flops.most_common(1)[0][0] if flops else None


def utilisation(
    measured: Measured, *, flops_per_s: float | None = None, while_busy: bool = False
) -> Utilisation | None:
    """MFU and HFU against the peaks of the ledger's device, or against one that is given; `None` without a peak."""
    device, flops = measured.ledger.header.device, flops_by_precision(measured.ledger)
    time_of = busy_s if while_busy else wall_s
    time = time_of(measured)
    if not flops or time is None:
        return None
    given = None if flops_per_s is None else PeakRate(flops_per_s, "given")
    peaks = {name: rate for name, _ in flops.most_common() if (rate := given or peak(device, name)) is not None}
    if len(peaks) < len(flops):
        return None
    done = executed(measured)
    used = {} if done is None else {name: count for name, count in done.values.items() if count}
    roofs = {name: roof for name in used if (roof := given or unit_peak(device, name)) is not None}
    hfu = None
    if done is not None and len(roofs) == len(used):
        hfu = metrics.utilisation(_at_peak(used, roofs), (time_of(measured, done.ranks) or 0) * len(done.ranks))
    causal, of_ranks = flops_by_precision(measured.ledger, causal=True), time * len(measured.ranks)
    return Utilisation(
        precision=next(iter(peaks)),
        peak=next(iter(peaks.values())),
        mfu=metrics.utilisation(_at_peak(flops, peaks), of_ranks),
        mfu_causal=None if causal == flops else metrics.utilisation(_at_peak(causal, peaks), of_ranks),
        hfu=hfu,
        roofs=roofs,
        peaks=peaks,
    )


def _at_peak(flops: Mapping[str, Number], peaks: Mapping[str, PeakRate]) -> float:
    """Seconds that all of it takes, one after the other."""
    return math.fsum(done / peaks[name].flops_per_s for name, done in flops.items())
