"""Memory that is taken and given back as it is asked for: a CPU's, where torch caches nothing and rounds nothing."""

from __future__ import annotations

from rooflight.memory.allocator import Block, CachingAllocator, OutOfMemory


class PlainAllocator(CachingAllocator):
    """Reserved is what is allocated."""

    def allocate(self, nbytes: int, address: int | None = None) -> Block | None:
        if nbytes <= 0:
            return None
        if not self._has_room(nbytes):
            raise OutOfMemory(nbytes)
        block = Block(self._large, 0, nbytes)
        self._reserve(nbytes)
        self.allocated = self.requested = self.reserved
        self.peak_allocated = self.peak_requested = self.peak_reserved
        return block

    def free(self, block: Block | None) -> None:
        if block is not None:
            self.reserved -= block.size
            self.allocated = self.requested = self.reserved
