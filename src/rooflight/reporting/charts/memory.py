"""Allocated memory over the step: by category as predicted, and the allocator's own line where it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import altair as alt

from rooflight.hardware.device import Device
from rooflight.ledger import Ledger
from rooflight.measured import Measured, is_measured
from rooflight.memory.result import Memory
from rooflight.reporting.charts.axes import PLACE_WIDTH, on_phone, si_axis
from rooflight.reporting.charts.chart import WIDTH, Chart
from rooflight.reporting.charts.drawing import inline, unchecked
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
from rooflight.reporting.charts.theme import COLOURS
from rooflight.reporting.table import Column, Label, Table
from rooflight.reporting.written import cut
from rooflight.units import whole_bytes

__all__ = ["memory_chart", "peak_tenants_table", "predicted_memory"]

_HEIGHT = 300
_STRIP = (_HEIGHT + 4, _HEIGHT + 20)
"""Of the phases, in pixels, between the picture and its axis."""
_MOST_PHASES = 8
_HINT = "Click a category in the legend to see it alone, shift-click for several."

_COLOURS = dict(zip(LAYERS, (COLOURS[place] for place in (0, 6, 1, 7, 2, 5, 4, 3)), strict=True))


@unchecked
def memory_chart(ledger: Ledger, *, on: Device | None = None, memory: Memory | None = None) -> Chart | None:
    """`on`: which device it is predicted for, where the ledger names none. `memory`: as it was predicted for that, with
    its timeline, where that is known already."""
    memory = memory or predicted_memory(ledger, on)
    course = course_of(memory) if memory is not None else []
    line = measured_line(ledger)
    if not course and not line:
        return None
    count = len(ledger.ops)
    highest = max([sum(row["bytes"].values()) for row in course] + [row["measured"] for row in line])
    layers: list[Any] = []
    if memory is not None and course:
        layers += _areas(course, ledger, count)
        layers += _peak(memory, ledger, count)
    if line:
        layers += _line(line, count)
    layers += _phases(ledger, count)
    scale = alt.Scale(domain=[0, 1.12 * highest], nice=False)
    top = alt.layer(*layers).encode(y=alt.Y(scale=scale)).properties(width=WIDTH, height=_HEIGHT)
    predicted = predicted_for(ledger, on)
    return Chart("memory", "Memory over the step", _caption(ledger, memory, course, line, predicted=predicted), top,
                 _table(ledger, memory, course, line, predicted=predicted), hint=_HINT if course else "")  # fmt: skip


# --- what is drawn ---


def _x(count: int, field: str = "op") -> alt.X:
    axis = alt.Axis(
        title="op of the step, in its order", offset=24, grid=False, format=",d", tickMinStep=1, tickCount=12
    )
    return alt.X(f"{field}:Q", axis=axis, scale=alt.Scale(domain=[0, count], nice=False))


def _y(field: str = "bytes") -> alt.Y:
    return alt.Y(f"{field}:Q", axis=si_axis("allocated", "B"), stack=None)


def _areas(course: Sequence[Row], ledger: Ledger, count: int) -> list[Any]:
    shown = [name for name in LAYERS if any(row["bytes"][name] for row in course)]
    ops = ledger.ops
    told = ["allocated", *shown[::-1]]
    rows = [
        {"op": row["start"], "end": row["end"], "name": _named(ledger, row["op"]), "phase": ops[row["op"]].phase,
         "texts": [whole_bytes({"allocated": sum(row["bytes"].values()), **row["bytes"]}[name]) for name in told]}
        for row in course
    ]  # fmt: skip
    heights = [{"op": row["start"], **{name: row["bytes"][name] for name in shown}} for row in course]
    heights.append({**heights[-1], "op": count})  # so that the last op has a width, too
    listed = ", ".join(f"'{name}'" for name in shown)
    picked = alt.selection_point(fields=["category"], bind="legend", name="memory_category")
    colour = alt.Color("category:N", title=None, sort=shown[::-1],
                       scale=alt.Scale(domain=shown, range=[_COLOURS[name] for name in shown]),
                       legend=alt.Legend(orient="top", columns=on_phone(2, 4), symbolType="square"))  # fmt: skip
    areas = (
        alt.Chart(inline(heights))
        .transform_fold([*shown], as_=["category", "bytes"])
        .transform_filter(picked)
        .transform_calculate(rank=f"indexof([{listed}], datum.category)")
        .mark_area(interpolate="step-after", opacity=0.78, line={"strokeWidth": 0.6, "opacity": 1})
        .encode(x=_x(count), y=alt.Y("bytes:Q", axis=si_axis("allocated", "B"), stack="zero"), color=colour,
                order=alt.Order("rank:Q"))
        .add_params(picked)
    )  # fmt: skip
    hover = alt.selection_point(on="pointerover", clear="pointerout", fields=["op"], empty=False, name="memory_op")
    columns = (
        alt.Chart(inline(rows))
        .transform_calculate(**{f"w{number}": f"datum.texts[{number}]" for number in range(len(told))})
        .mark_rect(style="soft")
        .encode(
            x=_x(count), x2=alt.X2("end:Q"),
            opacity=alt.OpacityValue(**alt.when(hover).then(alt.value(0.25)).otherwise(alt.value(0))),
            tooltip=[alt.Tooltip("name:N", title="op"), alt.Tooltip("phase:N"),
                     *(alt.Tooltip(f"w{number}:N", title=name) for number, name in enumerate(told))],
        )
        .add_params(hover)
    )  # fmt: skip
    labels = (
        alt.Chart(inline(_labels(course, shown)))
        .mark_text(fontSize=11)
        .encode(
            x=_x(count), y=_y(), text=alt.Text("text:N"),
            # A category alone lies elsewhere.
            opacity=alt.OpacityValue(
                **alt.when("length(data('memory_category_store')) == 0").then(alt.value(1)).otherwise(alt.value(0))
            ),
        )
    )  # fmt: skip
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


def _peak(memory: Memory, ledger: Ledger, count: int) -> list[Any]:
    peak = memory.peak
    text = f"peak {whole_bytes(memory.peak_allocated_bytes)}: {_named(ledger, peak.op)}"
    data = inline([{"op": peak.op, "bytes": memory.peak_allocated_bytes, "text": text}])
    right = peak.op > count / 2
    point = alt.Chart(data).mark_point(shape="triangle-down", style="ink", size=70, yOffset=-6, filled=False,
                                       strokeWidth=1.6).encode(x=_x(count), y=_y(),
                                                               tooltip=alt.Tooltip("text:N"))  # fmt: skip
    label = alt.Chart(data).mark_text(
        align="right" if right else "left", dx=-9 if right else 9, dy=-8, limit=alt.ExprRef(f"0.36 * {PLACE_WIDTH}")
    ).encode(x=_x(count), y=_y(), text=alt.Text("text:N"))  # fmt: skip
    return [point, label]


def _line(line: Sequence[Row], count: int) -> list[Any]:
    rows = [{"op": row["op"], "bytes": row["measured"], "side": "measured"} for row in line]
    legend = alt.Legend(orient="top", title=None, symbolType="stroke", symbolSize=300)
    steps = alt.Chart(inline(rows)).mark_line(
        interpolate="step-after", style="ink", strokeWidth=1.4
    ).encode(x=_x(count), y=_y(), strokeDash=alt.StrokeDash("side:N", legend=legend))  # fmt: skip
    return [steps]


def _phases(ledger: Ledger, count: int) -> list[Any]:
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
    data = inline(rows[:MOST_PLACES])
    strip = alt.Chart(data).mark_rect(style="soft").encode(
        x=_x(count), x2=alt.X2("end:Q"), y=alt.value(_STRIP[0]), y2=alt.value(_STRIP[1]),
        opacity=alt.Opacity("shade:Q", scale=None), tooltip=alt.Tooltip("phase:N"),
    )  # fmt: skip
    names = (
        alt.Chart(data)
        .mark_text(align="left", dx=4, fontSize=10)
        .encode(x=_x(count), y=alt.value(sum(_STRIP) / 2), text=alt.Text("text:N"))
    )
    return [strip, names]


def _named(ledger: Ledger, index: int) -> str:
    op = ledger.ops[index]
    return f"{cut(op.packet.removeprefix('aten::'), 40)} of {cut(op.module or ledger.header.model, 40)}"


# --- in words ---


def _caption(
    ledger: Ledger, memory: Memory | None, course: Sequence[Row], line: Sequence[Row], *, predicted: str
) -> str:
    parts = []
    if memory is not None and course:
        parts.append("Coloured: bytes in tensors after each op, by category, as torch's allocator hands them out in a "
                     f"step after the first; {predicted}, from the trace, by replaying its allocations. Workspace is "
                     "what an op borrows while it runs. The triangle marks the op with the most.")  # fmt: skip
        if not is_of_this_course(memory):
            parts.append("That peak is the first step's, in which the optimizer's state is made.")
    if line:
        parts.append("Line: what the allocator said after each op of the measured step, with all that the process "
                     "held before it.")  # fmt: skip
        ranks = len({op.rank for op in ledger.ops})
        if ranks > 1:
            parts.append(f"It is that of the first of {ranks} ranks; the table has all.")
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
    ledger: Ledger, memory: Memory | None, course: Sequence[Row], line: Sequence[Row], *, predicted: str
) -> Table:
    """At the ends of the phases and at the peak; measured where the allocator was asked."""
    known = Measured(ledger).timeline.moments if line else ()
    after = {moment.index: moment.after_bytes for moment in known}
    at = _moments(ledger, after)
    timeline = memory.timeline if memory is not None and course else None
    shown = [name for name in LAYERS if any(row["bytes"][name] for row in course)]
    rows: list[tuple[Any, ...]] = []
    for index, where in at.items():
        split = by_layer(split_at(timeline, index)) if timeline is not None else {}
        if split:
            split["workspace"] = 0  # it is given back when the op ends
        rows.append((where, sum(split.values()) if split else None, *(split.get(name) for name in shown),
                     after.get(index)))  # fmt: skip
    emphasised = frozenset[int]()
    if memory is not None:
        split = by_layer(memory.peak.split)
        peak = Label(f"peak: {_named(ledger, memory.peak.op)}", "at the peak")
        step = Measured(ledger).step.get("peak_allocated_bytes") if is_measured(ledger) else None
        rows.append((peak, memory.peak_allocated_bytes, *(split[name] for name in shown), step and step.value))
        emphasised = frozenset({len(rows) - 1})
    columns = [Column("memory", right=False), Column(f"allocated, {predicted}", whole_bytes, raw="allocated_bytes")]
    columns += [Column(name, whole_bytes, optional=number + 1) for number, name in enumerate(shown)]
    columns.append(Column("measured", whole_bytes, raw="measured_bytes"))
    kept = [i for i in range(len(columns)) if i == 0 or any(row[i] is not None for row in rows)]
    return Table("", tuple(columns[i] for i in kept), tuple(tuple(row[i] for i in kept) for row in rows), emphasised)
