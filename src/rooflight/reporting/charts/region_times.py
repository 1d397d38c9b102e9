"""Where the time of a program's regions goes: each in the one around it, and from one execution to the next."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rooflight.formatting import percent, seconds
from rooflight.ledger import Ledger, Measurement
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import PLACE_WIDTH, colours, panel, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table
from rooflight.summary.region_tree import RegionNode, region_tree, regions_of

_ROW = 34
"""Height of one level, in pixels."""
_MOST_ROOTS = 4
_MOST_COURSES = 8
_FEWEST = 3
"""Executions that a course needs."""
_LETTER = 6.2
_EARLY = 1.15
"""Room above the highest time after the first."""


def parts_chart(ledger: Ledger) -> Chart | None:
    """Regions in each other as bars, one level below the other. `None` where no region has any inside."""
    trees = _trees(region_tree(ledger))
    if not trees:
        return None
    names = list(dict.fromkeys(node.name for tree in trees for node in tree if node.row is not None))
    # Grey is for what lies in no region.
    palette = dict(zip(names, (colour for colour in colours(2 * len(names)) if colour != COLOURS[7]), strict=False))
    panels = [_parts_panel(tree, palette) for tree in trees]
    drawing = vl.vconcat(*panels, spacing=22).resolve_scale(x="independent", y="independent")
    note = "Parts are laid end to end, whenever they ran; grey is what lies in no region."
    caption = f"Below each bar stand the regions directly inside it, as long as their part of its time. {note}"
    spec = (drawing if len(panels) > 1 else panels[0]).to_dict()
    return Chart("regions", "Time of regions", caption, spec, _parts_table(trees, note))


def _trees(nodes: Sequence[RegionNode]) -> list[list[RegionNode]]:
    """Of the outermost ones that have something inside and a time, the longest first."""
    trees: list[list[RegionNode]] = []
    for node in nodes:
        if node.depth == 0:
            trees.append([])
        trees[-1].append(node)
    found = [tree for tree in trees if len(tree) > 1 and _time_s(tree[0].row)]
    return sorted(found, key=lambda tree: -_time_s(tree[0].row))[:_MOST_ROOTS]


def _time_s(row: Measurement | None) -> float:
    """Of one execution, on the clock that its parts were timed by."""
    for name in ("gpu_span_s", "wall_time_s"):
        if row is not None and name in row.quantities:
            return float(row.quantities[name].value)
    return 0.0


def _parts_panel(tree: Sequence[RegionNode], palette: dict[str, str]) -> vl.Drawing:
    root, whole_s = tree[0], _time_s(tree[0].row)
    rows = [_bar(node, whole_s, palette.get(node.name, COLOURS[7])) for node in tree]
    levels = max(node.depth for node in tree) + 1
    what = (
        f"time of the {root.name}" if root.row is not None and root.row.scope == "program" else "time of one execution"
    )
    place = {
        "x": vl.field("start:Q", axis=si_axis(what, "s", tickCount=6), scale=dict(domain=[0, whole_s], nice=False)),
        "x2": vl.field("end"),
        "y": vl.field("top:Q", axis=None, scale=dict(domain=[levels, 0], nice=False)),
        "y2": vl.field("bottom"),
    }
    tips = vl.tips(
        name="region", inside="in", share="part of it", whole="part of all", time="time", executions="executions"
    )
    bars = [row for row in rows if row["covered"]]
    rest = [row for row in rows if not row["covered"]]
    colour, ink = (vl.field(f"{name}:N", scale=None, legend=None) for name in ("colour", "ink"))
    drawn = [vl.mark("rect", bars, cornerRadius=2).encode(**place, color=colour, tooltip=tips)]
    if rest:
        soft = vl.mark("rect", rest, style="soft", cornerRadius=2, opacity=0.18)
        drawn.append(soft.encode(**place, tooltip=tips))
    fits = f"datum.long <= {PLACE_WIDTH} ? datum.label : datum.short <= {PLACE_WIDTH} ? datum.brief : ''"
    y = vl.field("middle:Q", scale=place["y"]["scale"], axis=None)
    for some, look in ((bars, {"color": ink}), (rest, {})):
        if some:
            text = vl.view(some).calculate(said=fits)
            text = text.mark("text", align="left", baseline="middle", dx=6, fontSize=11, style="soft")
            drawn.append(text.encode(x=place["x"], y=y, text=vl.field("said:N"), tooltip=tips, **look))
    return vl.layer(*drawn).properties(width=WIDTH, height=_ROW * levels)


def _bar(node: RegionNode, whole_s: float, colour: str) -> dict[str, Any]:
    time = "" if node.row is None else seconds(_time_s(node.row) or None)
    share = "" if node.share is None else percent(node.share)
    label, brief = f"{node.name}  {share or time}", share if node.row is None else node.name
    return {
        "name": node.name,
        "label": label,
        "brief": brief,
        "colour": colour,
        "ink": _ink(colour),
        "covered": node.row is not None,
        "inside": node.inside or "",
        "share": share,
        "whole": percent(node.width),
        "time": f"{time} an execution" if node.row is not None and node.row.scope == "region" else time,
        "executions": "" if node.row is None else _executions(node.row),
        "start": node.start * whole_s,
        "end": (node.start + node.width) * whole_s,
        "top": node.depth + 0.03,
        "middle": node.depth + 0.5,
        "bottom": node.depth + 0.97,
        # The width of the page from which on there is room for the text.
        "long": _needed(label, node.width),
        "short": _needed(brief, node.width),
    }


def _ink(colour: str) -> str:
    """White on dark bars, and dark on light ones."""
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#ffffff" if 0.30 * red + 0.59 * green + 0.11 * blue < 140 else "#1c1e21"


def _needed(text: str, width: float) -> float:
    return (_LETTER * len(text) + 10) / max(width, 1e-4)


def _executions(row: Measurement) -> str:
    return f"{row.quantities['executions'].value:,}" if "executions" in row.quantities else ""


def _parts_table(trees: Sequence[Sequence[RegionNode]], note: str) -> Table:
    columns = (
        Column("region", right=False),
        Column("in", right=False),
        Column("part of it", percent),
        Column("part of all", percent),
    )
    rows = tuple((node.name, node.inside or "", node.share, node.width) for tree in trees for node in tree)
    return Table("", columns, rows, note=note)


def course_chart(ledger: Ledger) -> Chart | None:
    """The time of every execution, in their order. `None` where no region has a few."""
    rows = {row.name: row for row in regions_of(ledger) if len(row.times_s) >= _FEWEST}
    longest = sorted(rows.values(), key=lambda row: -sum(row.times_s) / len(row.times_s) * _count(row))[:_MOST_COURSES]
    in_order = dict.fromkeys(node.name for node in region_tree(ledger))
    shown = [rows[name] for name in in_order if rows.get(name) in longest]
    if not shown:
        return None
    drawing = vl.concat(*map(_course_panel, shown), columns=2, spacing=28)
    merged = any(_each(row) > 1 for row in shown)
    note = "A point is the median of as many executions beside each other." if merged else "A point is one execution."
    left = len(rows) - len(shown)
    more = f" The {len(shown)} that took longest are shown, {left} more have times." if left else ""
    caption = (
        f"A start that is higher shows what warms up, a slope what drifts. {note} The dashed line is the median; a "
        f"first execution that would dwarf all others is written instead.{more}"
    )
    spec = drawing.resolve_scale(x="independent", y="independent").to_dict()
    return Chart("executions", "Time from execution to execution", caption, spec, _course_table(shown, note))


def _count(row: Measurement) -> int:
    timed = row.quantities.get("executions")
    return len(row.times_s) if timed is None else int(timed.value)


def _each(row: Measurement) -> int:
    """So many executions a point stands for."""
    timed = row.quantities.get("timed_executions")
    return 1 if timed is None else max(1, round(timed.value / len(row.times_s)))


def _points(row: Measurement) -> list[dict[str, Any]]:
    each = _each(row)
    return [
        {"execution": place * each + 1, "which": f"{place * each + 1:,}", "time": time_s, "text": seconds(time_s)}
        for place, time_s in enumerate(row.times_s)
    ]


def _course_panel(row: Measurement) -> vl.Drawing:
    points, middle_s = _points(row), float(row.quantities["wall_time_s"].value)
    high = _EARLY * max(row.times_s[1:])
    first = [] if row.times_s[0] <= high else [{"execution": 1, "text": f"↑ first: {seconds(row.times_s[0])}"}]
    drawn = points[len(first) :]
    x = vl.field(
        "execution:Q",
        axis=dict(title="execution", format=",d", grid=False, tickMinStep=1, tickCount=5),
        scale=dict(domain=[0.5, points[-1]["execution"] + 0.5], nice=False, zero=False),
    )
    y = vl.field("time:Q", axis=si_axis("", "s", tickCount=4), scale=dict(domain=[0, high], nice=False))
    tips = vl.tips(which="execution", text="time")
    dense = len(drawn) > 60
    layers = [
        vl.mark("line", drawn, strokeWidth=1.2, opacity=0.45).encode(x=x, y=y),
        vl.mark("point", drawn, filled=True, size=9 if dense else 26, opacity=0.9).encode(x=x, y=y, tooltip=tips),
        vl.mark("rule", [{"time": middle_s}], strokeDash=[4, 3], opacity=0.8).encode(y=y),
    ]
    if first:
        text = vl.mark("text", first, align="left", baseline="top", dx=4, dy=2, fontSize=11, style="soft")
        layers.append(text.encode(x=x, y=vl.value(0), text=vl.field("text:N")))
    title = vl.mark("text", [{"title": f"{row.name}  {seconds(middle_s)}"}], align="left", dy=-12, fontWeight="bold")
    return panel(*layers, title.encode(x=vl.value(0), y=vl.value(0), text=vl.field("title:N")))


def _course_table(rows: Sequence[Measurement], note: str) -> Table:
    columns = (
        Column("region", right=False),
        column("executions", heading="execution"),
        column("time_s", heading="time"),
    )
    lines = tuple((row.name, point["execution"], point["time"]) for row in rows for point in _points(row))
    return Table("", columns, lines, note=note, telling=40)
