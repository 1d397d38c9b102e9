"""What somebody wrote down about a run, what follows from it, and what can be wrong with it: each check is a function
from a judgement to its findings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rooflight import formatting
from rooflight.analysis.finding import Finding
from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Roof, Slope, attainable, roofs_of, unit_name
from rooflight.metrics import Side, busy_share, is_host_bound, ratio
from rooflight.prediction.paleo import CUDNN, LEAST, check_ppp
from rooflight.prediction.roofline import verdict

SAME = 0.005
"""Two figures of one thing, rounded differently, are this near to each other."""
_BETWEEN = {"gpu-gpu": "between GPUs", "gpu-cpu": "between GPU and CPU"}
FAR = 50.0
"""Percent of the roof under which neither the units nor the memory can be what a step waits for."""
Counted = Literal["formula", "cuda-cores", "all-units"]
"""Where FLOPs are from: a formula, the counters of CUDA cores (FADD, FMUL, FFMA) alone, or those of every unit."""


@dataclass(frozen=True, kw_only=True)
class StatedRun:
    """What somebody wrote down. Only what is given is judged."""

    device: Device
    precision: str
    """That the work really ran in: `tf32` for an fp32 convolution where torch allows it."""
    flops: float | None = None
    counted: Counted = "formula"
    useful_flops: float | None = None
    """By formula, for the same work."""
    bytes: float | None = None
    time_s: float | None = None
    time_scope: Literal["gpu", "wall"] | None = None
    """Whose time it is, where that is known."""
    gpu_busy_s: float | None = None
    """Where `time_s` is by the wall."""
    batch: int | None = None
    ppp: float | None = None
    peak_flops_per_s: float | None = None
    """What was taken for the roof."""
    bandwidth_bytes_per_s: float | None = None
    processes: int = 1
    stated: Mapping[str, float] = field(default_factory=dict)
    """Results as they were stated, by the names of `Judgement`: `intensity`, `flops_per_s`, `ridge`, ..."""
    bound: Side | None = None
    """The verdict that was given."""
    near_roof: bool = False
    """Was it said to perform well, or to be close to the roof?"""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What follows from the numbers, under the right roof. Without a time, the plain PALEO form predicts one."""

    given: StatedRun
    roof: Roof
    slope: Slope
    ridge: float
    flops: float | None
    """The best known count of the work: by formula where the counters missed a unit."""
    intensity: float | None
    flops_per_s: float | None
    bytes_per_s: float | None
    attainable_flops_per_s: float | None
    percent_of_roof: float | None
    percent_of_bandwidth: float | None
    side: Side | None
    time_s: float | None
    throughput: float | None
    ppp: float | None
    """Measured FLOP/s over the peak, or the one that was given."""
    findings: tuple[Finding, ...] = ()

    @property
    def text(self) -> list[str]:
        """The verdict, then every finding."""
        lines = []
        if self.intensity is not None and self.attainable_flops_per_s is not None:
            lines.append(verdict(self.intensity, self.ridge, self.attainable_flops_per_s, self.percent_of_roof))
        return lines + [finding.text for finding in self.findings]

    def has(self, code: str) -> bool:
        return any(finding.code == code for finding in self.findings)


# Is a number that somebody gives one of a device's figures?


def roof_point(device: Device, precision: str, *, intensity: float, flops_per_s: float) -> Finding | None:
    """Does a point that was drawn as part of a roof lie on it? The memory's line goes through the origin."""
    roofs = roofs_of(device)
    roof, slope = roofs.matrix(precision), roofs.slope()
    right = attainable(intensity, roof, slope)
    if math.isclose(right, flops_per_s, rel_tol=SAME):
        return None
    if not intensity:
        return Finding(
            "origin",
            f"the memory's roof goes through (0, 0), not {formatting.count(flops_per_s)}FLOP/s: it is intensity x "
            f"{formatting.count(slope.bytes_per_s)}B/s; axes with logarithms have no 0",
        )
    slip = _power_of_ten(flops_per_s / right)
    said = formatting.count(flops_per_s)
    text = f"the roof is {formatting.count(right)}FLOP/s at {intensity:g} FLOP/byte, not {said}FLOP/s"
    return Finding("roof-off-by-ten" if slip else "off-the-roof", f"{text}: {slip} it" if slip else text)


