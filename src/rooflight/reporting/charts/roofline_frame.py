"""The frame of a roofline, whoever draws it: how far the axes go, the lines of the roofs, and what is written at them.

Both axes are logarithmic, so a level of memory is a straight line: FLOP/s = FLOP/B x bytes/s.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from rooflight import formatting
from rooflight.hardware.roofs import Roof, Roofs, ridge, unit_name
from rooflight.ledger import Ledger
from rooflight.reporting.charts.encodings import times_ten
from rooflight.reporting.charts.roofline_marks import SINGLE, Basis, RooflineMark, RooflineMarks
from rooflight.reporting.sections.ledger_documents import KINDS

_UNSEEN = 0.015
"""Axes go as far as marks reach that take all but this share of the time: one op of a single FLOP would stretch them
over many empty decades."""
_ROOM = 1.6
"""Between the highest roof and the end of the axis: what is written at the roof stands there."""


class UnderRoofs(Protocol):
    """What is drawn under the roofs of a device, a step or many."""

    @property
    def roofs(self) -> Roofs: ...

    @property
    def used(self) -> tuple[Roof, ...]:
        """Theoretical roofs of the units that its work runs on."""
        ...


@dataclass(frozen=True)
class Frame:
    """From the least to the greatest FLOP/B and FLOP/s."""

    x: tuple[float, float]
    y: tuple[float, float]
    y_of_all: float
    """Where the axis of FLOP/s ends when all roofs of the device are shown."""

    def holds(self, mark: RooflineMark, basis: Basis) -> bool:
        place = mark.places.get(basis)
        if place is None or not place.intensity or not place.flops_per_s:
            return False
        return self.x[0] <= place.intensity <= self.x[1] and self.y[0] <= place.flops_per_s <= self.y_of_all


@dataclass(frozen=True)
class RoofLine:
    """A piece of a roof, from end to end."""

    name: str
    figure: str
    """How high or steep it is, written out."""
    source: str
    x: tuple[float, float]
    y: tuple[float, float]
    sustained: bool
    used: bool
    """Does work of the step run under it?"""


@dataclass(frozen=True)
class RoofLabel:
    """What is written at a place."""

    x: float
    y: float
    lines: tuple[str, ...]


def frame_of(marks: RooflineMarks) -> Frame:
    """Room for the marks that matter in both bases, for the roofs they run under, and for some of their slope."""
    slope = marks.roofs.slope().bytes_per_s
    ridges = [roof.flops_per_s / slope for roof in marks.used]
    heights = [roof.flops_per_s for roof in marks.used]
    lows_x, highs_x = [ridge_ / 4 for ridge_ in ridges], [3 * ridge_ for ridge_ in ridges]
    lows_y = []
    for basis in marks.bases:
        xs, ys = _places(marks, basis)
        lows_x.append(_least(xs))
        lows_y.append(_least(ys))
        highs_x += [x for x, _ in xs]
        heights += [y for y, _ in ys]
    highest = max(*heights, *(roof.flops_per_s for roof in marks.roofs.compute))
    x = times_ten(1, math.floor(math.log10(min(lows_x)))), times_ten(1, math.ceil(math.log10(1.05 * max(highs_x))))
    return Frame(x, (times_ten(1, math.floor(math.log10(min(lows_y)))), max(heights) * _ROOM), highest * _ROOM)


Weighed = list[tuple[float, float]]
"""Values, and the share of the time that each stands for."""


def _places(marks: RooflineMarks, basis: Basis) -> tuple[Weighed, Weighed]:
    """FLOP/B and FLOP/s of ops (regions, where a program has no ops), and of the step, which must be in sight."""
    xs, ys = [], []
    for mark in marks.marks:
        place = mark.places.get(basis)
        if mark.kind != "module" and place is not None and place.intensity and place.flops_per_s:
            share = 1.0 if mark.kind not in SINGLE else mark.share or 0
            xs.append((place.intensity, share))
            ys.append((place.flops_per_s, share))
    return xs, ys


def _least(values: Sequence[tuple[float, float]]) -> float:
    """The least of those that are left when a small part of the time, the lowest, is not looked at."""
    left = _UNSEEN
    for value, share in sorted(values):
        left -= share
        if left < 0:
            return value
    return min((value for value, _ in values), default=math.inf)


def lines_of(marks: UnderRoofs, frame: Frame) -> list[RoofLine]:
    """Slopes up to the highest roof of their kind, flat roofs from the steepest slope of their kind on."""
    roofs, lines = marks.roofs, []
    used_kinds = {roof.kind for roof in marks.used}
    for roof in roofs.compute:
        slopes = [slope for slope in roofs.memory if slope.measured == roof.measured] or [roofs.slope()]
        begin = min(ridge(roof, slope) for slope in slopes)
        ends = max(frame.x[0], min(begin, frame.x[1])), frame.x[1]
        name = f"{roof.precision} on {unit_name(roofs.device, roof.unit)}"
        height, used = roof.flops_per_s, roof.kind in used_kinds
        lines.append(RoofLine(name, tera(height), roof.source, ends, (height, height), roof.measured, used))
    for slope in roofs.memory:
        flat = [roof for roof in roofs.compute if roof.measured == slope.measured]
        flat = flat or [roof for roof in roofs.compute if not roof.measured]
        of_step = [line.y[0] for line in lines if line.used and line.sustained == slope.measured]
        for used in (True, False):
            # Up to the highest roof of the step; the rest belongs to roofs that are shown on request.
            below = [roof.flops_per_s for roof in flat if not used or roof.kind in used_kinds]
            begin = frame.x[0] if used or not of_step else max(of_step) / slope.bytes_per_s
            end = min(max(below, default=0) / slope.bytes_per_s, frame.x[1])
            if begin < end:
                name, figure = slope.level.upper(), per_second(slope.bytes_per_s)
                heights = begin * slope.bytes_per_s, end * slope.bytes_per_s
                lines.append(RoofLine(name, figure, slope.source, (begin, end), heights, slope.measured, used))
    return [line for line in lines if line.y[1] >= frame.y[0]]


def roof_labels(marks: UnderRoofs, frame: Frame, *, every: bool, apart: float) -> list[RoofLabel]:
    """At the right end of each line, in full and shorter; `apart`: the least factor between two of them, and those that
    are nearer share one."""
    roofs = marks.roofs
    shown = [roof for roof in roofs.compute if not roof.measured and (every or roof in marks.used)]
    levels: list[list[Roof]] = []
    for roof in sorted(shown, key=lambda roof: (-roof.flops_per_s, *roof.kind)):
        if levels and levels[-1][0].flops_per_s < roof.flops_per_s * apart:
            levels[-1].append(roof)
        else:
            levels.append([roof])
    return [RoofLabel(frame.x[1], level[0].flops_per_s, _label(level, roofs)) for level in levels]


def _label(level: Sequence[Roof], roofs: Roofs) -> tuple[str, str]:
    """`tf32 tensor 494.5 T (345 T)`, what was sustained in brackets; and without it."""
    full, short = [], []
    for height in dict.fromkeys(roof.flops_per_s for roof in level):
        group = [roof for roof in level if roof.flops_per_s == height]
        units_ = {roof.unit: [other.precision for other in group if other.unit == roof.unit] for roof in group}
        names = ", ".join(
            f"{', '.join(precisions)} {unit_name(roofs.device, unit).split()[0]}" for unit, precisions in units_.items()
        )
        kinds = {roof.kind for roof in group}
        reached = [roof.flops_per_s for roof in roofs.compute if roof.measured and roof.kind in kinds]
        short.append(f"{names} {height / 1e12:,.4g} T")
        full.append(short[-1] + (f" ({max(reached) / 1e12:.3g} T)" if reached else ""))
    return "; ".join(full), "; ".join(short)


def slope_labels(roofs: Roofs, *, sustained: bool = True) -> tuple[str, ...]:
    """`DRAM 4.8 TB/s`, the steepest first."""
    ordered = sorted(roofs.memory, key=lambda slope: -slope.bytes_per_s)
    return tuple(
        f"{slope.level.upper()} {per_second(slope.bytes_per_s)}{' sustained' if slope.measured else ''}"
        for slope in ordered
        if sustained or not slope.measured
    )


def tera(flops_per_s: float) -> str:
    """A roof as a data sheet gives it: `494.5 TFLOP/s`."""
    return f"{flops_per_s / 1e12:,.4g} TFLOP/s"


def per_second(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{bytes_per_s / 1e9:.3g} GB/s"


def decades(ends: tuple[float, float], most: int = 9) -> list[float]:
    """Powers of ten between two values, evenly thinned out where they are many."""
    first, last = math.ceil(math.log10(ends[0]) - 1e-9), math.floor(math.log10(ends[1]) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / most))
    return [times_ten(1, exponent) for exponent in range(first, last + 1, step)]


def left_out(marks: RooflineMarks, frame: Frame, drawn: Collection[RooflineMark]) -> str:
    """What the picture does not show, in a sentence for each basis."""
    shown = set(drawn)
    sentences = []
    for basis in marks.bases:
        ops = [mark for mark in marks.marks if mark.kind in SINGLE and basis in mark.places]
        outside = [mark for mark in ops if mark not in shown or not frame.holds(mark, basis)]
        count, share = marks.without_flops[basis]
        parts = []
        if count:
            why = "executed no FLOPs" if basis == "as counted" else "have no FLOPs, or share kernels with other ops"
            one = "launch" if any(mark.kind == "kernel" for mark in marks.marks) else "op"
            ops_ = one if count == 1 else "launches" if one == "launch" else "ops"
            parts.append(f"{count:,} {ops_} ({formatting.percent(share)} of the time) that {why}")
        if outside:
            time = formatting.percent(sum(mark.share or 0 for mark in outside))
            parts.append(f"{sum(mark.count for mark in outside):,} more beyond its edges ({time})")
        if parts:
            sentences.append(f"{basis}, {' and '.join(parts)}")
    return f"Not in the picture: {'; '.join(sentences)}." if sentences else ""


def title_of(marks: RooflineMarks, ledger: Ledger) -> str:
    """`resnet50, training step on NVIDIA H200`: which step, and where."""
    kind = KINDS.get(ledger.header.step or "", "")
    return f"{marks.title}{', ' if kind else ''}{kind} on {marks.device.title}"
