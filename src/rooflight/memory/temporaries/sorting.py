"""Sorting, the largest of each row, and running sums."""

from __future__ import annotations

import math

from rooflight.ledger import Op
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries.arithmetic import blocks
from rooflight.memory.temporaries.radix import radix_sort, segmented_radix_sort
from rooflight.memory.temporaries.registry import borrows

_SHORT_ROW = 4096
"""Rows that one thread block sorts in shared memory."""
_FEW_ROWS = 128
_INDEX = 8


@borrows("sort", "argsort", "msort")
def sort(op: Op, chip: Chip) -> Moments:
    return (Moment(len(op.outputs), _sort(op.tensor("self").itemsize, *_rows(op))),)


def _rows(op: Op) -> tuple[int, int]:
    """How many rows, and their length."""
    tensor = op.tensor("self")
    if not tensor.shape:
        return 1, 1
    length = tensor.shape[op.ints("dim", (-1,))[0]]
    return tensor.numel // max(length, 1), length


def _sort(key: int, rows: int, length: int) -> tuple[int, ...]:
    indices = (length * _INDEX,)  # 0, 1, 2 ... of one row
    pairs = rows * length
    if length <= _SHORT_ROW:
        return indices
    if rows == 1:
        return (*indices, radix_sort(pairs, key, _INDEX))
    if rows < _FEW_ROWS:  # all rows at once, every element with the number of its row; then by that number
        return 2 * (pairs * _INDEX,) + (pairs * key, radix_sort(pairs, key, _INDEX))
    return pairs * _INDEX, segmented_radix_sort(pairs, key, _INDEX)


_MANY_BLOCKS = ((20, 20000), (40, 10000), (80, 8000), (199, 5000), (799, 3000), (4000, 800))
"""topk gives a row to several blocks where there are up to so many rows of at least so many elements."""
_THREADS = 256
_REGISTERS, _REGISTERS_PER_SM = 40, 65536
"""That a thread of the counting kernel needs, and that there are: on every GPU since Kepler."""


@borrows("topk")
def topk(op: Op, chip: Chip) -> Moments:
    """A radix search over blocks: counts of every digit by block and by row."""
    rows, length = _rows(op)
    if length < next((least for most, least in _MANY_BLOCKS if rows <= most), 400):
        return ()
    at_once = chip.sms * (_REGISTERS_PER_SM // (_REGISTERS * _THREADS)) * _THREADS
    each = min(max(blocks(rows * length, at_once), 4), 64)
    parts = rows * blocks(length, each * _THREADS)
    key = op.tensor("self").itemsize
    found = (rows * key, rows * 8, rows * 8, parts * 512, rows * 1024, parts * 4, parts * 4, 1279)
    results = len(op.outputs)
    wanted = op.ints("k")[0]
    if wanted <= _SHORT_ROW or op.args.get("sorted") is False:
        return (Moment(results, found),)
    # Too many for the kernel that puts them in order: an ordinary sort, whose results come beside.
    beside = (rows * wanted * _INDEX, rows * wanted * key)
    return Moment(results, found), Moment(results, (*beside, *_sort(key, rows, wanted)))


@borrows("cumsum", "cumprod")
def running(op: Op, chip: Chip) -> Moments:
    """Elements of another dtype than the result are copied first; a scan's own few kilobytes are left out."""
    tensor, result = op.tensor("self"), op.outputs[0]
    if tensor.dtype == result.dtype:
        return ()
    return (Moment(1, (tensor.numel * result.itemsize,)),)


@borrows("randperm")
def randperm(op: Op, chip: Chip) -> Moments:
    """Random keys with the numbers, sorted by the keys."""
    n = op.outputs[0].numel
    bits = _key_bits(n)
    key = 4 if bits <= 32 else 8
    return (Moment(1, (n * _INDEX, n * key, n * key, radix_sort(n, key, _INDEX, bits))),)


def _key_bits(n: int) -> int:
    """So many random bits that more than a few keys alike are unlikely: torch allows one chance in ten of twelve."""
    return min(64, math.ceil(math.log2(n + (6 * n * n + 1) / (-12 * math.log(0.9)))))


@borrows("_foreach_norm")
def norms(op: Op, chip: Chip) -> Moments:
    """One partial norm for each chunk of the longest tensor, for every tensor."""
    tensors = op.tensors("self")
    chunks = max((blocks(tensor.numel, 65536) for tensor in tensors), default=0)
    wide = max((tensor.itemsize for tensor in tensors), default=4)
    return (Moment(len(op.outputs), (chunks * len(tensors) * max(wide, 4),)),)


@borrows("roll")
def roll(op: Op, chip: Chip) -> Moments:
    """One dimension after the other, each into a tensor of its own."""
    before = len(op.ints("dims")) - 1
    tensor = op.tensor("self")
    return (Moment(1, before * (tensor.numel * tensor.itemsize,)),) if before > 0 else ()
