"""The names of points on a roofline of several steps: each where there is room, none on another, a line to those that
stand away from their point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight.hardware.device import Device
from rooflight.hardware.roofs import Roof, Roofs
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import WIDTH
from rooflight.reporting.charts.roofline_frame import Frame, UnderRoofs, roof_labels
from rooflight.reporting.charts.roofline_layers import (
    LETTER,
    LINE,
    LabelBox,
    ToPixels,
    along_lines,
    axes,
    is_free,
    rounded,
    slope_box,
    slope_place,
)
from rooflight.reporting.charts.step_points import StepPoint

Row = dict[str, Any]
_RADIUS = 7.0
_RINGS = (0, 14, 28, 42, 58, 76)
"""Pixels by which a name moves away from its point until there is room for it."""
FEW = 8
"""Names of one panel that are written in full."""


@dataclass(frozen=True)
class RooflinePanel:
    """The points of one device, and its roofs."""

    device: Device
    roofs: Roofs
    used: tuple[Roof, ...]
    points: tuple[StepPoint, ...]


@dataclass(frozen=True)
class _PointCluster:
    """Points of one model that lie on one another: they have one name."""

    x: float
    y: float
    points: tuple[StepPoint, ...]

    def text(self, *, short: bool) -> str:
        names = list(dict.fromkeys(point.short if short else point.name for point in self.points))
        return names[0] + (f" +{len(names) - 1}" if names[1:] else "")


def _clusters(points: Sequence[StepPoint], at: ToPixels) -> list[_PointCluster]:
    """From left to right."""
    clusters: list[_PointCluster] = []
    for point in points:
        x, y = at(point.intensity, point.flops_per_s)
        near = (
            place
            for place, other in enumerate(clusters)
            if other.points[0].model == point.model and math.hypot(other.x - x, other.y - y) < 2 * _RADIUS
        )
        if (place := next(near, None)) is None:
            clusters.append(_PointCluster(x, y, (point,)))
        else:
            clusters[place] = replace(clusters[place], points=(*clusters[place].points, point))
    return sorted(clusters, key=lambda cluster: (cluster.x, cluster.y))


def point_names(panel: RooflinePanel, frame: Frame, height: int) -> list[vl.Drawing]:
    """At the points, or where there is room, with a line to them. Where they are many, colours tell the models."""
    across, up = WIDTH / math.log10(frame.x[1] / frame.x[0]), height / math.log10(frame.y[1] / frame.y[0])

    def at(x: float, y: float) -> tuple[float, float]:
        return across * math.log10(x / frame.x[0]), up * math.log10(frame.y[1] / y)

    def back(x: float, y: float) -> Row:
        return {"x": rounded(frame.x[0] * 10 ** (x / across)), "y": rounded(frame.y[1] / 10 ** (y / up))}

    clusters = _clusters(panel.points, at)
    many = len(clusters) > FEW
    centres = [at(point.intensity, point.flops_per_s) for point in panel.points]
    taken = [LabelBox(x, y, 2 * _RADIUS, 2 * _RADIUS) for x, y in centres]
    taken += [*_texts(panel, frame, at, height), *along_lines(panel, frame, at)]
    texts, leaders = [], []
    for cluster in clusters:
        said = cluster.text(short=many)
        wide = LETTER * 1.1 * len(said)
        found = _place((cluster.x, cluster.y), wide, taken, height, rings=_RINGS[:3] if many else _RINGS)
        if found is None:
            continue
        box, is_far = found
        taken.append(box)
        texts.append({**back(box.x, box.y), "said": said})
        if is_far:
            near = back(box.x, box.y - math.copysign(box.height / 2, box.y - cluster.y))
            leaders.append({**near, **{f"{name}2": place for name, place in back(cluster.x, cluster.y).items()}})
    names = vl.mark("text", texts, fontSize=11, baseline="middle", align="center")
    lines = vl.mark("rule", leaders, strokeWidth=0.8, opacity=0.7)
    return [
        lines.encode(**axes(frame), x2=vl.field("x2"), y2=vl.field("y2")),
        names.encode(**axes(frame), text=vl.field("said:N")),
    ]


def _place(
    centre: tuple[float, float], width: float, taken: Sequence[LabelBox], height: int, *, rings: Sequence[int]
) -> tuple[LabelBox, bool] | None:
    """The nearest free box around a point, and whether it is so far that a line must lead to it."""
    for ring in rings:
        beside, above, half = _RADIUS + 3 + width / 2, _RADIUS + 3 + ring + LINE / 2, width / 3
        level = [(beside, 0.0), (-beside, 0.0)] if not ring else []
        places = [*level, (0.0, -above), (0.0, above), (half, -above), (-half, -above), (half, above), (-half, above)]
        for dx, dy in places:
            box = LabelBox(centre[0] + dx, centre[1] + dy, width, LINE)
            if is_free(box, taken, WIDTH, height):
                return box, ring > 0
    return None


def _texts(panel: UnderRoofs, frame: Frame, at: ToPixels, height: int) -> list[LabelBox]:
    """What else is written: at the roofs, at the slope, at the ridges."""
    boxes = [slope_box(panel, at(*slope_place(panel, frame)))]
    for label in roof_labels(panel, frame, every=False, apart=1.0):
        x, y = at(label.x, label.y)
        wide = 6.6 * len(label.lines[0])
        boxes.append(LabelBox(x - wide / 2, y - LINE / 2 - 3, wide, LINE))
    for number, roof in enumerate(panel.used):
        x, _ = at(roof.flops_per_s / panel.roofs.slope().bytes_per_s, roof.flops_per_s)
        boxes.append(LabelBox(x + 60, height - 8 - LINE * number, 120, LINE))
    return boxes
