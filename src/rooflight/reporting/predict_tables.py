"""Predictions as tables: one row a device and batch, then what one of them is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rooflight import units
from rooflight.metrics import fit_text, percent_text, text
from rooflight.prediction.result import Interval, Prediction, Predictions
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Label, Table
from rooflight.units import per_second, seconds

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
    low, high = (abs(end / one.time_s - 1) if one.time_s else 0.0
                 for end in (one.time_interval_s.low, one.time_interval_s.high))  # fmt: skip
    if not low and not high:
        return Label(None, "–")
    clipped = not one.time_interval_s.low
    return Label(high, f"{high:.0%}" if clipped or abs(high - low) < 0.01 else f"-{low:.0%} +{high:.0%}")


def has_several(found: Predictions, of: str) -> bool:
    return len({getattr(one, of) for one in found}) > 1


def main_table(found: Predictions, *, price: float | None = None) -> Table:
    """Every prediction in a row. However narrow the terminal: its tier, its time and how sure that is, and what was
    asked for."""
    if any(one.many is not None for one in found):
        columns = _who(found) + _many_columns() + _rates(found, price) + _memory_columns()
        return _drawn("", columns, found.predictions)
    columns = [*_time()]
    if not all(one.tier == "spec" for one in found) and found.header.target != "cpu":
        columns.append((column("gpu_time_s", optional=3), lambda one: one.gpu_time_s))
    columns += _rates(found, price)
    columns += _memory_columns()
    columns += [
        (column("bound", optional=2), lambda one: one.bound),
        (column("percent_of_roof", optional=4), lambda one: one.percent_of_roof),
    ]
    return _drawn("", _who(found) + columns, found.predictions)


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


def _who(found: Predictions) -> _Columns:
    columns: _Columns = [
        (column("device"), lambda one: one.device),
        (column("tier"), lambda one: one.tier),
    ]
    if any(one.many is not None for one in found):
        return [
            *columns,
            (column("gpus"), lambda one: one.gpus),
            *([(column("nodes", optional=5), _nodes)] if any(map(_spans, found)) else []),
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


def _rates(found: Predictions, price: float | None) -> _Columns:
    columns: _Columns = [(column("samples_per_s", optional=1), lambda one: one.throughput)]
    if any(one.tokens_per_s is not None for one in found):
        columns.append((column("tokens_per_s", optional=5), lambda one: one.tokens_per_s))
    columns.append((column("mfu", optional=6), lambda one: one.mfu))
    if price is not None:
        # It was asked for, and stands nowhere else.
        columns.append((Column("cost of 1 M", money, raw="cost_of_million_samples"),
                        lambda one: one.cost_of_samples(10**6, price)))  # fmt: skip
    return columns


def _drawn(title: str, columns: _Columns, rows: Sequence[Prediction]) -> Table:
    cells = tuple(tuple(value(one) for _, value in columns) for one in rows)
    return Table(title, tuple(column for column, _ in columns), cells)


def csv_table(found: Predictions, *, epochs: int | None = None, dataset_size: int | None = None,
              price: float | None = None) -> Table:  # fmt: skip
    """All figures as they are, for spreadsheets."""
    names = ("device", "tier", "batch", "time_s", "gpu_time_s", "host_time_s", "throughput", "tokens_per_s", "flops",
             "mfu", "bound", "percent_of_roof", "intensity", "inside", "kernels", "wall_time_s", "gpu_busy_s",
             "gain")  # fmt: skip
    many = ("gpus", "nodes", "parallel", "global_batch", "compute_s", "bubble_s", "communication_s", "exposed_s",
            "efficiency")  # fmt: skip
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
        if any(getattr(one, name) is not None for one in found)
    ]
    if any(one.many is not None for one in found):
        columns += [(Column(name), lambda one, name=name: getattr(one.many, name)) for name in many]  # type: ignore[misc]
    if epochs is not None and dataset_size is not None:
        runs = {id(one): one.run(epochs, dataset_size, price, accumulate=found.header.accumulate) for one in found}
        columns += [
            (Column(f"run_{name}"), lambda one, name=name: getattr(runs[id(one)], name, None))  # type: ignore[misc]
            for name in ("steps", "time_s", *(() if price is None else ("cost",)))
        ]
    if price is not None:
        columns.append((Column("cost_of_million_samples"), lambda one: one.cost_of_samples(10**6, price)))
    return _drawn("", columns, found.predictions)


def pivot_tables(found: Predictions, *, price: float | None = None) -> tuple[Table, ...]:
    """Batches below one another, devices side by side: what is read of many cells."""
    wanted: list[tuple[str, Callable[[Prediction], Any], Callable[[Any], str]]] = [
        ("time/step", lambda one: one.time_s, seconds),
        ("samples/s", lambda one: one.throughput, per_second),
    ]
    if any(one.many is not None for one in found):
        wanted.append(("efficiency", lambda one: one.many.efficiency if one.many else None, units.percent))
    else:
        wanted.append(("bound, and % of roof", _bound, str))
    if any(one.memory is not None for one in found):
        wanted.append(("memory in use on the device", _memory, str))
    if price is not None:
        wanted.append(("cost of 1 M samples", lambda one: one.cost_of_samples(10**6, price), money))
    return tuple(_pivot(found, *one) for one in wanted)


def _bound(one: Prediction) -> Label:
    return Label(f"{one.bound} {one.percent_of_roof}", f"{one.bound} {percent_text(one.percent_of_roof)}")


def _pivot(found: Predictions, title: str, value: Callable[[Prediction], Any], write: Callable[[Any], str]) -> Table:
    devices = list(dict.fromkeys(one.device for one in found))
    batches = list(dict.fromkeys(one.batch for one in found))
    by_place = {(one.device, one.batch): value(one) for one in found}
    # A terminal that is too narrow loses the last devices first.
    columns = [Column(device, write, optional=place) for place, device in enumerate(devices)]
    rows = tuple((batch, *(by_place[device, batch] for device in devices)) for batch in batches)
    return Table(title, (column("batch"), *columns), rows)


# --- what one prediction is made of ---


def op_table(one: Prediction, title: str) -> Table:
    """The costliest ops."""
    columns = (
        column("op"), column("calls", optional=1), Column("first in", right=False),
        Column("shapes", right=False, optional=2), Column("dtype", right=False, optional=3),
        column("time_s", heading="time"), column("share"),
        column("bound", optional=4), column("percent_of_roof"),
    )  # fmt: skip
    rows = tuple(
        (_short_op(op.name), op.calls, op.module, op.shapes, op.precision, op.time_s, op.share, op.bound,
         op.percent_of_roof)
        for op in one.ops
    )  # fmt: skip
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
        Column("change", right=False), Column("options", right=False, optional=1),
        column("time_s"), column("samples_per_s"),
        column("gain"),
    )  # fmt: skip
    rows = tuple((advice.change, advice.options, advice.time_s, advice.throughput, advice.gain)
                 for advice in one.advice)  # fmt: skip
    return Table(title, columns, rows)


def run_table(found: Predictions, *, epochs: int, dataset_size: int, price: float | None) -> Table:
    """A whole training run on each device."""
    columns = [
        column("device"), Column("GPUs" if any(one.many for one in found) else "batch", units.exact),
        column("steps"), column("time_s", heading="time", write=duration),
        Column("90% interval", optional=1),
    ]  # fmt: skip
    columns += [Column("cost", money)] if price is not None else []
    rows = []
    for one in found:
        run = one.run(epochs, dataset_size, price, accumulate=found.header.accumulate)
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
