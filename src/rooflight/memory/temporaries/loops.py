"""The loops torch makes of a reduction: which dimensions it walks, in which order, and where neighbours become one.

torch sorts dimensions by stride, reduced ones first, and merges those that lie in memory as one would. What a kernel
then does depends on the merged loops only, so `(4, 5, 6)` reduced over its last two dimensions is `(4, 30)` over one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from rooflight.ledger import Tensor
from rooflight.memory.temporaries.arithmetic import contiguous_strides

_LARGEST_INDEX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Loop:
    size: int
    written: int
    """Elements from one result to the next; 0: the loop is reduced."""
    read: int

    @property
    def reduced(self) -> bool:
        return self.written == 0


Loops = tuple[Loop, ...]
"""From the innermost to the outermost."""


def reduction_loops(tensor: Tensor, dims: Collection[int]) -> Loops:
    """The loops of reducing `dims` (none given: all) of a tensor into a contiguous result."""
    rank = len(tensor.shape)
    gone = {dim % rank for dim in dims} if dims else set(range(rank))
    reads = tensor.strides or contiguous_strides(tensor.shape)
    kept = tuple(1 if dim in gone else size for dim, size in enumerate(tensor.shape))
    writes = [0 if dim in gone else stride for dim, stride in enumerate(contiguous_strides(kept))]
    loops = [Loop(*sizes) for sizes in zip(tensor.shape, writes, reads, strict=True)]
    return tuple(_merged(_sorted(loops[::-1])))


def _sorted(loops: list[Loop]) -> list[Loop]:
    """An insertion sort, as torch's: where strides tell nothing (0), an order is kept rather than made."""
    order = list(loops)
    for start in range(1, len(order)):
        place = start
        for other in range(start - 1, -1, -1):
            outer = _is_outer(order[other], order[place])
            if outer is None:
                continue
            if not outer:
                break
            order[other], order[place] = order[place], order[other]
            place = other
    return order


def _is_outer(first: Loop, second: Loop) -> bool | None:
    """Must `first` stand outside of `second`? None: neither way."""
    if first.reduced != second.reduced:
        return second.reduced
    for one, two in ((first.written, second.written), (first.read, second.read)):
        if one == 0 or two == 0:
            continue
        if one != two:
            return one > two
        if first.size > second.size:
            return True
    return None


def _merged(loops: list[Loop]) -> list[Loop]:
    found: list[Loop] = []
    for loop in loops:
        if found:
            inner = found[-1]
            if inner.size == 1:
                found[-1] = loop
                continue
            steps_on = (inner.size * inner.written, inner.size * inner.read) == (loop.written, loop.read)
            if loop.size == 1 or steps_on:
                found[-1] = Loop(inner.size * loop.size, inner.written, inner.read)
                continue
        found.append(loop)
    return found


def within_32_bits(loops: Loops, read_bytes: int, written_bytes: int) -> list[Loops]:
    """The parts torch does one after the other so that offsets in bytes fit 32 bits: halves of the longest loop."""
    offsets = [
        1 + sum((loop.size - 1) * loop.read for loop in loops) * read_bytes,
        1 + sum((loop.size - 1) * loop.written for loop in loops) * written_bytes,
        math.prod(loop.size for loop in loops),
    ]
    if max(offsets) <= _LARGEST_INDEX:
        return [loops]
    extents = [(loop.size - 1) * max(loop.read * read_bytes, loop.written * written_bytes) for loop in loops]
    longest = max(range(len(loops)), key=lambda place: (extents[place], place))
    loop = loops[longest]
    parts = []
    for size in (loop.size // 2, loop.size - loop.size // 2):
        half = (*loops[:longest], Loop(size, loop.written, loop.read), *loops[longest + 1 :])
        parts += within_32_bits(half, read_bytes, written_bytes)
    return parts
