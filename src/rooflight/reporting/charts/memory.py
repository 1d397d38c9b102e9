"""Allocated memory over the step: by category as predicted, and the allocator's own line where it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

from rooflight.formatting import whole_bytes
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger
from rooflight.memory.result import Memory
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import PLACE_WIDTH, on_phone, si_axis
from rooflight.reporting.charts.memory_course import (
    LAYERS,
    MOST_PLACES,
    Row,
    by_layer,
    course_of,
    is_of_this_course,
    measured_line,
    peak_tenants_table,
    predicted_for,
    predicted_memory,
    split_at,
)
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Label, Table, cut, is_unknown, table_of
from rooflight.summary.measured import Measured, is_measured

__all__ = ["memory_chart", "peak_tenants_table", "predicted_memory"]

_HEIGHT = 300
_STRIP = (_HEIGHT + 4, _HEIGHT + 20)
"""Of the phases, in pixels, between the picture and its axis."""
_MOST_PHASES = 8
_HINT = "Click a category in the legend to see it alone, shift-click for several."

_COLOURS = dict(zip(LAYERS, (COLOURS[place] for place in (0, 6, 1, 7, 2, 5, 4, 3)), strict=True))


def memory_chart(
    ledger: Ledger, *, on: Device | None = None, memory: Memory | None = None, measured: Measured | None = None
) -> Chart | None:
    """`on`: which device it is predicted for, where the ledger names none. `memory`: as it was predicted for that, with
    its timeline, and `measured`: of this ledger, where these are known already."""
    memory = memory or predicted_memory(ledger, on)
    course = course_of(memory) if memory is not None else []
    if measured is None and is_measured(ledger):
        measured = Measured(ledger)
    line = measured_line(measured)
    if not course and not line:
        return None
    highest = max([sum(row["bytes"].values()) for row in course] + [row["bytes"] for row in line])
    x = _x(len(ledger.ops))
    layers: list[vl.Drawing] = []
    if memory is not None and course:
        layers += [*_areas(course, ledger, x), *_peak(memory, ledger, x)]
    if line:
        layers.append(_line(line, x))
    layers += _phases(ledger, x)
    scale = dict(domain=[0, 1.12 * highest], nice=False)
    drawing = vl.layer(*layers).encode(y=dict(scale=scale)).properties(width=WIDTH, height=_HEIGHT)
    predicted = predicted_for(ledger, on)
    note = _note(memory if course else None, predicted=predicted, measured=bool(line))
    caption = _caption(ledger, note, course=bool(course), line=bool(line))
    table = replace(_table(ledger, memory, course, measured, predicted=predicted), note=note)
    return Chart("memory", "Memory over the step", caption, drawing.to_dict(), table, hint=_HINT if course else "")


# --- what is drawn ---


def _x(count: int) -> vl.Spec:
    axis = dict(title="op of the step, in its order", offset=24, grid=False, format=",d", tickMinStep=1, tickCount=12)
    return vl.field("op:Q", axis=axis, scale=dict(domain=[0, count], nice=False))


def _y(stack: str | None = None) -> vl.Spec:
    return vl.field("bytes:Q", axis=si_axis("allocated", "B"), stack=stack)


def _shown(course: Sequence[Row]) -> list[str]:
    return [name for name in LAYERS if any(row["bytes"][name] for row in course)]


def _areas(course: Sequence[Row], ledger: Ledger, x: vl.Spec) -> list[vl.Drawing]:
    shown = _shown(course)
    heights = [{"op": row["start"], **{name: row["bytes"][name] for name in shown}} for row in course]
    heights.append({**heights[-1], "op": len(ledger.ops)})  # so that the last op has a width, too
    listed = ", ".join(f"'{name}'" for name in shown)
    picked = vl.picked("memory_category", fields=["category"], bind="legend")
    legend = dict(orient="top", columns=on_phone(2, 4), symbolType="square")
    colour = vl.by_word("category:N", {name: _COLOURS[name] for name in shown}, sort=shown[::-1], legend=legend)
    areas = (
        vl.view(heights)
        .fold(shown, key="category", amount="bytes")
        .filter(picked)
        .calculate(rank=f"indexof([{listed}], datum.category)")
        .mark("area", interpolate="step-after", opacity=0.78, line={"strokeWidth": 0.6, "opacity": 1})
        .encode(x=x, y=_y("zero"), color=colour, order=vl.field("rank:Q"))
        .add_params(picked)
    )
    labels = vl.mark("text", _labels(course, shown), fontSize=11)
    # A category alone lies elsewhere.
    opacity = vl.either("length(data('memory_category_store')) == 0", 1, 0)
    labels = labels.encode(x=x, y=_y(), text=vl.field("text:N"), opacity=opacity)
    return [areas, labels, _columns(course, ledger, x)]


def _columns(course: Sequence[Row], ledger: Ledger, x: vl.Spec) -> vl.Drawing:
    """What is there at each op, for whoever points at it."""
    names = ["allocated", *_shown(course)[::-1]]
    rows = [
        {
            "op": row["start"],
            "end": row["end"],
            "name": _named(ledger, row["op"]),
            "phase": ledger.ops[row["op"]].phase,
            "texts": [whole_bytes({"allocated": sum(row["bytes"].values()), **row["bytes"]}[name]) for name in names],
        }
        for row in course
    ]
    hover = vl.picked("memory_op", on="pointerover", clear="pointerout", fields=["op"], empty=False)
    texts = {f"w{number}": name for number, name in enumerate(names)}
    columns = vl.view(rows).calculate(**{field: f"datum.texts[{field[1:]}]" for field in texts})
    tips = [vl.field("name:N", title="op"), vl.field("phase:N"), *vl.tips(**texts)]
    columns = columns.mark("rect", style="soft")
    return columns.encode(x=x, x2=vl.field("end"), opacity=vl.either(hover, 0.25, 0), tooltip=tips).add_params(hover)


def _labels(course: Sequence[Row], shown: Sequence[str]) -> list[Row]:
    """The name of a layer in the middle of the stretch in which it is thick, where there is room for it."""
    highest = max(sum(row["bytes"].values()) for row in course)
    labels = []
    for place, name in enumerate(shown):
        enough = 0.7 * max(row["bytes"][name] for row in course)
        runs = [list(run) for thick, run in groupby(course, key=lambda row: row["bytes"][name] >= enough) if thick]
        widest = max(runs, key=len)
        row = widest[len(widest) // 2]
        has_room = len(widest) / len(course) * WIDTH > 7 * len(name)
        if has_room and row["bytes"][name] / highest * _HEIGHT > 13:
            below = sum(row["bytes"][other] for other in shown[:place])
            labels.append({"op": row["start"], "bytes": below + row["bytes"][name] / 2, "text": name})
    return labels


def _peak(memory: Memory, ledger: Ledger, x: vl.Spec) -> list[vl.Drawing]:
    op = memory.peak.op
    text = f"peak {whole_bytes(memory.peak_allocated_bytes)}: {_named(ledger, op)}"
    rows = [{"op": op, "bytes": memory.peak_allocated_bytes, "text": text}]
    side = dict(align="right", dx=-9) if op > len(ledger.ops) / 2 else dict(align="left", dx=9)
    look = dict(shape="triangle-down", style="ink", size=70, yOffset=-6, filled=False, strokeWidth=1.6)
    label = vl.mark("text", rows, **side, dy=-8, limit=vl.expr(f"0.36 * {PLACE_WIDTH}"))
    return [
        vl.mark("point", rows, **look).encode(x=x, y=_y(), tooltip=vl.field("text:N")),
        label.encode(x=x, y=_y(), text=vl.field("text:N")),
    ]


def _line(line: Sequence[Row], x: vl.Spec) -> vl.Drawing:
    legend = dict(orient="top", title=None, symbolType="stroke", symbolSize=300)
    steps = vl.mark("line", line, interpolate="step-after", style="ink", strokeWidth=1.4)
    return steps.encode(x=x, y=_y(), strokeDash=vl.field("side:N", legend=legend))


def _phases(ledger: Ledger, x: vl.Spec) -> list[vl.Drawing]:
    """A strip below: where each phase begins and ends."""
    rows: list[Row] = []
    start = 0
    for phase, ops in groupby(ledger.ops, key=lambda op: op.phase):
        end = start + len(list(ops))
        wide = (end - start) / len(ledger.ops) * WIDTH
        text = phase if wide > 7 * len(phase) else ""
        rows.append({"phase": phase, "op": start, "end": end, "text": text, "shade": 0.18 + 0.16 * (len(rows) % 2)})
        start = end
    strip = vl.mark("rect", rows[:MOST_PLACES], style="soft")
    names = vl.mark("text", rows[:MOST_PLACES], align="left", dx=4, fontSize=10)
    top, bottom = (vl.value(edge) for edge in _STRIP)
    shade = vl.field("shade:Q", scale=None)
    return [
        strip.encode(x=x, x2=vl.field("end"), y=top, y2=bottom, opacity=shade, tooltip=vl.field("phase:N")),
        names.encode(x=x, y=vl.value(sum(_STRIP) / 2), text=vl.field("text:N")),
    ]


def _named(ledger: Ledger, index: int) -> str:
    op = ledger.ops[index]
    return f"{cut(op.packet.removeprefix('aten::'), 40)} of {cut(op.module or ledger.header.model, 40)}"


# --- in words ---


def _note(memory: Memory | None, *, predicted: str, measured: bool) -> str:
    """What is true of the numbers alone, too."""
    parts = []
    if memory is not None:
        parts.append(
            "Allocated: bytes in tensors after each op, as torch's allocator hands them out in a step after "
            f"the first; {predicted}, from the trace, by replaying its allocations. Workspace is what an op "
            "borrows while it runs."
        )
        if not is_of_this_course(memory):
            parts.append("The peak is the first step's, in which the optimizer's state is made.")
    if measured:
        parts.append(
            "Measured: what the allocator reported after each op of the measured step, including all that the "
            "process held before it."
        )
    return " ".join(parts)


def _caption(ledger: Ledger, note: str, *, course: bool, line: bool) -> str:
    parts = ["Coloured: allocated, by category; the triangle marks the op with the most."] if course else []
    if line:
        parts.append("Line: measured.")
        ranks = len({op.rank for op in ledger.ops})
        if ranks > 1:
            parts.append(f"It is that of the first of {ranks} ranks; the table has all.")
    parts.append(note)
    if len(ledger.ops) > MOST_PLACES:
        parts.append(f"Of each stretch of {len(ledger.ops) / MOST_PLACES:.1f} ops the fullest is drawn.")
    return " ".join(parts)


def _moments(ledger: Ledger, after: Mapping[int, float]) -> dict[int, str]:
    """The ops that the table tells of: the first, and the last of each phase; of several ranks those of each."""
    moments: dict[int, str] = {}
    ranks = list(dict.fromkeys(op.rank for op in ledger.ops))
    for rank in ranks:
        ops = [op for op in ledger.ops if op.rank == rank]
        whose = f"rank {rank}: " if len(ranks) > 1 else ""
        moments[ops[0].index] = f"{whose}after the first op"
        ends = [*[a.index for a, b in pairwise(ops) if a.phase != b.phase][:_MOST_PHASES], ops[-1].index]
        if after:  # nobody asked after a view
            asked = [op.index for op in ops if op.index in after]
            ends = [max((index for index in asked if index <= end), default=end) for end in ends]
        moments |= {index: f"{whose}after {ledger.ops[index].phase}" for index in ends}
    return moments


def _table(
    ledger: Ledger, memory: Memory | None, course: Sequence[Row], measured: Measured | None, *, predicted: str
) -> Table:
    """At the ends of the phases and at the peak; measured where the allocator was asked."""
    after = {} if measured is None else {moment.index: moment.after_bytes for moment in measured.timeline.moments}
    timeline = memory.timeline if memory is not None and course else None
    shown = _shown(course)
    rows: list[tuple[Any, ...]] = []
    for index, where in _moments(ledger, after).items():
        split = by_layer(split_at(timeline, index)) if timeline is not None else {}
        if split:
            split["workspace"] = 0  # it is given back when the op ends
        rows.append((where, sum(split.values()) if split else None, *map(split.get, shown), after.get(index)))
    if memory is not None:
        split = by_layer(memory.peak.split)
        peak = Label(f"peak: {_named(ledger, memory.peak.op)}", "at the peak")
        step = None if measured is None else measured.step.get("peak_allocated_bytes")
        rows.append((peak, memory.peak_allocated_bytes, *map(split.get, shown), step and step.value))
    columns = [Column("memory", right=False), column("allocated_bytes", heading=f"allocated, {predicted}")]
    columns += [Column(name, whole_bytes, optional=number + 1) for number, name in enumerate(shown)]
    columns.append(Column("measured", whole_bytes, raw="measured_bytes"))
    cells = [(column_, itemgetter(place)) for place, column_ in enumerate(columns)]
    return table_of(cells, rows, leave_out=is_unknown, has_total=memory is not None)
