"""Where the storages of a step lie: by torch's caching allocator, simulated, in a step that follows another."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from rooflight.ledger import Ledger, Storage
from rooflight.memory.allocator import CachingAllocator, Held


class StorageAddresses:
    """Plays a step op by op. What is freed is given out again, mostly for something of the same size."""

    def __init__(self, ledger: Ledger, borrowed: Mapping[int, int]) -> None:
        """`borrowed`: bytes that an op asks for beside its results and gives back, by its index."""
        self._allocator = CachingAllocator()
        self._held: Held = {}
        self._address: dict[int, int] = {}
        self._storages = {storage.id: storage for storage in ledger.storages if not storage.host}
        self._born: dict[int, list[Storage]] = defaultdict(list)
        self._freed: dict[int, list[Storage]] = defaultdict(list)
        self._borrowed = borrowed
        for storage in self._storages.values():
            if storage.born is None:
                self._make(storage)
            else:
                self._born[storage.born].append(storage)
            if storage.dies is not None:
                self._freed[storage.dies].append(storage)
        for op in ledger.ops:  # a step before the step: then there is memory to be given out again
            self.begin(op.index)
        for storage in self._storages.values():
            if storage.born is not None:
                self._free(storage)
            elif storage.id not in self._held:
                self._make(storage)

    def begin(self, op: int) -> int | None:
        """Before an op runs: what is no longer held goes, its results are made. The address of what it borrows."""
        for storage in self._freed[op]:
            self._free(storage)
        for storage in self._born[op]:
            self._make(storage)
        nbytes = self._borrowed.get(op, 0)
        if not nbytes:
            return None
        block = self._allocator.allocate(nbytes)
        address = None if block is None else block.address
        self._allocator.free(block)
        return address

    def of(self, storage: int) -> int | None:
        """Where it begins; `None`: nowhere on the device."""
        return self._address.get(storage)

    def nbytes(self, storage: int) -> int:
        found = self._storages.get(storage)
        return found.nbytes if found is not None else 0

    def _make(self, storage: Storage) -> None:
        self._allocator.play((storage.id,), {storage.id: storage.nbytes}, self._held)
        block = self._held.get(storage.id)
        if block is not None:
            self._address[storage.id] = block.address

    def _free(self, storage: Storage) -> None:
        self._allocator.play((~storage.id,), (), self._held)
