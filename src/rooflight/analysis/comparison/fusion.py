"""What fused kernels keep inside: values that one op makes and another takes, in the same kernel, need not go through
memory. Worked out from the ops that kernels belong to and from the storages that these read and write; what was counted
is not used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rooflight.ledger import Ledger, Op, Storage, Tensor, tensors_in


@dataclass
class _Version:
    """What lies in a storage from one write to the next."""

    storage: Storage
    maker: int | None
    readers: list[tuple[int, int]] = field(default_factory=list)
    """Ops and the bytes that they read of it."""
    written: int = 0
    is_last: bool = True


@dataclass(frozen=True)
class KeptInside:
    """Bytes that fused kernels neither write nor read."""

    reads: int = 0
    writes: int = 0
    values: int = 0
    """Of so many tensors."""
    unstored: frozenset[int] = frozenset()
    """Storages that are never made."""

    @property
    def bytes(self) -> int:
        return self.reads + self.writes


def kept_inside(ledger: Ledger) -> KeptInside:
    """Over all kernels that belong to several ops."""
    kernels_of: dict[int, set[int]] = defaultdict(set)
    for number, kernel in enumerate(ledger.kernels):
        if len(kernel.ops) > 1:
            for index in kernel.ops:
                kernels_of[index].add(number)
    if not kernels_of:
        return KeptInside()
    reads = writes = values = 0
    unstored: set[int] = set()
    stored: set[int] = set()
    for version in _versions(ledger):
        near = kernels_of.get(version.maker, set()) if version.maker is not None else set()
        inside = [nbytes for op, nbytes in version.readers if near & kernels_of.get(op, set())]
        # Two ops of one kernel that read the same from memory read it once.
        outside = [(op, nbytes) for op, nbytes in version.readers if not near & kernels_of.get(op, set())]
        together = _read_together(outside, kernels_of)
        reads += sum(inside) + together
        outlives = version.is_last and version.storage.dies is None
        gone = bool(inside) and not outside and not outlives
        if gone:
            writes += version.written
        values += bool(inside or together)
        if version.maker is not None:
            (unstored if gone else stored).add(version.storage.id)
    return KeptInside(reads, writes, values, frozenset(unstored - stored))


def _read_together(readers: Sequence[tuple[int, int]], kernels_of: dict[int, set[int]]) -> int:
    """Bytes of all reads but one in every kernel."""
    seen: set[int] = set()
    spared = 0
    for op, nbytes in readers:
        kernels = kernels_of.get(op, set())
        if kernels & seen:
            spared += nbytes
        seen |= kernels
    return spared


def _versions(ledger: Ledger) -> Iterator[_Version]:
    storages = {storage.id: storage for storage in ledger.storages if not storage.host}
    now: dict[int, _Version] = {}
    for op in ledger.ops:
        if op.kind != "compute":
            continue
        for tensor in _distinct(list(op.inputs)):
            if tensor.storage in storages:
                version = now.setdefault(tensor.storage, _Version(storages[tensor.storage], None))
                version.readers.append((op.index, tensor.nbytes))
        for tensor in _distinct(_written(op)):
            if tensor.storage not in storages:
                continue
            if (before := now.get(tensor.storage)) is not None:
                before.is_last = False
                yield before
            now[tensor.storage] = _Version(storages[tensor.storage], op.index, written=tensor.nbytes)
    yield from now.values()


def _written(op: Op) -> list[Tensor]:
    return [*op.outputs, *tensors_in(op.args[name] for name in op.mutates if name in op.args)]


def _distinct(tensors: Sequence[Tensor]) -> list[Tensor]:
    """One of every storage, the largest."""
    largest: dict[int, Tensor] = {}
    for tensor in tensors:
        held = largest.get(tensor.storage)
        if held is None or tensor.nbytes > held.nbytes:
            largest[tensor.storage] = tensor
    return list(largest.values())
