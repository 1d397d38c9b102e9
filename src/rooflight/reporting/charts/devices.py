"""Devices side by side: the time of a step with its interval, what bounds it, and the memory it takes of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.analysis.judged_device import DeviceTime
from rooflight.formatting import per_second, seconds
from rooflight.metrics import fit_text, percent_text
from rooflight.prediction.result import Prediction, Predictions
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import PLACE_WIDTH, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.predict_tables import between
from rooflight.reporting.table import Column, Table

_ROW = 34
"""Height of a device, in pixels."""
_MOST = 40
_AXIS = 116
"""Pixels for the names of devices, and for what stands over the end of an axis."""
_BOUNDS = {"compute": COLOURS[0], "memory": COLOURS[1], "host": COLOURS[6]}
_UNKNOWN = COLOURS[4]

Row = dict[str, Any]


def devices_chart(predictions: Predictions | Sequence[DeviceTime], *, batch: int | None = None) -> Chart | None:
    """`batch`: which of several; else the largest that fits every device."""
    if isinstance(predictions, Predictions):
        found = _at_one_batch(predictions, batch)
        rows = [_row(one) for one in found]
        note = _note(found)
        caption, table = _caption(found, note), replace(_table(found), note=note)
    else:
        rows = [
            {
                "device": one.device,
                "time": one.time_s,
                "text": seconds(one.time_s),
                "tier": one.tier,
                "time_text": seconds(one.time_s),
            }
            for one in predictions
        ]
        caption = "Predicted time of the same step on each device, the fastest first."
        columns = (
            column("device"),
            column("time_s"),
            column("tier"),
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
    made = vl.concat(*panels, columns=2, spacing=20).resolve_scale(color="independent")
    made = made.properties(usermeta=dict(axis=_AXIS))
    return Chart("devices", "Devices side by side", caption, made.to_dict(), table)


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
        "device": one.device,
        "time": one.time_s,
        "low": one.time_interval_s.low,
        "high": one.time_interval_s.high,
        "bound": one.bound,
        "text": f"{seconds(one.time_s)}, {what}",
        "time_text": seconds(one.time_s),
        "between": between(one.time_interval_s),
        "tier": one.tier,
        "rate": per_second(one.throughput),
        "what": what,
    }
    if memory is not None:
        row |= {
            "memory": memory.device_bytes,
            "capacity": memory.usable_bytes,
            "fits": memory.fits,
            "memory_text": f"{formatting.bytes_(memory.device_bytes)} of {formatting.bytes_(memory.usable_bytes)}"
            f"{'' if memory.fit == 'fits' else f': {fit_text(memory.fit)}'}",
        }
    return row


def _y(order: Sequence[str]) -> vl.Spec:
    axis = dict(domain=False, ticks=False, grid=False, labelLimit=105, labelFontSize=10, labelPadding=2)
    return vl.field("device:N", sort=list(order), title=None, axis=axis, scale=dict(paddingInner=0.35))


def _time(rows: Sequence[Row], order: Sequence[str], width: int) -> vl.Drawing:
    end = "high" if "high" in rows[0] else "time"
    most = max(row[end] for row in rows) * (2.3 if end == "high" else 1.2)  # room for what stands behind a bar
    x = vl.field("time:Q", axis=si_axis("time of a step", "s", ticks=5), scale=dict(domain=[0, most], nice=False))
    y = _y(order)
    names = [name for name in _BOUNDS if any(row.get("bound") == name for row in rows)]
    tips = [
        ("device", "device"),
        ("time_text", "time of a step"),
        ("between", "90% interval"),
        ("rate", "samples per second"),
        ("what", "it is"),
        ("tier", "tier"),
    ]
    bars = (
        vl.view(rows)
        .mark("bar", height={"band": 0.62})
        .encode(x=x, y=y, tooltip=[vl.field(f"{field}:N", title=title) for field, title in tips if field in rows[0]])
    )
    if names:
        bars = bars.encode(
            color=vl.field(
                "bound:N",
                title="bound by",
                sort=names,
                legend=dict(orient="top"),
                scale=dict(domain=names, range=[_BOUNDS[name] for name in names]),
            )
        )
    else:
        bars = bars.encode(color=vl.value(_UNKNOWN))
    layers: list[vl.Drawing] = [bars]
    if "low" in rows[0]:
        spread = (
            vl.view(rows)
            .mark("rule", style="ink", strokeWidth=1.4)
            .encode(x=vl.field("low:Q", scale=x["scale"], axis=x["axis"]), x2=vl.field("high"), y=y)
        )
        ends = [
            vl.view(rows)
            .mark("tick", style="ink", size=9, thickness=1.4)
            .encode(x=vl.field(f"{end}:Q", scale=x["scale"], axis=x["axis"]), y=y)
            for end in ("low", "high")
        ]
        layers += [spread, *ends]
    said = vl.view(rows).calculate(said=f"{PLACE_WIDTH} > 560 ? datum.text : datum.time_text")
    layers.append(
        said.mark("text", align="left", dx=7, fontSize=11).encode(
            x=vl.field(f"{end}:Q", scale=x["scale"], axis=x["axis"]), y=y, text=vl.field("said:N")
        )
    )
    return vl.layer(*layers).properties(width=width, height=_ROW * len(order))


def _memory(rows: Sequence[Row], order: Sequence[str]) -> vl.Drawing:
    most = max(max(row["memory"], row["capacity"]) for row in rows)
    scale = dict(domain=[0, 1.1 * most], nice=False)
    axis = si_axis("memory in use on the device", "B", ticks=4)
    y = _y(order)
    tips = [vl.field("device:N"), vl.field("memory_text:N", title="memory")]
    has = (
        vl.view(rows)
        .mark("bar", style="soft", opacity=0.22, height={"band": 0.8})
        .encode(x=vl.field("capacity:Q", scale=scale, axis=axis), y=y, tooltip=tips)
    )
    needs = (
        vl.view(rows)
        .mark("bar", height={"band": 0.3}, color=COLOURS[2])
        .encode(
            x=vl.field("memory:Q", scale=scale, axis=axis),
            y=y,
            tooltip=tips,
            color=vl.either("datum.fits", COLOURS[2], COLOURS[1]),
        )
    )
    text = (
        vl.view(rows)
        .mark("text", align="left", dx=3, dy=-8, fontSize=10)
        .encode(x=vl.value(0), y=y, text=vl.field("memory_text:N"))
    )
    return vl.layer(has, needs, text).properties(width=WIDTH // 2 - 190, height=_ROW * len(order))


def _caption(found: Sequence[Prediction], note: str) -> str:
    more = f" The fastest {_MOST} of {len(found)} are drawn." if len(found) > _MOST else ""
    return (
        f"{note} Bars: time of a step, the fastest first; the line through a bar's end: its 90% interval. Behind "
        f"the bars of memory: what a process can have.{more}"
    )


def _note(found: Sequence[Prediction]) -> str:
    """What is true of the numbers alone, too."""
    at = f" at batch {found[0].batch:,}" if found and found[0].batch is not None else ""
    many = ", on many GPUs, each with that batch" if any(one.many for one in found) else ""
    return (
        f"Predicted for the same step{at}{many}. % of roof: the least time that the device's roofs allow, over the "
        "time that its GPU works. Memory: with the CUDA context and the libraries."
    )


def _table(found: Sequence[Prediction]) -> Table:
    cells: list[tuple[Column, Callable[[Prediction], Any]]] = [
        (column("device"), lambda one: one.device),
        (column("tier", optional=2), lambda one: one.tier),
        (column("time_s"), lambda one: one.time_s),
        (Column("90% from", seconds, optional=1, raw="time_low_s"), lambda one: one.time_interval_s.low),
        (Column("to", seconds, optional=1, raw="time_high_s"), lambda one: one.time_interval_s.high),
        (column("samples_per_s"), lambda one: one.throughput),
        (column("bound"), lambda one: one.bound),
        (column("percent_of_roof"), lambda one: None if one.many is not None else one.percent_of_roof),
        (column("device_bytes"), lambda one: one.memory and one.memory.device_bytes),
        (Column("has", formatting.bytes_, raw="usable_bytes"), lambda one: one.memory and one.memory.usable_bytes),
        (column("fit"), lambda one: one.fit),
    ]
    order = sorted(found, key=lambda one: one.time_s)
    rows = tuple(tuple(value(one) for _, value in cells) for one in order)
    return Table("", tuple(column for column, _ in cells), rows)
