"""Several steps on one roofline: models, batches, precisions; predicted, measured and imported ones. A panel for every
device, with its roofs; one colour a model, a shape for where the point is from.

Names of models come from users: they are values of the data and stand in no expression.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, get_args

from rooflight import formatting
from rooflight.errors import BadInput
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.hardware.roofs import Roof, Roofs, roofs_of
from rooflight.metrics import percent_text
from rooflight.prediction.resolve_devices import ceilings_of, predictor_of
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import colours, legend_below, times_ten
from rooflight.reporting.charts.point_names import FEW, RooflinePanel, point_names
from rooflight.reporting.charts.roofline_frame import Frame, UnderRoofs, roof_labels
from rooflight.reporting.charts.roofline_layers import (
    ALL_ROOFS,
    LINE,
    axes,
    ridges,
    roof_lines,
    rounded,
    slope_text,
)
from rooflight.reporting.charts.roofline_marks import NoRoofline
from rooflight.reporting.charts.step_points import PointKind, ReportedStep, StepPoint, points_of, points_table
from rooflight.reporting.sections.ledger_documents import KINDS
from rooflight.reporting.sections.study_trends import words

Row = dict[str, Any]
_HEIGHT, _HEIGHT_OF_MANY = 440, 340
_USED = 0.01
"""A roof is one of the steps' from this part of their units' time on."""
_ROOM = 1.9
"""Between the highest roof and the end of the axis."""
_SHAPES: dict[PointKind, str] = {
    "predicted": "circle",
    "measured": "square",
    "recorded": "diamond",
    "measured, as counted": "triangle-up",
    "recorded, as counted": "triangle-down",
}


def steps_roofline(steps: Sequence[ReportedStep]) -> Chart:
    """`NoRoofline` where no step has FLOPs, bytes, a time and a device whose roofs are known."""
    points = points_of(steps)
    if not points:
        raise NoRoofline(
            "no-roofline",
            "nothing here has FLOPs, bytes, a GPU-busy time and a device whose roofs are known: name devices with "
            "--on, to have times predicted there",
        )
    panels = _panels(points)
    frame = _frame(panels)
    models = list(dict.fromkeys(point.model for point in points))
    height = _HEIGHT if len(panels) == 1 else _HEIGHT_OF_MANY
    drawn = [_drawn(panel, frame, models, points, height=height) for panel in panels]
    if len(panels) > 1:
        drawn = [view.properties(title=_title(panel)) for view, panel in zip(drawn, panels, strict=True)]
    # In one panel or many: both legends stand once, below all of them.
    spec = vl.vconcat(*drawn, spacing=24).resolve_scale(color="shared", shape="shared")
    switch = vl.switch(ALL_ROOFS, False, {"input": "checkbox", "name": "all roofs of the device "})
    names = ", ".join(models) if len(models) <= 4 else f"{len(models)} models"
    where = panels[0].device.title if len(panels) == 1 else f"{len(panels)} devices"
    table = points_table(points)
    title = " · ".join([f"Roofline of {names} on {where}", *shared_words([point.step for point in points])])
    return Chart("roofline", title, _caption(panels), spec.add_params(switch).to_dict(), table)


def shared_words(steps: Sequence[ReportedStep]) -> list[str]:
    """What all of them are, in words: `inference`, `batch 16`, `fp32`."""
    places = [step.coordinates for step in steps]
    said = []
    for axis in ("step", "batch", "dtype"):
        found = {place.get(axis) for place in places}
        if len(found) == 1 and (value := found.pop()) is not None:
            said.append(KINDS.get(str(value), str(value)) if axis == "step" else words({axis: value}))
    return said


def _panels(points: Sequence[StepPoint]) -> list[RooflinePanel]:
    by_device: dict[str, list[StepPoint]] = {}
    for point in points:
        by_device.setdefault(point.device.name, []).append(point)
    panels = []
    for some in by_device.values():
        device = some[0].device
        try:
            ceilings = ceilings_of(device, predictor_of(device, None, None)[0])
        except BadInput:  # nothing is predicted for it, and its data sheet has roofs
            ceilings = None
        roofs = roofs_of(device, ceilings)
        panels.append(RooflinePanel(device, roofs, _used(some, roofs), tuple(some)))
    return panels


def _used(points: Sequence[StepPoint], roofs: Roofs) -> tuple[Roof, ...]:
    """Roofs of the precisions that matrix work really runs in, the one with most of the units' time first."""
    seconds_: dict[Roof, float] = defaultdict(float)
    for point in points:
        for precision, flops in point.step.work.items():
            roof = roofs.matrix(precision)
            seconds_[roof] += flops / roof.flops_per_s / point.time_s
    least = _USED * sum(seconds_.values())
    used = tuple(roof for roof in sorted(seconds_, key=lambda roof: -seconds_[roof]) if seconds_[roof] >= least)
    return used or (roofs.other("fp32"),)


