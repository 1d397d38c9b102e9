"""Host and GPU over the time of a step, lane by lane, with a strip below to zoom into a part of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import seconds
from rooflight.ledger import Ledger
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import PLACE_WIDTH, on_phone, si_axis
from rooflight.reporting.charts.step_lanes import LAUNCHES, MODULES, OPS, PHASES, Lanes, LaneSlice, lanes_of
from rooflight.reporting.columns import column
from rooflight.reporting.sections.op_families import FAMILIES
from rooflight.reporting.table import Column, Table
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import wall_s

_LANE, _STRIP = 38, 34
"""Heights, in pixels."""
_COLOURS = dict(zip(FAMILIES, COLOURS, strict=True))
_HINT = "Drag over the strip below to zoom, double-click it to see all; click a family in the legend to see it alone."
_ROOM = 6.4
"""Pixels of a letter."""


def lanes_chart(ledger: Ledger, *, measured: Measured | None = None) -> Chart | None:
    """`measured`: of this ledger, where somebody has it already."""
    lanes = lanes_of(ledger, pixels=WIDTH)
    if lanes is None or not lanes.span_ns:
        return None
    window = vl.picked("lanes_window", "interval", encodings=["x"])
    width = WIDTH - 90  # the names of lanes stand beside
    said = "time since the step's first event" if lanes.placed else "time, one after the other"
    axis = si_axis(said, "s", ticks=8)
    x = vl.field("start:Q", axis=axis, scale=dict(domain=window.reference, nice=False))
    y = vl.field(
        "lane:N",
        sort=list(lanes.names),
        title=None,
        scale=dict(domain=list(lanes.names), paddingInner=0.22, paddingOuter=0.1),
        axis=dict(domain=False, ticks=False, grid=False, labelLimit=120),
    )
    top = vl.layer(*_around(lanes, x, y, width), *_work(lanes, x, y)).properties(
        width=width, height=_LANE * len(lanes.names)
    )
    made = vl.vconcat(top, _overview(lanes, window, width), spacing=6).resolve_scale(x="independent")
    title = (
        "The ops of the step in time"
        if not lanes.on_gpu
        else ("Host and GPU over the step" if lanes.placed else "The kernels of the step, end to end")
    )
    note = _note(lanes, wall_s(measured or Measured(ledger)))
    table = replace(_table(lanes), note=note)
    return Chart("lanes", title, _caption(lanes, note), made.to_dict(), table, hint=_HINT)


def _around(lanes: Lanes, x: vl.Spec, y: vl.Spec, width: int) -> list[vl.Drawing]:
    """Phases and modules: grey, told apart by shade and name."""
    rows, turn = [], {PHASES: 0, MODULES: 0}
    for one in lanes.slices:
        if one.lane not in turn:
            continue
        turn[one.lane] += 1
        part = (one.end_ns - one.start_ns) / lanes.span_ns
        text = _fitting(one.name, part * width)
        rows.append(
            {
                "lane": one.lane,
                "start": one.start_ns / 1e9,
                "end": one.end_ns / 1e9,
                "name": one.name,
                "phase": one.phase,
                "time": seconds((one.end_ns - one.start_ns) / 1e9),
                "text": text,
                "needs": round(_needed(text) / part) + WIDTH - width,
                "shade": 0.2 + 0.18 * (turn[one.lane] % 2),
            }
        )
    tips = [vl.field("name:N"), vl.field("phase:N"), vl.field("time:N")]
    blocks = (
        vl.view(rows)
        .mark("rect", style="soft", clip=True)
        .encode(x=x, x2=vl.field("end"), y=y, opacity=vl.field("shade:Q", scale=None, legend=None), tooltip=tips)
    )
    names = (
        vl.view(rows)
        .mark("text", align="left", dx=3, fontSize=10, clip=True)
        .encode(
            x=x,
            y=y,
            text=vl.field("text:N"),
            tooltip=tips,
            opacity=vl.either(f"datum.needs <= {PLACE_WIDTH}", 1, 0),
        )
    )
    return [blocks, names]


def _fitting(name: str, room: float) -> str:
    """As much of a path as there is room for, its end first."""
    parts = name.split(".")
    tries = [".".join(parts[start:]) for start in range(len(parts))]
    return next((text for text in tries if _needed(text) < room), "")


def _needed(text: str) -> float:
    """Pixels."""
    return _ROOM * len(text) + 5


def _work(lanes: Lanes, x: vl.Spec, y: vl.Spec) -> list[vl.Drawing]:
    """Launches and kernels (or ops), by family."""
    rows = [_row(one) for one in lanes.slices if one.lane not in (PHASES, MODULES)]
    shown = [family for family in FAMILIES if any(row["family"] == family for row in rows)]
    picked = vl.picked("lanes_family", fields=["family"], bind="legend")
    colour = vl.field(
        "family:N",
        title=None,
        sort=shown,
        legend=dict(orient="top", columns=on_phone(2, 4)),
        scale=dict(domain=shown, range=[_COLOURS[name] for name in shown]),
    )
    names = ("name", "family", "op", "module", "phase", "time")
    blocks = (
        vl.view(rows)
        .mark("rect", clip=True)
        .encode(
            x=x,
            x2=vl.field("end"),
            y=y,
            color=colour,
            opacity=vl.either(picked, 1, 0.07),
            tooltip=vl.tips(**{name: name for name in names}, from_="begins at"),
        )
        .add_params(picked)
    )
    return [blocks]


def _row(one: LaneSlice) -> dict[str, Any]:
    time = seconds(one.busy_ns / 1e9)
    if one.count > 1:
        time = f"{time} in {one.count} pieces, drawn as one"
    return {
        "lane": one.lane,
        "start": one.start_ns / 1e9,
        "end": one.end_ns / 1e9,
        "name": one.name,
        "family": one.family,
        "op": one.op,
        "module": one.module,
        "phase": one.phase,
        "time": time,
        "from": seconds(one.start_ns / 1e9),
    }


def _overview(lanes: Lanes, window: vl.Param, width: int) -> vl.Drawing:
    """The whole step, always: how busy the GPU is, where that is known, and where a part of it can be picked."""
    x = vl.field(
        "start:Q", axis=si_axis("the whole step", "s", ticks=8), scale=dict(domain=[0, lanes.span_ns / 1e9], nice=False)
    )
    phases = [
        {"start": one.start_ns / 1e9, "end": one.end_ns / 1e9, "phase": one.phase, "shade": 0.12 + 0.12 * (number % 2)}
        for number, one in enumerate(one for one in lanes.slices if one.lane == PHASES)
    ]
    layers: list[vl.Drawing] = [
        vl.view(phases)
        .mark("rect", style="soft")
        .encode(x=x, x2=vl.field("end"), opacity=vl.field("shade:Q", scale=None, legend=None))
    ]
    wide = lanes.span_ns / 1e9 / max(1, len(lanes.busy))
    busy = [{"start": place * wide, "busy": value} for place, value in enumerate(lanes.busy)]
    label = "datum.value ? 'busy 100%' : '0%'"
    axis = dict(title=None, values=[0, 1], labelExpr=label, grid=False, labelBaseline="middle")
    if busy:
        busy.append({"start": lanes.span_ns / 1e9, "busy": lanes.busy[-1]})  # so that the last one has a width, too
        layers.append(
            vl.view(busy)
            .mark("area", style="soft", interpolate="step-after", opacity=0.75)
            .encode(x=x, y=vl.field("busy:Q", axis=axis, scale=dict(domain=[0, 1])))
        )
    layers[-1] = layers[-1].add_params(window)
    return vl.layer(*layers).properties(width=width, height=_STRIP)


# --- in words ---


def _note(lanes: Lanes, wall: float | None) -> str:
    """What is true of the numbers alone, too."""
    if not lanes.on_gpu:
        return "A step on a CPU: the time of each op is that of the host clock around it."
    if lanes.busy_ns is None:
        return "" if wall is None else f"By the clock a step takes {seconds(wall)}."
    span, busy = lanes.span_ns / 1e9, lanes.busy_ns / 1e9
    works = f"The GPU works for {seconds(busy)} of the {seconds(span)} shown ({formatting.percent(busy / span)})."
    if wall is None:
        return works
    return f"{works} This is the step under the profiler; by the clock, without it, a step takes {seconds(wall)}."


def _caption(lanes: Lanes, note: str) -> str:
    parts = []
    if not lanes.on_gpu:
        parts.append("Ops are laid end to end.")
    elif lanes.busy_ns is None:
        parts.append(
            "Some kernels of this recording have no start time: they are laid end to end in their order, so idle "
            "time between them does not show. The colour is the family of the op; phases and modules are drawn "
            "above their kernels."
        )
    else:
        parts.append(
            "Kernels are drawn when they ran, by the profiler, coloured by the family of their op; gaps are idle "
            "time. Phases and modules are drawn above their kernels."
        )
    parts += [note] if note else []
    if lanes.has_launches:
        parts.append("Launches are drawn when the host called them.")
    elif lanes.on_gpu:
        parts.append("This recording has no launch times, so there is no lane of launches.")
    if lanes.drawn < lanes.kernels:
        parts.append(f"{lanes.kernels:,} slices are drawn as {lanes.drawn:,}: neighbours too thin to be seen are one.")
    if lanes.ranks > 1:
        parts.append(f"The first of {lanes.ranks} ranks.")
    return " ".join(parts)


def _table(lanes: Lanes) -> Table:
    """Each lane by family: how many slices, how long, and which part of the time drawn."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for one in lanes.slices:
        what = one.family or (one.phase if one.lane == PHASES else "")
        if what:
            sums[one.lane, what][0] += one.count
            sums[one.lane, what][1] += one.busy_ns or one.end_ns - one.start_ns
    order = {name: place for place, name in enumerate(lanes.names)}
    found: Sequence[tuple[tuple[str, str], list[int]]] = sorted(
        sums.items(), key=lambda entry: (order[entry[0][0]], -entry[1][1])
    )
    rows = tuple((lane, what, count, ns / 1e9, ns / lanes.span_ns) for (lane, what), (count, ns) in found)
    of = "ops" if OPS in lanes.names else "kernels, launches" if LAUNCHES in lanes.names else "kernels"
    columns = (
        Column("lane", right=False),
        column("what"),
        Column(f"{of}, stretches", formatting.exact),
        column("time_s", heading="time"),
        Column("of the time", formatting.percent),
    )
    return Table("", columns, rows)
