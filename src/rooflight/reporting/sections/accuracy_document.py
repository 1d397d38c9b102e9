"""Errors of predictions on timed steps, as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rooflight.formatting import exact, seconds
from rooflight.prediction.accuracy import Accuracy, AccuracyGroup, WorstRow
from rooflight.prediction.checked_steps import CheckedStep, ErrorSpread
from rooflight.reporting.columns import column
from rooflight.reporting.document import Document, Section
from rooflight.reporting.table import Cells, Column, Table, table_of

_TITLES = {
    "likeness": "like {like}",
    "device": "by device",
    "kind": "by kind of model",
    "length": "by length of the step",
    "bound": "by what bounds the step, as predicted",
    "evidence": "by what its ops rest on, as predictions say",
    "source": "by source",
    "kernels": "time of kernels alone, by device",
}
_FIRST = {"likeness": "which", "bound": "waits for", "kernels": "device"}
CONVENTIONS = (
    "an error is the predicted time over the measured one, less 1; mean, median, 90th percentile and worst are of "
    "absolute errors; signed: the mean with signs, above 0 where predictions are too long; in 90%: the part of the "
    "rows whose measured time lies in the 90% interval of its prediction"
)


def accuracy_document(accuracy: Accuracy) -> Document:
    sections = [_section(name, accuracy) for name in _TITLES if accuracy.by(name)]  # type: ignore[arg-type]
    if accuracy.worst:
        sections.append(Section("worst", tables=(_worst(accuracy.worst),)))
    return Document(
        title=_title(accuracy),
        lines=tuple(_lines(accuracy)),
        sections=tuple(sections),
        notes=tuple(f"note: {note}" for note in accuracy.notes),
        small_print=(
            *(f"{name}: {source.title}; {source.timed} ({source.url})" for name, source in accuracy.sources.items()),
            *([f"{CONVENTIONS}; predicted by rooflight {accuracy.rooflight} on {accuracy.made}."] if sections else []),
        ),
        rows=lambda: raw_table(accuracy),
        data=lambda: accuracy_data(accuracy),
    )


def describe(accuracy: Accuracy) -> str:
    """The `repr`."""
    return "\n".join([_title(accuracy), *_lines(accuracy), *map(str, accuracy.notes)])


def accuracy_data(accuracy: Accuracy) -> dict[str, Any]:
    """For programs: rows as objects, each with its error by tier."""
    data: dict[str, Any] = {
        name: msgspec.to_builtins(getattr(accuracy, name))
        for name in ("rooflight", "made", "on", "like", "tier", "steps", "groups", "sources", "notes")
    }
    worst = [_row(one.row) | {"tier": one.tier, "error": one.error, "inside": one.inside} for one in accuracy.worst]
    return data | {"worst": worst, "rows": [_row(row) for row in accuracy.rows]}


def _row(row: CheckedStep) -> dict[str, Any]:
    fields = {name: getattr(row, name) for name in CheckedStep.__struct_fields__ if name != "predictions"}
    predictions = {
        tier: {"time_s": time_s, "low_s": low_s, "high_s": high_s, "error": row.error(tier)}
        for tier, (time_s, low_s, high_s) in row.predictions.items()
    }
    return fields | {"predictions": predictions}


def _title(accuracy: Accuracy) -> str:
    parts = ["predictions beside timed steps"]
    parts += [f"on {accuracy.on.replace(',', ', ')}"] if accuracy.on else []
    parts += [f"like {accuracy.like}"] if accuracy.like else []
    parts += [f"tier {accuracy.tier}"] if accuracy.tier else []
    return " · ".join(parts)


def _lines(accuracy: Accuracy) -> list[str]:
    steps = accuracy.steps
    if steps is None:
        return []
    devices = len({row.device for row in accuracy.rows if row.is_step})
    where = "" if accuracy.on and "," not in accuracy.on else f" on {devices} device{'s' * (devices > 1)}"
    return [
        f"{steps.rows:,} step{'s' * (steps.rows > 1)}{where}: {steps.mean:.0%} off in the mean, "
        f"{steps.median:.0%} in the median, {steps.worst:.0%} at worst; {steps.inside:.0%} inside their 90% interval"
    ]


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}" if abs(value) < 0.0995 else f"{value:.0%}"


def _signed(value: float) -> str:
    return f"{'+' if value >= 0 else ''}{_percent(value)}"


def _section(name: str, accuracy: Accuracy) -> Section:
    groups = accuracy.by(name)  # type: ignore[arg-type]
    return Section(name, tables=(_groups(_TITLES[name].format(like=accuracy.like), _FIRST.get(name, name), groups),))


def _groups(title: str, first: str, groups: Sequence[AccuracyGroup]) -> Table:
    columns: Cells[AccuracyGroup] = [(Column(first, right=False, whole=True), lambda group: group.name)]
    if any(group.what != "all" for group in groups):
        columns.append((Column("of", right=False, whole=True), lambda group: group.what))
    columns.append((column("tier", optional=4), lambda group: group.tier))
    return table_of([*columns, *_spread_columns()], groups, title=title)


def _spread_columns() -> Cells[AccuracyGroup]:
    def of(name: str) -> Any:
        return lambda group: getattr(group.errors, name)

    return [
        (Column("rows", exact), of("rows")),
        (Column("mean", _percent), of("mean")),
        (Column("median", _percent, optional=2), of("median")),
        (Column("p90", _percent, optional=3), of("p90")),
        (Column("worst", _percent), of("worst")),
        (Column("signed", _signed, optional=1), of("signed")),
        (Column("in 90%", lambda value: f"{value:.0%}", raw="inside"), of("inside")),
    ]


def _worst(worst: Sequence[WorstRow]) -> Table:
    columns: Cells[WorstRow] = [
        (column("device"), lambda one: one.row.device),
        (Column("source", right=False, optional=3), lambda one: one.row.source),
        (Column("model", right=False), lambda one: one.row.model),
        (Column("step", right=False, optional=2), lambda one: one.row.step),
        (column("batch", optional=1), lambda one: one.row.batch),
        (Column("measured", seconds, raw="published_s"), lambda one: one.row.published_s),
        (Column("predicted", seconds, raw="predicted_s"), lambda one: one.row.predictions[one.tier][0]),
        (Column("error", _signed), lambda one: one.error),
    ]
    return table_of(columns, worst, title="farthest off, by the ratio of the two times")


def raw_table(accuracy: Accuracy) -> Table:
    """Every row by every tier, for spreadsheets."""
    fields = tuple(name for name in CheckedStep.__struct_fields__ if name != "predictions")
    columns = tuple(Column(name) for name in (*fields, "tier", "predicted_s", "low_s", "high_s", "error", "inside"))
    rows = tuple(
        (*(getattr(row, name) for name in fields), tier, *times, row.error(tier), row.is_inside(tier))
        for row in accuracy.rows
        for tier, times in row.predictions.items()
        if accuracy.tier in (None, tier)
    )
    return Table("", columns, rows)


def spread_cells(spread: ErrorSpread) -> tuple[str, ...]:
    """Rows, mean, median, p90, worst, signed, inside: as the tables write them."""
    values = (spread.mean, spread.median, spread.p90, spread.worst)
    signed = _signed(spread.signed).replace("-", "−")
    return (exact(spread.rows), *map(_percent, values), signed, f"{spread.inside:.0%}")
