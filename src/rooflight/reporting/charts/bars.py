"""Bars of any quantity over models and devices: parameters, FLOPs, memory, times, or one over another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, Literal

from rooflight.errors import BadInput
from rooflight.formatting import quotient, seconds, whole_bytes, whole_count
from rooflight.metrics import METRICS
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import BAR, colours, grouped_rows, legend_on_top, on_phone, si_axis
from rooflight.reporting.charts.step_points import ReportedStep, axes_apart, names_of
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table, says_nothing, table_of
from rooflight.study.cell import QUANTITIES, Side
from rooflight.study.hypotheses.amount import RowAmount, amount
from rooflight.units import BYTE, FLOP, SECOND

BarKind = Side | Literal["recorded"] | None
"""What a bar's number is; `None`: a calculation that says itself of which kinds it is."""
_GAP = 12
_FULL: dict[BarKind, float] = {"measured": 1.0, "recorded": 1.0, None: 0.85, "predicted": 0.45, "estimated": 0.2}
_DASHES: dict[BarKind, list[int]] = {"predicted": [4, 2], "estimated": [1, 2]}
"""Of the outlines of bars, where sides are to be told apart."""
_USUAL = ("time", "flops", "bytes", "params")
"""What is drawn where nobody says of what: the first that is known."""
_LETTER = 6.3
_WIDEST_NAMES = 300
"""Pixels for the names of rows."""


@dataclass(frozen=True)
class Bar:
    """One number of one step."""

    name: str
    """The step's, without its device."""
    device: str
    """Empty where all devices have the same."""
    side: BarKind
    amount: float


def usual_amount(steps: Sequence[ReportedStep]) -> str:
    known = {name.partition(".")[0] for step in steps for name in step.row.values}
    return next((name for name in _USUAL if name in known), _USUAL[0])


def bars_chart(steps: Sequence[ReportedStep], of: str) -> Chart:
    """`of`: a quantity, or a calculation with some, as `rooflight.study.hypotheses.amount` reads them."""
    asked = amount(of)
    bars = _bars(steps, asked)
    if not bars:
        known = sorted({name for step in steps for name in step.row.values if not name.startswith("share")})
        raise BadInput(
            "unknown-quantity", f"--of={of}: nothing here knows it; known are {', '.join(known) or 'no numbers at all'}"
        )
    title, write = _written(asked)
    sides = [side for side in _FULL if any(bar.side == side for bar in bars)]
    devices = list(dict.fromkeys(bar.device for bar in bars))
    where = f" on {devices[0]}" if len(devices) == 1 and devices[0] else ""
    chart = _drawn(bars, asked, title, write, sides=sides)
    return Chart(
        "bars",
        f"{title[:1].upper()}{title[1:]}{where}" if asked.quantity is not None else f"{title}{where}",
        _caption(asked, sides, devices),
        chart.to_dict(),
        _table(bars, asked, title, write),
    )


def _bars(steps: Sequence[ReportedStep], asked: RowAmount) -> list[Bar]:
    """What no device changes is told once, and so is what no batch changes, or no other axis."""
    untold = ["on"]
    bars = _told(steps, asked, untold)
    for axis in axes_apart(steps, ("model", "on")):
        fewer = _told(steps, asked, [*untold, axis])
        if len(fewer) < len(bars) and _is_one_each(fewer):
            untold, bars = [*untold, axis], fewer
    anywhere = [replace(bar, device="") for bar in bars]
    if _is_one_each(anywhere) and (len({bar.device for bar in bars}) > 1 or not _is_of_device(asked)):
        bars = anywhere
    return list(dict.fromkeys(bars))


def _told(steps: Sequence[ReportedStep], asked: RowAmount, without: Sequence[str]) -> list[Bar]:
    """The bars of steps that are named without some axes, those that are the same once."""
    bars = (
        Bar(name, step.place, step.origin if side == "measured" else side, float(number))
        for step, name in zip(steps, names_of(steps, without=without), strict=True)
        for side in asked.sides
        if (number := asked.of(step.row, side)) is not None
    )
    return list(dict.fromkeys(bars))


def _is_one_each(bars: Sequence[Bar]) -> bool:
    """Does no name stand for two numbers?"""
    return len({(bar.name, bar.device, bar.side) for bar in bars}) == len(set(bars))


def _is_of_device(asked: RowAmount) -> bool:
    return any(term.side != "estimated" and term.sides != ("estimated",) for term in asked.terms)


def _written(asked: RowAmount) -> tuple[str, Callable[[Any], str]]:
    """What it is called, and how its numbers are written."""
    term = asked.quantity
    if term is not None:
        quantity = QUANTITIES[term.name.partition(".")[0]]
        metric = METRICS[quantity.sides.get(term.side or term.sides[0], next(iter(quantity.sides.values())))]
        title = _TITLES.get(quantity.name, metric.title)
        if term.layer:
            title = f"{title.removesuffix(' of a step').removesuffix(' by a step')} of {term.layer}"
        return title, metric.text
    by_dimension: dict[object, Callable[[Any], str]] = {SECOND: seconds, BYTE: whole_bytes, FLOP: whole_count}
    unit = asked.dimension.name
    plain = quotient if asked.is_quotient else whole_count
    write = by_dimension.get(asked.dimension, (lambda value: f"{whole_count(value)} {unit}") if unit else plain)
    return asked.text, write


_TITLES = {
    "flops": "FLOPs of a step",
    "bytes": "bytes moved by a step",
    "params": "parameters",
    "time": "time of a step",
    "memory": "memory at the peak",
    "reserved": "reserved memory",
    "throughput": "samples per second",
}


