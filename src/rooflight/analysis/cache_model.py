"""A cache as large as the device's, through which the memory of a step is read and written: what reaches the DRAM.

Memory is known by its address, in granules. The cache is one of many small sets, each of which gives up what it used
least recently; addresses spread over the sets by chance. So something survives until about as much as the cache holds
was touched since: not suddenly, but the less probable the more was touched. What was written is written back when it
leaves, or when so much else was written since that it is cleaned; what is overwritten before never reaches the DRAM.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WAYS = 16
"""Lines of a set."""
SHARED = 1.5
"""The cache has two halves, each next to half of the multiprocessors: what both read is in both."""
GRANULE = 1 << 20
SMALL = 1 << 20
"""Blocks of up to so many bytes are granules of their own, as torch's allocator has them in a pool of their own."""
LARGE = 1 << 27
_STEPS = 16
"""How often what has left is looked up, while as much passes as the cache holds."""
_FINE = 128


@dataclass(slots=True)
class _Held:
    """What was touched of a granule: from `low` to `high`."""

    low: int
    high: int
    nbytes: float = 0.0
    """What it takes of the cache, in both halves if it is in both."""
    dirty: float = 0.0
    tag: str = ""
    """Whose it is that is dirty."""
    alive: float = 1.0
    """The part that is still there."""
    wrote: int = 0
    """Bytes that the last writing wrote, and the part of them that has not been written back."""
    unwritten: float = 1.0


@dataclass
class CacheTouch:
    """Bytes from an address on that a kernel reads or writes once, and how many of them came from the DRAM.
    `block`: where the memory begins that they are a part of, and its bytes."""

    address: int
    nbytes: int
    block: tuple[int, int]
    writes: bool = False
    tag: str = ""
    """What the write-back of it is called."""
    shared: bool = False
    """Read by many multiprocessors."""
    missed: float = 0.0

    def granules(self) -> list[tuple[int, int, int]]:
        """Key, and from where to where in it."""
        start, size = self.block
        if not self.nbytes:
            return []
        if size <= SMALL:
            return [(~start, self.address - start, self.address - start + self.nbytes)]
        # Of what is larger than any cache little is ever found again: coarser granules do.
        step, kind = (GRANULE, 0) if size < LARGE else (4 * GRANULE, 1 << 60)
        first, end = self.address // step, self.address + self.nbytes
        return [
            (kind + key, max(self.address - key * step, 0), min(end - key * step, step))
            for key in range(first, -(-end // step))
        ]


class Cache:
    """Granules, the most recently used last."""

    def __init__(self, capacity: float, dirty: float) -> None:
        """`dirty`: how much of what was written waits in it."""
        self.capacity, self._dirty = capacity, dirty
        self._held: dict[int, _Held] = {}
        self._since = 0.0
        self._written: dict[int, _Held] = {}
        """Those that are dirty, the most recently written last."""
        self._wrote = False
        """Since it was last looked up what is clean."""
        self._back: dict[str, float] = defaultdict(float)
        self._survives = _survival()

    def play(self, touches: Sequence[CacheTouch]) -> Mapping[str, float]:
        """What a kernel touches, all at the same time, each from its beginning to its end. Bytes written back, by
        their tags."""
        self._back = defaultdict(float)
        order: list[tuple[float, int, tuple[int, int, int]]] = []
        for number, touch in enumerate(touches):
            granules = touch.granules()
            order += [((place + 0.5) / len(granules), number, one) for place, one in enumerate(granules)]
        if len(touches) > 1:
            order.sort()
        for _, number, (key, low, high) in order:
            touch = touches[number]
            touch.missed += self._touch(key, low, high, touch)
        if self._since:
            self._age()
        return self._back

    def _touch(self, key: int, low: int, high: int, touch: CacheTouch) -> float:
        writes, nbytes = touch.writes, high - low
        held = self._held.pop(key, None)
        missed = float(nbytes)
        if held is None:
            held = _Held(low, high)
        else:
            both = max(min(high, held.high) - max(low, held.low), 0)
            missed -= both * held.alive
            if writes:
                held.dirty *= 1 - both / (held.high - held.low)
            held.low, held.high = min(low, held.low), max(high, held.high)
        held.alive = 1.0
        held.nbytes = (held.high - held.low) * (SHARED if touch.shared else 1.0)
        self._held[key] = held
        if writes:
            missed = 0.0
            held.dirty += nbytes
            held.tag, held.wrote, held.unwritten = touch.tag, nbytes, 1.0
            self._written.pop(key, None)
            self._written[key] = held
            self._wrote = True
        self._since += nbytes
        if self._since > self.capacity / _STEPS:
            self._age()
        return missed

    def _age(self) -> None:
        """By what was touched since, a part of everything has left; by what was written since, a part is clean. An
        account of a step's traffic spends most of its time in these two loops."""
        self._since = 0.0
        depth, gone, back = 0.0, [], self._back
        scale, survives, last = _FINE / self.capacity, self._survives, len(self._survives) - 1
        for key, held in reversed(self._held.items()):
            nbytes = held.nbytes
            place = int((depth + nbytes * 0.5) * scale)
            alive = survives[place] if place < last else 0.0
            depth += nbytes
            if alive < held.alive:
                dirty = held.dirty
                if dirty:
                    held.dirty = left = dirty * (alive / held.alive)
                    back[held.tag] += dirty - left
                held.alive = alive
                if alive == 0.0:
                    gone.append(key)
        for key in gone:
            del self._held[key]
        # Where nothing was written since, nothing more was written after any of them.
        if not self._wrote:
            return
        self._wrote = False
        depth, gone, scale = 0.0, [], _FINE / self._dirty
        for key, held in reversed(self._written.items()):
            dirty = held.dirty
            if not dirty:  # all of it was written back, or has left
                gone.append(key)
                continue
            wrote = held.wrote
            place = int((depth + wrote * 0.5) * scale)
            unwritten = survives[place] if place < last else 0.0
            depth += wrote
            if unwritten < held.unwritten:
                held.dirty = left = dirty * (unwritten / held.unwritten)
                back[held.tag] += dirty - left
                held.unwritten = unwritten
        for key in gone:
            del self._written[key]


def _survival() -> list[float]:
    """Of something after which n / 128 of the capacity was touched, the part that is still there: fewer lines than
    ways fell into its set, by Poisson's law."""
    found = []
    for number in range(4 * _FINE):
        mean = WAYS * number / _FINE
        term, total = math.exp(-mean), 0.0
        for count in range(WAYS):
            total += term
            term *= mean / (count + 1)
        found.append(total if total > 0.001 else 0.0)
    return [*found, 0.0]
