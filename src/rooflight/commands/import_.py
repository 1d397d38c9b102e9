"""`rooflight import FILE`: a log from another profiler, as a ledger."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.form_options import check_form, form
from rooflight.commands.terminal import say

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.reporting.kernel_groups import By

_ROWS_IN_TEXT = 25
_WIDE_ENOUGH = 125
"""Columns of a terminal that has room for the origin of each total in its row."""


@click.command("import", short_help="a log from ncu, nsys, nvprof or PyTorch's profiler")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--by",
    type=click.Choice(["kernel", "launch", "range"]),
    default="kernel",
    show_default=True,
    help="What a row is: all launches of a kernel, each launch, or an NVTX range or op.",
)
@click.option("--top", type=click.IntRange(min=1), help="Rows to show; the others are added up. Default: 25 in text.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document: header, totals, origins, kernels.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the table of kernels as CSV.")
@click.option("--md", "as_markdown", is_flag=True, help="Print as Markdown.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="Write to LEDGER: .json or .json.gz saves the ledger, .csv and .md the table.",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(**options: Any) -> None:
    """Read a log that another profiler wrote: FLOPs, bytes and time of every kernel, with units put right.

    FILE may be Nsight Compute's CSV (raw or details page, any units and separators), its console output or a
    .ncu-rep; Nsight Systems' `nsys stats --report cuda_gpu_trace --format csv`; nvprof's metrics; or a Chrome trace
    of PyTorch's profiler. Any of them may be gzipped. What it is, is found out from its content.
    """
    check_form(options)
    by, top, output = options["by"], options["top"], options["output"]
    ledger = _read(options["path"])
    to = form(options)
    if output is not None:
        _save(ledger, output, by=by, top=top, force=options["force"])
    if output is None or to != "text" or output.name.lower().endswith((".json", ".json.gz")):
        show_import(ledger, to=to, by=by, top=top)


def show_import(ledger: Ledger, *, to: str, by: By = "kernel", top: int | None = None) -> None:
    """Print an imported log in the asked form: text, json, csv or md."""
    if to == "text":
        _print(ledger, by, top or _ROWS_IN_TEXT)
        return
    from rooflight.commands.output import emit

    emit(import_content(ledger, to=to, by=by, top=top))


def _read(path: Path) -> Ledger:
    import msgspec

    from rooflight.importing import read

    ledger = read(path)
    header = msgspec.structs.replace(ledger.header, command=shlex.join(["rooflight", *sys.argv[1:]]))
    return msgspec.structs.replace(ledger, header=header)


def _save(ledger: Ledger, output: Path, *, by: By, top: int | None, force: bool) -> None:
    from rooflight.files import save, write_atomically

    name = output.name.lower()
    if name.endswith((".csv", ".md")):
        content = import_content(ledger, to="csv" if name.endswith(".csv") else "md", by=by, top=top)
        write_atomically(output, content, force=force)
        say(f"wrote {output}")
        return
    save(ledger, output, force=force)
    say(f"wrote {output} ({len(ledger.kernels):,} launches)")


def import_content(ledger: Ledger, *, to: str, by: By = "kernel", top: int | None = None) -> bytes:
    """An imported log as a document: json, csv or md."""
    import msgspec

    from rooflight.reporting import kernel_tables as tables
    from rooflight.reporting.table import to_csv, to_markdown

    if to == "json":
        return msgspec.json.encode(tables.log_data(ledger))
    if to == "csv":
        return to_csv([tables.kernel_table(ledger, by, top=top)]).encode()
    parts = [f"## {tables.headline(ledger)}\n", to_markdown(tables.kernel_table(ledger, by, top=top))]
    parts.append(to_markdown(tables.totals_table(ledger)))
    said = [*([line] if (line := tables.flop_count_line(ledger)) else []), *ledger.header.notes]
    parts += ["\n".join(f"- {line}" for line in said) + "\n"] if said else []
    return "\n".join([*parts, *(f"{line}\n" for line in tables.small_print(ledger))]).encode()


def _print(ledger: Ledger, by: By, top: int) -> None:
    from rooflight.commands.terminal import make_console
    from rooflight.reporting import kernel_tables as tables
    from rooflight.reporting.table import Table, to_rich

    console = make_console()

    def put(text: str, style: str | None = None) -> None:
        console.print(text, markup=False, highlight=False, style=style)

    put(tables.headline(ledger), "bold")
    name_width = max(18, min(tables.NAME_WIDTH, console.width - 50))
    console.print(to_rich(tables.kernel_table(ledger, by, top=top, name_width=name_width), width=console.width))
    sums = tables.totals_table(ledger)
    if console.width >= _WIDE_ENOUGH:
        console.print(to_rich(sums, width=console.width))
    else:
        console.print(
            to_rich(Table(sums.title, sums.columns[:-1], tuple(row[:-1] for row in sums.rows)), width=console.width)
        )
        for title, *_, origin in sums.rows:
            put(f"{title}: {origin}", "dim")
    if (compared := tables.flop_count_line(ledger)) is not None:
        put(compared)
    for note in ledger.header.notes:
        put(f"note: {note}")
    for line in tables.small_print(ledger):
        put(line, "dim")
