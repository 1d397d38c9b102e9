"""A study on one GPU and on several: time, speed-up and efficiency against their number, beside the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.encodings import MOST, Series, count_axis, log_scale, panel, series, si_axis
from rooflight.reporting.sections.study_trends import scaling_tables, words
from rooflight.study.trends import StudyScaling, StudyScalingPoint

_TITLES = {
    "strong": "Strong scaling: one batch divided among the GPUs",
    "weak": "Weak scaling: the same batch on each GPU",
}

Row = dict[str, Any]


def study_scaling_charts(scalings: Sequence[StudyScaling]) -> list[Chart]:
    """One for each kind that the study has, of at most eight runs each."""
    charts = []
    for kind, title in _TITLES.items():
        of_kind = [scaling for scaling in scalings if scaling.kind == kind]
        for start in range(0, len(of_kind), MOST):
            name = f"{kind}-scaling" if not start else f"{kind}-scaling-{start // MOST + 1}"
            charts.append(_chart(name, title, of_kind[start : start + MOST]))
    return charts


def _chart(name: str, title: str, scalings: Sequence[StudyScaling]) -> Chart:
    several = len({scaling.side for scaling in scalings}) > 1
    rows = [row for scaling in scalings for row in _rows(scaling, with_side=several)]
    lines = series("run", list(dict.fromkeys(row["run"] for row in rows)), chart=name.replace("-", "_"))
    gpus = sorted({row["gpus"] for row in rows})
    x = count_axis("gpus", gpus, title="GPUs", ticks=gpus, base=2)
    timed = [row for row in rows if row["time"] is not None]
    panels = [_time(timed, lines, x)] if timed else []
    panels += [_speedup(rows, lines if not panels else lines.unnamed, x), _efficiency(rows, lines.unnamed, x)]
    drawing = vl.concat(*panels, columns=2, spacing=24).resolve_scale(color="independent", shape="independent")
    table = next(table for table in scaling_tables(scalings) if table.rows)
    by = "" if several else f"{scalings[0].side.capitalize()}. "
    caption = f"{by}Dashed: ideal, as many times faster as there are more GPUs. Against the run with the fewest GPUs."
    hint = "Click a run in the legend to see it alone." if len(lines.names) > 1 else ""
    return Chart(name, title, caption, drawing.to_dict(), table.titled(""), hint=hint)


def _rows(scaling: StudyScaling, *, with_side: bool) -> Iterator[Row]:
    """Ways to work together are lines of their own, which begin with the one GPU that needs none."""
    where = words({axis: value for axis, value in scaling.at.items() if axis != "total_batch"}) if scaling.at else ""
    total = "" if scaling.total_batch is None else f"total batch {scaling.total_batch:,}"
    ways = list(dict.fromkeys(point.parallel for point in scaling.points if point.gpus > 1))
    for way in ways:
        parts = (where, total, scaling.side if with_side else "", way if len(ways) > 1 else "")
        points = [point for point in scaling.points if point.gpus == 1 or point.parallel == way]
        yield from _run_rows(scaling, points, ", ".join(filter(None, parts)))


def _run_rows(scaling: StudyScaling, points: Sequence[StudyScalingPoint], run: str) -> Iterator[Row]:
    first = scaling.points[0]
    for point in points:
        more = point.gpus / first.gpus
        # With a batch each the ideal time stays; with one for all it is divided.
        shrinks = more if scaling.kind == "strong" else 1.0
        yield {
            "run": run or "all cells",
            "gpus": point.gpus,
            "time": point.time_s,
            "ideal_time": None if first.time_s is None else first.time_s / shrinks,
            "speedup": point.speedup,
            "ideal": more,
            "efficiency": point.efficiency,
            "gpus_text": formatting.exact(point.gpus),
            "batch": formatting.exact(point.batch),
            "time_text": seconds(point.time_s),
            "rate": per_second(point.throughput),
            "speedup_text": quotient(point.speedup),
            "percent": formatting.percent(point.efficiency),
        }


_TIPS = vl.tips(
    run="run",
    gpus_text="GPUs",
    batch="batch of a replica",
    time_text="time of a step",
    rate="samples per second",
    speedup_text="speed-up",
    percent="efficiency",
)


def _line(rows: Sequence[Row], x: vl.Spec, y: vl.Spec, lines: Series) -> list[vl.Drawing]:
    view = vl.view(rows)
    return [lines.line(view, x=x, y=y), lines.points(view, dict(size=42, filled=True), x=x, y=y, tooltip=_TIPS)]


def _beside_ideal(
    rows: Sequence[Row], lines: Series, x: vl.Spec, *, field: str, ideal: str, axis: vl.Spec, scale: vl.Spec
) -> vl.Drawing:
    """The selection stands in the panel with the legend, in its first layer, or it hears no clicks."""
    y, ideal_y = (vl.field(f"{name}:Q", axis=axis, scale=scale) for name in (field, ideal))
    dashed = vl.mark("line", rows, strokeDash=[5, 4], strokeWidth=1.1)
    dashed = dashed.encode(x=x, y=ideal_y, color=lines.color, opacity=lines.faint(0.75))
    return panel(dashed.add_params(lines.picked) if lines.has_legend else dashed, *_line(rows, x, y, lines))


def _time(rows: Sequence[Row], lines: Series, x: vl.Spec) -> vl.Drawing:
    scale, ticks = log_scale(row[name] for row in rows for name in ("time", "ideal_time"))
    axis = si_axis("time of a step", "s", values=ticks)
    return _beside_ideal(rows, lines, x, field="time", ideal="ideal_time", axis=axis, scale=scale)


def _speedup(rows: Sequence[Row], lines: Series, x: vl.Spec) -> vl.Drawing:
    scale, _ = log_scale(row[name] for row in rows for name in ("speedup", "ideal"))
    ticks = sorted({row["ideal"] for row in rows})
    axis = dict(title="speed-up", values=ticks, format="~g", grid=True)
    return _beside_ideal(rows, lines, x, field="speedup", ideal="ideal", axis=axis, scale=scale)


def _efficiency(rows: Sequence[Row], lines: Series, x: vl.Spec) -> vl.Drawing:
    axis = dict(title="efficiency", format="%", values=[0, 0.25, 0.5, 0.75, 1])
    most = max(1.0, *(row["efficiency"] for row in rows))
    y = vl.field("efficiency:Q", axis=axis, scale=dict(domain=[0, 1.05 * most], nice=False))
    ideal = vl.mark("rule", [{"efficiency": 1}], strokeDash=[5, 4]).encode(y=y)
    return panel(ideal, *_line(rows, x, y, lines))
