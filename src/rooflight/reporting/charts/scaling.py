"""How a run scales from one GPU to thousands: weak and strong, throughput and efficiency, beside the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds
from rooflight.prediction.result import Predictions, ScalingPoint
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.encodings import Series, count_axis, log_scale, panel, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table, table_of

_TITLES = {"weak": "weak scaling: every replica keeps its batch", "strong": "strong scaling: one batch is divided"}
_MOST_TICKS = 7

Row = dict[str, Any]


@dataclass(frozen=True)
class _DrawnRun:
    """A run of a growing number of GPUs, under one of the `_TITLES`."""

    run: str
    kind: str
    points: Sequence[ScalingPoint]


def scaling_chart(predictions: Predictions) -> Chart | None:
    """`None` where nothing was predicted for many GPUs, or no curves were asked for."""
    runs = [(run, run.many) for run in predictions if run.many is not None and (run.many.weak or run.many.strong)]
    if not runs:
        return None
    several = len({run.batch for run, _ in runs}) > 1
    names = [f"{run.device}, batch {run.batch:,}" if several else run.device for run, _ in runs]
    curves = [
        _DrawnRun(name, kind, many.weak if kind == "weak" else many.strong)
        for name, (_, many) in zip(names, runs, strict=True)
        for kind in _TITLES
    ]
    lines = series("run", list(dict.fromkeys(names)), chart="scaling")
    rows = {kind: [row for curve in curves if curve.kind == kind for row in _rows(curve)] for kind in _TITLES}
    kinds = [kind for kind in _TITLES if rows[kind]]
    drawing = vl.concat(
        *(_throughput(rows[kind], lines if kind == kinds[0] else lines.unnamed, kind) for kind in kinds),
        *(_efficiency(rows[kind], lines.unnamed) for kind in kinds),
        columns=len(kinds),
        spacing=24,
    ).resolve_scale(color="independent", shape="independent")
    note = _note(runs[0][1].parallel)
    caption = f"{note} Dashed: ideal, as many times faster as there are more GPUs."
    table = replace(_table(curves), note=note)
    hint = "Click a run in the legend to see it alone." if len(lines.names) > 1 else ""
    return Chart("scaling", "Scaling to many GPUs", caption, drawing.to_dict(), table, hint=hint)


def _rows(curve: _DrawnRun) -> list[Row]:
    return [
        {
            "run": curve.run,
            "gpus": point.gpus,
            "throughput": point.throughput,
            "efficiency": point.efficiency,
            "ideal": curve.points[0].throughput * point.gpus / curve.points[0].gpus,
            "rate": per_second(point.throughput),
            "time": seconds(point.time_s),
            "batch": f"{point.batch:,}, in all {point.global_batch:,}",
            "speedup": quotient(point.speedup),
            "percent": formatting.percent(point.efficiency),
            "exposed": seconds(point.exposed_s),
            "gpus_text": formatting.exact(point.gpus),
        }
        for point in curve.points
    ]


def _x(rows: Sequence[Row]) -> vl.Spec:
    gpus = sorted({row["gpus"] for row in rows})
    # Points double, then quadruple: every second doubling has a label, more would not fit.
    ticks = gpus if len(gpus) <= _MOST_TICKS else [gpus[0] * 4**power for power in range(_MOST_TICKS)]
    return count_axis("gpus", gpus, title="GPUs", ticks=ticks, base=2)


def _line(rows: Sequence[Row], x: vl.Spec, y: vl.Spec, lines: Series) -> list[vl.Drawing]:
    view = vl.view(rows)
    tips = vl.tips(
        run="run",
        gpus_text="GPUs",
        batch="batch of a replica",
        time="time of a step",
        exposed="exposed communication",
        rate="samples per second",
        speedup="speed-up",
        percent="efficiency",
    )
    return [lines.line(view, x=x, y=y), lines.points(view, dict(size=42, filled=True), x=x, y=y, tooltip=tips)]


def _throughput(rows: Sequence[Row], lines: Series, kind: str) -> vl.Drawing:
    """The selection stands in the panel with the legend, in its first layer, or it hears no clicks."""
    x = _x(rows)
    scale, ticks = log_scale(value for row in rows for value in (row["throughput"], row["ideal"]))
    axis = si_axis("samples per second", "", values=ticks)
    y, ideal_y = (vl.field(f"{name}:Q", axis=axis, scale=scale) for name in ("throughput", "ideal"))
    ideal = vl.mark("line", rows, strokeDash=[5, 4], strokeWidth=1.1)
    ideal = ideal.encode(x=x, y=ideal_y, color=lines.color, opacity=lines.faint(0.75))
    if lines.has_legend:
        ideal = ideal.add_params(lines.picked)
    title = dict(text=_TITLES[kind], fontSize=12, fontWeight="normal", frame="group")
    return panel(ideal, *_line(rows, x, y, lines), title=title)


def _efficiency(rows: Sequence[Row], lines: Series) -> vl.Drawing:
    axis = dict(title="efficiency", format="%", values=[0, 0.25, 0.5, 0.75, 1])
    most = max(1.0, *(row["efficiency"] for row in rows))
    y = vl.field("efficiency:Q", axis=axis, scale=dict(domain=[0, 1.05 * most], nice=False))
    ideal = vl.mark("rule", [{"efficiency": 1}], strokeDash=[5, 4]).encode(y=y)
    return panel(ideal, *_line(rows, _x(rows), y, lines))


def _note(parallel: str) -> str:
    return (
        f"Predicted, {parallel.upper() if len(parallel) <= 4 else parallel}. Weak scaling: the global batch grows with "
        "the GPUs. Strong scaling: the global batch "
        "stays, so that each GPU has less to do, until it waits for its host and for the network. Efficiency is "
        "the throughput over that of the smallest run times the number of GPUs."
    )


def _table(curves: Sequence[_DrawnRun]) -> Table:
    return table_of(
        (
            (Column("run", right=False), lambda row: row[0].run),
            (Column("scaling", right=False), lambda row: row[0].kind),
            (column("gpus"), lambda row: row[1].gpus),
            (column("batch_each", optional=2), lambda row: row[1].batch),
            (column("global_batch", optional=1), lambda row: row[1].global_batch),
            (column("time_s"), lambda row: row[1].time_s),
            (column("exposed_s", heading="exposed", optional=3), lambda row: row[1].exposed_s),
            (column("samples_per_s"), lambda row: row[1].throughput),
            (column("speedup", raw="speed-up"), lambda row: row[1].speedup),
            (column("efficiency"), lambda row: row[1].efficiency),
        ),
        [(curve, point) for curve in curves for point in curve.points],
    )
