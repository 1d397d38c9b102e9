"""Printing: tables through rich when people look, plain documents when programs do."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rooflight.commands.terminal import make_console
from rooflight.comparison.sides import Comparison
from rooflight.files import write_atomically
from rooflight.ledger import Ledger
from rooflight.measured import Measured
from rooflight.reporting import compare_tables, estimate_tables, measure_tables, text
from rooflight.reporting.ledger_data import ledger_data
from rooflight.reporting.page import Page, log_page, measure_page, narrowed, region_page
from rooflight.reporting.table import Table, to_csv, to_markdown, to_rich
from rooflight.summary import By


def show_estimate(
    ledger: Ledger,
    *,
    by: By,
    depth: int | None,
    to: str,
    folded: bool,
    epochs: int | None = None,
    dataset_size: int | None = None,
    output: Path | None = None,
    force: bool = False,
) -> None:
    """Print an estimate in the asked form, or write it to a file."""
    if to == "text":
        _show_text(ledger, by=by, depth=depth, folded=folded, epochs=epochs, dataset_size=dataset_size)
        return
    if to == "json":
        steps = estimate_tables.run_steps(ledger, epochs=epochs, dataset_size=dataset_size)
        content = msgspec.json.encode(ledger_data(ledger, run_steps=steps))
    elif to == "csv":
        content = to_csv([estimate_tables.main_table(ledger, by, depth=depth, folded=folded)]).encode()
    else:
        content = _markdown(
            ledger, by=by, depth=depth, folded=folded, epochs=epochs, dataset_size=dataset_size
        ).encode()
    if output is not None:
        write_atomically(output, content, force=force)
    else:
        emit(content)


def show_measure(
    ledger: Ledger,
    *,
    by: By,
    depth: int | None,
    to: str,
    folded: bool,
    memory: bool = False,
    kernels: int = 10,
    output: Path | None = None,
    force: bool = False,
) -> None:
    """Print a measurement in the asked form, or write it to a file. `memory` adds the allocator's view of every op."""
    if to == "text":
        show_page(measure_page(ledger, by=by, depth=depth, folded=folded, memory=memory, kernels=kernels))
        return
    if to == "json":
        content = msgspec.json.encode(ledger_data(ledger))
    elif to == "csv":
        content = to_csv([measure_tables.main_table(Measured(ledger), by, depth=depth, folded=folded)]).encode()
    else:
        page = measure_page(ledger, by=by, depth=depth, folded=folded, memory=memory, kernels=kernels)
        content = page.to_markdown().encode()
    if output is not None:
        write_atomically(output, content, force=force)
    else:
        emit(content)


def show_log(ledger: Ledger, *, to: str, kernels: int, output: Path | None = None, force: bool = False) -> None:
    """Print a ledger that has no ops, of an imported log or of a program's regions, or write it to a file."""
    from rooflight.reporting import kernel_tables, region_tables

    has_regions = bool(region_tables.regions_of(ledger))
    page = region_page(ledger) if has_regions else log_page(ledger, kernels=kernels)
    if to == "text":
        show_page(page)
        return
    if to == "json":
        made = region_tables.region_data(ledger) if has_regions else kernel_tables.log_data(ledger)
        content = msgspec.json.encode(made)
    else:
        content = (to_csv(page.tables[:1]) if to == "csv" else page.to_markdown()).encode()
    if output is not None:
        write_atomically(output, content, force=force)
    else:
        emit(content)


def show_comparison(
    comparison: Comparison,
    *,
    by: By,
    depth: int | None,
    to: str,
    folded: bool,
    output: Path | None = None,
    force: bool = False,
) -> None:
    """Print two ledgers side by side in the asked form, or write that to a file."""
    if to == "text":
        show_page(compare_tables.compare_page(comparison, by=by, depth=depth, folded=folded))
        return
    if to == "json":
        content = msgspec.json.encode(compare_tables.compare_data(comparison, by))
    elif to == "csv":
        content = to_csv([compare_tables.row_table(comparison, by, depth=depth, folded=folded)]).encode()
    else:
        content = compare_tables.compare_page(comparison, by=by, depth=depth, folded=folded).to_markdown().encode()
    if output is not None:
        write_atomically(output, content, force=force)
    else:
        emit(content)


def show_page(page: Page) -> None:
    console = make_console()
    console.print(page.headline, markup=False, highlight=False, style="bold")
    for line in page.summary:
        console.print(line, markup=False, highlight=False)
    for table in page.tables:
        console.print(to_rich(narrowed(table, console.width), width=console.width))
    for line in page.notes:
        console.print(line, markup=False, highlight=False)
    for line in page.small_print:
        console.print(line, markup=False, highlight=False, style="dim")


def show_roofline(ledger: Ledger, on: str) -> None:
    """The roofline in text: of where the step ran, or as predicted on the first of the devices."""
    from rooflight.prediction.asked import devices_of
    from rooflight.reporting.report.told import told_of
    from rooflight.reporting.text_roofline import text_roofline

    console = make_console()
    told = told_of(ledger, source="", devices=devices_of(on, None))
    for line in text_roofline(told.elsewhere, on=told.roofed.device, width=min(console.width, 110)):
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def deliver(content: bytes, output: Path | None, *, force: bool) -> None:
    """To a file where one is named, else to the output."""
    if output is not None:
        write_atomically(output, content, force=force)
    else:
        emit(content)


def emit(content: bytes | str) -> None:
    stream = sys.stdout.buffer
    data = content if isinstance(content, bytes) else content.encode()
    stream.write(data if data.endswith(b"\n") else data + b"\n")
    stream.flush()


def _tables(ledger: Ledger, *, by: By, depth: int | None, folded: bool, epochs: int | None,
            dataset_size: int | None) -> Iterable[Table]:  # fmt: skip
    yield estimate_tables.main_table(ledger, by, depth=depth, folded=folded)
    if ledger.header.step == "train":
        yield estimate_tables.phase_table(ledger)
    if by != "type":
        yield estimate_tables.type_table(ledger)
    yield estimate_tables.total_table(ledger, epochs=epochs, dataset_size=dataset_size)
    yield estimate_tables.memory_table(ledger)


def _show_text(ledger: Ledger, **choices: Any) -> None:
    console = make_console()
    console.print(text.headline(ledger), markup=False, highlight=False, style="bold")
    console.print(text.parameters_line(ledger), markup=False, highlight=False)
    for table in _tables(ledger, **choices):
        console.print(to_rich(table, width=console.width))
    for note in ledger.header.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    console.print(text.coverage(ledger), markup=False, highlight=False)
    console.print(text.CONVENTIONS, markup=False, highlight=False, style="dim")
    console.print(text.provenance(ledger), markup=False, highlight=False, style="dim")


def _markdown(ledger: Ledger, **choices: Any) -> str:
    parts = [f"## {text.headline(ledger)}\n", text.parameters_line(ledger) + "\n"]
    parts += [to_markdown(table) for table in _tables(ledger, **choices)]
    parts += [f"- {note}\n" for note in ledger.header.notes]
    parts.append(f"{text.coverage(ledger)}\n\n{text.CONVENTIONS}\n\n{text.provenance(ledger)}\n")
    return "\n".join(parts)
