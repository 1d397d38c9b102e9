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
from rooflight.reporting.charts.roofline_frame import (
    Frame,
    UnderRoofs,
    decades,
    lines_of,
    roof_labels,
    slope_labels,
)
from rooflight.reporting.charts.roofline_marks import SINGLE, RooflineMarks
from rooflight.reporting.table import cut

LETTER = 6.0
"""Mean width of a letter and height of a line in pixels, at the size that labels have."""
LINE = 13
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
    occupied = [LabelBox(point.x, point.y, 2 * point.radius, 2 * point.radius) for point in points]
    occupied += taken
    boxes: list[LabelBox | None] = []
    for point in points:
        box = None
        if point.text:
            around = _around(point)
            box = next((place for place in around if is_free(place, occupied, width, height)), None)
            box = around[_BELOW] if box is None and point.always else box
        boxes.append(box)
        occupied += [box] if box is not None else []
    return boxes


def _around(point: LabelledPoint) -> list[LabelBox]:
    """Right, left, above, below, then the corners."""
    wide, beside = LETTER * len(point.text), point.radius + _GAP
    x, y = beside + wide / 2, beside + LINE / 2
    places = ((x, 0.0), (-x, 0.0), (0.0, -y), (0.0, y), (x, -y), (x, y), (-x, -y), (-x, y))
    return [LabelBox(point.x + dx, point.y + dy, wide, LINE) for dx, dy in places]


def is_free(box: LabelBox, occupied: Sequence[LabelBox], width: float, height: float) -> bool:
    inside = box.width / 2 <= box.x <= width - box.width / 2 and box.height / 2 <= box.y <= height - box.height / 2
    return inside and not any(box.meets(other) for other in occupied)


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
NamedLook = tuple[str, dict[str, Any]]


@cache
def axes(frame: Frame, y: str = "y") -> dict[str, vl.Spec]:
    """`y`: the field that holds the FLOP/s."""
    flops_per_byte = "datum.value >= 1 ? format(datum.value, ',') : format(datum.value, '~g')"
    flops_per_s = "replace(format(datum.value, '~s'), regexp('([a-zA-Zµ])$'), ' $1')"
    top = vl.expr(f"{ALL_ROOFS} ? {frame.y_of_all!r} : {frame.y[1]!r}")
    return {
        "x": vl.field(
            "x:Q",
            title="arithmetic intensity, FLOP/B",
            scale=dict(type="log", domain=list(frame.x), nice=False),
            axis=dict(values=decades(frame.x), labelExpr=flops_per_byte, grid=True),
        ),
        "y": vl.field(
            f"{y}:Q",
            title="FLOP/s",
            scale=dict(type="log", domain=[frame.y[0], top], nice=False),
            axis=dict(values=decades((frame.y[0], frame.y_of_all)), labelExpr=flops_per_s, grid=True),
        ),
    }


def rounded(value: float) -> float:
    return float(f"{value:.5g}")


def roof_lines(marks: UnderRoofs, frame: Frame) -> vl.Drawing:
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
    lines = vl.mark("rule", rows, clip=True).filter(f"datum.used || {ALL_ROOFS}")
    return lines.encode(
        **axes(frame),
        x2=vl.field("x2"),
        y2=vl.field("y2"),
        strokeDash=vl.either(sustained, [5, 4], [1, 0]),
        strokeWidth=vl.either(sustained, 1.2, 2),
        opacity=vl.either("datum.used", 0.95, 0.4),
        tooltip=vl.tips(name="roof", figure="at most", how="is a", source="from"),
    )


