"""The frame of a roofline, whoever draws it: how far the axes go, the lines of the roofs, and what is written at them.

Both axes are logarithmic, so a level of memory is a straight line: FLOP/s = FLOP/B x bytes/s.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rooflight import formatting
from rooflight.hardware.roofs import Roof, Roofs, Slope, ridge, unit_name
from rooflight.reporting.charts.roofline_marks import Basis, RooflineMark, RooflineMarks

_UNSEEN = 0.015
"""Axes go as far as marks reach that take all but this share of the time: one op of a single FLOP would stretch them
over many empty decades."""
_ROOM = 1.6
"""Between the highest roof and the end of the axis: what is written at the roof stands there."""


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
    places = [place for basis in marks.bases for place in _places(marks, basis)]
    heights = [*(roof.flops_per_s for roof in marks.used), *(place.y for place in places)]
    low_x = min(
        *(at / 4 for at in ridges),
        *(_least([(place.x, place.share) for place in _places(marks, basis)]) for basis in marks.bases),
    )
    low_y = min(_least([(place.y, place.share) for place in _places(marks, basis)]) for basis in marks.bases)
    high_x = max([*(3 * at for at in ridges), *(place.x for place in places)])
    every = max(roof.flops_per_s for roof in marks.roofs.compute)
    return Frame((_down(low_x), _up(1.05 * high_x)), (_down(low_y), max(heights) * _ROOM), max(*heights, every) * _ROOM)


@dataclass(frozen=True)
class _FramePlace:
    x: float
    y: float
    share: float


def _places(marks: RooflineMarks, basis: Basis) -> list[_FramePlace]:
    """Of ops (regions, where a program has no ops), and of the step, which must be in sight."""
    found = []
    for mark in marks.marks:
        place = mark.places.get(basis)
        if mark.kind != "module" and place is not None and place.intensity and place.flops_per_s:
            found.append(_FramePlace(place.intensity, place.flops_per_s, 1.0 if mark.kind != "op" else mark.share or 0))
    return found


def _least(values: Sequence[tuple[float, float]]) -> float:
    """The least of those that are left when a small part of the time, the lowest, is not looked at."""
    left = _UNSEEN
    for value, share in sorted(values):
        left -= share
        if left < 0:
            return value
    return min((value for value, _ in values), default=math.inf)


def _down(value: float) -> float:
    return _power(math.floor(math.log10(value)))


def _up(value: float) -> float:
    return _power(math.ceil(math.log10(value)))


def _power(exponent: int) -> float:
    """Without the error of 10 to a negative power."""
    return 10.0**exponent if exponent >= 0 else 1 / 10.0**-exponent


def lines_of(marks: RooflineMarks, frame: Frame) -> list[RoofLine]:
    """Slopes up to the highest roof of their kind, flat roofs from the steepest slope of their kind on."""
    roofs, found = marks.roofs, []
    kinds = {(roof.unit, roof.precision) for roof in marks.used}
    for roof in roofs.compute:
        used = (roof.unit, roof.precision) in kinds
        begin = min(ridge(roof, slope) for slope in _like(roofs, sustained=roof.measured))
        ends = max(frame.x[0], min(begin, frame.x[1])), frame.x[1]
        name = f"{roof.precision} on {unit_name(roofs.device, roof.unit)}"
        height = roof.flops_per_s
        found.append(RoofLine(name, tera(height), roof.source, ends, (height, height), roof.measured, used))
    for slope in roofs.memory:
        for used in (True, False):
            # Up to the highest roof of the step; the rest belongs to roofs that are shown on request.
            below = [
                roof.flops_per_s
                for roof in _flat(roofs, sustained=slope.measured)
                if not used or (roof.unit, roof.precision) in kinds
            ]
            own = [one.y[0] for one in found if one.used and one.sustained == slope.measured]
            begin = frame.x[0] if used or not own else max(own) / slope.bytes_per_s
            end = min(max(below, default=0) / slope.bytes_per_s, frame.x[1])
            if begin < end:
                heights = begin * slope.bytes_per_s, end * slope.bytes_per_s
                found.append(
                    RoofLine(
                        slope.level.upper(),
                        per_second(slope.bytes_per_s),
                        slope.source,
                        (begin, end),
                        heights,
                        slope.measured,
                        used,
                    )
                )
    return [line for line in found if line.y[1] >= frame.y[0]]


def _like(roofs: Roofs, *, sustained: bool) -> list[Slope]:
    return [slope for slope in roofs.memory if slope.measured == sustained] or [roofs.slope()]


def _flat(roofs: Roofs, *, sustained: bool) -> list[Roof]:
    found = [roof for roof in roofs.compute if roof.measured == sustained]
    return found or [roof for roof in roofs.compute if not roof.measured]


def roof_labels(marks: RooflineMarks, frame: Frame, *, every: bool, apart: float) -> list[RoofLabel]:
    """At the right end of each line, in full and shorter; `apart`: the least factor between two of them, and those that
    are nearer share one."""
    roofs = marks.roofs
    shown = [roof for roof in roofs.compute if not roof.measured and (every or roof in marks.used)]
    levels: list[list[Roof]] = []
    for roof in sorted(shown, key=lambda one: (-one.flops_per_s, one.unit, one.precision)):
        if levels and levels[-1][0].flops_per_s < roof.flops_per_s * apart:
            levels[-1].append(roof)
        else:
            levels.append([roof])
    return [RoofLabel(frame.x[1], level[0].flops_per_s, _label(level, roofs)) for level in levels]


def _label(level: Sequence[Roof], roofs: Roofs) -> tuple[str, str]:
    """`tf32 tensor 494.5 T (345 T)`, what was sustained in brackets; and without it."""
    groups: dict[float, list[Roof]] = {}
    for roof in level:
        groups.setdefault(roof.flops_per_s, []).append(roof)
    full, short = [], []
    for height, group in groups.items():
        units_ = {roof.unit: [one.precision for one in group if one.unit == roof.unit] for roof in group}
        names = ", ".join(
            f"{', '.join(precisions)} {unit_name(roofs.device, unit).split()[0]}" for unit, precisions in units_.items()
        )
        kinds = {(roof.unit, roof.precision) for roof in group}
        reached = [one.flops_per_s for one in roofs.compute if one.measured and (one.unit, one.precision) in kinds]
        short.append(f"{names} {_tera(height)} T")
        full.append(short[-1] + (f" ({max(reached) / 1e12:.3g} T)" if reached else ""))
    return "; ".join(full), "; ".join(short)


def _tera(flops_per_s: float) -> str:
    return f"{flops_per_s / 1e12:,.4g}"


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
    return [_power(exponent) for exponent in range(first, last + 1, step)]


def left_out(marks: RooflineMarks, frame: Frame, kept: Iterable[RooflineMark]) -> str:
    """What the picture does not show, in a sentence for each basis."""
    drawn = set(kept)
    said = []
    for basis in marks.bases:
        ops = [mark for mark in marks.marks if mark.kind == "op" and basis in mark.places]
        outside = [mark for mark in ops if mark not in drawn or not frame.holds(mark, basis)]
        count, share = marks.without_flops[basis]
        parts = []
        if count:
            why = "executed no FLOPs" if basis == "as counted" else "have no FLOPs, or share kernels with other ops"
            parts.append(
                f"{count:,} {'op' if count == 1 else 'ops'} ({formatting.percent(share)} of the time) that {why}"
            )
        if outside:
            held = sum(mark.share or 0 for mark in outside)
            parts.append(f"{sum(mark.count for mark in outside):,} more beyond its edges ({formatting.percent(held)})")
        if parts:
            said.append(f"{basis}, {' and '.join(parts)}")
    return f"Not in the picture: {'; '.join(said)}." if said else ""
