"""Predictions as tables: devices and batches, many GPUs, and one table of raw values for spreadsheets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds
from rooflight.metrics import fit_text, percent_text, text
from rooflight.prediction.result import ClusterPrediction, Interval, Prediction, Predictions, ScalingPoint
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Label, Table, table_of


def time_table(one: Prediction, many: ClusterPrediction, of: str) -> Table:
    """What the step's time is made of."""
    rows = [("computing", many.compute_s), ("exposed communication", many.exposed_s)]
    if many.pipeline > 1:
        rows.append(("pipeline bubble", many.bubble_s))
    rows.append(("step", one.time_s))
    cells = tuple((name, time_s, time_s / one.time_s) for name, time_s in rows)
    columns = (Column("of one GPU", right=False), column("time_s", heading="time"), column("share"))
    return Table(f"where the time goes{of}", columns, cells, emphasised=frozenset({len(cells) - 1}))


def traffic_table(many: ClusterPrediction) -> Table:
    columns = (
        Column("what one GPU sends", right=False),
        Column("messages", formatting.exact),
        column("bytes"),
        column("time_s", heading="time"),
        Column("how", right=False, optional=1),
    )
    rows = tuple((row.what, row.calls, row.bytes, row.time_s, row.how) for row in many.traffic)
    return Table("", columns, rows)


def memory_table(many: ClusterPrediction) -> Table:
    rows = (
        ("parameters", many.parameter_bytes),
        ("gradients", many.gradient_bytes),
        ("optimizer state", many.optimizer_bytes),
        ("together", many.state_bytes),
    )
    one = "kept by one GPU" if many.pipeline == 1 else "kept by one GPU of the stage with most of it"
    columns = (Column(one, right=False), column("bytes"))
    return Table("", columns, rows, emphasised=frozenset({3}))


def scaling_table(kind: str, points: Sequence[ScalingPoint]) -> Table:
    """One curve. PALEO's speed-ups stand beside."""
    columns = (
        column("gpus"),
        column("batch_each", optional=3),
        column("global_batch", optional=1),
        column("time_s"),
        column("exposed_s", optional=2),
        column("samples_per_s"),
        column("speedup", raw="speed-up"),
        column("efficiency"),
        column("fit"),
        Column("PALEO tree", quotient, optional=4),
        Column("butterfly", quotient, optional=6),
        Column("one-to-all", quotient, optional=5),
    )
    rows = tuple(
        (
            point.gpus,
            point.batch,
            point.global_batch,
            point.time_s,
            point.exposed_s,
            point.throughput,
            point.speedup,
            point.efficiency,
            point.fit,
            *(point.paleo_speedup.get(name) for name in ("tree", "butterfly", "one-to-all")),
        )
        for point in points
    )
    titles = {
        "weak": "weak scaling: every replica keeps its batch",
        "strong": "strong scaling: the global batch is divided",
    }
    return Table(titles[kind], columns, rows)


def tables(one: Prediction, of: str) -> list[Table]:
    """All of them, those without rows left out; `of` which, where there are several predictions."""
    many = one.many
    if many is None:
        return []
    every_table = [
        time_table(one, many, of),
        traffic_table(many),
        memory_table(many),
        scaling_table("weak", many.weak),
        scaling_table("strong", many.strong),
    ]
    return [table for table in every_table if table.rows]


PIVOTED = 24
"""From so many rows on, devices stand side by side instead of below one another."""
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))
_PHASES = ("forward", "backward", "optimizer")
_DAY_S, _HOUR_S, _MINUTE_S = 86_400, 3_600, 60

_Columns = list[tuple[Column, Callable[[Prediction], Any]]]


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


def spread(one: Prediction) -> Label:
    """How far its 90% interval reaches: `12%`, or both sides where they differ."""
    low, high = (
        abs(end / one.time_s - 1) if one.time_s else 0.0 for end in (one.time_interval_s.low, one.time_interval_s.high)
    )
    if not low and not high:
        return Label(None, "–")
    clipped = not one.time_interval_s.low
    return Label(high, f"{high:.0%}" if clipped or abs(high - low) < 0.01 else f"-{low:.0%} +{high:.0%}")


def has_several(predictions: Predictions, of: str) -> bool:
    return len({getattr(prediction, of) for prediction in predictions}) > 1


def main_table(predictions: Predictions, *, price: float | None = None) -> Table:
    """Every prediction in a row. However narrow the terminal: its tier, its time and how sure that is, and what was
    asked for."""
    if any(prediction.many is not None for prediction in predictions):
        columns = _who(predictions) + _many_columns() + _rates(predictions, price) + _memory_columns()
        return table_of(columns, predictions.predictions)
    columns = [*_time()]
    if not all(prediction.tier == "spec" for prediction in predictions) and predictions.header.target != "cpu":
        columns.append((column("gpu_time_s", optional=3), lambda one: one.gpu_time_s))
    columns += _rates(predictions, price)
    columns += _memory_columns()
    columns += [
        (column("bound", optional=2), lambda one: one.bound),
        (column("percent_of_roof", optional=4), lambda one: one.percent_of_roof),
    ]
    return table_of(_who(predictions) + columns, predictions.predictions)


