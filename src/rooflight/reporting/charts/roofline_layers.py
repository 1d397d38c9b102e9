"""What a roofline has besides its points: axes, roofs, ridges, and all that is written in it where there is room."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rooflight import formatting
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import WIDTH
from rooflight.reporting.charts.roofline_frame import Frame, decades, lines_of, roof_labels, slope_labels
from rooflight.reporting.charts.roofline_marks import RooflineMarks

_LETTER = 6.0
"""Mean width of a letter and height of a line in pixels, at the size that labels have."""
_LINE = 13
_GAP = 3.0
_BELOW = 3
"""Its number among the places around a point."""


@dataclass(frozen=True)
class LabelBox:
    """A rectangle in pixels, from its centre."""

    x: float
    y: float
    width: float
    height: float

    def meets(self, other: LabelBox) -> bool:
        return (
            2 * abs(self.x - other.x) < self.width + other.width
            and 2 * abs(self.y - other.y) < self.height + other.height
        )


@dataclass(frozen=True)
class LabelledPoint:
    """A point of some size, and what is to be written at it; nothing: it is only in the way."""

    x: float
    y: float
    radius: float
    text: str = ""
    always: bool = False
    """Its text stands below it where there is no room."""


def placed(
    points: Sequence[LabelledPoint], *, width: float, height: float, taken: Iterable[LabelBox] = ()
) -> list[LabelBox | None]:
    """A box for the text of every point, in their order; `None` where it has no text or there is no room for it."""
    dots = [LabelBox(point.x, point.y, 2 * point.radius, 2 * point.radius) for point in points]
    held = list(taken)
    found: list[LabelBox | None] = []
    for point in points:
        around = _around(point)
        box = next((one for one in around if _is_free(one, dots, held, width, height)), None)
        if box is None and point.always:
            box = around[_BELOW]
        found.append(box if point.text else None)
        if point.text and box is not None:
            held.append(box)
    return found


def _around(point: LabelledPoint) -> list[LabelBox]:
    """Right, left, above, below, then the corners."""
    wide, beside = _LETTER * len(point.text), point.radius + _GAP
    x, y = beside + wide / 2, beside + _LINE / 2
    places = ((x, 0.0), (-x, 0.0), (0.0, -y), (0.0, y), (x, -y), (x, y), (-x, -y), (-x, y))
    return [LabelBox(point.x + dx, point.y + dy, wide, _LINE) for dx, dy in places]


def _is_free(box: LabelBox, dots: Sequence[LabelBox], held: Sequence[LabelBox], width: float, height: float) -> bool:
    inside = box.width / 2 <= box.x <= width - box.width / 2 and box.height / 2 <= box.y <= height - box.height / 2
    return inside and not any(box.meets(other) for other in (*dots, *held))


HEIGHT = 460
AREAS = (16, 620)
"""Of the smallest and the largest point, in square pixels."""
MODEL = "(the model)"
"""Where ops are that belong to no layer."""
BASIS, ALL_ROOFS = "basis", "all_roofs"
"""Names of the parameters that a reader sets."""
NARROW = "windowSize()[0] < 640"
"""A phone; in a picture, which has no window, never."""
_SHOWN = f"datum.basis == {BASIS}"
_STRIDE = 8
"""The distance of points that stand for a line, in pixels."""
_NAMED = 7
"""Of the slowest ops, where there is room."""
_NAME = 26
"""Letters of a name, at most."""
Row = dict[str, Any]


@cache
def x_axis(frame: Frame) -> vl.Spec:
    label = "datum.value >= 1 ? format(datum.value, ',') : format(datum.value, '~g')"
    return vl.field(
        "x:Q",
        title="arithmetic intensity, FLOP/B",
        scale=dict(type="log", domain=list(frame.x), nice=False),
        axis=dict(values=decades(frame.x), labelExpr=label, grid=True),
    )


@cache
def y_axis(frame: Frame, field: str = "y") -> vl.Spec:
    label = "replace(format(datum.value, '~s'), regexp('([a-zA-Zµ])$'), ' $1')"
    top = vl.expr(f"{ALL_ROOFS} ? {frame.y_of_all!r} : {frame.y[1]!r}")
    return vl.field(
        f"{field}:Q",
        title="FLOP/s",
        scale=dict(type="log", domain=[frame.y[0], top], nice=False),
        axis=dict(values=decades((frame.y[0], frame.y_of_all)), labelExpr=label, grid=True),
    )


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def roof_lines(marks: RooflineMarks, frame: Frame) -> vl.Drawing:
    rows = [
        {
            "x": rounded(line.x[0]),
            "y": rounded(line.y[0]),
            "x2": rounded(line.x[1]),
            "y2": rounded(line.y[1]),
            "name": line.name,
            "figure": line.figure,
            "how": "sustained" if line.sustained else "peak",
            "source": line.source,
            "used": line.used,
        }
        for line in lines_of(marks, frame)
    ]
    sustained = "datum.how == 'sustained'"
    return (
        vl.view(rows)
        .mark("rule", clip=True)
        .filter(f"datum.used || {ALL_ROOFS}")
        .encode(
            x=x_axis(frame),
            y=y_axis(frame),
            x2=vl.field("x2"),
            y2=vl.field("y2"),
            strokeDash=vl.either(sustained, [5, 4], [1, 0]),
            strokeWidth=vl.either(sustained, 1.2, 2),
            opacity=vl.either("datum.used", 0.95, 0.4),
            tooltip=vl.tips(name="roof", figure="at most", how="is a", source="from"),
        )
    )


def ridges(marks: RooflineMarks, frame: Frame) -> vl.Drawing:
    """Where a roof of the step meets the memory's: a line down to its FLOP/B."""
    slope = marks.roofs.slope().bytes_per_s
    rows: list[Row] = [
        {
            "x": rounded(roof.flops_per_s / slope),
            "y": roof.flops_per_s,
            "y2": frame.y[0],
            "said": f"ridge {formatting.ratio(roof.flops_per_s / slope)} FLOP/B",
            "row": row,
            "name": f"ridge of {roof.precision}: from {formatting.ratio(roof.flops_per_s / slope)} FLOP/B on, units "
            "are the limit",
        }
        for row, roof in enumerate({roof.flops_per_s: roof for roof in reversed(marks.used)}.values())
    ]
    data = vl.view(rows)
    down = data.mark("rule", clip=True, strokeDash=[1, 4], opacity=0.8).encode(
        x=x_axis(frame), y=y_axis(frame), y2=vl.field("y2"), tooltip=[vl.field("name:N", title="what")]
    )
    # One above the other: ridges may be near to each other.
    texts = [
        vl.view([row])
        .mark("text", align="left", dx=4, dy=-8 - 13 * row["row"], fontSize=10, style=["text", "soft"])
        .encode(x=x_axis(frame), y=y_axis(frame, "y2"), text=vl.field("said:N"))
        for row in rows
    ]
    return vl.layer(down, *texts)


