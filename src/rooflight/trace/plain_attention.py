"""Attention that no fused kernel takes runs as plain matrix products: which ops of a trace are of one such call.

In another precision the same call may have a fused kernel; who asks what a step would be then must know which ops the
kernel would stand for.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch.autograd import _get_sequence_nr

_HIGHEST = 1 << 62
"""Accumulations of gradients all carry the highest number: they are of no call."""


class _AttentionCalls:
    """Of one trace. Autograd numbers its nodes: those of a call lie between the numbers before and after it."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, int]] = []
        self.inside = False


_calls = _AttentionCalls()  # of the trace that runs: there is one at a time


@contextmanager
def calls_followed() -> Iterator[None]:
    """Around a trace."""
    global _calls
    before, _calls = _calls, _AttentionCalls()
    try:
        yield
    finally:
        _calls = before


@contextmanager
def plain_attention() -> Iterator[None]:
    """Around one call of attention as matrix products."""
    calls, first = _calls, _get_sequence_nr()
    calls.nodes.append((first, _HIGHEST))
    calls.inside = True
    try:
        yield
    finally:
        calls.inside = False
        calls.nodes[-1] = (first, _get_sequence_nr())


def is_inside() -> bool:
    return _calls.inside


def call_of(node: Any) -> int:
    """The call that an op is of: its number from 1, negative in its backward; 0 where it is of none. `node`: of
    autograd, that runs in backward."""
    if _calls.inside:
        return len(_calls.nodes)
    if node is None or not _calls.nodes:
        return 0
    number = node._sequence_nr()
    places = (place for place, (first, end) in enumerate(_calls.nodes, start=1) if first <= number < end)
    return -next(places, 0)
