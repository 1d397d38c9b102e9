"""The options that say what a result shows, in which form it is given, and where it goes: for every verb one
definition, and one function that reads them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import click

from rooflight.errors import BadFile, BadInput

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
KERNELS = 10
_FLAGS = {"json": "as_json", "csv": "as_csv", "md": "as_markdown"}
_HELP = {
    "json": "Print one JSON document: header, totals, modules, ops.",
    "csv": "Print the table as CSV.",
    "md": "Print as Markdown.",
    "output": "Write to FILE: .json or .json.gz saves the ledger, .csv and .md the table.",
}
LEDGER_OR_TABLE = {".json": "json", ".json.gz": "json", ".csv": "csv", ".md": "md"}
"""Endings of files' names, and the forms that they ask for."""
_MUST = (
    "must end in .json, .json.gz, .csv or .md; a page is made from a saved one: `rooflight report FILE -o report.html`"
)


def together(*options: Decorator) -> Decorator:
    """Several options as one decorator, in the order in which the help shows them."""

    def decorated(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


PICTURES = {".png": "png", ".svg": "svg", ".pdf": "pdf"}
_MUST_OR_PICTURE = (
    "must end in .json, .json.gz, .csv, .md, .png, .svg or .pdf; a page is made from a saved one: "
    "`rooflight report FILE -o report.html`"
)


def picture_options(charts: str) -> Decorator:
    """For verbs that draw; `charts`: which there are, and which is drawn where none is named."""
    return together(
        click.option("--chart", metavar="NAME", help=f"Which picture, with -o FILE.png, .svg or .pdf: {charts}."),
        click.option("--dark", is_flag=True, help="Draw the chart for a dark background."),
    )


def forms_or_picture(options: Mapping[str, Any]) -> tuple[str, str]:
    """As `forms`, for verbs that draw."""
    printed, written = forms(options, LEDGER_OR_TABLE | PICTURES, must=_MUST_OR_PICTURE)
    if (options["chart"] or options["dark"]) and written not in PICTURES.values():
        raise BadInput("option-needs-another", "--chart and --dark are of a picture: name one, as with -o chart.png")
    if written in PICTURES.values() and printed != "text":
        raise BadInput(
            "option-conflict",
            f"--{printed} prints, and -o {options['output']} draws: leave one out, and give it in a command of its own",
        )
    return printed, written


table_options = together(
    click.option(
        "--by",
        type=click.Choice(["module", "type", "op"]),
        default="module",
        show_default=True,
        help="What a row of the table is.",
    ),
    click.option(
        "--depth", type=click.IntRange(min=0), help="Levels of the module tree to show. Default: 3, in CSV all."
    ),
    click.option("--unfold", is_flag=True, help="Show identical blocks one by one."),
)


def table_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """What `table_options` ask for, as the tables take it."""
    return {"by": options["by"], "depth": options["depth"], "folded": not options["unfold"]}


measured_options = together(
    click.option("--memory", is_flag=True, help="For a measurement: allocated memory, row by row."),
    click.option(
        "--kernels",
        type=click.IntRange(min=0),
        default=KERNELS,
        show_default=True,
        help="For a measurement: how many kernels to show.",
    ),
)
"""For verbs that show measurements, beside `table_options`."""


def form_options(flags: Collection[str] = tuple(_FLAGS), /, **help: str) -> Decorator:
    """`flags`: the forms that a verb prints beside text. `help`: where it has other words for one of them, by `json`,
    `csv`, `md` and `output`."""
    texts = _HELP | help
    return together(
        *(click.option(f"--{form}", _FLAGS[form], is_flag=True, help=texts[form]) for form in flags),
        click.option("-o", "--output", type=click.Path(path_type=Path), help=texts["output"]),
        click.option("--force", is_flag=True, help="Replace an existing file."),
    )


def ledger_file(output: Path) -> Path:
    """Where what was measured is kept: beside a page or a table that is written to `output`."""
    return output if output.name.lower().endswith((".json", ".json.gz")) else output.with_suffix(".json")


def forms(
    options: Mapping[str, Any],
    endings: Mapping[str, str] = LEDGER_OR_TABLE,
    *,
    must: str = _MUST,
    measured: bool = False,
) -> tuple[str, str]:
    """What is printed, as a flag or `--to` says, else text; and what is written, as the file's name says: nothing where
    none is given. A file that cannot be written is refused here, before the work; of a measurement its ledger, too."""
    flags = [form for form, name in _FLAGS.items() if options.get(name)]
    to = options.get("to")
    if len(flags) + (to is not None) > 1:
        raise BadInput("option-conflict", f"choose one of {'--to, ' if 'to' in options else ''}--json, --csv and --md")
    if flags and "to" in options:  # where there is --to, a flag is short for it
        to = flags[0]
    printed = to or (flags[0] if flags else "text")
    output: Path | None = options["output"]
    if output is None:
        return printed, ""
    written = next((form for end, form in endings.items() if output.name.lower().endswith(end)), "")
    if not written and to in (None, "text"):
        raise BadInput("wrong-suffix", f"{output}: the name {must}")
    from rooflight.files import check_writable

    check_writable(output, force=options["force"])
    if measured and ledger_file(output) != output:
        try:
            check_writable(ledger_file(output), force=options["force"])
        except BadFile as error:
            raise error.reworded(
                f"what is measured is kept beside {output.name}, and {error.on_command_line}"
            ) from None
    return printed, written or printed


def one_form(options: Mapping[str, Any], endings: Mapping[str, str], *, must: str) -> str:
    """The same for a verb that either prints or writes."""
    printed, written = forms(options, endings, must=must)
    if written and printed != written and (printed != "text" or options.get("to")):
        raise BadInput(
            "two-forms",
            f"--{'to ' if options.get('to') else ''}{printed} and -o {options['output']} ask for two forms: "
            "leave one out",
        )
    return written or printed
