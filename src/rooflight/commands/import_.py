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


def show_import(ledger: Ledger, *, to: str, by: By = "kernel", top: int | None = None, output: Path | None = None,
                force: bool = False) -> None:  # fmt: skip
    """An imported log in the asked form: text, json, csv or md."""
    from rooflight.commands.output import show
    from rooflight.reporting.ledger_documents import log_document

    shown = _ROWS_IN_TEXT if top is None and to == "text" else top
    show(log_document(ledger, by=by, top=shown, rows_top=top), to, output=output, force=force)


def _read(path: Path) -> Ledger:
    import msgspec

    from rooflight.importing import read

    ledger = read(path)
    header = msgspec.structs.replace(ledger.header, command=shlex.join(["rooflight", *sys.argv[1:]]))
    return msgspec.structs.replace(ledger, header=header)


def _save(ledger: Ledger, output: Path, *, by: By, top: int | None, force: bool) -> None:
    from rooflight.files import save

    name = output.name.lower()
    if name.endswith((".csv", ".md")):
        show_import(ledger, to="csv" if name.endswith(".csv") else "md", by=by, top=top, output=output, force=force)
        say(f"wrote {output}")
        return
    save(ledger, output, force=force)
    say(f"wrote {output} ({len(ledger.kernels):,} launches)")