def roof_texts(marks: RooflineMarks, frame: Frame) -> list[vl.Drawing]:
    """Behind the right ends of the roofs; where there is no room behind them, above."""
    drawn = []
    for every, top in ((False, frame.y[1]), (True, frame.y_of_all)):
        # As many times higher as a line of text is high.
        apart = (top / frame.y[0]) ** (_LINE / HEIGHT)
        said = roof_labels(marks, frame, every=every, apart=apart)
        rows = [{"x": one.x, "y": one.y, "full": one.lines[every], "short": one.lines[1]} for one in said]
        shown = vl.view(rows).filter(ALL_ROOFS if every else f"!{ALL_ROOFS}")
        axes = {"x": x_axis(frame), "y": y_axis(frame)}
        behind = shown.filter(f"!({NARROW})").mark("text", align="left", baseline="middle", dx=5, fontSize=10.5)
        above = shown.filter(NARROW).mark("text", align="right", baseline="bottom", dy=-2, fontSize=9.5)
        drawn += [behind.encode(**axes, text=vl.field("full:N")), above.encode(**axes, text=vl.field("short:N"))]
    return drawn


def slope_text(marks: RooflineMarks, frame: Frame) -> vl.Drawing:
    """Left of the slopes, well up: nothing else is above them."""
    x, y = _slope_place(marks, frame)
    said = slope_labels(marks.roofs)
    row = {"x": rounded(x), "y": rounded(y), "said": list(said), "short": slope_labels(marks.roofs, sustained=False)[0]}
    axes = {"x": x_axis(frame), "y": y_axis(frame)}
    shown = vl.view([row])
    full = shown.filter(f"!({NARROW})").mark(
        "text",
        align="right",
        baseline="bottom",
        lineHeight=_LINE,
        dx=-4,
        dy=-_LINE * (len(said) - 1) - 2,
        fontSize=10.5,
    )
    short = shown.filter(NARROW).mark("text", align="right", baseline="bottom", dx=-3, fontSize=9.5)
    return vl.layer(full.encode(**axes, text=vl.field("said:N")), short.encode(**axes, text=vl.field("short:N")))


def _slope_place(marks: RooflineMarks, frame: Frame) -> tuple[float, float]:
    steepest = max(slope.bytes_per_s for slope in marks.roofs.memory)
    low = max(math.log10(frame.x[0]), math.log10(frame.y[0] / steepest))
    high = math.log10(max(roof.flops_per_s for roof in marks.used) / steepest)
    at = 10 ** (low + 0.7 * (high - low))
    return at, at * steepest


