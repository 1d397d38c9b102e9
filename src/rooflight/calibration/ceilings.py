"""The best this device reaches: matrix products that last, memory moved, sums over the GPUs of the machine."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from rooflight.calibration.case import DTYPES, precision_set
from rooflight.calibration.clock import gpu_seconds, seconds_of
from rooflight.ledger import Value


def ceilings(
    device: torch.device, precisions: list[str], *, side: int, megabytes: int, cache_bytes: int, seconds: float
) -> dict[str, Value]:
    """FLOP/s by precision as `gemm.bf16`, bytes/s as `copy` and `triad` (in memory) and `copy.cache` (the best of
    several sizes)."""
    values: dict[str, Value] = {}
    for precision in precisions:
        a, b = (torch.randn(side, side, device=device).to(DTYPES[precision]) for _ in range(2))
        with precision_set(precision), torch.no_grad():
            best, lasting = _rates(lambda a=a, b=b: a @ b, device, seconds)  # type: ignore[misc]
        flops = 2 * side**3
        values[f"gemm.{precision}"] = Value(flops / lasting, f"{side}^3 matmul, mean over {seconds:g} s")
        values[f"gemm.{precision}.burst"] = Value(flops / best, f"{side}^3 matmul, the first few after a pause")
    elements = megabytes * 250_000
    x, y, z = (torch.randn(elements, device=device) for _ in range(3))
    _, copied = _rates(lambda: x.copy_(y), device, seconds / 2)
    values["copy"] = Value(8 * elements / copied, f"{megabytes} MB to {megabytes} MB, read and written")
    _, triad = _rates(lambda: torch.add(y, z, alpha=0.5, out=x), device, seconds / 2)
    values["triad"] = Value(12 * elements / triad, f"a = b + s c, {megabytes} MB each")
    values["copy.cache"] = max((_copied_in_cache(x, y, cache_bytes // part) for part in _PARTS), key=lambda v: v.value)
    return values


_TIMES = 50
_PARTS = (16, 8, 6, 5, 4, 3)
"""Of the cache, in each direction: a small copy is over before it began, a large one no longer fits."""


def _copied_in_cache(x: torch.Tensor, y: torch.Tensor, nbytes: int) -> Value:
    elements = min(nbytes // 4, x.numel())
    here, there = x[:elements], y[:elements]
    call = _many(lambda: here.copy_(there), x.device)
    call()
    taken = min(_run(call, x.device, 3) for _ in range(3))
    size = f"{4 * elements / 1e6:.3g} MB"
    return Value(8 * elements * _TIMES / taken, f"{size} to {size}, over and over; the best of {len(_PARTS)} sizes")


def _many(call: Callable[[], object], device: torch.device) -> Callable[[], object]:
    """The call many times as one: what one takes, the host would take longer to launch."""

    def run() -> None:
        for _ in range(_TIMES):
            call()

    if device.type != "cuda":
        return run
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return graph.replay


def _rates(call: Callable[[], object], device: torch.device, seconds: float) -> tuple[float, float]:
    """Seconds of one call: the best of short runs after a pause, and the mean of a run that lasts."""
    call()
    once = max(_run(call, device, 3), 1e-6)
    time.sleep(0.02)
    short = min(_run(call, device, max(3, int(0.01 / once))) for _ in range(2))
    return short, _run(call, device, max(3, int(seconds / once)))


def _run(call: Callable[[], object], device: torch.device, times: int) -> float:
    """Seconds of one of many calls; on a GPU by its own clock, with calls queued ahead."""

    def run() -> None:
        for _ in range(times):
            call()

    return (gpu_seconds(run) if device.type == "cuda" else seconds_of(run)) / times


_SIZES_MB = (1, 25, 256)


def all_reduce_bandwidths() -> dict[str, Value]:
    """Bus bandwidth by size, as `all-reduce.25MB`; nothing where there is one GPU."""
    count = torch.cuda.device_count()
    if count < 2:
        return {}
    from torch.cuda import nccl

    bandwidths = {}
    for megabytes in _SIZES_MB:
        tensors = [torch.ones(megabytes * 250_000, device=f"cuda:{index}") for index in range(count)]
        for _ in range(3):
            nccl.all_reduce(tensors)
        _wait(count)
        begun, times = time.perf_counter(), 10
        for _ in range(times):
            nccl.all_reduce(tensors)
        _wait(count)
        seconds = (time.perf_counter() - begun) / times
        bus = 2 * (count - 1) / count * megabytes * 1e6 / seconds
        bandwidths[f"all-reduce.{megabytes}MB"] = Value(bus, f"NCCL over {count} GPUs: 2(n-1)/n x bytes / time")
    return bandwidths


def _wait(count: int) -> None:
    for index in range(count):
        torch.cuda.synchronize(index)
