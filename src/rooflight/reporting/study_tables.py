"""A study's rows as tables: what became of every cell, and what went wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rooflight import units
from rooflight.reporting.document import Document, table_sections
from rooflight.reporting.table import Column, Table
from rooflight.study.cell import SIDES, Row
from rooflight.units import per_second, quotient, seconds, whole_bytes

if TYPE_CHECKING:
    from rooflight.study.plan import Plan

_ALWAYS = ("model", "batch")


@dataclass(frozen=True)
class _Shown:
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

    def of(self, row: Row) -> Any:
        value = row.values.get(self.key)
        if not self.over:
            return row.facts.get(self.key) if value is None else value
        base = row.values.get(self.over)
        return value / base if value is not None and base else None


def _fact(value: str | None) -> str:
    return value or "–"


_COLUMNS = (
    _Shown("FLOPs", "flops.estimated", units.count),
    _Shown("FLOPs, measured", "flops.measured", units.count, 2),
    _Shown("of estimated", "flops.measured", quotient, 1, over="flops.estimated"),
    _Shown("bytes", "bytes.estimated", units.bytes_, 8),
    _Shown("DRAM, measured", "bytes.measured", units.bytes_, 7),
    _Shown("time, predicted", "time.predicted", seconds),
    _Shown("90% from", "time_low.predicted", seconds, 4),
    _Shown("to", "time_high.predicted", seconds, 4),
    _Shown("time, measured", "time.measured", seconds),
    _Shown("of predicted", "time.measured", quotient, 1, over="time.predicted"),
    _Shown("memory, predicted", "memory.predicted", whole_bytes, 3),
    _Shown("memory, measured", "memory.measured", whole_bytes, 3),
    _Shown("of predicted memory", "memory.measured", quotient, 2, over="memory.predicted"),
    _Shown("samples/s, predicted", "throughput.predicted", per_second, 6),
    _Shown("samples/s, measured", "throughput.measured", per_second, 5),
    _Shown("MFU, predicted", "mfu.predicted", units.percent, 10),
    _Shown("MFU, measured", "mfu.measured", units.percent, 9),
    _Shown("bound, predicted", "bound.predicted", _fact, 12),
    _Shown("bound, measured", "bound.measured", _fact, 11),
    _Shown("unexplained", "unexplained.measured", units.percent, 5),
)


def summary_document(rows: Sequence[Row], plan: Plan, *, most: int | None = None) -> Document:
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
        notes=(*_at_most([f"... and {len(rows) - len(shown):,} more cells"] if len(shown) < len(rows) else [], most),
               *_at_most(notes, most)),
        small_print=("FLOPs: useful matrix work by formula, 1 multiply-add = 2; time: wall time of a step; memory: "
                     "allocated at its peak",),
    )  # fmt: skip


def unreliable(rows: Sequence[Row]) -> tuple[str, ...]:
    """That some of the measured times cannot be trusted, on top."""
    measured = [row for row in rows if "time.measured" in row.values]
    doubted = [row for row in measured if any(note.startswith("TIMES UNRELIABLE") for note in row.notes)]
    if not doubted:
        return ()
    return (f"TIMES UNRELIABLE in {len(doubted):,} of {len(measured):,} measured cells (the notes say which and why): "
            "measure again when the machine is quiet",)  # fmt: skip


def headline(rows: Sequence[Row], plan: Plan) -> str:
    """`resnet50: 12 cells, 11 done, 1 failed`."""
    states = [row.state for row in rows]
    told = [f"{states.count(state):,} {state}" for state in ("done", "failed", "waiting") if state in states]
    title = plan.title or ", ".join(dict.fromkeys(row.cell.model for row in rows))
    return f"{title}: {len(rows):,} {'cell' if len(rows) == 1 else 'cells'}, {', '.join(told)}"


def _at_most(lines: list[str], most: int | None) -> list[str]:
    if most is None or len(lines) <= most + 1:
        return lines
    return [*lines[:most], f"... and {len(lines) - most:,} more such lines"]


def cell_table(rows: Sequence[Row], shown_rows: Sequence[Row] | None = None) -> Table:
    """One line for every cell: what it is, then estimate, prediction and measurement, and how they stand to each other.

    `shown_rows`: lines for these only, with the columns that all of them need.
    """
    told = rows if shown_rows is None else shown_rows
    axes = varying(rows)
    columns = [Column(axis, _text, right=axis in ("batch", "seq", "past", "gpus")) for axis in axes]
    shown = [one for one in _COLUMNS if any(one.of(row) not in (None, "") for row in rows)]
    columns += [one.column for one in shown]
    columns += [Column("", str, right=False, raw="state")] if any(row.state != "done" for row in rows) else []
    lines = tuple(
        (*(row.cell.coordinates.get(axis) for axis in axes), *(one.of(row) for one in shown),
         "" if row.state == "done" else row.state)[: len(columns)]
        for row in told
    )  # fmt: skip
    cut_short = f" (the first {len(told):,} of {len(rows):,})" if len(told) < len(rows) else ""
    return Table(f"cells{cut_short}", tuple(columns), lines)


def failure_lines(rows: Sequence[Row]) -> list[str]:
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


def varying(rows: Sequence[Row]) -> list[str]:
    """The coordinates that tell these cells apart, and those that always stand there."""
    seen: dict[str, set[Any]] = {}
    for row in rows:
        for name, value in row.cell.coordinates.items():
            seen.setdefault(name, set()).add(value)
    return [
        name for name, values in seen.items()
        if name in _ALWAYS or len(values) > 1 or any(name not in row.cell.coordinates for row in rows)
    ]  # fmt: skip


def to_pandas(rows: Sequence[Row]) -> Any:
    """One row for every cell (needs pandas)."""
    from rooflight.errors import BadInput

    try:
        import pandas
    except ImportError:
        raise BadInput("a data frame needs pandas: pip install 'rooflight[pandas]'") from None
    return pandas.DataFrame([
        {"cell": row.cell.id, **row.cell.coordinates, "state": row.state, **row.values, **row.facts,
         **{f"failure.{side}": row.failures[side] for side in SIDES if side in row.failures}}
        for row in rows
    ])  # fmt: skip


def csv_table(rows: Sequence[Row]) -> Table:
    """Everything, for spreadsheets: one line for every cell, raw values."""
    axes = list(dict.fromkeys(name for row in rows for name in row.cell.coordinates))
    names = list(dict.fromkeys(name for row in rows for name in row.values))
    sides = [side for side in SIDES if any(side in row.failures for row in rows)]
    columns = [Column(name) for name in ("cell", *axes, "state", *names, *(f"failure.{side}" for side in sides))]
    lines = tuple(
        (row.cell.id, *(row.cell.coordinates.get(axis, "") for axis in axes), row.state,
         *(row.values.get(name, "") for name in names), *(row.failures.get(side, "") for side in sides))
        for row in rows
    )  # fmt: skip
    return Table("", tuple(columns), lines)


def _text(value: Any) -> str:
    return "" if value is None else str(value)
