"""What one kernel goes over: operands, results, and memory that nobody asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflight.ledger import Kernel, Op, Tensor

COPIES = "layout copies"
LOCAL = "local memory of threads"
WORKSPACE = "workspace"

LOCAL_MEMORY = "local memory"
"""Of all threads that run at the same time: at the same place for every kernel."""
PARTS = "parts of sums"
"""The buffer that cuBLAS keeps for products whose depth is split: always the same."""


@dataclass(frozen=True)
class Borrowed:
    """Memory beside operands and results. What is equal is the same memory."""

    name: str
    nbytes: int
    phase: int = 0
    """What is borrowed in one phase of an op is given back before the next."""
    cause: str = WORKSPACE
    """What its traffic is called."""
    evidence: str = field(default="", compare=False)


Piece = Tensor | Borrowed


@dataclass(frozen=True)
class Sweep:
    """One kernel: what it reads and what it writes."""

    reads: Sequence[Piece]
    writes: Sequence[Piece]
    part: float = 1.0
    """Of what it reads, how much: a gather needs some of its table only."""
    shared: Sequence[Piece] = ()
    """What many multiprocessors read: operands of a product that has several tiles in the other direction."""
    place: int = 0
    count: int = 1
    """Which of so many equal parts of everything it goes over."""
    again: Sequence[Piece] = ()
    """But all of these, in every part."""
    why: str = ""
    """And why that is so."""


def whole_sweep(op: Op) -> Sweep:
    """Every input read and every result written, once."""
    cost = op.cost
    read = list({(one.storage, one.offset, one.shape, one.strides): one for one in op.inputs}.values())
    asked = sum(tensor.nbytes for tensor in read)
    part = min(1.0, (cost.bytes_read or 0) / asked) if cost is not None and asked else 0.0
    if cost is not None and not cost.bytes_written:
        return Sweep(read if part else (), (), part)
    written = [*op.outputs, *(tensor for name in op.mutates for tensor in op.tensors(name))]
    return Sweep(read if part else (), list({(one.storage, one.offset): one for one in written}.values()), part)


def goes_over(kernel: Kernel, tensors: Sequence[Tensor]) -> bool:
    """Has it threads for all values of some tensor, sixteen a thread at most?"""
    if kernel.grid is None or kernel.block is None:
        return True
    threads = math.prod(kernel.grid) * math.prod(kernel.block)
    return any(threads * 16 >= tensor.numel for tensor in tensors)
