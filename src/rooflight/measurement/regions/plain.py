"""One execution of a region as it runs without counters: its time, and what it does to memory.

torch is used only where the program has imported it already, the GPU only where the program has started it.
"""

from __future__ import annotations

import sys
from time import perf_counter
from typing import Any

from rooflight.machine.resident_memory import resident
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


class PlainTimer:
    """Clock and memory around one execution: `start()`, the work, `finish()`.

    `peak`: torch's peak statistics begin anew, since it keeps only one peak. Asked of one execution of a region, so
    that a program which logs `torch.cuda.max_memory_allocated()` has its own figure back a step later.
    """

    def __init__(self, *, on_gpu: bool, peak: bool) -> None:
        self._torch: Any = sys.modules.get("torch") if on_gpu else None
        self._peak = peak

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
            self._before = resident().resident_bytes
        self._clock = perf_counter()

    def finish(self) -> PlainExecution:
        if self._torch is None:
            wall_time_s = perf_counter() - self._clock
            now = resident()
            growth = _difference(now.resident_bytes, self._before)
            return PlainExecution(wall_time_s, None, growth, now.peak_resident_bytes, on_gpu=False)
        cuda = self._torch.cuda
        self._end.record()
        cuda.synchronize()
        wall_time_s = perf_counter() - self._clock
        span_s = self._begin.elapsed_time(self._end) / 1e3
        growth = _difference(cuda.memory_allocated(), self._before)
        peak = cuda.max_memory_allocated() if self._peak else None
        return PlainExecution(wall_time_s, span_s, growth, peak, on_gpu=True)


def _difference(after: int | None, before: int | None) -> int | None:
    return None if after is None or before is None else after - before
