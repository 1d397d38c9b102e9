"""Memory that is taken and given back as it is asked for: a CPU's, where torch caches nothing and rounds nothing."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.memory.allocator import AllocatorFull, CachingAllocator, Held, MemoryBlock, Sized


class PlainAllocator(CachingAllocator):
    """Reserved is what is allocated."""

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
