"""Verdicts in words: the side of the ridge with the distance to the roof, the evidence, and what would help."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from rooflight import formatting
from rooflight.analysis.roofline_position import SHORT_S
from rooflight.formatting import peak_tera, seconds, whole_bytes, whole_count
from rooflight.metrics import METRICS, ONCE_IT_FITS, WORTH, gain_text, percent_text
from rooflight.prediction.result import Advice
from rooflight.prediction.roofline import verdict as roof_verdict

if TYPE_CHECKING:
    from rooflight.analysis.verdicts import StepVerdict, Verdict

_Name = TypeVar("_Name", bound=str)
_NEAR_ROOF = 70.0
"""Percent of the roof from which on there is little left for any change."""
_REACHES = 0.5
"""Part of what kernels gain that must reach the step for it to be called the step's gain."""

CONVENTIONS = (
    "FLOPs are executed ones, a multiply-add as 2, each unit's under its own peak in the precision it ran in; bytes "
    "are those of the DRAM; where they were not counted, both are by formula. FLOP/B left of the ridge: the memory's "
    f"roof; right of it: the compute roof. % of roof: {METRICS['percent_of_roof'].about}. bound: "
    f"{METRICS['bound'].about}. far because: {METRICS['far'].about} (short: less than {seconds(SHORT_S)}). "
    f"gain: {METRICS['gain'].about}; under {WORTH:.0%} it is left out, and gains of several changes do not add up."
)


def evidence(verdict: Verdict) -> str:
    """The numbers that a verdict is made of."""
    if verdict.reason or verdict.flops is None or verdict.bytes is None:
        return verdict.reason
    done = (
        " + ".join(
            f"{whole_count(work.flops)} on {work.unit} {work.precision} (peak {peak_tera(work.peak_flops_per_s)})"
            for work in verdict.units
        )
        or "no FLOPs"
    )
    kernels = f" in {verdict.kernels:,} kernel{'s' if verdict.kernels > 1 else ''}" if verdict.kernels else ""
    cache = ""
    if verdict.far == "L2 cache":
        cache = f" (its compulsory bytes are {verdict.percent_of_cache:.0f}% of what the memory could have moved)"
    return (
        f"{verdict.flops_basis}: {done}; {whole_bytes(verdict.bytes)} {verdict.bytes_basis} bytes{cache}; "
        f"{seconds(verdict.time_s)}{kernels}, the roofs allow {seconds(verdict.roof_time_s)}"
    )


def place(verdict: Verdict) -> str:
    """The side of the ridge and the distance to the roof."""
    if verdict.reason or verdict.ridge is None or verdict.attainable_flops_per_s is None:
        return verdict.reason
    if not verdict.flops:
        return f"memory side: no FLOPs; {percent_text(verdict.percent_of_roof)} of the memory's bandwidth"
    if verdict.parts > 1:
        return (
            f"{formatting.ratio(verdict.intensity)} FLOP/byte; the ridge is at {formatting.ratio(verdict.ridge)} for "
            f"its mix of units; most of its time is {verdict.bound}-bound; {percent_text(verdict.percent_of_roof)} "
            "of the roofs of its ops"
        )
    return roof_verdict(verdict.intensity, verdict.ridge, verdict.attainable_flops_per_s, verdict.percent_of_roof)


def advised(verdict: Verdict) -> str:
    """One sentence for a layer: what would gain, or that nothing would."""
    advice = verdict.advice
    if advice is None:
        return _nothing(verdict)
    source = "predicted" if advice.origin.startswith("predicted") else advice.origin.partition(":")[0]
    said = (
        f"{advice.how}, its kernels would take {seconds(advice.changed_kernel_time_s)} instead of "
        f"{seconds(advice.kernel_time_s)} ({source})"
    )
    gained = formatting.percent(advice.gain_of_kernels)
    if advice.time_s is None or advice.wall_time_s is None:
        return f"{said}: saves {gained} of the kernels' time"
    saved_s = advice.wall_time_s - advice.time_s
    if saved_s >= _REACHES * advice.saved_s:
        return f"{said}: saves {seconds(saved_s)} of the step, a gain of {gain_text(advice.gain)}"
    less = f"a gain of {gain_text(advice.gain)} for" if advice.gain >= WORTH else "nothing of"
    why = "is host-bound" if verdict.host_bound else "would then be host-bound"
    return f"{said}: saves {gained} of the kernels' time, {less} the step, which {why}"


def _nothing(verdict: Verdict) -> str:
    if verdict.reason:
        return verdict.reason
    if verdict.share is not None and verdict.share < WORTH:
        return f"nothing to gain here: {formatting.percent(verdict.share)} of the kernels' time"
    percent = percent_text(verdict.percent_of_roof)
    if verdict.percent_of_roof is not None and verdict.percent_of_roof >= _NEAR_ROOF:
        return f"nothing to gain here: {percent} of the roof"
    return f"no known change gains {WORTH:.0%} of the kernels' time here: {percent} of the roof"


def step_line(verdict: StepVerdict) -> str:
    """What bounds the step, how far it is from the roof, and the best change."""
    if verdict.bound is None:
        return f"no verdict: {verdict.reason}"
    said = []
    if verdict.busy_share is None:
        said.append("whether it waits for the host is not known without its wall time")
    else:
        said.append(f"the GPU is busy for {min(verdict.busy_share, 1):.0%} of the wall time")
    if verdict.percent_of_roof is not None:
        parts = ", ".join(f"{share:.0%} of it {name}-bound" for name, share in _sorted(verdict.sides))
        said.append(
            f"{percent_text(verdict.percent_of_roof)} of the attainable roof while it works"
            f"{f' ({parts})' if parts else ''}"
        )
    if verdict.intensity is not None:
        said.append(f"{formatting.ratio(verdict.intensity)} FLOP/byte by formula")
    if verdict.mfu is not None:
        said.append(f"MFU {formatting.percent(verdict.mfu)}")
    if verdict.far:
        said.append(far_text(verdict))
    too_large = verdict.fit == "does not fit"
    if too_large:
        said.append(f"it does not fit the memory of {verdict.device}: what takes less of it comes first")
    if verdict.advice:
        said.append(f"best change{ONCE_IT_FITS if too_large else ''}: {step_advised(verdict.advice[0])}")
    return f"{verdict.bound}-bound: {'; '.join(said)}"


_SAID = 0.005
"""A smaller share reads as 0%."""


def far_text(verdict: StepVerdict) -> str:
    """`far from the roof for 61% of the kernels' time (short kernels 40%, neither roof 21%)`."""
    parts = ", ".join(f"{why} {share:.0%}" for why, share in _sorted(verdict.far))
    return f"far from the roof for {sum(verdict.far.values()):.0%} of the kernels' time ({parts})"


def _sorted(shares: Mapping[_Name, float]) -> list[tuple[_Name, float]]:
    return sorted(((name, share) for name, share in shares.items() if share >= _SAID), key=lambda one: -one[1])


def step_advised(advice: Advice) -> str:
    """One change of the whole step."""
    gained = f"a gain of {gain_text(advice.gain)}"
    if advice.time_s is None or advice.wall_time_s is None:
        return (
            f"{advice.how}, the kernels take {seconds(advice.changed_kernel_time_s)} instead of "
            f"{seconds(advice.kernel_time_s)} (predicted), {gained}"
        )
    more = " for more samples" if advice.samples > 1 else ""
    return (
        f"{advice.how}, a step takes {seconds(advice.time_s)} instead of {seconds(advice.wall_time_s)}{more} "
        f"(predicted), {gained}"
    )
