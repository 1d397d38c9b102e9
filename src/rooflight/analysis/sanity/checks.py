"""What can be wrong with roofline numbers: each check is a function from a judgement to its findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from rooflight import formatting
from rooflight.analysis.finding import Finding
from rooflight.analysis.sanity.device_figures import SAME, directions, link_name, power_of_ten, same
from rooflight.analysis.sanity.stated_run import Judgement, StatedRun
from rooflight.errors import BadInput
from rooflight.hardware.roofs import roofs_of, unit_name
from rooflight.metrics import busy_share, is_host_bound, ratio
from rooflight.prediction.paleo import CUDNN, LEAST, check_ppp

FAR = 50.0
"""Percent of the roof under which neither the units nor the memory can be what a step waits for."""


def _peak(run: Judgement) -> Iterator[Finding]:
    """Is the peak that was used the roof of this work?"""
    given, roof = run.given, run.roof
    used = given.peak_flops_per_s
    if used is None or same(used, roof.flops_per_s):
        return
    right = f"{roof.precision} work on {given.device.title} has the roof {formatting.count(roof.flops_per_s)}FLOP/s"
    wrong_ridge = used / run.slope.bytes_per_s
    consequence = f"ridge {run.ridge:.4g} FLOP/byte, not {wrong_ridge:.4g}"
    for other in roofs_of(given.device).compute:
        if same(used, other.flops_per_s) and not other.precision.startswith("int"):
            where = unit_name(given.device, other.unit)
            yield Finding(
                "peak-of-another-precision",
                f"{formatting.count(used)}FLOP/s is the {other.precision} peak of the {where}; {right}: {consequence}",
            )
            return
    if same(used, 2 * roof.flops_per_s):
        yield Finding(
            "peak-of-two",
            f"{formatting.count(used)}FLOP/s is twice the peak, that of a board of two dies or with sparsity; {right}, "
            "and one process runs on one die",
        )
    elif (slip := power_of_ten(used / roof.flops_per_s)) is not None:
        yield Finding("peak-off-by-ten", f"{formatting.count(used)}FLOP/s is {slip} the peak: {right}, {consequence}")
    else:
        yield Finding(
            "peak-unknown", f"{formatting.count(used)}FLOP/s is no peak of this device: {right}, {consequence}"
        )


def _bandwidth(run: Judgement) -> Iterator[Finding]:
    """Is the bandwidth that was used the memory's?"""
    given, right = run.given, run.slope.bytes_per_s
    used = given.bandwidth_bytes_per_s
    if used is None or same(used, right):
        return
    memory = f"its memory has {formatting.count(right)}B/s"
    for name, figure in given.device.links_bytes_per_s.items():
        if (ways := directions(used, figure.value)) is not None:
            yield Finding(
                "link-for-memory",
                f"{formatting.count(used)}B/s is {link_name(name)} of {given.device.title} ({ways}), a link and not "
                f"its memory: {memory}",
            )
            return
    slip = power_of_ten(used / right)
    if slip is not None:
        yield Finding("bandwidth-off-by-ten", f"{formatting.count(used)}B/s is {slip} the bandwidth: {memory}")
    elif same(used * 8, right) or same(used, 8 * right):
        yield Finding("bits-for-bytes", f"{formatting.count(used)}B/s mixes bits and bytes: {memory}")
    else:
        yield Finding("bandwidth-unknown", f"{formatting.count(used)}B/s is no figure of this device: {memory}")


def _two_dies(run: Judgement) -> Iterator[Finding]:
    """A board of several GPUs is not what one process runs on."""
    device = run.given.device
    if device.name.endswith("-board") and run.given.processes == 1:
        half = run.roof.flops_per_s / 2
        yield Finding(
            "board-for-die",
            f"{device.title} is a board of two GPUs, and one process runs on one of them: half the peak, "
            f"{formatting.count(half)}FLOP/s, and twice the time; single and double are precisions, not "
            "numbers of GPUs",
        )


# Checks of what was counted.


def _tensor_work(run: Judgement) -> Iterator[Finding]:
    """FADD, FMUL and FFMA do not see the tensor cores."""
    given = run.given
    if given.counted != "cuda-cores" or run.roof.unit != "tensor" or given.flops is None:
        return
    text = f"FADD, FMUL and FFMA do not see tensor cores, where {run.roof.precision} work runs on {given.device.title}"
    if given.useful_flops:
        share = given.flops / given.useful_flops
        text += (
            f": {formatting.exact(round(given.flops))} FLOP is {100 * share:.3g}% of the "
            f"{formatting.exact(round(given.useful_flops))} that the work has; intensity and FLOP/s are too low by "
            "as much"
        )
    yield Finding("tensor-work-not-counted", text)


def _macs(run: Judgement) -> Iterator[Finding]:
    given = run.given
    if looks_like_macs(given):
        yield Finding(
            "macs-for-flops",
            f"{formatting.count(given.flops)} are multiply-adds; the work has "
            f"{formatting.count(given.useful_flops)}FLOP, and a peak counts a multiply-add as 2: "
            "times come out half, throughput twice what it is",
        )


