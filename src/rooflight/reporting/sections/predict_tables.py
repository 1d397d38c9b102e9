"""Predictions as tables: devices and batches, many GPUs, and one table of raw values for spreadsheets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds
from rooflight.ledger import PHASES
from rooflight.metrics import fit_text, percent_text, text
from rooflight.prediction.result import (
    Advice,
    ClusterPrediction,
    CostlyOp,
    Interval,
    Prediction,
    Predictions,
    ScalingPoint,
    Traffic,
    TrainingRun,
)
from rooflight.reporting.columns import column
from rooflight.reporting.document import filled
from rooflight.reporting.table import Cells, Column, Label, Table, table_of


def time_table(prediction: Prediction, many: ClusterPrediction, of: str) -> Table:
    """What the step's time is made of."""
    parts = [("computing", many.compute_s), ("exposed communication", many.exposed_s)]
    parts += [("pipeline bubble", many.bubble_s)] if many.pipeline > 1 else []
    parts.append(("step", prediction.time_s))
    what = Column("of one GPU", right=False)
    return _shares(what, parts, prediction.time_s, f"where the time goes{of}", has_total=True)


def _shares(
    what: Column, parts: Sequence[tuple[str, float]], whole: float, title: str, *, has_total: bool = False
) -> Table:
    columns: Cells[tuple[str, float]] = [
        (what, lambda part: part[0]),
        (column("time_s", heading="time"), lambda part: part[1]),
        (column("share"), lambda part: part[1] / whole),
    ]
    return table_of(columns, parts, title=title, has_total=has_total)


def traffic_table(many: ClusterPrediction) -> Table:
    columns: Cells[Traffic] = [
        (Column("what one GPU sends", right=False), lambda row: row.what),
        (Column("messages", formatting.exact), lambda row: row.calls),
        (column("bytes"), lambda row: row.bytes),
        (column("time_s", heading="time"), lambda row: row.time_s),
        (Column("how", right=False, optional=1), lambda row: row.how),
    ]
    return table_of(columns, many.traffic)


def memory_table(many: ClusterPrediction) -> Table:
    rows = {
        "parameters": many.parameter_bytes,
        "gradients": many.gradient_bytes,
        "optimizer state": many.optimizer_bytes,
        "together": many.state_bytes,
    }
    stage = "" if many.pipeline == 1 else " of the stage with most of it"
    columns: Cells[str] = [(Column(f"kept by one GPU{stage}", right=False), str), (column("bytes"), rows.__getitem__)]
    return table_of(columns, list(rows), has_total=True)


_SCALING = {
    "weak": "weak scaling: every replica keeps its batch",
    "strong": "strong scaling: the global batch is divided",
}


def scaling_table(kind: str, points: Sequence[ScalingPoint]) -> Table:
    """One curve. PALEO's speed-ups stand beside."""
    columns: Cells[ScalingPoint] = [
        (column("gpus"), lambda point: point.gpus),
        (column("batch_each", optional=3), lambda point: point.batch),
        (column("global_batch", optional=1), lambda point: point.global_batch),
        (column("time_s"), lambda point: point.time_s),
        (column("exposed_s", optional=2), lambda point: point.exposed_s),
        (column("samples_per_s"), lambda point: point.throughput),
        (column("speedup", raw="speed-up"), lambda point: point.speedup),
        (column("efficiency"), lambda point: point.efficiency),
        (column("fit"), lambda point: point.fit),
        (Column("PALEO tree", quotient, optional=4), lambda point: point.paleo_speedup.get("tree")),
        (Column("butterfly", quotient, optional=6), lambda point: point.paleo_speedup.get("butterfly")),
        (Column("one-to-all", quotient, optional=5), lambda point: point.paleo_speedup.get("one-to-all")),
    ]
    title, last = _SCALING[kind], points[-1] if points else None
    if last is not None and last.gpu_bound_efficiency is not None:
        title += (
            f"; waiting for the host hides communication: GPU-bound, {last.gpus:,} GPUs are at "
            f"{formatting.percent(last.gpu_bound_efficiency)}"
        )
    return table_of(columns, points, title=title)


def many_tables(prediction: Prediction, many: ClusterPrediction, of: str) -> tuple[Table, ...]:
    """Of a step on many GPUs; `of` which, where there are several predictions."""
    return filled(
        time_table(prediction, many, of),
        traffic_table(many),
        memory_table(many),
        scaling_table("weak", many.weak),
        scaling_table("strong", many.strong),
    )


