"""Why the bytes a step moved from and to DRAM are not the compulsory ones, op by op.

The step's storages are played through a cache of the device's size, kernel by kernel where their names and grids say
what they read and write. What the counters saw is not used.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rooflight.analysis.cache_model import Cache, Key
from rooflight.analysis.cause import Cause, Explained, kernels_of_ops
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Ledger, Op, Storage, Tensor
from rooflight.metrics import DRAM_BYTES
from rooflight.ops.kernel_names import KernelRole, role_of
from rooflight.ops.kernel_products import product_of_each
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.registry import products_of
from rooflight.summary.facts import compulsory_bytes_of, op_values

HITS = "L2 hits"
LATER = "written back later"
EARLIER = "write-back of earlier ops"
COPIES = "layout copies"
PASSES = "second passes"
REREAD = "re-reads"

USABLE = 0.5
"""Part of the L2 that keeps what a step will use again. Of 0.3 to 0.8 the one with the least error on single ops in a
row (`python benchmarks/why.py --cache`)."""


@dataclass
class _Bytes:
    """What an op did in the played cache."""

    hits: int = 0
    back: int = 0
    copies: int = 0
    passes: int = 0
    again: int = 0
    notes: dict[str, str] = field(default_factory=dict)


def explain_traffic(ledger: Ledger) -> list[Explained]:
    """Every op whose DRAM bytes were counted. Empty where the device or its cache is not known."""
    device = recognise_name(ledger.header.device)
    if device is None or device.l2_bytes is None:
        return []
    played = _played(ledger, device)
    rows = []
    for op, values in zip(ledger.ops, op_values(ledger), strict=True):
        if op.cost is None or not any(name in values for name in DRAM_BYTES):
            continue
        moved = sum(values[name].value for name in DRAM_BYTES if name in values)
        rows.append(Explained(op, compulsory_bytes_of(op), moved, tuple(_causes(op, played[op.index]))))
    return rows


def _causes(op: Op, bytes_: _Bytes) -> Iterator[Cause]:
    written = (op.cost.bytes_written or 0) if op.cost is not None else 0
    if bytes_.hits:
        yield Cause(HITS, -bytes_.hits, "read while still in the L2, by what was touched since")
    if bytes_.copies:
        yield Cause(COPIES, bytes_.copies, bytes_.notes.get(COPIES, ""))
    if bytes_.passes:
        yield Cause(PASSES, bytes_.passes, "kernels that go over the same operands or results once more, as for a bias")
    if bytes_.again:
        yield Cause(REREAD, bytes_.again, bytes_.notes.get(REREAD, ""))
    if written:
        yield Cause(LATER, -written, "what an op writes stays in the L2 until it has to leave")
    if bytes_.back:
        yield Cause(EARLIER, bytes_.back, "what has to leave the L2 while the op runs, its own results among it")


def _played(ledger: Ledger, device: Device) -> list[_Bytes]:
    assert device.l2_bytes is not None
    cache = Cache(round(USABLE * device.l2_bytes.value))
    kernels = kernels_of_ops(ledger)
    deaths: dict[int, list[Storage]] = defaultdict(list)
    for storage in ledger.storages:
        if storage.dies is not None:
            deaths[storage.dies].append(storage)
    sizes = {storage.id: storage for storage in ledger.storages}
    played = []
    for op in ledger.ops:
        for storage in deaths[op.index]:
            cache.free(storage.id, storage.nbytes)
        traffic = _OpTraffic(cache, op, sizes, device)
        if op.kind == "compute":
            traffic.play([kernel for kernel in kernels[op.index] if kernel.kind == "kernel"])
        played.append(traffic.bytes)
    return played


class _OpTraffic:
    """One op going through the cache."""

    def __init__(self, cache: Cache, op: Op, storages: dict[int, Storage], device: Device) -> None:
        self._cache, self._op, self._storages, self._device = cache, op, storages, device
        self._versions: dict[int, Key] = {}
        """Storages of which a copy in another order was made."""
        self._needed = {tensor.storage for tensor in op.inputs}
        """Storages that the mathematics reads, as long as the op has not read them."""
        self.bytes = _Bytes()

    def play(self, kernels: Sequence[Kernel]) -> None:
        names = [role_of(kernel.name) for kernel in kernels]
        is_convolution = self._op.packet.startswith("aten::convolution") and bool(products_of(self._op))
        if not is_convolution or not any(_is(name, "matrix") for name in names):
            self._whole()
            self._rereads(names)
            return
        products = product_of_each(self._op, names)
        for place, (kernel, name) in enumerate(zip(kernels, names, strict=True)):
            if name is None:
                continue
            if name.role == "layout":
                self._layout(kernel)
            elif name.role == "matrix":
                later = [
                    one
                    for one, other in zip(kernels[place + 1 :], names[place + 1 :], strict=True)
                    if _is(other, "layout")
                ]
                self._matrix(products[place], later)
            elif name.role == "pointwise" and self._op.outputs:
                self._read(self._op.outputs[0])
                self._write(self._op.outputs[0])
            elif name.role == "reduction" and self._op.packet == "aten::convolution_backward":
                self._read(self._op.tensor("grad_output"))
        self._rereads(names)

    def _whole(self) -> None:
        """An op that reads its inputs and writes its results."""
        op = self._op
        cost = op.cost
        distinct: dict[int, int] = {}
        for tensor in op.inputs:
            distinct[tensor.storage] = max(distinct.get(tensor.storage, 0), tensor.nbytes)
        asked = sum(distinct.values())
        # A gather reads some of its table only.
        part = min(1.0, (cost.bytes_read or 0) / asked) if cost is not None and asked else 0.0
        for storage, nbytes in distinct.items():
            if part:
                self._read_bytes(storage, round(part * nbytes))
        written = list(op.outputs) + [tensor for name in op.mutates for tensor in op.tensors(name)]
        if cost is None or cost.bytes_written:
            for tensor in {one.storage: one for one in written}.values():
                self._write(tensor)

    def _matrix(self, product: MatrixProduct | None, later: Sequence[Kernel]) -> None:
        op = self._op
        if op.packet == "aten::convolution" or product is None:
            operands = [op.tensor("input"), op.tensor("weight")]
            result = op.outputs[0]
        elif product.does == "input gradient":
            operands, result = [op.tensor("grad_output"), op.tensor("weight")], op.outputs[0]
        else:
            operands = [op.tensor("grad_output"), op.tensor("input")]
            shape = op.tensor("weight").shape  # gradients that nobody asked for have no place among the outputs
            result = next((out for out in op.outputs if out.shape == shape), op.outputs[-1])
        for tensor in operands:
            self._read(tensor)
        if any(reorders(kernel, result) for kernel in later):
            self._temporary(result)
        else:
            self._write(result)

    def _layout(self, kernel: Kernel) -> None:
        """A copy in another order: of an operand before the product, of the result behind it."""
        copied = [tensor for tensor in (*self._op.inputs, *self._op.outputs) if reorders(kernel, tensor)]
        results = {tensor.storage for tensor in self._op.outputs}
        if not copied:
            return
        self.bytes.notes.setdefault(
            COPIES, f"{kernel.name.split('<')[0].split('::')[-1]} and others copy operands and results"
        )
        versions = [tensor for tensor in copied if tensor.storage in results and tensor.storage in self._versions]
        if versions:
            self._read(versions[0])
            del self._versions[versions[0].storage]
            self._write(versions[0])
            return
        operands = [tensor for tensor in copied if tensor.storage not in results]
        fresh = [tensor for tensor in operands if tensor.storage not in self._versions]
        if operands:
            tensor = (fresh or operands)[0]
            self._versions.pop(tensor.storage, None)
            self._read(tensor)
            self._temporary(tensor)

    def _temporary(self, tensor: Tensor) -> None:
        key = ("copy", tensor.storage)
        self._versions[tensor.storage] = key
        self.bytes.copies += self._cache.write(key, tensor.nbytes, of=tensor.nbytes)

    def _read(self, tensor: Tensor) -> None:
        self._read_bytes(tensor.storage, tensor.nbytes)

    def _read_bytes(self, storage: int, nbytes: int) -> None:
        if self._is_host(storage):
            return
        version = self._versions.get(storage)
        missed, back = self._cache.read(version or storage, nbytes)
        self.bytes.back += back
        if version is None and storage in self._needed:
            self._needed.discard(storage)
            self.bytes.hits += nbytes - missed
        elif version is None:
            self.bytes.passes += missed
        else:
            self.bytes.copies += missed

    def _write(self, tensor: Tensor) -> None:
        if self._is_host(tensor.storage):
            return
        storage = self._storages.get(tensor.storage)
        born = storage.nbytes if storage is not None and storage.born == self._op.index else None
        self.bytes.back += self._cache.write(tensor.storage, tensor.nbytes, of=born)

    def _is_host(self, number: int) -> bool:
        storage = self._storages.get(number)
        return storage is not None and storage.host

    def _rereads(self, names: Sequence[KernelRole | None]) -> None:
        """Operands too large for the cache are read again by later waves of blocks."""
        for name, product in zip(names, product_of_each(self._op, names), strict=True):
            if name is None or name.tile is None or product is None or product.batch > 1 or product.taps > 1:
                continue
            size = next((tensor.itemsize for tensor in self._op.inputs), 4)
            once = (product.rows + product.columns) * product.depth * size
            if once <= self._cache.capacity:
                continue
            sms = int(self._device.sms.value)
            tiles = math.ceil(product.rows / name.tile[0]) * math.ceil(product.columns / name.tile[1])
            waves = math.ceil(tiles / sms)
            side = math.isqrt(sms)
            rows, columns = min(side * name.tile[0], product.rows), min(side * name.tile[1], product.columns)
            a_wave = (rows + columns) * product.depth * size
            more = max(waves * a_wave - once, 0)
            if more:
                self.bytes.again += more
                self.bytes.notes[REREAD] = f"{waves} waves of {sms} tiles, each with its own rows and columns"


def reorders(kernel: Kernel, tensor: Tensor) -> bool:
    """Does the grid of a layout kernel show the tensor's sizes: 32 by 32 places a block, one layer of them an image?"""
    if kernel.grid is None or len(tensor.shape) != 4:
        return False
    images, channels, *sides = tensor.shape
    return kernel.grid == (-(-math.prod(sides) // 32), -(-channels // 32), images)


def _is(name: KernelRole | None, role: str) -> bool:
    return name is not None and name.role == role
