"""Host and GPU over the time of a step, lane by lane, with a strip below to zoom into a part of it."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from rooflight import formatting
from rooflight.formatting import seconds
from rooflight.ledger import Ledger
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import PLACE_WIDTH, named_rows, on_phone, si_axis
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
_LANES_WIDTH = WIDTH - 90
"""The names of lanes stand beside."""


def lanes_chart(ledger: Ledger, *, measured: Measured | None = None) -> Chart | None:
    """`measured`: of this ledger, where somebody has it already."""
    lanes = lanes_of(ledger, pixels=WIDTH)
    if lanes is None or not lanes.span_ns:
        return None
    window = vl.picked("lanes_window", "interval", encodings=["x"])
    title = "time since the step's first event" if lanes.placed else "time, one after the other"
    x = vl.field("start:Q", axis=si_axis(title, "s", tickCount=8), scale=dict(domain=window.reference, nice=False))
    scale = dict(domain=list(lanes.names), paddingInner=0.22, paddingOuter=0.1)
    place = {"x": x, "x2": vl.field("end"), "y": named_rows("lane", limit=120, sort=lanes.names, scale=scale)}
    top = vl.layer(*_around(lanes, place), _work(lanes, place)).properties(
        width=_LANES_WIDTH, height=_LANE * len(lanes.names)
    )
    drawing = vl.vconcat(top, _overview(lanes, window), spacing=6).resolve_scale(x="independent")
    note = _note(lanes, wall_s(measured or Measured(ledger)))
    return Chart("lanes", _title(lanes), _caption(lanes, note), drawing.to_dict(), _table(lanes, note), hint=_HINT)


def _title(lanes: Lanes) -> str:
    if not lanes.on_gpu:
        return "The ops of the step in time"
    return "Host and GPU over the step" if lanes.placed else "The kernels of the step, end to end"


def _row(piece: LaneSlice) -> dict[str, Any]:
    return {
        "lane": piece.lane,
        "start": piece.start_ns / 1e9,
        "end": piece.end_ns / 1e9,
        "name": piece.name,
        "phase": piece.phase,
        "time": seconds(piece.duration_ns / 1e9),
    }


def _around(lanes: Lanes, place: vl.Spec) -> list[vl.Drawing]:
    """Phases and modules: grey, told apart by shade and name."""
    rows, turn = [], {PHASES: 0, MODULES: 0}
    for piece in lanes.slices:
        if piece.lane in turn:
            turn[piece.lane] += 1
            part = piece.duration_ns / lanes.span_ns
            text = _fitting(piece.name, part * _LANES_WIDTH)
            needs = round(_needed(text) / part) + WIDTH - _LANES_WIDTH
            rows.append({**_row(piece), "text": text, "needs": needs, "shade": 0.2 + 0.18 * (turn[piece.lane] % 2)})
    tips = [vl.field("name:N"), vl.field("phase:N"), vl.field("time:N")]
    blocks = vl.mark("rect", rows, style="soft", clip=True)
    names = vl.mark("text", rows, align="left", dx=3, fontSize=10, clip=True)
    wide_enough = vl.either(f"datum.needs <= {PLACE_WIDTH}", 1, 0)
    return [
        blocks.encode(**place, opacity=vl.field("shade:Q", scale=None, legend=None), tooltip=tips),
        names.encode(x=place["x"], y=place["y"], text=vl.field("text:N"), tooltip=tips, opacity=wide_enough),
    ]


def _fitting(name: str, room: float) -> str:
    """As much of a path as there is room for, its end first."""
    parts = name.split(".")
    tries = [".".join(parts[start:]) for start in range(len(parts))]
    return next((text for text in tries if _needed(text) < room), "")


def _needed(text: str) -> float:
    """Pixels."""
    return _ROOM * len(text) + 5


def _work(lanes: Lanes, place: vl.Spec) -> vl.Drawing:
    """Launches and kernels (or ops), by family."""
    rows = []
    for piece in lanes.slices:
        if piece.lane not in (PHASES, MODULES):
            several = f" in {piece.count} pieces, drawn as one" if piece.count > 1 else ""
            rows.append(
                {
                    **_row(piece),
                    "family": piece.family,
                    "op": piece.op,
                    "module": piece.module,
                    "time": f"{seconds(piece.busy_ns / 1e9)}{several}",
                    "from": seconds(piece.start_ns / 1e9),
                }
            )
    shown = [family for family in FAMILIES if any(row["family"] == family for row in rows)]
    picked = vl.picked("lanes_family", fields=["family"], bind="legend")
    legend = dict(orient="top", columns=on_phone(2, 4))
    colour = vl.by_word("family:N", {name: _COLOURS[name] for name in shown}, sort=shown, legend=legend)
    names = ("name", "family", "op", "module", "phase", "time")
    tips = vl.tips(**{name: name for name in names}, from_="begins at")
    blocks = vl.mark("rect", rows, clip=True)
    return blocks.encode(**place, color=colour, opacity=vl.either(picked, 1, 0.07), tooltip=tips).add_params(picked)


def _overview(lanes: Lanes, window: vl.Param) -> vl.Drawing:
    """The whole step, always: how busy the GPU is, where that is known, and where a part of it can be picked."""
    span_s = lanes.span_ns / 1e9
    axis = si_axis("the whole step", "s", tickCount=8)
    x = vl.field("start:Q", axis=axis, scale=dict(domain=[0, span_s], nice=False))
    rows = [_row(piece) for piece in lanes.slices if piece.lane == PHASES]
    phases = [
        {name: row[name] for name in ("start", "end", "phase")} | {"shade": 0.12 + 0.12 * (number % 2)}
        for number, row in enumerate(rows)
    ]
    strip = vl.mark("rect", phases, style="soft")
    layers = [strip.encode(x=x, x2=vl.field("end"), opacity=vl.field("shade:Q", scale=None, legend=None))]
    if lanes.busy:
        wide = span_s / len(lanes.busy)
        busy = [{"start": place * wide, "busy": value} for place, value in enumerate(lanes.busy)]
        busy.append({"start": span_s, "busy": lanes.busy[-1]})  # so that the last one has a width, too
        label = "datum.value ? 'busy 100%' : '0%'"
        axis = dict(title=None, values=[0, 1], labelExpr=label, grid=False, labelBaseline="middle")
        area = vl.mark("area", busy, style="soft", interpolate="step-after", opacity=0.75)
        layers.append(area.encode(x=x, y=vl.field("busy:Q", axis=axis, scale=dict(domain=[0, 1]))))
    layers[-1] = layers[-1].add_params(window)
    return vl.layer(*layers).properties(width=_LANES_WIDTH, height=_STRIP)


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


def _table(lanes: Lanes, note: str) -> Table:
    """Each lane by family: how many slices, how long, and which part of the time drawn."""
    sums: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for piece in lanes.slices:
        what = piece.family or (piece.phase if piece.lane == PHASES else "")
        if what:
            sums[piece.lane, what][0] += piece.count
            sums[piece.lane, what][1] += piece.busy_ns or piece.duration_ns
    rows = [(lane, what, count, ns / 1e9, ns / lanes.span_ns) for (lane, what), (count, ns) in sums.items()]
    rows.sort(key=lambda row: (lanes.names.index(row[0]), -row[3]))
    of = "ops" if OPS in lanes.names else "kernels, launches" if LAUNCHES in lanes.names else "kernels"
    columns = (
        Column("lane", right=False),
        column("what"),
        Column(f"{of}, stretches", formatting.exact),
        column("time_s", heading="time"),
        Column("of the time", formatting.percent),
    )
    return Table("", columns, tuple(rows), note=note)
