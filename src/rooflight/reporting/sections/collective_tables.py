"""Collectives between the ranks of an imported run: how far apart ranks came to them, and who was waited for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

from rooflight.ledger import Ledger, Measurement
from rooflight.metrics import Number
from rooflight.reporting.columns import column
from rooflight.reporting.table import Cells, Column, Table, table_of
from rooflight.summary.facts import steps_of_ranks

CONVENTIONS = (
    "A rank arrives at a collective when its part of it starts. Skew is from the first arrival to the last, waiting "
    "the time of all ranks until then, transfer from then to the end; last to come: the rank that came last most often."
)
_OF_RANKS = ("wall_time_s", "gpu_busy_s", "computing_s", "communicating_s", "hidden_s", "rank_wait_s")
_Group = tuple[str, Sequence[Measurement]]


def collectives_of(ledger: Ledger) -> list[Measurement]:
    return [row for row in ledger.measurements if row.scope == "collective"]


def rank_table(ledger: Ledger) -> Table:
    """The ranks beside each other: how long each worked for itself, talked, and waited."""
    steps = steps_of_ranks(ledger)

    def of(name: str) -> Callable[[int], Number | None]:
        return lambda rank: steps[rank][name].value if name in steps[rank] else None

    columns: Cells[int] = [(Column("rank"), lambda rank: rank)]
    columns += [(column(name), of(name)) for name in _OF_RANKS]
    return table_of(columns, list(steps) if len(steps) > 1 else [], leave_out=_is_unknown)


def _is_unknown(_: Column, cells: Sequence[Any]) -> bool:
    return all(cell is None for cell in cells)


def collective_table(ledger: Ledger, *, top: int | None = 15) -> Table:
    """A row for all of one kind and size, those that were waited for longest first."""
    groups: dict[str, list[Measurement]] = {}
    for row in collectives_of(ledger):
        groups.setdefault(row.name, []).append(row)
    rows: list[_Group] = sorted(groups.items(), key=lambda group: -sum(_values(group[1], "rank_wait_s")))
    if top is not None and len(rows) > top + 1:
        rest = [row for _, group in rows[top:] for row in group]
        rows = [*rows[:top], (f"… {len(rows) - top:,} more", rest)]
    columns: Cells[_Group] = [
        (Column("collective", right=False), lambda group: group[0]),
        (column("calls"), lambda group: len(group[1])),
        (column("skew_s", heading="skew, median"), _of("skew_s", median)),
        (column("skew_s", heading="skew, most", raw="most_skew_s", optional=1), _of("skew_s", max)),
        (column("rank_wait_s"), _of("rank_wait_s", sum)),
        (column("transfer_s"), _of("transfer_s", sum)),
        (Column("last to come", right=False, optional=2), _last),
    ]
    return table_of(columns, rows)


def _of(name: str, summed: Callable[[list[Number]], Any]) -> Callable[[_Group], Number | None]:
    def value(group: _Group) -> Number | None:
        values = _values(group[1], name)
        return summed(values) if values else None

    return value


def _values(rows: Sequence[Measurement], name: str) -> list[Number]:
    return [row.quantities[name].value for row in rows if name in row.quantities]


def _last(group: _Group) -> str:
    """`rank 1 (4 of 4)`."""
    counted = Counter(int(value) for value in _values(group[1], "last_rank"))
    if not counted:
        return ""
    rank, times = counted.most_common(1)[0]
    return f"rank {rank} ({times:,} of {counted.total():,})"


def collective_data(ledger: Ledger) -> list[dict[str, Any]]:
    """Each with its raw numbers, for programs."""
    return [
        {"name": row.name, **{name: value.value for name, value in row.quantities.items()}}
        for row in collectives_of(ledger)
    ]
