"""A cache as large as the device's, through which the storages of a step are read and written: what reaches the DRAM.

Storages are kept whole or in part, the least recently used leave first, and what was written is written back when it
leaves. Memory that is freed is soon given out again, mostly for something of the same size: what was still in the cache
of it is then overwritten and never reaches the DRAM.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

Key = object


@dataclass
class _Held:
    nbytes: int
    dirty: int


class Cache:
    """Bytes of storages, the least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: OrderedDict[Key, _Held] = OrderedDict()
        self._used = 0
        self._dead: dict[int, list[Key]] = {}
        """Freed storages that are still in the cache, by their size."""

    def read(self, key: Key, nbytes: int) -> tuple[int, int]:
        """Bytes from the DRAM, and bytes written back to it to make room."""
        held = self._held.get(key)
        hit = min(held.nbytes, nbytes) if held is not None else 0
        if nbytes > self.capacity:
            # Read from its beginning, it pushes out what is left of its end before that is reached.
            hit = 0
        return nbytes - hit, self._keep(key, nbytes, 0)

    def write(self, key: Key, nbytes: int, *, of: int | None = None) -> int:
        """Bytes written back to make room. `of`: the size of a new storage, which may lie where a freed one lay."""
        if of is not None and key not in self._held:
            self._overwrite_dead(of)
        return self._keep(key, nbytes, nbytes)

    def free(self, key: Key, size: int) -> None:
        if key in self._held:
            self._dead.setdefault(size, []).append(key)

    def _overwrite_dead(self, size: int) -> None:
        keys = self._dead.get(size)
        while keys:
            held = self._held.pop(keys.pop(), None)
            if held is not None:
                self._used -= held.nbytes
                return

    def _keep(self, key: Key, nbytes: int, dirty: int) -> int:
        known = self._held.pop(key, None)
        if known is not None:
            # Who touches a part of a storage leaves the rest where it is.
            self._used -= known.nbytes
            nbytes, dirty = max(nbytes, known.nbytes), max(dirty, known.dirty)
        kept = min(nbytes, self.capacity)
        back = max(dirty - kept, 0)  # what is longer than the cache leaves it as it is written
        self._held[key] = _Held(kept, min(dirty, kept))
        self._used += kept
        while self._used > self.capacity:
            oldest, held = next(iter(self._held.items()))
            if oldest == key:
                break
            over = min(self._used - self.capacity, held.nbytes)
            gone = min(held.dirty, over)
            back += gone
            self._used -= over
            held.nbytes -= over
            held.dirty -= gone
            if not held.nbytes:
                del self._held[oldest]
        return back
