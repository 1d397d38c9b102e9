"""`rooflight report FILE`: a saved ledger, shown again."""

from __future__ import annotations

from pathlib import Path

import click

from rooflight.commands.table_options import table_options
from rooflight.errors import BadInput


@click.command(short_help="show a saved ledger")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "--to", type=click.Choice(["text", "md", "csv", "json"]), default="text", show_default=True, help="In which form."
)
@table_options
@click.option("--explain", metavar="LAYER", help="Derive one layer by pen and paper.")
@click.option("-o", "--output", type=click.Path(path_type=Path), help="Write to FILE instead of the terminal.")
@click.option("--force", is_flag=True, help="Replace an existing file.")
def command(path: Path, to: str, by: str, depth: int | None, unfold: bool, explain: str | None, output: Path | None,
            force: bool) -> None:  # fmt: skip
    """Show the ledger in PATH, as `rooflight estimate -o PATH` saved it."""
    from rooflight.files import load

    if output is not None and to == "text":
        raise BadInput("-o goes with --to md, csv or json")
    ledger = load(path)
    from rooflight.commands.output import emit, say, show_estimate

    if explain:
        from rooflight.estimation.derivation import derive
        from rooflight.reporting.derivation import derivation_text

        emit(derivation_text(derive(ledger, explain)))
        return
    if depth is None and to in ("text", "md"):
        depth = 3
    show_estimate(ledger, by=by, depth=depth, to=to, folded=not unfold and to != "csv", output=output, force=force)  # type: ignore[arg-type]
    if output is not None:
        say(f"wrote {output}")
