"""What this processor does at best, timed in half a second beside a step: the measure for what its ops took.

The best of a few short runs is kept, as other programs only ever add to a time. Names: `rooflight.machine.rates`.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from statistics import median

import torch
from torch import nn

from rooflight.ledger import MathModes, Value
from rooflight.machine.rates import (
    BATCHED,
    BEHIND,
    CLOCK,
    CONVOLUTION,
    COPY,
    CORES,
    ELEMENT,
    FAULT,
    IN_PLACE,
    ONE,
    PEAK,
    PRODUCT,
    SPEED,
    THREADS,
    call_name,
)
from rooflight.machine.recognise import this_device, vector_speeds
from rooflight.measurement.collectors.cpu_samples import samples
from rooflight.measurement.collectors.onednn import PrimitiveCollector
from rooflight.measurement.collectors.op_differences import OpDifferences
from rooflight.measurement.collectors.page_faults import page_faults
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.recorder import Recorder

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_SIDES = (128, 192, 256, 320)
"""Of square products: three matrices of 256 fill 0.8 MB."""
_BATCH, _IN_BATCH = 4, (64, 128, 192)
_COPIED = tuple(2**power for power in (18, 20, 22, 24, 26, 27))
"""Bytes that a copy reads and writes, in all."""
_TINY, _FULL = 64, 65_536
_ROUNDS = 12
_ALIKE, _MOST = 1.03, 4
_SOME = tuple(
    f"aten::{name}"
    for name in (
        "relu add mul mm addmm bmm _softmax native_layer_norm native_batch_norm convolution convolution_backward mean "
        "max_pool2d_with_indices cat copy_ gelu"
    ).split()
)


def cpu_rates() -> dict[str, Value]:
    """Those of this process, with the threads that it has now; timed once."""
    return _timed(torch.get_num_threads())


@cache
def _timed(threads: int) -> dict[str, Value]:
    """Twice, with the calls in between: who else was on the machine then may have left."""
    described = {**_described(), THREADS: Value(threads, "torch.get_num_threads()")}
    with torch.no_grad(), torch.random.fork_rng(devices=()):  # a program that goes on draws its own numbers
        first = _speeds(threads)
        calls = dict(_calls())
        again = _speeds(threads)
    better = {name: max(first[name], again.get(name, first[name]), key=_goodness(name)) for name in first}
    return {**described, **better, **calls}


def _goodness(name: str) -> Callable[[Value], float]:
    """More is better for rates, less for seconds."""
    sign = -1 if name.startswith((ELEMENT, FAULT)) else 1
    return lambda value: sign * value.value


def _speeds(threads: int) -> dict[str, Value]:
    rates: dict[str, Value] = {}
    for count in sorted({1, threads}):
        with _threads(count):
            end = ONE if count == 1 else ""
            how = f"the best of some, {count} thread{'s' if count > 1 else ''}"
            rates.update({name + end: value for name, value in (*_products(how), *_copies(how))})
    with _threads(1):
        rates.update(_elements())
    rates.update(_faults())
    return rates


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _described() -> dict[str, Value]:
    """What Linux tells of the processor."""
    here = this_device(kind="cpu")
    known = None if here is None else here.device or here.outline
    speeds = {f"{SPEED}.{kind}": Value(part, "/proc/cpuinfo: its flags") for kind, part in vector_speeds().items()}
    if known is None:
        return speeds
    peaks = {**known.core_flops_per_s, **known.tensor_flops_per_s}
    return {
        **speeds,
        **{f"{PEAK}.{precision}": Value(figure.value, figure.source) for precision, figure in peaks.items()},
        CORES: Value(known.sms.value, known.sms.source),
        CLOCK: Value(known.clock_hz.value, known.clock_hz.source),
    }


def _best(call: Callable[[], object], times: int = 4) -> float:
    """The shortest of so many runs; of more, until another one comes as close to it as no disturbed one would."""
    call()
    taken = sorted(_once(call) for _ in range(times))
    while taken[1] > _ALIKE * taken[0] and len(taken) < _MOST * times:
        taken = sorted((*taken, _once(call)))
    return taken[0]


def _once(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _products(how: str) -> Iterator[tuple[str, Value]]:
    for precision, dtype in _DTYPES.items():
        rates = {side: 2 * side**3 / _product_s(side, dtype) for side in _SIDES}
        best = max(rates, key=lambda side: rates[side])
        yield f"{PRODUCT}.{precision}", Value(rates[best], f"{best}^3 product, {how}")
        batched = max(_BATCH * 2 * side**3 / _product_s(side, dtype, _BATCH) for side in _IN_BATCH)
        yield f"{BATCHED}.{precision}", Value(batched, f"{_BATCH} products in one call, {how}")

        yield from _convolution(precision, dtype, how)


def _convolution(precision: str, dtype: torch.dtype, how: str) -> Iterator[tuple[str, Value]]:
    """oneDNN's, by its own clock: the library that multiplies matrices is another one, and may be slower."""
    image, weight = torch.randn(2, 64, 28, 28).to(dtype), torch.randn(64, 64, 5, 5).to(dtype)
    flops = 2 * image.numel() * weight.numel() // 64
    times = [time for time in _primitive_times(lambda: torch.conv2d(image, weight, padding=2), "convolution") if time]
    if times:
        yield f"{CONVOLUTION}.{precision}", Value(flops / min(times), f"5x5 over 64 channels, by oneDNN's clock, {how}")


