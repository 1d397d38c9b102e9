"""A micro-benchmark: a task, and how to make the call that does it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rooflight.ops.kernel_task import Task

DTYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp64": torch.float64,
}


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


class TensorPool:
    """Random numbers to cut the inputs of every case from: making them anew would cost more than the case itself.

    Random, not zeros: a GPU computes zeros with less power and at higher clocks.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self.device = device
        self._nbytes = nbytes
        self._buffers: dict[torch.dtype, torch.Tensor] = {}
        self._used: dict[torch.dtype, int] = {}
        self.taken: list[torch.Tensor] = []
        """What the case has cut, to be touched as if something had just written it."""

    @classmethod
    def sharing(cls, other: TensorPool) -> TensorPool:
        """Another place to cut from in the same numbers, for another thread. Some cases write them; none minds which
        they are."""
        pool = cls(other.device, other._nbytes)
        pool._buffers = other._buffers
        return pool

    def reset(self) -> None:
        """Begin to cut from the start again: the last case is done with its tensors."""
        self._used.clear()
        self.taken = []

    def take(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A contiguous tensor that shares no element with the others of the same case."""
        buffer = self._buffers.get(dtype)
        if buffer is None:
            count = self._nbytes // dtype.itemsize
            buffer = self._buffers[dtype] = torch.randn(count, device=self.device, dtype=torch.float32).to(dtype)
        start, size = self._used.get(dtype, 0), math.prod(shape)
        end = start + -(-size // 256) * 256
        if end > buffer.numel():
            raise OutOfPool
        self._used[dtype] = end
        # `.data`: touching it is nothing that autograd should know of.
        self.taken.append(buffer.data[start : start + size])
        return buffer[start : start + size].view(shape)

    def taking(self, precision: str) -> Callable[..., torch.Tensor]:
        """`take` in that precision."""
        return partial(self.take, dtype=DTYPES[precision])

    def images(self, n: int, c: int, h: int, w: int, *, dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
        if channels_last:
            return self.take(n, h, w, c, dtype=dtype).permute(0, 3, 1, 2)
        return self.take(n, c, h, w, dtype=dtype)

    def own(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """A tensor from 0 to 1 that no other case writes."""
        self.taken.append(torch.rand(*shape, dtype=dtype, device=self.device))
        return self.taken[-1]


class OutOfPool(Exception):
    """The case is too large for this device; it is left out."""


Call = Callable[[], Any]


@dataclass(frozen=True)
class BenchmarkCase:
    task: Task
    make: Callable[[TensorPool], Call]
    """Prepares the inputs and gives the call to be timed."""


def case(make: Callable[..., Call], task: Task, *more: object) -> BenchmarkCase:
    """`make` takes the task, what `more` it needs to know, and the pool."""
    return BenchmarkCase(task, partial(make, task, *more))


Cases = Iterator[BenchmarkCase]
