"""`rooflight accuracy`: how far predictions are from steps that were timed."""

from __future__ import annotations

from typing import Any

import click

from rooflight.commands.result_options import form_options, forms
from rooflight.commands.terminal import say

_ENDINGS = {".json": "json", ".json.gz": "json", ".csv": "csv", ".md": "md", ".html": "html"}
_MUST = "must end in .json, .json.gz, .csv, .md or .html"


@click.command(short_help="errors of predictions on timed steps")
@click.option("--on", metavar="DEVICE,...", help="Only rows of these devices.")
@click.option(
    "--like",
    metavar="MODEL",
    help="Only rows that resemble this model: the same one, its architecture, its kind; or a kind: convnet, "
    "transformer, hybrid, mlp, recurrent.",
)
@click.option(
    "--tier",
    help="Predictions of this tier: calibrated, published, transferred or spec; by default the one that `rooflight "
    "predict` takes.",
)
@form_options(
    json="Print one JSON document, every row in it.",
    csv="Print every row as CSV.",
    output="Write to FILE: .json, .json.gz, .csv, .md or .html.",
)
def command(**options: Any) -> None:
    """Show how far predictions of this version are from steps that were timed: published by others, or recorded.

    Rows and predictions come with rooflight: nothing is run. Errors are told by device, kind of model, length of the
    step and source, with the part of the rows inside their 90% interval, the rows that are farthest off, and what was
    never checked.
    """
    from rooflight.commands.output import show
    from rooflight.prediction.accuracy import accuracy
    from rooflight.reporting.sections.accuracy_document import accuracy_document

    to, written = forms(options, _ENDINGS, must=_MUST)
    document = accuracy_document(accuracy(on=options["on"], like=options["like"], tier=options["tier"]))
    if written:
        show(document, written, output=options["output"], force=options["force"])
        say(f"wrote {options['output']}")
    if not written or to != "text":
        show(document, to)
