"""What torch's reduction kernel borrows: the buffer of a reduction in two stages.

Few results and many elements for each: torch's kernel gives one result to several thread blocks. Their partial results
meet in global memory, one for every thread of a block where threads side by side work for different results.

Which way a kernel goes depends on the loops torch makes of a reduction. It sorts dimensions by stride, reduced ones
first, and merges those that lie in memory as one would: `(4, 5, 6)` reduced over its last two dimensions is `(4, 30)`
over one.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from functools import lru_cache

from rooflight.ledger import DTYPE_BYTES, Tensor
from rooflight.ops.rounding import ceil_div
from rooflight.ops.tensor_layout import contiguous_strides
from rooflight.ops.workspace_phases import Chip

LOW_PRECISIONS = ("bf16", "fp16")
_LARGEST_INDEX = 2**31 - 1
_WARP = 32
_THREADS = 512
"""Most threads of a block."""
_FEW_VALUES, _MANY_VALUES = 16, 256
"""Of one thread: torch splits a reduction further from `many` on, and leaves each thread at least `few`."""


@dataclass(frozen=True, slots=True)
class ReductionKernel:
    """What of a reduction's kernel decides about its buffer."""

    accumulator: int
    """Bytes of a partial result."""
    vector: int = 4
    """Elements that a thread loads at once along a contiguous reduced dimension."""


def accumulator(dtype: str) -> int:
    """Bytes of a sum of such elements: low precisions add up in fp32."""
    return max(DTYPE_BYTES[dtype], 4)


def reduction_buffers(
    tensor: Tensor, dims: Collection[int], kernel: ReductionKernel, chip: Chip, result: str
) -> tuple[int, ...]:
    """What a reduction kernel asks for, into results of dtype `result`."""
    if not tensor.numel:
        return ()
    loops = _reduction_loops(tensor, dims)
    parts = _within_32_bits(loops, tensor.itemsize, DTYPE_BYTES[result])
    needed = max((_staging(part, tensor.offset, kernel, chip) for part in parts), key=sum)
    held: tuple[int, ...] = ()
    if loops not in parts and tensor.dtype in LOW_PRECISIONS and result == tensor.dtype:
        # Between its parts a low-precision reduction keeps its results in full precision.
        kept = max((loop.size * loop.written for loop in loops), default=0)
        held = (max(kept, 1) * kernel.accumulator,)
    return (*held, *needed)


# --- loops


@dataclass(frozen=True, slots=True)
class ReductionLoop:
    size: int
    written: int
    """Elements from one result to the next; 0: the loop is reduced."""
    read: int

    @property
    def reduced(self) -> bool:
        return self.written == 0


ReductionLoops = tuple[ReductionLoop, ...]
"""From the innermost to the outermost."""


def _reduction_loops(tensor: Tensor, dims: Collection[int]) -> ReductionLoops:
    """The loops of reducing `dims` (none given: all) of a tensor into a contiguous result."""
    rank = len(tensor.shape)
    gone = {dim % rank for dim in dims} if dims else set(range(rank))
    reads = tensor.strides or contiguous_strides(tensor.shape)
    kept = tuple(1 if dim in gone else size for dim, size in enumerate(tensor.shape))
    writes = [0 if dim in gone else stride for dim, stride in enumerate(contiguous_strides(kept))]
    loops = [ReductionLoop(*sizes) for sizes in zip(tensor.shape, writes, reads, strict=True)]
    return tuple(_merged(_sorted(loops[::-1])))


def _sorted(loops: list[ReductionLoop]) -> list[ReductionLoop]:
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


def _is_outer(first: ReductionLoop, second: ReductionLoop) -> bool | None:
    """Must `first` stand outside of `second`? None: neither way."""
    if first.reduced != second.reduced:
        return second.reduced
    for step, other in ((first.written, second.written), (first.read, second.read)):
        if step == 0 or other == 0:
            continue
        if step != other:
            return step > other
        if first.size > second.size:
            return True
    return None


