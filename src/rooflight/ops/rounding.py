"""Whole blocks: how many cover a length, and how long they are together."""

from __future__ import annotations


def ceil_div(length: int, block: int) -> int:
    """How many blocks cover a length."""
    return -(-length // block)


def round_up(length: int, multiple: int) -> int:
    return ceil_div(length, multiple) * multiple
