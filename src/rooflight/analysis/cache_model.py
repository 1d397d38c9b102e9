"""A cache as large as the device's, through which the memory of a step is read and written: what reaches the DRAM.

Memory is known by its address, in granules. The cache is one of many small sets, each of which gives up what it used
least recently; addresses spread over the sets by chance. So something survives until about as much as the cache holds
was touched since: not suddenly, but the less probable the more was touched. What was written is written back when it
leaves, or when so much else was written since that it is cleaned; what is overwritten before never reaches the DRAM.
"""

from __future__ import annotations

import math
from collections import OrderedDict, defaultdict
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
    dirty: float
    alive: float = 1.0
    """The part that is still there."""
    tag: str = ""
    """Whose it is that is dirty."""
    copies: float = 1.0
    """How often it is in the cache."""
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
        self._held: OrderedDict[int, _Held] = OrderedDict()
        self._since = 0.0
        self._written: OrderedDict[int, None] = OrderedDict()
        """Granules that are dirty, the most recently written last."""
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
        order.sort(key=lambda entry: entry[:2])
        for _, number, (key, low, high) in order:
            touch = touches[number]
            touch.missed += self._touch(key, low, high, touch)
        self._age()
        return self._back

    def _touch(self, key: int, low: int, high: int, touch: CacheTouch) -> float:
        writes, nbytes = touch.writes, high - low
        held = self._held.pop(key, None)
        missed = float(nbytes)
        dirty = 0.0
        if held is not None:
            both = max(min(high, held.high) - max(low, held.low), 0)
            missed -= both * held.alive
            dirty = held.dirty
            if writes:
                dirty *= 1 - both / (held.high - held.low)
            low, high = min(low, held.low), max(high, held.high)
        if writes:
            dirty, missed = dirty + nbytes, 0.0
        tag = touch.tag if writes else held.tag if held is not None else ""
        copies = SHARED if touch.shared else 1.0
        new = self._held[key] = _Held(low, high, dirty, 1.0, tag, copies)
        if writes:
            new.wrote = nbytes
            self._written[key] = None
            self._written.move_to_end(key)
        elif held is not None:
            new.wrote, new.unwritten = held.wrote, held.unwritten
        self._since += nbytes
        if self._since > self.capacity / _STEPS:
            self._age()
        return missed

    def _age(self) -> None:
        """By what was touched since, a part of everything has left; by what was written since, a part is clean."""
        self._since = 0.0
        depth, gone = 0.0, []
        scale, survives, last = _FINE / self.capacity, self._survives, len(self._survives) - 1
        for key in reversed(self._held):
            held = self._held[key]
            nbytes = (held.high - held.low) * held.copies
            alive = survives[min(int((depth + nbytes * 0.5) * scale), last)]
            depth += nbytes
            if alive < held.alive:
                if held.dirty:
                    self._clean(held, alive / held.alive)
                held.alive = alive
                if alive == 0.0:
                    gone.append(key)
        for key in gone:
            del self._held[key]
        depth, gone, scale = 0.0, [], _FINE / self._dirty
        for key in reversed(self._written):
            written = self._held.get(key)
            if written is None or not written.dirty:
                gone.append(key)
                continue
            left = survives[min(int((depth + written.wrote * 0.5) * scale), last)]
            depth += written.wrote
            if left < written.unwritten:
                self._clean(written, left / written.unwritten)
                written.unwritten = left
        for key in gone:
            del self._written[key]

    def _clean(self, held: _Held, part: float) -> None:
        """That part is dirty still, the rest is written back."""
        left = held.dirty * part
        self._back[held.tag] += held.dirty - left
        held.dirty = left


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
