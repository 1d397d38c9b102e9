"""How a run scales from one GPU to thousands: weak and strong, throughput and efficiency, beside the ideal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds
from rooflight.prediction.result import Prediction, Predictions, ScalingPoint
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import WIDTH, Chart
from rooflight.reporting.charts.encodings import MOST, Series, log_scale, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table

_PANEL, _HEIGHT = WIDTH // 2 - 75, 190
_TITLES = {"weak": "weak scaling: every replica keeps its batch", "strong": "strong scaling: one batch is divided"}

_MOST_TICKS = 7

Row = dict[str, Any]


def scaling_chart(predictions: Predictions) -> Chart | None:
    """`None` where nothing was predicted for many GPUs, or no curves were asked for."""
    found = [one for one in predictions if one.many is not None and (one.many.weak or one.many.strong)]
    if not found:
        return None
    several = len({one.batch for one in found}) > 1
    names = [f"{one.device}, batch {one.batch:,}" if several else one.device for one in found]
    lines = series("run", list(dict.fromkeys(names)), chart="scaling")
    curves: dict[str, list[Row]] = {
        kind: [row for name, one in zip(names[:MOST], found, strict=False) for row in _rows(name, one, kind)]
        for kind in _TITLES
    }
    kinds = [kind for kind, rows in curves.items() if rows]
    made = vl.concat(
        *(_throughput(curves[kind], lines if kind == kinds[0] else lines.unnamed, kind) for kind in kinds),
        *(_efficiency(curves[kind], lines.unnamed) for kind in kinds),
        columns=len(kinds),
        spacing=24,
    ).resolve_scale(color="independent", shape="independent")
    note = _note(found)
    more = f" The first {MOST} of {len(names)} runs are drawn." if len(names) > MOST else ""
    caption = f"{note} Dashed: ideal, as many times faster as there are more GPUs.{more}"
    return Chart(
        "scaling",
        "Scaling to many GPUs",
        caption,
        made.to_dict(),
        replace(_table(names, found), note=note),
        hint="Click a run in the legend to see it alone." if len(lines.names) > 1 else "",
    )


def _points(one: Prediction, kind: str) -> Sequence[ScalingPoint]:
    return () if one.many is None else one.many.weak if kind == "weak" else one.many.strong


def _rows(name: str, one: Prediction, kind: str) -> list[Row]:
    points = _points(one, kind)
    return [
        {
            "run": name,
            "gpus": point.gpus,
            "throughput": point.throughput,
            "efficiency": point.efficiency,
            "ideal": points[0].throughput * point.gpus / points[0].gpus,
            "rate": per_second(point.throughput),
            "time": seconds(point.time_s),
            "batch": f"{point.batch:,}, in all {point.global_batch:,}",
            "speedup": quotient(point.speedup),
            "percent": formatting.percent(point.efficiency),
            "exposed": seconds(point.exposed_s),
            "gpus_text": formatting.exact(point.gpus),
        }
        for point in points
    ]


def _x(rows: Sequence[Row]) -> vl.Spec:
    gpus = sorted({row["gpus"] for row in rows})
    # Points double, then quadruple: every second doubling has a label, more would not fit.
    ticks = gpus if len(gpus) <= _MOST_TICKS else [gpus[0] * 4**power for power in range(_MOST_TICKS)]
    axis = dict(title="GPUs", values=ticks, format=",d", grid=False, labelOverlap=True)
    scale = dict(type="log", base=2, domain=[gpus[0] / 1.1, gpus[-1] * 1.1], nice=False)
    return vl.field("gpus:Q", axis=axis, scale=scale)


def _tips() -> list[vl.Spec]:
    return vl.tips(
        run="run",
        gpus_text="GPUs",
        batch="batch of a replica",
        time="time of a step",
        exposed="exposed communication",
        rate="samples per second",
        speedup="speed-up",
        percent="efficiency",
    )


def _line(rows: Sequence[Row], x: vl.Spec, y: vl.Spec, lines: Series) -> list[vl.Drawing]:
    chart = vl.view(rows)
    return [
        chart.mark("line", strokeWidth=1.8).encode(x=x, y=y, color=lines.color, opacity=lines.faint()),
        chart.mark("point", size=42, filled=True).encode(
            x=x, y=y, color=lines.color, shape=lines.shape, opacity=lines.faint(), tooltip=_tips()
        ),
    ]


def _throughput(rows: Sequence[Row], lines: Series, kind: str) -> vl.Drawing:
    """The selection stands in the panel with the legend, in its first layer, or it hears no clicks."""
    x = _x(rows)
    scale, ticks = log_scale(value for row in rows for value in (row["throughput"], row["ideal"]))
    axis = si_axis("samples per second", "", values=ticks)
    y = vl.field("throughput:Q", axis=axis, scale=scale)
    ideal = (
        vl.view(rows)
        .mark("line", strokeDash=[5, 4], strokeWidth=1.1)
        .encode(x=x, y=vl.field("ideal:Q", axis=axis, scale=scale), color=lines.color, opacity=lines.faint(0.75))
    )
    if lines.has_legend:
        ideal = ideal.add_params(lines.picked)
    drawn = vl.layer(ideal, *_line(rows, x, y, lines))
    title = dict(text=_TITLES[kind], fontSize=12, fontWeight="normal", frame="group")
    return drawn.properties(width=_PANEL, height=_HEIGHT, title=title)


def _efficiency(rows: Sequence[Row], lines: Series) -> vl.Drawing:
    x = _x(rows)
    axis = dict(title="efficiency", format="%", values=[0, 0.25, 0.5, 0.75, 1])
    most = max(1.0, *(row["efficiency"] for row in rows))
    y = vl.field("efficiency:Q", axis=axis, scale=dict(domain=[0, 1.05 * most], nice=False))
    ideal = vl.view([{"efficiency": 1}]).mark("rule", strokeDash=[5, 4]).encode(y=y)
    return vl.layer(ideal, *_line(rows, x, y, lines)).properties(width=_PANEL, height=_HEIGHT)


def _note(found: Sequence[Prediction]) -> str:
    many = found[0].many
    assert many is not None
    how = f"{many.parallel.upper() if len(many.parallel) <= 4 else many.parallel}"
    return (
        f"Predicted, {how}. Weak scaling: the global batch grows with the GPUs. Strong scaling: the global batch "
        "stays, so that each GPU has less to do, until it waits for its host and for the network. Efficiency is "
        "the throughput over that of the smallest run times the number of GPUs."
    )


def _table(names: Sequence[str], found: Sequence[Prediction]) -> Table:
    columns = (
        Column("run", right=False),
        Column("scaling", right=False),
        column("gpus"),
        column("batch_each", optional=2),
        column("global_batch", optional=1),
        column("time_s"),
        column("exposed_s", heading="exposed", optional=3),
        column("samples_per_s"),
        column("speedup", raw="speed-up"),
        column("efficiency"),
    )
    rows = tuple(
        (
            name,
            kind,
            point.gpus,
            point.batch,
            point.global_batch,
            point.time_s,
            point.exposed_s,
            point.throughput,
            point.speedup,
            point.efficiency,
        )
        for name, one in zip(names, found, strict=True)
        for kind in _TITLES
        for point in _points(one, kind)
    )
    return Table("", columns, rows)
