"""Meters that are read right before and after every op of a watched step: a clock, page faults, waits for a core."""

from __future__ import annotations

import mmap
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import torch

_THREADS = "/proc/self/task"
_FRESH_BYTES, _FRESH_RUNS = 2**21, 16


class OpDifferences:
    """Reads a meter right before and right after every op (an `Observer`)."""

    def __init__(self, read: Callable[[], int | float | None]) -> None:
        self.by_op: dict[int, int | float] = {}
        self._read = read
        self._before: int | float | None = None

    def before(self, index: int) -> None:
        self._before = self._read()

    def after(self, index: int) -> None:
        now = self._read()
        if now is not None and self._before is not None:
            self.by_op[index] = now - self._before


class CoreWaits:
    """Reads how long the threads waited for a core while an op ran, as Linux's scheduler counts it (an `Observer`).

    An op that several threads share ends when the last of them does, so the longest wait is what it lost. Only threads
    that exist when it is entered are read.
    """

    def __init__(self) -> None:
        self.by_op: dict[int, float] = {}
        """Seconds; empty if the kernel does not count them."""
        self._files: list[int] = []
        self._before: list[int] = []

    def __enter__(self) -> CoreWaits:
        with suppress(OSError):  # no Linux
            # Idle threads of the pool wait for nothing that counts.
            threads = os.listdir(_THREADS) if torch.get_num_threads() > 1 else [str(threading.get_native_id())]
            for thread in threads:
                with suppress(OSError):  # it has just ended, or this kernel does not count
                    self._files.append(os.open(f"{_THREADS}/{thread}/schedstat", os.O_RDONLY))
        return self

    def __exit__(self, *_: object) -> None:
        while self._files:
            os.close(self._files.pop())

    def before(self, index: int) -> None:
        self._before = self._waited_ns()

    def after(self, index: int) -> None:
        waits = [now - before for before, now in zip(self._before, self._waited_ns(), strict=True)]
        if waits:
            self.by_op[index] = max(*waits, 0) / 1e9

    def _waited_ns(self) -> list[int]:
        return [_waited(file) for file in self._files]


def _waited(file: int) -> int:
    """Return the second of the three numbers: nanoseconds in which a thread could have run and did not."""
    try:
        numbers = os.pread(file, 80, 0).split()
    except OSError:  # the thread has ended
        return 0
    return int(numbers[1]) if len(numbers) == 3 and numbers[1].isdigit() else 0


def page_faults() -> int | None:
    """Return how many pages the kernel has handed to this process; `None` on Windows, which does not count."""
    if sys.platform == "win32":
        return None
    import resource  # there is none on Windows, and this module is imported everywhere

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def page_fault_s() -> float | None:
    """Return the seconds that one page fault takes: memory filled for the first time, less the second time."""
    each = []
    for _ in range(_FRESH_RUNS):
        with mmap.mmap(-1, _FRESH_BYTES) as memory:
            tensor = torch.frombuffer(memory, dtype=torch.float32)
            fill = partial(tensor.fill_, 0.0)
            before = page_faults() or 0
            first, again = _seconds(fill), _seconds(fill)
            pages = (page_faults() or 0) - before
            del tensor, fill  # a mapping with a view cannot be closed
        if pages > 0 and first > again:
            each.append((first - again) / pages)
    return min(each, default=None)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