def _memory_columns() -> _Columns:
    """Of the device, with context and libraries, and whether it fits."""
    return [
        (column("device_bytes", optional=2), lambda one: one.memory and one.memory.device_bytes),
        (column("fit"), lambda one: one.fit),
    ]


def _memory(one: Prediction) -> Label:
    if one.memory is None:
        return Label(None, "–")
    words = "" if one.fit == "fits" else f": {fit_text(one.fit)}"
    return Label(one.memory.device_bytes, text("device_bytes", one.memory.device_bytes) + words)


def _time() -> _Columns:
    return [
        (column("time_s"), lambda one: one.time_s),
        (Column("±", raw="time_high_s / time_s - 1"), spread),
    ]


def _who(predictions: Predictions) -> _Columns:
    columns: _Columns = [
        (column("device"), lambda one: one.device),
        (column("tier"), lambda one: one.tier),
    ]
    if any(prediction.many is not None for prediction in predictions):
        return [
            *columns,
            (column("gpus"), lambda one: one.gpus),
            *([(column("nodes", optional=5), _nodes)] if any(map(_spans, predictions)) else []),
            (column("batch_each", raw="batch", optional=6), lambda one: one.batch),
            (column("global_batch", optional=2), _global_batch),
        ]
    return [*columns, (column("batch"), lambda one: one.batch)]


def _spans(one: Prediction) -> bool:
    return one.many is not None and one.many.nodes > 1


def _nodes(one: Prediction) -> int:
    return one.many.nodes if one.many else 1


def _global_batch(one: Prediction) -> int | None:
    return one.many.global_batch if one.many else one.batch


def _many_columns() -> _Columns:
    def of(name: str) -> Callable[[Prediction], Any]:
        return lambda one: getattr(one.many, name, None)

    return [
        *_time(),
        (Column("computing", seconds, optional=4, raw="compute_s"), of("compute_s")),
        (Column("waiting", seconds, optional=3, raw="waiting_s", about="exposed communication, and bubbles"), _waiting),
        (column("efficiency"), of("efficiency")),
    ]


def _waiting(one: Prediction) -> float | None:
    return None if one.many is None else one.many.exposed_s + one.many.bubble_s


def _rates(predictions: Predictions, price: float | None) -> _Columns:
    columns: _Columns = [(column("samples_per_s", optional=1), lambda one: one.throughput)]
    if any(prediction.tokens_per_s is not None for prediction in predictions):
        columns.append((column("tokens_per_s", optional=5), lambda one: one.tokens_per_s))
    columns.append((column("mfu", optional=6), lambda one: one.mfu))
    if price is not None:
        # It was asked for, and stands nowhere else.
        columns.append(
            (Column("cost of 1 M", money, raw="cost_of_million_samples"), lambda one: one.cost_of_samples(10**6, price))
        )
    return columns


def csv_table(
    predictions: Predictions, *, epochs: int | None = None, dataset_size: int | None = None, price: float | None = None
) -> Table:
    """All figures as they are, for spreadsheets."""
    names = (
        "device",
        "tier",
        "batch",
        "time_s",
        "gpu_time_s",
        "host_time_s",
        "throughput",
        "tokens_per_s",
        "flops",
        "mfu",
        "bound",
        "percent_of_roof",
        "intensity",
        "inside",
        "kernels",
        "wall_time_s",
        "gpu_busy_s",
        "gain",
    )
    many = (
        "gpus",
        "nodes",
        "parallel",
        "global_batch",
        "compute_s",
        "bubble_s",
        "communication_s",
        "exposed_s",
        "efficiency",
    )
    columns: _Columns = [(Column(name), lambda one, name=name: getattr(one, name)) for name in names]  # type: ignore[misc]
    columns[4:4] = [
        (Column("time_low_s"), lambda one: one.time_interval_s.low),
        (Column("time_high_s"), lambda one: one.time_interval_s.high),
    ]
    columns += [
        (Column(name), lambda one, name=name: getattr(one.memory, name, None))  # type: ignore[misc]
        for name in ("peak_allocated_bytes", "peak_reserved_bytes", "device_bytes", "usable_bytes", "fits", "fit")
    ]
    columns += [
        (Column(name), lambda one, name=name: getattr(one, name))  # type: ignore[misc]
        for name in ("max_batch", "max_seq")
        if any(getattr(prediction, name) is not None for prediction in predictions)
    ]
    if any(prediction.many is not None for prediction in predictions):
        columns += [(Column(name), lambda one, name=name: getattr(one.many, name)) for name in many]  # type: ignore[misc]
    if epochs is not None and dataset_size is not None:

        def whole_run(prediction: Prediction, epochs: int = epochs, samples: int = dataset_size) -> Any:
            return prediction.run(epochs, samples, price, accumulate=predictions.header.accumulate)

        columns += [
            (Column(f"run_{name}"), lambda one, name=name: getattr(whole_run(one), name, None))  # type: ignore[misc]
            for name in ("steps", "time_s", *(() if price is None else ("cost",)))
        ]
    if price is not None:
        columns.append((Column("cost_of_million_samples"), lambda one: one.cost_of_samples(10**6, price)))
    return table_of(columns, predictions.predictions)


