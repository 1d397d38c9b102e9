"""What changes with the batch: FLOPs, memory, time and throughput of a step, one line a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, seconds
from rooflight.prediction.result import Prediction, Predictions
from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import WIDTH, Chart
from rooflight.reporting.charts.encodings import MOST, Series, log_scale, series, si_axis
from rooflight.reporting.columns import column
from rooflight.reporting.sections.predict_tables import between
from rooflight.reporting.table import Column, Table, table_of

_PANEL, _HEIGHT = WIDTH // 2 - 75, 190
_ALL = "all devices"
_HINT = "Click a device in the legend to see it alone."

Row = dict[str, Any]


def sweep_chart(predictions: Predictions) -> Chart | None:
    """`None` where there is only one batch."""
    found = [one for one in predictions if one.batch is not None]
    batches = sorted({one.batch for one in found})
    if len(batches) < 2:
        return None
    devices = list(dict.fromkeys(one.device for one in found))
    drawn = [one for one in found if one.device in devices[:MOST]]
    lines = series("device", devices, chart="sweep")
    rows = [_row(one) for one in drawn]
    others = lines.unnamed
    panels = [
        _time(rows, lines, batches),
        _throughput(rows, others, batches),
        _memory(rows, others, batches),
        _flops(rows, others, batches),
    ]
    made = vl.concat(*panels, columns=2, spacing=24).resolve_scale(color="independent", shape="independent")
    note = _note(drawn)
    return Chart(
        "sweep",
        "Against the batch",
        _caption(drawn, len(devices), note),
        made.to_dict(),
        replace(_table(found), note=note),
        hint=_HINT,
    )


def _row(one: Prediction) -> Row:
    memory = one.memory
    return {
        "device": one.device,
        "batch": one.batch,
        "flops": one.flops,
        "time": one.time_s,
        "low": max(one.time_interval_s.low, one.time_s * 1e-2),
        "high": one.time_interval_s.high,
        "throughput": one.throughput,
        "memory": None if memory is None else memory.device_bytes,
        "capacity": None if memory is None else memory.usable_bytes,
        "fits": "fits" if memory is None else memory.fit,
        "batch_text": formatting.exact(one.batch),
        "flops_text": formatting.count(one.flops),
        "time_text": seconds(one.time_s),
        "between": between(one.time_interval_s),
        "rate": per_second(one.throughput),
        "memory_text": "–" if memory is None else formatting.bytes_(memory.device_bytes),
        "tier": one.tier,
        "bound": one.bound,
    }


def _batch_axis(batches: Sequence[int]) -> vl.Spec:
    """A tick for every batch, as long as their labels are apart."""
    step = max(1, -(-len(batches) // 9))
    axis = dict(title="batch", values=list(batches[::step]), format=",d", grid=False, labelOverlap=True)
    scale = dict(type="log", base=2, domain=[batches[0] / 1.1, batches[-1] * 1.1], nice=False)
    return vl.field("batch:Q", axis=axis, scale=scale)


def _y(field: str, title: str, unit: str, values: Iterable[float | None]) -> vl.Spec:
    scale, ticks = log_scale([value for value in values if value])
    return vl.field(f"{field}:Q", axis=si_axis(title, unit, values=ticks), scale=scale)


def _tips(**titles: str) -> list[vl.Spec]:
    return vl.tips(device="device", batch_text="batch", **titles)


def _line(rows: Sequence[Row], x: vl.Spec, y: vl.Spec, lines: Series, tips: list[vl.Spec]) -> list[vl.Drawing]:
    """Points are hollow where it does not fit."""
    chart = vl.view(rows)
    drawn = [chart.mark("line", strokeWidth=1.8).encode(x=x, y=y, color=lines.color, opacity=lines.faint())]
    for fits in (True, False):
        some = chart.filter(f"(datum.fits != 'does not fit') == {str(fits).lower()}")
        points = some.mark("point", size=42 if fits else 60, filled=fits, strokeWidth=1.6)
        drawn.append(points.encode(x=x, y=y, color=lines.color, shape=lines.shape, tooltip=tips, opacity=lines.faint()))
    return drawn


def _panel(layers: Sequence[Any]) -> vl.Drawing:
    return vl.layer(*layers).properties(width=_PANEL, height=_HEIGHT)


def _flops(rows: Sequence[Row], lines: Series, batches: Sequence[int]) -> vl.Drawing:
    """One line where all devices run the same work, as they do unless their generations differ in it."""
    x, y = _batch_axis(batches), _y("flops", "FLOPs of a step", "", (row["flops"] for row in rows))
    tips = _tips(flops_text="FLOPs")
    if all(len({row["flops"] for row in rows if row["batch"] == batch}) == 1 for batch in batches):
        once = [{**row, "device": _ALL} for row in rows if row["device"] == rows[0]["device"]]
        chart = vl.view(once)
        return vl.layer(
            chart.mark("line", style="ink", strokeWidth=1.8).encode(x=x, y=y),
            chart.mark("point", style="ink", size=30, filled=True).encode(x=x, y=y, tooltip=tips),
        ).properties(width=_PANEL, height=_HEIGHT)
    return _panel(_line(rows, x, y, lines, tips))


def _memory(rows: Sequence[Row], lines: Series, batches: Sequence[int]) -> vl.Drawing:
    known = [row for row in rows if row["memory"] is not None]
    both = [value for row in known for value in (row["memory"], row["capacity"])]
    x, y = _batch_axis(batches), _y("memory", "memory, with capacities", "B", both or [1.0])
    tips = _tips(memory_text="memory", fits="it")
    layers = _line(known, x, y, lines, tips)
    capacities = [
        {
            "device": device,
            "memory": capacity,
            "batch": batches[0],
            "text": f"{device} has {formatting.bytes_(capacity)}",
        }
        for device, capacity in dict.fromkeys((row["device"], row["capacity"]) for row in known)
    ]
    chart = vl.view(capacities)
    layers.append(
        chart.mark("rule", strokeDash=[6, 4], strokeWidth=1.4).encode(
            y=y, color=lines.color, opacity=lines.faint(), tooltip=vl.field("text:N")
        )
    )
    layers.append(
        chart.mark("text", align="left", dx=2, dy=-5, fontSize=9).encode(
            x=x, y=y, text=vl.field("text:N"), opacity=lines.faint()
        )
    )
    return _panel(layers)


def _time(rows: Sequence[Row], lines: Series, batches: Sequence[int]) -> vl.Drawing:
    x = _batch_axis(batches)
    y = _y("time", "time of a step", "s", (row[name] for row in rows for name in ("low", "high", "time")))
    band = (
        vl.view(rows)
        .mark("area")
        .encode(
            x=x,
            y=vl.field("low:Q", scale=y["scale"], axis=y["axis"]),
            y2=vl.field("high"),
            color=lines.color,
            opacity=lines.faint(0.16),
        )
    )
    tips = _tips(time_text="time of a step", between="90% interval", tier="tier", bound="bound")
    # The selection stands here alone; all panels listen to it.
    return _panel([band.add_params(lines.picked), *_line(rows, x, y, lines, tips)])


def _throughput(rows: Sequence[Row], lines: Series, batches: Sequence[int]) -> vl.Drawing:
    known = [row for row in rows if row["throughput"]]
    x = _batch_axis(batches)
    y = _y("throughput", "samples per second", "", (row["throughput"] for row in known))
    return _panel(_line(known, x, y, lines, _tips(rate="samples per second", fits="it")))


def _note(drawn: Sequence[Prediction]) -> str:
    """What is true of the numbers alone, too."""
    many = " The batch is one replica's, the samples are those of all GPUs." if any(one.many for one in drawn) else ""
    return f"Predicted. Memory: with the CUDA context and the libraries.{many}"


def _caption(drawn: Sequence[Prediction], devices: int, note: str) -> str:
    parts = [note, "Both axes are logarithmic. Shaded: the 90% interval. Dashed: the memory that each device has."]
    if any(one.fit == "does not fit" for one in drawn):
        parts.append("Hollow points do not fit.")
    if devices > MOST:
        parts.append(f"The first {MOST} of {devices} devices are drawn.")
    return " ".join(parts)


def _table(found: Sequence[Prediction]) -> Table:
    cells: list[tuple[Column, Callable[[Prediction], Any]]] = [
        (column("device"), lambda one: one.device),
        (column("batch"), lambda one: one.batch),
        (column("flops"), lambda one: one.flops),
        (column("device_bytes"), lambda one: one.memory and one.memory.device_bytes),
        (column("fit"), lambda one: one.fit),
        (column("time_s"), lambda one: one.time_s),
        (Column("90% from", seconds, optional=2, raw="time_low_s"), lambda one: one.time_interval_s.low),
        (Column("to", seconds, optional=2, raw="time_high_s"), lambda one: one.time_interval_s.high),
        (column("samples_per_s"), lambda one: one.throughput),
        (column("tier", optional=1), lambda one: one.tier),
    ]
    return table_of(cells, found)
