"""`rooflight report PATH`: a saved ledger or a study's folder, shown again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from rooflight.commands.table_options import measured_options, table_options
from rooflight.errors import BadInput

if TYPE_CHECKING:
    from rooflight.study.api import Study
    from rooflight.summary import By


@click.command(short_help="show a saved ledger, or a study")
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option(
    "--to", type=click.Choice(["text", "md", "csv", "json", "html"]), default="text", show_default=True,
    help="In which form; html is for a study.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="The same as --to json.")
@click.option("--csv", "as_csv", is_flag=True, help="The same as --to csv.")
@click.option("--md", "as_markdown", is_flag=True, help="The same as --to md.")
@table_options
@measured_options
@click.option("--explain", metavar="LAYER", help="Derive one layer by pen and paper.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to FILE instead of the terminal.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(paths: tuple[Path, ...], to: str, by: By, depth: int | None, unfold: bool, memory: bool, kernels: int,
            explain: str | None, output: Path | None, force: bool, **forms: bool) -> None:  # fmt: skip
    """Show the ledger in PATH, as `rooflight estimate -o PATH` or `rooflight measure -o PATH` saved it.

    PATH may be a study's folder, shown with its claims and trends; or recorded:NAME, a measurement that comes with
    rooflight (see `rooflight list recordings`). Several are the ranks of one run, as torchrun leaves them, and are
    joined: rooflight report run.rank*.json
    """
    from rooflight.files import load

    to = _form(to, forms, output)
    if len(paths) == 1 and paths[0].is_dir():
        _study(paths[0], to, output, force=force)
        return
    if to == "html":
        raise BadInput("--to html is for a study's folder; a ledger is shown as text, md, csv or json")
    if output is not None and to == "text":
        raise BadInput(f"{output}: the name must end in .md, .csv or .json, or --to says the form")
    ledger = load(paths[0])
    if len(paths) > 1:
        from rooflight.measurement.ranks import join

        ledger = join([ledger, *(load(path) for path in paths[1:])])
    from rooflight.commands.output import emit, say, show_estimate, show_log, show_measure
    from rooflight.measured import is_measured

    if explain:
        from rooflight.estimation.derivation import derive
        from rooflight.reporting.derivation import derivation_text

        emit(derivation_text(derive(ledger, explain)))
        return
    if depth is None and to in ("text", "md"):
        depth = 3
    folded = not unfold and to != "csv"
    if ledger.header.step is None and is_measured(ledger):  # a log or regions; a step may have no ops on record
        show_log(ledger, to=to, kernels=kernels, output=output, force=force)
    elif is_measured(ledger):
        show_measure(ledger, by=by, depth=depth, to=to, folded=folded, memory=memory, kernels=kernels, output=output,
                     force=force)  # fmt: skip
    else:
        show_estimate(ledger, by=by, depth=depth, to=to, folded=folded, output=output, force=force)
    if output is not None:
        say(f"wrote {output}")


def _form(to: str, forms: dict[str, bool], output: Path | None) -> str:
    """As --to says, or a flag, or the ending of the file's name."""
    named = {"as_json": "json", "as_csv": "csv", "as_markdown": "md"}
    asked = [form for flag, form in named.items() if forms[flag]]
    if len(asked) + (to != "text") > 1:
        raise BadInput("choose one of --to, --json, --csv and --md")
    if asked:
        return asked[0]
    ending = output.suffix.lower().removeprefix(".") if output is not None else ""
    return ending if to == "text" and ending in ("json", "csv", "md", "html") else to


def _study(folder: Path, to: str, output: Path | None, *, force: bool) -> None:
    """A study's folder."""
    from rooflight.commands.output import emit, say, show_page
    from rooflight.files import write_atomically
    from rooflight.reporting.study_page import study_page
    from rooflight.study.api import load

    if output is not None and to == "text":
        raise BadInput(f"{output}: the name must end in .md, .csv, .json or .html, or --to says the form")
    study = load(folder)
    if to == "text":
        show_page(study_page(study.rows, study.plan, folder=str(folder)))
        return
    content = _study_content(study, to)
    if output is None:
        emit(content)
        return
    write_atomically(output, content, force=force)
    say(f"wrote {output}")


def _study_content(study: Study, to: str) -> bytes:
    import msgspec

    rows, plan, folder = study.rows, study.plan, str(study.folder)
    if to == "json":
        from rooflight.reporting.study_document import document

        return msgspec.json.encode(document(rows, plan, folder=folder))
    if to == "csv":
        from rooflight.reporting.study_tables import csv_table
        from rooflight.reporting.table import to_csv

        return to_csv([csv_table(rows)]).encode()
    if to == "md":
        from rooflight.reporting.study_page import study_page

        return study_page(rows, plan, folder=folder).to_markdown().encode()
    from rooflight.reporting.study_html import study_html

    return study_html(rows, plan, folder=folder).encode()
