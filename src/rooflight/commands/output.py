"""Giving a result: through rich when people look, as plain text when programs do, or into a file."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rooflight.commands.result_options import ledger_file
from rooflight.commands.terminal import make_console, say
from rooflight.files import save, write_atomically
from rooflight.formatting import printable
from rooflight.ledger import Ledger
from rooflight.reporting.document import Document
from rooflight.reporting.writers import write
from rooflight.reporting.writers.terminal import print_document
from rooflight.spec import shell


def show(document: Document, to: str, *, output: Path | None = None, force: bool = False) -> None:
    """In the form that was asked for: text, json, csv or md; into a file where one is named."""
    if to == "text":
        print_document(document, make_console())
        return
    form: Any = to
    deliver(write(document, form, report=False), output, force=force)


def keep(
    ledger: Ledger,
    document: Callable[[str], Document],
    options: Mapping[str, Any],
    to: str,
    *,
    held: str = "",
    measured: bool = False,
) -> str:
    """Into the file that the options name: the ledger itself as JSON, `document` of the form in any other; what was
    `measured` is kept beside that, since it cannot be had again. What there is to say of it; `held` is what a ledger
    holds."""
    output, force = options["output"], options["force"]
    if to == "json":
        save(ledger, output, force=force)
        return f"wrote {output}{held}"
    beside = ""
    if measured:
        kept = ledger_file(output)
        save(ledger, kept, force=force)
        uses = [shell("report", kept), *([f"{shell('predict', kept)} --on h200"] if ledger.ops else [])]
        beside = f", and beside it the ledger {kept}; use it with: {', '.join(uses)}"
    show(document(to), to, output=output, force=force)
    return f"wrote {output}{beside}"


def ops_of(ledger: Ledger, options: Mapping[str, Any]) -> str:
    """For `keep`: what a ledger of a step holds, and how to see it."""
    return f" ({len(ledger.ops):,} ops); see it again with: {shell('report', options['output'])}"


def draw(document: Document, options: Mapping[str, Any], form: Any, *, chart: str | None) -> None:
    """One chart of it, into the file that the options name."""
    mode: Any = "dark" if options["dark"] else "light"
    deliver(write(document, form, chart=chart, mode=mode), options["output"], force=options["force"])


def explain(ledger: Ledger, layer: str, *, latex: bool = False) -> None:
    """The figures of one layer, derived."""
    from rooflight.reporting.sections.derivation import derivation_latex, derivation_of, derivation_text

    derivation = derivation_of(ledger, layer)
    emit(derivation_latex(derivation) if latex else derivation_text(derivation))


def say_cards(on: str | Sequence[str]) -> None:
    """Which cards were taken for names that several have."""
    from rooflight.hardware.devices import cards_taken

    for line in cards_taken(on):
        say(f"note: {line}")


def show_roofline(ledger: Ledger, on: str) -> None:
    """The roofline in text: of where the step ran, or as predicted on the first of the devices."""
    from rooflight.prediction.resolve_devices import devices_of
    from rooflight.reporting.charts.text_roofline import text_roofline
    from rooflight.reporting.report.context import context_of

    console = make_console()
    context = context_of(ledger, source="", devices=devices_of(on, None))
    for line in text_roofline(context.elsewhere, on=context.roofed.device, width=min(console.width, 110)):
        console.print(printable(line), markup=False, highlight=False, soft_wrap=True)


def deliver(content: bytes, output: Path | None, *, force: bool) -> None:
    """To a file where one is named, else to the output."""
    if output is None:
        emit(content)
    else:
        name = output.name.lower()
        write_atomically(output, gzip.compress(content, mtime=0) if name.endswith(".gz") else content, force=force)


def emit(content: bytes | str) -> None:
    stream = sys.stdout.buffer
    data = content if isinstance(content, bytes) else "\n".join(map(printable, content.split("\n"))).encode()
    stream.write(data if data.endswith(b"\n") else data + b"\n")
    stream.flush()
