"""The buffer of a reduction in two stages.

Few results and many elements for each: torch's kernel gives one result to several thread blocks. Their partial results
meet in global memory, one for every thread of a block where threads side by side work for different results.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflight.memory.moments import Chip
from rooflight.memory.temporaries.arithmetic import blocks
from rooflight.memory.temporaries.loops import Loops

_WARP = 32
_THREADS = 512
"""Most threads of a block."""
_FEW_VALUES, _MANY_VALUES = 16, 256
"""Of one thread: torch splits a reduction further from `many` on, and leaves each thread at least `few`."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """What of a reduction's kernel decides about its buffer."""

    accumulator: int
    """Bytes of a partial result."""
    vector: int = 4
    """Elements that a thread loads at once along a contiguous reduced dimension."""
    threads: int = _THREADS


def staging(loops: Loops, offset: int, kernel: Kernel, chip: Chip) -> tuple[int, ...]:
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
    across, down = _block(width, height, kernel.threads // outputs_at_once)

    values = blocks(each, across) if along_reduced else each
    lanes = 1 if along_reduced else across
    if values < min(down * _FEW_VALUES, _MANY_VALUES):
        return ()  # a block's rows make results of their own: no need for more blocks
    values = blocks(each, (across if along_reduced else 1) * down)
    grid = blocks(results // outputs_at_once, lanes)
    wanted = chip.sms * (chip.threads_per_sm // (across * down))
    if values < _MANY_VALUES or grid > wanted:
        return ()
    shares = max(min(blocks(wanted, grid), blocks(values, _FEW_VALUES)), blocks(values, _MANY_VALUES))
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


def _outputs_at_once(loops: Loops, inner: int, offset: int) -> int:
    """Results side by side that one thread makes: 4, 2 or 1, as sizes, strides and the start of the data allow."""
    must_divide = [offset, loops[inner].size, *(loop.read for place, loop in enumerate(loops) if place != inner)]
    return math.gcd(4, *must_divide)
