"""A study's rows as tables: what became of every cell, and what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rooflight import units
from rooflight.reporting.page import Page
from rooflight.reporting.table import Column, Table
from rooflight.reporting.written import per_second, seconds
from rooflight.study.cell import SIDES, Row

if TYPE_CHECKING:
    from rooflight.study.plan import Plan

_ALWAYS = ("model", "batch")


def page(rows: Sequence[Row], plan: Plan) -> Page:
    """The whole study, with its claims and trends where they can be judged; else its cells."""
    try:
        from rooflight.reporting.study_page import study_page
    except ImportError:
        return summary_page(rows, plan)
    found: Page = study_page(rows, plan)
    return found


def summary_page(rows: Sequence[Row], plan: Plan) -> Page:
    """What became of every cell."""
    states = [row.state for row in rows]
    told = [f"{states.count(state)} {state}" for state in ("done", "failed", "waiting") if state in states]
    title = plan.title or ", ".join(dict.fromkeys(row.cell.model for row in rows))
    return Page(
        f"{title}: {len(rows):,} cells, {', '.join(told)}",
        (plan.about,) if plan.about else (),
        tuple(table for table in (cell_table(rows), failure_table(rows)) if table.rows),
        tuple(f"note: {note}" for note in dict.fromkeys(note for row in rows for note in row.notes)),
        ("estimated: useful FLOPs, 1 multiply-add = 2; predicted and measured: a step by the wall, memory allocated at "
         "its peak",),
    )  # fmt: skip


def cell_table(rows: Sequence[Row]) -> Table:
    """One line for every cell: what it is, then estimate, prediction and measurement."""
    axes = varying(rows)
    columns = [Column(axis, _text, right=axis in ("batch", "seq", "past", "gpus")) for axis in axes]
    measured = [
        ("FLOPs", "flops.estimated", units.count, 0), ("bytes", "bytes.estimated", units.bytes_, 3),
        ("time, predicted", "time.predicted", seconds, 0), ("memory, predicted", "memory.predicted", _bytes, 1),
        ("samples/s, predicted", "throughput.predicted", per_second, 4),
        ("time, measured", "time.measured", seconds, 0), ("memory, measured", "memory.measured", _bytes, 1),
        ("FLOPs, measured", "flops.measured", units.count, 2),
    ]  # fmt: skip
    shown = [one for one in measured if any(one[1] in row.values for row in rows)]
    columns += [Column(name, write, optional=optional, raw=key) for name, key, write, optional in shown]
    has_ratio = any(_ratio(row) is not None for row in rows)
    columns += [Column("measured / predicted", units.ratio, optional=1)] if has_ratio else []
    columns.append(Column("", str, right=False))
    lines = tuple(
        (*(row.cell.coordinates.get(axis) for axis in axes), *(row.values.get(key) for _, key, _, _ in shown),
         *((_ratio(row),) if has_ratio else ()), "" if row.state == "done" else row.state)
        for row in rows
    )  # fmt: skip
    return Table("", tuple(columns), lines)


def failure_table(rows: Sequence[Row]) -> Table:
    """What went wrong, in which cells: the same reason once."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for side, reason in row.failures.items():
            groups.setdefault((side, reason), []).append(row.cell.slug)
    lines = tuple(
        (side, len(cells), cells[0] if len(cells) == 1 else f"{cells[0]}, ...", reason)
        for (side, reason), cells in groups.items()
    )
    columns = (Column("not", str, right=False), Column("cells", units.exact), Column("which", str, right=False),
               Column("why", str, right=False, whole=True))  # fmt: skip
    return Table("What failed", columns, lines)


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


def _ratio(row: Row) -> float | None:
    predicted, measured = row.values.get("time.predicted"), row.values.get("time.measured")
    return measured / predicted if predicted and measured is not None else None


def _bytes(value: float | None) -> str:
    return units.bytes_(None if value is None else round(value))


def _text(value: Any) -> str:
    return "" if value is None else str(value)
