"""The whole step, measured: where its time goes, how fast it is, and whether the counters agree with themselves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from rooflight import summary
from rooflight.ledger import Ledger, total
from rooflight.measured import Measured, Number, adds_up, ratio
from rooflight.peaks import Peak, peak
from rooflight.quantities import DRAM_BYTES, EXECUTED_FLOPS, QUANTITIES

HOST_BOUND = 0.8
"""A GPU that is busy for less of the wall time than this waits for the host."""


@dataclass(frozen=True)
class TimePart:
    """A piece of the step's wall time; the pieces up to a sum add up to it."""

    name: str
    time_s: Number
    share: float | None
    """Of the wall time."""
    is_sum: bool = False


def ranks(ledger: Ledger) -> int:
    """How many processes' steps the ledger holds: more than one when ledgers were joined."""
    return max(len({op.rank for op in ledger.ops}), 1)


def wall_s(measured: Measured) -> Number | None:
    value = measured.step.get("wall_time_s")
    return None if value is None else value.value


def busy_s(measured: Measured) -> Number | None:
    value = measured.step.get("gpu_busy_s")
    return None if value is None else value.value


def busy_share(measured: Measured) -> float | None:
    """GPU-busy of wall. Above 1 when the two runs they come from differed by that much."""
    return ratio(busy_s(measured), wall_s(measured))


def is_host_bound(measured: Measured) -> bool | None:
    share = busy_share(measured)
    return None if share is None else share < HOST_BOUND


def time_parts(measured: Measured) -> list[TimePart]:
    """From the sum of the ops to the wall, with a name for each gap."""
    wall, busy, ops = wall_s(measured), busy_s(measured), measured.total.time_s
    if ranks(measured.ledger) > 1:
        ops = None  # they ran side by side, on devices of their own
    on_gpu = measured.total.get("gpu_time_s") is not None
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
class Check:
    """One counter: the sum over all ops against one range around the step."""

    name: str
    sum_of_ops: Number
    whole_step: Number
    missing: int
    """Ops that ran and have no value in the sum."""

    @property
    def difference(self) -> Number:
        return self.sum_of_ops - self.whole_step

    @property
    def relative(self) -> float | None:
        if not self.difference:
            return 0.0
        return ratio(self.difference, self.whole_step)


def self_check(measured: Measured) -> list[Check]:
    """Every counter that was read both ways and is not idle."""
    order = [*EXECUTED_FLOPS, *DRAM_BYTES, "l2_bytes", "l1_bytes"]
    order += sorted(name for name in measured.known if name not in QUANTITIES and adds_up(name))
    checks = [
        Check(name, measured.total.values[name], measured.step[name].value, measured.total.missing.get(name, 0))
        for name in order
        if name in measured.known and name in measured.step and name in measured.total.values
    ]
    return [check for check in checks if check.sum_of_ops or check.whole_step]


@dataclass(frozen=True)
class Rates:
    """How fast the step was, by the wall."""

    samples_per_s: float | None
    tokens_per_s: float | None
    useful_flops_per_s: float | None
    executed_flops_per_s: float | None
    dram_bytes_per_s: float | None


def executed_flops(measured: Measured) -> Number | None:
    """Of the whole step: from the range around it, else from the ops."""
    return _whole(measured, EXECUTED_FLOPS)


def dram_bytes(measured: Measured) -> Number | None:
    return _whole(measured, DRAM_BYTES)


def _whole(measured: Measured, names: tuple[str, ...]) -> Number | None:
    known = [measured.step[name].value for name in names if name in measured.step]
    return sum(known) if known else measured.total.of(names)


def useful_flops(ledger: Ledger) -> int | None:
    """`None` when no op has a formula."""
    return total(ledger.ops).flops if any(op.cost is not None for op in ledger.ops) else None


def rates(measured: Measured, *, over_s: Number | None = None) -> Rates:
    """Per second of wall time, or of another time of the same step."""
    time, ledger = wall_s(measured) if over_s is None else over_s, measured.ledger
    return Rates(
        samples_per_s=ratio(_times(summary.samples(ledger), ranks(ledger)), time),
        tokens_per_s=ratio(_times(summary.tokens(ledger), ranks(ledger)), time),
        useful_flops_per_s=ratio(useful_flops(ledger), time),
        executed_flops_per_s=ratio(executed_flops(measured), time),
        dram_bytes_per_s=ratio(dram_bytes(measured), time),
    )


def _times(count: int | None, ranks: int) -> int | None:
    return None if count is None else count * ranks


@dataclass(frozen=True)
class Utilisation:
    """How much of the device's peak the step used, by the wall."""

    precision: str
    """The one that most of the useful FLOPs run in: its roof is the peak."""
    peak: Peak
    mfu: float | None
    """Useful FLOPs of what the peak could have done in that time."""
    hfu: float | None
    """Executed FLOPs of the same."""


def main_precision(ledger: Ledger) -> str | None:
    """The precision of most of the useful FLOPs."""
    flops: Counter[str] = Counter()
    for op in ledger.ops:
        if op.cost is not None and op.cost.flops:
            flops[op.precision] += op.cost.flops
    return flops.most_common(1)[0][0] if flops else None


def utilisation(measured: Measured, *, flops_per_s: float | None = None) -> Utilisation | None:
    """MFU and HFU against the peak of the ledger's device, or against one that is given; `None` without a peak."""
    precision = main_precision(measured.ledger)
    if precision is None:
        return None
    best = peak(measured.ledger.header.device, precision) if flops_per_s is None else Peak(flops_per_s, "given")
    if best is None or wall_s(measured) is None:
        return None
    found = rates(measured)
    all_devices = best.flops_per_s * ranks(measured.ledger)
    return Utilisation(
        precision, best, ratio(found.useful_flops_per_s, all_devices), ratio(found.executed_flops_per_s, all_devices)
    )
