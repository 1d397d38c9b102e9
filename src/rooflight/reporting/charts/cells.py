"""Cells of a study side by side, where there is one batch only: time and memory of a step, measured and predicted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import MOST, PLACE_WIDTH, Series, on_phone, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.study_trends import words
from rooflight.reporting.table import Column, Table
from rooflight.study.cell import Side, StudyRow
from rooflight.study.trends import grouped, shown, value, varying

_BAR, _GAP = 12, 10
"""Heights, in pixels."""
_MOST_GROUPS = 20
_LABELS = 150
"""Pixels for the names of groups."""
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
class _CellQuantity:
    name: str
    title: str
    unit: str
    write: Callable[[Any], str]


_RUN = (
    _CellQuantity("time", "time of a step", "s", seconds),
    _CellQuantity("memory", "memory at the peak", "B", whole_bytes),
)
_COST = (
    _CellQuantity("flops", "useful FLOPs of a step", "", whole_count),
    _CellQuantity("bytes", "compulsory bytes of a step", "B", whole_bytes),
)


@dataclass(frozen=True)
class _CellBar:
    group: str
    """What the cell is, without its device."""
    device: str
    side: Side
    quantity: str
    amount: float


def cells_chart(rows: Sequence[StudyRow]) -> Chart | None:
    """`None` where nothing is known of any cell. Of a study without times and memory: what it costs by formula."""
    for quantities in (_RUN, _COST):
        bars = [bar for one in quantities for bar in _bars(rows, one.name)]
        if bars:
            known = [one for one in quantities if any(bar.quantity == one.name for bar in bars)]
            return _chart(bars, known, batches={row.cell.batch for row in rows})
    return None


def _bars(rows: Sequence[StudyRow], quantity: str) -> list[_CellBar]:
    axes = ["model", *(axis for axis in varying(rows) if axis not in ("model", "on"))]
    return [
        _CellBar(words(shown(where, axes)), row.cell.on or _NO_DEVICE, side, quantity, float(amount))
        for where, group in grouped(rows, without=("on",)).items()
        for row in group
        for side in _LOOKS
        if (amount := value(row, quantity, side)) is not None
    ]


def _chart(bars: Sequence[_CellBar], quantities: Sequence[_CellQuantity], *, batches: Collection[int]) -> Chart:
    every, devices = (
        list(dict.fromkeys(names)) for names in zip(*((bar.group, bar.device) for bar in bars), strict=True)
    )
    drawn = [bar for bar in bars if bar.group in every[:_MOST_GROUPS] and bar.device in devices[:MOST]]
    lines = series("device", devices, chart="cells")
    of = {one: [bar for bar in drawn if bar.quantity == one.name] for one in quantities}
    seen = [one for one in quantities if of[one]]
    panels = [_panel(of[one], one, lines if one is seen[0] else lines.unnamed, sides=_present(drawn)) for one in seen]
    made = (
        vl.concat(*panels, columns=2, spacing=16)
        .resolve_scale(color="independent", strokeDash="independent", y="independent", yOffset="independent")
        .properties(usermeta=dict(axis=_LABELS + 20))
    )
    hint = "Click a device in the legend to see it alone." if len(lines.names) > 1 else ""
    note = f"At batch {min(batches):,}." if len(batches) == 1 else ""
    return Chart(
        "cells",
        "Cells side by side",
        _caption(every, devices, _present(drawn), batches=batches),
        made.to_dict(),
        replace(_table(bars, quantities), note=note),
        hint=hint,
    )


def _present(bars: Sequence[_CellBar]) -> list[Side]:
    return [side for side in _LOOKS if any(bar.side == side for bar in bars)]


def _panel(bars: Sequence[_CellBar], one: _CellQuantity, lines: Series, *, sides: Sequence[Side]) -> vl.Drawing:
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
            "text": one.write(bar.amount),
        }
        for bar in bars
    ]
    most = max(bar.amount for bar in bars) or 1.0
    x = vl.field("amount:Q", axis=si_axis(one.title, one.unit, ticks=3), scale=dict(domain=[0, 1.3 * most], nice=False))
    # Names of models are users': they stand in the data alone, in the order of the study.
    y = vl.field(
        "group:N",
        sort=None,
        title=None,
        axis=dict(
            domain=False,
            ticks=False,
            grid=False,
            labelLimit=on_phone(66, _LABELS),
            labelFontSize=10,
            labelExpr=_WRAPPED,
            labelLineHeight=11,
        ),
        scale=dict(paddingInner=_GAP / (_GAP + _BAR * len(places)), paddingOuter=0.1),
    )
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
    dash = vl.field(
        "side:N",
        title=None,
        sort=list(sides),
        legend=legend,
        scale=dict(domain=list(sides), range=[_LOOKS[side][1] for side in sides]),
    )
    full = vl.field("full:Q", scale=None, legend=None)
    tips = vl.tips(group="cell", device="device", side="it was", text=one.title)
    blocks = (
        vl.view(rows)
        .mark("bar", strokeWidth=1, cornerRadiusEnd=1.5)
        .encode(
            x=x,
            y=y,
            yOffset=offset,
            color=lines.color,
            stroke=_outline(lines),
            fillOpacity=full,
            strokeDash=dash,
            opacity=lines.faint(),
            tooltip=tips,
        )
    )
    if lines.has_legend:  # the selection stands in one panel; the other listens
        blocks = blocks.add_params(lines.picked)
    said = (
        vl.view(rows)
        .mark("text", align="left", dx=4, fontSize=9.5)
        .encode(x=x, y=y, yOffset=offset, text=vl.field("text:N"), opacity=lines.faint())
    )
    width, groups = WIDTH // 2 - _LABELS - 24, len({bar.group for bar in bars})
    return vl.layer(blocks, said).properties(width=width, height=groups * (_BAR * len(places) + _GAP))


def _outline(lines: Series) -> vl.Spec:
    """The colour of the bar: one that is hardly filled is still seen."""
    scale = dict(domain=list(lines.names), range=list(COLOURS[: len(lines.names)]))
    return vl.field("device:N", scale=scale, legend=None)


def _caption(groups: Sequence[str], devices: Sequence[str], sides: Sequence[Side], *, batches: Collection[int]) -> str:
    at = f" at batch {min(batches):,}" if len(batches) == 1 else ""
    parts = [f"Each bar is a cell of the study{at}, each colour a device."]
    if "measured" in sides:
        parts.append("Full: measured. Light and dashed: predicted." if "predicted" in sides else "Measured.")
    elif "predicted" in sides:
        parts.append("Predicted, without running.")
    else:
        parts.append("By formula: a study without predictions and measurements.")
    if len(groups) > _MOST_GROUPS:
        parts.append(f"The first {_MOST_GROUPS} of {len(groups)} are drawn; the table has all.")
    if len(devices) > MOST:
        parts.append(f"The first {MOST} of {len(devices)} devices are drawn; the table has all.")
    return " ".join(parts)


def _table(bars: Sequence[_CellBar], quantities: Sequence[_CellQuantity]) -> Table:
    found: dict[tuple[str, str], dict[tuple[str, Side], float]] = {}
    for bar in bars:
        found.setdefault((bar.group, bar.device), {})[bar.quantity, bar.side] = bar.amount
    kinds = [
        (one, side)
        for one in quantities
        for side in _LOOKS
        if any((bar.quantity, bar.side) == (one.name, side) for bar in bars)
    ]
    columns = [Column("cell", right=False), column("device")]
    columns += [Column(f"{one.name}, {side}", _written(one), raw=f"{one.name}.{side}") for one, side in kinds]
    rows = tuple((*place, *(held.get((one.name, side)) for one, side in kinds)) for place, held in found.items())
    return Table("", tuple(columns), rows)


def _written(one: _CellQuantity) -> Callable[[Any], str]:
    return lambda amount: "–" if amount is None else one.write(amount)
