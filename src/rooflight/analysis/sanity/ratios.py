"""Two numbers of one thing: why they differ, and what may be concluded from it.

A ratio of measured to estimated is first taken apart into the factors that conventions bring in (a multiply-add is 2
FLOP, a training step is about 3 forwards, the batch); only what is left wants a cause. Two devices are compared by
time. Memory of a training step is held against all that such a step keeps, not against its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from rooflight import formatting, summary
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity.checks import Judgement
from rooflight.errors import BadInput
from rooflight.ledger import Ledger
from rooflight.metrics import ratio

CONVENTIONS: Mapping[str, float] = {
    "a multiply-add is 2 FLOP": 2,
    "a training step is about 3 forwards": 3,
}


@dataclass(frozen=True)
class RatioFactors:
    """`ratio` = the product of the factors x what is left."""

    ratio: float
    factors: Mapping[str, float]
    left: float

    @property
    def text(self) -> str:
        if not self.factors:
            return f"{self.ratio:.3g} is explained by no convention"
        parts = " x ".join(f"{_factor(value)} ({why})" for why, value in self.factors.items())
        rest = "" if abs(self.left - 1) < 0.005 else f" x {self.left:.3g}, which is what wants a cause"
        return f"{self.ratio:.3g} = {parts}{rest}"


def explain(quotient: float, factors: Mapping[str, float] = CONVENTIONS) -> RatioFactors:
    """The product of some of the factors, or of their inverses, that comes nearest to a ratio."""
    if not quotient > 0:
        raise BadInput("not-positive", f"a ratio of {quotient:g} has no factors: both numbers must be above 0")
    best: dict[str, float] = {}
    for powers in product((0, 1, -1), repeat=len(factors)):
        used = {why: value**power for (why, value), power in zip(factors.items(), powers, strict=True) if power}
        # One factor more must bring it nearer by more than a rounding.
        if _distance(quotient, used) + 0.02 < _distance(quotient, best):
            best = used
    return RatioFactors(quotient, best, quotient / math.prod(best.values()))


def _distance(quotient: float, factors: Mapping[str, float]) -> float:
    return abs(math.log(quotient / math.prod(factors.values())))


def _factor(value: float) -> str:
    return f"{value:g}" if value >= 1 else f"1/{1 / value:g}"


@dataclass(frozen=True)
class RunComparison:
    """The same work on two devices, or two works on one."""

    times_as_fast: float | None
    """The second against the first."""
    flops_change_percent: float | None
    """Of what was counted, as it was counted."""
    bytes_change_percent: float | None
    findings: tuple[Finding, ...]


def compare(
    first: Judgement, second: Judgement, *, same_work: bool = True, preferred: str | None = None
) -> RunComparison:
    """What two judged runs say about each other; `preferred`: the name of the device that somebody would take."""
    earlier, later = first.given, second.given
    speed = ratio(earlier.time_s, later.time_s)
    findings = []
    if same_work:
        missing = [row.given.device.title for row in (first, second) if row.has("tensor-work-not-counted")]
        changed = _change(earlier.flops, later.flops)
        if missing and changed is not None:
            findings.append(
                Finding(
                    "artefact",
                    f"the same work has the same FLOPs: counted ones that change by {changed:.1f}% say "
                    f"only that the counters missed the tensor cores of {' and '.join(missing)}",
                )
            )
        if speed is not None:
            faster, times = (later, speed) if speed > 1 else (earlier, 1 / speed)
            text = f"{faster.device.title} was {times:.3g} times as fast: time decides, not a point's place on the plot"
            findings.append(Finding("faster", text))
            if preferred is not None and preferred != faster.device.name:
                findings.append(Finding("preference", f"{preferred} was the slower one and is no better choice"))
    elif speed is not None and earlier.flops and later.flops:
        findings += _overhead(later.flops / earlier.flops, 1 / speed)
    return RunComparison(
        times_as_fast=speed,
        flops_change_percent=_change(earlier.flops, later.flops),
        bytes_change_percent=_change(earlier.bytes, later.bytes),
        findings=tuple(findings),
    )


def _overhead(work: float, time: float) -> list[Finding]:
    """Much more work in hardly more time: the time was not the work's."""
    work, time = (work, time) if work >= 1 else (1 / work, 1 / time)
    if work < 1.5 or time > 1.2:
        return []
    text = f"{work:.3g} times the FLOPs took {time:.3g} times the time: most of it is overhead that both have"
    return [Finding("overhead", text)]


def _change(before: float | None, after: float | None) -> float | None:
    share = ratio(after, before)
    return None if share is None else 100 * (share - 1)


@dataclass(frozen=True)
class MemoryRatio:
    """Memory in use against the parameters, and against what a training step keeps at least."""

    per_parameters: float
    per_kept: float
    finding: Finding


def memory_ratio(actual_bytes: float, ledger: Ledger, *, replicas: int = 1) -> MemoryRatio:
    """Judge the memory of a training step. Every replica holds parameters of its own; they are counted as such, once
    each, and the batch is shared out among them."""
    if ledger.header.step != "train":
        raise BadInput(
            "not-a-training-step", "memory of training is compared with a training step: trace it with step train"
        )
    sizes = summary.sizes(ledger)
    parameters = replicas * sizes.param_bytes
    states = replicas * (sizes.gradient_bytes + sizes.optimizer_state_bytes)
    activations = sizes.kept_for_backward_bytes or 0
    in_all = parameters + states + activations + sizes.input_bytes
    text = (
        f"training memory is not {actual_bytes / parameters:.4g} times its theory: parameters are "
        f"{formatting.bytes_(parameters)}, {formatting.percent(parameters / in_all)} of what the step keeps; gradients "
        f"and optimizer state are {formatting.bytes_(states)}, activations kept for backward "
        f"{formatting.bytes_(activations)} at batch {ledger.header.batch}; "
        f"against all of it the ratio is {actual_bytes / in_all:.3g}"
    )
    return MemoryRatio(actual_bytes / parameters, actual_bytes / in_all, Finding("parameters-for-memory", text))
