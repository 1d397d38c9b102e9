"""Why the bytes a step moved from and to DRAM are not the compulsory ones, op by op.

The step's memory is played through a cache of the device's size, kernel by kernel where their names and grids say what
they read and write, at the addresses that torch's allocator would give. What the counters of DRAM saw is not used.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rooflight.analysis.cache_model import Cache, CacheTouch
from rooflight.analysis.cause import Cause, Explained, kernels_of_ops
from rooflight.analysis.storage_addresses import StorageAddresses
from rooflight.analysis.sweeps.op_sweeps import in_columns, sweeps_of
from rooflight.analysis.sweeps.pieces import COPIES, LOCAL, LOCAL_MEMORY, PARTS, WORKSPACE, Borrowed, Piece, Sweep
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Ledger, Op, Tensor, Value
from rooflight.metrics import DRAM_BYTES
from rooflight.ops.kernel_names import role_of
from rooflight.ops.kernel_products import product_of_each
from rooflight.summary.facts import compulsory_bytes_of, op_values

HITS = "L2 hits"
LATER = "written back later"
EARLIER = "write-back of earlier ops"
PASSES = "second passes"
REREAD = "re-reads"

USABLE = 0.8
"""Part of the L2 that keeps what a step will use again."""
DIRTY = 0.4
"""Part of the L2 in which written bytes wait: the oldest of more is written back, and stays to be read. Both parts were
fitted on steps of random networks (benchmarks/h200/random_nets.py)."""
MOST_DIRTY = 0.5
"""As much may wait: a cause names only the bytes that are written back even then. docs/why.md has the reason."""

_FIXED = {LOCAL_MEMORY: 1 << 50, PARTS: 1 << 51}
"""Memory that is there before the step, at addresses that nothing else has."""


@dataclass
class OpBytes:
    """What an op did in the played cache."""

    hits: float = 0.0
    """Read for the first time, and still there."""
    passes: float = 0.0
    """Read once more, and no longer there."""
    rereads: float = 0.0
    back: float = 0.0
    """Results of ops that left while it ran."""
    beside: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """What was read of borrowed memory and no longer there, by cause."""
    beside_back: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """What was written to it, and left."""
    notes: dict[str, str] = field(default_factory=dict)


def traffic_of_ops(ledger: Ledger, dirty: float = DIRTY) -> list[tuple[Cause, ...]]:
    """Of every op, why its DRAM bytes are not the compulsory ones: told without counters. Empty where the device or its
    cache is not known."""
    device = recognise_name(ledger.header.device)
    if device is None or device.l2_bytes is None:
        return []
    return [
        tuple(_causes(op, moved)) for op, moved in zip(ledger.ops, played_bytes(ledger, device, dirty), strict=True)
    ]


def explain_traffic(ledger: Ledger) -> list[Explained]:
    """Every op whose DRAM bytes were counted. Empty where the device or its cache is not known."""
    causes = traffic_of_ops(ledger, MOST_DIRTY)
    if not causes:
        return []
    rows = []
    for op, values, of_op in zip(ledger.ops, op_values(ledger), causes, strict=True):
        if op.cost is None or not any(name in values for name in DRAM_BYTES):
            continue
        moved = sum(values[name].value for name in DRAM_BYTES if name in values)
        rows.append(
            Explained(op, compulsory_bytes_of(op), moved, _as_the_l2_counted(op, of_op, values.get("l2_bytes")))
        )
    return rows


def _as_the_l2_counted(op: Op, causes: tuple[Cause, ...], counted: Value | None) -> tuple[Cause, ...]:
    """With `--level l2`: no more is read once more than the L2 was asked for beyond the compulsory bytes."""
    again = math.fsum(cause.amount for cause in causes if cause.name in (PASSES, REREAD))
    if counted is None or not again:
        return causes
    part = min(1.0, max(counted.value - compulsory_bytes_of(op), 0.0) / again)
    said = f"; {counted.value:,.0f} bytes went through the L2, as counted"
    return tuple(
        Cause(cause.name, part * cause.amount, cause.evidence + said) if cause.name in (PASSES, REREAD) else cause
        for cause in causes
    )


def _causes(op: Op, bytes_: OpBytes) -> Iterator[Cause]:
    written = (op.cost.bytes_written or 0) if op.cost is not None else 0
    if bytes_.hits:
        yield Cause(HITS, -bytes_.hits, "read while still in the L2, by what was touched since")
    for name in (COPIES, WORKSPACE, LOCAL):
        amount = bytes_.beside.get(name, 0.0) + bytes_.beside_back.get(name, 0.0)
        if amount:
            yield Cause(name, amount, bytes_.notes.get(name, "left by earlier ops, written back while this one runs"))
    if bytes_.passes:
        yield Cause(PASSES, bytes_.passes, "kernels that go over the same operands or results once more")
    if bytes_.rereads:
        yield Cause(REREAD, bytes_.rereads, bytes_.notes.get(REREAD, ""))
    if written:
        yield Cause(LATER, -written, "what an op writes stays in the L2 until it has to leave")
    if bytes_.back:
        yield Cause(EARLIER, bytes_.back, "what leaves the L2 while the op runs, its own results among it")


def played_bytes(ledger: Ledger, device: Device, dirty: float) -> list[OpBytes]:
    """Of every op, in their order. The cache begins cold, as counters do."""
    assert device.l2_bytes is not None
    cache = Cache(USABLE * device.l2_bytes.value, dirty * device.l2_bytes.value)
    kernels, sms = kernels_of_ops(ledger), int(device.sms.value)
    sweeps = [
        sweeps_of(op, kernels[op.index], sms, _workspace(values)) if op.kind == "compute" else []
        for op, values in zip(ledger.ops, op_values(ledger), strict=True)
    ]
    addresses = StorageAddresses(ledger, {op.index: _size(each) for op, each in zip(ledger.ops, sweeps, strict=True)})
    played = []
    for op, each in zip(ledger.ops, sweeps, strict=True):
        traffic = _OpTraffic(cache, op, addresses, device)
        traffic.play(each)
        traffic.rereads([kernel for kernel in kernels[op.index] if kernel.kind == "kernel"])
        played.append(traffic.bytes)
    return played


def _workspace(values: Mapping[str, Value]) -> int:
    found = values.get("workspace_bytes")
    return int(found.value) if found is not None else 0


def _borrowed(sweeps: Sequence[Sweep]) -> dict[Borrowed, int]:
    """Where each piece lies in what the op borrows: one behind the other, from the beginning in every phase."""
    found: dict[Borrowed, int] = {}
    ends: dict[int, int] = defaultdict(int)
    for sweep in sweeps:
        for piece in (*sweep.reads, *sweep.writes):
            if isinstance(piece, Borrowed) and piece not in found and piece.name not in _FIXED:
                found[piece] = ends[piece.phase]
                ends[piece.phase] += piece.nbytes
    return found


def _size(sweeps: Sequence[Sweep]) -> int:
    return max((place + piece.nbytes for piece, place in _borrowed(sweeps).items()), default=0)


def _place(tensor: Tensor, size: int) -> int:
    """Bytes between the beginning of its storage and a view. One with gaps, as queries between keys and values, is
    taken to lie in one piece, before or behind the others."""
    extent = 1
    for stride, count in sorted(zip(tensor.strides or (), tensor.shape, strict=False)):
        if stride > extent and count > 1:
            parts = max(size // max(tensor.nbytes, 1), 1)
            return tensor.offset % stride * parts // stride * tensor.nbytes
        extent = max(extent, stride * count)
    return tensor.offset * tensor.itemsize


def _done(tensor: Tensor, sweep: Sweep) -> tuple[int, int, int]:
    """Which part of a storage a sweep reads."""
    return (tensor.storage, 0, 1) if tensor in sweep.again else (tensor.storage, sweep.place, sweep.count)


class _OpTraffic:
    """One op going through the cache."""

    def __init__(self, cache: Cache, op: Op, addresses: StorageAddresses, device: Device) -> None:
        self._cache, self._op, self._device, self._addresses = cache, op, device, addresses
        self._needed = {tensor.storage for tensor in op.inputs}
        """Storages that the mathematics reads."""
        self._done: set[tuple[int, int, int]] = set()
        """What was read of them: storage, place and count of a sweep."""
        self._borrowed: dict[Borrowed, int] = {}
        self.bytes = OpBytes()

    def play(self, sweeps: Sequence[Sweep]) -> None:
        start = self._addresses.begin(self._op.index) or 0
        self._borrowed = {piece: start + place for piece, place in _borrowed(sweeps).items()}
        for sweep in sweeps:
            self._sweep(sweep)

    def _sweep(self, sweep: Sweep) -> None:
        read = [(piece, touch) for piece in sweep.reads if (touch := self._touch(piece, sweep)) is not None]
        written = [touch for piece in sweep.writes if (touch := self._touch(piece, sweep, writes=True)) is not None]
        for name, nbytes in self._cache.play([*(touch for _, touch in read), *written]).items():
            if name:
                self.bytes.beside_back[name] += nbytes
            else:
                self.bytes.back += nbytes
        for piece in (*sweep.reads, *sweep.writes):
            if isinstance(piece, Borrowed):
                self.bytes.notes.setdefault(piece.cause, piece.evidence)
        for piece, touch in read:
            if isinstance(piece, Borrowed):
                self.bytes.beside[piece.cause] += touch.missed
            elif piece.storage in self._needed and _done(piece, sweep) not in self._done:
                self.bytes.hits += touch.nbytes - touch.missed
            elif piece in sweep.again:
                self.bytes.rereads += touch.missed
                self.bytes.notes[REREAD] = sweep.why
            else:
                self.bytes.passes += touch.missed
        self._done |= {_done(piece, sweep) for piece in sweep.reads if isinstance(piece, Tensor)}

    def _touch(self, piece: Piece, sweep: Sweep, *, writes: bool = False) -> CacheTouch | None:
        place, count = (0, 1) if piece in sweep.again else (sweep.place, sweep.count)
        nbytes = (piece.nbytes if writes else round(sweep.part * piece.nbytes)) // count
        skipped = place * nbytes
        shared = not writes and piece in sweep.shared
        if isinstance(piece, Borrowed):
            fixed = _FIXED.get(piece.name)
            start = self._borrowed[piece] if fixed is None else fixed
            # What threads keep for themselves lies in the half of the cache that is theirs, and in its own.
            both = shared or piece.cause == LOCAL
            return CacheTouch(start + skipped, nbytes, (start, piece.nbytes), writes, piece.cause, both)
        address = self._addresses.of(piece.storage)
        if address is None:
            return None
        size = self._addresses.nbytes(piece.storage)
        place = min(_place(piece, size) + skipped, max(size - nbytes, 0))
        return CacheTouch(address + place, nbytes, (address, size), writes, shared=shared)

    def rereads(self, kernels: Sequence[Kernel]) -> None:
        """Operands too large for the cache are read again by later waves of blocks, where no sweep tells how."""
        names = [role_of(kernel.name) for kernel in kernels]
        for name, product in zip(names, product_of_each(self._op, names), strict=True):
            if name is None or name.tile is None or product is None or product.batch > 1 or product.taps > 1:
                continue
            if in_columns(name):
                continue
            size = next((tensor.itemsize for tensor in self._op.inputs), 4)
            once = (product.rows + product.columns) * product.depth * size
            smaller = min(product.rows, product.columns) * product.depth * size
            # An operand that stays in the cache beside all else is there for every row or column of the other.
            if once <= self._cache.capacity or smaller <= self._cache.capacity / 4:
                continue
            sms = int(self._device.sms.value)
            tiles = math.ceil(product.rows / name.tile[0]) * math.ceil(product.columns / name.tile[1])
            waves = math.ceil(tiles / sms)
            side = math.isqrt(sms)
            rows, columns = min(side * name.tile[0], product.rows), min(side * name.tile[1], product.columns)
            a_wave = (rows + columns) * product.depth * size
            more = max(waves * a_wave - once, 0)
            if more:
                self.bytes.rereads += more
                self.bytes.notes[REREAD] = f"{waves} waves of {sms} tiles, each with its own rows and columns"
