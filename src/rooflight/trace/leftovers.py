"""Tensors without data that a program still holds when its estimate is over.

What a step can reach is put back, but a program may hide things where nobody looks: in the cache of a library, in the
closure of a callback in C. Nothing that is kept there can be taken for real, so it is looked for and said.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from types import CellType, FrameType, GeneratorType
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from rooflight.ledger import Note

_CACHE = type(functools.cache(lambda: None))
_MOST_NAMED, _MOST_ASKED = 3, 100
_REFERENCES = 4
"""To a mode that no tensor belongs to: of `StandIns`, of what it remembers, of this, and of who counts them. With no
more there is nothing to look for, and looking takes long."""


@contextmanager
def young_garbage_alone() -> Iterator[None]:
    """Garbage is looked for among what is made from here on: a program with its libraries has hundreds of thousands of
    objects, and going through them takes as long as a step."""
    if gc.get_freeze_count():  # the program has put away some itself: they would be taken out again with these
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


class Leftovers:
    """Made when a trace begins; asked when all it held itself is gone."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self._mode = mode

    def note(self) -> Note | None:
        """Who holds what is left. Caches are emptied: they fill again."""
        for generation in range(3):  # the youngest first: all takes long
            if sys.getrefcount(self._mode) <= _REFERENCES:
                return None
            gc.collect(generation)
        left = self._left()
        if left and self._caches_emptied(left):
            gc.collect()
            left = self._left()
        if not left:
            return None
        holders = [holder for tensor in islice(left, _MOST_ASKED) for holder in _holders(tensor, left)]
        where = ", ".join(list(dict.fromkeys(holders))[:_MOST_NAMED]) or "in C++"
        return Note(
            "tensors-left",
            f"tensors without data are left in the program ({where}), where rooflight does not see what the step "
            "changes: make that anew before you go on",
        )

    def _left(self) -> list[FakeTensor]:
        return [one for one in gc.get_objects() if type(one) is FakeTensor and one.fake_mode is self._mode]

    def _caches_emptied(self, left: list[FakeTensor]) -> bool:
        wanted = set(map(id, left))
        caches = [one for one in gc.get_objects() if type(one) is _CACHE and not wanted.isdisjoint(_inside(one))]
        for cache in caches:
            cache.cache_clear()
        return bool(caches)


def _inside(cache: Any) -> Iterator[int]:
    """Results lie in links, which lie in a table."""
    for link in gc.get_referents(cache):
        yield id(link)
        for held in gc.get_referents(link):
            yield id(held)
            yield from map(id, gc.get_referents(held))


def _holders(tensor: FakeTensor, left: list[FakeTensor]) -> list[str]:
    """In Python; others are in graphs of autograd, which these lead to."""
    named = []
    for holder in gc.get_referrers(tensor):
        if isinstance(holder, dict):
            name = next((str(key) for key, value in holder.items() if value is tensor), "")
            owners = [one for one in gc.get_referrers(holder) if getattr(one, "__dict__", None) is holder]
            named += [f"{getattr(owner, '__name__', type(owner).__name__)}.{name}" for owner in owners] or [repr(name)]
        elif holder is not left and not isinstance(holder, (CellType, FrameType, GeneratorType)):
            named.append(f"a {type(holder).__name__}")
    return named