def _frame(panels: Sequence[RooflinePanel]) -> Frame:
    """One for all panels: they are there to be compared."""
    points = [point for panel in panels for point in panel.points]
    ridges_ = [roof.flops_per_s / panel.roofs.slope().bytes_per_s for panel in panels for roof in panel.used]
    xs, ys = [point.intensity for point in points], [point.flops_per_s for point in points]
    heights = [roof.flops_per_s for panel in panels for roof in panel.used]
    every = [roof.flops_per_s for panel in panels for roof in panel.roofs.compute]
    low, high = min(*xs, min(ridges_) / 4), max(*xs, max(ridges_))
    ends = times_ten(1, math.floor(math.log10(low / 1.3))), times_ten(1, math.ceil(math.log10(high * 3)))
    # Some of the slope is in sight.
    slopes = [panel.roofs.slope().bytes_per_s for panel in panels]
    floor = min(*ys, low * min(slopes)) / 1.6
    bottom = times_ten(1, math.floor(math.log10(floor)))
    top = max(*ys, *heights)
    return Frame(ends, (bottom, top * _ROOM), max(top, *every) * _ROOM)


def _drawn(
    panel: RooflinePanel, frame: Frame, models: Sequence[str], points: Sequence[StepPoint], *, height: int
) -> vl.Drawing:
    rows = [_row(point) for point in panel.points]
    layers = [
        roof_lines(panel, frame),
        ridges(panel, frame),
        slope_text(panel, frame),
        _roof_names(panel, frame, height),
        *point_names(panel, frame, height),
        _marks(rows, frame, models, points),
    ]
    return vl.layer(*layers).properties(width=WIDTH, height=height)


def _title(panel: RooflinePanel) -> vl.Spec:
    return dict(text=panel.device.title, anchor="start", fontSize=12, fontWeight="normal", offset=6)


def _row(point: StepPoint) -> Row:
    """Numbers are written here: a page need not know how."""
    counted = point.basis == "as counted"
    return {
        "name": point.name,
        "model": point.model,
        "kind": point.kind,
        "device": point.device.title,
        "x": rounded(point.intensity),
        "y": rounded(point.flops_per_s),
        "time": seconds(point.time_s),
        "flops": f"{whole_count(point.flops)} {'executed' if counted else 'useful'}",
        "bytes": f"{whole_bytes(point.bytes)} {'of DRAM' if counted else 'compulsory'}",
        "intensity": formatting.ratio(point.intensity),
        "rate": f"{formatting.count(point.flops_per_s)}FLOP/s",
        "traffic": f"{formatting.count(point.bytes_per_s)}B/s",
        "roof": percent_text(point.percent_of_roof),
        "bound": point.bound or "–",
        "from": point.step.source or "–",
    }


def _marks(rows: Sequence[Row], frame: Frame, models: Sequence[str], points: Sequence[StepPoint]) -> vl.Drawing:
    kinds = {point.kind for point in points}
    colour = dict(zip(models, colours(len(models)), strict=True))
    shapes: dict[str, str] = {kind: shape for kind, shape in _SHAPES.items() if kind in kinds}
    grey = dict(symbolFillColor=COLOURS[-1], symbolStrokeColor=COLOURS[-1])
    by_model = vl.by_word("model:N", colour, title="model", legend=legend_below(models, symbolType="circle"))
    by_kind = vl.by_word("kind:N", shapes, title="it was", legend=legend_below(list(shapes), **grey))
    return vl.mark("point", rows, filled=True, size=130, opacity=0.95, strokeWidth=1, stroke="white").encode(
        **axes(frame),
        color=by_model,
        shape=by_kind,
        tooltip=vl.tips(
            name="step",
            kind="it was",
            device="device",
            time="GPU-busy",
            flops="FLOPs",
            bytes="bytes",
            intensity="FLOP/B",
            rate="speed",
            traffic="bytes by time",
            roof="of the roof",
            bound="bound by",
            from_="from",
        ),
    )


def _roof_names(panel: UnderRoofs, frame: Frame, height: int) -> vl.Drawing:
    """Above the right ends of the roofs: inside, where nothing is cut."""
    apart = (frame.y[1] / frame.y[0]) ** (LINE / height)
    rows = [
        {"x": label.x, "y": label.y, "said": label.lines[0]}
        for label in roof_labels(panel, frame, every=False, apart=apart)
    ]
    look = dict(align="right", baseline="bottom", dx=-2, dy=-3, fontSize=11)
    return vl.mark("text", rows, **look).encode(**axes(frame), text=vl.field("said:N"))


def _caption(panels: Sequence[RooflinePanel]) -> str:
    points = [point for panel in panels for point in panel.points]
    bases = {point.basis for point in points}
    assert set(_SHAPES) == set(get_args(PointKind))
    parts = ["Each point is a whole step: its FLOP/s over the time in which the GPU works, against its FLOPs per byte."]
    if "by formula" in bases:
        parts.append("FLOPs are useful ones and bytes compulsory ones, by formula.")
    if "as counted" in bases:
        parts.append("As counted: executed FLOPs over bytes of the DRAM.")
    parts.append(
        "Solid lines are peaks of the data sheet; dashed ones, and figures in brackets, were sustained in a "
        "calibration."
        if any(roof.measured for panel in panels for roof in panel.roofs.compute)
        else "Lines are peaks of the data sheet."
    )
    parts.append("The roofs are those of the precisions that the steps' matrix work runs in.")
    if any(len(panel.points) > FEW for panel in panels):
        parts.append(
            "Where points are many, they are named by what tells those of a model apart, as far as there is room; +1: "
            "with another one behind it. The table has them all."
        )
    return " ".join(parts)