PIVOTED = 24
"""From so many rows on, devices stand side by side instead of below one another."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60

_Columns = Cells[Prediction]


def between(interval: Interval | None) -> str:
    """`28.2 to 42.7 ms`: both ends in the unit of the higher."""
    if interval is None:
        return "–"
    size, unit = next(((size, unit) for size, unit in _UNITS if interval.high >= 0.9995 * size), _UNITS[-1])
    low, high = interval.low / size, interval.high / size
    digits = 2 if high < 9.995 else 1 if high < 99.95 else 0
    return f"{low:,.{digits}f} to {high:,.{digits}f} {unit}"


def duration(value: float | None) -> str:
    """`4 h 10 min`, `3.2 days`: for times that people wait for."""
    if value is None:
        return "–"
    if value < 10 * _MINUTE_S:
        return seconds(value)
    if value < _HOUR_S:
        return f"{value / _MINUTE_S:.1f} min"
    if value < 2 * _DAY_S:
        hours, rest = divmod(round(value / _MINUTE_S), 60)
        return f"{hours} h {rest:02} min"
    return f"{value / _DAY_S:,.1f} days"


def money(value: float | None) -> str:
    """An amount in the currency of the price."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if value >= 1000 else f"{value:,.2f}" if value >= 1 else f"{value:.3g}"


_WIDE = 0.6
"""An interval that reaches less far is told by its farther side."""


def spread(prediction: Prediction) -> Label:
    """How far its 90% interval reaches: `12%`, its farther side, or both sides where it is wide."""
    ends = prediction.time_interval_s
    low, high = (abs(end / prediction.time_s - 1) if prediction.time_s else 0.0 for end in (ends.low, ends.high))
    if not low and not high:
        return Label(None, "–")
    clipped = not ends.low
    return Label(high, f"{high:.0%}" if clipped or high < _WIDE else f"-{100 * low:.0f}+{high:.0%}")


def main_table(predictions: Predictions, *, price: float | None = None) -> Table:
    """Every prediction in a row. However narrow the terminal: its tier, its time and how sure that is, and what was
    asked for."""
    several = any(prediction.many is not None for prediction in predictions)
    columns = _who(predictions, several=several)
    columns += [(column("time_s"), lambda row: row.time_s), (Column("±", raw="time_high_s / time_s - 1"), spread)]
    if any(prediction.measured_time_s for prediction in predictions):
        about = "what the ledger's step took on this very device; and the prediction against it"
        columns += [
            (Column("measured", seconds, raw="measured_time_s", about=about), lambda row: row.measured_time_s),
            (Column("error", formatting.signed_percent, raw="error", about=about), lambda row: row.error),
        ]
    if several:
        about = "exposed communication, and bubbles"
        columns += [
            (Column("computing", seconds, optional=4, raw="compute_s"), _of_many("compute_s")),
            (Column("waiting", seconds, optional=3, raw="waiting_s", about=about), _waiting),
            (column("efficiency"), _of_many("efficiency")),
        ]
    elif not all(prediction.tier == "spec" for prediction in predictions) and predictions.header.target != "cpu":
        columns.append((column("gpu_time_s", optional=3), lambda row: row.gpu_time_s))
    columns += _rates(predictions, price)
    columns += [
        (column("device_bytes", optional=2), lambda row: row.memory and row.memory.device_bytes),
        (column("fit"), lambda row: row.fit),
    ]
    if not several:
        columns += [
            (column("bound", optional=2), lambda row: row.bound),
            (column("percent_of_roof", optional=4), lambda row: row.percent_of_roof),
        ]
    return table_of(columns, predictions.predictions)


def _memory(prediction: Prediction) -> Label:
    if prediction.memory is None:
        return Label(None, "–")
    words = "" if prediction.fit == "fits" else f": {fit_text(prediction.fit)}"
    return Label(prediction.memory.device_bytes, text("device_bytes", prediction.memory.device_bytes) + words)


