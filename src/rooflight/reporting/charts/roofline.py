"""The roofline of a step as a chart: ops, modules and the whole step under the roofs of a device.

Names of modules come from users: they are values of the data and stand in no expression.
"""

from __future__ import annotations

from rooflight import formatting
from rooflight.analysis.verdicts import Verdict
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger
from rooflight.prediction.resolve_devices import device_of
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.roofline_frame import Frame, frame_of, left_out, title_of
from rooflight.reporting.charts.roofline_layers import (
    ALL_ROOFS,
    AREAS,
    BASIS,
    HEIGHT,
    MODEL,
    NARROW,
    Row,
    axes,
    label_rows,
    labels,
    largest_share,
    ridges,
    roof_lines,
    roof_texts,
    rounded,
    slope_text,
    star,
    tooltip,
)
from rooflight.reporting.charts.roofline_marks import (
    Basis,
    NoRoofline,
    RooflineMark,
    RooflineMarks,
    marks_of,
    marks_table,
)
from rooflight.reporting.sections.op_families import FAMILIES

MOST_POINTS = 2000
"""The slowest; whoever wants all of them has the ledger."""
_POINTS = "points"
"""The name of the data of all points."""
_SHAPES = {"op": "circle", "module": "diamond", "region": "square", "kernel": "circle"}


def roofline_chart(ledger: Ledger, *, on: Device | None = None) -> Chart | None:
    """`None` where the step has no roof: `rooflight.reporting.charts.roofline_marks.marks_of` says why."""
    try:
        marks = marks_of(ledger, on=on)
    except NoRoofline:
        return None
    return chart_of(marks, ledger)


def roofline_of(ledger: Ledger, on: str | None) -> Chart:
    """The same for a device by name; where there is none it says why."""
    return chart_of(marks_of(ledger, on=None if on is None else device_of(on)), ledger)


def chart_of(marks: RooflineMarks, ledger: Ledger) -> Chart:
    frame = frame_of(marks)
    drawn = _drawn(marks)
    title = f"Roofline of {title_of(marks, ledger)}: times {marks.times}"
    rows = [row for mark in drawn for row in _rows(mark, marks, frame)]
    spec = _layers(marks, frame, rows).to_dict()
    table = marks_table(drawn, _note(marks))
    return Chart("roofline", title, _caption(marks, frame, drawn), spec, table, hint=_hint(marks))


