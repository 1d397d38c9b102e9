"""All-reduce between the GPUs of this machine."""

from __future__ import annotations

import time

import torch

from rooflight.ledger import Value

_SIZES_MB = (1, 25, 256)


def all_reduce_bandwidths() -> dict[str, Value]:
    """Bus bandwidth by size, as `all-reduce.25MB`; nothing where there is one GPU."""
    count = torch.cuda.device_count()
    if count < 2:
        return {}
    from torch.cuda import nccl

    found = {}
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
        found[f"all-reduce.{megabytes}MB"] = Value(bus, f"NCCL over {count} GPUs: 2(n-1)/n x bytes / time")
    return found


def _wait(count: int) -> None:
    for index in range(count):
        torch.cuda.synchronize(index)
