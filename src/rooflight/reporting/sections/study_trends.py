"""Trends of a study as tables: forms, knees, gains, devices and precisions side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds, whole_bytes, whole_count
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Label, Table
from rooflight.study.fitting import CurveFit
from rooflight.study.hypotheses.grid import written
from rooflight.study.trends import Front, Ratios, ThroughputGain, Trend, Trends, WeakScaling

_WRITE: dict[str, Callable[[Any], str]] = {
    "time": seconds,
    "gpu_busy": seconds,
    "memory": whole_bytes,
    "bytes": whole_bytes,
    "flops": whole_count,
}
_SHOWN = ("time", "memory", "flops")
_NAMES = {"time": "time", "memory": "memory", "flops": "FLOPs", "gpu_busy": "GPU-busy", "bytes": "bytes"}
_LINES = 48
"""Of one table; the document has all."""


def words(at: Mapping[str, str | int | bool | None]) -> str:
    """A place as people say it: `resnet50, bf16, a100, 4 GPUs`."""
    parts = []
    for axis, value in at.items():
        match axis:
            case "model" | "dtype" | "on" | "step" | "loss" | "optimizer" | "parallel":
                parts.append(str(value))
            case "gpus":
                parts += [f"{value} GPUs"] if value != 1 else []
            case "batch" | "autocast":
                parts.append(f"{axis} {value}")
            case _:
                parts.append(f"{axis}={written(value)}")
    return ", ".join(parts) or "all cells"


def trend_tables(trends: Trends) -> list[Table]:
    """All that have lines."""
    tables = [
        batch_table(trends.against_batch),
        gain_table(trends.throughput),
        front_table(trends.fronts),
        scaling_table(trends.scaling),
        *ratio_tables(trends.ratios),
    ]
    return [_shortened(table) for table in tables if table.rows]


def batch_table(trends: Sequence[Trend]) -> Table:
    """The form of every curve, how far the points lie off it, and its knee."""
    shown = [trend for quantity in _SHOWN for trend in trends if trend.quantity == quantity]
    columns = (
        Column("against the batch", right=False, whole=True),
        Column("of", str, right=False, whole=True),
        Column("by", str, right=False, optional=1),
        Column("form", str, right=False, whole=True),
        Column("error", _error),
        Column("worst", _error, optional=3),
        Column("batches", formatting.exact, optional=4),
        Column("knee", str, right=False, optional=2),
    )
    lines = tuple(
        (
            _NAMES[trend.quantity],
            words(trend.at),
            trend.side,
            form(trend),
            trend.fit.error if trend.fit else None,
            trend.fit.worst if trend.fit else None,
            len(trend.points),
            _knee(trend),
        )
        for trend in shown
    )
    return Table("trends: how time, memory and FLOPs grow with the batch", columns, lines)


def form(trend: Trend) -> str:
    """`9.90 ms + 0.11 ms × batch`."""
    if trend.fit is None:
        return f"– ({trend.no_fit})"
    return _formula(trend.fit, _WRITE[trend.quantity])


def _formula(fit: CurveFit, write: Callable[[Any], str]) -> str:
    if fit.exact:
        a, b = formatting.exact(round(fit.a)), formatting.exact(round(fit.b) if fit.b.is_integer() else fit.b)
        return {"constant": f"exactly {a}", "proportional": f"exactly {b} × batch"}.get(
            fit.form, f"exactly {a} + {b} × batch"
        )
    if not fit.holds:
        return "no form fits well enough"
    if fit.form == "constant":
        return f"{write(fit.a)}, whatever the batch"
    if fit.form == "power":
        kind = "superlinear" if fit.power > 1 else "sublinear"
        return f"{write(fit.b)} × batch^{fit.power:.2f} ({kind})"
    grown = f"{write(abs(fit.b))} × batch"
    if fit.form == "proportional":
        return grown
    if fit.form == "flat, then proportional":
        return f"{write(fit.a)}, then {grown}"
    if fit.a < 0:
        return f"{grown} − {write(-fit.a)}"
    return f"{write(fit.a)} {'+' if fit.b >= 0 else '−'} {grown}"


def _error(value: float | None) -> str:
    return "–" if value is None else "exact" if value == 0 else formatting.percent(value)


def _knee(trend: Trend) -> Label:
    if trend.knee is None:
        return Label(None, trend.no_knee)
    knee = trend.knee
    return Label(knee.batch, f"batch {_batch(knee.batch)} ({_batch(knee.low)} to {_batch(knee.high)})")


def _batch(value: float) -> str:
    return f"{value:.1f}" if value < 10 else f"{value:.0f}"


def gain_table(gains: Sequence[ThroughputGain]) -> Table:
    """Samples a second at every batch, and where more of it gains nothing."""
    batches = sorted({batch for gain in gains for batch, _ in gain.points})
    few = len(batches) <= 8
    columns = [Column("throughput of", right=False, whole=True), Column("by", str, right=False, optional=2)]
    columns += (
        [Column(f"at {batch}", per_second, optional=3, raw=f"samples_per_s at {batch}") for batch in batches]
        if few
        else []
    )
    columns += [
        Column("best samples/s", per_second),
        Column("at batch", formatting.exact),
        Column("saturated from", str, right=False),
        Column("fits up to", str, optional=1),
    ]
    lines = []
    for gain in gains:
        rates = dict(gain.points)
        enough = Label(gain.enough, gain.no_enough if gain.enough is None else f"batch {gain.enough}")
        lines.append(
            (
                words(gain.at),
                gain.side,
                *((rates.get(batch) for batch in batches) if few else ()),
                rates[gain.best],
                gain.best,
                enough,
                _fits(gain),
            )
        )
    return Table("throughput", tuple(columns), tuple(lines))


def _fits(gain: ThroughputGain) -> Label:
    if gain.fits is None:
        return Label(None, "–" if gain.fits_not is None else f"not at {gain.fits_not}")
    beyond = f", not {gain.fits_not}" if gain.fits_not is not None else ""
    return Label(gain.fits, f"{gain.fits}{beyond}")


def front_table(fronts: Sequence[Front]) -> Table:
    """The cells that no other beats in both."""
    lines = tuple(
        (words(front.at), front.side, words(point.at), point.time_per_sample_s, point.memory_bytes)
        for front in fronts
        if sum(point.best for point in front.points) > 1
        for point in front.points
        if point.best
    )
    columns = (
        Column("of", right=False, whole=True),
        Column("by", str, right=False, optional=1),
        Column("with", str, right=False, whole=True),
        Column("time/sample", seconds, raw="time_per_sample_s"),
        Column("memory", whole_bytes, raw="memory_bytes"),
    )
    return Table("Pareto front: time per sample and memory", columns, lines)


def scaling_table(scalings: Sequence[WeakScaling]) -> Table:
    """One GPU and several."""
    lines = tuple(
        (
            words(scaling.at),
            scaling.side,
            point.gpus,
            point.parallel,
            point.batch,
            point.throughput,
            point.speedup,
            point.efficiency,
        )
        for scaling in scalings
        for point in scaling.points
    )
    columns = (
        Column("of", right=False, whole=True),
        Column("by", str, right=False, optional=2),
        column("gpus"),
        Column("parallel", str, right=False, optional=3),
        column("batch_each", optional=1),
        column("samples_per_s"),
        column("speedup", raw="speed-up"),
        column("efficiency"),
    )
    return Table("weak scaling: one GPU and several, the same batch on each", columns, lines)


_BESIDE = {
    "on": "devices side by side",
    "dtype": "precisions side by side",
    "autocast": "with autocast and without",
    "tf32": "with TF32 and without",
}


def ratio_tables(ratios: Sequence[Ratios]) -> list[Table]:
    """A table for every axis and quantity: each value, and how it stands to the first."""
    groups: dict[tuple[str, str], list[Ratios]] = {}
    for ratio in ratios:
        if (ratio.axis, ratio.quantity) != ("on", "memory"):  # a step needs what it needs, wherever it runs
            groups.setdefault((ratio.axis, ratio.quantity), []).append(ratio)
    return [_ratio_table(axis, quantity, lines) for (axis, quantity), lines in groups.items()]


def _ratio_table(axis: str, quantity: str, ratios: Sequence[Ratios]) -> Table:
    names = list(dict.fromkeys(name for ratio in ratios for name in ratio.values))
    columns = [Column(quantity, right=False, whole=True), Column("by", str, right=False, optional=1)]
    columns += [Column(name, _WRITE[quantity], raw=f"{quantity} {name}") for name in names]
    columns += [Column(f"{name} / {names[0]}", quotient, optional=2) for name in names[1:]]
    lines = []
    for ratio in ratios:
        first = ratio.values.get(names[0])
        over = [_over(ratio.values, name, first) for name in names[1:]]
        lines.append((words(ratio.at), ratio.side, *(ratio.values.get(name) for name in names), *over))
    return Table(f"{_BESIDE[axis]}: {quantity}", tuple(columns), tuple(lines))


def _over(values: Mapping[str, float], name: str, first: float | None) -> float | None:
    return values[name] / first if first and name in values else None


def _shortened(table: Table) -> Table:
    if len(table.rows) <= _LINES:
        return table
    more = f"{table.title} (the first {_LINES} of {len(table.rows):,} lines)"
    return replace(table, title=more, rows=table.rows[:_LINES])
