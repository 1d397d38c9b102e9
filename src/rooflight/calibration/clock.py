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
from itertools import chain, groupby
from statistics import median
from threading import Lock
from typing import Any, Protocol

import torch

from rooflight.calibration.case import Call, Case, OutOfPool, Pool
from rooflight.hardware.tasks import Task

_MARKER = "spin_kernel"
_CHUNK = 400
_EACH_S = 1e-3
"""About what one case takes to be timed, before any was."""
_MOST_HELD = 0.2
"""Of the free memory: calls that are ready hold what backward needs."""

_Ready = tuple[Case, Call, list[torch.Tensor]]
"""A case, its call, and the tensors that it reads."""


@dataclass(frozen=True)
class Timed:
    task: Task
    warm_s: float
    cold_s: float
    kernels: int


class Clock(Protocol):
    def timed(self, cases: Iterable[Case], until: float) -> Iterator[Timed]:
        """Times of cases until none is left, or `time.monotonic()` passes `until`."""
        ...

    def close(self) -> None: ...


@contextmanager
def precision_set(precision: str) -> Iterator[None]:
    """fp32 means fp32: TF32 is a precision of its own here."""
    conv, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = conv.allow_tf32, matmul.allow_tf32
    conv.allow_tf32 = matmul.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        conv.allow_tf32, matmul.allow_tf32 = before


class GpuClock:
    """Cases are made ready by many threads at once: libraries choose, load or compile a kernel for each, for a
    millisecond to a second. Then they are timed one after the other, each by the thread that made it ready, which alone
    has what the library found."""

    def __init__(self, device: torch.device, l2_bytes: int, pool_bytes: int) -> None:
        self.pool = Pool(device, pool_bytes)
        self._other = torch.zeros(3 * l2_bytes // 4, dtype=torch.float32, device=device)
        # What was written before must be written back while a case runs, as that of the op before in a model.
        self._written = self._other[: l2_bytes // 16]
        count = max(1, min(16, (os.cpu_count() or 2) - 1))
        begin = partial(torch.zeros, 1, device=device)  # a thread that has no CUDA context fails in its first product
        self._workers = [ThreadPoolExecutor(1, initializer=begin) for _ in range(count)]

    def timed(self, cases: Iterable[Case], until: float) -> Iterator[Timed]:
        # Cases of one shape stay together: the second is ready sooner.
        groups = (list(some) for _, some in groupby(cases, key=lambda case: case.task.numbers))
        first = next(groups, None)
        if first is None:
            return
        rest = chain([first], groups)
        # Threads share this setting, and so do all cases of a chapter.
        with precision_set(first[0].task.precision):
            each_s = _EACH_S
            while time.monotonic() < until and (some := self._ready(rest, until, each_s)):
                begun = time.monotonic()
                yield from self._timed(some)
                each_s = (time.monotonic() - begun) / sum(map(len, some))

    def _ready(self, groups: Iterator[list[Case]], until: float, each_s: float) -> list[list[_Ready]]:
        """What each thread has made ready, until there is enough for a while, or for the time that is left: one takes
        `each_s` to be timed."""
        lock = Lock()
        left = _CHUNK
        free, _ = torch.cuda.mem_get_info()
        most = torch.cuda.memory_allocated() + _MOST_HELD * free

        def some() -> list[_Ready]:
            nonlocal left
            made: list[_Ready] = []
            pool = Pool.sharing(self.pool)
            while time.monotonic() + (_CHUNK - left) * each_s < until and torch.cuda.memory_allocated() < most:
                with lock:
                    cases = next(groups, None) if left > 0 else None
                    left -= len(cases or ())
                if cases is None:
                    break
                made += [ready for case in cases if (ready := _prepared(case, pool)) is not None]
            return made

        found = [future.result() for future in [worker.submit(some) for worker in self._workers]]
        torch.cuda.synchronize()
        return found if any(found) else []

    def _timed(self, ready: list[list[_Ready]]) -> Iterator[Timed]:
        done: list[tuple[Task, bool]] = []
        with _watched() as profiler:
            for worker, made in zip(self._workers, ready, strict=True):
                done += worker.submit(self._run_all, made).result()
            torch.cuda.synchronize()
        yield from _attributed(done, _segments(profiler))

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
        for worker in self._workers:
            worker.shutdown()


def _prepared(case: Case, pool: Pool) -> _Ready | None:
    """The call, having run once; `None` when it cannot be run here."""
    pool.reset()
    with torch.no_grad():
        try:
            call = case.make(pool)
            call()
        except (OutOfPool, RuntimeError):
            return None
    return case, call, pool.taken


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
def _watched() -> Iterator[Any]:
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            yield profiler


def _attributed(done: Sequence[tuple[Task, bool]], segments: Sequence[tuple[float, int]]) -> Iterator[Timed]:
    """The times of cases, each of which was run once warm and once cold."""
    if len(segments) != 2 * len(done):
        return  # the profiler lost some: better no times than those of another case
    for (task, well), (warm_s, count), (cold_s, _) in zip(done, segments[::2], segments[1::2], strict=True):
        if well and count:
            yield Timed(task, warm_s, cold_s, count)


def _segments(profiler: Any) -> list[tuple[float, int]]:
    """Seconds and number of kernels between the first marker and the second, the third and the fourth, and so on."""
    work = [
        (event.start_ns(), event.duration_ns(), event.name())
        for event in profiler.profiler.kineto_results.events()
        if event.device_type() == torch.autograd.DeviceType.CUDA
    ]
    work.sort()
    found: list[tuple[float, int]] = []
    inside, total, count = False, 0, 0
    for _, duration, name in work:
        if _MARKER in name:
            if inside:
                found.append((total / 1e9, count))
            inside, total, count = not inside, 0, 0
        elif inside:
            total, count = total + duration, count + 1
    return found


class CpuClock:
    """Wall time of the call: a CPU has nothing but its host."""

    def __init__(self, cache_bytes: int, pool_bytes: int) -> None:
        self.pool = Pool(torch.device("cpu"), pool_bytes)
        self._other = torch.zeros(2 * cache_bytes, dtype=torch.uint8)

    def timed(self, cases: Iterable[Case], until: float) -> Iterator[Timed]:
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
                warm = median(_seconds(call) for _ in range(3))
                self._other.add_(1)
                cold = _seconds(call)
            yield Timed(case.task, warm, max(warm, cold), 1)

    def close(self) -> None:
        """Nothing is kept open."""


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
