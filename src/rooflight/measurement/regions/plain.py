"""One execution of a region as it runs without counters: its time, and what it does to memory.

torch is used only where the program has imported it already, the GPU only where the program has started it.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from typing import Any

from rooflight.machine.resident_memory import ResidentMemory, resident
from rooflight.measurement.regions.store import PlainExecution


def capturing() -> bool:
    """Is a CUDA graph being recorded on the current stream? Nothing may wait for the GPU then."""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_current_stream_capturing())


def profiling() -> bool:
    """Is torch's profiler at work? It slows everything down, and keeps the GPU's counters to itself."""
    torch = sys.modules.get("torch")
    try:
        return torch is not None and bool(torch._C._autograd._profiler_enabled())
    except AttributeError:  # torch is still being imported
        return False


def autocast() -> bool:
    """Does torch turn tensors on the GPU into 16-bit ones here?"""
    torch = sys.modules.get("torch")
    return torch is not None and bool(torch.is_autocast_enabled("cuda"))


_away = threading.local()


def clock_ns() -> int:
    """The program's time in this thread: the host's clock, which stands still while rooflight itself writes.

    Whole nanoseconds: the difference of two readings does not depend on what was taken away before them.
    """
    return perf_counter_ns() - getattr(_away, "time_ns", 0)


@contextmanager
def own_work() -> Iterator[None]:
    """What is done here is no part of the regions around it."""
    began_ns = perf_counter_ns()
    try:
        yield
    finally:
        _away.time_ns = getattr(_away, "time_ns", 0) + perf_counter_ns() - began_ns


class PlainTimer:
    """Clock and memory around one execution: `start()`, the work, `finish()`.

    `peak`: torch's peak statistics begin anew, since it keeps only one peak. Asked of one execution of a region, so
    that a program which logs `torch.cuda.max_memory_allocated()` has its own figure back a step later.
    `memory`: asked of the system on a CPU, which takes longer than to read the clock.
    """

    def __init__(self, *, on_gpu: bool, peak: bool, memory: bool) -> None:
        self._torch: Any = sys.modules.get("torch") if on_gpu else None
        self._peak = peak
        self._memory = memory

    def start(self) -> None:
        if self._torch is not None:
            cuda = self._torch.cuda
            self._begin, self._end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            self._before: int | None = cuda.memory_allocated()
            if self._peak:
                cuda.reset_peak_memory_stats()
            cuda.synchronize()
            self._begin.record()
        else:
            self._before = _resident().resident_bytes if self._memory else None
        self._began_ns = clock_ns()

    def elapsed_s(self) -> float:
        """By the host's clock, up to now."""
        return (clock_ns() - self._began_ns) / 1e9

    def finish(self) -> PlainExecution:
        if self._torch is None:
            wall_time_s = self.elapsed_s()
            if not self._memory:
                return PlainExecution(wall_time_s, None, None, None, on_gpu=False)
            now = _resident()
            growth = _difference(now.resident_bytes, self._before)
            return PlainExecution(wall_time_s, None, growth, now.peak_resident_bytes, on_gpu=False)
        cuda = self._torch.cuda
        self._end.record()
        cuda.synchronize()
        wall_time_s = self.elapsed_s()
        span_s = self._begin.elapsed_time(self._end) / 1e3
        growth = _difference(cuda.memory_allocated(), self._before)
        peak = cuda.max_memory_allocated() if self._peak else None
        return PlainExecution(wall_time_s, span_s, growth, peak, on_gpu=True)


class SpanTimer:
    """Two events on the GPU's current stream, which nobody waits for: `start()`, the work, `stop()`; read later."""

    def __init__(self) -> None:
        cuda = sys.modules["torch"].cuda
        self._begin, self._end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def start(self) -> None:
        self._begin.record()

    def stop(self) -> None:
        self._end.record()

    def span_s(self) -> float:
        """Once the GPU has been waited for."""
        return float(self._begin.elapsed_time(self._end)) / 1e3


def _resident() -> ResidentMemory:
    """Asking takes tens of microseconds, which are no part of the regions around this one."""
    with own_work():
        return resident()


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
