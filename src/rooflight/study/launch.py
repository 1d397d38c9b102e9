"""Who runs the cells of a study: the processes of this machine, or a cluster; what is run together, and in words what
would be run."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from rooflight.study.cell import Key, Side, StudyCell
from rooflight.study.journal import Progress
from rooflight.study.machine import can_measure, place_of
from rooflight.study.store import Store

TOGETHER = range(8, 33)
"""Batches that one process takes on at once: fewer would be traced in vain, more would keep the others waiting."""


class Launcher(Protocol):
    """Runs cells that wait until none of them does, or until nothing more can be done here."""

    def run(self, folder: Path, waiting: list[StudyCell], progress: Progress) -> None: ...

    def dry_run(self, store: Store) -> str:
        """What `run` would do, in words."""
        ...


@dataclass(frozen=True)
class WorkUnit:
    """One side of cells that differ in their batch alone: they share a trace."""

    side: Side
    cells: tuple[StudyCell, ...]
    crashes: int = 0
    """How many processes have died of it."""


def units_of(store: Store, cells: Sequence[StudyCell], sides: Sequence[Side], *, workers: int = 1) -> list[WorkUnit]:
    """What is open of these cells, put together where that saves work, and not where it leaves a worker idle."""
    groups: dict[tuple[Side, str], dict[Key, StudyCell]] = {}
    for side in sides:
        for cell in cells:
            if side in store.open_sides(cell):
                alike = replace(cell.alone if side == "estimated" else cell, batch=1)
                groups.setdefault((side, alike.id), {})[cell.key(side)] = cell
    units = []
    for (side, _), alike_cells in groups.items():
        members = list(alike_cells.values())
        share = -(-len(members) * len(groups) // workers)
        size = 1 if side == "measured" else min(max(share, TOGETHER[0]), TOGETHER[-1])
        units += [WorkUnit(side, tuple(members[start : start + size])) for start in range(0, len(members), size)]
    return units


def free_units(store: Store, units: Sequence[WorkUnit]) -> list[WorkUnit]:
    """Those that no other process is at, without the cells that one is at."""
    free = []
    for unit in units:
        cells = tuple(cell for cell in unit.cells if store.is_free(cell.key(unit.side)))
        free += [dataclasses.replace(unit, cells=cells)] if cells else []
    return free


def wanted_here(store: Store, cells: Sequence[StudyCell]) -> list[StudyCell]:
    """Cells that this machine can measure."""
    return [cell for cell in cells if store.is_measurable(cell) and can_measure(cell)]


# --- what would be done ---

_SHOWN = 12
"""Command lines that are written out."""


def outline(store: Store, *, elsewhere: bool = False) -> list[str]:
    """Cells, what they share, what is measured, and the commands that would do each alone. `elsewhere`: on the nodes of
    a cluster, whose devices nobody here knows."""
    cells = store.cells
    sides: tuple[Side, ...] = ("estimated", "predicted")
    estimated, predicted = (
        {cell.key(side): cell for cell in cells if side in store.open_sides(cell)} for side in sides
    )
    possible = [cell for cell in cells if store.is_measurable(cell) and store.is_open((cell.id, "measured"))]
    here = [] if elsewhere else wanted_here(store, possible)
    traces = len(units_of(store, cells, ("estimated",)))
    lines = [f"{len(cells):,} cells into {store.folder}"]
    finished = sum(row.state in ("done", "failed") for row in store.rows)
    impossible = Counter(cell.impossible for cell in cells if cell.impossible)
    lines += [f"{count:,} of them impossible, and left out: {why}" for why, count in impossible.items()]
    lines += [f"{finished:,} of them are finished already"] if finished else []
    lines.append(f"{len(estimated):,} steps to be estimated, with {traces:,} traces for all their batches")
    devices = Counter(cell.on for cell in predicted.values())
    if devices:
        named = ", ".join(f"{count:,} on {device}" for device, count in devices.items())
        lines.append(f"{len(predicted):,} predictions: {named}")
    if elsewhere and possible:
        lines.append(f"up to {len(possible):,} measurements: of those cells whose device their node has")
    elif here:
        lines.append(f"{len(here):,} measurements here, one at a time on each device")
    elif store.plan.measure is not False and not elsewhere:
        lines.append("nothing to be measured: none of the devices is here")
    commands = list(dict.fromkeys(cell.command("estimate") for cell in estimated.values()))
    commands += [cell.command("predict", on=cell.on) for cell in predicted.values()]
    commands += [cell.command("measure", on=place_of(cell.on)) for cell in here]
    if not commands:
        return [*lines, "nothing is left to do"]
    more = [f"  ... and {len(commands) - _SHOWN:,} more"] if len(commands) > _SHOWN else []
    return [*lines, "each by itself would be:", *(f"  {command}" for command in commands[:_SHOWN]), *more]
