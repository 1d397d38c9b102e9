"""`rooflight list WHAT`: models, formulas, recordings, devices, metrics."""

from __future__ import annotations

import json

import click

from rooflight.formatting import printable


@click.command(short_help="models, formulas, recordings, devices, metrics")
@click.argument("what", type=click.Choice(["models", "formulas", "recordings", "devices", "metrics"]))
@click.argument("name", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(what: str, name: str | None, as_json: bool) -> None:
    """List the built-in models, the operators that have a formula, the measurements that come along, the devices, or
    every metric with its definition.

    `rooflight list devices NAME` shows every value of one device with its source; NAME is what `rooflight predict --on`
    takes: a name, a .toml file, or `here`.
    """
    if what == "devices":
        _devices(name, as_json)
        return
    if name is not None:
        raise click.UsageError(f"`rooflight list {what}` takes no name; only `rooflight list devices` does")
    if what == "metrics":
        _metrics(as_json)
        return
    rows = _rows(what)
    if as_json:
        click.echo(json.dumps([{"name": name, "description": text} if text else {"name": name} for name, text in rows]))
        return
    width = max(len(name) for name, _ in rows)
    for row, text in rows:
        click.echo(printable(f"{row:{width}}  {text}".rstrip()))


def _rows(what: str) -> list[tuple[str, str]]:
    if what == "models":
        from rooflight.models import builtin_names, describe

        return [(name, describe(name)) for name in builtin_names()]
    if what == "recordings":
        from rooflight.files import load
        from rooflight.recordings import PREFIX, names
        from rooflight.reporting.sections.ledger_documents import headline

        return [(PREFIX + name, headline(load(PREFIX + name))) for name in names()]
    from rooflight.ops.registry import FORMULAS

    return [(name, "") for name in FORMULAS.names()]


def _metrics(as_json: bool) -> None:
    from rooflight.commands.output import emit
    from rooflight.commands.terminal import make_console
    from rooflight.metrics import GROUPS, METRICS
    from rooflight.reporting.table import Column, Table
    from rooflight.reporting.writers.terminal import drawn

    if as_json:
        emit(
            json.dumps(
                [
                    {
                        "name": one.name,
                        "title": one.title,
                        "unit": one.unit,
                        "group": one.group,
                        "definition": one.about,
                    }
                    for one in METRICS.values()
                ],
                ensure_ascii=False,
            )
        )
        return
    console = make_console()
    columns = (
        Column("name", right=False, whole=True),
        Column("on the screen", right=False, optional=1),
        Column("unit", right=False, whole=True),
        Column("what it is", right=False, wraps=True),
    )
    for group in GROUPS:
        rows = tuple((one.name, one.title, one.unit, one.about) for one in METRICS.values() if one.group == group)
        console.print(drawn(Table(group, columns, rows), console.width))


def _devices(name: str | None, as_json: bool) -> None:
    from rooflight.commands.output import emit
    from rooflight.commands.terminal import make_console
    from rooflight.hardware.devices import known
    from rooflight.prediction.resolve_devices import device_of
    from rooflight.reporting.sections import device_tables
    from rooflight.reporting.writers.terminal import drawn

    chosen = known() if name is None else (device_of(name),)
    if as_json:
        emit(json.dumps([device_tables.device_data(device) for device in chosen], ensure_ascii=False))
        return
    console = make_console()
    if name is None:
        console.print(drawn(device_tables.devices_table(chosen), console.width))
        console.print(device_tables.CONVENTIONS, markup=False, highlight=False, style="dim")
        hint = "rooflight list devices NAME shows every value of one with its source"
        console.print(hint, markup=False, highlight=False, style="dim")
        return
    device = chosen[0]
    table, sources = device_tables.device_table(device)
    console.print(device.title, markup=False, highlight=False, style="bold")
    for label, words in (("also", device.aliases), ("reported as", device.recognised_as)):
        if words:
            console.print(f"{label}: {', '.join(words)}", markup=False, highlight=False)
    console.print(drawn(table, console.width))
    for note in device.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    for number, source in enumerate(sources, start=1):
        console.print(f"source {number}: {source}", markup=False, highlight=False, style="dim")