def _drawn(marks: RooflineMarks) -> list[RooflineMark]:
    """The slowest, and the step in any case."""
    slowest = list(marks.marks[: MOST_POINTS // len(marks.bases)])
    step = marks.step
    return slowest if step is None or step in slowest else [*slowest[:-1], step]


def _caption(marks: RooflineMarks, frame: Frame, drawn: list[RooflineMark]) -> str:
    parts = [_OF_KERNELS if any(mark.kind == "kernel" for mark in drawn) else _OF_OPS]
    if "as counted" in marks.bases:
        parts.append("Points above a slope got their bytes from a cache.")
    parts.append(
        "Solid lines are peaks of the data sheet; dashed ones, and figures in brackets, were sustained in a "
        "calibration."
        if any(roof.measured for roof in marks.roofs.compute)
        else "Lines are peaks of the data sheet."
    )
    return " ".join([*parts, _note(marks), left_out(marks, frame, drawn)]).strip()


_OF_OPS = (
    "Each point is an op, or several identical ones; diamonds are layers and parts of the model with all their ops, "
    "the star is the whole step. Larger points take more of the time."
)
_OF_KERNELS = (
    "Each point is a kernel with all its launches, the star is all kernels together. Larger points take more of the "
    "time. What a kernel does is told by its name."
)


def _note(marks: RooflineMarks) -> str:
    """What is true of the numbers alone, too."""
    basis = (
        "FLOPs are executed ones and bytes those of the DRAM, as counted."
        if marks.bases == ("as counted",)
        else "As counted: executed FLOPs over DRAM bytes. By formula: useful FLOPs over compulsory bytes. Where "
        "counters ran for an op, its % of roof and its bound are as counted in both."
        if "as counted" in marks.bases
        else "FLOPs are useful ones and bytes compulsory ones, by formula."
    )
    return f"{basis} {marks.how}".strip()


def _hint(marks: RooflineMarks) -> str:
    switch = "The switch below changes between counted values and values by formula. " if len(marks.bases) > 1 else ""
    return (
        f"{switch}Click a name of a legend to see only that, shift-click for several, click beside the points to "
        "see all again."
    )


def _layers(marks: RooflineMarks, frame: Frame, rows: list[Row]) -> vl.Drawing:
    several = len(marks.bases) > 1
    options = {"input": "radio", "options": list(marks.bases), "name": "FLOPs and bytes "} if several else None
    basis = vl.switch(BASIS, marks.bases[0], options)
    all_roofs = vl.switch(ALL_ROOFS, False, {"input": "checkbox", "name": "all roofs of the device "})
    family, kind = (vl.picked(name, fields=[name], bind="legend") for name in ("family", "kind"))
    step, others = _step_apart(rows)
    step_name, names = _step_apart(label_rows(rows, marks, frame))
    layers = [
        roof_lines(marks, frame),
        ridges(marks, frame),
        _points(others, frame).add_params(family, kind).filter(family).filter(kind),
        star(step, step_name, frame),
        labels(names, frame).filter(family).filter(kind),
        *roof_texts(marks, frame),
        slope_text(marks, frame),
    ]
    return vl.layer(*layers).add_params(basis, all_roofs).properties(width=WIDTH, height=HEIGHT)


def _step_apart(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    return [row for row in rows if row["kind"] == "step"], [row for row in rows if row["kind"] != "step"]


def _rows(mark: RooflineMark, marks: RooflineMarks, frame: Frame) -> list[Row]:
    """One for each basis. Numbers are written here: a page need not know how."""
    shared = {
        "kind": mark.kind,
        "name": mark.name,
        "family": mark.family,
        "module": mark.module or ("–" if mark.kind == "kernel" else MODEL),
        "phase": mark.phase or "–",
        "count": f"{mark.count:,}",
        "time": seconds(mark.time_s),
        "share": 1.0 if mark.share is None else mark.share,
        "share_said": formatting.percent(mark.share),
    }
    return [{**shared, **_placed(mark, basis)} for basis in marks.bases if frame.holds(mark, basis)]


def _placed(mark: RooflineMark, basis: Basis) -> Row:
    place = mark.places[basis]
    assert place.intensity and place.flops_per_s and place.flops
    parts = [
        f"{formatting.percent(unit.flops / place.flops)} {unit.precision} on {unit.unit}"
        for unit in sorted(place.units, key=lambda unit: -unit.flops)
    ]
    return {
        "basis": basis,
        "x": rounded(place.intensity),
        "y": rounded(place.flops_per_s),
        "flops": f"{whole_count(place.flops)} {place.flops_basis}",
        "bytes": f"{whole_bytes(place.bytes)} {'of DRAM' if place.bytes_basis == 'DRAM' else 'compulsory'}",
        "intensity": formatting.ratio(place.intensity),
        "rate": f"{formatting.count(place.flops_per_s)}FLOP/s",
        "units": "; ".join(parts),
        **_judged(mark, place, basis),
    }


def _judged(mark: RooflineMark, place: Verdict, basis: Basis) -> Row:
    """By formula alone a cache makes more than 100% of a roof: where counters ran, it is judged by what they saw."""
    judged = mark.verdict if basis == "by formula" else place
    if judged.bound is None:
        return {"roof": "–", "bound": "–"}
    if basis == "by formula" and mark.basis != basis:
        return {"roof": f"{_percent(judged.percent_of_roof)}, as counted", "bound": f"{judged.bound}, as counted"}
    return {
        "roof": f"{_percent(judged.percent_of_roof)} of {formatting.count(judged.attainable_flops_per_s)}FLOP/s",
        "bound": judged.bound,
    }


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}%"


def _points(rows: list[Row], frame: Frame) -> vl.Drawing:
    families, kinds = {row["family"] for row in rows}, {row["kind"] for row in rows}
    colours = {family: colour for family, colour in zip(FAMILIES, COLOURS, strict=True) if family in families}
    shapes = {kind: shape for kind, shape in _SHAPES.items() if kind in kinds}
    largest = largest_share(rows)
    is_module = "datum.kind == 'module'"
    legend = dict(orient="bottom", columns=vl.expr(f"{NARROW} ? 2 : 8"), symbolType="circle")
    family = vl.by_word("family:N", colours, title="work", legend=legend)
    grey = {
        "orient": "top",
        "direction": "horizontal",
        "symbolFillColor": COLOURS[-1],
        "symbolStrokeColor": COLOURS[-1],
    }
    sizes = dict(**grey, format=".0%", values=_sizes(largest), symbolType="circle")
    points = vl.view(rows, _POINTS).mark("point", strokeWidth=1.3, opacity=1).filter(f"datum.basis == {BASIS}")
    return points.encode(
        **axes(frame),
        fill=family,
        stroke=family,
        shape=vl.by_word("kind:N", shapes, title="a point is", legend=grey),
        size=vl.field(
            "share:Q",
            title="share of the time",
            scale=dict(type="linear", domain=[0, largest], range=list(AREAS), clamp=True),
            legend=None if kinds == {"region"} else sizes,
        ),
        fillOpacity=vl.either(is_module, 0.05, 0.6),
        strokeOpacity=vl.either(is_module, 0.7, 1),
        tooltip=tooltip(),
    )


def _sizes(largest: float) -> list[float]:
    """Three round shares."""
    shares = [share for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if share <= largest]
    return shares[-3:] or [largest]
