"""The launcher of one machine: a pool of processes for what is computed, a process of its own for what is measured.

Everything happens in one loop over the workers' pipes. A worker that dies takes nothing with it but the unit it was at:
that is tried once more, cell by cell, and only who dies twice is to blame.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import msgspec

from rooflight.study.cell import Cell
from rooflight.study.launch import Progress, Unit, units_of, wanted_here
from rooflight.study.machine import gpu_count, place_of
from rooflight.study.store import Entry, Store, StoreBroken, failed, key_of, open_study
from rooflight.study.worker import News, Request

_POLL_S = 0.25
"""How often it is looked whether another process has finished what it has taken."""
_CRASHES = 2
"""A unit that kills so many processes has failed."""


@dataclass
class _Worker:
    """A process, and the unit it is at."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    unit: Unit | None = None
    deadline: float | None = None
    read: bytearray = field(default_factory=bytearray)

    @property
    def pipe(self) -> int:
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def send(self, request: Request) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(msgspec.json.encode(request) + b"\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it died: that is noticed where it is listened to

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors):
            try:
                if stream is not None:
                    stream.close()
            except OSError:
                pass

    def last_words(self) -> str:
        """The last line that it wrote to its error output."""
        try:
            self.errors.seek(max(0, os.fstat(self.errors.fileno()).st_size - 4096))
            lines = self.errors.read().decode(errors="replace").split("\n")
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


class LocalLauncher:
    """Uses all cores of this machine, and all of its GPUs."""

    def __init__(self, *, workers: int | None = None) -> None:
        self.workers = workers or _cores()

    def run(self, folder: Path, waiting: list[Cell], progress: Progress) -> None:
        store = open_study(folder)
        try:
            store.want(wanted_here(store, waiting))
            with _Loop(store, progress) as loop:
                self._compute(store, waiting, loop)
                self._measure(store, waiting, loop)
        finally:
            store.close()

    def dry_run(self, folder: Path, waiting: list[Cell]) -> str:
        raise NotImplementedError

    def _compute(self, store: Store, cells: Sequence[Cell], loop: _Loop) -> None:
        slots = [_Slot(threads=1) for _ in range(self.workers)]
        while units := units_of(store, cells, ("estimated", "predicted"), workers=self.workers):
            loop.run(units, slots[: len(units)])

    def _measure(self, store: Store, cells: Sequence[Cell], loop: _Loop) -> None:
        """GPUs side by side, then the processor: nothing else is at work while it is measured."""
        loop.dismiss()
        here = wanted_here(store, cells)
        host = socket.gethostname()
        for where in ("cuda", "cpu"):
            some = [cell for cell in here if place_of(cell.on) == where]
            slots = [_Slot(alone=f"{host} cpu", fresh=True)] if where == "cpu" else [
                _Slot(alone=f"{host} gpu {gpu}", gpu=gpu, fresh=True) for gpu in _gpus()
            ]  # fmt: skip
            while units := units_of(store, some, ("measured",)):
                loop.run(units, slots)


@dataclass(frozen=True)
class _Slot:
    """A place for one worker."""

    threads: int | None = None
    alone: str = ""
    gpu: str | None = None
    fresh: bool = False
    """A process for every unit."""


