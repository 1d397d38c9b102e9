"""What of an op's inputs still lies in the cache: by how much memory was touched since each was last used.

The order in which a step touches its storages does not depend on the batch, only the bytes do: it is walked once, and
the distances are then one sum for every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rooflight.ledger import Ledger, Op

USABLE = 0.6
"""Part of the cache that a tensor survives in: it is not shared perfectly, and what is written takes room too."""

Array = npt.NDArray[np.float64]
Sizes = npt.NDArray[np.int64]


class Touches:
    """Every storage that every op reads or writes, in order, over two steps that follow one another."""

    def __init__(self, ops: Sequence[Op]) -> None:
        self._count = len(ops)
        op_of: list[int] = []
        nbytes: list[int] = []
        read: list[bool] = []
        storages: list[int] = []
        for place, op in enumerate(ops):
            if op.kind != "compute":
                continue
            seen: dict[int, int] = {}
            for tensor in op.inputs:
                seen[tensor.storage] = max(seen.get(tensor.storage, 0), tensor.nbytes)
            inputs = len(seen)
            for tensor in op.outputs:
                if tensor.storage not in seen:
                    seen[tensor.storage] = tensor.nbytes
            storages += seen
            nbytes += seen.values()
            op_of += [place] * len(seen)
            read += [True] * inputs + [False] * (len(seen) - inputs)
        before: list[int] = []
        last: dict[int, int] = {}
        for turn in range(2):
            for place, storage in enumerate(storages, turn * len(storages)):
                before.append(last.get(storage, -1))
                last[storage] = place
        self._op_of = np.array([-1] * len(op_of) + op_of, dtype=np.intp)
        self._before = np.array(before, dtype=np.intp)
        self._read = np.array(read * 2, dtype=bool)
        self._nbytes = np.array(nbytes * 2, dtype=np.int64)

    def reuse(self, sized: Callable[[Sizes], Sizes] = lambda nbytes: nbytes) -> Reuse:
        """`sized` gives the bytes of another batch."""
        nbytes = sized(self._nbytes).astype(np.float64)
        touched = np.cumsum(nbytes)
        since = np.where(self._before >= 0, touched - touched[self._before], np.inf)
        counts = self._read & (self._op_of >= 0)
        return Reuse(self._op_of[counts], nbytes[counts], since[counts], self._count)


def touches_of(ledger: Ledger) -> Touches:
    return Touches(ledger.ops)


class Reuse:
    """Every reading of a storage at one batch: by which op, how many bytes, and how many were touched since."""

    def __init__(self, places: npt.NDArray[np.intp], nbytes: Array, since: Array, ops: int) -> None:
        self._places, self._nbytes, self._since, self._ops = places, nbytes, since, ops
        self._total = np.bincount(places, nbytes, ops)

    def uncached_bytes(self, cache_bytes: float) -> tuple[Array, Array]:
        """For every op: the part of its input bytes that a cache of that size cannot hold, however it is kept, and how
        many they are. What was touched since the tensor itself takes the room that is not its own."""
        held = np.clip(cache_bytes - (self._since - self._nbytes), 0.0, self._nbytes)
        return self._by_op(self._nbytes - held)

    def cold_reads(self, cache_bytes: float) -> tuple[Array, Array]:
        """For every op: the part of its input bytes before which more was touched than a cache holds, so that they
        come from the large memory; and how many bytes that are."""
        return self._by_op(self._nbytes * (self._since > cache_bytes))

    def _by_op(self, nbytes: Array) -> tuple[Array, Array]:
        cold = np.bincount(self._places, nbytes, self._ops).astype(np.float64)
        return np.divide(cold, self._total, out=np.zeros(self._ops), where=self._total > 0), cold
