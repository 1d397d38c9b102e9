"""Devices side by side: the time of a step with its interval, what bounds it, and the memory it takes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, seconds
from rooflight.metrics import fit_text, percent_text
from rooflight.prediction.result import Prediction, Predictions
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH, Chart
from rooflight.reporting.charts.encodings import PLACE_WIDTH, named_rows, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.predict_tables import between
from rooflight.reporting.table import Column, Table, table_of

_ROW = 34
"""Height of a device, in pixels."""
_AXIS = 116
"""Pixels for the names of devices, and for what stands over the end of an axis."""
_BOUNDS = {"compute": COLOURS[0], "memory": COLOURS[1], "host": COLOURS[6]}
_UNKNOWN = COLOURS[4]

Row = dict[str, Any]


def devices_chart(predictions: Predictions, *, batch: int | None = None) -> Chart | None:
    """`batch`: which of several; else the largest that fits every device."""
    shown = sorted(_at_one_batch(predictions, batch), key=lambda prediction: prediction.time_s)
    if not shown:
        return None
    rows = [_row(prediction) for prediction in shown]
    order = [row["device"] for row in rows]
    with_memory = [row for row in rows if "memory" in row]
    panels = [_time(rows, order, WIDTH // 2 if with_memory else WIDTH - 120)]
    panels += [_memory(with_memory, order)] if with_memory else []
    drawing = vl.concat(*panels, columns=2, spacing=20).resolve_scale(color="independent")
    spec = drawing.properties(usermeta=dict(axis=_AXIS)).to_dict()
    note = _note(shown)
    return Chart("devices", "Devices side by side", _caption(note), spec, replace(_table(shown), note=note))


def _at_one_batch(predictions: Predictions, batch: int | None) -> list[Prediction]:
    batches = [prediction.batch for prediction in predictions if prediction.batch is not None]
    if batch is None and batches:
        tight = {prediction.batch for prediction in predictions if prediction.fit == "does not fit"}
        batch = max((size for size in batches if size not in tight), default=min(batches))
    return [prediction for prediction in predictions if prediction.batch in (None, batch)]


def _row(prediction: Prediction) -> Row:
    memory, interval = prediction.memory, prediction.time_interval_s
    what = f"{prediction.bound}-bound"
    if prediction.many is None:
        what += f", {percent_text(prediction.percent_of_roof)} of roof"
    row: Row = {
        "device": prediction.device,
        "time": prediction.time_s,
        "low": interval.low,
        "high": interval.high,
        "bound": prediction.bound,
        "text": f"{seconds(prediction.time_s)}, {what}",
        "time_text": seconds(prediction.time_s),
        "between": between(interval),
        "tier": prediction.tier,
        "rate": per_second(prediction.throughput),
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
    return named_rows("device", limit=105, sort=order, scale=dict(paddingInner=0.35), labelFontSize=10, labelPadding=2)


def _time(rows: Sequence[Row], order: Sequence[str], width: int) -> vl.Drawing:
    axis = si_axis("time of a step", "s", tickCount=5)
    most = max(row["high"] for row in rows) * 2.3  # room for what stands behind a bar
    time, low, high = (
        vl.field(f"{name}:Q", axis=axis, scale=dict(domain=[0, most], nice=False)) for name in ("time", "low", "high")
    )
    y = _y(order)
    bounds = {name: colour for name, colour in _BOUNDS.items() if any(row["bound"] == name for row in rows)}
    legend = dict(orient="top")
    colour = vl.by_word("bound:N", bounds, title="bound by", sort=list(bounds), legend=legend)
    tips = vl.tips(
        device="device",
        time_text="time of a step",
        between="90% interval",
        rate="samples per second",
        what="it is",
        tier="tier",
    )
    bars = vl.mark("bar", rows, height={"band": 0.62}).encode(
        x=time, y=y, tooltip=tips, color=colour if bounds else vl.value(_UNKNOWN)
    )
    spread = vl.mark("rule", rows, style="ink", strokeWidth=1.4).encode(x=low, x2=vl.field("high"), y=y)
    ends = [vl.mark("tick", rows, style="ink", size=9, thickness=1.4).encode(x=end, y=y) for end in (low, high)]
    texts = vl.view(rows).calculate(said=f"{PLACE_WIDTH} > 560 ? datum.text : datum.time_text")
    texts = texts.mark("text", align="left", dx=7, fontSize=11).encode(x=high, y=y, text=vl.field("said:N"))
    return vl.layer(bars, spread, *ends, texts).properties(width=width, height=_ROW * len(order))


def _memory(rows: Sequence[Row], order: Sequence[str]) -> vl.Drawing:
    most = max(max(row["memory"], row["capacity"]) for row in rows)
    axis = si_axis("memory in use on the device", "B", tickCount=4)
    used, capacity = (
        vl.field(f"{name}:Q", scale=dict(domain=[0, 1.1 * most], nice=False), axis=axis)
        for name in ("memory", "capacity")
    )
    y = _y(order)
    tips = [vl.field("device:N"), vl.field("memory_text:N", title="memory")]
    behind = vl.mark("bar", rows, style="soft", opacity=0.22, height={"band": 0.8})
    bars = vl.mark("bar", rows, height={"band": 0.3}, color=COLOURS[2])
    texts = vl.mark("text", rows, align="left", dx=3, dy=-8, fontSize=10)
    return vl.layer(
        behind.encode(x=capacity, y=y, tooltip=tips),
        bars.encode(x=used, y=y, tooltip=tips, color=vl.either("datum.fits", COLOURS[2], COLOURS[1])),
        texts.encode(x=vl.value(0), y=y, text=vl.field("memory_text:N")),
    ).properties(width=WIDTH // 2 - 190, height=_ROW * len(order))


def _caption(note: str) -> str:
    return (
        f"{note} Bars: time of a step, the fastest first; the line through a bar's end: its 90% interval. Behind "
        "the bars of memory: what a process can have."
    )


def _note(predictions: Sequence[Prediction]) -> str:
    """What is true of the numbers alone, too."""
    batch = predictions[0].batch
    at = "" if batch is None else f" at batch {batch:,}"
    many = ", on many GPUs, each with that batch" if any(prediction.many for prediction in predictions) else ""
    return (
        f"Predicted for the same step{at}{many}. % of roof: the least time that the device's roofs allow, over the "
        "time that its GPU works. Memory: with the CUDA context and the libraries."
    )


def _table(predictions: Sequence[Prediction]) -> Table:
    return table_of(
        (
            (column("device"), lambda row: row.device),
            (column("tier", optional=2), lambda row: row.tier),
            (column("time_s"), lambda row: row.time_s),
            (Column("90% from", seconds, optional=1, raw="time_low_s"), lambda row: row.time_interval_s.low),
            (Column("to", seconds, optional=1, raw="time_high_s"), lambda row: row.time_interval_s.high),
            (column("samples_per_s"), lambda row: row.throughput),
            (column("bound"), lambda row: row.bound),
            (column("percent_of_roof"), lambda row: None if row.many is not None else row.percent_of_roof),
            (column("device_bytes"), lambda row: row.memory and row.memory.device_bytes),
            (Column("has", formatting.bytes_, raw="usable_bytes"), lambda row: row.memory and row.memory.usable_bytes),
            (column("fit"), lambda row: row.fit),
        ),
        predictions,
    )
