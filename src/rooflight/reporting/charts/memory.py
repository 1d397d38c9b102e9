"""Allocated memory over the step: by category as predicted, and the allocator's own line where it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
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
    count = len(ledger.ops)
    highest = max([sum(row["bytes"].values()) for row in course] + [row["measured"] for row in line])
    layers: list[vl.Drawing] = []
    if memory is not None and course:
        layers += _areas(course, ledger, count)
        layers += _peak(memory, ledger, count)
    if line:
        layers += _line(line, count)
    layers += _phases(ledger, count)
    scale = dict(domain=[0, 1.12 * highest], nice=False)
    top = vl.layer(*layers).encode(y=dict(scale=scale)).properties(width=WIDTH, height=_HEIGHT)
    predicted = predicted_for(ledger, on)
    note = _note(ledger, memory if course else None, predicted=predicted, measured=bool(line))
    caption = _caption(ledger, note, course=bool(course), line=bool(line))
    table = replace(_table(ledger, memory, course, measured, predicted=predicted), note=note)
    return Chart("memory", "Memory over the step", caption, top.to_dict(), table, hint=_HINT if course else "")


# --- what is drawn ---


def _x(count: int, field: str = "op") -> vl.Spec:
    axis = dict(title="op of the step, in its order", offset=24, grid=False, format=",d", tickMinStep=1, tickCount=12)
    return vl.field(f"{field}:Q", axis=axis, scale=dict(domain=[0, count], nice=False))


def _y(field: str = "bytes") -> vl.Spec:
    return vl.field(f"{field}:Q", axis=si_axis("allocated", "B"), stack=None)


def _areas(course: Sequence[Row], ledger: Ledger, count: int) -> list[vl.Drawing]:
    shown = [name for name in LAYERS if any(row["bytes"][name] for row in course)]
    ops = ledger.ops
    told = ["allocated", *shown[::-1]]
    rows = [
        {
            "op": row["start"],
            "end": row["end"],
            "name": _named(ledger, row["op"]),
            "phase": ops[row["op"]].phase,
            "texts": [whole_bytes({"allocated": sum(row["bytes"].values()), **row["bytes"]}[name]) for name in told],
        }
        for row in course
    ]
    heights = [{"op": row["start"], **{name: row["bytes"][name] for name in shown}} for row in course]
    heights.append({**heights[-1], "op": count})  # so that the last op has a width, too
    listed = ", ".join(f"'{name}'" for name in shown)
    picked = vl.picked("memory_category", fields=["category"], bind="legend")
    colour = vl.field(
        "category:N",
        title=None,
        sort=shown[::-1],
        scale=dict(domain=shown, range=[_COLOURS[name] for name in shown]),
        legend=dict(orient="top", columns=on_phone(2, 4), symbolType="square"),
    )
    areas = (
        vl.view(heights)
        .fold(shown, key="category", amount="bytes")
        .filter(picked)
        .calculate(rank=f"indexof([{listed}], datum.category)")
        .mark("area", interpolate="step-after", opacity=0.78, line={"strokeWidth": 0.6, "opacity": 1})
        .encode(
            x=_x(count),
            y=vl.field("bytes:Q", axis=si_axis("allocated", "B"), stack="zero"),
            color=colour,
            order=vl.field("rank:Q"),
        )
        .add_params(picked)
    )
    hover = vl.picked("memory_op", on="pointerover", clear="pointerout", fields=["op"], empty=False)
    columns = (
        vl.view(rows)
        .calculate(**{f"w{number}": f"datum.texts[{number}]" for number in range(len(told))})
        .mark("rect", style="soft")
        .encode(
            x=_x(count),
            x2=vl.field("end"),
            opacity=vl.either(hover, 0.25, 0),
            tooltip=[
                vl.field("name:N", title="op"),
                vl.field("phase:N"),
                *(vl.field(f"w{number}:N", title=name) for number, name in enumerate(told)),
            ],
        )
        .add_params(hover)
    )
    labels = (
        vl.view(_labels(course, shown))
        .mark("text", fontSize=11)
        .encode(
            x=_x(count),
            y=_y(),
            text=vl.field("text:N"),
            # A category alone lies elsewhere.
            opacity=vl.either("length(data('memory_category_store')) == 0", 1, 0),
        )
    )
    return [areas, labels, columns]


def _labels(course: Sequence[Row], shown: Sequence[str]) -> list[Row]:
    """The name of a layer in the middle of the stretch in which it is thick, where there is room for it."""
    highest = max(sum(row["bytes"].values()) for row in course)
    found = []
    for place, name in enumerate(shown):
        thick = [row["bytes"][name] for row in course]
        enough = [position for position, value in enumerate(thick) if value >= 0.7 * max(thick)]
        runs = [[enough[0]]] if enough else []
        for before, after in pairwise(enough):
            runs[-1:] = [[*runs[-1], after]] if after == before + 1 else [runs[-1], [after]]
        widest = max(runs, key=len, default=[])
        row = course[widest[len(widest) // 2]] if widest else {}
        room = len(widest) / len(course) * WIDTH > 7 * len(name)
        if row and room and row["bytes"][name] / highest * _HEIGHT > 13:
            below = sum(row["bytes"][other] for other in shown[:place])
            found.append({"op": row["start"], "bytes": below + row["bytes"][name] / 2, "text": name})
    return found


def _peak(memory: Memory, ledger: Ledger, count: int) -> list[vl.Drawing]:
    peak = memory.peak
    text = f"peak {whole_bytes(memory.peak_allocated_bytes)}: {_named(ledger, peak.op)}"
    data = [{"op": peak.op, "bytes": memory.peak_allocated_bytes, "text": text}]
    right = peak.op > count / 2
    place = {"x": _x(count), "y": _y()}
    point = (
        vl.view(data)
        .mark("point", shape="triangle-down", style="ink", size=70, yOffset=-6, filled=False, strokeWidth=1.6)
        .encode(**place, tooltip=vl.field("text:N"))
    )
    label = (
        vl.view(data)
        .mark(
            "text",
            align="right" if right else "left",
            dx=-9 if right else 9,
            dy=-8,
            limit=vl.expr(f"0.36 * {PLACE_WIDTH}"),
        )
        .encode(**place, text=vl.field("text:N"))
    )
    return [point, label]


def _line(line: Sequence[Row], count: int) -> list[vl.Drawing]:
    rows = [{"op": row["op"], "bytes": row["measured"], "side": "measured"} for row in line]
    legend = dict(orient="top", title=None, symbolType="stroke", symbolSize=300)
    steps = (
        vl.view(rows)
        .mark("line", interpolate="step-after", style="ink", strokeWidth=1.4)
        .encode(x=_x(count), y=_y(), strokeDash=vl.field("side:N", legend=legend))
    )
    return [steps]


def _phases(ledger: Ledger, count: int) -> list[vl.Drawing]:
    """A strip below: where each phase begins and ends."""
    rows: list[Row] = []
    for op in ledger.ops:
        if rows and rows[-1]["phase"] == op.phase:
            rows[-1]["end"] = op.index + 1
        else:
            rows.append({"phase": op.phase, "op": op.index, "end": op.index + 1})
    for number, row in enumerate(rows):
        wide = (row["end"] - row["op"]) / count * WIDTH
        row |= {"text": row["phase"] if wide > 7 * len(row["phase"]) else "", "shade": 0.18 + 0.16 * (number % 2)}
    data = rows[:MOST_PLACES]
    strip = (
        vl.view(data)
        .mark("rect", style="soft")
        .encode(
            x=_x(count),
            x2=vl.field("end"),
            y=vl.value(_STRIP[0]),
            y2=vl.value(_STRIP[1]),
            opacity=vl.field("shade:Q", scale=None),
            tooltip=vl.field("phase:N"),
        )
    )
    names = (
        vl.view(data)
        .mark("text", align="left", dx=4, fontSize=10)
        .encode(x=_x(count), y=vl.value(sum(_STRIP) / 2), text=vl.field("text:N"))
    )
    return [strip, names]


def _named(ledger: Ledger, index: int) -> str:
    op = ledger.ops[index]
    return f"{cut(op.packet.removeprefix('aten::'), 40)} of {cut(op.module or ledger.header.model, 40)}"


# --- in words ---


def _note(ledger: Ledger, memory: Memory | None, *, predicted: str, measured: bool) -> str:
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
    found: dict[int, str] = {}
    ranks = list(dict.fromkeys(op.rank for op in ledger.ops))
    for rank in ranks:
        ops = [op for op in ledger.ops if op.rank == rank]
        whose = f"rank {rank}: " if len(ranks) > 1 else ""
        found[ops[0].index] = f"{whose}after the first op"
        ends = [*[a.index for a, b in pairwise(ops) if a.phase != b.phase][:_MOST_PHASES], ops[-1].index]
        if after:  # nobody asked after a view
            asked = [op.index for op in ops if op.index in after]
            ends = [max((index for index in asked if index <= end), default=end) for end in ends]
        found |= {index: f"{whose}after {ledger.ops[index].phase}" for index in ends}
    return found


def _table(
    ledger: Ledger, memory: Memory | None, course: Sequence[Row], measured: Measured | None, *, predicted: str
) -> Table:
    """At the ends of the phases and at the peak; measured where the allocator was asked."""
    known = () if measured is None else measured.timeline.moments
    after = {moment.index: moment.after_bytes for moment in known}
    at = _moments(ledger, after)
    timeline = memory.timeline if memory is not None and course else None
    shown = [name for name in LAYERS if any(row["bytes"][name] for row in course)]
    rows: list[tuple[Any, ...]] = []
    for index, where in at.items():
        split = by_layer(split_at(timeline, index)) if timeline is not None else {}
        if split:
            split["workspace"] = 0  # it is given back when the op ends
        rows.append(
            (where, sum(split.values()) if split else None, *(split.get(name) for name in shown), after.get(index))
        )
    emphasised = frozenset[int]()
    if memory is not None:
        split = by_layer(memory.peak.split)
        peak = Label(f"peak: {_named(ledger, memory.peak.op)}", "at the peak")
        step = None if measured is None else measured.step.get("peak_allocated_bytes")
        rows.append((peak, memory.peak_allocated_bytes, *(split[name] for name in shown), step and step.value))
        emphasised = frozenset({len(rows) - 1})
    columns = [Column("memory", right=False), column("allocated_bytes", heading=f"allocated, {predicted}")]
    columns += [Column(name, whole_bytes, optional=number + 1) for number, name in enumerate(shown)]
    columns.append(Column("measured", whole_bytes, raw="measured_bytes"))
    shown_columns = [(shown_column, itemgetter(place)) for place, shown_column in enumerate(columns)]
    return replace(table_of(shown_columns, rows, leave_out=is_unknown), emphasised=emphasised)
