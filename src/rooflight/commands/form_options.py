"""The options that say in which form a result is given, and where it goes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from rooflight.errors import BadInput

_OPTIONS = (
    click.option("--json", "as_json", is_flag=True, help="Print one JSON document: header, totals, modules, ops."),
    click.option("--csv", "as_csv", is_flag=True, help="Print the table as CSV."),
    click.option("--md", "as_markdown", is_flag=True, help="Print as Markdown."),
    click.option("-o", "--output", type=click.Path(path_type=Path),
                 help="Write to FILE: .json or .json.gz saves the ledger, .csv and .md the table."),
    click.option("--force", is_flag=True, help="Replace an existing file."),
)  # fmt: skip


def form_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def form(options: Mapping[str, Any]) -> str:
    for name, found in (("as_json", "json"), ("as_csv", "csv"), ("as_markdown", "md")):
        if options[name]:
            return found
    return "text"


def check_form(options: Mapping[str, Any]) -> None:
    if sum(options[name] for name in ("as_json", "as_csv", "as_markdown")) > 1:
        raise BadInput("choose one of --json, --csv and --md")
    output: Path | None = options["output"]
    if output is None:
        return
    if not output.name.lower().endswith((".json", ".json.gz", ".csv", ".md")):
        raise BadInput(
            f"{output}: the name must end in .json, .json.gz, .csv or .md; a page is made from a "
            "saved one: rooflight report FILE -o report.html"
        )
    from rooflight.files import check_writable

    check_writable(output, force=options["force"])
