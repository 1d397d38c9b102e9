"""Small helpers that the formulas share."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.ledger import Tensor
from rooflight.memory.moments import Moment


def blocks(length: int, block: int) -> int:
    """How many blocks cover a length."""
    return -(-length // block)


def rounded(length: int, multiple: int) -> int:
    return blocks(length, multiple) * multiple


def largest(moments: Iterable[Moment]) -> tuple[Moment, ...]:
    """Of stretches with the same results the one that takes most."""
    best = max(moments, key=lambda moment: sum(moment.temporaries), default=None)
    return (best,) if best is not None and best.temporaries else ()


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def packed(*tensors: Tensor) -> tuple[int, ...]:
    """Bytes of the contiguous copies that a kernel makes of tensors that are not."""
    return tuple(tensor.numel * tensor.itemsize for tensor in tensors if tensor.strides is not None)
