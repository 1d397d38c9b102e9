"""What ops without matrix work go over, where that is more than once: results that are filled before they are added to,
operands that are copied first, long rows that are read for their sums and again for their results.

Found on single ops (benchmarks/h200/results/instructions).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflight.analysis.sweeps.pieces import COPIES, WORKSPACE, Borrowed, Sweep, goes_over, whole_sweep
from rooflight.ledger import Kernel, Op

_THREADS = 2048
"""Of a multiprocessor."""
_ADDS = re.compile(r"upsample_\w+backward|embedding_backward|indexing_backward|scatter_gather|index_add|indexFunc")
"""Kernels that add to what is there: they read it, too."""
_COPIES_FIRST = frozenset({"aten::reflection_pad1d", "aten::reflection_pad2d", "aten::replication_pad2d"})
_LONG_ROWS: tuple[tuple[str, int], ...] = (("cunn_SoftMaxForward<", 3), ("cunn_SoftMaxBackward<", 2))
"""A block goes over its row of the first operand so often: for the largest, for the sum, for the results. `...Smem`
keeps the row."""


def plain_sweeps(op: Op, kernels: Sequence[Kernel], multiprocessors: int) -> Iterator[Sweep]:
    """In the order of the kernels; one sweep where they say nothing."""
    whole = whole_sweep(op)
    launched = [kernel for kernel in kernels if kernel.kind == "kernel"]
    copied = any(kernel.kind == "copy" for kernel in kernels)
    if op.packet == "aten::masked_fill" and copied:
        # A copy of the operand, in which some values are then replaced.
        yield Sweep(whole.reads[:1], whole.writes)
        yield replace(whole, reads=[*whole.writes, *whole.reads[1:]])
    elif op.packet == "aten::_softmax_backward_data" and len(launched) == 2:
        product = _between(op, "gradient times result, before the sums", WORKSPACE)
        yield Sweep(whole.reads, [product])
        yield from _rows(launched[1], replace(whole, reads=[product, *whole.reads[1:2]]), multiprocessors)
    elif len(launched) == 2 and _takes_two(op, launched):
        copy = _between(op, "the operand, moved one way before the other", COPIES)
        yield Sweep(whole.reads, [copy])
        yield replace(whole, reads=[copy])
    elif len(launched) > 1 and "FillFunctor" in launched[0].name and any(_ADDS.search(one.name) for one in launched):
        yield Sweep((), whole.writes)
        yield replace(whole, reads=[*whole.reads, *whole.writes])
    elif len(launched) > 1 and "FillFunctor" in launched[0].name and goes_over(launched[-1], op.outputs[:1]):
        yield Sweep((), whole.writes)
        yield whole
    else:
        yield from _rows(launched[-1] if launched else None, whole, multiprocessors)


def _between(op: Op, what: str, cause: str) -> Borrowed:
    return Borrowed(what, next(op.inputs).nbytes, cause=cause, evidence=f"{what}: written, and read again")


def _takes_two(op: Op, kernels: Sequence[Kernel]) -> bool:
    if op.packet == "aten::roll":
        return all("roll_cuda" in kernel.name for kernel in kernels)
    return op.packet in _COPIES_FIRST and "direct_copy" in kernels[0].name


def _rows(kernel: Kernel | None, whole: Sweep, multiprocessors: int) -> Iterator[Sweep]:
    """As many rows at once as there are blocks that run at once."""
    times = next((times for name, times in _LONG_ROWS if kernel is not None and name in kernel.name), 1)
    if kernel is None or times == 1 or kernel.grid is None or kernel.block is None:
        yield whole
        return
    at_once = max(_THREADS // math.prod(kernel.block), 1) * multiprocessors
    rounds = -(-math.prod(kernel.grid) // at_once)
    for place in range(rounds):
        part = replace(whole, place=place, count=rounds)
        yield from [replace(part, reads=whole.reads[:1], writes=())] * (times - 1)
        yield part