class _Loop:
    """Runs units in slots until none is left that is ours."""

    def __init__(self, store: Store, progress: Progress) -> None:
        self._store = store
        self._progress = progress
        self._workers: dict[_Key, _Worker] = {}
        self._selector = selectors.DefaultSelector()

    def __enter__(self) -> _Loop:
        return self

    def __exit__(self, *_: object) -> None:
        self.dismiss()
        self._selector.close()

    def dismiss(self) -> None:
        """Let all workers go; what they were at stays open."""
        for place in list(self._workers):
            self._end(place)

    def run(self, units: Iterable[Unit], slots: Sequence[_Slot]) -> None:
        """One pass: units that another process has are left open, and looked at again in the next."""
        queue = deque(units)
        places = [(number, slot) for number, slot in enumerate(slots)]
        before = len(queue)
        while queue or any(worker.unit is not None for worker in self._workers.values()):
            for place in places:
                if queue and ((worker := self._workers.get(place)) is None or worker.unit is None):
                    unit = self._still_open(queue.popleft())
                    if unit is not None:
                        self._assign(place, unit)
            self._listen(queue)
        self._store.refresh()
        del before

    def _still_open(self, unit: Unit) -> Unit | None:
        self._store.refresh()
        left = tuple(cell for cell in unit.cells if self._store.is_open(key_of(cell, unit.side)))
        return replace(unit, cells=left) if left else None

    def _assign(self, place: _Key, unit: Unit) -> None:
        worker = self._workers.get(place)
        if worker is None:
            worker = self._workers[place] = self._start(place[1])
            self._selector.register(worker.pipe, selectors.EVENT_READ, place)
        worker.unit = unit
        slot = place[1]
        worker.send(Request(side=unit.side, cells=tuple(cell.id for cell in unit.cells), threads=slot.threads,
                            alone=slot.alone))  # fmt: skip

    def _start(self, slot: _Slot) -> _Worker:
        environment = dict(os.environ)
        if slot.gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = slot.gpu
        if slot.threads is not None:
            environment.setdefault("OMP_NUM_THREADS", str(slot.threads))
        errors = tempfile.TemporaryFile()  # noqa: SIM115  (closed with the worker)
        process = subprocess.Popen(
            [sys.executable, "-m", "rooflight.study.worker", str(self._store.folder)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment,
        )  # fmt: skip
        return _Worker(process, errors)

    def _end(self, place: _Key) -> None:
        worker = self._workers.pop(place)
        self._selector.unregister(worker.pipe)
        worker.kill()

    def _listen(self, queue: deque[Unit]) -> None:
        for key, _ in self._selector.select(_POLL_S):
            place: _Key = key.data
            worker = self._workers[place]
            content = os.read(worker.pipe, 1 << 16)
            if not content:
                self._died(place, queue)
                continue
            worker.read += content
            *lines, rest = worker.read.split(b"\n")
            worker.read = bytearray(rest)
            for line in lines:
                self._hear(place, worker, msgspec.json.decode(line, type=News))
        for place, worker in list(self._workers.items()):
            if worker.deadline is not None and time.monotonic() > worker.deadline:
                self._too_long(place, queue)

    def _hear(self, place: _Key, worker: _Worker, news: News) -> None:
        if news.what == "broken":
            raise StoreBroken(news.text)
        if news.what == "told":
            self._progress(msgspec.json.decode(news.text, type=Entry))
        if news.what == "finished":
            worker.unit, worker.deadline = None, None
            if place[1].fresh:
                self._end(place)
        else:
            worker.deadline = time.monotonic() + self._store.plan.timeout_s

    def _too_long(self, place: _Key, queue: deque[Unit]) -> None:
        unit = self._workers[place].unit
        self._end(place)
        limit = self._store.plan.timeout_s
        if unit is not None:
            self._blame(unit, f"took longer than {limit:g} s, the study's timeout_s", queue, again=len(unit.cells) > 1)

    def _died(self, place: _Key, queue: deque[Unit]) -> None:
        worker = self._workers[place]
        unit, code = worker.unit, worker.process.wait()
        reason = how_it_ended(code, worker.last_words())
        self._end(place)
        if unit is not None:
            self._blame(unit, reason, queue, again=len(unit.cells) > 1 or unit.crashes + 1 < _CRASHES)

    def _blame(self, unit: Unit, reason: str, queue: deque[Unit], *, again: bool) -> None:
        """Cell by cell once more, or written down as failed if nobody else is at it."""
        left = self._still_open(unit)
        if left is None:
            return
        if again:
            queue.extend(Unit(unit.side, (cell,), unit.crashes + 1) for cell in left.cells)
            return
        for cell in left.cells:
            name = f"{key_of(cell, unit.side)[0]}.{unit.side}"
            with self._store.locks.taken([name]) as ours:
                if ours and self._still_open(Unit(unit.side, (cell,))) is not None:
                    entry = failed(cell, unit.side, reason)
                    self._store.record([entry])
                    self._progress(entry)


_Key = tuple[int, _Slot]


def how_it_ended(code: int, last_words: str) -> str:
    """A process that died, in words."""
    said = f" ({last_words[:200]})" if last_words else ""
    if code == -signal.SIGKILL:
        return f"its process was killed: usually the machine had no more memory{said}"
    if code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        return f"its process died of {name}{said}"
    return f"its process ended with exit code {code}{said}"


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible:
        return [one.strip() for one in visible.split(",") if one.strip()]
    return [str(number) for number in range(max(gpu_count(), 1))]
