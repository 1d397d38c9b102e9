"""What changes with the batch: FLOPs, memory, time and throughput of a step, one line a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, seconds
from rooflight.prediction.result import Prediction, Predictions
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.encodings import PANEL_HEIGHT, Series, count_axis, log_scale, panel, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.predict_tables import between
from rooflight.reporting.table import Column, Table, table_of

_ALL = "all devices"
_TEXT = 12
"""Height of a line of text, in pixels."""
_HINT = "Click a device in the legend to see it alone."

Row = dict[str, Any]


def sweep_chart(predictions: Predictions) -> Chart | None:
    """`None` where there is only one batch."""
    swept = [prediction for prediction in predictions if prediction.batch is not None]
    batches = sorted({prediction.batch for prediction in swept})
    if len(batches) < 2:
        return None
    devices = list(dict.fromkeys(prediction.device for prediction in swept))
    lines = series("device", devices, chart="sweep")
    rows = [_row(prediction) for prediction in swept]
    # A tick for every batch, as long as their labels are apart.
    ticks = batches[:: max(1, -(-len(batches) // 9))]
    x = count_axis("batch", batches, title="batch", ticks=ticks, base=2)
    panels = [
        _time(rows, lines, x),
        _throughput(rows, lines.unnamed, x),
        _memory(rows, lines.unnamed, x, first=batches[0]),
        _flops(rows, lines.unnamed, x),
    ]
    drawing = vl.concat(*panels, columns=2, spacing=24).resolve_scale(color="independent", shape="independent")
    note = _note(swept)
    caption = _caption(swept, note)
    table = replace(_table(swept), note=note)
    return Chart("sweep", "Against the batch", caption, drawing.to_dict(), table, hint=_HINT)


def _row(prediction: Prediction) -> Row:
    memory, interval = prediction.memory, prediction.time_interval_s
    return {
        "device": prediction.device,
        "batch": prediction.batch,
        "flops": prediction.flops,
        "time": prediction.time_s,
        "low": max(interval.low, prediction.time_s * 1e-2),
        "high": interval.high,
        "throughput": prediction.throughput,
        "memory": None if memory is None else memory.device_bytes,
        "capacity": None if memory is None else memory.usable_bytes,
        "fits": "fits" if memory is None else memory.fit,
        "batch_text": formatting.exact(prediction.batch),
        "flops_text": formatting.count(prediction.flops),
        "time_text": seconds(prediction.time_s),
        "between": between(interval),
        "rate": per_second(prediction.throughput),
        "memory_text": "–" if memory is None else formatting.bytes_(memory.device_bytes),
        "tier": prediction.tier,
        "bound": prediction.bound,
    }


def _y(field: str, title: str, unit: str, values: Iterable[float | None]) -> vl.Spec:
    scale, ticks = log_scale([value for value in values if value])
    return vl.field(f"{field}:Q", axis=si_axis(title, unit, values=ticks), scale=scale)


def _tips(**titles: str) -> list[vl.Spec]:
    return vl.tips(device="device", batch_text="batch", **titles)


def _line(rows: Sequence[Row], x: vl.Spec, y: vl.Spec, lines: Series, tips: list[vl.Spec]) -> list[vl.Drawing]:
    """Points are hollow where it does not fit."""
    view = vl.view(rows)
    drawn = [lines.line(view, x=x, y=y)]
    for fits in (True, False):
        some = view.filter(f"(datum.fits != 'does not fit') == {str(fits).lower()}")
        look = dict(size=42 if fits else 60, filled=fits, strokeWidth=1.6)
        drawn.append(lines.points(some, look, x=x, y=y, tooltip=tips))
    return drawn


def _flops(rows: Sequence[Row], lines: Series, x: vl.Spec) -> vl.Drawing:
    """One line where all devices run the same work, as they do unless their generations differ in it."""
    y = _y("flops", "FLOPs of a step", "", (row["flops"] for row in rows))
    tips = _tips(flops_text="FLOPs")
    if len({(row["batch"], row["flops"]) for row in rows}) > len({row["batch"] for row in rows}):
        return panel(*_line(rows, x, y, lines, tips))
    view = vl.view([{**row, "device": _ALL} for row in rows if row["device"] == rows[0]["device"]])
    return panel(
        view.mark("line", style="ink", strokeWidth=1.8).encode(x=x, y=y),
        view.mark("point", style="ink", size=30, filled=True).encode(x=x, y=y, tooltip=tips),
    )


def _memory(rows: Sequence[Row], lines: Series, x: vl.Spec, *, first: int) -> vl.Drawing:
    with_memory = [row for row in rows if row["memory"] is not None]
    both = [value for row in with_memory for value in (row["memory"], row["capacity"])]
    y = _y("memory", "memory, with capacities", "B", both or [1.0])
    capacities = [
        {"device": device, "memory": capacity, "batch": first, "text": f"{device} has {formatting.bytes_(capacity)}"}
        for device, capacity in dict.fromkeys((row["device"], row["capacity"]) for row in with_memory)
    ]
    rules = vl.mark("rule", capacities, strokeDash=[6, 4], strokeWidth=1.4)
    texts = vl.mark("text", _apart(capacities, y["scale"]["domain"]), align="left", dx=2, dy=-5, fontSize=9)
    return panel(
        *_line(with_memory, x, y, lines, _tips(memory_text="memory", fits="it")),
        rules.encode(y=y, color=lines.color, opacity=lines.faint(), tooltip=vl.field("text:N")),
        texts.encode(x=x, y=y, text=vl.field("text:N"), opacity=lines.faint()),
    )


def _apart(capacities: Sequence[Row], domain: Sequence[float]) -> list[Row]:
    """Those whose texts do not lie on one another: colours tell whose the other lines are."""
    least = (domain[1] / domain[0]) ** (_TEXT / PANEL_HEIGHT)
    kept: list[Row] = []
    for row in sorted(capacities, key=lambda row: -row["memory"]):
        if not kept or kept[-1]["memory"] >= least * row["memory"]:
            kept.append(row)
    return kept


def _time(rows: Sequence[Row], lines: Series, x: vl.Spec) -> vl.Drawing:
    y = _y("time", "time of a step", "s", (row[name] for row in rows for name in ("low", "high", "time")))
    low = vl.field("low:Q", scale=y["scale"], axis=y["axis"])
    band = vl.mark("area", rows).encode(x=x, y=low, y2=vl.field("high"), color=lines.color, opacity=lines.faint(0.16))
    tips = _tips(time_text="time of a step", between="90% interval", tier="tier", bound="bound")
    # The selection stands here alone; all panels listen to it.
    return panel(band.add_params(lines.picked), *_line(rows, x, y, lines, tips))


def _throughput(rows: Sequence[Row], lines: Series, x: vl.Spec) -> vl.Drawing:
    rated = [row for row in rows if row["throughput"]]
    y = _y("throughput", "samples per second", "", (row["throughput"] for row in rated))
    return panel(*_line(rated, x, y, lines, _tips(rate="samples per second", fits="it")))


def _note(drawn: Sequence[Prediction]) -> str:
    """What is true of the numbers alone, too."""
    many = any(prediction.many for prediction in drawn)
    replica = " The batch is one replica's, the samples are those of all GPUs." if many else ""
    return f"Predicted. Memory: with the CUDA context and the libraries.{replica}"


def _caption(drawn: Sequence[Prediction], note: str) -> str:
    parts = [note, "Both axes are logarithmic. Shaded: the 90% interval. Dashed: the memory that each device has."]
    if any(prediction.fit == "does not fit" for prediction in drawn):
        parts.append("Hollow points do not fit.")
    return " ".join(parts)


def _table(predictions: Sequence[Prediction]) -> Table:
    return table_of(
        (
            (column("device"), lambda row: row.device),
            (column("batch"), lambda row: row.batch),
            (column("flops"), lambda row: row.flops),
            (column("device_bytes"), lambda row: row.memory and row.memory.device_bytes),
            (column("fit"), lambda row: row.fit),
            (column("time_s"), lambda row: row.time_s),
            (Column("90% from", seconds, optional=2, raw="time_low_s"), lambda row: row.time_interval_s.low),
            (Column("to", seconds, optional=2, raw="time_high_s"), lambda row: row.time_interval_s.high),
            (column("samples_per_s"), lambda row: row.throughput),
            (column("tier", optional=1), lambda row: row.tier),
        ),
        predictions,
    )
