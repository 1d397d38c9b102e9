"""A page of tables with what is said around them: the same for the terminal and for Markdown."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rooflight.ledger import Ledger
from rooflight.measured import Measured
from rooflight.reporting import measure_tables, measure_text, memory_timeline, step_tables, text
from rooflight.reporting.table import Column, Table, fitting, to_markdown, with_columns
from rooflight.reporting.written import cut
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


def narrowed(table: Table, width: int) -> Table:
    """The table for a terminal: names are cut short before columns are left out; numbers stay whole."""
    written = table.written()
    texts = [[column.name for column in table.columns], *written]
    full = [max(len(row[i]) for row in texts) for i in range(len(table.columns))]
    if sum(full) + 3 * len(full) <= width:
        return table
    least = 22 if width < 100 else 32  # letters of a name
    cut_columns = tuple(replace(column, write=str) if column.cuttable else column for column in table.columns)
    short = _with_names(table, cut_columns, [least] * len(full), written)
    left = fitting(short, width).columns
    kept = [i for i, column in enumerate(cut_columns) if any(column is one for one in left)]
    widths = [min(full[i], least) if cut_columns[i].cuttable else full[i] for i in range(len(full))]
    spare = width - sum(widths[i] + 3 for i in kept)
    for i in kept:
        more = min(max(spare, 0), full[i] - widths[i])
        widths[i] += more
        spare -= more
    return with_columns(_with_names(table, cut_columns, widths, written), kept)


def _with_names(table: Table, columns: tuple[Column, ...], widths: list[int], written: list[list[str]]) -> Table:
    rows = tuple(
        tuple(
            cut(shown, width) if column.cuttable else cell
            for cell, shown, column, width in zip(row, texts, columns, widths, strict=True)
        )
        for row, texts in zip(table.rows, written, strict=True)
    )
    return replace(table, columns=columns, rows=rows)


def measure_page(ledger: Ledger, *, by: By, depth: int | None, folded: bool, memory: bool, kernels: int) -> Page:
    """A measured step."""
    measured = Measured(ledger)
    said = [f"note: {note}" for note in ledger.header.notes]
    said += measure_text.coverage(measured)
    said += [line] if (line := measure_text.flop_count_line(measured)) else []
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
        step_tables.time_table(measured), step_tables.speed_table(measured), step_tables.check_table(measured),
        step_tables.memory_table(measured),
    ]  # fmt: skip
    if memory:
        tables.append(memory_timeline.timeline_table(measured))
        tables.append(measure_tables.operator_memory_table(measured, by, depth=depth))
    if kernels:
        tables.append(step_tables.kernel_table(measured, limit=kernels))
    return [table for table in tables if table.rows]


def log_page(ledger: Ledger, *, kernels: int) -> Page:
    """A log from elsewhere: kernels, and no ops to put them under."""
    from rooflight.reporting import kernel_tables

    line = kernel_tables.flop_count_line(ledger)
    notes = ([line] if line else []) + [f"note: {note}" for note in ledger.header.notes]
    tables = (kernel_tables.kernel_table(ledger, top=kernels or None), kernel_tables.totals_table(ledger))
    return Page(
        kernel_tables.headline(ledger),
        (),
        tuple(table for table in tables if table.rows),
        tuple(notes),
        kernel_tables.small_print(ledger),
    )


def region_page(ledger: Ledger) -> Page:
    """The regions of somebody's program."""
    from rooflight.reporting import region_tables

    return Page(
        region_tables.headline(ledger),
        tuple(line for line in (measure_text.crowded(ledger),) if line),
        (region_tables.region_table(ledger),),
        tuple(f"note: {note}" for note in ledger.header.notes),
        (region_tables.CONVENTIONS,),
    )
