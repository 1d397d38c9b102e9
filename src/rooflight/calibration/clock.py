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
from itertools import islice
from statistics import median
from threading import Lock
from typing import Any, Protocol

import torch

from rooflight.calibration.case import Call, Case, OutOfPool, Pool
from rooflight.hardware.tasks import Task

_MARKER = "spin_kernel"
_REPEATS, _FEWER = 1, 1
_LONG_S = 4e-4
_CHUNK = 200


_Ready = tuple[Call, list[torch.Tensor]]
"""A call, and the tensors that it reads."""


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
    def __init__(self, device: torch.device, l2_bytes: int, pool_bytes: int) -> None:
        self.pool = Pool(device, pool_bytes)
        self._other = torch.zeros(3 * l2_bytes // 4, dtype=torch.float32, device=device)
        # What was written before must be written back while a case runs, as that of the op before in a model.
        self._written = self._other[: l2_bytes // 16]

    def timed(self, cases: Iterable[Case], until: float) -> Iterator[Timed]:
        rest = iter(cases)
        while time.monotonic() < until and (chunk := list(islice(rest, _CHUNK))):
            yield from self._chunk(chunk, until)

    def _chunk(self, chunk: Sequence[Case], until: float) -> Iterator[Timed]:
        done: list[tuple[Case, int]] = []
        with _watched() as profiler:
            for case in chunk:
                if (ready := self.prepared(case, self.pool)) is not None:
                    done.append((case, self.run(case, *ready)))
                if time.monotonic() > until:
                    break
            torch.cuda.synchronize()
        yield from _attributed(done, _segments(profiler))

    def timed_after_compiling(self, pairs: Iterable[Sequence[Case]], until: float) -> Iterator[Timed]:
        """Cases whose first call compiles code for about a second: many threads compile, then each times its own (the
        compiled code belongs to the thread), one after the other."""
        workers = [ThreadPoolExecutor(1) for _ in range(max(1, min(16, (os.cpu_count() or 2) - 1)))]
        rest, lock = iter(pairs), Lock()

        def compile_some() -> list[tuple[Case, _Ready]]:
            made: list[tuple[Case, _Ready]] = []
            pool = Pool.sharing(self.pool)
            while time.monotonic() < until:
                with lock:
                    cases = next(rest, None)
                if cases is None:
                    break
                made += [(case, ready) for case in cases if (ready := self.prepared(case, pool)) is not None]
            return made

        try:
            compiled = [future.result() for future in [worker.submit(compile_some) for worker in workers]]
            done: list[tuple[Case, int]] = []
            torch.cuda.synchronize()
            with _watched() as profiler:
                for worker, made in zip(workers, compiled, strict=True):
                    done += [(case, worker.submit(self.run, case, *ready).result()) for case, ready in made]
                torch.cuda.synchronize()
            yield from _attributed(done, _segments(profiler))
        finally:
            for worker in workers:
                worker.shutdown()

    @staticmethod
    def prepared(case: Case, pool: Pool) -> _Ready | None:
        """The call, having run once, and what it reads; `None` when it cannot be run here."""
        pool.reset()
        with precision_set(case.task.precision), torch.no_grad():
            try:
                call = case.make(pool)
                call()
            except (OutOfPool, RuntimeError):
                return None
        return call, pool.taken

    def run(self, case: Case, call: Call, inputs: list[torch.Tensor]) -> int:
        """How many times it was run in each state."""
        repeats = _FEWER if case.seconds > _LONG_S else _REPEATS
        with precision_set(case.task.precision), torch.no_grad():
            for _ in range(repeats):
                self._other.sum()
                torch._foreach_mul_(inputs, 1.0)
                self._marked(call)
            for _ in range(repeats):
                self._other.sum()
                self._written.zero_()
                self._marked(call)
        return repeats

    @staticmethod
    def _marked(call: Call) -> None:
        torch.cuda._sleep(1)
        call()
        torch.cuda._sleep(1)


@contextmanager
def _watched() -> Iterator[Any]:
    from torch.profiler import ProfilerActivity, profile

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        with profile(activities=[ProfilerActivity.CUDA]) as profiler:
            yield profiler


def _attributed(done: Sequence[tuple[Case, int]], segments: Sequence[tuple[float, int]]) -> Iterator[Timed]:
    """The times of cases, each of which was run so many times warm and as many times cold."""
    if len(segments) != 2 * sum(repeats for _, repeats in done):
        return  # the profiler lost some: better no times than those of another case
    place = 0
    for case, repeats in done:
        warm, cold = segments[place : place + repeats], segments[place + repeats : place + 2 * repeats]
        place += 2 * repeats
        if all(count for _, count in warm):
            yield Timed(case.task, median(s for s, _ in warm), median(s for s, _ in cold), warm[-1][1])


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


def _seconds(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
