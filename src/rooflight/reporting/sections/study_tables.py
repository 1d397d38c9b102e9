"""A study's rows as tables: what became of every cell, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rooflight import formatting
from rooflight.formatting import per_second, quotient, seconds, whole_bytes
from rooflight.metrics import ratio
from rooflight.prediction.result import Interval
from rooflight.reporting.columns import column
from rooflight.reporting.document import Document, table_sections
from rooflight.reporting.sections.predict_tables import between
from rooflight.reporting.sections.study_layers import layer_table
from rooflight.reporting.sections.study_trends import words
from rooflight.reporting.table import Cells, Column, Table, table_of
from rooflight.study.cell import SIDES, Side, StudyRow
from rooflight.study.trends import varying
from rooflight.summary.reliability import UNRELIABLE

if TYPE_CHECKING:
    from rooflight.study.plan import StudyPlan

_ALWAYS = ("model", "batch")
_NUMBERS = ("batch", "total_batch", "seq", "past", "gpus", "nodes")
_HEADINGS = {"total_batch": "total batch"}


def _fact(value: str | None) -> str:
    return value or "–"


def _cell(
    name: str, key: str, write: Callable[[Any], str], optional: int = 0
) -> tuple[Column, Callable[[StudyRow], Any]]:
    """One value of a row, or one over another: `time.measured / time.predicted`."""
    key, _, base = key.partition(" / ")

    def value(row: StudyRow) -> Any:
        if base:
            return ratio(row.values.get(key), row.values.get(base))
        return row.facts.get(key) if row.values.get(key) is None else row.values[key]

    return Column(name, write, optional=optional, raw=f"{key} / {base}" if base else key), value


def interval_of(row: StudyRow) -> str | None:
    """Of a predicted time: `28.2 to 42.7 ms`; one end alone would say the wrong thing."""
    low, high = row.values.get("time_low.predicted"), row.values.get("time_high.predicted")
    return None if low is None or high is None else between(Interval(low, high))


_COLUMNS: Cells[StudyRow] = [
    _cell("FLOPs", "flops.estimated", formatting.count),
    _cell("FLOPs, measured", "flops.measured", formatting.count, 2),
    _cell("of estimated", "flops.measured / flops.estimated", quotient, 1),
    _cell("bytes", "bytes.estimated", formatting.bytes_, 8),
    _cell("DRAM, measured", "bytes.measured", formatting.bytes_, 7),
    _cell("time, predicted", "time.predicted", seconds),
    (Column("90% interval", _fact, optional=4, raw="time_low.predicted, time_high.predicted"), interval_of),
    _cell("time, measured", "time.measured", seconds),
    _cell("of predicted", "time.measured / time.predicted", quotient, 1),
    _cell("memory, predicted", "memory.predicted", whole_bytes, 3),
    _cell("memory, measured", "memory.measured", whole_bytes, 3),
    _cell("of predicted memory", "memory.measured / memory.predicted", quotient, 2),
    _cell("samples/s, predicted", "throughput.predicted", per_second, 6),
    _cell("samples/s, measured", "throughput.measured", per_second, 5),
    _cell("MFU, predicted", "mfu.predicted", formatting.percent, 10),
    _cell("MFU, measured", "mfu.measured", formatting.percent, 9),
    _cell("bound, predicted", "bound.predicted", _fact, 12),
    _cell("bound, measured", "bound.measured", _fact, 11),
    _cell("unexplained", "unexplained.measured", formatting.percent, 5),
]


def summary_document(rows: Sequence[StudyRow], plan: StudyPlan, *, most: int | None = None) -> Document:
    """What became of every cell; `most`: so many lines at most of each kind."""
    shown = rows if most is None or len(rows) <= most + 1 else rows[:most]
    noted = dict.fromkeys(note for row in rows if row.state != "impossible" for note in row.notes)
    notes = [*impossible_lines(rows), *failure_lines(rows), *(f"note: {note}" for note in noted)]
    return Document(
        title=headline(rows, plan),
        lines=(*((plan.about,) if plan.about else ()), *unreliable(rows)),
        sections=table_sections(
            [cell_table(rows, shown), layer_table(shown, plan.layers, place_columns(rows))] if rows else []
        ),
        notes=(
            *_at_most([f"... and {len(rows) - len(shown):,} more cells"] if len(shown) < len(rows) else [], most),
            *_at_most(notes, most),
        ),
        small_print=(
            "FLOPs: useful matrix work by formula, 1 multiply-add = 2; time: wall time of a step; memory: "
            "allocated at its peak",
        ),
    )


def unreliable(rows: Sequence[StudyRow]) -> tuple[str, ...]:
    """That some of the measured times cannot be trusted, on top."""
    measured = [row for row in rows if "time.measured" in row.values]
    doubted = [row for row in measured if any(note.code == UNRELIABLE for note in row.notes)]
    if not doubted:
        return ()
    return (
        f"TIMES UNRELIABLE in {len(doubted):,} of {len(measured):,} measured cells (the notes say which and why): "
        "measure again when the machine is quiet",
    )


def headline(rows: Sequence[StudyRow], plan: StudyPlan) -> str:
    """`resnet50: 12 cells, 11 done, 1 failed`."""
    states = [row.state for row in rows]
    kinds = ("done", "failed", "waiting", "impossible")
    counts = [f"{states.count(state):,} {state}" for state in kinds if state in states]
    title = plan.title or ", ".join(dict.fromkeys(row.cell.model for row in rows))
    return f"{title}: {len(rows):,} {'cell' if len(rows) == 1 else 'cells'}, {', '.join(counts)}"


def _at_most(lines: list[str], most: int | None) -> list[str]:
    if most is None or len(lines) <= most + 1:
        return lines
    return [*lines[:most], f"... and {len(lines) - most:,} more such lines"]


def cell_table(rows: Sequence[StudyRow], shown_rows: Sequence[StudyRow] | None = None) -> Table:
    """One line for every cell: what it is, then estimate, prediction and measurement, and how they stand to each other.

    `shown_rows`: lines for these only, with the columns that all of them need.
    """
    listed = rows if shown_rows is None else shown_rows
    columns: Cells[StudyRow] = axis_columns(rows)
    columns += [(shown, value) for shown, value in _COLUMNS if any(value(row) not in (None, "") for row in rows)]
    if any(row.state != "done" for row in rows):
        columns.append((Column("", right=False, raw="state"), lambda row: "" if row.state == "done" else row.state))
    cut_short = f" (the first {len(listed):,} of {len(rows):,})" if len(listed) < len(rows) else ""
    return table_of(columns, listed, title=f"cells{cut_short}")


def axis_columns(rows: Sequence[StudyRow]) -> list[tuple[Column, Callable[[StudyRow], Any]]]:
    """What a cell is: the coordinates that tell it from the others."""
    return [
        (Column(_HEADINGS.get(axis, axis), _text, right=axis in _NUMBERS, raw=axis), _coordinate(axis))
        for axis in shown_axes(rows)
    ]


def place_columns(rows: Sequence[StudyRow]) -> list[tuple[Column, Callable[[StudyRow], Any]]]:
    """The same in two columns, for tables that have many others: what the cell is in words, and its batch."""
    axes = [axis for axis in shown_axes(rows) if axis != "batch"]

    def place(row: StudyRow) -> str:
        coordinates = row.cell.coordinates
        return words({axis: coordinates[axis] for axis in axes if axis in coordinates})

    return [(Column("of", right=False), place), (column("batch"), lambda row: row.cell.batch)]


def _coordinate(axis: str, missing: Any = None) -> Callable[[StudyRow], Any]:
    return lambda row: row.cell.coordinates.get(axis, missing)


def impossible_lines(rows: Sequence[StudyRow]) -> list[str]:
    """Cells that no machine can have, the same reason once."""
    counts = Counter(row.cell.impossible for row in rows if row.state == "impossible")
    return [
        f"impossible: {why} ({count:,} {'cell is' if count == 1 else 'cells are'} left out, of claims too)"
        for why, count in counts.items()
    ]


def failure_lines(rows: Sequence[StudyRow]) -> list[str]:
    """What went wrong, in which cells: the same reason once."""
    groups: dict[str, dict[str, None]] = {}
    sides: dict[str, dict[str, None]] = {}
    for row in rows:
        for side, reason in row.failures.items():
            groups.setdefault(reason, {})[row.cell.slug] = None
            sides.setdefault(reason, {})[side] = None
    lines = []
    for reason, cells in groups.items():
        first, *others = cells
        more = f" and {len(others):,} more" if others else ""
        lines.append(f"failed: {first}{more}, not {' or '.join(sides[reason])}: {reason}")
    return lines


def shown_axes(rows: Sequence[StudyRow]) -> list[str]:
    """The coordinates that tell these cells apart, and those that always stand there."""
    apart = varying(rows)
    axes = dict.fromkeys(axis for row in rows for axis in row.cell.coordinates)
    return [axis for axis in axes if axis in (*_ALWAYS, "total_batch") or axis in apart]


def records(rows: Sequence[StudyRow]) -> list[dict[str, Any]]:
    """All that is known of every cell, by name."""
    return [
        {
            "cell": row.cell.id,
            **row.cell.coordinates,
            "state": row.state,
            **row.values,
            **row.facts,
            **{f"failure.{side}": row.failures[side] for side in SIDES if side in row.failures},
        }
        for row in rows
    ]


def csv_table(rows: Sequence[StudyRow]) -> Table:
    """Everything, for spreadsheets: one line for every cell, raw values."""

    def value(name: str) -> Callable[[StudyRow], Any]:
        return lambda row: row.values.get(name, "")

    def fact(name: str) -> Callable[[StudyRow], Any]:
        return lambda row: row.facts.get(name, "")

    def failure(side: Side) -> Callable[[StudyRow], Any]:
        return lambda row: row.failures.get(side, "")

    axes = dict.fromkeys(name for row in rows for name in row.cell.coordinates)
    names = dict.fromkeys(name for row in rows for name in row.values)
    facts = dict.fromkeys(name for row in rows for name in row.facts)
    sides = [side for side in SIDES if any(side in row.failures for row in rows)]
    columns: Cells[StudyRow] = [
        (Column("cell"), lambda row: row.cell.id),
        *((Column(axis), _coordinate(axis, "")) for axis in axes),
        (Column("state"), lambda row: row.state),
        *((Column(name), value(name)) for name in names),
        *((Column(name), fact(name)) for name in facts),
        *((Column(f"failure.{side}"), failure(side)) for side in sides),
    ]
    return table_of(columns, rows)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