def ridges(marks: UnderRoofs, frame: Frame) -> vl.Drawing:
    """Where a roof of the step meets the memory's: a line down to its FLOP/B."""
    rows: list[Row] = []
    for number, roof in enumerate({roof.flops_per_s: roof for roof in reversed(marks.used)}.values()):
        at = roof.flops_per_s / marks.roofs.slope().bytes_per_s
        figure = f"{formatting.ratio(at)} FLOP/B"
        rows.append(
            {
                "x": rounded(at),
                "y": roof.flops_per_s,
                "y2": frame.y[0],
                "said": f"ridge {figure}",
                "row": number,
                "name": f"ridge of {roof.precision}: from {figure} on, units are the limit",
            }
        )
    down = vl.mark("rule", rows, clip=True, strokeDash=[1, 4], opacity=0.8)
    # One above the other: ridges may be near to each other.
    look = dict(align="left", dx=4, fontSize=10, style=["text", "soft"])
    texts = [vl.mark("text", [row], **look, dy=-8 - 13 * row["row"]) for row in rows]
    return vl.layer(
        down.encode(**axes(frame), y2=vl.field("y2"), tooltip=vl.tips(name="what")),
        *(text.encode(**axes(frame, "y2"), text=vl.field("said:N")) for text in texts),
    )


def _wide_or_narrow(view: vl.Drawing, frame: Frame, wide: NamedLook, narrow: NamedLook) -> list[vl.Drawing]:
    """A text where there is room, and a shorter one on a phone: each a field, and how it looks."""
    return [
        view.filter(test).mark("text", **look).encode(**axes(frame), text=vl.field(f"{field}:N"))
        for test, (field, look) in ((f"!({NARROW})", wide), (NARROW, narrow))
    ]


def roof_texts(marks: UnderRoofs, frame: Frame) -> list[vl.Drawing]:
    """Behind the right ends of the roofs; where there is no room behind them, above."""
    behind = "full", dict(align="left", baseline="middle", dx=5, fontSize=10.5)
    above = "short", dict(align="right", baseline="bottom", dy=-2, fontSize=9.5)
    drawn = []
    for all_roofs, top in ((False, frame.y[1]), (True, frame.y_of_all)):
        # As many times higher as a line of text is high.
        apart = (top / frame.y[0]) ** (LINE / HEIGHT)
        rows = [
            {"x": label.x, "y": label.y, "full": label.lines[all_roofs], "short": label.lines[1]}
            for label in roof_labels(marks, frame, every=all_roofs, apart=apart)
        ]
        view = vl.view(rows).filter(ALL_ROOFS if all_roofs else f"!{ALL_ROOFS}")
        drawn += _wide_or_narrow(view, frame, behind, above)
    return drawn


def slope_text(marks: UnderRoofs, frame: Frame) -> vl.Drawing:
    """Left of the slopes, well up: nothing else is above them."""
    x, y = slope_place(marks, frame)
    lines = list(slope_labels(marks.roofs))
    row = {"x": rounded(x), "y": rounded(y), "said": lines, "short": slope_labels(marks.roofs, sustained=False)[0]}
    side = dict(align="right", baseline="bottom")
    full = "said", dict(**side, lineHeight=LINE, dx=-4, dy=-LINE * (len(lines) - 1) - 2, fontSize=10.5)
    short = "short", dict(**side, dx=-3, fontSize=9.5)
    return vl.layer(*_wide_or_narrow(vl.view([row]), frame, full, short))


def slope_place(marks: UnderRoofs, frame: Frame) -> tuple[float, float]:
    steepest = max(slope.bytes_per_s for slope in marks.roofs.memory)
    low = max(math.log10(frame.x[0]), math.log10(frame.y[0] / steepest))
    high = math.log10(max(roof.flops_per_s for roof in marks.used) / steepest)
    at = 10 ** (low + 0.7 * (high - low))
    return at, at * steepest