def _primitive_times(call: Callable[[], object], kind: str = "") -> list[float]:
    """Of each of some calls: what its primitives of a kind took."""
    times = []
    for _ in range(5):
        with PrimitiveCollector() as collector:
            call()
        times.append(sum(kernel.time_s or 0.0 for kernel in collector.kernels() if kernel.name.startswith(kind)))
    return times


def _product_s(side: int, dtype: torch.dtype, batch: int | None = None) -> float:
    shape = (side, side) if batch is None else (batch, side, side)
    a, b, c = (torch.randn(shape).to(dtype) for _ in range(3))
    return _best(lambda: torch.matmul(a, b, out=c))


def _copies(how: str) -> Iterator[tuple[str, Value]]:
    there, here = (torch.ones(_COPIED[-1] // 8) for _ in range(2))
    for nbytes in _COPIED:
        a, b = there[: nbytes // 8], here[: nbytes // 8]
        # A short copy is over before a thread that sleeps is awake.
        taken = _best(lambda a=a, b=b: a.copy_(b), 4 if nbytes > 2**24 else 12)  # type: ignore[misc]
        yield f"{COPY}.{nbytes}", Value(nbytes / taken, f"{nbytes // 2} bytes to as many, {how}")
        taken = _best(a.neg_, 4 if nbytes > 2**24 else 12)
        yield f"{IN_PLACE}.{nbytes}", Value(nbytes / taken, f"{nbytes // 2} bytes changed in place, {how}")


def _calls() -> Iterator[tuple[str, Value]]:
    """Each between others and watched, as the ops of a step are: a call over and over finds all its code in the cache.
    Then behind data that took the place of its code: no longer than others, which far behind stand for all."""
    called = {name: sample.call for name, sample in samples(_TINY).items()}
    inside = {name: _primitives_s(call) if "convolution" in name else 0.0 for name, call in called.items()}
    warm: dict[str, float] = {}
    for between in BEHIND:
        few = between > BEHIND[1]
        rounds = _ROUNDS // 4 if few else _ROUNDS
        taken = _watched({name: call for name, call in called.items() if name in _SOME or not few}, between, rounds)
        times = {name: max(min(all_) - inside[name], 0.0) for name, all_ in taken.items()}
        warm = warm or times
        more = median(times[name] / warm[name] for name in times if warm[name])
        how = f"{_TINY} elements, shortest of {rounds} watched calls, {between} bytes gone through before"
        for name in called:
            others = more * warm[name]
            known = min(times.get(name, others), others)
            as_others = f": {more:.2f} times the call with nothing before it, as others" if known == others else ""
            yield call_name(name, between), Value(known, how + as_others)


def _watched(called: dict[str, Callable[[], object]], between: int, rounds: int) -> dict[str, list[float]]:
    """Seconds of each, round after round, so many bytes gone through before each."""
    taken: dict[str, list[float]] = {name: [] for name in called}
    modes = MathModes(tf32_conv=False, tf32_matmul=False)
    others = torch.ones(between // 4)
    for _ in range(rounds):
        timer = OpDifferences(time.perf_counter)
        recorder = Recorder(ModuleTracker(nn.Module()), device="cpu", modes=modes, observer=timer)
        with recorder:
            for name, call in called.items():
                others.neg_()
                index = len(recorder.ops)
                call()
                taken[name].append(float(timer.by_op[index]))
    return taken


def _primitives_s(call: Callable[[], object]) -> float:
    """What oneDNN's primitives take of a call: they have a clock of their own in every step."""
    return min(_primitive_times(call))


def _elements() -> Iterator[tuple[str, Value]]:
    """What an element takes beyond the call, its operands in the cache, one thread."""
    small, large = samples(_TINY), samples(_FULL)
    for name, sample in large.items():
        if sample.elements is None:
            continue
        more = sample.elements - (small[name].elements or 0)
        each = max(_best(sample.call) - _best(small[name].call), 0.0) / more
        yield (
            f"{ELEMENT}.{name}{ONE}",
            Value(each, f"{sample.elements} elements less {small[name].elements}, one thread"),
        )


def _faults() -> Iterator[tuple[str, Value]]:
    """Memory that the kernel has to find and clear, page by page, when it is first written to."""
    nbytes, fresh = 2**21, []
    for _ in range(6):
        with mmap.mmap(-1, nbytes) as memory:
            tensor = torch.frombuffer(memory, dtype=torch.float32)
            fill = partial(tensor.fill_, 0.0)
            before = page_faults() or 0
            first, again = _once(fill), _once(fill)
            pages = (page_faults() or 0) - before
            del tensor, fill  # who still looks at it keeps it from being closed
        if pages > 0 and first > again:
            fresh.append((first - again) / pages)
    if fresh:
        yield FAULT, Value(min(fresh), f"{nbytes} bytes filled for the first time less the second, the best of some")
