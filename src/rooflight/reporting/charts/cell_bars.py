"""Cells of a study side by side, where there is no batch to draw them against: time and memory as bars."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rooflight.formatting import whole_bytes, whole_count
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.charted_quantity import MEMORY, TIME, ChartedQuantity
from rooflight.reporting.charts.encodings import BAR, PLACE_WIDTH, Series, grouped_rows, on_phone, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.study_trends import words
from rooflight.reporting.table import Column, Table
from rooflight.study.cell import Side, StudyRow
from rooflight.study.trends import grouped, shown, value, varying

_COST = (
    ChartedQuantity("flops", "useful FLOPs of a step", "", whole_count),
    ChartedQuantity("bytes", "compulsory bytes of a step", "B", whole_bytes),
)
_GAP = 10
_LABELS = 150
"""Pixels for the names of groups of cells."""
_LOOKS: dict[Side, tuple[float, list[int]]] = {
    "measured": (1.0, [1, 0]),
    "predicted": (0.3, [4, 2]),
    "estimated": (0.3, [1, 2]),
}
"""In this order: how full the bars are, and the dashes of their outline."""
_WRAPPED = f"{PLACE_WIDTH} < 560 ? split(datum.label, ', ') : datum.label"
"""On a phone a part of a name on each line."""
_NO_DEVICE = "any device"


@dataclass(frozen=True)
class _CellBar:
    group: str
    """What the cell is, without its device."""
    device: str
    side: Side
    quantity: ChartedQuantity
    amount: float


def cells_chart(rows: Sequence[StudyRow]) -> Chart | None:
    """`None` where nothing is known of any cell. Of a study without times and memory: what it costs by formula."""
    for quantities in ((TIME, MEMORY), _COST):
        bars = [bar for quantity in quantities for bar in _bars(rows, quantity)]
        if bars:
            return _cells_chart(bars, batches={row.cell.batch for row in rows})
    return None


def _bars(rows: Sequence[StudyRow], quantity: ChartedQuantity) -> list[_CellBar]:
    axes = ["model", *(axis for axis in varying(rows) if axis not in ("model", "on"))]
    return [
        _CellBar(words(shown(where, axes)), row.cell.on or _NO_DEVICE, side, quantity, float(amount))
        for where, group in grouped(rows, without=("on",)).items()
        for row in group
        for side in _LOOKS
        if (amount := value(row, quantity.name, side)) is not None
    ]


def _cells_chart(bars: Sequence[_CellBar], *, batches: Collection[int]) -> Chart:
    devices = list(dict.fromkeys(bar.device for bar in bars))
    sides = [side for side in _LOOKS if any(bar.side == side for bar in bars)]
    lines = series("device", devices, chart="cells")
    panels = []
    for quantity in dict.fromkeys(bar.quantity for bar in bars):
        panels.append(_panel([bar for bar in bars if bar.quantity == quantity], lines, sides=sides))
        lines = lines.unnamed
    drawing = (
        vl.concat(*panels, columns=2, spacing=16)
        .resolve_scale(color="independent", strokeDash="independent", y="independent", yOffset="independent")
        .properties(usermeta=dict(axis=_LABELS + 20))
    )
    hint = "Click a device in the legend to see it alone." if len(lines.names) > 1 else ""
    at = f"at batch {min(batches):,}" if len(batches) == 1 else ""
    caption = _cells_caption(sides, at=f" {at}" if at else "")
    table = _cells_table(bars, note=f"{at.capitalize()}." if at else "")
    return Chart("cells", "Cells side by side", caption, drawing.to_dict(), table, hint=hint)


def _panel(bars: Sequence[_CellBar], lines: Series, *, sides: Sequence[Side]) -> vl.Drawing:
    """All bars are of one quantity."""
    quantity = bars[0].quantity
    # Only places that some group fills: most devices were not measured.
    pairs = {(bar.device, bar.side) for bar in bars}
    places = [f"{device} {side}" for device in lines.names for side in sides if (device, side) in pairs]
    rows = [
        {
            "group": bar.group,
            "device": bar.device,
            "side": bar.side,
            "place": f"{bar.device} {bar.side}",
            "full": _LOOKS[bar.side][0],
            "amount": bar.amount,
            "text": quantity.write(bar.amount),
        }
        for bar in bars
    ]
    most = max(bar.amount for bar in bars) or 1.0
    axis = si_axis(quantity.title, quantity.unit, tickCount=3)
    x = vl.field("amount:Q", axis=axis, scale=dict(domain=[0, 1.3 * most], nice=False))
    # Names of models are users': they stand in the data alone, in the order of the study.
    label = dict(labelFontSize=10, labelExpr=_WRAPPED, labelLineHeight=11)
    y = grouped_rows("group", len(places), gap=_GAP, limit=on_phone(66, _LABELS), sort=None, **label)
    offset = vl.field("place:N", sort=places, scale=dict(domain=places))
    legend = None
    if lines.has_legend and len(sides) > 1:
        legend = dict(
            orient="top",
            symbolType="square",
            symbolFillColor="transparent",
            symbolSize=90,
            symbolStrokeColor=COLOURS[-1],
            columns=on_phone(1, 3),
        )
    blocks = vl.mark("bar", rows, strokeWidth=1, cornerRadiusEnd=1.5).encode(
        x=x,
        y=y,
        yOffset=offset,
        color=lines.color,
        stroke=_outline(lines),
        fillOpacity=vl.field("full:Q", scale=None, legend=None),
        strokeDash=vl.by_word("side:N", {side: _LOOKS[side][1] for side in sides}, sort=list(sides), legend=legend),
        opacity=lines.faint(),
        tooltip=vl.tips(group="cell", device="device", side="it was", text=quantity.title),
    )
    if lines.has_legend:  # the selection stands in one panel; the other listens
        blocks = blocks.add_params(lines.picked)
    texts = vl.mark("text", rows, align="left", dx=4, fontSize=9.5)
    texts = texts.encode(x=x, y=y, yOffset=offset, text=vl.field("text:N"), opacity=lines.faint())
    groups = len({bar.group for bar in bars})
    width, height = WIDTH // 2 - _LABELS - 24, groups * (BAR * len(places) + _GAP)
    return vl.layer(blocks, texts).properties(width=width, height=height)


def _outline(lines: Series) -> vl.Spec:
    """The colour of the bar: one that is hardly filled is still seen."""
    return {name: part for name, part in lines.unnamed.color.items() if name != "title"}


def _cells_caption(sides: Sequence[Side], *, at: str) -> str:
    parts = [f"Each bar is a cell of the study{at}, each colour a device."]
    if "measured" in sides:
        parts.append("Full: measured. Light and dashed: predicted." if "predicted" in sides else "Measured.")
    elif "predicted" in sides:
        parts.append("Predicted, without running.")
    else:
        parts.append("By formula: a study without predictions and measurements.")
    return " ".join(parts)


def _cells_table(bars: Sequence[_CellBar], *, note: str) -> Table:
    cells: dict[tuple[str, str], dict[tuple[ChartedQuantity, Side], float]] = {}
    for bar in bars:
        cells.setdefault((bar.group, bar.device), {})[bar.quantity, bar.side] = bar.amount
    present = {(bar.quantity, bar.side) for bar in bars}
    kinds = [
        (quantity, side)
        for quantity in dict.fromkeys(bar.quantity for bar in bars)
        for side in _LOOKS
        if (quantity, side) in present
    ]
    columns = [Column("cell", right=False), column("device")]
    columns += [Column(f"{kind.name}, {side}", kind.write, raw=f"{kind.name}.{side}") for kind, side in kinds]
    rows = tuple((*place, *map(amounts.get, kinds)) for place, amounts in cells.items())
    return Table("", tuple(columns), rows, note=note)
