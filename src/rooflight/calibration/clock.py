"""Times of micro-benchmarks: with their inputs just written by another kernel (warm), and with caches that are full of
something else (cold). Never the same kernel twice in a row, as in a model.

On a GPU the time of a case is the sum of its kernels' durations by the profiler, as for the ops of a measured step.
Which kernels are whose is told by a kernel of our own between them, that nobody else launches.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from statistics import median
from threading import Event, Lock
from typing import Any, Protocol

import torch

from rooflight.calibration.case import BenchmarkCase, Call, OutOfPool, TensorPool
from rooflight.ops.kernel_task import Task

_MARKER = "spin_kernel"
_CHUNK = 400
_MOST_HELD = 0.2
"""Of the free memory: calls that are ready hold what backward needs."""

_Ready = tuple[BenchmarkCase, Call, list[torch.Tensor]]
"""A case, its call, and the tensors that it reads."""
_Made = list[list[_Ready]]
"""By thread."""


@dataclass(frozen=True)
class TimedCase:
    task: Task
    warm_s: float
    cold_s: float
    kernels: int


class BenchmarkClock(Protocol):
    def timed(self, cases: Iterable[BenchmarkCase], until: float, *, many: bool = False) -> Iterator[TimedCase]:
        """Times of cases until none is left, or `time.monotonic()` passes `until`. `many`: threads are worth their
        while, because a library takes long to choose a kernel for each."""
        ...

    def close(self) -> None: ...


class GpuClock:
    """Cases are made ready by many threads at once: libraries choose, load or compile a kernel for each, for a
    millisecond to a second. Then they are timed one after the other, each by the thread that made it ready, which alone
    has what the library found. What costs no library a thought is made ready by one thread."""

    def __init__(self, device: torch.device, l2_bytes: int, pool_bytes: int) -> None:
        self.pool = TensorPool(device, pool_bytes)
        self._other = torch.zeros(3 * l2_bytes // 4, dtype=torch.float32, device=device)
        # What was written before must be written back while a case runs, as that of the op before in a model.
        self._written = self._other[: l2_bytes // 16]
        count = max(1, min(16, len(os.sched_getaffinity(0)) - 1))
        begin = partial(torch.zeros, 1, device=device)  # a thread that has no CUDA context fails in its first product
        self._workers = [ThreadPoolExecutor(1, initializer=begin) for _ in range(count)]
        self._each_s = 1e-3
        """About what one case takes to be timed."""
        self._stopped = Event()

    def timed(self, cases: Iterable[BenchmarkCase], until: float, *, many: bool = False) -> Iterator[TimedCase]:
        # Cases of one shape stay together: the second is ready sooner.
        groups = (list(some) for _, some in groupby(cases, key=lambda case: case.task.numbers))
        workers = self._workers if many else self._workers[:1]
        while time.monotonic() < until and any(ready := self._ready(groups, until, workers)):
            begun = time.monotonic()
            yield from self._timed(ready, workers)
            self._each_s = (time.monotonic() - begun) / sum(map(len, ready))

    def _ready(self, groups: Iterator[list[BenchmarkCase]], until: float, workers: list[ThreadPoolExecutor]) -> _Made:
        """What each thread has made ready, until there is enough for a while, for the time that is left, or for the
        memory."""
        lock = Lock()
        left = _CHUNK
        free, _ = torch.cuda.mem_get_info()
        held = torch.cuda.memory_allocated()
        most = held + _MOST_HELD * (free + torch.cuda.memory_reserved() - held)
        too_large: list[BenchmarkCase] = []

        def enough() -> bool:
            late = time.monotonic() + (_CHUNK - left) * self._each_s > until
            return self._stopped.is_set() or late or torch.cuda.memory_allocated() > most

        def some() -> list[_Ready]:
            nonlocal left
            made: list[_Ready] = []
            pool = TensorPool.sharing(self.pool)
            while True:
                with lock:
                    cases = next(groups, None) if left > 0 and not self._stopped.is_set() else None
                    left -= len(cases or ())
                if cases is None:
                    break
                made += _prepared(cases, pool, too_large)
                if enough():
                    break
            return made

        try:
            found = [future.result() for future in [worker.submit(some) for worker in workers]]
        except BaseException:
            self._stopped.set()  # the others need not go on
            raise
        torch.cuda.synchronize()
        if too_large:
            # So many at once had no room; one alone may have.
            torch.cuda.empty_cache()
            found[0] += workers[0].submit(_prepared, too_large, TensorPool.sharing(self.pool), []).result()
        return found

    def _timed(self, ready: _Made, workers: list[ThreadPoolExecutor]) -> Iterator[TimedCase]:
        done: list[tuple[Task, bool]] = []
        with watched() as profiler:
            for worker, made in zip(workers, ready, strict=True):
                done += worker.submit(self._run_all, made).result()
            torch.cuda.synchronize()
        yield from _attributed(done, kernel_segments(profiler))

    def _run_all(self, made: list[_Ready]) -> list[tuple[Task, bool]]:
        return [(case.task, self._run(call, inputs)) for case, call, inputs in made]

    def _run(self, call: Call, inputs: list[torch.Tensor]) -> bool:
        """Once warm, once cold; whether it went well."""
        with torch.no_grad():
            self._other.sum()
            torch._foreach_mul_(inputs, 1.0)
            warm = _marked(call)
            self._other.sum()
            self._written.zero_()
            return _marked(call) and warm

    def close(self) -> None:
        self._stopped.set()
        for worker in self._workers:
            worker.shutdown(wait=False, cancel_futures=True)


def _prepared(cases: Sequence[BenchmarkCase], pool: TensorPool, too_large: list[BenchmarkCase]) -> list[_Ready]:
    """Calls that have run once; those that cannot be run here are left out."""
    ready: list[_Ready] = []
    for case in cases:
        pool.reset()
        with torch.no_grad():
            try:
                call = case.make(pool)
                call()
            except torch.OutOfMemoryError:
                too_large.append(case)
            except (OutOfPool, RuntimeError):
                continue
            else:
                ready.append((case, call, pool.taken))
    return ready


def _marked(call: Call) -> bool:
    torch.cuda._sleep(1)
    try:
        call()
    except RuntimeError:  # no memory left for what it makes
        return False
    finally:
        torch.cuda._sleep(1)
    return True


@contextmanager
def watched() -> Iterator[Any]:
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            yield profiler


def _attributed(done: Sequence[tuple[Task, bool]], segments: Sequence[tuple[float, int]]) -> Iterator[TimedCase]:
    """The times of cases, each of which was run once warm and once cold."""
    if len(segments) != 2 * len(done):
        return  # the profiler lost some: better no times than those of another case
    for (task, well), (warm_s, count), (cold_s, _) in zip(done, segments[::2], segments[1::2], strict=True):
        if well and count:
            yield TimedCase(task, warm_s, cold_s, count)


def kernel_segments(profiler: Any) -> list[tuple[float, int]]:
    """Seconds and number of kernels between the first marker and the second, the third and the fourth, and so on. What
    runs beside each other, as layers of a recurrent network do, counts once."""
    work = [
        (event.start_ns(), event.duration_ns(), event.name())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    work.sort()
    segments: list[tuple[float, int]] = []
    inside, total, count, free = False, 0, 0, 0
    for start, duration, name in work:
        if _MARKER in name:
            if inside:
                segments.append((total / 1e9, count))
            inside, total, count, free = not inside, 0, 0, 0
        elif inside:
            total, count = total + max(0, start + duration - max(start, free)), count + 1
            free = max(free, start + duration)
    return segments


class CpuClock:
    """Wall time of the call: a CPU has nothing but its host."""

    def __init__(self, cache_bytes: int, pool_bytes: int) -> None:
        self.pool = TensorPool(torch.device("cpu"), pool_bytes)
        self._other = torch.zeros(2 * cache_bytes, dtype=torch.uint8)

    def timed(self, cases: Iterable[BenchmarkCase], until: float, *, many: bool = False) -> Iterator[TimedCase]:
        for case in cases:
            if time.monotonic() > until:
                return
            self.pool.reset()
            with torch.no_grad():
                try:
                    call = case.make(self.pool)
                    call()
                except (OutOfPool, RuntimeError, NotImplementedError):
                    continue
                warm = median(seconds_of(call) for _ in range(3))
                self._other.fill_(1)
                cold = seconds_of(call)
            yield TimedCase(case.task, warm, max(warm, cold), 1)

    def close(self) -> None:
        """Nothing is kept open."""


def seconds_of(call: Call) -> float:
    """By the host's clock."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def gpu_seconds(call: Call, *, waits: bool = False) -> float:
    """By the GPU's own clock. `waits`: it begins when the host has launched all of it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    if waits:
        torch.cuda._sleep(40_000_000)
    start.record()
    call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3
