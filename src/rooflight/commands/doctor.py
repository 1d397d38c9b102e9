"""`rooflight doctor`: what can be measured on this machine, what cannot, why, and what would change it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from rooflight.errors import RooflightError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rooflight.measurement.doctor.diagnosis import Diagnosis, DoctorVerdict
    from rooflight.measurement.doctor.subject import Status

REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "time": ("time",),
    "gpu": ("gpu",),
    "counters": ("counters_cupti", "counters_ncu"),
}
"""What `--require` takes, and the capabilities of which one is enough."""

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
    from rooflight.measurement.doctor.diagnosis import diagnose

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
        groups = [(capabilities.id,) for capabilities in diagnosis.capabilities]
    enough = ("ok",) if strict else ("ok", "limited")
    for group in groups:
        capabilities = [diagnosis.capability(id) for id in group]
        if not any(capability.status in enough for capability in capabilities):
            first = capabilities[0]
            change = first.command or first.remedy
            state = "only limited" if first.status == "limited" else "cannot be had"
            raise CapabilityMissing(
                "capability-missing",
                f"{first.what} {state} here: {first.detail}" + (f"; try: {change}" if change else ""),
            )


def _show_json(diagnosis: Diagnosis) -> None:
    import msgspec

    from rooflight.commands.output import emit

    capabilities = {
        capability.id: {
            "status": capability.status,
            "reason": capability.detail,
            "remedy": capability.remedy,
            "command": capability.command,
        }
        for capability in diagnosis.capabilities
    }
    document = {
        "capabilities": capabilities,
        "findings": diagnosis.findings,
        "versions": diagnosis.versions,
        "ram": diagnosis.ram,
        "gpus": diagnosis.gpus,
        "without_counters": without_counters(diagnosis) or None,
    }
    emit(msgspec.json.format(msgspec.json.encode(document), indent=2))


def without_counters(diagnosis: Diagnosis) -> str:
    """What there is instead, where kernels can be seen and no counter can be read; else empty."""
    counters = [diagnosis.capability(name) for name in REQUIREMENTS["counters"]]
    if diagnosis.capability("kernels").status == "no" or any(entry.status != "no" for entry in counters):
        return ""
    from rooflight.analysis.inferred_errors import INFERRED_ERRORS

    return (
        "without counters: rooflight measure infers executed FLOPs, HFU and DRAM bytes from kernel names, grids and "
        f"shapes, and marks them as inferred; {INFERRED_ERRORS.text}"
    )


def show(diagnosis: Diagnosis) -> None:
    from rooflight.commands.terminal import make_console

    console = make_console()
    versions = diagnosis.versions
    names = {"rooflight": "rooflight", "Python": "python", "torch": "torch", "driver": "driver"}
    line = " · ".join(f"{name} {versions[key]}" for name, key in names.items() if versions[key])
    console.print(line, markup=False, highlight=False, style="bold")
    able = [(entry.what, entry.status, entry.detail) for entry in diagnosis.capabilities]
    seen = [(entry.what, entry.status, entry.detail) for entry in diagnosis.findings]
    width = 2 + max(len(what) for what, _, _ in (*able, *seen))
    console.print(_table("what can be measured here", able, width))
    console.print(_table("what was found", seen, width))
    if instead := without_counters(diagnosis):
        console.print(f"\n{instead}", markup=False, highlight=False)
    if any(entry.remedy or entry.command for entry in diagnosis.findings):
        console.print("\nto change it", style="bold", highlight=False)
        _show_remedies(console, diagnosis.findings, width)
    else:
        console.print("\nnothing stands in the way", highlight=False)


def _table(title: str, rows: Sequence[tuple[str, Status, str]], width: int) -> Any:
    """A bold line, and under it what, status and detail in columns."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True, min_width=width)
    grid.add_column(no_wrap=True, min_width=max(len(mark) for mark, _ in _MARKS.values()))
    grid.add_column(overflow="fold")
    for what, status, detail in rows:
        mark, style = _MARKS[status]
        grid.add_row(Text(f"  {what}"), Text(mark, style=style), Text(detail))
    return Group(Text(f"\n{title}", style="bold"), grid)


def _show_remedies(console: Any, findings: Sequence[DoctorVerdict], width: int) -> None:
    from rich.table import Table
    from rich.text import Text

    for finding in findings:
        if not (finding.remedy or finding.command):
            continue
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True, min_width=width)
        grid.add_column(overflow="fold")
        grid.add_row(Text(f"  {finding.what}"), Text(finding.remedy))
        console.print(grid)
        if finding.command:
            # Never broken into lines: it is there to be copied.
            console.print(Text(f"{'':{width}}  $ {finding.command}", style="cyan"), soft_wrap=True)
