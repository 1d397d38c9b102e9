"""Devices side by side: the time of a step with its interval, what bounds it, and the memory it takes of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import altair as alt

from rooflight import units
from rooflight.explanation.devices import DeviceTime
from rooflight.metrics import fit_text, percent_text
from rooflight.prediction.result import Prediction, Predictions
from rooflight.reporting.charts.axes import PLACE_WIDTH, si_axis
from rooflight.reporting.charts.chart import WIDTH, Chart
from rooflight.reporting.charts.drawing import inline, unchecked
from rooflight.reporting.charts.theme import COLOURS
from rooflight.reporting.predict_tables import between, rate
from rooflight.reporting.table import Column, Table, metric_column
from rooflight.units import seconds

_ROW = 34
"""Height of a device, in pixels."""
_MOST = 40
_BOUNDS = {"compute": COLOURS[0], "memory": COLOURS[1], "host": COLOURS[6]}
_UNKNOWN = COLOURS[4]

Row = dict[str, Any]


@unchecked
def devices_chart(predictions: Predictions | Sequence[DeviceTime], *, batch: int | None = None) -> Chart | None:
    """`batch`: which of several; else the largest that fits every device."""
    if isinstance(predictions, Predictions):
        found = _at_one_batch(predictions, batch)
        rows = [_row(one) for one in found]
        caption, table = _caption(found), _table(found)
    else:
        rows = [{"device": one.device, "time": one.time_s, "text": seconds(one.time_s), "tier": one.tier,
                 "time_text": seconds(one.time_s)} for one in predictions]  # fmt: skip
        caption = "Predicted time of the same step on each device, the fastest first."
        columns = (
            Column("device", right=False),
            Column("time/step", seconds, raw="time_s"),
            Column("tier", right=False),
        )
        table = Table("", columns, tuple((one.device, one.time_s, one.tier) for one in predictions))
    if not rows:
        return None
    rows = sorted(rows, key=lambda row: row["time"])[:_MOST]
    order = [row["device"] for row in rows]
    knows_memory = any(row.get("memory") is not None for row in rows)
    panels = [_time(rows, order, WIDTH // 2 if knows_memory else WIDTH - 120)]
    if knows_memory:
        panels.append(_memory([row for row in rows if row.get("memory") is not None], order))
    made = alt.concat(*panels, columns=2, spacing=20).resolve_scale(color="independent")
    return Chart("devices", "Devices side by side", caption, made, table)


def _at_one_batch(predictions: Predictions, batch: int | None) -> list[Prediction]:
    every = [one.batch for one in predictions if one.batch is not None]
    if batch is None and every:
        tight = {one.batch for one in predictions if one.fit == "does not fit"}
        batch = max((size for size in every if size not in tight), default=min(every))
    return [one for one in predictions if one.batch in (None, batch)]


def _row(one: Prediction) -> Row:
    memory = one.memory
    what = f"{one.bound}-bound"
    if one.many is None:
        what += f", {percent_text(one.percent_of_roof)} of roof"
    row: Row = {
        "device": one.device, "time": one.time_s, "low": one.time_interval_s.low, "high": one.time_interval_s.high,
        "bound": one.bound, "text": f"{seconds(one.time_s)}, {what}", "time_text": seconds(one.time_s),
        "between": between(one.time_interval_s), "tier": one.tier, "rate": rate(one.throughput), "what": what,
    }  # fmt: skip
    if memory is not None:
        row |= {
            "memory": memory.device_bytes, "capacity": memory.usable_bytes, "fits": memory.fits,
            "memory_text": f"{units.bytes_(memory.device_bytes)} of {units.bytes_(memory.usable_bytes)}"
                           f"{'' if memory.fit == 'fits' else f': {fit_text(memory.fit)}'}",
        }  # fmt: skip
    return row


def _y(order: Sequence[str]) -> alt.Y:
    axis = alt.Axis(domain=False, ticks=False, grid=False, labelLimit=105, labelFontSize=10, labelPadding=2)
    return alt.Y("device:N", sort=list(order), title=None, axis=axis, scale=alt.Scale(paddingInner=0.35))


def _time(rows: Sequence[Row], order: Sequence[str], width: int) -> Any:
    end = "high" if "high" in rows[0] else "time"
    most = max(row[end] for row in rows) * (2.3 if end == "high" else 1.2)  # room for what stands behind a bar
    x = alt.X("time:Q", axis=si_axis("time of a step", "s", ticks=5), scale=alt.Scale(domain=[0, most], nice=False))
    y = _y(order)
    data = inline(rows)
    names = [name for name in _BOUNDS if any(row.get("bound") == name for row in rows)]
    tips = [("device", "device"), ("time_text", "time of a step"), ("between", "90% interval"),
            ("rate", "samples a second"), ("what", "it is"), ("tier", "tier")]  # fmt: skip
    bars = alt.Chart(data).mark_bar(height={"band": 0.62}).encode(
        x=x, y=y, tooltip=[alt.Tooltip(f"{field}:N", title=title) for field, title in tips if field in rows[0]]
    )  # fmt: skip
    if names:
        bars = bars.encode(color=alt.Color(
            "bound:N", title="bound by", sort=names, legend=alt.Legend(orient="top"),
            scale=alt.Scale(domain=names, range=[_BOUNDS[name] for name in names])))  # fmt: skip
    else:
        bars = bars.encode(color=alt.ColorValue(_UNKNOWN))
    layers: list[Any] = [bars]
    if "low" in rows[0]:
        spread = alt.Chart(data).mark_rule(style="ink", strokeWidth=1.4).encode(
            x=alt.X("low:Q", scale=x["scale"], axis=x["axis"]), x2=alt.X2("high:Q"), y=y
        )  # fmt: skip
        ends = [alt.Chart(data).mark_tick(style="ink", size=9, thickness=1.4).encode(
            x=alt.X(f"{end}:Q", scale=x["scale"], axis=x["axis"]), y=y) for end in ("low", "high")]  # fmt: skip
        layers += [spread, *ends]
    said = alt.Chart(data).transform_calculate(said=f"{PLACE_WIDTH} > 560 ? datum.text : datum.time_text")
    layers.append(said.mark_text(align="left", dx=7, fontSize=11).encode(
        x=alt.X(f"{end}:Q", scale=x["scale"], axis=x["axis"]), y=y,
        text=alt.Text("said:N")))  # fmt: skip
    return alt.layer(*layers).properties(width=width, height=_ROW * len(order))


def _memory(rows: Sequence[Row], order: Sequence[str]) -> Any:
    most = max(max(row["memory"], row["capacity"]) for row in rows)
    scale = alt.Scale(domain=[0, 1.1 * most], nice=False)
    axis = si_axis("memory of the device", "B", ticks=4)
    y = _y(order)
    data = inline(rows)
    tips = [alt.Tooltip("device:N"), alt.Tooltip("memory_text:N", title="memory")]
    has = alt.Chart(data).mark_bar(style="soft", opacity=0.22, height={"band": 0.8}).encode(
        x=alt.X("capacity:Q", scale=scale, axis=axis), y=y, tooltip=tips
    )  # fmt: skip
    needs = alt.Chart(data).mark_bar(height={"band": 0.3}, color=COLOURS[2]).encode(
        x=alt.X("memory:Q", scale=scale, axis=axis), y=y, tooltip=tips,
        color=alt.ColorValue(**alt.when("datum.fits").then(alt.value(COLOURS[2])).otherwise(alt.value(COLOURS[1]))),
    )  # fmt: skip
    text = alt.Chart(data).mark_text(align="left", dx=3, dy=-8, fontSize=10).encode(
        x=alt.value(0), y=y, text=alt.Text("memory_text:N")
    )  # fmt: skip
    return alt.layer(has, needs, text).properties(width=WIDTH // 2 - 190, height=_ROW * len(order))


def _caption(found: Sequence[Prediction]) -> str:
    at = f" at batch {found[0].batch:,}" if found and found[0].batch is not None else ""
    many = "; each bar is a run on many GPUs, each with that batch" if any(one.many for one in found) else ""
    more = f" The fastest {_MOST} of {len(found)} are drawn." if len(found) > _MOST else ""
    return (f"Predicted for the same step{at}{many}. Bars: time of a step, the fastest first; the line through a bar's "
            "end: its 90% interval. % of roof: the least time that the device's roofs allow, over "
            "the time that its GPU works. Memory: what the step takes of the device, with context and libraries, in "
            f"front of what a process can have of it.{more}")  # fmt: skip


def _table(found: Sequence[Prediction]) -> Table:
    cells: list[tuple[Column, Callable[[Prediction], Any]]] = [
        (Column("device", right=False), lambda one: one.device),
        (Column("tier", right=False, optional=2), lambda one: one.tier),
        (Column("time/step", seconds, raw="time_s"), lambda one: one.time_s),
        (Column("90% interval", optional=1), lambda one: between(one.time_interval_s)),
        (Column("samples/s", rate, raw="samples_per_s"), lambda one: one.throughput),
        (metric_column("bound"), lambda one: one.bound),
        (metric_column("percent_of_roof"),
         lambda one: None if one.many is not None else one.percent_of_roof),
        (Column("memory", units.bytes_, raw="device_bytes"), lambda one: one.memory and one.memory.device_bytes),
        (Column("has", units.bytes_, raw="usable_bytes"), lambda one: one.memory and one.memory.usable_bytes),
        (metric_column("fit"), lambda one: one.fit),
    ]  # fmt: skip
    order = sorted(found, key=lambda one: one.time_s)
    rows = tuple(tuple(value(one) for _, value in cells) for one in order)
    return Table("", tuple(column for column, _ in cells), rows)