def _drawn(
    bars: Sequence[Bar], asked: RowAmount, title: str, write: Callable[[Any], str], *, sides: Sequence[BarKind]
) -> vl.Drawing:
    devices = list(dict.fromkeys(bar.device for bar in bars))
    names = list(dict.fromkeys(bar.name for bar in bars))
    pairs = {(bar.device, bar.side) for bar in bars}
    places = [f"{device} {side}" for device in devices for side in sides if (device, side) in pairs]
    labels = dict(zip(names, _labels(names), strict=True))
    rows = [
        {
            "name": bar.name,
            "label": labels[bar.name],
            "device": bar.device,
            "side": bar.side or "",
            "place": f"{bar.device} {bar.side}",
            "full": _FULL[bar.side] if len(sides) > 1 else _FULL[None],
            "amount": bar.amount,
            "text": write(bar.amount),
        }
        for bar in bars
    ]
    reach = max(abs(bar.amount) for bar in bars) or 1.0
    low = min(0.0, *(bar.amount for bar in bars)) if len(bars) > 1 else min(0.0, bars[0].amount)
    x = vl.field("amount:Q", axis=_axis(asked, title), scale=dict(domain=[low * 1.2, 1.22 * reach], nice=False))
    wide = min(_WIDEST_NAMES, round(_LETTER * max(map(len, labels.values())) + 8))
    y = grouped_rows("label", len(places), gap=_GAP, limit=on_phone(90, wide), sort=None, labelFontSize=11)
    offset = vl.field("place:N", sort=places, scale=dict(domain=places))
    shades = dict(zip(devices, colours(len(devices)), strict=True))
    legend = legend_on_top(devices) if len(devices) > 1 else None
    colour = vl.by_word("device:N", shades, legend=legend)
    dash: dict[str, list[int]] = {side or "": _DASHES.get(side, [1, 0]) if len(sides) > 1 else [1, 0] for side in sides}
    grey = dict(symbolType="square", symbolFillColor="transparent", symbolStrokeColor=COLOURS[-1])
    sides_legend = legend_on_top(list(dash), **grey) if len(sides) > 1 else None
    blocks = vl.mark("bar", rows, strokeWidth=1, cornerRadiusEnd=1.5).encode(
        x=x,
        y=y,
        yOffset=offset,
        color=colour,
        stroke=vl.by_word("device:N", shades, legend=None),
        fillOpacity=vl.field("full:Q", scale=None, legend=None),
        strokeDash=vl.by_word("side:N", dash, sort=list(dash), legend=sides_legend),
        tooltip=vl.tips(name="step", device="device", side="it was", text=title),
    )
    texts = vl.mark("text", rows, align="left", dx=4, fontSize=10.5)
    texts = texts.encode(x=x, y=y, yOffset=offset, text=vl.field("text:N"))
    height = max(60, len(names) * (max(BAR + 4, BAR * len(places)) + _GAP))
    return vl.layer(blocks, texts).properties(width=WIDTH - wide - 30, height=height)


def _labels(names: Sequence[str]) -> list[str]:
    """Names that fit beside their rows and tell them apart: without what all begin with, or cut in the middle."""
    most = int((_WIDEST_NAMES - 8) / _LETTER)
    if max(map(len, names)) <= most:
        return list(names)
    columns = zip(*names, strict=False)
    shared = sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, columns)) if len(names) > 1 else 0
    short = [f"…{name[shared:]}" if shared > 1 else name for name in names]
    head, tail = most // 3, most - most // 3 - 1
    return [name if len(name) <= most else f"{name[:head]}…{name[-tail:]}" for name in short]


def _axis(asked: RowAmount, title: str) -> vl.Spec:
    """SI prefixes for what is counted; ratios and parts of a whole as plain numbers."""
    term = asked.quantity
    base = "" if term is None else QUANTITIES[term.name.partition(".")[0]].unit
    if asked.is_quotient or base in ("part", "percent", "times", "flop/byte"):
        return dict(title=title, format=".0%" if base == "part" else "~g", tickCount=5, grid=True, labelOverlap=True)
    return si_axis(title, asked.dimension.name, tickCount=5)


def _caption(asked: RowAmount, sides: Sequence[BarKind], devices: Sequence[str]) -> str:
    parts = []
    if len(devices) > 1:
        parts.append("Each colour is a device.")
    if len(sides) > 1:
        looks = {"measured": "full bars are measured", "recorded": "full bars are recorded",
                 "predicted": "lighter ones with dashes predicted", "estimated": "the lightest by formula"}  # fmt: skip
        said = ", ".join(looks[side] for side in sides if side is not None)
        parts.append(f"{said[:1].upper()}{said[1:]}.")
    elif sides[0] is not None:
        how = {
            "measured": "Measured.",
            "recorded": "Recorded.",
            "predicted": "Predicted, without running.",
            "estimated": "By formula.",
        }
        parts.append(how[sides[0]])
    about = {METRICS[metric].about for term in asked.terms for metric in _metrics_of(term.name)}
    parts += (
        [f"{asked.text}: {text}." for text in sorted(about)] if asked.quantity is not None and len(about) == 1 else []
    )
    return " ".join(parts)


def _metrics_of(name: str) -> tuple[str, ...]:
    return tuple(QUANTITIES[name.partition(".")[0]].sides.values())


def _table(bars: Sequence[Bar], asked: RowAmount, title: str, write: Callable[[Any], str]) -> Table:
    return table_of(
        (
            (Column("step", right=False), lambda bar: bar.name),
            (column("device"), lambda bar: bar.device or None),
            (Column("it was", right=False, raw="side"), lambda bar: bar.side),
            (Column(title, write, raw=asked.text), lambda bar: bar.amount),
        ),
        bars,
        leave_out=says_nothing,
    )
