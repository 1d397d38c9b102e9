"""The tables of a measurement: modules or another grouping with both sides, and the phases.

The columns are those that the measurement has: a run without counters has no column for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rooflight import units
from rooflight.ledger import LOSS, OPTIMIZER, Ledger, Totals, total
from rooflight.measured import Measured, Sums
from rooflight.measured.rows import NO_OP, SEVERAL, MeasuredRow, phases, rows
from rooflight.reporting.columns import column
from rooflight.reporting.measured_folding import fold_measured
from rooflight.reporting.table import Column, Label, Table
from rooflight.reporting.written import cut
from rooflight.summary import By, Row
from rooflight.units import giga, tera, whole_bytes, whole_count

NAME_WIDTH = 40
_Columns = list[tuple[Column, Callable[[MeasuredRow], object]]]


def main_table(measured: Measured, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """The rows the user asked for, and the total they sum to."""
    found = rows(measured, by)
    if by == "module":
        found = fold_measured(measured, found) if folded else found
        found = [row for row in found if depth is None or row.estimate.depth <= depth]
    everything = total_row(measured, calls=sum(row.estimate.calls for row in found))
    columns = _name_columns(measured.ledger, by) + _figures(measured)
    return drawn("", columns, [*found, everything])


def drawn(title: str, columns: _Columns, rows: Sequence[MeasuredRow]) -> Table:
    """A table of the columns in which some row has a value; the last row is the total."""
    cells = [[value(row) for _, value in columns] for row in rows]
    kept = [i for i, (column, _) in enumerate(columns) if not column.right or any(row[i] is not None for row in cells)]
    return Table(
        title,
        tuple(columns[i][0] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in cells),
        frozenset({len(cells) - 1}),
    )


def total_row(measured: Measured, *, calls: int = 0) -> MeasuredRow:
    ledger = measured.ledger
    estimate = Row("total", "", 0, calls, None, 0, 0, total(ledger.ops), Totals(), Totals(), 1.0)
    share = None if measured.total.time_s is None else 1.0
    return MeasuredRow(estimate, measured.whole, measured.whole, measured.total, measured.total, share)


def _name_columns(ledger: Ledger, by: By) -> _Columns:
    if by == "module":
        return [
            (column("layer"), lambda row: _label(row, ledger)),
            (column("type", optional=12), lambda row: row.estimate.type),
        ]
    return [
        (Column(by, right=False), lambda row: Label(row.name, cut(row.name, NAME_WIDTH))),
        (Column("calls" if by == "op" else "ops", units.exact, optional=10), lambda row: row.estimate.calls),
    ]


def _label(row: MeasuredRow, ledger: Ledger) -> Label:
    if row.name == "":
        return Label(ledger.header.model, ledger.header.model)
    if row.name in ("total", LOSS, OPTIMIZER, SEVERAL, NO_OP):
        return Label(row.name, row.name)
    return Label(row.name, "  " * row.estimate.depth + row.name.rpartition(".")[2])


def _figures(measured: Measured) -> _Columns:
    """Time, work and traffic. The number is the order in which columns go when the terminal is narrow."""
    counted = measured.total.executed_flops is not None
    # Beside the executed FLOPs of some units (a CUDA graph's tensor cores) it must be said which the rate is of.
    partly = not counted and measured.total.tensor_flops is not None
    rate, write = _rate(measured.ledger)
    return [
        *_quantity("kernel_time_s"),
        *_quantity("host_time_s", "CPU time"),
        (column("share", optional=3), lambda row: row.share),
        (column("flops", heading="useful"), _useful),
        *_measured(Column("tensor", whole_count, raw="tensor_flops"), lambda sums: sums.tensor_flops),
        *_measured(Column("CUDA core", whole_count, optional=2, raw="cuda_flops"), lambda sums: sums.cuda_flops),
        *_measured(Column("CPU FLOPs", whole_count, raw="cpu_flops"), lambda sums: sums.cpu_flops),
        *_measured(column("executed_per_useful", raw="exec/useful", optional=4), lambda sums: sums.executed_per_useful),
        *_quantity("dram_bytes_read", "DRAM read", optional=1),
        *_quantity("dram_bytes_written", "written", optional=2),
        (column("bytes", heading="compulsory", optional=8), _compulsory),
        *_measured(column("dram_per_compulsory", raw="DRAM/comp.", optional=7), lambda sums: sums.dram_per_compulsory),
        *_quantity("l2_bytes", "L2", optional=9),
        *_quantity("l1_bytes", "L1", optional=9),
        (Column(f"useful {rate}" if partly else rate, write, optional=6,
                raw="executed_flops_per_s" if counted else "flops_per_s"),
         _executed_rate if counted else _useful_rate),
        *_measured(column("dram_bytes_per_s", heading="GB/s", write=giga, optional=5),
                   lambda sums: sums.dram_bytes_per_s),
        *_quantity("growth_bytes", optional=11),
        *_quantity("workspace_bytes", optional=10),
    ]  # fmt: skip


def _measured(shown: Column, value: Callable[[Sums], object]) -> _Columns:
    return [(shown, lambda row: value(row.sums))]


def _quantity(name: str, heading: str = "", *, optional: int = 0) -> _Columns:
    """A quantity of the ledger, under its own name where values stand as they are."""
    return _measured(column(name, heading=heading, optional=optional), lambda sums: sums.get(name))


def _rate(ledger: Ledger) -> tuple[str, Callable[[Any], str]]:
    """A GPU is spoken of in TFLOP/s, a CPU in GFLOP/s."""
    return ("GFLOP/s", giga) if ledger.header.target == "cpu" else ("TFLOP/s", tera)


def _useful(row: MeasuredRow) -> int | None:
    return None if _unknown(row.estimate) else row.estimate.totals.flops


def _compulsory(row: MeasuredRow) -> int | None:
    return None if _unknown(row.estimate) else row.estimate.totals.bytes


def _unknown(row: Row) -> bool:
    """Nothing is known of ops without a formula, nor of what is no group of ops; a module that ran nothing cost 0."""
    if not row.totals.ops:
        return not row.type
    return sum(entry.calls for entry in row.totals.uncounted) == row.totals.ops


def _executed_rate(row: MeasuredRow) -> float | None:
    return row.sums.executed_flops_per_s


def _useful_rate(row: MeasuredRow) -> float | None:
    time = row.sums.time_s
    return row.estimate.totals.flops / time if time and not _unknown(row.estimate) else None


def phase_table(measured: Measured) -> Table:
    """Forward, backward and optimizer apart."""
    columns: _Columns = [
        (column("phase"), lambda row: row.name),
        (column("ops", optional=10), lambda row: row.sums.ran),
        *_quantity("kernels", optional=9),
    ]
    return drawn("phases", columns + _figures(measured), [*phases(measured), total_row(measured)])


def operator_memory_table(measured: Measured, by: By = "op", *, depth: int | None = None) -> Table:
    """What the allocator saw of each op, layer type or module: with all that runs inside, and of its own ops alone."""
    found = [row for row in rows(measured, by) if row.sums.get("allocations") is not None]
    if by == "module" and depth is not None:
        found = [row for row in found if row.estimate.depth <= depth]
    found.sort(key=lambda row: abs(row.sums.get("growth_bytes") or 0), reverse=True)
    columns: _Columns = [
        (Column(by if by != "module" else "layer", right=False), lambda row: _label(row, measured.ledger).full),
        (column("calls"), lambda row: row.estimate.calls),
        *_quantity("growth_bytes"),
        (Column("self growth", whole_bytes), lambda row: row.own_sums.get("growth_bytes")),
        *_quantity("allocations", optional=2),
        *_quantity("output_bytes", optional=1),
        *_quantity("workspace_bytes", optional=3),
    ]
    if not found:
        return Table("", (), ())
    calls = sum(row.estimate.calls for row in found)
    return drawn(f"memory by {by}", columns, [*found, total_row(measured, calls=calls)])
