"""What of an op's inputs still lies in the cache: by how much memory was touched since each was last used."""

from __future__ import annotations

from collections.abc import Iterable

from rooflight.ledger import Op, Tensor

USABLE = 0.6
"""Part of the cache that a tensor survives in: it is not shared perfectly, and what is written takes room too."""


def cold_shares(ops: Iterable[Op], cache_bytes: float) -> list[float]:
    """For every op, the part of its input bytes that must come from the large memory. The step before this one was
    the same: what the last ops touched is warm for the first."""
    sequence = list(ops)
    room = USABLE * cache_bytes
    touched = 0.0
    last: dict[int, float] = {}
    shares: list[float] = []
    for turn in range(2):
        for op in sequence:
            cold = total = 0.0
            seen: dict[int, int] = {}
            for tensor in op.inputs:
                seen[tensor.storage] = max(seen.get(tensor.storage, 0), tensor.nbytes)
            for storage, nbytes in seen.items():
                total += nbytes
                if touched - last.get(storage, float("-inf")) > room:
                    cold += nbytes
            if turn:
                shares.append(cold / total if total else 0.0)
            if op.kind != "compute":
                continue
            for storage, nbytes in _touched(op, seen).items():
                touched += nbytes
                last[storage] = touched
    return shares


def _touched(op: Op, seen: dict[int, int]) -> dict[int, int]:
    found = dict(seen)
    for tensor in op.outputs:
        if isinstance(tensor, Tensor):
            found[tensor.storage] = max(found.get(tensor.storage, 0), tensor.nbytes)
    return found
