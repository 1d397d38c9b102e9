"""Roofline numbers that somebody worked out by hand, judged: what follows from them, and what is wrong with them.

`judge` takes FLOPs, bytes and a time as they were written down, with the peak and the bandwidth that were used, and
gives the point under the right roof with a sentence for every mistake it finds: a roof of another precision, a link's
bandwidth for the memory's, a slip of ten, multiply-adds for FLOPs, tensor-core work that was not counted, a verdict
without the distance to the roof. Each check is a function from what was given to its findings.
"""

from __future__ import annotations

from dataclasses import replace

from rooflight.analysis.sanity.checks import (
    CHECKS,
    Counted,
    Judgement,
    StatedRun,
    link_claim,
    looks_like_macs,
    roof_point,
)
from rooflight.hardware.roofs import Roof, attainable, ridge, roofs_of
from rooflight.metrics import percent_of_roof, ratio
from rooflight.prediction.paleo import flops_time_s, throughput

__all__ = ["Counted", "Judgement", "StatedRun", "judge", "link_claim", "roof_point"]


def judge(given: StatedRun) -> Judgement:
    """The point under the right roof, and all that is wrong with the numbers it is made of."""
    roofs = roofs_of(given.device)
    roof, slope = roofs.matrix(given.precision), roofs.slope()
    flops = _work(given, roof)
    intensity = ratio(flops, given.bytes)
    time = given.time_s
    ppp = given.ppp
    if time is None and flops is not None:
        time = flops_time_s(flops, roof.flops_per_s, given.ppp or 1.0)
    elif flops is not None and time:
        ppp = flops / time / roof.flops_per_s
    rate = ratio(flops, given.time_s)
    top = None if intensity is None else attainable(intensity, roof, slope)
    run = Judgement(
        given=given,
        roof=roof,
        slope=slope,
        ridge=ridge(roof, slope),
        flops=flops,
        intensity=intensity,
        flops_per_s=rate,
        bytes_per_s=ratio(given.bytes, given.time_s),
        attainable_flops_per_s=top,
        percent_of_roof=percent_of_roof(rate, top),
        percent_of_bandwidth=percent_of_roof(ratio(given.bytes, given.time_s), slope.bytes_per_s),
        side=None if intensity is None else "compute" if intensity >= ridge(roof, slope) else "memory",
        time_s=time,
        throughput=throughput(given.batch, time) if given.batch and time else None,
        ppp=ppp,
    )
    return replace(run, findings=tuple(finding for check in CHECKS for finding in check(run)))


def _work(given: StatedRun, roof: Roof) -> float | None:
    """The formula's count where the counters that were read cannot have seen the unit that did the work."""
    unseen = given.counted == "cuda-cores" and roof.unit == "tensor"
    if given.useful_flops is not None and (unseen or given.flops is None or looks_like_macs(given)):
        return given.useful_flops
    return given.flops
