"""The roofline of a step as a chart: ops, modules and the whole step under the roofs of a device.

Names of modules come from users: they are values of the data and stand in no expression.
"""

from __future__ import annotations

from typing import Any

from rooflight import formatting
from rooflight.analysis.verdicts import Verdict
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger
from rooflight.prediction.resolve_devices import device_of
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.roofline_frame import Frame, frame_of, left_out
from rooflight.reporting.charts.roofline_layers import (
    ALL_ROOFS,
    AREAS,
    BASIS,
    HEIGHT,
    MODEL,
    NARROW,
    Row,
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
    x_axis,
    y_axis,
)
from rooflight.reporting.charts.roofline_marks import (
    Basis,
    NoRoofline,
    RooflineMark,
    RooflineMarks,
    marks_of,
    marks_table,
)
from rooflight.reporting.sections.ledger_documents import KINDS
from rooflight.reporting.sections.op_families import FAMILIES

MOST_POINTS = 2000
"""The slowest; whoever wants all of them has the ledger."""
_POINTS = "points"
"""The name of the data of all points."""
_KINDS = ("op", "module", "region")


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
    kept = _kept(marks)
    kind = KINDS.get(ledger.header.step or "", "")
    title = f"Roofline of {marks.title}{', ' if kind else ''}{kind} on {marks.device.title}: times {marks.times}"
    rows = [row for mark in kept for row in _rows(mark, marks, frame)]
    spec = _drawn(marks, frame, rows).to_dict()
    table = marks_table(kept, _note(marks))
    return Chart("roofline", title, _caption(marks, frame, kept), spec, table, hint=_hint(marks))


def _kept(marks: RooflineMarks) -> list[RooflineMark]:
    most = MOST_POINTS // len(marks.bases)
    kept = list(marks.marks[:most])
    step = marks.step
    return kept if step is None or any(mark is step for mark in kept) else [*kept[:-1], step]


def _caption(marks: RooflineMarks, frame: Frame, kept: list[RooflineMark]) -> str:
    said = [
        "Each point is an op, or several identical ones; diamonds are layers and parts of the model with all their "
        "ops, the star is the whole step. Larger points take more of the time."
    ]
    if "as counted" in marks.bases:
        said.append("Points above a slope got their bytes from a cache.")
    said.append(
        "Solid lines are peaks of the data sheet; dashed ones, and figures in brackets, were sustained in a "
        "calibration."
        if any(roof.measured for roof in marks.roofs.compute)
        else "Lines are peaks of the data sheet."
    )
    return " ".join([*said, _note(marks), left_out(marks, frame, kept)]).strip()


def _note(marks: RooflineMarks) -> str:
    """What is true of the numbers alone, too."""
    basis = (
        "As counted: executed FLOPs over DRAM bytes. By formula: useful FLOPs over compulsory bytes. Where "
        "counters ran for an op, its % of roof and its bound are as counted in both."
        if "as counted" in marks.bases
        else "FLOPs are useful ones and bytes compulsory ones, by formula."
    )
    return " ".join([basis, *([marks.how] if marks.how else [])])


def _hint(marks: RooflineMarks) -> str:
    switch = "The switch below changes between counted values and values by formula. " if len(marks.bases) > 1 else ""
    return (
        f"{switch}Click a name of a legend to see only that, shift-click for several, click beside the points to "
        "see all again."
    )


def _drawn(marks: RooflineMarks, frame: Frame, rows: list[Row]) -> vl.Drawing:
    several = len(marks.bases) > 1
    options = {"input": "radio", "options": list(marks.bases), "name": "FLOPs and bytes "} if several else None
    basis = vl.switch(BASIS, marks.bases[0], options)
    every = vl.switch(ALL_ROOFS, False, {"input": "checkbox", "name": "all roofs of the device "})
    family, kind = (vl.picked(name, fields=[name], bind="legend") for name in ("family", "kind"))
    named = label_rows(rows, marks, frame)
    step, others = ([row for row in rows if (row["kind"] == "step") == whole] for whole in (True, False))
    of_step, of_others = ([row for row in named if (row["kind"] == "step") == whole] for whole in (True, False))
    points = _points(others, frame).add_params(family, kind)
    filtered = [one.filter(family).filter(kind) for one in (points, labels(of_others, frame))]
    layers = [
        roof_lines(marks, frame),
        ridges(marks, frame),
        filtered[0],
        star(step, of_step, frame),
        filtered[1],
        *roof_texts(marks, frame),
        slope_text(marks, frame),
    ]
    return vl.layer(*layers).add_params(basis, every).properties(width=WIDTH, height=HEIGHT)