def _who(predictions: Predictions, *, several: bool) -> _Columns:
    columns: _Columns = [(column("device"), lambda row: row.device), (column("tier"), lambda row: row.tier)]
    if not several:
        return [*columns, (column("batch"), lambda row: row.batch)]
    columns.append((column("gpus"), lambda row: row.gpus))
    if any(prediction.many is not None and prediction.many.nodes > 1 for prediction in predictions):
        columns.append((column("nodes", optional=5), lambda row: row.many.nodes if row.many else 1))
    return [
        *columns,
        (column("batch_each", raw="batch", optional=6), lambda row: row.batch),
        (column("global_batch", optional=2), lambda row: row.many.global_batch if row.many else row.batch),
    ]


def _of_many(name: str) -> Callable[[Prediction], Any]:
    return lambda row: getattr(row.many, name, None)


def _waiting(prediction: Prediction) -> float | None:
    return None if prediction.many is None else prediction.many.exposed_s + prediction.many.bubble_s


def _rates(predictions: Predictions, price: float | None) -> _Columns:
    columns: _Columns = [(column("samples_per_s", optional=1), lambda row: row.throughput)]
    if any(prediction.tokens_per_s is not None for prediction in predictions):
        columns.append((column("tokens_per_s", optional=5), lambda row: row.tokens_per_s))
    columns.append((column("mfu", optional=6), lambda row: row.mfu))
    if price is not None:
        # It was asked for, and stands nowhere else.
        columns.append(
            (Column("cost of 1 M", money, raw="cost_of_million_samples"), lambda row: row.cost_of_samples(10**6, price))
        )
    return columns


_FIGURES = (
    "device", "tier", "batch", "time_s", "time_interval_s.low", "time_interval_s.high", "gpu_time_s", "host_time_s",
    "throughput", "tokens_per_s", "flops", "mfu", "bound", "percent_of_roof", "intensity", "inside", "kernels",
    "wall_time_s", "gpu_busy_s", "gain",
)  # fmt: skip
_MEMORY = ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "usable_bytes", "fits", "fit")
_MANY = (
    "gpus", "nodes", "parallel", "global_batch", "compute_s", "bubble_s", "communication_s", "exposed_s", "efficiency",
)  # fmt: skip
_ENDS = {"time_interval_s.low": "time_low_s", "time_interval_s.high": "time_high_s"}


def csv_table(
    predictions: Predictions, *, epochs: int | None = None, dataset_size: int | None = None, price: float | None = None
) -> Table:
    """All figures as they are, for spreadsheets."""
    limits = ("max_batch", "max_seq")
    asked = [name for name in limits if any(getattr(prediction, name) is not None for prediction in predictions)]
    columns: _Columns = [(Column(_ENDS.get(name, name)), attrgetter(name)) for name in _FIGURES]
    columns += [(Column(name), _part_of(attrgetter("memory"), name)) for name in _MEMORY]
    columns += [(Column(name), attrgetter(name)) for name in asked]
    if any(prediction.measured_time_s for prediction in predictions):
        columns += [(Column(name), attrgetter(name)) for name in ("measured_time_s", "measured_gpu_time_s", "error")]
    if any(prediction.many is not None for prediction in predictions):
        columns += [(Column(name), _of_many(name)) for name in _MANY]
    if epochs is not None and dataset_size is not None:
        run = _run(predictions, epochs, dataset_size, price)
        names = ("steps", "time_s", *(() if price is None else ("cost",)))
        columns += [(Column(f"run_{name}"), _part_of(run, name)) for name in names]
    if price is not None:
        columns.append((Column("cost_of_million_samples"), lambda row: row.cost_of_samples(10**6, price)))
    return table_of(columns, predictions.predictions)


def _part_of(whole: Callable[[Prediction], Any], name: str) -> Callable[[Prediction], Any]:
    return lambda row: getattr(whole(row), name, None)


def _run(
    predictions: Predictions, epochs: int, dataset_size: int, price: float | None
) -> Callable[[Prediction], TrainingRun | None]:
    """A whole training run of each."""
    return lambda row: row.run(epochs, dataset_size, price, accumulate=predictions.header.accumulate)


def pivot_tables(predictions: Predictions, *, price: float | None = None) -> tuple[Table, ...]:
    """Batches below one another, devices side by side: what is read of many cells."""
    wanted: list[tuple[str, Callable[[Prediction], Any], Callable[[Any], str]]] = [
        ("time/step", lambda row: row.time_s, seconds),
        ("samples/s", lambda row: row.throughput, per_second),
    ]
    if any(prediction.many is not None for prediction in predictions):
        wanted.append(("efficiency", lambda row: row.many.efficiency if row.many else None, formatting.percent))
    else:
        wanted.append(("bound, and % of roof", _bound, str))
    if any(prediction.memory is not None for prediction in predictions):
        wanted.append(("memory in use on the device", _memory, str))
    if price is not None:
        wanted.append(("cost of 1 M samples", lambda row: row.cost_of_samples(10**6, price), money))
    return tuple(_pivot(predictions, *cell) for cell in wanted)