def star(rows: list[Row], named: list[Row], frame: Frame) -> vl.Drawing:
    """The whole step. A letter, so that it has the colour of text, light or dark."""
    shape = vl.view(rows).mark("text", text="★", fontSize=24, baseline="middle", clip=True)
    name = vl.view(named).mark("text", fontSize=11, fontWeight="bold", baseline="middle")
    return vl.layer(
        shape.filter(_SHOWN).encode(x=x_axis(frame), y=y_axis(frame), tooltip=tooltip(step=True)),
        name.filter(_SHOWN).encode(x=x_axis(frame), y=y_axis(frame), text=vl.field("said:N")),
    )


@cache
def tooltip(*, step: bool = False) -> list[vl.Spec]:
    """All that is known of a point, written out in its row."""
    where = {} if step else {"module": "where", "phase": "phase", "count": "count"}
    return vl.tips(
        name="what",
        **where,
        time="time",
        share_said="of all kernels' time",
        flops="FLOPs",
        units="on",
        bytes="bytes",
        intensity="FLOP/B",
        rate="speed",
        roof="of the roof",
        bound="bound by",
    )


def labels(named: list[Row], frame: Frame) -> vl.Drawing:
    return (
        vl.view(named)
        .mark("text", fontSize=10, baseline="middle", opacity=0.85)
        .filter(f"{_SHOWN} && !({NARROW})")
        .encode(x=x_axis(frame), y=y_axis(frame), text=vl.field("said:N"))
    )


def label_rows(rows: list[Row], marks: RooflineMarks, frame: Frame) -> list[Row]:
    """The slowest ops and the whole step by name, where there is room at the width of a picture."""
    across, up = WIDTH / math.log10(frame.x[1] / frame.x[0]), HEIGHT / math.log10(frame.y[1] / frame.y[0])

    def at(x: float, y: float) -> tuple[float, float]:
        return across * math.log10(x / frame.x[0]), up * math.log10(frame.y[1] / y)

    in_the_way = [*_along_lines(marks, frame, at), _slope_box(marks, at(*_slope_place(marks, frame)))]
    largest = largest_share(rows)
    found = []
    for basis in marks.bases:
        # The step first: its name must find room.
        here = sorted((row for row in rows if row["basis"] == basis), key=lambda row: row["kind"] != "step")
        named = [row for row in here if row["kind"] in ("op", "region")][:_NAMED]
        points = []
        for row in here:
            step = row["kind"] == "step"
            radius = 12.0 if step else _radius(row["share"] / largest)
            text = _named(row) if step or any(row is one for one in named) else ""
            points.append(LabelledPoint(*at(row["x"], row["y"]), radius, text, always=step))
        boxes = placed(points, width=WIDTH, height=HEIGHT, taken=in_the_way)
        for row, point, box in zip(here, points, boxes, strict=True):
            if box is not None:
                found.append(
                    {
                        "basis": basis,
                        "said": point.text,
                        "family": row["family"],
                        "kind": row["kind"],
                        "x": rounded(frame.x[0] * 10 ** (box.x / across)),
                        "y": rounded(frame.y[1] / 10 ** (box.y / up)),
                    }
                )
    return found


def _along_lines(
    marks: RooflineMarks, frame: Frame, at: Callable[[float, float], tuple[float, float]]
) -> list[LabelBox]:
    """Small boxes all along the roofs that are shown."""
    found = []
    for line in lines_of(marks, frame):
        if line.used:
            (x1, y1), (x2, y2) = at(line.x[0], line.y[0]), at(line.x[1], line.y[1])
            steps = max(1, round(math.hypot(x2 - x1, y2 - y1) / _STRIDE))
            found += [LabelBox(x1 + (x2 - x1) * i / steps, y1 + (y2 - y1) * i / steps, 2, 2) for i in range(steps + 1)]
    return found


def _slope_box(marks: RooflineMarks, at: tuple[float, float]) -> LabelBox:
    said = slope_labels(marks.roofs)
    wide, high = 6.4 * max(map(len, said)), _LINE * len(said)
    return LabelBox(at[0] - 4 - wide / 2, at[1] - 2 - high / 2, wide, high)


def largest_share(rows: list[Row]) -> float:
    """The share that the largest point stands for: ops shall be told apart, and whole parts of a model are larger."""
    ops = [row["share"] for row in rows if row["kind"] == "op"] or [row["share"] for row in rows]
    return max(ops, default=0.0) or 1.0


def _named(row: Row) -> str:
    if row["kind"] == "step":
        return "whole step"
    where = row["module"] if row["module"] != MODEL else row["name"]
    first, _, more = where.partition(" and ")
    several = f" +{more.removesuffix(' more')}" if more.endswith(" more") else ""
    # The last parts of a path tell most.
    short = first if len(first) <= _NAME else f"…{first[1 - _NAME :]}"
    return short + several + (" backward" if row["phase"] == "backward" else "")


def _radius(part: float) -> float:
    return math.sqrt((AREAS[0] + min(part, 1.0) * (AREAS[1] - AREAS[0])) / math.pi)
