"""A study's rows as tables: what became of every cell, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflight import formatting
from rooflight.errors import BadInput
from rooflight.formatting import per_second, quotient, seconds, whole_bytes
from rooflight.reporting.document import Document, table_sections
from rooflight.reporting.table import Column, Table
from rooflight.study.cell import SIDES, StudyRow
from rooflight.study.trends import varying

if TYPE_CHECKING:
    from rooflight.study.plan import StudyPlan

_ALWAYS = ("model", "batch")


@dataclass(frozen=True)
class _CellColumn:
    """A column of the cells: one value of a row, or one over another."""

    name: str
    key: str
    write: Callable[[Any], str]
    optional: int = 0
    over: str = ""

    @property
    def column(self) -> Column:
        raw = f"{self.key} / {self.over}" if self.over else self.key
        return Column(self.name, self.write, optional=self.optional, raw=raw)

    def of(self, row: StudyRow) -> Any:
        value = row.values.get(self.key)
        if not self.over:
            return row.facts.get(self.key) if value is None else value
        base = row.values.get(self.over)
        return value / base if value is not None and base else None


def _fact(value: str | None) -> str:
    return value or "–"


_COLUMNS = (
    _CellColumn("FLOPs", "flops.estimated", formatting.count),
    _CellColumn("FLOPs, measured", "flops.measured", formatting.count, 2),
    _CellColumn("of estimated", "flops.measured", quotient, 1, over="flops.estimated"),
    _CellColumn("bytes", "bytes.estimated", formatting.bytes_, 8),
    _CellColumn("DRAM, measured", "bytes.measured", formatting.bytes_, 7),
    _CellColumn("time, predicted", "time.predicted", seconds),
    _CellColumn("90% from", "time_low.predicted", seconds, 4),
    _CellColumn("to", "time_high.predicted", seconds, 4),
    _CellColumn("time, measured", "time.measured", seconds),
    _CellColumn("of predicted", "time.measured", quotient, 1, over="time.predicted"),
    _CellColumn("memory, predicted", "memory.predicted", whole_bytes, 3),
    _CellColumn("memory, measured", "memory.measured", whole_bytes, 3),
    _CellColumn("of predicted memory", "memory.measured", quotient, 2, over="memory.predicted"),
    _CellColumn("samples/s, predicted", "throughput.predicted", per_second, 6),
    _CellColumn("samples/s, measured", "throughput.measured", per_second, 5),
    _CellColumn("MFU, predicted", "mfu.predicted", formatting.percent, 10),
    _CellColumn("MFU, measured", "mfu.measured", formatting.percent, 9),
    _CellColumn("bound, predicted", "bound.predicted", _fact, 12),
    _CellColumn("bound, measured", "bound.measured", _fact, 11),
    _CellColumn("unexplained", "unexplained.measured", formatting.percent, 5),
)


def summary_document(rows: Sequence[StudyRow], plan: StudyPlan, *, most: int | None = None) -> Document:
    """What became of every cell; `most`: so many lines at most of each kind."""
    shown = rows if most is None or len(rows) <= most + 1 else rows[:most]
    notes = [
        *failure_lines(rows),
        *(f"note: {note}" for note in dict.fromkeys(one for row in rows for one in row.notes)),
    ]
    return Document(
        title=headline(rows, plan),
        lines=(*((plan.about,) if plan.about else ()), *unreliable(rows)),
        sections=table_sections([cell_table(rows, shown)] if rows else []),
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
    doubted = [row for row in measured if any(note.startswith("TIMES UNRELIABLE") for note in row.notes)]
    if not doubted:
        return ()
    return (
        f"TIMES UNRELIABLE in {len(doubted):,} of {len(measured):,} measured cells (the notes say which and why): "
        "measure again when the machine is quiet",
    )


def headline(rows: Sequence[StudyRow], plan: StudyPlan) -> str:
    """`resnet50: 12 cells, 11 done, 1 failed`."""
    states = [row.state for row in rows]
    counts = [f"{states.count(state):,} {state}" for state in ("done", "failed", "waiting") if state in states]
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
    axes = shown_axes(rows)
    columns = [Column(axis, _text, right=axis in ("batch", "seq", "past", "gpus")) for axis in axes]
    shown = [column for column in _COLUMNS if any(column.of(row) not in (None, "") for row in rows)]
    columns += [column.column for column in shown]
    columns += [Column("", str, right=False, raw="state")] if any(row.state != "done" for row in rows) else []
    lines = tuple(
        (
            *(row.cell.coordinates.get(axis) for axis in axes),
            *(column.of(row) for column in shown),
            "" if row.state == "done" else row.state,
        )[: len(columns)]
        for row in listed
    )
    cut_short = f" (the first {len(listed):,} of {len(rows):,})" if len(listed) < len(rows) else ""
    return Table(f"cells{cut_short}", tuple(columns), lines)


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
    return [axis for axis in axes if axis in _ALWAYS or axis in apart]


def to_pandas(rows: Sequence[StudyRow]) -> Any:
    """One row for every cell (needs pandas)."""
    try:
        import pandas
    except ImportError:
        raise BadInput("a data frame needs pandas: pip install 'rooflight[pandas]'") from None
    return pandas.DataFrame(
        [
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
    )


def csv_table(rows: Sequence[StudyRow]) -> Table:
    """Everything, for spreadsheets: one line for every cell, raw values."""
    axes = list(dict.fromkeys(name for row in rows for name in row.cell.coordinates))
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    sides = [side for side in SIDES if any(side in row.failures for row in rows)]
    columns = [Column(name) for name in ("cell", *axes, "state", *names, *(f"failure.{side}" for side in sides))]
    lines = tuple(
        (
            row.cell.id,
            *(row.cell.coordinates.get(axis, "") for axis in axes),
            row.state,
            *(row.values.get(name, "") for name in names),
            *(row.failures.get(side, "") for side in sides),
        )
        for row in rows
    )
    return Table("", tuple(columns), lines)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
