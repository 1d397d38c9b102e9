"""The way from A to B as a waterfall: A, a bar for every cause that adds or takes away, what is unexplained, and B."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflight.analysis.comparison.bridge import Bridge
from rooflight.analysis.comparison.bridges import FORMULA_BYTES
from rooflight.analysis.comparison.sides import Comparison
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import named_rows, on_phone, si_axis
from rooflight.reporting.sections.bridge_tables import WRITE, BridgeLine, bridge_lines, signed
from rooflight.reporting.table import Column, Table

_ROW = 21
"""Height of a bar and the gap below it, in pixels."""
_LABELS = 190
_SMALLEST = 0.004
"""Of the larger end: a shorter bar is not seen."""
_MOST = 8
_SMALL_CHANGE, _SEEN = 0.35, 0.05
"""Where the causes are less than the first part of the ends their axis does not begin at 0; it shows at least the
second."""
_ENDS, _MORE, _LESS, _LEFT = COLOURS[0], COLOURS[1], COLOURS[2], COLOURS[7]
_KINDS = {"A and B": _ENDS, "more": _MORE, "less": _LESS, "unexplained": _LEFT}
_UNITS = {"flop": "", "byte": "B", "second": "s"}
_NOT_SAID = frozenset({"target", "cuda", "driver", "math", "settings"})
_WORDS = {"compile": "compiled", "graph": "CUDA graph", "compile+graph": "compiled as a CUDA graph"}
_MOST_SAID = 3
"""Differences that a title names."""
_ORDER = ("time", "DRAM bytes", FORMULA_BYTES, "FLOPs", "memory")


def waterfall_chart(comparison: Comparison) -> Chart | None:
    """A panel for every quantity. `None` where there is none."""
    header, bridges = comparison.a.ledger.header, comparison.bridges
    changed = [
        f"{difference.a} → {difference.b}"
        for difference in comparison.differences()
        if difference.name not in _NOT_SAID
    ]
    title = (
        f"{header.model}, {', '.join(changed)}" if 0 < len(changed) <= _MOST_SAID else f"{header.model}, from A to B"
    )
    drawn = sorted(bridges, key=lambda bridge: _ORDER.index(bridge.quantity))
    if not drawn:
        return None
    panels = [_panel(bridge) for bridge in drawn]
    drawing = vl.vconcat(*panels, spacing=18).resolve_scale(x="independent", y="independent")
    spec = drawing.properties(usermeta=dict(axis=_LABELS + 30)).to_dict()
    broken = [bridge.quantity for bridge in drawn if _begin(_bars(bridge)) > 0]
    note = f" The axis of {' and '.join(broken)} does not begin at 0." if broken else ""
    caption = (
        "From A, at the top, every cause adds (orange) or takes away (green) what its bar is long, until B is reached; "
        f"grey is what no cause explains. Small causes are shown together.{note}"
    )
    return Chart("waterfall", title, caption, spec, _table(drawn))


def _bars(bridge: Bridge) -> list[dict[str, Any]]:
    """With where each begins and ends."""
    bars: list[dict[str, Any]] = []
    reached = 0.0
    lines = [line for line in bridge_lines(bridge, smallest=_SMALLEST, most=_MOST) if _is_drawn(line, bridge)]
    for place, line in enumerate(lines):
        start = 0.0 if line.kind == "end" else reached
        reached = float(line.amount) if line.kind == "end" else reached + line.amount
        kind = "A and B" if line.kind == "end" else "more" if line.amount > 0 else "less"
        text = WRITE[bridge.unit](line.amount) if line.kind == "end" else signed(bridge, line.amount)
        bars.append(
            {
                "name": line.name,
                "start": start,
                "end": reached,
                "low": min(start, reached),
                "high": max(start, reached),
                "kind": "unexplained" if line.kind == "unexplained" else kind,
                "text": text,
                "next": lines[min(place + 1, len(lines) - 1)].name,
                "evidence": line.evidence,
            }
        )
    return bars


def _is_drawn(line: BridgeLine, bridge: Bridge) -> bool:
    return line.kind != "unexplained" or abs(line.amount) > 1e-6 * max(abs(bridge.a), abs(bridge.b))


def _begin(bars: Sequence[dict[str, Any]]) -> float:
    """Where the axis begins: at 0, unless the causes are but a small part of both ends."""
    reached = [float(bar["end"]) for bar in bars]
    low, high = min(reached), max(reached)
    if low <= 0 or high - low >= _SMALL_CHANGE * low:
        return 0.0
    return max(low - max(0.6 * (high - low), _SEEN * low), 0.0)


def _panel(bridge: Bridge) -> vl.Drawing:
    bars = _bars(bridge)
    begin, high = _begin(bars), max(bar["high"] for bar in bars) or 1.0
    shown = [{**bar, "from": max(bar["low"], begin)} for bar in bars]
    domain = [begin, begin + 1.13 * (high - begin)]
    scale = dict(domain=domain, nice=False, zero=False)
    cut = f"; the axis begins at {WRITE[bridge.unit](begin)}" if begin else ""
    axis = si_axis(f"{bridge.what}{cut}", _UNITS[bridge.unit], tickCount=5)
    y = named_rows("name", limit=on_phone(82, _LABELS), sort=None, scale=dict(paddingInner=0.28, paddingOuter=0.15))
    legend = dict(orient="top", symbolType="square", columns=on_phone(2, 4))  # once: panels share their colours
    colour = vl.by_word("kind:N", _KINDS, sort=list(_KINDS), legend=legend)
    x = vl.field("from:Q", axis=axis, scale=scale)
    tips = vl.tips(name="cause", text="amount", evidence="evidence")
    blocks = vl.mark("bar", shown, cornerRadius=1).encode(x=x, x2=vl.field("high"), y=y, color=colour, tooltip=tips)
    links = vl.mark("tick", shown[:-1], thickness=1, style="soft", opacity=0.7, bandSize=_ROW - 3, yOffset=_ROW // 2)
    links = links.encode(x=vl.field("end:Q", axis=axis, scale=scale), y=y)
    texts = vl.mark("text", shown, align="left", dx=5, fontSize=10.5).encode(
        x=vl.field("high:Q", axis=axis, scale=scale), y=y, text=vl.field("text:N")
    )
    title = dict(text=_heading(bridge), fontSize=12, anchor="start", offset=4, frame="group")
    width = WIDTH - _LABELS - 40
    return vl.layer(links, blocks, texts).properties(width=width, height=_ROW * len(bars), title=title)


def _heading(bridge: Bridge) -> str:
    write = WRITE[bridge.unit]
    change = f", {bridge.difference / bridge.a:+.1%}".replace("-", "−") if bridge.a else ""
    quantity = bridge.quantity[:1].upper() + bridge.quantity[1:]
    noise = ", within the spread of the runs" if bridge.is_within_noise else ""
    return f"{quantity}: {write(bridge.a)} → {write(bridge.b)}{change}{noise}"


def _table(bridges: Sequence[Bridge]) -> Table:
    rows = [
        (
            bridge.quantity,
            line.name,
            WRITE[bridge.unit](line.amount) if line.kind == "end" else signed(bridge, line.amount),
        )
        for bridge in bridges
        for line in bridge_lines(bridge)
    ]
    columns = (Column("quantity", right=False), Column("cause", right=False), Column("amount"))
    return Table("", columns, tuple(rows))
