"""Which types of layers a step's FLOPs, bytes and time are in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from rooflight import formatting, summary
from rooflight.formatting import seconds, whole_bytes, whole_count
from rooflight.ledger import Ledger, Totals
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import BAR, PLACE_WIDTH, grouped_rows, on_phone
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import rows as measured_rows

_MOST_TYPES = 10
_GAP = 8
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
    totals = {quantity.name: sum(row.get(quantity.name, 0) for row in amounts.values()) for quantity in quantities}
    shown = [quantity for quantity in quantities if totals[quantity.name]]
    if not shown:
        return None
    largest = _largest(amounts, shown, totals)
    names = {name: _short(name, largest) for name in largest}
    rows = _rows(names, largest, shown, totals)
    spec = _drawn(rows, list(names.values()), shown).to_dict()
    note = f"{_note(shown, ledger)}{_unknown(amounts, shown)}"
    caption = f"Each bar is a type's part of the whole step, so that bars of one colour add up to 100%. {note}"
    table = replace(_table(largest, shown, totals), note=note)
    return Chart("shares", "Shares by type of layer", caption, spec, table, hint=_HINT)


def _rows(
    names: Mapping[str, str], amounts: Amounts, shown: Sequence[_ShareQuantity], totals: dict[str, Number]
) -> list[dict[str, Any]]:
    first = next(iter(names))
    rows = []
    for name, quantity in product(names, shown):
        amount = amounts[name].get(quantity.name)
        if amount is None:
            continue
        share = amount / totals[quantity.name]
        text = formatting.percent(share)
        rows.append(
            {
                "type": names[name],
                "whole": name,
                "quantity": quantity.name,
                "share": share,
                "text": text,
                # What the colours mean is said beside the first bars; nothing beside none.
                "said": f"{text} of {quantity.name}" if name == first else text if amount else "",
                "amount": quantity.write(amount),
            }
        )
    return rows


def _short(name: str, names: Iterable[str]) -> str:
    """Without what all ops are called, unless another type is called so."""
    short = " + ".join(part.removeprefix("aten::").removeprefix("_scaled_dot_product_") for part in name.split(" + "))
    return name if short in names else short


def _amounts(ledger: Ledger, measured: Measured | None) -> tuple[Amounts, list[_ShareQuantity]]:
    if not is_measured(ledger):
        return {row.name: _by_formula(row.totals) for row in summary.rows(ledger, "type")}, [_FLOPS, _BYTES]
    amounts: Amounts = {}
    for row in measured_rows(measured or Measured(ledger), "type"):
        counted = {_DRAM.name: row.sums.dram_bytes, _TIME.name: row.sums.time_s}
        seen = {name: value for name, value in counted.items() if value is not None}
        amounts[row.name] = _by_formula(row.estimate.totals) | seen
    return amounts, [_TIME, _FLOPS, _BYTES, _DRAM]


def _by_formula(totals: Totals) -> dict[str, Number]:
    """None of ops without a formula is not known: nought beside them says nothing."""
    sums: dict[str, Number] = {_FLOPS.name: totals.flops, _BYTES.name: totals.bytes}
    return {name: value for name, value in sums.items() if value or not totals.uncounted}


def _largest(amounts: Amounts, shown: Sequence[_ShareQuantity], totals: dict[str, Number]) -> Amounts:
    """The types with the largest shares of anything, by the first quantity; what is left together."""

    def most(name: str) -> float:
        return max(amounts[name].get(quantity.name, 0) / totals[quantity.name] for quantity in shown)

    names = sorted(amounts, key=most, reverse=True)
    few = _MOST_TYPES if len(names) > _MOST_TYPES + 1 else len(names)
    first = sorted(names[:few], key=lambda name: amounts[name].get(shown[0].name, 0), reverse=True)
    largest = {name: amounts[name] for name in first}
    if rest := [amounts[name] for name in names[few:]]:
        sums = {
            quantity.name: sum(row[quantity.name] for row in rest if quantity.name in row)
            for quantity in shown
            if any(quantity.name in row for row in rest)
        }
        largest[f"{_REST}: {len(rest)} types"] = sums
    return largest


def _drawn(rows: Sequence[dict[str, Any]], types: Sequence[str], shown: Sequence[_ShareQuantity]) -> vl.Drawing:
    colours = {quantity.name: quantity.colour for quantity in shown}
    names = list(colours)
    picked = vl.picked("shares_quantity", fields=["quantity"], bind="legend")
    most = max(row["share"] for row in rows)
    ticks = [step / 10 for step in range(0, 11, 1 if most < 0.5 else 2) if step / 10 <= 1.1 * most]
    place = {
        "x": vl.field(
            "share:Q",
            axis=dict(title="share of the step", format="%", values=ticks),
            scale=dict(domain=[0, 1.25 * most], nice=False),
        ),
        "y": grouped_rows("type", len(names), gap=_GAP, limit=180, sort=types),
        "yOffset": vl.field("quantity:N", sort=names, scale=dict(domain=names)),
    }
    legend = dict(orient="top", symbolType="square", columns=on_phone(2, 4))
    colour = vl.by_word("quantity:N", colours, sort=names, legend=legend)
    opacity = vl.either(picked, 1, 0.12)
    tips = vl.tips(whole="type", quantity="quantity", text="share", amount="of it")
    bars = vl.mark("bar", rows, cornerRadiusEnd=1.5).encode(**place, color=colour, opacity=opacity, tooltip=tips)
    wide = f"{PLACE_WIDTH} > 560 || !datum.said ? datum.said : datum.text"
    texts = vl.view(rows).calculate(shown=wide).mark("text", align="left", dx=4, fontSize=10)
    texts = texts.encode(**place, text=vl.field("shown:N"), opacity=opacity)
    height = len(types) * (BAR * len(names) + _GAP)
    return vl.layer(bars.add_params(picked), texts).properties(width=WIDTH, height=height)


def _note(shown: Sequence[_ShareQuantity], ledger: Ledger) -> str:
    parts = ["FLOPs (matrix work) and compulsory bytes are by formula."]
    if _DRAM in shown:
        parts.append("DRAM bytes were counted.")
    if _TIME in shown:
        clock = "host clock around each op" if ledger.header.target == "cpu" else "durations of the kernels"
        parts.append(f"Time is the sum of the {clock}.")
        parts.append("A type with a larger share of the time than of FLOPs is slow for its work: look at its bytes.")
    return " ".join(parts)


def _unknown(amounts: Amounts, shown: Sequence[_ShareQuantity]) -> str:
    """What of which type nobody knows, in a sentence."""
    parts = []
    for quantity in shown:
        without = [_short(name, amounts) for name, values in amounts.items() if quantity.name not in values]
        if without:
            more = f" and {len(without) - _MOST_NAMED} more" if len(without) > _MOST_NAMED else ""
            parts.append(f"{quantity.name} of {', '.join(without[:_MOST_NAMED])}{more}")
    return f" Not known, and in no sum: {'; '.join(parts)}." if parts else ""


def _table(amounts: Amounts, shown: Sequence[_ShareQuantity], totals: dict[str, Number]) -> Table:
    columns = [column("type")]
    for place, quantity in enumerate(shown):
        columns.append(Column(quantity.name, quantity.write, optional=place))
        columns.append(Column(f"of {quantity.name}", formatting.percent, raw=f"share of {quantity.name}"))
    rows: list[tuple[Any, ...]] = []
    for name, values in (*amounts.items(), ("total", totals)):
        row: list[Any] = [name]
        for quantity in shown:
            amount = values.get(quantity.name)
            row += [amount, None if amount is None else amount / totals[quantity.name]]
        rows.append(tuple(row))
    return Table("", tuple(columns), tuple(rows), frozenset({len(rows) - 1}))