def looks_like_macs(given: StatedRun) -> bool:
    """Half the FLOPs, as far as papers agree on what else to count (bias, activations)."""
    share = ratio(given.flops, given.useful_flops)
    return share is not None and given.counted == "formula" and 0.45 < share < 0.55


def _scope(run: Judgement) -> Iterator[Finding]:
    """Which part of a training step was counted cannot be told from a number."""
    given = run.given
    share = ratio(given.flops, given.useful_flops)
    if share is None or given.counted == "formula" or run.roof.unit == "tensor" or abs(share - 1) < SAME:
        return
    yield Finding(
        "counted-is-not-useful",
        f"counted FLOPs are {share:.3g} of the formula's: say whether a forward or a training step (about 3 forwards) "
        "was counted; Winograd convolutions execute fewer than they are worth",
    )


# Checks of what was concluded.


def _bound(run: Judgement) -> Iterator[Finding]:
    """A bound has a side and a distance, and both must fit."""
    given = run.given
    if given.bound is not None and run.side is not None and given.bound != run.side:
        yield Finding(
            "wrong-side",
            f"{given.bound}-bound is wrong: {run.intensity:.4g} FLOP/byte lies on the {run.side} side of the ridge "
            f"at {run.ridge:.4g}",
        )
    if run.percent_of_roof is None or run.percent_of_roof >= FAR:
        return
    if given.bound is not None or given.near_roof:
        said = f"{given.bound}-bound" if given.bound is not None else "close to the roof"
        yield Finding(
            "far-from-the-roof",
            f"not {said}: {run.percent_of_roof:.3g}% of what is attainable at {run.intensity:.4g} FLOP/byte; most "
            "of the time it waited for neither units nor memory, but for launches, the host, latency or small kernels",
        )


def _wall(run: Judgement) -> Iterator[Finding]:
    """Counters are of the GPU alone; a wall time is of the program."""
    given = run.given
    if given.time_scope == "wall" and given.counted != "formula" and given.gpu_busy_s is None:
        yield Finding(
            "scopes-mixed",
            f"{given.time_s:g} s is by the wall, set-up and host included, and what was counted is the GPU's: their "
            "quotient is no speed of the GPU, and its distance to the roof not the kernels'",
        )


def _host(run: Judgement) -> Iterator[Finding]:
    share = busy_share(run.given.gpu_busy_s, run.given.time_s)
    if is_host_bound(run.given.gpu_busy_s, run.given.time_s):
        yield Finding("host-bound", f"host-bound: the GPU is busy {share:.0%} of the time, and no roof is the limit")


def _above(run: Judgement) -> Iterator[Finding]:
    if run.percent_of_roof is not None and run.percent_of_roof > 100:
        yield Finding(
            "above-the-roof",
            f"{run.percent_of_roof:.4g}% of what is attainable: the FLOPs, the bytes or the time are of something "
            "else, the roof is of another unit, or the bytes came from a cache",
        )


def _ppp(run: Judgement) -> Iterator[Finding]:
    given = run.given
    if given.ppp is None:
        return
    check_ppp(given.ppp)
    if given.ppp > CUDNN:
        yield Finding(
            "ppp-too-good",
            f"PPP {given.ppp:.0%} is a bound, not a prediction: PALEO's authors used {CUDNN:.0%} for cuDNN "
            f"on a TITAN X and {LEAST:.0%} for a K20X; compute it from a measurement",
        )


def _stated(run: Judgement) -> Iterator[Finding]:
    """Results that do not follow."""
    for name, said in run.given.stated.items():
        if name not in _LABELS:
            raise BadInput(f"{name!r} is no result that can be checked: there are {', '.join(_LABELS)}")
        right = getattr(run, name)
        if not right or math.isclose(said, right, rel_tol=SAME / 5):
            continue
        label, unit = _LABELS[name]
        far = f"{said / right:.3g} times that" if abs(said / right - 1) > 0.1 else f"{100 * (said / right - 1):+.2g}%"
        yield Finding(f"stated-{name}", f"{label}: {right:.6g} {unit} follows, {said:.6g} was stated ({far})")


_LABELS = {
    "ridge": ("ridge point", "FLOP/byte"),
    "intensity": ("arithmetic intensity", "FLOP/byte"),
    "flops_per_s": ("performance", "FLOP/s"),
    "bytes_per_s": ("traffic", "bytes/s"),
    "attainable_flops_per_s": ("attainable performance", "FLOP/s"),
    "percent_of_roof": ("share of the attainable", "%"),
    "percent_of_bandwidth": ("share of the bandwidth", "%"),
    "time_s": ("time", "s"),
    "throughput": ("throughput", "samples/s"),
}

Check = Callable[[Judgement], Iterator[Finding]]
CHECKS: tuple[Check, ...] = (
    _peak,
    _bandwidth,
    _two_dies,
    _tensor_work,
    _macs,
    _scope,
    _bound,
    _wall,
    _host,
    _above,
    _ppp,
    _stated,
)
