"""Which types of layers a step's FLOPs, bytes and time are in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight import formatting, summary
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.ledger import Ledger, Totals
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import PLACE_WIDTH, on_phone
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import rows as measured_rows

_MOST_TYPES = 10
_BAR, _GAP = 12, 8
"""Heights, in pixels."""
_REST = "the rest"
_MOST_NAMED = 4
_HINT = "Click a quantity in the legend to see it alone."

Number = int | float


@dataclass(frozen=True)
class _ShareQuantity:
    name: str
    colour: str
    write: Any


_FLOPS = _ShareQuantity("FLOPs", COLOURS[0], whole_count)
_BYTES = _ShareQuantity("compulsory bytes", COLOURS[5], whole_bytes)
_DRAM = _ShareQuantity("DRAM bytes", COLOURS[2], whole_bytes)
_TIME = _ShareQuantity("time", COLOURS[1], seconds)

Amounts = dict[str, dict[str, Number]]
"""By type, then by quantity; unknown ones are absent."""


def shares_chart(ledger: Ledger, *, measured: Measured | None = None) -> Chart | None:
    """`measured`: of this ledger, where somebody has it already."""
    amounts, quantities = _amounts(ledger, measured)
    totals = {one.name: sum(row.get(one.name, 0) for row in amounts.values()) for one in quantities}
    shown = [one for one in quantities if totals[one.name]]
    if not shown:
        return None
    every, amounts = amounts, _largest(amounts, shown, totals)
    names = {name: _short(name, amounts) for name in amounts}
    first = next(iter(amounts))
    rows = []
    for name, short in names.items():
        for one in shown:
            value = amounts[name].get(one.name)
            if value is None:
                continue
            text = formatting.percent(value / totals[one.name])
            # What the colours mean is said beside the first bars; nothing beside none.
            said = f"{text} of {one.name}" if name == first else text if value else ""
            rows.append(
                {
                    "type": short,
                    "whole": name,
                    "quantity": one.name,
                    "share": value / totals[one.name],
                    "text": text,
                    "said": said,
                    "amount": one.write(value),
                }
            )
    spec = _drawn(rows, list(names.values()), shown).to_dict()
    note = f"{_note(shown, ledger)}{_unknown(every, shown)}"
    caption = f"Each bar is a type's part of the whole step, so that bars of one colour add up to 100%. {note}"
    table = replace(_table(amounts, shown, totals), note=note)
    return Chart("shares", "Shares by type of layer", caption, spec, table, hint=_HINT)


def _short(name: str, names: Iterable[str]) -> str:
    """Without what all ops are called, unless another type is called so."""
    short = " + ".join(part.removeprefix("aten::").removeprefix("_scaled_dot_product_") for part in name.split(" + "))
    return name if short in names else short


def _amounts(ledger: Ledger, measured: Measured | None) -> tuple[Amounts, list[_ShareQuantity]]:
    found: Amounts = {}
    if not is_measured(ledger):
        for row in summary.rows(ledger, "type"):
            found[row.name] = _by_formula(row.totals)
        return found, [_FLOPS, _BYTES]
    for one in measured_rows(measured or Measured(ledger), "type"):
        counted = {_DRAM.name: one.sums.dram_bytes, _TIME.name: one.sums.time_s}
        known = {name: value for name, value in counted.items() if value is not None}
        found[one.name] = _by_formula(one.estimate.totals) | known
    return found, [_TIME, _FLOPS, _BYTES, _DRAM]


def _by_formula(totals: Totals) -> dict[str, Number]:
    """None of ops without a formula is not known: nought beside them says nothing."""
    found: dict[str, Number] = {_FLOPS.name: totals.flops, _BYTES.name: totals.bytes}
    return {name: value for name, value in found.items() if value or not totals.uncounted}


def _largest(amounts: Amounts, shown: Sequence[_ShareQuantity], totals: dict[str, Number]) -> Amounts:
    """The types with the largest shares of anything, by the first quantity; what is left together."""

    def most(name: str) -> float:
        return max(amounts[name].get(one.name, 0) / totals[one.name] for one in shown)

    kept = sorted(amounts, key=most, reverse=True)
    rest = kept[_MOST_TYPES:] if len(kept) > _MOST_TYPES + 1 else []
    kept = [name for name in kept if name not in rest]
    kept.sort(key=lambda name: amounts[name].get(shown[0].name, 0), reverse=True)
    found = {name: amounts[name] for name in kept}
    if rest:
        label = f"{_REST}: {len(rest)} types"
        known = {one.name: [amounts[name][one.name] for name in rest if one.name in amounts[name]] for one in shown}
        found[label] = {name: sum(values) for name, values in known.items() if values}
    return found


def _drawn(rows: Sequence[dict[str, Any]], types: Sequence[str], shown: Sequence[_ShareQuantity]) -> vl.Drawing:
    names = [one.name for one in shown]
    picked = vl.picked("shares_quantity", fields=["quantity"], bind="legend")
    y = vl.field(
        "type:N",
        sort=list(types),
        title=None,
        axis=dict(domain=False, ticks=False, grid=False, labelLimit=180),
        scale=dict(paddingInner=_GAP / (_GAP + _BAR * len(names)), paddingOuter=0.1),
    )
    offset = vl.field("quantity:N", sort=names, scale=dict(domain=names))
    legend = dict(orient="top", symbolType="square", columns=on_phone(2, 4))
    colours = dict(domain=names, range=[one.colour for one in shown])
    colour = vl.field("quantity:N", title=None, sort=names, legend=legend, scale=colours)
    opacity = vl.either(picked, 1, 0.12)
    most = max(row["share"] for row in rows)
    ticks = [step / 10 for step in range(0, 11, 1 if most < 0.5 else 2) if step / 10 <= 1.1 * most]
    x = vl.field(
        "share:Q",
        axis=dict(title="share of the step", format="%", values=ticks),
        scale=dict(domain=[0, 1.25 * most], nice=False),
    )
    tips = vl.tips(whole="type", quantity="quantity", text="share", amount="of it")
    bars = (
        vl.view(rows)
        .mark("bar", cornerRadiusEnd=1.5)
        .encode(x=x, y=y, yOffset=offset, color=colour, opacity=opacity, tooltip=tips)
        .add_params(picked)
    )
    wide = f"{PLACE_WIDTH} > 560 || !datum.said ? datum.said : datum.text"
    text = (
        vl.view(rows)
        .calculate(shown=wide)
        .mark("text", align="left", dx=4, fontSize=10)
        .encode(x=x, y=y, yOffset=offset, text=vl.field("shown:N"), opacity=opacity)
    )
    return vl.layer(bars, text).properties(width=WIDTH, height=len(types) * (_BAR * len(names) + _GAP))


def _note(shown: Sequence[_ShareQuantity], ledger: Ledger) -> str:
    parts = ["FLOPs (matrix work) and compulsory bytes are by formula."]
    if _DRAM in shown:
        parts.append("DRAM bytes were counted.")
    if _TIME in shown:
        clock = "host clock around each op" if ledger.header.target == "cpu" else "durations of the kernels"
        parts.append(f"Time is the sum of the {clock}.")
    parts.append("A type with a larger share of the time than of FLOPs is slow for its work: look at its bytes.")
    return " ".join(parts if _TIME in shown else parts[:-1])


def _unknown(amounts: Amounts, shown: Sequence[_ShareQuantity]) -> str:
    """What of which type nobody knows, in a sentence."""
    said = []
    for one in shown:
        without = [_short(name, amounts) for name, values in amounts.items() if one.name not in values]
        if without:
            more = f" and {len(without) - _MOST_NAMED} more" if len(without) > _MOST_NAMED else ""
            said.append(f"{one.name} of {', '.join(without[:_MOST_NAMED])}{more}")
    return f" Not known, and in no sum: {'; '.join(said)}." if said else ""


def _table(amounts: Amounts, shown: Sequence[_ShareQuantity], totals: dict[str, Number]) -> Table:
    columns = [column("type")]
    for place, one in enumerate(shown):
        columns.append(Column(one.name, one.write, optional=place))
        columns.append(Column(f"of {one.name}", formatting.percent, raw=f"share of {one.name}"))
    rows: list[tuple[Any, ...]] = [
        (name, *(cell for one in shown for cell in _cells(values.get(one.name), totals[one.name])))
        for name, values in amounts.items()
    ]
    rows.append(("total", *(cell for one in shown for cell in (totals[one.name], 1.0))))
    return Table("", tuple(columns), tuple(rows), frozenset({len(rows) - 1}))


def _cells(value: Number | None, whole: Number) -> tuple[Number | None, float | None]:
    return value, None if value is None else value / whole