def link_claim(device: Device, bytes_per_s: float, between: Literal["gpu-gpu", "gpu-cpu"]) -> Finding | None:
    """Does a link of the device with that bandwidth run between what somebody says?"""
    links = [
        (name, ways, "gpu-cpu" if name in ("pcie", "nvlink-c2c") else "gpu-gpu")
        for name, figure in device.links_bytes_per_s.items()
        if (ways := _directions(bytes_per_s, figure.value)) is not None
    ]
    if any(joins == between for _, _, joins in links):
        return None
    if not links:
        return Finding("link-unknown", f"{device.title} has no link of {formatting.count(bytes_per_s)}B/s")
    name, ways, joins = links[0]
    host = device.links_bytes_per_s.get("pcie")
    hint = "" if host is None else f"; the host is reached by PCIe, {formatting.count(host.value)}B/s in one direction"
    where = f"{_BETWEEN[joins]}, not {_BETWEEN[between]}{hint}"
    return Finding("link-between", f"{formatting.count(bytes_per_s)}B/s is {_link_name(name)} ({ways}), {where}")


def _directions(bytes_per_s: float, one_direction: float) -> str | None:
    """Datasheets give links in both directions together, we in one."""
    if _same(bytes_per_s, one_direction):
        return "one direction"
    return "both directions together" if _same(bytes_per_s, 2 * one_direction) else None


def _same(figure: float, other: float) -> bool:
    return math.isclose(figure, other, rel_tol=SAME)


def _power_of_ten(times: float) -> str | None:
    """`10 times`, `a 1,000th of`; `None` when it is no power of ten."""
    power = round(math.log10(times)) if times > 0 else 0
    if not power or not math.isclose(times, 10.0**power, rel_tol=0.1):
        return None
    return f"{10**power:,} times" if power > 0 else f"a {10**-power:,}th of"


def _link_name(name: str) -> str:
    return {"nvlink": "NVLink", "pcie": "PCIe"}.get(name, name)


def _peak(run: Judgement) -> Iterator[Finding]:
    """Is the peak that was used the roof of this work?"""
    given, roof = run.given, run.roof
    used = given.peak_flops_per_s
    if used is None or _same(used, roof.flops_per_s):
        return
    right = f"{roof.precision} work on {given.device.title} has the roof {formatting.count(roof.flops_per_s)}FLOP/s"
    wrong_ridge = used / run.slope.bytes_per_s
    consequence = f"ridge {run.ridge:.4g} FLOP/byte, not {wrong_ridge:.4g}"
    for other in roofs_of(given.device).compute:
        if _same(used, other.flops_per_s) and not other.precision.startswith("int"):
            where = unit_name(given.device, other.unit)
            yield Finding(
                "peak-of-another-precision",
                f"{formatting.count(used)}FLOP/s is the {other.precision} peak of the {where}; {right}: {consequence}",
            )
            return
    if _same(used, 2 * roof.flops_per_s):
        yield Finding(
            "peak-of-two",
            f"{formatting.count(used)}FLOP/s is twice the peak, that of a board of two dies or with sparsity; {right}, "
            "and one process runs on one die",
        )
    elif (slip := _power_of_ten(used / roof.flops_per_s)) is not None:
        yield Finding("peak-off-by-ten", f"{formatting.count(used)}FLOP/s is {slip} the peak: {right}, {consequence}")
    else:
        yield Finding(
            "peak-unknown", f"{formatting.count(used)}FLOP/s is no peak of this device: {right}, {consequence}"
        )


def _bandwidth(run: Judgement) -> Iterator[Finding]:
    """Is the bandwidth that was used the memory's?"""
    given, right = run.given, run.slope.bytes_per_s
    used = given.bandwidth_bytes_per_s
    if used is None or _same(used, right):
        return
    memory = f"its memory has {formatting.count(right)}B/s"
    for name, figure in given.device.links_bytes_per_s.items():
        if (ways := _directions(used, figure.value)) is not None:
            yield Finding(
                "link-for-memory",
                f"{formatting.count(used)}B/s is {_link_name(name)} of {given.device.title} ({ways}), a link and not "
                f"its memory: {memory}",
            )
            return
    slip = _power_of_ten(used / right)
    if slip is not None:
        yield Finding("bandwidth-off-by-ten", f"{formatting.count(used)}B/s is {slip} the bandwidth: {memory}")
    elif _same(used * 8, right) or _same(used, 8 * right):
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


