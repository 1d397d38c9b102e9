"""A page of tables with what is said around them: the same for the terminal and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.ledger import Ledger
from rooflight.measured import Measured
from rooflight.reporting import measure_tables, measure_text, step_tables, text
from rooflight.reporting.table import Table, to_markdown
from rooflight.summary import By


@dataclass(frozen=True)
class Page:
    headline: str
    summary: tuple[str, ...]
    """The result in a few lines."""
    tables: tuple[Table, ...]
    notes: tuple[str, ...]
    """What a reader must know before believing the tables."""
    small_print: tuple[str, ...]

    def to_markdown(self) -> str:
        parts = [f"## {self.headline}\n"]
        parts += ["\n".join(f"{line}  " for line in self.summary) + "\n"] if self.summary else []
        parts += [to_markdown(table) for table in self.tables]
        parts += ["\n".join(f"- {line}" for line in self.notes) + "\n"] if self.notes else []
        parts += [f"{line}\n" for line in self.small_print]
        return "\n".join(parts)


def measure_page(ledger: Ledger, *, by: By, depth: int | None, folded: bool, memory: bool, kernels: int) -> Page:
    """A measured step."""
    measured = Measured(ledger)
    said = [f"note: {note}" for note in ledger.header.notes]
    said += measure_text.coverage(measured)
    if measured.attributed[0] or measured.attributed[2]:
        said.append(measure_text.attribution(measured))
    said += [f"conditions: {line}"] if (line := measure_text.conditions(ledger)) else []
    if ledger.ops:
        said.append(text.coverage(ledger))
    small = [f"from {line}" for line in measure_text.provenance(measured)]
    return Page(
        text.headline(ledger),
        (*([text.parameters_line(ledger)] if ledger.modules else []), *measure_text.headlines(measured)),
        tuple(_tables(measured, by=by, depth=depth, folded=folded, memory=memory, kernels=kernels)),
        tuple(said),
        (*small, text.provenance(ledger), measure_text.conventions(measured)),
    )


def _tables(measured: Measured, *, by: By, depth: int | None, folded: bool, memory: bool, kernels: int) -> list[Table]:
    ledger = measured.ledger
    tables = []
    if ledger.ops:
        tables.append(measure_tables.main_table(measured, by, depth=depth, folded=folded))
        if ledger.header.step == "train":
            tables.append(measure_tables.phase_table(measured))
    tables += [
        step_tables.time_table(measured), step_tables.speed_table(measured), step_tables.graph_table(measured),
        step_tables.check_table(measured), step_tables.memory_table(measured),
    ]  # fmt: skip
    if memory:
        tables.append(measure_tables.operator_memory_table(measured, "op" if by == "op" else by))
    if kernels:
        tables.append(step_tables.kernel_table(measured, limit=kernels))
    return [table for table in tables if table.rows]


def log_page(ledger: Ledger, *, kernels: int) -> Page:
    """A log from elsewhere: kernels, and no ops to put them under."""
    from rooflight.reporting import kernel_tables

    line = kernel_tables.flop_count_line(ledger)
    notes = ([line] if line else []) + [f"note: {note}" for note in ledger.header.notes]
    return Page(
        kernel_tables.headline(ledger),
        (),
        (kernel_tables.kernel_table(ledger, top=kernels or None), kernel_tables.totals_table(ledger)),
        tuple(notes),
        kernel_tables.small_print(ledger),
    )


def region_page(ledger: Ledger) -> Page:
    """The regions of somebody's program."""
    from rooflight.reporting import region_tables

    return Page(
        region_tables.headline(ledger),
        (),
        (region_tables.region_table(ledger),),
        tuple(f"note: {note}" for note in ledger.header.notes),
        (region_tables.CONVENTIONS,),
    )
