"""A study against the batch: time, throughput and memory of every model, measured beside predicted; models of one
batch as bars."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.cells import MEMORY, TIME, StudyQuantity, cells_chart
from rooflight.reporting.charts.chart import WIDTH, Chart
from rooflight.reporting.charts.encodings import MOST, count_axis, log_scale, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.study_trends import words
from rooflight.reporting.table import Column, Table
from rooflight.study.cell import SIDES, StudyRow
from rooflight.study.trends import grouped, shown, value, varying

_HEIGHT = 260
_MOST_CHARTS = 24
_MOST_NAMED = 6
_ALONE = "all cells"
_CHARTED = (TIME, StudyQuantity("throughput", "samples per second", "", per_second), MEMORY)
_DASHES = {"measured": [1, 0], "predicted": [5, 4], "estimated": [2, 3]}


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
    drawn: list[tuple[str, Chart]] = []
    without: list[StudyRow] = []
    for number, model in enumerate(dict.fromkeys(row.cell.model for row in rows), 1):
        of_model = [row for row in rows if row.cell.model == model]
        drawable = [(charted, lines) for charted in _CHARTED if (lines := lines_of(of_model, charted.name))]
        if not drawable:
            without += of_model
        drawn += [
            (model, _chart(f"batch-{number}-{charted.name}", model, charted, lines)) for charted, lines in drawable
        ]
    cells = cells_chart(without)
    most = _MOST_CHARTS if cells is None else _MOST_CHARTS - 1
    charts = [chart for _, chart in drawn[:most]] + ([] if cells is None else [cells])
    if missing := [model for model, _ in drawn[most:]]:
        charts[-1] = replace(charts[-1], caption=f"{charts[-1].caption} {_left_out(missing)}")
    return charts


def _left_out(models: Sequence[str]) -> str:
    """`models`: one for each chart."""
    names = list(dict.fromkeys(models))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    count = len(models)
    return (
        f"{count} more {'chart is' if count == 1 else 'charts are'} not shown here, of "
        f"{', '.join(names[:_MOST_NAMED])}{more}: the tables of the study have their numbers."
    )


def lines_of(rows: Sequence[StudyRow], quantity: str) -> list[StudyLine]:
    """Of each series of more than one batch, what was measured and what was predicted."""
    axes = [axis for axis in varying(rows) if axis not in ("model", "batch")]
    lines = []
    for side in reversed(SIDES):
        for where, group in grouped(rows, without=("batch",)).items():
            amounts = ((row.cell.batch, value(row, quantity, side)) for row in group)
            points = {batch: amount for batch, amount in amounts if amount is not None and amount > 0}
            if len(points) > 1:
                lines.append(StudyLine(words(shown(where, axes)), side, tuple(sorted(points.items()))))
    return lines


def _chart(name: str, model: str, charted: StudyQuantity, lines: Sequence[StudyLine]) -> Chart:
    names = list(dict.fromkeys(line.series for line in lines))
    rows = [
        {
            "series": line.series,
            "side": line.side,
            "batch": batch,
            "batch_text": formatting.exact(batch),
            "value": amount,
            "text": charted.write(amount),
        }
        for line in lines
        if line.series in names[:MOST]
        for batch, amount in line.points
    ]
    left_out = f" The first {MOST} of {len(names)} series are drawn." if len(names) > MOST else ""
    hint = "Click a series in the legend to see it alone." if len(names) > 1 else ""
    caption = f"Solid: measured. Dashed: predicted. Both axes are logarithmic.{left_out}"
    columns = (
        column("series"),
        Column("", right=False, raw="side"),
        column("batch"),
        Column(charted.title, charted.write, raw=charted.name),
    )
    table = Table("", columns, tuple((line.series, line.side, *point) for line in lines for point in line.points))
    spec = _drawn(name, charted, rows, names).to_dict()
    return Chart(name, f"{charted.title.capitalize()}: {model}", caption, spec, table, hint=hint)


def _drawn(name: str, charted: StudyQuantity, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> vl.Drawing:
    lines = series("series", names, chart=name.replace("-", "_"))
    if list(names) == [_ALONE]:  # nothing to tell apart
        lines = lines.unnamed
    batches = sorted({row["batch"] for row in rows})
    x = count_axis("batch", batches, title="batch", ticks=batches, room=1.12)
    scale, ticks = log_scale(row["value"] for row in rows)
    y = vl.field("value:Q", axis=si_axis(charted.title, charted.unit, values=ticks), scale=scale)
    dashes = {side: dash for side, dash in _DASHES.items() if any(row["side"] == side for row in rows)}
    legend = dict(orient="bottom", direction="horizontal", symbolType="stroke", symbolSize=300)
    dash = vl.by_word("side:N", dashes, sort=list(dashes), legend=legend)
    view = vl.view(rows)
    tips = vl.tips(series="series", side="it was", batch_text="batch", text=charted.title)
    drawn = [lines.line(view, x=x, y=y, strokeDash=dash, detail=vl.field("series:N")).add_params(lines.picked)]
    for measured in (True, False):
        some = view.filter(f"(datum.side == 'measured') == {str(measured).lower()}")
        look = dict(size=40, filled=measured, strokeWidth=1.5)
        drawn.append(lines.points(some, look, x=x, y=y, tooltip=tips))
    return vl.layer(*drawn).properties(width=WIDTH, height=_HEIGHT)
