"""`rooflight list WHAT`: models, formulas, recordings."""

from __future__ import annotations

import json

import click


@click.command(short_help="models, formulas, recordings")
@click.argument("what", type=click.Choice(["models", "formulas", "recordings"]))
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(what: str, as_json: bool) -> None:
    """List the built-in models, the operators that have a formula, or the measurements that come along."""
    if what == "models":
        from rooflight.models import builtin_names, describe

        rows = [(name, describe(name)) for name in builtin_names()]
    elif what == "recordings":
        from rooflight.files import load
        from rooflight.recorded import PREFIX, names
        from rooflight.reporting.text import headline

        rows = [(PREFIX + name, headline(load(PREFIX + name))) for name in names()]
    else:
        import rooflight.estimation.formulas  # noqa: F401  (registers them)
        from rooflight.estimation.registry import registered

        rows = [(name, "") for name in registered()]
    if as_json:
        click.echo(json.dumps([{"name": name, "description": text} if text else {"name": name} for name, text in rows]))
        return
    width = max(len(name) for name, _ in rows)
    for name, text in rows:
        click.echo(f"{name:{width}}  {text}".rstrip())