def looks_like_macs(given: StatedRun) -> bool:
    """Half the FLOPs, as far as papers agree on what else to count (bias, activations)."""
    share = ratio(given.flops, given.useful_flops)
    return share is not None and given.counted == "formula" and 0.45 < share < 0.55


def _counted(run: Judgement) -> Iterator[Finding]:
    """FADD, FMUL and FFMA do not see the tensor cores; a multiply-add is 2 FLOP; and which part of a training step was
    counted cannot be told from a number."""
    given, on_tensor_cores = run.given, run.roof.unit == "tensor"
    share = ratio(given.flops, given.useful_flops)
    if given.counted == "cuda-cores" and on_tensor_cores and given.flops is not None:
        text = (
            f"FADD, FMUL and FFMA do not see tensor cores, where {run.roof.precision} work runs on {given.device.title}"
        )
        if share is not None and given.useful_flops is not None:
            text += (
                f": {formatting.exact(round(given.flops))} FLOP is {100 * share:.3g}% of the "
                f"{formatting.exact(round(given.useful_flops))} that the work has; intensity and FLOP/s are too low by "
                "as much"
            )
        yield Finding("tensor-work-not-counted", text)
    if looks_like_macs(given):
        yield Finding(
            "macs-for-flops",
            f"{formatting.count(given.flops)} are multiply-adds; the work has "
            f"{formatting.count(given.useful_flops)}FLOP, and a peak counts a multiply-add as 2: "
            "times come out half, throughput twice what it is",
        )
    if share is not None and given.counted != "formula" and not on_tensor_cores and abs(share - 1) >= SAME:
        yield Finding(
            "counted-is-not-useful",
            f"counted FLOPs are {share:.3g} of the formula's: say whether a forward or a training step (about 3 "
            "forwards) was counted; Winograd convolutions execute fewer than they are worth",
        )


def _concluded(run: Judgement) -> Iterator[Finding]:
    """A bound has a side and a distance, and both must fit. Counters are of the GPU alone, a wall time of the program:
    where the GPU waits for the host, no roof is the limit."""
    given, percent = run.given, run.percent_of_roof
    if given.bound is not None and run.side is not None and given.bound != run.side:
        yield Finding(
            "wrong-side",
            f"{given.bound}-bound is wrong: {run.intensity:.4g} FLOP/byte lies on the {run.side} side of the ridge "
            f"at {run.ridge:.4g}",
        )
    if percent is not None and percent < FAR and (given.bound is not None or given.near_roof):
        said = f"{given.bound}-bound" if given.bound is not None else "close to the roof"
        yield Finding(
            "far-from-the-roof",
            f"not {said}: {percent:.3g}% of what is attainable at {run.intensity:.4g} FLOP/byte; most "
            "of the time it waited for neither units nor memory, but for launches, the host, latency or small kernels",
        )
    if (
        given.time_scope == "wall"
        and given.time_s is not None
        and given.counted != "formula"
        and given.gpu_busy_s is None
    ):
        yield Finding(
            "scopes-mixed",
            f"{given.time_s:g} s is by the wall, set-up and host included, and what was counted is the GPU's: their "
            "quotient is no speed of the GPU, and its distance to the roof not the kernels'",
        )
    if is_host_bound(given.gpu_busy_s, given.time_s):
        share = busy_share(given.gpu_busy_s, given.time_s)
        yield Finding("host-bound", f"host-bound: the GPU is busy {share:.0%} of the time, and no roof is the limit")
    if percent is not None and percent > 100:
        yield Finding(
            "above-the-roof",
            f"{percent:.4g}% of what is attainable: the FLOPs, the bytes or the time are of something "
            "else, the roof is of another unit, or the bytes came from a cache",
        )
    if given.ppp is not None and check_ppp(given.ppp) > CUDNN:
        yield Finding(
            "ppp-too-good",
            f"PPP {given.ppp:.0%} is a bound, not a prediction: PALEO's authors used {CUDNN:.0%} for cuDNN "
            f"on a TITAN X and {LEAST:.0%} for a K20X; compute it from a measurement",
        )


def _stated(run: Judgement) -> Iterator[Finding]:
    """Results that do not follow."""
    for name, said in run.given.stated.items():
        if name not in _LABELS:
            raise BadInput(
                "unknown-choice", f"{name!r} is no result that can be checked: there are {', '.join(_LABELS)}"
            )
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
CHECKS: tuple[Check, ...] = (_peak, _bandwidth, _two_dies, _counted, _concluded, _stated)
