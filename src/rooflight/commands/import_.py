"""`rooflight import FILE ...`: logs from other profilers, as a ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from rooflight.commands.result_options import form_options, forms
from rooflight.commands.terminal import say
from rooflight.spec import shell

if TYPE_CHECKING:
    from rooflight.ledger import Ledger
    from rooflight.reporting.document import Document

_ROWS_IN_TEXT = 25


@click.command("import", short_help="a log from ncu, nsys, nvprof, rocprof or PyTorch's profiler")
@click.argument("paths", metavar="FILE...", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--by",
    type=click.Choice(["kernel", "launch", "range"]),
    default="kernel",
    show_default=True,
    help="What a row is: all launches of a kernel, each launch, or an NVTX range or op.",
)
@click.option(
    "--top", type=click.IntRange(min=1), help="Rows to show; the others are summed up in one. Default: 25 in text."
)
@click.option("--device", metavar="NAME", help="The GPU that the log is of, where it does not tell: v100-sxm2-32gb.")
@form_options(
    json="Print one JSON document: header, totals, origins, kernels.",
    csv="Print the table of kernels as CSV.",
    output="Write to LEDGER: .json or .json.gz saves the ledger, .csv and .md the table.",
)
def command(**options: Any) -> None:
    """Read a log that another profiler wrote: FLOPs, bytes and time of every kernel, in the same units.

    FILE may be Nsight Compute's CSV (raw or details page, any units and separators), its console output or a
    .ncu-rep; Nsight Systems' SQLite export (`nsys export --type sqlite`) or its report cuda_gpu_trace or
    cuda_gpu_kern_sum, as CSV or as pasted from the terminal; nvprof's metrics; AMD's rocprofv3 (kernel_trace,
    counter_collection, kernel_stats) or rocprof; a Chrome trace of PyTorch's profiler, of a GPU or of a CPU alone; or
    a CSV with columns of kernels and times. Any of them may be gzipped. The format is recognised by the content.

    Several FILEs are logs of one program, which are joined: FLOPs and bytes of ncu with the times of nsys. A folder,
    or several traces of PyTorch's profiler, are the ranks of one run: what they did together, and who was waited for.
    """
    to, written = forms(options)
    ledger = _read(options["paths"], options["device"])
    from rooflight.commands.output import keep, show
    from rooflight.reporting.sections.ledger_documents import log_document

    def document(to: str) -> Document:
        top = options["top"]
        shown = _ROWS_IN_TEXT if top is None and to == "text" else top
        return log_document(ledger, by=options["by"], top=shown, rows_top=top)

    if written:
        launches = sum(kernel.calls for kernel in ledger.kernels)
        say(keep(ledger, document, options, written, held=f" ({launches:,} launches)"))
    if written in ("", "json") or to != "text":
        show(document(to), to)


def _read(paths: tuple[Path, ...], device: str | None = None) -> Ledger:
    import msgspec

    from rooflight.profiles.rank_traces import read_logs

    ledger = read_logs(paths, device=device)
    told = ("--device", device) if device is not None else ()
    header = msgspec.structs.replace(ledger.header, command=shell("import", *paths, *told))
    return msgspec.structs.replace(ledger, header=header)
