"""`rooflight doctor`: what can be measured on this machine, what cannot, why, and what would change it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from rooflight.errors import RooflightError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Group
    from rich.text import Text

    from rooflight.measurement.doctor import CheckResult, Diagnosis

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "time": ("time",),
    "gpu": ("gpu",),
    "counters": ("counters_cupti", "counters_ncu"),
}
"""What `--require` takes, and the checks of which one is enough."""

_MARKS = {"ok": ("✓ ok", "green"), "limited": ("! limited", "yellow"), "no": ("✗ no", "red")}


class CapabilityMissing(RooflightError):
    """Something that was asked for cannot be done on this machine."""

    exit_code = 3


@click.command(short_help="what can be measured here, and what would change it")
@click.option("--json", "as_json", is_flag=True, help="Print as JSON.")
@click.option(
    "--require",
    "required",
    type=click.Choice(list(REQUIREMENTS)),
    multiple=True,
    help="Exit with 3 if this cannot be measured here; may be repeated.",
)
@click.option(
    "--strict",
    is_flag=True,
    help="Exit with 3 also if it is only limited; without --require, if anything is missing or limited.",
)
def command(as_json: bool, required: tuple[str, ...], strict: bool) -> None:
    """Look at this machine: what rooflight can measure on it, what it cannot, why, and what would change that.

    Exit codes: 0 rooflight works here (--require and --strict ask for more), 2 wrong usage, 3 something that is
    needed is missing; then the last line, on standard error, says what.
    """
    from rooflight.measurement.doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        _show_json(diagnosis)
    else:
        show(diagnosis)
    refuse(diagnosis, required=required, strict=strict)


def refuse(diagnosis: Diagnosis, *, required: Sequence[str], strict: bool) -> None:
    """Raise `CapabilityMissing` for the first thing that is needed and not there."""
    groups = [("estimate",), *(REQUIREMENTS[name] for name in required)]
    if strict and not required:
        groups = [(name,) for name in diagnosis.checks]
    enough = ("ok",) if strict else ("ok", "limited")
    for group in groups:
        found = [diagnosis.checks[name] for name in group]
        if not any(check.status in enough for check in found):
            first = found[0]
            state = "only limited" if first.status == "limited" else "cannot be had"
            raise CapabilityMissing("capability-missing", f"{first.title} {state} here: {first.detail}")


def _show_json(diagnosis: Diagnosis) -> None:
    from dataclasses import asdict

    import msgspec

    from rooflight.commands.output import emit

    document = {**asdict(diagnosis), "without_counters": without_counters(diagnosis) or None}
    emit(msgspec.json.format(msgspec.json.encode(document), indent=2))


def without_counters(diagnosis: Diagnosis) -> str:
    """What there is instead, where kernels can be seen and no counter can be read; else empty."""
    counters = [diagnosis.checks[name] for name in REQUIREMENTS["counters"]]
    if diagnosis.checks["kernels"].status == "no" or any(check.status != "no" for check in counters):
        return ""
    from rooflight.analysis.inferred_errors import INFERRED_ERRORS

    return (
        "without counters: rooflight measure infers executed FLOPs, HFU and DRAM bytes from kernel names, grids and "
        f"shapes, and marks them as inferred; {INFERRED_ERRORS.text}"
    )


def show(diagnosis: Diagnosis) -> None:
    from rich.text import Text

    from rooflight.commands.terminal import make_console

    console = make_console()
    versions = diagnosis.versions
    names = {"rooflight": "rooflight", "Python": "python", "torch": "torch", "driver": "driver"}
    line = " · ".join(f"{name} {versions[key]}" for name, key in names.items() if versions.get(key))
    console.print(line, markup=False, highlight=False, style="bold")
    found = diagnosis.checks.values()
    width = 2 + max(len(check.title) for check in found)
    console.print(_table("what can be measured here", [_row(check) for check in found], width))
    if instead := without_counters(diagnosis):
        console.print(f"\n{instead}", markup=False, highlight=False)
    if remedies := [(Text(f"  {check.title}"), Text(check.remedy)) for check in found if check.remedy]:
        console.print(_table("to change it", remedies, width))
    else:
        console.print("\nnothing stands in the way", highlight=False)


def _row(check: CheckResult) -> tuple[Text, ...]:
    from rich.text import Text

    mark, style = _MARKS[check.status]
    return Text(f"  {check.title}"), Text(mark, style=style), Text(check.detail)


def _table(title: str, rows: Sequence[tuple[Text, ...]], width: int) -> Group:
    """Return a bold line, and rows in columns under it."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=width)
    for _ in rows[0][2:]:
        grid.add_column(no_wrap=True, min_width=max(len(mark) for mark, _ in _MARKS.values()))
    grid.add_column(overflow="fold")
    for row in rows:
        grid.add_row(*row)
    return Group(Text(f"\n{title}", style="bold"), grid)
