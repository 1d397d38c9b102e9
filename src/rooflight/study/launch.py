"""Who runs the cells of a study: the processes of this machine, or a cluster; and what is run together."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from rooflight.study.cell import Cell, Side
from rooflight.study.machine import is_here
from rooflight.study.store import Entry, Key, Store, key_of, lock_of, step_of

Progress = Callable[[Entry], None]
"""Told of every side of a cell that is finished, done or failed."""
TOGETHER = range(8, 33)
"""Batches that one process takes on at once: fewer would be traced in vain, more would keep the others waiting."""


class Launcher(Protocol):
    """Runs cells that wait until none of them does, or until nothing more can be done here."""

    def run(self, folder: Path, waiting: list[Cell], progress: Progress) -> None: ...

    def dry_run(self, folder: Path, waiting: list[Cell]) -> str:
        """What `run` would do, in words."""
        ...


@dataclass(frozen=True)
class Unit:
    """One side of cells that differ in their batch alone: they share a trace."""

    side: Side
    cells: tuple[Cell, ...]
    crashes: int = 0
    """How many processes have died of it."""


def units_of(store: Store, cells: Sequence[Cell], sides: Sequence[Side], *, workers: int = 1) -> list[Unit]:
    """What is open of these cells, put together where that saves work, and not where it leaves a worker idle."""
    groups: dict[tuple[Side, str], dict[Key, Cell]] = {}
    for side in sides:
        for cell in cells:
            key = key_of(cell, side)
            if side in store.sides(cell) and store.is_open(key):
                alike = replace(step_of(cell) if side == "estimated" else cell, batch=1)
                groups.setdefault((side, alike.id), {})[key] = cell
    found = []
    for (side, _), some in groups.items():
        members = list(some.values())
        share = -(-len(members) * len(groups) // workers)
        size = 1 if side == "measured" else min(max(share, TOGETHER[0]), TOGETHER[-1])
        found += [Unit(side, tuple(members[start : start + size])) for start in range(0, len(members), size)]
    return found


def free_units(store: Store, units: Sequence[Unit]) -> list[Unit]:
    """Those that no other process is at, without the cells that one is at."""
    found = []
    for unit in units:
        cells = tuple(cell for cell in unit.cells if store.locks.is_free(lock_of(key_of(cell, unit.side))))
        found += [dataclasses.replace(unit, cells=cells)] if cells else []
    return found


def wanted_here(store: Store, cells: Sequence[Cell]) -> list[Cell]:
    """Cells that this machine can measure."""
    return [cell for cell in cells if store.is_measurable(cell) and is_here(cell.on)]
