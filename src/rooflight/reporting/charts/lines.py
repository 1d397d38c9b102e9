"""A study against the batch: any quantity of a step or of a layer, by formula, predicted with its 90% interval, and
measured; a panel for every step, model and precision, a colour for every device. Nothing is left out of a chart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight import formatting
from rooflight.errors import BadInput
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.cell_bars import cells_chart
from rooflight.reporting.charts.chart import WIDTH, Chart
from rooflight.reporting.charts.charted_quantity import OF_A_STEP, ChartedQuantity, charted, drawable, of_layers
from rooflight.reporting.charts.encodings import MOST, Series, count_axis, log_scale, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.study_trends import words
from rooflight.reporting.table import Column, Table
from rooflight.study.cell import SIDES, Side, StudyRow
from rooflight.study.trends import OF_THE_BATCH, OF_THE_DEVICE, Place, grouped, shown, varying

_HEIGHT = 260
_MOST_CHARTS = 24
_MOST_NAMED = 6
_DASHES = {"measured": [1, 0], "predicted": [5, 4], "estimated": [2, 3]}
_SAID = {"measured": "Solid: measured.", "predicted": "Dashed: predicted.", "estimated": "Dotted: by formula."}
_ALONE = "all cells"
"""What `words` calls a place that nothing tells from others."""
_FORMULA = "by formula"
"""The series of what no device changes."""

Row = dict[str, Any]


@dataclass(frozen=True)
class StudyLine:
    """One side of one series. Prediction and measurement of the same series share its name, and so its colour."""

    series: str
    """The device, and what else of the machine differs."""
    side: Side
    points: tuple[tuple[int, float], ...]
    """Batch and value, all above 0."""
    facet: str = ""
    """All else that differs: the step, the precision."""
    intervals: tuple[tuple[float, float] | None, ...] = ()
    """90% ones, of each point, where there are any."""


def study_charts(rows: Sequence[StudyRow], layers: Sequence[str] = ()) -> list[Chart]:
    """Time, throughput, memory and FLOPs against the batch, and those of some layers; for every model those that have a
    line to draw. The cells of models that have none, as those with one batch, side by side. The last caption says what
    was left out."""
    drawn: list[tuple[str, Chart]] = []
    without: list[StudyRow] = []
    for number, model in enumerate(dict.fromkeys(row.cell.model for row in rows), 1):
        of_model = [row for row in rows if row.cell.model == model]
        wanted = [quantity for quantity in (*OF_A_STEP, *of_layers(layers)) if lines_of(of_model, quantity)]
        if not any(is_worth_a_chart(of_model, quantity) for quantity in wanted):
            without += of_model
            continue
        for quantity in wanted:
            name = "-".join(filter(None, ("batch", str(number), quantity.layer, quantity.name)))
            drawn.append((model, _chart(name, model, quantity, lines_of(of_model, quantity))))
    cells = cells_chart(without)
    most = _MOST_CHARTS if cells is None else _MOST_CHARTS - 1
    charts = [chart for _, chart in drawn[:most]] + ([] if cells is None else [cells])
    if missing := [model for model, _ in drawn[most:]]:
        charts[-1] = replace(charts[-1], caption=f"{charts[-1].caption} {_left_out(missing)}")
    return charts


def is_worth_a_chart(rows: Sequence[StudyRow], quantity: ChartedQuantity) -> bool:
    """A straight line by formula alone says nothing that a number does not."""
    return any(line.side != "estimated" for line in lines_of(rows, quantity))


def batch_chart(rows: Sequence[StudyRow], of: str = "", layer: str = "", *, layers: Sequence[str] = ()) -> Chart:
    """One quantity of the step or of a layer against the batch, every model in panels of its own."""
    if layer and layer not in layers:
        known = f"it has {', '.join(layers)}" if layers else "it has none: run it with --layers"
        raise BadInput("unknown-layer", f"the study has no values of a layer {layer!r}: {known}")
    there = drawable(rows, layer)
    of = of or next((name for name in ("time", "flops") if name in there), "flops")
    quantity = charted(of, layer)
    lines = lines_of(rows, quantity)
    if not lines:
        others = f"; there are {', '.join(there)}" if there and of not in there else ""
        why = f"no cell has {quantity.title}" if of not in there else "no two cells differ in their batch alone"
        raise BadInput("nothing-to-draw", f"there is nothing to draw against the batch: {why}{others}")
    models = dict.fromkeys(row.cell.model for row in rows if any(quantity.value(row, side) for side in SIDES))
    several = [model for model in models if lines_of([row for row in rows if row.cell.model == model], quantity)]
    return _chart("batch", several[0] if len(several) == 1 else "", quantity, lines)


def _left_out(models: Sequence[str]) -> str:
    """`models`: one for each chart."""
    names = list(dict.fromkeys(models))
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    count = len(models)
    return (
        f"{count} more {'chart is' if count == 1 else 'charts are'} not shown here, of "
        f"{', '.join(names[:_MOST_NAMED])}{more}: the tables of the study have their numbers."
    )


def lines_of(rows: Sequence[StudyRow], quantity: ChartedQuantity) -> list[StudyLine]:
    """Of each series of more than one batch, what was measured, predicted and estimated."""
    found: list[tuple[Side, Place, list[StudyRow]]] = []
    for side in reversed(SIDES):
        without = ("batch", *OF_THE_DEVICE) if side == "estimated" else OF_THE_BATCH
        for where, group in grouped(rows, without=without).items():
            by_batch = {row.cell.batch: row for row in group if (quantity.value(row, side) or 0) > 0}
            if len(by_batch) > 1:
                found.append((side, where, [by_batch[batch] for batch in sorted(by_batch)]))
    # What tells them apart is what differs among those that are drawn.
    axes = [axis for axis in varying([row for _, _, some in found for row in some]) if axis not in OF_THE_BATCH]
    facets = [axis for axis in axes if axis not in OF_THE_DEVICE]
    machines = [axis for axis in axes if axis in OF_THE_DEVICE]
    return [
        StudyLine(
            _FORMULA if side == "estimated" else words(shown(where, machines)),
            side,
            tuple((row.cell.batch, quantity.value(row, side) or 0) for row in some),
            words(shown(where, facets)) if facets else "",
            tuple(quantity.interval(row, side) for row in some),
        )
        for side, where, some in found
    ]


def _chart(name: str, model: str, quantity: ChartedQuantity, lines: Sequence[StudyLine]) -> Chart:
    devices = [series for series in dict.fromkeys(line.series for line in lines) if series != _FORMULA]
    said = [_SAID[side] for side in reversed(SIDES) if any(line.side == side for line in lines)]
    shaded = " Shaded: the 90% interval." if any(any(line.intervals) for line in lines) else ""
    hint = "Click a series in the legend to see it alone." if len(devices) > 1 else ""
    caption = f"{' '.join(said)}{shaded} Both axes are logarithmic."
    title = quantity.title[:1].upper() + quantity.title[1:]
    spec = _drawn(name, quantity, lines, devices).to_dict()
    table = _table(quantity, lines)
    return Chart(name, f"{title}: {model}" if model else title, caption, spec, table, hint=hint)


def _table(quantity: ChartedQuantity, lines: Sequence[StudyLine]) -> Table:
    columns = (
        column("series"),
        Column("", right=False, raw="side"),
        column("batch"),
        Column(quantity.title, quantity.write, raw=quantity.name),
    )
    rows = tuple(
        (", ".join(filter(None, (line.facet, line.series))), line.side, *point)
        for line in lines
        for point in line.points
    )
    return Table("", columns, rows)


def _drawn(name: str, quantity: ChartedQuantity, lines: Sequence[StudyLine], devices: Sequence[str]) -> vl.Drawing:
    """A panel for every facet and every eight devices: more colours could not be told apart."""
    sides = [side for side in _DASHES if any(line.side == side for line in lines)]
    panels = list(_panels(lines, devices))
    wide = len(panels) == 1
    drawn = []
    for place, (facet, some, of_panel) in enumerate(panels):
        legend = series("series", some, chart=f"{name.replace('-', '_')}_{place}")
        if list(devices) == [_ALONE] or (place and some == panels[place - 1][1]):  # nothing to tell apart, or told
            legend = legend.unnamed
        rows = [row for line in of_panel for row in _rows(line, quantity)]
        title = "" if wide else facet
        drawn.append(_panel(rows, legend, quantity, sides, title=title, wide=wide, named=not place))
    if wide:
        return drawn[0]
    grid = vl.concat(*drawn, columns=2, spacing=24)
    return grid.resolve_scale(color="independent", shape="independent", strokeDash="independent")


def _panels(lines: Sequence[StudyLine], devices: Sequence[str]) -> Iterator[tuple[str, list[str], list[StudyLine]]]:
    """Their titles, the devices they show, and the lines."""
    groups = [list(devices[start : start + MOST]) for start in range(0, max(len(devices), 1), MOST)]
    for some in groups:
        for facet in dict.fromkeys(line.facet for line in lines):
            ours = [line for line in lines if line.facet == facet and line.series in (*some, _FORMULA)]
            if any(line.series in some for line in ours) or (ours and some == groups[0]):
                yield facet, some, ours


def _rows(line: StudyLine, quantity: ChartedQuantity) -> Iterator[Row]:
    intervals = line.intervals or (None,) * len(line.points)
    for (batch, amount), interval in zip(line.points, intervals, strict=True):
        low, high = interval or (None, None)
        yield {
            "series": line.series,
            "side": line.side,
            "batch": batch,
            "batch_text": formatting.exact(batch),
            "value": amount,
            "text": quantity.write(amount),
            "low": None if low is None else max(low, amount * 1e-2),
            "high": high,
        }


def _panel(
    rows: Sequence[Row],
    lines: Series,
    quantity: ChartedQuantity,
    sides: Sequence[str],
    *,
    title: str,
    wide: bool,
    named: bool,
) -> vl.Drawing:
    """`named`: with the legend of what was measured, predicted and estimated."""
    batches = sorted({row["batch"] for row in rows})
    ticks = batches if wide else batches[:: max(1, -(-len(batches) // 8))]
    x = count_axis("batch", batches, title="batch", ticks=ticks, room=1.12)
    scale, ticks_y = log_scale(row[name] for row in rows for name in ("value", "low", "high") if row[name] is not None)
    axis = si_axis(quantity.title, quantity.unit, values=ticks_y)
    y = vl.field("value:Q", axis=axis, scale=scale)
    legend = None
    if named:
        legend = dict(
            orient="bottom",
            direction="horizontal",
            symbolType="stroke",
            symbolSize=300,
            labelLimit=0,
            labelExpr=_labels(banded=any(row["low"] is not None for row in rows)),
        )
    dash = vl.by_word("side:N", {side: _DASHES[side] for side in sides}, sort=list(sides), legend=legend)
    tips = vl.tips(series="series", side="it was", batch_text="batch", text=quantity.title)
    of_device = [row for row in rows if row["series"] != _FORMULA]
    drawn = []
    if by_formula := [row for row in rows if row["series"] == _FORMULA]:
        drawn.append(vl.mark("line", by_formula, style="ink", strokeWidth=1.6).encode(x=x, y=y, strokeDash=dash))
        points = vl.mark("point", by_formula, style="ink", size=90, shape="diamond", filled=False)
        drawn.append(points.encode(x=x, y=y, tooltip=tips))
    if banded := [row for row in of_device if row["low"] is not None]:
        low = vl.field("low:Q", scale=scale, axis=axis)
        drawn.append(
            vl.mark("area", banded).encode(
                x=x, y=low, y2=vl.field("high"), color=lines.color, opacity=lines.faint(0.14)
            )
        )
    if of_device:
        view = vl.view(of_device)
        drawn.append(lines.line(view, x=x, y=y, strokeDash=dash, detail=vl.field("series:N")).add_params(lines.picked))
        for measured in (True, False):
            some = view.filter(f"(datum.side == 'measured') == {str(measured).lower()}")
            look = dict(size=40, filled=measured, strokeWidth=1.5)
            drawn.append(lines.points(some, look, x=x, y=y, tooltip=tips))
    if title:  # inside, so that panels with a legend above them stay level with the others
        heading = vl.mark("text", [{"title": title}], align="left", baseline="top", fontSize=12, fontWeight="bold")
        drawn.append(heading.encode(x=vl.value(8), y=vl.value(4), text=vl.field("title:N")))
    width, height = (WIDTH, _HEIGHT) if wide else (WIDTH // 2 - 75, 190)
    return vl.layer(*drawn).properties(width=width, height=height)


def _labels(*, banded: bool) -> str:
    """What the legend says of the sides: a picture has no caption."""
    predicted = "predicted, with its 90% interval" if banded else "predicted"
    return (
        f"datum.label == 'predicted' ? '{predicted}' : "
        "datum.label == 'estimated' ? 'estimated, by formula' : datum.label"
    )
