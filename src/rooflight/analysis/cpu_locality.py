"""How far back what an op touches was touched last, in bytes: what lies further back than a cache is large has left it.

A step follows another of the same kind: what was there before it was last touched in the step before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from rooflight.ledger import Ledger, Op

LOOK_UPS = ("aten::embedding", "aten::gather", "aten::index", "aten::index_select")
"""They read a part of what they are given."""


class TouchedTensor(NamedTuple):
    """A storage, as far as an op goes through it."""

    nbytes: int
    since: int
    """Bytes that were touched since it was, its own included; what is new lies where something was freed."""


def locality_of(ledger: Ledger) -> dict[int, list[TouchedTensor]]:
    """By op."""
    in_step = 0
    lasts: dict[int, int] = {}
    for op in ledger.ops:
        for storage, nbytes in _storages(op):
            in_step += nbytes
            lasts[storage] = in_step
    known = {storage.id for storage in ledger.storages if storage.born is None}
    last = {storage: lasts[storage] - in_step for storage in known if storage in lasts}
    now = 0
    found: dict[int, list[TouchedTensor]] = {}
    for op in ledger.ops:
        touched = []
        for storage, nbytes in _storages(op):
            now += nbytes
            since = now - last[storage] if storage in last else 0
            touched.append(TouchedTensor(nbytes, since))
            last[storage] = now
        found[op.index] = touched
    return found


class Apart(NamedTuple):
    """How much a step goes through, in bytes, between ops that run the same code."""

    own: int
    """Since the last op of the same name; of those that oneDNN computes, since the last such."""
    any: int
    """Since the last op of whatever name: what all of them run."""


def calls_apart(ledger: Ledger) -> dict[int, Apart]:
    """By op; of the first of a name, since the last one in the step before."""
    in_onednn = {index for kernel in ledger.kernels if kernel.kind == "primitive" for index in kernel.ops}
    now, last = 0, 0
    ended: dict[str, int] = {}
    apart = {}
    for _ in range(2):
        for op in ledger.ops:
            code = "oneDNN" if op.index in in_onednn else op.packet
            apart[op.index] = Apart(now - ended.get(code, 0), last)
            last = sum(nbytes for _, nbytes in _storages(op))
            now += last
            ended[code] = now
    return apart


def _storages(op: Op) -> Iterator[tuple[int, int]]:
    """Storages that a computing op reads and writes, once each: id and bytes."""
    if op.kind != "compute":
        return
    seen: dict[int, int] = {}
    most = max((tensor.nbytes for tensor in op.outputs), default=0) if op.packet in LOOK_UPS else None
    for tensor in (*op.inputs, *op.outputs):
        nbytes = tensor.nbytes if most is None else min(tensor.nbytes, most)
        seen[tensor.storage] = max(nbytes, seen.get(tensor.storage, 0))
    yield from seen.items()
