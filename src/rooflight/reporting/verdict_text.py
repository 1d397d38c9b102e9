"""Verdicts in words: the side of the ridge with the distance to the roof, the evidence, and what would help."""

from __future__ import annotations

from rooflight import units
from rooflight.explanation.advice import WORTH, Advice
from rooflight.explanation.verdicts import LATENCY_PERCENT, SHORT_S, StepVerdict, Verdict
from rooflight.metrics import HOST_BOUND
from rooflight.prediction.roofline import verdict as roof_verdict
from rooflight.units import peak_tera, seconds, whole_bytes, whole_count

_NEAR_ROOF = 70.0
"""Percent of the roof from which on there is little left for any change."""
_REACHES = 0.5
"""Part of what kernels gain that must reach the step for it to be called the step's gain."""

CONVENTIONS = (
    "FLOPs are executed ones, a multiply-add as 2, each unit's under its own peak in the precision it ran in; bytes "
    "are those of the DRAM; where they were not counted, both are by formula. FLOP/B left of the ridge: the memory's "
    "roof; right of it: the compute roof. % of roof is of what is attainable there, by the time of the kernels. "
    f"latency: under {LATENCY_PERCENT:.0f}% of the roof, or kernels of less than {seconds(SHORT_S)}: it waits for "
    "neither; cache: far from it because the L2 cache gives what the memory need not. "
    f"host-bound, of a step: the GPU is busy for less than {HOST_BOUND:.0%} of the wall time. Gains under "
    f"{WORTH:.0%} of the kernels' time are left out; those of several changes do not add up."
)


def evidence(verdict: Verdict) -> str:
    """The numbers that a verdict is made of."""
    if verdict.reason or verdict.flops is None or verdict.bytes is None:
        return verdict.reason
    done = " + ".join(f"{whole_count(one.flops)} on {one.unit} {one.precision} (peak {peak_tera(one.peak_flops_per_s)})"
                      for one in verdict.units) or "no FLOPs"  # fmt: skip
    kernels = f" in {verdict.kernels:,} kernel{'s' if verdict.kernels > 1 else ''}" if verdict.kernels else ""
    cache = ""
    if verdict.bound == "cache":
        cache = f" (its compulsory bytes are {verdict.percent_of_cache:.0f}% of what the memory could have moved)"
    return (f"{verdict.flops_basis}: {done}; {whole_bytes(verdict.bytes)} {verdict.bytes_basis} bytes{cache}; "
            f"{seconds(verdict.time_s)}{kernels}, the roofs allow {seconds(verdict.roof_time_s)}")  # fmt: skip


def place(verdict: Verdict) -> str:
    """The side of the ridge and the distance to the roof."""
    if verdict.reason or verdict.ridge is None or verdict.attainable_flops_per_s is None:
        return verdict.reason
    if not verdict.flops:
        return f"memory side: no FLOPs; {verdict.percent_of_roof:.3g}% of the memory's bandwidth"
    return roof_verdict(verdict.intensity, verdict.ridge, verdict.attainable_flops_per_s, verdict.percent_of_roof)


def advised(verdict: Verdict) -> str:
    """One sentence for a layer: what would gain, or that nothing would."""
    advice = verdict.advice
    if advice is None:
        return _nothing(verdict)
    found = "measured" if advice.origin.startswith("measured") else "predicted"
    said = (f"{advice.how} its kernels would take {seconds(advice.after_s)} instead of {seconds(advice.before_s)} "
            f"({found})")  # fmt: skip
    gained = units.percent(advice.gain_of_kernels)
    if advice.gain_of_step is None or advice.wall_gain_s is None:
        return f"{said}: {gained} of the kernels' time"
    if advice.wall_gain_s >= _REACHES * advice.gain_s:
        return f"{said}: {seconds(advice.wall_gain_s)} or {units.percent(advice.gain_of_step)} of the step"
    less = f"{units.percent(advice.gain_of_step)}" if advice.gain_of_step >= WORTH else "none"
    why = "is host-bound" if verdict.host_bound else "would then be host-bound"
    return f"{said}: {gained} of the GPU's time, {less} of the step's, which {why}"


def _nothing(verdict: Verdict) -> str:
    if verdict.reason:
        return verdict.reason
    if verdict.share is not None and verdict.share < WORTH:
        return f"nothing to gain here: {units.percent(verdict.share)} of the kernels' time"
    if verdict.percent_of_roof is not None and verdict.percent_of_roof >= _NEAR_ROOF:
        return f"nothing to gain here: {verdict.percent_of_roof:.0f}% of the roof"
    return f"no known change gains {WORTH:.0%} of the kernels' time here: {verdict.percent_of_roof:.0f}% of the roof"


def step_line(verdict: StepVerdict) -> str:
    """What bounds the step, how far it is from the roof, and the best change."""
    if verdict.bound is None:
        return f"no verdict: {verdict.reason}"
    parts = ", ".join(f"{share:.0%} {name}" for name, share in sorted(verdict.bounds.items(), key=lambda one: -one[1]))
    said = []
    if verdict.percent_of_op_roofs is not None:
        said.append(f"{verdict.percent_of_op_roofs:.0f}% of the roofs of its ops while the GPU works ({parts})")
    if verdict.busy_share is None:
        said.append("whether it waits for the host is not known without its wall time")
    else:
        said.insert(0, f"the GPU is busy for {min(verdict.busy_share, 1):.0%} of the wall time")
    if verdict.advice:
        said.append(f"best: {step_advised(verdict.advice[0], verdict.wall_s)}")
    return f"{_bound(verdict)}: {'; '.join(said)}" if said else _bound(verdict)


def _bound(verdict: StepVerdict) -> str:
    """`memory-bound` is not said of kernels that are far from every roof."""
    if verdict.bound == "host":
        return "host-bound"
    if not verdict.bounds and verdict.whole.side is not None:  # no kernel is known, only the step
        side = verdict.whole.side
        far = verdict.whole.bound == "latency"
        return f"far from both roofs (latency), as a whole on the {side} side" if far else f"as a whole {side}-bound"
    if verdict.bounds.get("latency", 0.0) <= 0.5:
        return f"{verdict.bound}-bound"
    return f"far from both roofs (latency), more of its time on the {verdict.bound} side"


def step_advised(advice: Advice, wall_s: float | None) -> str:
    """One change of the whole step."""
    if advice.wall_s is None or advice.gain_of_step is None:
        return (f"{advice.how} the kernels take {seconds(advice.after_s)} instead of {seconds(advice.before_s)} "
                f"(predicted), {units.percent(advice.gain_of_kernels)} less")  # fmt: skip
    if advice.samples > 1:
        return (f"{advice.how} a step takes about the same {seconds(wall_s)} (predicted), "
                f"{units.percent(advice.gain_of_step)} less for a sample")  # fmt: skip
    return (f"{advice.how} a step takes {seconds(advice.wall_s)} instead of {seconds(wall_s)} (predicted), "
            f"{units.percent(advice.gain_of_step)} less")  # fmt: skip
