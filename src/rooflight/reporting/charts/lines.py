"""A study against the batch: time, throughput and memory of every model, measured beside predicted; models of one
batch as bars."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, seconds, whole_bytes
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.cells import cells_chart
from rooflight.reporting.charts.chart import WIDTH, Chart
from rooflight.reporting.charts.encodings import MOST, log_scale, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.study_trends import words
from rooflight.reporting.table import Column, Table
from rooflight.study.cell import SIDES, StudyRow
from rooflight.study.trends import grouped, shown, value, varying

_HEIGHT = 260
_MOST_CHARTS = 24
_MOST_NAMED = 6
_ALONE = "all cells"


@dataclass(frozen=True)
class _Charted:
    quantity: str
    name: str
    unit: str
    write: Callable[[Any], str]


_CHARTED = (
    _Charted("time", "time of a step", "s", seconds),
    _Charted("throughput", "samples per second", "", per_second),
    _Charted("memory", "memory at the peak", "B", whole_bytes),
)


@dataclass(frozen=True)
class StudyLine:
    """One side of one series. Prediction and measurement of the same series share its name, and so its colour."""

    series: str
    side: str
    points: tuple[tuple[int, float], ...]
    """Batch and value, all above 0."""


def study_charts(rows: Sequence[StudyRow]) -> list[Chart]:
    """Time, throughput and memory against the batch; for every model those that have a line to draw. The cells of
    models that have none, as those with one batch, side by side. The last caption says what was left out."""
    found: list[Chart] = []
    without: list[StudyRow] = []
    models: list[str] = []
    for number, model in enumerate(dict.fromkeys(row.cell.model for row in rows), 1):
        of_model = [row for row in rows if row.cell.model == model]
        drawable = [(charted, lines) for charted in _CHARTED if (lines := lines_of(of_model, charted.quantity))]
        if not drawable:
            without += of_model
        for charted, lines in drawable:
            found.append(_chart(f"batch-{number}-{charted.quantity}", model, charted, lines))
            models.append(model)
    cells = cells_chart(without)
    kept = found[: _MOST_CHARTS if cells is None else _MOST_CHARTS - 1]
    missing = models[len(kept) :]
    kept += [] if cells is None else [cells]
    if missing:
        kept[-1] = replace(kept[-1], caption=f"{kept[-1].caption} {_left_out(missing)}")
    return kept


def _left_out(models: Sequence[str]) -> str:
    """`models`: one for each chart."""
    missing = list(dict.fromkeys(models))
    listed = ", ".join(missing[:_MOST_NAMED]) + (
        f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    )
    count = len(models)
    return (
        f"{count} more {'chart is' if count == 1 else 'charts are'} not shown here, of {listed}: the tables of the "
        "study have their numbers."
    )


def lines_of(rows: Sequence[StudyRow], quantity: str) -> list[StudyLine]:
    """Of each series of more than one batch, what was measured and what was predicted."""
    axes = [axis for axis in varying(rows) if axis not in ("model", "batch")]
    found = []
    for side in reversed(SIDES):
        for where, group in grouped(rows, without=("batch",)).items():
            values = {
                row.cell.batch: one for row in group if (one := value(row, quantity, side)) is not None and one > 0
            }
            if len(values) > 1:
                found.append(StudyLine(words(shown(where, axes)), side, tuple(sorted(values.items()))))
    return found


def _chart(name: str, model: str, charted: _Charted, lines: Sequence[StudyLine]) -> Chart:
    every = list(dict.fromkeys(line.series for line in lines))
    kept = [line for line in lines if line.series in every[:MOST]]
    rows = [
        {
            "series": line.series,
            "side": line.side,
            "batch": batch,
            "batch_text": formatting.exact(batch),
            "value": amount,
            "text": charted.write(amount),
        }
        for line in kept
        for batch, amount in line.points
    ]
    left_out = f" The first {MOST} of {len(every)} series are drawn." if len(every) > MOST else ""
    hint = "Click a series in the legend to see it alone." if len(every) > 1 else ""
    caption = f"Solid: measured. Dashed: predicted. Both axes are logarithmic.{left_out}"
    columns = (
        column("series"),
        Column("", right=False, raw="side"),
        column("batch"),
        Column(charted.name, charted.write, raw=charted.quantity),
    )
    table = Table("", columns, tuple((line.series, line.side, *point) for line in lines for point in line.points))
    spec = _drawn(name, charted, rows, every).to_dict()
    return Chart(name, f"{charted.name.capitalize()}: {model}", caption, spec, table, hint=hint)


def _drawn(name: str, charted: _Charted, rows: Sequence[dict[str, Any]], every: Sequence[str]) -> vl.Drawing:
    found = series("series", every, chart=name.replace("-", "_"))
    batches = sorted({row["batch"] for row in rows})
    axis = dict(title="batch", values=batches, format=",d", grid=False, labelOverlap=True)
    x = vl.field(
        "batch:Q", axis=axis, scale=dict(type="log", domain=[batches[0] / 1.12, batches[-1] * 1.12], nice=False)
    )
    scale, ticks = log_scale(row["value"] for row in rows)
    y = vl.field("value:Q", axis=si_axis(charted.name, charted.unit, values=ticks), scale=scale)
    sides = [side for side in ("measured", "predicted", "estimated") if any(row["side"] == side for row in rows)]
    dashes = {"measured": [1, 0], "predicted": [5, 4], "estimated": [2, 3]}
    dash = vl.field(
        "side:N",
        title=None,
        sort=sides,
        scale=dict(domain=sides, range=[dashes[side] for side in sides]),
        legend=dict(orient="bottom", direction="horizontal", symbolType="stroke", symbolSize=300),
    )
    colour, shape = found.color, found.shape
    if list(every) == [_ALONE]:  # nothing to tell apart
        colour, shape = {**colour, "legend": None}, {**shape, "legend": None}
    chart = vl.view(rows)
    tips = vl.tips(series="series", side="it was", batch_text="batch", text=charted.name)
    line = (
        chart.mark("line", strokeWidth=1.8)
        .encode(x=x, y=y, color=colour, strokeDash=dash, opacity=found.faint(), detail=vl.field("series:N"))
        .add_params(found.picked)
    )
    drawn = [line]
    for measured in (True, False):
        some = chart.filter(f"(datum.side == 'measured') == {str(measured).lower()}")
        points = some.mark("point", size=40, filled=measured, strokeWidth=1.5)
        drawn.append(points.encode(x=x, y=y, color=colour, shape=shape, opacity=found.faint(), tooltip=tips))
    return vl.layer(*drawn).properties(width=WIDTH, height=_HEIGHT)
