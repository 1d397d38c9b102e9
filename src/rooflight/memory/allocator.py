"""A model of torch's caching allocator for CUDA: what it hands out, what it holds of the device, and where it fails.

Requests are rounded to 512 bytes. Those of up to 1 MiB are cut from segments of 2 MiB, those under 10 MiB from segments
of 20 MiB, larger ones get segments of their own, rounded to 2 MiB. The smallest free block that is large enough is
taken; what is left of it is split off, among large blocks only if it exceeds 1 MiB: the rest is handed out with it, so
that more is allocated than was asked for. Freed blocks stay reserved and grow together with free neighbours in their
segment. When the device is full, free segments are given back and the request is tried again.

With expandable segments there is one range of addresses for each pool, to which pages are mapped as needed: free blocks
grow instead of lying side by side.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Mapping, Sequence

from rooflight.memory.settings import MIB, AllocatorSettings

BLOCK = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
OWN_SEGMENT = 10 * MIB
"""From here on a request gets a segment of its own."""
ROUNDED_TO = 2 * MIB
_PAGES = 1 << 60
"""Room for addresses of one expandable segment: more than any device has."""


class AllocatorFull(Exception):
    """The device cannot hold this request, after everything that was free has been given back."""

    def __init__(self, nbytes: int) -> None:
        super().__init__(f"no room for {nbytes:,} bytes")
        self.nbytes = nbytes


class MemoryBlock:
    """A piece of a segment. Its neighbours are those of the same segment."""

    __slots__ = ("address", "following", "free_since", "given", "mapped", "pool", "preceding", "size")

    def __init__(
        self,
        pool: _BlockPool,
        address: int,
        size: int,
        preceding: MemoryBlock | None = None,
        following: MemoryBlock | None = None,
    ) -> None:
        self.pool = pool
        self.address = address
        self.size = size
        self.preceding = preceding
        self.following = following
        self.given = False
        self.mapped = True
        self.free_since = 0

    @property
    def is_split(self) -> bool:
        return self.preceding is not None or self.following is not None

    def split_off(self, size: int) -> MemoryBlock:
        """Keep so many bytes of it; the rest is a block of its own, which nobody has been given."""
        rest = MemoryBlock(self.pool, self.address + size, self.size - size, self, self.following)
        if self.following is not None:
            self.following.preceding = rest
        self.following, self.size = rest, size
        return rest


Held = dict[int, MemoryBlock]
"""What an event asked for, by its number."""
Sized = Sequence[int] | Mapping[int, int]
"""Bytes, by number."""


class _BlockPool:
    """Free blocks, by size and address; with expandable segments, also the addresses that nothing is mapped to."""

    def __init__(self, segment: int, *, small: bool = False, least_rest: int = BLOCK) -> None:
        self.small = small
        self.segment = segment
        self.least_rest = least_rest
        """What is left of a block is split off from here on."""
        self.free: list[tuple[int, int, MemoryBlock]] = []
        self.unmapped: list[tuple[int, MemoryBlock]] = []
        self.searches = 0

    def add(self, block: MemoryBlock) -> None:
        block.free_since = self.searches
        insort(self.free, (block.size, block.address, block))

    def take(self, block: MemoryBlock) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


class CachingAllocator:
    """One device, one stream. `capacity_bytes`: what the allocator may hold; `None`: as much as it wants.
    `fraction_bytes`: what a memory fraction allows the process, whether or not it ends there. Where it does, torch asks
    before it goes to the device; else the device says when there is no more."""

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        capacity_bytes: int | None = None,
        fraction_bytes: int | None = None,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.capacity_bytes = capacity_bytes
        self._is_fraction = capacity_bytes is not None and capacity_bytes == fraction_bytes
        self.allocated = self.reserved = 0
        self.peak_allocated = self.peak_reserved = 0
        self.retries = 0
        """How often free segments had to be given back for a request."""
        self._small = _BlockPool(SMALL_SEGMENT, small=True)
        self._large = _BlockPool(
            self.settings.large_segment_bytes, least_rest=BLOCK if self.settings.expandable_segments else SMALL + BLOCK
        )
        threshold = self.settings.garbage_collection_threshold
        self._collects_from = int(threshold * fraction_bytes) if threshold and fraction_bytes is not None else None
        self._next_address = 0
        # Asked for at every request, so kept at hand.
        self._unsplit = self.settings.max_split_bytes
        self._expands = self.settings.expandable_segments
        self._divides = any(parts > 1 for parts in self.settings.roundup_power2_divisions)

    def reset_peaks(self) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def allocate(self, nbytes: int, address: int | None = None) -> MemoryBlock | None:
        """A block for so many bytes; `None` for none, which takes no memory. `address`: where the driver would put it
        if it is asked for another segment; by itself the model goes on where the last one ended."""
        if address is not None:
            self._next_address = address
        held: Held = {}
        self.play((0,), (nbytes,), held)
        return held.get(0)

    def free(self, block: MemoryBlock | None) -> None:
        if block is not None:
            self.play((~0,), (), {0: block})

    def play(self, events: Sequence[int], sizes: Sized, held: Held) -> int:
        """One event after the other: `n` asks for `sizes[n]` bytes, `~n` frees them. `held`: the blocks of those that
        are there, before and after. The place of the event that made the peak, or -1.

        A question takes hundreds of thousands of events: what most of them do is written out here, in local names.
        """
        small, large, simple = self._small, self._large, self._unsplit is None and not self._expands
        divides = self._divides
        allocated, highest, where = self.allocated, self.peak_allocated, -1
        try:
            for place, event in enumerate(events):
                if event < 0:
                    freed = held.pop(~event, None)
                    if freed is None:
                        continue
                    size = freed.size
                    allocated -= size
                    freed.given = False
                    pool = freed.pool
                    free = pool.free
                    other = freed.preceding
                    if other is not None and not other.given and other.mapped:
                        address = other.address
                        del free[bisect_left(free, (other.size, address))]
                        freed.address = address
                        size += other.size
                        freed.preceding = beyond = other.preceding
                        if beyond is not None:
                            beyond.following = freed
                    other = freed.following
                    if other is not None and not other.given and other.mapped:
                        del free[bisect_left(free, (other.size, other.address))]
                        size += other.size
                        freed.following = beyond = other.following
                        if beyond is not None:
                            beyond.preceding = freed
                    freed.size = size
                    freed.free_since = pool.searches
                    insort(free, (size, freed.address, freed))
                    continue
                nbytes = sizes[event]
                if nbytes <= 0:
                    continue
                size = self.rounded(nbytes) if divides else (nbytes + BLOCK - 1) // BLOCK * BLOCK
                pool = small if size <= SMALL else large
                pool.searches += 1
                free = pool.free
                position = bisect_left(free, (size,))
                if simple and position < len(free):
                    block: MemoryBlock = free.pop(position)[2]
                else:
                    block = self._fitting(pool, size, position) or self._new(pool, size)
                rest = block.size - size
                if rest >= pool.least_rest and (simple or self._may_split(pool, size)):
                    address, following = block.address + size, block.following
                    block.following = remainder = MemoryBlock(pool, address, rest, block, following)
                    if following is not None:
                        following.preceding = remainder
                    block.size = size
                    remainder.free_since = pool.searches
                    insort(free, (rest, address, remainder))
                block.given = True
                held[event] = block
                allocated += block.size
                if allocated > highest:
                    highest, where = allocated, place
        finally:
            self.allocated, self.peak_allocated = allocated, highest
        return where

    def empty_cache(self) -> None:
        """Give every free segment back to the device."""
        for pool in (self._small, self._large):
            for _, _, block in list(pool.free):
                if self._expands:
                    self._unmap(block)
                elif not block.is_split:
                    self._give_back(block)

    def rounded(self, nbytes: int) -> int:
        if self._divides:
            parts = self.settings.divisions(nbytes)
            if parts > 1 and nbytes > BLOCK * parts:
                return _rounded_to_parts(nbytes, parts)
        return -(-nbytes // BLOCK) * BLOCK

    def _may_split(self, pool: _BlockPool, size: int) -> bool:
        return pool.small or self._expands or self._unsplit is None or size < self._unsplit

    def _fitting(self, pool: _BlockPool, size: int, place: int) -> MemoryBlock | None:
        """The smallest free block that is large enough: that at this place, if it may be given out."""
        free = pool.free
        if place == len(free):
            return None
        if self._expands:
            # A block at the end of what is mapped counts as large as it could grow.
            while place + 1 < len(free) and _growable(free[place + 1][2]) < _growable(free[place][2]):
                place += 1
        block = free[place][2]
        if self._unsplit is not None:
            if size < self._unsplit <= block.size:
                return None
            if size >= self._unsplit and block.size >= size + self.settings.max_non_split_rounding_bytes:
                return None
        del free[place]
        return block

    def _new(self, pool: _BlockPool, size: int) -> MemoryBlock:
        if self._collects_from is not None:
            self._collect_garbage(self._collects_from)
        block = self._from_device(pool, size)
        if block is None and self._give_back_oversized(pool, size):
            block = self._from_device(pool, size)
        if block is None:
            self.retries += 1
            self.empty_cache()
            block = self._from_device(pool, size)
        if block is None:
            raise AllocatorFull(size)
        return block

    def _from_device(self, pool: _BlockPool, size: int) -> MemoryBlock | None:
        nbytes = pool.segment if pool.small or size < OWN_SEGMENT else -(-size // ROUNDED_TO) * ROUNDED_TO
        if self._expands:
            # A fraction is asked before anything is rounded to pages, as if none of them were mapped: the last page may
            # lie beyond it. A device that is full refuses the pages that are missing.
            return self._mapped(pool, size) if self._has_room(nbytes) or not self._is_fraction else None
        if not self._has_room(nbytes):
            return None
        block = MemoryBlock(pool, self._next_address, nbytes)
        self._next_address += nbytes
        self._reserve(nbytes)
        return block

    def _has_room(self, nbytes: int) -> bool:
        return self.capacity_bytes is None or self.reserved + nbytes <= self.capacity_bytes

    def _reserve(self, nbytes: int) -> None:
        self.reserved += nbytes
        if self.reserved > self.peak_reserved:
            self.peak_reserved = self.reserved

    def _give_back(self, block: MemoryBlock) -> None:
        block.pool.take(block)
        self.reserved -= block.size

    def _give_back_oversized(self, pool: _BlockPool, size: int) -> bool:
        """Blocks too large to be split serve no smaller request: one that is large enough goes first, or several."""
        if self._unsplit is None:
            return False
        wanted = max(size, self._unsplit)
        place = bisect_left(pool.free, (wanted,))
        if place < len(pool.free) and not self._expands:
            if pool.free[place][2].is_split:
                return False
            self._give_back(pool.free[place][2])
            return True
        released = 0
        for _, _, block in reversed(list(pool.free)):
            if released >= wanted or block.size < self._unsplit:
                break
            if not block.is_split:
                released += block.size
                self._give_back(block)
        return released >= wanted

    def _collect_garbage(self, allowed: int) -> None:
        """Give back the free segments that were passed over most often, until no more than allowed is reserved."""
        if self.reserved <= allowed:
            return
        target, released = self.reserved - allowed, 0
        pool = self._large
        ages = {block.address: pool.searches - block.free_since for _, _, block in pool.free if not block.is_split}
        freed = True
        while ages and freed and released < target:
            oldest = sum(ages.values()) / len(ages)
            freed = False
            for _, address, block in list(pool.free):
                if ages.get(address, -1) >= oldest:
                    freed = True
                    released += block.size
                    del ages[address]
                    self._give_back(block)

    def _merge(self, block: MemoryBlock, other: MemoryBlock | None) -> None:
        """Take a free neighbour into the block."""
        if other is None or other.given or other.mapped != block.mapped:
            return
        pool = block.pool
        if other.mapped:
            pool.take(other)
        else:
            pool.unmapped.remove((other.address, other))
        if other is block.preceding:
            block.address = other.address
            block.preceding = other.preceding
            if block.preceding is not None:
                block.preceding.following = block
        else:
            block.following = other.following
            if block.following is not None:
                block.following.preceding = block
        block.size += other.size

    # Expandable segments.
    def _mapped(self, pool: _BlockPool, size: int) -> MemoryBlock | None:
        """Map pages to addresses next to a free block, or to the first that are free; `None`: there are too few."""
        block = self._expandable(pool, size)
        if not block.mapped and not self._map(block, min(block.size, size)):
            return None
        while block.size < size:
            following = block.following
            assert following is not None
            if not self._map(following, min(size - block.size, following.size)):
                return None
            block = following
        pool.take(block)
        return block

    def _expandable(self, pool: _BlockPool, size: int) -> MemoryBlock:
        for _, unmapped in pool.unmapped:
            start = unmapped
            if unmapped.preceding is not None and not unmapped.preceding.given:
                start = unmapped.preceding
            room, at = 0, start
            while room < size and at is not None and not at.given:
                room += at.size
                at = at.following  # type: ignore[assignment]
            if room >= size:
                return start
        page = pool.segment
        block = MemoryBlock(pool, -(-self._next_address // page) * page, _PAGES * page)
        self._next_address = block.address + block.size
        block.mapped = False
        insort(pool.unmapped, (block.address, block))
        return block

    def _map(self, block: MemoryBlock, size: int) -> bool:
        """Map whole pages to the beginning of unmapped addresses; free neighbours become part of the block. Not if the
        device has fewer."""
        pool = block.pool
        nbytes = -(-size // pool.segment) * pool.segment
        if not (self._is_fraction or self._has_room(nbytes)):
            return False
        pool.unmapped.remove((block.address, block))
        block.mapped = True
        if nbytes < block.size:
            rest = block.split_off(nbytes)
            rest.mapped = False
            insort(pool.unmapped, (rest.address, rest))
        self._reserve(nbytes)
        for other in (block.preceding, block.following):
            self._merge(block, other)
        pool.add(block)
        return True

    def _unmap(self, block: MemoryBlock) -> None:
        """Give the whole pages inside a free block back."""
        pool = block.pool
        start = -(-block.address // pool.segment) * pool.segment
        end = (block.address + block.size) // pool.segment * pool.segment
        if end <= start:
            return
        pool.take(block)
        if block.address < start:
            before, block = block, block.split_off(start - block.address)
            pool.add(before)
        if end < block.address + block.size:
            pool.add(block.split_off(end - block.address))
        block.mapped = False
        self.reserved -= block.size
        for other in (block.preceding, block.following):
            self._merge(block, other)
        insort(pool.unmapped, (block.address, block))


class PlainAllocator(CachingAllocator):
    """Memory that is taken and given back as asked for: a CPU's, where torch caches and rounds nothing. Reserved is
    what is allocated."""

    def play(self, events: Sequence[int], sizes: Sized, held: Held) -> int:
        where = -1
        for place, event in enumerate(events):
            if event < 0:
                block = held.pop(~event, None)
                self.reserved -= 0 if block is None else block.size
            elif (nbytes := sizes[event]) > 0:
                if not self._has_room(nbytes):
                    raise AllocatorFull(nbytes)
                held[event] = MemoryBlock(self._large, 0, nbytes)
                before = self.peak_reserved
                self._reserve(nbytes)
                where = place if self.peak_reserved > before else where
            self.allocated, self.peak_allocated = self.reserved, self.peak_reserved
        return where


def _growable(block: MemoryBlock) -> int:
    following = block.following
    return block.size + (following.size if following is not None and not following.mapped else 0)


def _rounded_to_parts(nbytes: int, parts: int) -> int:
    """Up to the next of so many equal steps between two powers of two."""
    if nbytes & (nbytes - 1) == 0:
        return nbytes
    floor = 1 << (nbytes.bit_length() - 1)
    step = floor // parts
    return nbytes if not step else -(-nbytes // step) * step
