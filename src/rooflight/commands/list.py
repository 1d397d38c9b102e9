"""`rooflight list WHAT`: models, formulas, recordings, devices, metrics, growth."""

from __future__ import annotations

import json
from functools import partial

import click

from rooflight.errors import BadInput
from rooflight.formatting import printable


@click.command(short_help="models, formulas, recordings, devices, metrics, growth")
@click.argument("what", type=click.Choice(["models", "formulas", "recordings", "devices", "metrics", "growth"]))
@click.argument("names", metavar="[NAME]...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
def command(what: str, names: tuple[str, ...], as_json: bool) -> None:
    """List the built-in models, the operators that have a formula, the measurements that come along, the devices, or
    every metric with its definition.

    `rooflight list devices NAME` shows every value of one device with its source; NAME is what `rooflight predict --on`
    takes: a name, a .toml file, a few numbers, or `here`.

    `rooflight list growth '5n^3 + 200n^2 + 15' '4n + log n'` gives the Big-O of functions, the slowest growth first;
    without any, the usual ones. (That of a model: `rooflight estimate MODEL --symbolic`.)
    """
    if what == "growth":
        _growth(names, as_json)
        return
    if what == "devices" and len(names) < 2:
        _devices(names[0] if names else None, as_json)
        return
    if names:
        raise BadInput(
            "too-many-names",
            f"`rooflight list {what}` takes no {'second ' if what == 'devices' else ''}name; only `rooflight list "
            "devices` takes one, and `rooflight list growth` functions",
        )
    if what == "metrics":
        _metrics(as_json)
        return
    if what == "models":
        _models(as_json)
        return
    rows = _rows(what)
    if as_json:
        click.echo(json.dumps([{"name": name, "description": text} if text else {"name": name} for name, text in rows]))
        return
    width = max(len(name) for name, _ in rows)
    for row, text in rows:
        click.echo(printable(f"{row:{width}}  {text}".rstrip()))


def _rows(what: str) -> list[tuple[str, str]]:
    if what == "recordings":
        from rooflight.files import load
        from rooflight.recordings import PREFIX, names
        from rooflight.reporting.sections.ledger_documents import headline

        return [(PREFIX + name, headline(load(PREFIX + name))) for name in names()]
    from rooflight.ops.registry import FORMULAS

    return [(name, "") for name in FORMULAS.names()]


def _models(as_json: bool) -> None:
    from rooflight.models import describe, model_names

    families = model_names()
    if as_json:
        entries = [
            {"name": name, "description": describe(name), "family": family}
            for family, names in families.items()
            for name in names
        ]
        click.echo(json.dumps(entries))
        return
    width = max(len(name) for names in families.values() for name in names)
    for family, names in families.items():
        click.echo(f"{family}:")
        for name in names:
            click.echo(printable(f"  {name:{width}}  {describe(name)}"))


def _metrics(as_json: bool) -> None:
    from rooflight.commands.output import emit
    from rooflight.commands.terminal import make_console
    from rooflight.metrics import GROUPS, METRICS
    from rooflight.reporting.table import Column, Table
    from rooflight.reporting.writers.terminal import drawn

    if as_json:
        names = ("name", "title", "unit", "group")
        entries = [
            {name: getattr(metric, name) for name in names} | {"definition": metric.about}
            for metric in METRICS.values()
        ]
        emit(json.dumps(entries, ensure_ascii=False))
        return
    console = make_console()
    columns = (
        Column("name", right=False, whole=True),
        Column("on the screen", right=False, optional=1),
        Column("unit", right=False, whole=True),
        Column("what it is", right=False, wraps=True),
    )
    for group in GROUPS:
        metrics = [metric for metric in METRICS.values() if metric.group == group]
        rows = tuple((metric.name, metric.title, metric.unit, metric.about) for metric in metrics)
        console.print(drawn(Table(group, columns, rows), console.width))


def _growth(functions: tuple[str, ...], as_json: bool) -> None:
    from rooflight.commands.output import emit
    from rooflight.commands.terminal import make_console
    from rooflight.estimation.symbolic.asymptotics import LADDER, asymptotic, ranked
    from rooflight.reporting.table import Column, Table
    from rooflight.reporting.writers.terminal import drawn

    slowest_first = ranked([asymptotic(function) for function in functions or LADDER])
    if as_json:
        entries = [{"function": each.written, "big_o": str(each), "terms": each.why} for each in slowest_first]
        emit(json.dumps(entries, ensure_ascii=False))
        return
    console = make_console()
    columns = (
        Column("function", right=False, whole=True),
        Column("Big-O", right=False, whole=True),
        Column("its terms, fastest first", right=False, wraps=True),
    )
    rows = tuple((each.written, str(each), each.why) for each in slowest_first)
    console.print(drawn(Table("growth, slowest first", columns, rows), console.width))


def _devices(name: str | None, as_json: bool) -> None:
    from rooflight.commands.output import emit
    from rooflight.commands.terminal import make_console
    from rooflight.hardware.devices import cards_taken, known
    from rooflight.prediction.resolve_devices import device_of
    from rooflight.reporting.sections import device_tables
    from rooflight.reporting.writers.terminal import drawn

    chosen = known() if name is None else (device_of(name),)
    if as_json:
        emit(json.dumps([device_tables.device_data(device) for device in chosen], ensure_ascii=False))
        return
    console = make_console()
    plain = partial(console.print, markup=False, highlight=False)
    if name is None:
        console.print(drawn(device_tables.devices_table(chosen), console.width))
        plain(device_tables.CONVENTIONS, style="dim")
        plain("rooflight list devices NAME shows every value of one with its source", style="dim")
        return
    device = chosen[0]
    table, sources = device_tables.device_table(device)
    plain(device.title, style="bold")
    for label, words in (("also", device.aliases), ("reported as", device.recognised_as)):
        if words:
            plain(f"{label}: {', '.join(words)}")
    console.print(drawn(table, console.width))
    for note in (*cards_taken(name), *device.notes):
        plain(f"note: {note}")
    for number, source in enumerate(sources, start=1):
        plain(f"source {number}: {source}", style="dim")
