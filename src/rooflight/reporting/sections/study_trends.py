"""Trends of a study as tables: forms, knees, gains, devices and precisions side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds, whole_bytes, whole_count
from rooflight.metrics import ratio
from rooflight.reporting.columns import column
from rooflight.reporting.table import Cells, Column, Label, Table, table_of
from rooflight.study.fitting import CurveFit
from rooflight.study.hypotheses.grid import written
from rooflight.study.trends import (
    Front,
    FrontPoint,
    Ratios,
    StudyScaling,
    StudyScalingPoint,
    ThroughputGain,
    Trend,
    Trends,
)

_WRITE: dict[str, Callable[[Any], str]] = {
    "time": seconds,
    "gpu_busy": seconds,
    "memory": whole_bytes,
    "bytes": whole_bytes,
    "flops": whole_count,
}
_NAMES = {"time": "time", "memory": "memory", "flops": "FLOPs"}
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
            case "batch" | "autocast" | "total_batch":
                parts.append(f"{axis.replace('_', ' ')} {value}")
            case _:
                parts.append(f"{axis}={written(value)}")
    return ", ".join(parts) or "all cells"


def trend_tables(trends: Trends) -> list[Table]:
    """All that have lines."""
    tables = [
        batch_table(trends.against_batch),
        gain_table(trends.throughput),
        front_table(trends.fronts),
        *scaling_tables(trends.scaling),
        *ratio_tables(trends.ratios),
    ]
    return [_shortened(table) for table in tables if table.rows]


def batch_table(trends: Sequence[Trend]) -> Table:
    """The form of every curve, how far the points lie off it, and its knee."""
    columns: Cells[Trend] = [
        (Column("against the batch", right=False, whole=True), lambda trend: _NAMES[trend.quantity]),
        (Column("of", right=False, whole=True), lambda trend: words(trend.at)),
        (Column("by", right=False, optional=1), lambda trend: trend.side),
        (Column("form", right=False, whole=True), form),
        (Column("error", _error), lambda trend: trend.fit.error if trend.fit else None),
        (Column("worst", _error, optional=3), lambda trend: trend.fit.worst if trend.fit else None),
        (Column("batches", formatting.exact, optional=4), lambda trend: len(trend.points)),
        (Column("knee", right=False, optional=2), _knee),
    ]
    shown = [trend for quantity in _NAMES for trend in trends if trend.quantity == quantity]
    return table_of(columns, shown, title="trends: how time, memory and FLOPs grow with the batch")


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

    def rate_at(batch: int) -> Callable[[ThroughputGain], float | None]:
        return lambda gain: dict(gain.points).get(batch)

    columns: Cells[ThroughputGain] = [
        (Column("throughput of", right=False, whole=True), lambda gain: words(gain.at)),
        (Column("by", right=False, optional=2), lambda gain: gain.side),
    ]
    if len(batches) <= 8:
        columns += [
            (Column(f"at {batch}", per_second, optional=3, raw=f"samples_per_s at {batch}"), rate_at(batch))
            for batch in batches
        ]
    columns += [
        (Column("best samples/s", per_second), lambda gain: dict(gain.points)[gain.best]),
        (Column("at batch", formatting.exact), lambda gain: gain.best),
        (Column("saturated from", right=False), _saturated),
        (Column("fits up to", optional=1), _fits),
    ]
    return table_of(columns, gains, title="throughput")


def _saturated(gain: ThroughputGain) -> Label:
    return Label(gain.enough, gain.no_enough if gain.enough is None else f"batch {gain.enough}")


def _fits(gain: ThroughputGain) -> Label:
    if gain.fits is None:
        return Label(None, "–" if gain.fits_not is None else f"not at {gain.fits_not}")
    beyond = f", not {gain.fits_not}" if gain.fits_not is not None else ""
    return Label(gain.fits, f"{gain.fits}{beyond}")


def front_table(fronts: Sequence[Front]) -> Table:
    """The cells that no other beats in both."""
    points = [
        (front, point)
        for front in fronts
        if sum(point.best for point in front.points) > 1
        for point in front.points
        if point.best
    ]
    doubts = dict.fromkeys(point.doubt for _, point in points if point.doubt)
    marks = dict(zip(doubts, _MARKS, strict=False))
    columns: Cells[tuple[Front, FrontPoint]] = [
        (Column("of", right=False, whole=True), lambda row: words(row[0].at)),
        (Column("by", right=False, optional=1), lambda row: row[0].side),
        (Column("with", right=False, whole=True), lambda row: words(row[1].at)),
        (Column("time/sample", raw="time_per_sample_s"), lambda row: _marked_time(row[1], marks)),
    ]
    if any(point.recorded_per_sample_s is not None for _, point in points):
        recorded = Column("recorded", seconds, raw="recorded_per_sample_s")
        columns.append((recorded, lambda row: row[1].recorded_per_sample_s))
    columns.append((Column("memory", whole_bytes, raw="memory_bytes"), lambda row: row[1].memory_bytes))
    table = table_of(columns, points, title="Pareto front: time per sample and memory")
    notes = [f"{mark} {why[:1].upper()}{why[1:]}." for why, mark in marks.items()]
    notes += [_RECORDED] if any(shown.name == "recorded" for shown in table.columns) else []
    return replace(table, note=" ".join(notes))


_MARKS = ("*", "**", "***")
_RECORDED = "Recorded: the same step on the same device, in a recording that comes with rooflight."


def _marked_time(point: FrontPoint, marks: Mapping[str, str]) -> Label:
    """With a mark behind a time that should not be relied on; the note says why."""
    mark = marks.get(point.doubt, "")
    return Label(point.time_per_sample_s, f"{seconds(point.time_per_sample_s)}{mark}")


def scaling_tables(scalings: Sequence[StudyScaling]) -> list[Table]:
    """One GPU and several, with a batch each, or with one that they share."""
    return [
        _scaling_table([scaling for scaling in scalings if scaling.kind == kind], title)
        for kind, title in _SCALING.items()
    ]


_SCALING = {
    "weak": "weak scaling: one GPU and several, the same batch on each",
    "strong": "strong scaling: one GPU and several, one batch divided among them",
}


def _scaling_table(scalings: Sequence[StudyScaling], title: str) -> Table:
    columns: Cells[tuple[StudyScaling, StudyScalingPoint]] = [
        (Column("of", right=False, whole=True), lambda row: words(row[0].at)),
        (Column("by", right=False, optional=2), lambda row: row[0].side),
    ]
    if any(scaling.total_batch is not None for scaling in scalings):
        columns.append((column("total_batch"), lambda row: row[0].total_batch))
    columns += [
        (column("gpus"), lambda row: row[1].gpus),
        (Column("parallel", right=False, optional=3), lambda row: row[1].parallel),
        (column("batch_each", optional=1), lambda row: row[1].batch),
        (column("time_s", optional=1), lambda row: row[1].time_s),
        (column("samples_per_s"), lambda row: row[1].throughput),
        (column("speedup", raw="speed-up"), lambda row: row[1].speedup),
        (column("efficiency"), lambda row: row[1].efficiency),
    ]
    points = [(scaling, point) for scaling in scalings for point in scaling.points]
    return table_of(columns, points, title=title)


_BESIDE = {
    "on": "devices side by side",
    "dtype": "precisions side by side",
    "autocast": "with autocast and without",
    "tf32": "with TF32 and without",
}


def ratio_tables(ratios: Sequence[Ratios]) -> list[Table]:
    """A table for every axis and quantity: each value, and how it stands to the first."""
    groups: dict[tuple[str, str], list[Ratios]] = {}
    for row in ratios:
        if (row.axis, row.quantity) != ("on", "memory"):  # a step needs what it needs, wherever it runs
            groups.setdefault((row.axis, row.quantity), []).append(row)
    return [_ratio_table(axis, quantity, lines) for (axis, quantity), lines in groups.items()]


def _ratio_table(axis: str, quantity: str, ratios: Sequence[Ratios]) -> Table:
    names = list(dict.fromkeys(name for row in ratios for name in row.values))

    def value(name: str) -> Callable[[Ratios], float | None]:
        return lambda row: row.values.get(name)

    def over_first(name: str) -> Callable[[Ratios], float | None]:
        return lambda row: ratio(row.values.get(name), row.values.get(names[0]))

    columns: Cells[Ratios] = [
        (Column(quantity, right=False, whole=True), lambda row: words(row.at)),
        (Column("by", right=False, optional=1), lambda row: row.side),
        *((Column(name, _WRITE[quantity], raw=f"{quantity} {name}"), value(name)) for name in names),
        *((Column(f"{name} / {names[0]}", quotient, optional=2), over_first(name)) for name in names[1:]),
    ]
    return table_of(columns, ratios, title=f"{_BESIDE[axis]}: {quantity}")


def _shortened(table: Table) -> Table:
    if len(table.rows) <= _LINES:
        return table
    more = f"{table.title} (the first {_LINES} of {len(table.rows):,} lines)"
    return replace(table, title=more, rows=table.rows[:_LINES])