def _merged(loops: list[ReductionLoop]) -> list[ReductionLoop]:
    merged: list[ReductionLoop] = []
    for loop in loops:
        if merged:
            inner = merged[-1]
            if inner.size == 1:
                merged[-1] = loop
                continue
            steps_on = (inner.size * inner.written, inner.size * inner.read) == (loop.written, loop.read)
            if loop.size == 1 or steps_on:
                merged[-1] = ReductionLoop(inner.size * loop.size, inner.written, inner.read)
                continue
        merged.append(loop)
    return merged


@lru_cache(maxsize=1024)
def _within_32_bits(loops: ReductionLoops, read_bytes: int, written_bytes: int) -> tuple[ReductionLoops, ...]:
    """Return each size of part once. Torch halves the longest loop until offsets in bytes fit 32 bits."""
    offsets = [
        1 + sum((loop.size - 1) * loop.read for loop in loops) * read_bytes,
        1 + sum((loop.size - 1) * loop.written for loop in loops) * written_bytes,
        math.prod(loop.size for loop in loops),
    ]
    if max(offsets) <= _LARGEST_INDEX:
        return (loops,)
    extents = [(loop.size - 1) * max(loop.read * read_bytes, loop.written * written_bytes) for loop in loops]
    longest = max(range(len(loops)), key=lambda place: (extents[place], place))
    loop = loops[longest]
    parts: dict[ReductionLoops, None] = {}
    for size in (loop.size // 2, loop.size - loop.size // 2):
        half = (*loops[:longest], ReductionLoop(size, loop.written, loop.read), *loops[longest + 1 :])
        parts |= dict.fromkeys(_within_32_bits(half, read_bytes, written_bytes))
    return tuple(parts)


# --- stages


def _staging(loops: ReductionLoops, offset: int, kernel: ReductionKernel, chip: Chip) -> tuple[int, ...]:
    """Bytes of the buffer for partial results and of its semaphores; empty where one block makes each result."""
    results = math.prod(loop.size for loop in loops if not loop.reduced)
    each = math.prod(loop.size for loop in loops if loop.reduced)
    if not results or not each:
        return ()
    inner = sum(loop.reduced for loop in loops)
    along_reduced = inner == len(loops) or (inner > 0 and loops[0].read < loops[inner].read)
    width, height = (each, results) if along_reduced else (results, each)
    outputs_at_once = 1
    if along_reduced:
        if inner == 1 and loops[0].read == 1 and width >= 128:
            width //= kernel.vector
    elif loops[inner].read == 1:
        outputs_at_once = _outputs_at_once(loops, inner, offset)
        width //= outputs_at_once
    across, down = _block(width, height, _THREADS // outputs_at_once)

    values = ceil_div(each, across) if along_reduced else each
    lanes = 1 if along_reduced else across
    if values < min(down * _FEW_VALUES, _MANY_VALUES):
        return ()  # a block's rows make results of their own: no need for more blocks
    values = ceil_div(each, (across if along_reduced else 1) * down)
    grid = ceil_div(results // outputs_at_once, lanes)
    wanted = chip.sms * (chip.threads_per_sm // (across * down))
    if values < _MANY_VALUES or grid > wanted:
        return ()
    shares = max(min(ceil_div(wanted, grid), ceil_div(values, _FEW_VALUES)), ceil_div(values, _MANY_VALUES))
    if shares <= 1:
        return ()
    return kernel.accumulator * results * shares * lanes * outputs_at_once, 4 * grid


def _block(width: int, height: int, threads: int) -> tuple[int, int]:
    """Threads of a block both ways: a warp wide, as high as there is work, then wider if room is left."""
    wide, high = (min(_power_below(length), threads) for length in (width, height))
    across = min(wide, _WARP)
    down = min(high, threads // across)
    return min(wide, threads // down), down


def _power_below(length: int) -> int:
    return 1 << (max(length, 1).bit_length() - 1)


def _outputs_at_once(loops: ReductionLoops, inner: int, offset: int) -> int:
    """Results side by side that one thread makes: 4, 2 or 1, as sizes, strides and the start of the data allow."""
    must_divide = [offset, loops[inner].size, *(loop.read for place, loop in enumerate(loops) if place != inner)]
    return math.gcd(4, *must_divide)
