"""How long the threads of this process waited for a core while an op ran, as Linux's scheduler counts it.

An op that several threads share is over when the last of them is, so the longest wait is what it lost by.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import torch

_THREADS = "/proc/self/task"


class CoreWaits:
    """Read before and after every op (an `Observer`) while it is entered; of threads that were there when it was."""

    def __init__(self) -> None:
        self.by_op: dict[int, float] = {}
        """Seconds; empty where the kernel does not count them."""
        self._files: list[int] = []
        self._before: list[int] = []

    def __enter__(self) -> CoreWaits:
        with suppress(OSError):  # no Linux
            # Threads of the pool that have nothing to do wait for nothing that counts.
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
    """The second of the three numbers: nanoseconds in which a thread could have run and did not."""
    try:
        numbers = os.pread(file, 80, 0).split()
    except OSError:  # the thread has ended
        return 0
    return int(numbers[1]) if len(numbers) == 3 and numbers[1].isdigit() else 0
