"""How many FLOPs the CUDA cores execute for an op without matrix work: as counted for the most similar single op.

An exponential is a dozen instructions, a layer norm thirty for every value: no formula of the mathematics says so, and
compilers decide it. So single ops were counted on a GPU (benchmarks/h200/instructions.py; `benchmarks/instructions.py`
makes the table of it), and an op is told from the most similar of them: same name and type, then same arguments and
order in memory, then nearest sizes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import msgspec

from rooflight.files import read_bytes
from rooflight.ledger import Op, Tensor

FOLDER = Path(__file__).parent / "counted"
_FLAGS = ("exponent", "approximate", "training", "train", "dim", "kernel_size", "is_causal")
"""Arguments that choose another kernel."""
_FARTHEST = 9.0
"""Doublings, all sizes together: what is farther away says nothing of the op."""


class Point(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """One counted op."""

    name: str
    dtype: str
    flags: str
    layout: str
    sizes: tuple[float, ...]
    """Doublings: of the innermost size, of the next, of the rest."""
    per_element: float


class InstructionTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was counted on one device, with what."""

    device: str
    torch: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Told:
    flops: float
    like: str
    """The counted op, in words."""


class Instructions:
    """Counted ops of one device, ready to be asked."""

    def __init__(self, table: InstructionTable) -> None:
        self.device = table.device
        self._by_name: dict[tuple[str, str], list[Point]] = defaultdict(list)
        self._by_kernel: dict[tuple[str, ...], list[Point]] = defaultdict(list)
        """Those of a name whose arguments and order in memory are the same: nearer than all others of it."""
        for point in table.points:
            self._by_name[point.name, point.dtype].append(point)
            self._by_kernel[point.name, point.dtype, point.flags, point.layout].append(point)

    def of(self, op: Op) -> Told | None:
        """`None` where no op of that name was counted near it."""
        like = point_of(op, 0)
        return None if like is None else self.near(like, elements(op))

    def near(self, like: Point, count: int) -> Told | None:
        name = next((name for name in (like.name, _bare(like.name)) if (name, like.dtype) in self._by_name), None)
        if name is None:
            return None
        counted = self._by_kernel.get((name, like.dtype, like.flags, like.layout)) or self._by_name[name, like.dtype]
        nearest = min(counted, key=lambda point: _distance(point, like))
        if _distance(nearest, like)[1] > _FARTHEST:
            return None
        return Told(
            nearest.per_element * count,
            f"{nearest.per_element:.3g} for each of {count:,}, as counted of {nearest.name} on {self.device}",
        )


def _distance(a: Point, b: Point) -> tuple[int, float]:
    """Arguments and the order in memory choose the kernel, sizes matter less: of counted ops that are left out one by
    one, the others tell most so."""
    apart = sum(abs(x - y) for x, y in zip(a.sizes, b.sizes, strict=True))
    return 2 * (a.flags != b.flags) + (a.layout != b.layout), apart


def _bare(name: str) -> str:
    """In place or not, the arithmetic is the same: `aten::add_.Tensor` is `aten::add.Tensor`."""
    packet, dot, overload = name.partition(".")
    return f"{packet.removesuffix('_')}{dot}{overload}"


def point_of(op: Op, flops: float) -> Point | None:
    """An op as a point of the table; `None` for one without floating-point tensors."""
    tensors = [*op.inputs, *op.outputs]
    floating = [tensor for tensor in tensors if tensor.dtype in ("fp32", "bf16", "fp16", "fp64")]
    count = elements(op)
    if not floating or not count:
        return None
    dtype = "bf16" if any(tensor.dtype in ("bf16", "fp16") for tensor in floating) else floating[0].dtype
    largest = max(tensors, key=lambda tensor: tensor.numel)
    return Point(op.name, dtype, _flags(op), _layout(op, largest), _sizes(op, largest), flops / count)


def elements(op: Op) -> int:
    """Of the largest tensor; of all that a list holds; of an attention its scores."""
    if op.has("query") and "attention" in op.name:
        query, key = op.tensor("query"), op.tensor("key")
        return math.prod(query.shape[:-1]) * key.shape[-2]
    if op.packet.startswith("aten::_foreach"):
        return sum(tensor.numel for tensor in op.tensors("self"))
    return max((tensor.numel for tensor in (*op.inputs, *op.outputs)), default=0)


def _flags(op: Op) -> str:
    flags = [f"{name}={op.args[name]}" for name in _FLAGS if op.args.get(name) is not None]
    dropout = op.args.get("dropout_p")
    if isinstance(dropout, (int, float)) and dropout > 0:
        flags.append("dropout")
    return " ".join(flags)


def _layout(op: Op, largest: Tensor) -> str:
    if op.packet.startswith("aten::_foreach"):
        return "list"
    shapes = {tensor.shape for tensor in (*op.inputs, *op.outputs) if tensor.numel > 1}
    strided = any(tensor.strides is not None for tensor in (*op.inputs, *op.outputs))
    return ("strided" if strided else "plain") + (" broadcast" if len(shapes) > 1 else "")


def _sizes(op: Op, largest: Tensor) -> tuple[float, ...]:
    if op.has("query") and "attention" in op.name:
        query = op.tensor("query")
        return doublings(query.shape[-1], op.tensor("key").shape[-2], query.shape[-2])
    if op.packet.startswith("aten::_foreach"):
        held = op.tensors("self")
        return doublings(max(sum(tensor.numel for tensor in held) // max(len(held), 1), 1), 1, 1)
    shape = largest.shape or (1,)
    if len(shape) == 4:
        return doublings(shape[2] * shape[3], shape[1], shape[0])
    return doublings(shape[-1], math.prod(shape[:-1]), 1)


def doublings(*sizes: int) -> tuple[float, ...]:
    return tuple(round(math.log2(max(size, 1)), 3) for size in sizes)


@lru_cache(maxsize=4)
def instructions(device: str | None) -> Instructions | None:
    """Of this device; `None` where nobody counted."""
    path = FOLDER / f"{device}.json.gz"
    if device is None or not path.is_file():
        return None
    return Instructions(msgspec.json.decode(read_bytes(path, what="table of counted ops"), type=InstructionTable))