def pivot_tables(predictions: Predictions, *, price: float | None = None) -> tuple[Table, ...]:
    """Batches below one another, devices side by side: what is read of many cells."""
    wanted: list[tuple[str, Callable[[Prediction], Any], Callable[[Any], str]]] = [
        ("time/step", lambda one: one.time_s, seconds),
        ("samples/s", lambda one: one.throughput, per_second),
    ]
    if any(prediction.many is not None for prediction in predictions):
        wanted.append(("efficiency", lambda one: one.many.efficiency if one.many else None, formatting.percent))
    else:
        wanted.append(("bound, and % of roof", _bound, str))
    if any(prediction.memory is not None for prediction in predictions):
        wanted.append(("memory in use on the device", _memory, str))
    if price is not None:
        wanted.append(("cost of 1 M samples", lambda one: one.cost_of_samples(10**6, price), money))
    return tuple(_pivot(predictions, *one) for one in wanted)


def _bound(one: Prediction) -> Label:
    return Label(f"{one.bound} {one.percent_of_roof}", f"{one.bound} {percent_text(one.percent_of_roof)}")


def _pivot(
    predictions: Predictions, title: str, value: Callable[[Prediction], Any], write: Callable[[Any], str]
) -> Table:
    devices = list(dict.fromkeys(prediction.device for prediction in predictions))
    batches = list(dict.fromkeys(prediction.batch for prediction in predictions))
    by_place = {(prediction.device, prediction.batch): value(prediction) for prediction in predictions}
    # A terminal that is too narrow loses the last devices first.
    columns = [Column(device, write, optional=place) for place, device in enumerate(devices)]
    rows = tuple((batch, *(by_place[device, batch] for device in devices)) for batch in batches)
    return Table(title, (column("batch"), *columns), rows)


# --- what one prediction is made of ---


def op_table(one: Prediction, title: str) -> Table:
    """The costliest ops."""
    columns = (
        column("op"),
        column("calls", optional=1),
        Column("first in", right=False),
        Column("shapes", right=False, optional=2),
        Column("dtype", right=False, optional=3),
        column("time_s", heading="time"),
        column("share"),
        column("bound", optional=4),
        column("percent_of_roof"),
    )
    rows = tuple(
        (
            _short_op(op.name),
            op.calls,
            op.module,
            op.shapes,
            op.precision,
            op.time_s,
            op.share,
            op.bound,
            op.percent_of_roof,
        )
        for op in one.ops
    )
    return Table(title, columns, rows)


def _short_op(name: str) -> str:
    """`efficient_attention_backward` says all that its whole name does."""
    return name.removeprefix("aten::").removeprefix("_scaled_dot_product_")


def phase_table(one: Prediction, title: str) -> Table:
    total = sum(one.phases.values())
    rows = [(phase, one.phases[phase], one.phases[phase] / total) for phase in _PHASES if phase in one.phases and total]
    columns = (column("phase"), column("time_s", heading="time"), column("share"))
    return Table(title, columns, tuple(rows))


def advice_table(one: Prediction, title: str) -> Table:
    columns = (
        Column("change", right=False),
        Column("options", right=False, optional=1),
        column("time_s"),
        column("samples_per_s"),
        column("gain"),
    )
    rows = tuple(
        (advice.change, advice.options, advice.time_s, advice.throughput, advice.gain) for advice in one.advice
    )
    return Table(title, columns, rows)


def run_table(predictions: Predictions, *, epochs: int, dataset_size: int, price: float | None) -> Table:
    """A whole training run on each device."""
    columns = [
        column("device"),
        Column("GPUs" if any(prediction.many for prediction in predictions) else "batch", formatting.exact),
        column("steps"),
        column("time_s", heading="time", write=duration),
        Column("90% interval", optional=1),
    ]
    columns += [Column("cost", money)] if price is not None else []
    rows = []
    for one in predictions:
        run = one.run(epochs, dataset_size, price, accumulate=predictions.header.accumulate)
        if run is None:
            continue
        low, high = run.time_interval_s.low, run.time_interval_s.high
        ends = "–" if low == high else f"{duration(low)} to {duration(high)}"
        row = (one.device, one.gpus if one.many else one.batch, run.steps, run.time_s, ends)
        rows.append((*row, run.cost) if price is not None else row)
    title = f"{_counted(epochs, 'epoch')} of {_counted(dataset_size, 'sample')}"
    return Table(title, tuple(columns), tuple(rows))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"