def star(rows: list[Row], named: list[Row], frame: Frame) -> vl.Drawing:
    """The whole step. A letter, so that it has the colour of text, light or dark."""
    shape = vl.mark("text", rows, text="★", fontSize=24, baseline="middle", clip=True).filter(_SHOWN)
    name = vl.mark("text", named, fontSize=11, fontWeight="bold", baseline="middle").filter(_SHOWN)
    return vl.layer(
        shape.encode(**axes(frame), tooltip=tooltip(step=True)), name.encode(**axes(frame), text=vl.field("said:N"))
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
    texts = vl.mark("text", named, fontSize=10, baseline="middle", opacity=0.85)
    return texts.filter(f"{_SHOWN} && !({NARROW})").encode(**axes(frame), text=vl.field("said:N"))


def label_rows(rows: list[Row], marks: RooflineMarks, frame: Frame) -> list[Row]:
    """The slowest ops and the whole step by name, where there is room at the width of a picture."""
    across, up = WIDTH / math.log10(frame.x[1] / frame.x[0]), HEIGHT / math.log10(frame.y[1] / frame.y[0])

    def at(x: float, y: float) -> tuple[float, float]:
        return across * math.log10(x / frame.x[0]), up * math.log10(frame.y[1] / y)

    in_the_way = [*along_lines(marks, frame, at), slope_box(marks, at(*slope_place(marks, frame)))]
    largest = largest_share(rows)
    written = []
    for basis in marks.bases:
        # The step first: its name must find room.
        here = sorted((row for row in rows if row["basis"] == basis), key=lambda row: row["kind"] != "step")
        named = 2 * _NAMED if any(row["kind"] == "kernel" for row in here) else _NAMED
        slowest = [number for number, row in enumerate(here) if row["kind"] in (*SINGLE, "region")][:named]
        points = []
        for number, row in enumerate(here):
            step = row["kind"] == "step"
            radius = 12.0 if step else _radius(row["share"] / largest)
            text = _named(row) if step or number in slowest else ""
            points.append(LabelledPoint(*at(row["x"], row["y"]), radius, text, always=step))
        boxes = placed(points, width=WIDTH, height=HEIGHT, taken=in_the_way)
        written += [
            {
                "basis": basis,
                "said": point.text,
                "family": row["family"],
                "kind": row["kind"],
                "x": rounded(frame.x[0] * 10 ** (box.x / across)),
                "y": rounded(frame.y[1] / 10 ** (box.y / up)),
            }
            for row, point, box in zip(here, points, boxes, strict=True)
            if box is not None
        ]
    return written


ToPixels = Callable[[float, float], tuple[float, float]]
"""From FLOP/B and FLOP/s to a place in the picture."""


def along_lines(marks: UnderRoofs, frame: Frame, at: ToPixels) -> list[LabelBox]:
    """Small boxes all along the roofs that are shown."""
    boxes = []
    for line in lines_of(marks, frame):
        if line.used:
            (x1, y1), (x2, y2) = at(line.x[0], line.y[0]), at(line.x[1], line.y[1])
            steps = max(1, round(math.hypot(x2 - x1, y2 - y1) / _STRIDE))
            boxes += [LabelBox(x1 + (x2 - x1) * i / steps, y1 + (y2 - y1) * i / steps, 2, 2) for i in range(steps + 1)]
    return boxes


def slope_box(marks: UnderRoofs, at: tuple[float, float]) -> LabelBox:
    lines = slope_labels(marks.roofs)
    wide, high = 6.4 * max(map(len, lines)), LINE * len(lines)
    return LabelBox(at[0] - 4 - wide / 2, at[1] - 2 - high / 2, wide, high)


def largest_share(rows: list[Row]) -> float:
    """The share that the largest point stands for: ops shall be told apart, and whole parts of a model are larger."""
    ops = [row["share"] for row in rows if row["kind"] in SINGLE] or [row["share"] for row in rows]
    return max(ops, default=0.0) or 1.0


def _named(row: Row) -> str:
    if row["kind"] == "step":
        return "whole step" if row["module"] == MODEL else str(row["module"])
    if row["kind"] == "kernel":
        return cut(row["name"], _NAME)
    where = row["module"] if row["module"] != MODEL else row["name"]
    first, _, more = where.partition(" and ")
    several = f" +{more.removesuffix(' more')}" if more.endswith(" more") else ""
    # The last parts of a path tell most.
    short = first if len(first) <= _NAME else f"…{first[1 - _NAME :]}"
    return short + several + (" backward" if row["phase"] == "backward" else "")


def _radius(part: float) -> float:
    return math.sqrt((AREAS[0] + min(part, 1.0) * (AREAS[1] - AREAS[0])) / math.pi)
