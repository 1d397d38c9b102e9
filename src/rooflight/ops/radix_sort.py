"""The workspace of CUB's radix sort of keys with values, which sorting and scattered additions rest on."""

from __future__ import annotations

from rooflight.ops.rounding import ceil_div, round_up

INDEX_BYTES = 8
"""Of where a key came from."""

_DIGIT_BITS = 8
_DIGITS = 1 << _DIGIT_BITS
_ALIGNED = 256
_ONE_BLOCK = 2304
"""Pairs that one thread block sorts without any workspace."""
_PAIRS_A_BLOCK = {8: 4608, 4: 5376, 2: 5632}
"""By bytes of a key, on compute capability 8 and above; a byte's keys are taken for two."""


def radix_sort_bytes(pairs: int, key: int, value: int, bits: int | None = None) -> int:
    """Bytes for sorting `pairs` by the lowest `bits` of their keys (all, unless told)."""
    if pairs <= _ONE_BLOCK:
        return 1
    passes = ceil_div(8 * key if bits is None else bits, _DIGIT_BITS)
    counters = passes * _DIGITS * 8
    shared = ceil_div(pairs, _PAIRS_A_BLOCK.get(key, _PAIRS_A_BLOCK[2])) * _DIGITS * 4
    copied = _second_copy(pairs, key, value) if passes > 1 else 0  # one pass goes straight into the result
    return copied + counters + shared + 2 * _ALIGNED - 1


def segmented_radix_sort_bytes(pairs: int, key: int, value: int) -> int:
    """Bytes for sorting many rows at once, each by a block of its own."""
    return _second_copy(pairs, key, value) + _ALIGNED - 1


def _second_copy(pairs: int, key: int, value: int) -> int:
    return round_up(pairs * key, _ALIGNED) + round_up(pairs * value, _ALIGNED)


def bits_of(largest: int) -> int:
    return max(largest.bit_length(), 1)