def _bound(prediction: Prediction) -> Label:
    bound, percent = prediction.bound, prediction.percent_of_roof
    return Label(f"{bound} {percent}", f"{bound} {percent_text(percent)}")


def _pivot(
    predictions: Predictions, title: str, value: Callable[[Prediction], Any], write: Callable[[Any], str]
) -> Table:
    devices = list(dict.fromkeys(prediction.device for prediction in predictions))
    batches = list(dict.fromkeys(prediction.batch for prediction in predictions))
    cells = {(prediction.device, prediction.batch): value(prediction) for prediction in predictions}

    def on(device: str) -> Callable[[int | None], Any]:
        return lambda batch: cells[device, batch]

    # A terminal that is too narrow loses the last devices first.
    columns: Cells[int | None] = [(column("batch"), lambda batch: batch)]
    columns += [(Column(device, write, optional=place), on(device)) for place, device in enumerate(devices)]
    return table_of(columns, batches, title=title)


# --- what one prediction is made of ---


def op_table(prediction: Prediction, title: str) -> Table:
    """The costliest ops."""
    columns: Cells[CostlyOp] = [
        (column("op"), lambda op: _short_op(op.name)),
        (column("calls", optional=1), lambda op: op.calls),
        (Column("first in", right=False), lambda op: op.module),
        (Column("shapes", right=False, optional=2), lambda op: op.shapes),
        (Column("dtype", right=False, optional=3), lambda op: op.precision),
        (column("time_s", heading="time"), lambda op: op.time_s),
        (column("share"), lambda op: op.share),
        (column("bound", optional=4), lambda op: op.bound),
        (column("percent_of_roof"), lambda op: op.percent_of_roof),
    ]
    return table_of(columns, prediction.ops, title=title)


def _short_op(name: str) -> str:
    """`efficient_attention_backward` says all that its whole name does."""
    return name.removeprefix("aten::").removeprefix("_scaled_dot_product_")


def phase_table(prediction: Prediction, title: str) -> Table:
    total = sum(prediction.phases.values())
    phases = [(phase, prediction.phases[phase]) for phase in PHASES if phase in prediction.phases and total]
    return _shares(column("phase"), phases, total, title)


def advice_table(prediction: Prediction, title: str) -> Table:
    columns: Cells[Advice] = [
        (Column("change", right=False), lambda advice: advice.change),
        (Column("options", right=False, optional=1), lambda advice: advice.options),
        (column("time_s"), lambda advice: advice.time_s),
        (column("samples_per_s"), lambda advice: advice.throughput),
        (column("gain"), lambda advice: advice.gain),
    ]
    return table_of(columns, prediction.advice, title=title)


def run_table(predictions: Predictions, *, epochs: int, dataset_size: int, price: float | None) -> Table:
    """A whole training run on each device."""
    run_of = _run(predictions, epochs, dataset_size, price)
    runs = [(prediction, run) for prediction in predictions if (run := run_of(prediction)) is not None]
    size = "GPUs" if any(prediction.many for prediction in predictions) else "batch"
    columns: Cells[tuple[Prediction, TrainingRun]] = [
        (column("device"), lambda row: row[0].device),
        (Column(size, formatting.exact), lambda row: row[0].gpus if row[0].many else row[0].batch),
        (column("steps"), lambda row: row[1].steps),
        (column("time_s", heading="time", write=duration), lambda row: row[1].time_s),
        (Column("90% interval", optional=1), lambda row: _ends(row[1].time_interval_s)),
    ]
    if price is not None:
        columns.append((Column("cost", money), lambda row: row[1].cost))
    title = f"{_counted(epochs, 'epoch')} of {_counted(dataset_size, 'sample')}"
    return table_of(columns, runs, title=title)


def _ends(interval: Interval) -> str:
    return "–" if interval.low == interval.high else f"{duration(interval.low)} to {duration(interval.high)}"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
