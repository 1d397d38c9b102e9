"""The launcher of one machine: a pool of processes for what is computed, a process of its own for what is measured.

Everything happens in one loop over the workers' pipes. A worker that dies takes nothing with it but the unit it was at:
that is tried once more, cell by cell, and only who dies twice is to blame.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from rooflight.spec import shell
from rooflight.study.cell import Side, StudyCell
from rooflight.study.journal import Progress, StoreBroken
from rooflight.study.launch import WorkUnit, free_units, units_of, wanted_here
from rooflight.study.machine import environment_of, gpus_of, place_of
from rooflight.study.store import Store, open_study
from rooflight.study.worker import WorkerProcess, WorkRequest, worker_command

_POLL_S = 0.25
"""How often it is looked whether another process has finished what it has taken."""
_CRASHES = 2
"""A cell that kills so many processes has failed."""
_IN_VAIN = 100
"""Passes in which nothing changes, though nobody else is at work: more of them would go on forever."""


@dataclass(frozen=True)
class _WorkerSlot:
    """A place for one worker."""

    number: int
    threads: int | None = None
    alone: tuple[str, ...] = ()
    """What nobody else may use meanwhile: by a process of its own for every unit."""
    gpu: str | None = None
    """One, or several with commas between them."""

    @property
    def environment(self) -> dict[str, str]:
        environment = {} if self.gpu is None else environment_of(self.gpu)
        return environment if self.threads is None else {**environment, "OMP_NUM_THREADS": str(self.threads)}


class LocalLauncher:
    """Uses all cores of this machine, and all of its GPUs."""

    def __init__(self, *, workers: int | None = None) -> None:
        self.workers = workers or _cores()

    def run(self, folder: Path, waiting: list[StudyCell], progress: Progress) -> None:
        with open_study(folder) as store, _WorkerLoop(store) as loop:
            store.progress = progress
            here = wanted_here(store, waiting)
            store.want(here)
            computing = [_WorkerSlot(number, threads=1) for number in range(self.workers)]
            sides: tuple[Side, ...] = ("estimated", "predicted")
            loop.finish(partial(units_of, store, waiting, sides, workers=self.workers), computing)
            loop.dismiss()  # nothing else is at work while something is measured
            for slots, cells in _by_places(here):
                loop.finish(partial(units_of, store, cells, ("measured",)), slots)

    def command(self, folder: Path) -> str:
        """How to go on with a study."""
        return shell("study", folder)

    def when_interrupted(self, folder: Path) -> str:
        return f"go on with: {self.command(folder)}"

    def dry_run(self, store: Store) -> str:
        """The processes that would be started."""
        folder = store.folder
        lines = [f"up to {self.workers} processes that compute: {worker_command(folder)}"]
        here = wanted_here(store, store.waiting())
        for slot in dict.fromkeys(slot for slots, _ in _by_places(here) for slot in slots):
            prefix = "".join(f"{name}={value} " for name, value in slot.environment.items())
            lines.append(f"one process for every measurement: {prefix}{worker_command(folder)}")
        return "\n".join(lines)


class _WorkerLoop:
    """Runs units in slots until none is left."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._workers: dict[_WorkerSlot, WorkerProcess] = {}
        self._units: dict[_WorkerSlot, WorkUnit] = {}
        self._deadlines: dict[_WorkerSlot, float] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _WorkerLoop:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        self._selector.close()

    def dismiss(self) -> None:
        """Let all workers go; what they were at stays open."""
        for slot in list(self._workers):
            self._end(slot)

    def finish(self, units: Callable[[], list[WorkUnit]], slots: Sequence[_WorkerSlot]) -> None:
        """Until no unit is open, ours or another process's; what that leaves behind when it dies is then ours."""
        in_vain = 0
        while left := units():
            free = free_units(self._store, left)
            if free:
                self._pass(free, slots)
            else:
                time.sleep(_POLL_S)
                self._store.refresh()
            in_vain = in_vain + 1 if free and units() == left else 0
            if in_vain > _IN_VAIN:
                raise RuntimeError(f"{left[0].cells[0].id}: {left[0].side} stays open whatever is done")

    def _pass(self, units: Iterable[WorkUnit], slots: Sequence[_WorkerSlot]) -> None:
        if not slots:
            raise ValueError("no place to run anything in")
        queue = deque(units)
        while queue or self._units:
            for slot in slots:
                if queue and slot not in self._units:
                    unit = self._still_open(queue.popleft())
                    if unit is not None:
                        self._give(slot, unit)
            self._listen(queue)
        self._store.refresh()

    def _still_open(self, unit: WorkUnit) -> WorkUnit | None:
        self._store.refresh()
        left = tuple(cell for cell in unit.cells if self._store.is_open(cell.key(unit.side)))
        return replace(unit, cells=left) if left else None

    def _give(self, slot: _WorkerSlot, unit: WorkUnit) -> None:
        worker = self._workers.get(slot)
        if worker is None:
            worker = self._workers[slot] = WorkerProcess(self._store.folder, slot.environment)
            self._selector.register(worker.pipe, selectors.EVENT_READ, slot)
        self._units[slot] = unit
        cells = tuple(cell.id for cell in unit.cells)
        worker.send(WorkRequest(side=unit.side, cells=cells, threads=slot.threads, alone=slot.alone))

    def _end(self, slot: _WorkerSlot) -> None:
        worker = self._workers.pop(slot)
        self._selector.unregister(worker.pipe)
        worker.kill()
        self._units.pop(slot, None)
        self._deadlines.pop(slot, None)

    def _listen(self, queue: deque[WorkUnit]) -> None:
        for key, _ in self._selector.select(_POLL_S):
            self._hear(key.data, queue)
        now = time.monotonic()
        for slot in [slot for slot, deadline in self._deadlines.items() if now > deadline]:
            unit = self._units[slot]
            self._end(slot)
            reason = f"took longer than {self._store.plan.timeout_s:g} s, which is the study's timeout_s"
            self._blame(unit, reason, queue, again=len(unit.cells) > 1)

    def _hear(self, slot: _WorkerSlot, queue: deque[WorkUnit]) -> None:
        news = self._workers[slot].news()
        if news is None:
            unit, reason = self._units.get(slot), self._workers[slot].end()
            self._end(slot)
            if unit is not None:
                self._blame(unit, reason, queue, again=len(unit.cells) > 1 or unit.crashes + 1 < _CRASHES)
            return
        for item in news:
            if item.what == "broken":
                raise StoreBroken("study-not-writable", item.why)
            if item.what == "finished":
                del self._units[slot]
                self._deadlines.pop(slot, None)
                if slot.alone:
                    self._end(slot)
                    return
            else:
                self._deadlines[slot] = time.monotonic() + self._store.plan.timeout_s
                self._store.refresh()

    def _blame(self, unit: WorkUnit, reason: str, queue: deque[WorkUnit], *, again: bool) -> None:
        """Cell by cell once more, or written down as failed, unless somebody else is at it."""
        left = self._still_open(unit)
        if left is None:
            return
        if again:
            queue.extend(WorkUnit(unit.side, (cell,), unit.crashes + 1) for cell in left.cells)
            return
        for cell in left.cells:
            self._store.fail(cell, unit.side, reason)


def _by_places(cells: Iterable[StudyCell]) -> list[tuple[list[_WorkerSlot], list[StudyCell]]]:
    """Cells by where they are measured: those on GPUs first."""
    by_slots: dict[tuple[_WorkerSlot, ...], list[StudyCell]] = {}
    for cell in cells:
        by_slots.setdefault(tuple(_places(cell)), []).append(cell)
    return sorted(
        ((list(slots), members) for slots, members in by_slots.items()), key=lambda place: place[0][0].gpu is None
    )


def _places(cell: StudyCell) -> list[_WorkerSlot]:
    """All of this machine's that are the cell's device: one by one, or as many together as the cell wants."""
    host, count = socket.gethostname(), cell.gpus
    if cell.on is None or place_of(cell.on) == "cpu":
        return [_WorkerSlot(0, alone=(f"{host} cpu",))]
    there = gpus_of(cell.on)
    groups = [there[start : start + count] for start in range(0, len(there) - count + 1, count)]
    return [
        _WorkerSlot(number, alone=tuple(f"{host} gpu {gpu}" for gpu in sorted(group)), gpu=",".join(group))
        for number, group in enumerate(groups)
    ]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