def _rows(mark: RooflineMark, marks: RooflineMarks, frame: Frame) -> list[Row]:
    """One for each basis. Numbers are written here: a page need not know how."""
    shared = {
        "kind": mark.kind,
        "name": mark.name,
        "family": mark.family,
        "module": mark.module or MODEL,
        "phase": mark.phase or "–",
        "count": f"{mark.count:,}",
        "time": seconds(mark.time_s),
        "share": 1.0 if mark.share is None else mark.share,
        "share_said": formatting.percent(mark.share),
    }
    return [{**shared, **_placed(mark, basis)} for basis in marks.bases if frame.holds(mark, basis)]


def _placed(mark: RooflineMark, basis: Basis) -> Row:
    place = mark.places[basis]
    executed, dram = place.flops_basis == "executed", place.bytes_basis == "DRAM"
    return {
        "basis": basis,
        "x": rounded(place.intensity),
        "y": rounded(place.flops_per_s),
        "flops": f"{whole_count(place.flops)} {'executed' if executed else 'useful'}",
        "bytes": f"{whole_bytes(place.bytes)} {'of DRAM' if dram else 'compulsory'}",
        "intensity": formatting.ratio(place.intensity),
        "rate": f"{formatting.count(place.flops_per_s)}FLOP/s",
        "units": "; ".join(
            f"{formatting.percent(one.flops / place.flops)} {one.precision} on {one.unit}"
            for one in sorted(place.units, key=lambda one: -one.flops)
        )
        if place.flops
        else "–",
        **_judged(mark, place, basis),
    }


def _judged(mark: RooflineMark, place: Verdict, basis: Basis) -> Row:
    """By formula alone a cache makes more than 100% of a roof: where counters ran, it is judged by what they saw."""
    told = mark.told if basis == "by formula" else place
    if told.bound is None:
        return {"roof": "–", "bound": "–"}
    if basis == "by formula" and mark.basis != basis:
        return {"roof": f"{_percent(told.percent_of_roof)}, as counted", "bound": f"{told.bound}, as counted"}
    return {
        "roof": f"{_percent(told.percent_of_roof)} of {formatting.count(told.attainable_flops_per_s)}FLOP/s",
        "bound": told.bound,
    }


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}%"


def _points(rows: list[Row], frame: Frame) -> vl.Drawing:
    families = [family for family in FAMILIES if any(row["family"] == family for row in rows)]
    kinds = [kind for kind in _KINDS if any(row["kind"] == kind for row in rows)]
    shapes = {"op": "circle", "module": "diamond", "region": "square"}
    largest = largest_share(rows)
    is_module = "datum.kind == 'module'"
    colours = dict(domain=families, range=[COLOURS[FAMILIES.index(family)] for family in families])
    legend = dict(orient="bottom", columns=vl.expr(f"{NARROW} ? 2 : 8"), symbolType="circle")
    grey: Any = {
        "orient": "top",
        "direction": "horizontal",
        "symbolFillColor": COLOURS[-1],
        "symbolStrokeColor": COLOURS[-1],
    }
    return (
        vl.view(rows, _POINTS)
        .mark("point", strokeWidth=1.3, opacity=1)
        .filter(f"datum.basis == {BASIS}")
        .encode(
            x=x_axis(frame),
            y=y_axis(frame),
            fill=vl.field("family:N", title="work", scale=colours, legend=legend),
            stroke=vl.field("family:N", title="work", scale=colours, legend=legend),
            shape=vl.field(
                "kind:N", title="what", scale=dict(domain=kinds, range=[shapes[kind] for kind in kinds]), legend=grey
            ),
            size=vl.field(
                "share:Q",
                title="share of the time",
                scale=dict(type="linear", domain=[0, largest], range=list(AREAS), clamp=True),
                legend=None
                if kinds == ["region"]
                else dict(**grey, format=".0%", values=_sizes(largest), symbolType="circle"),
            ),
            fillOpacity=vl.either(is_module, 0.05, 0.6),
            strokeOpacity=vl.either(is_module, 0.7, 1),
            tooltip=tooltip(),
        )
    )


def _sizes(largest: float) -> list[float]:
    """Three round shares."""
    found = [share for share in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0) if share <= largest]
    return found[-3:] or [largest]
