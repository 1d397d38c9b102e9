"""Memory that threads use for themselves: arrays which no registers can hold. It goes through the L2 as all else does.

Which kernels have how much was found on single ops (benchmarks/h200/instructions.py): a copy of a few kilobytes by
`tensorTransformGeneric` moves 24 MB.
"""

from __future__ import annotations

import math

from rooflight.analysis.sweeps.pieces import LOCAL, LOCAL_MEMORY, Borrowed
from rooflight.ledger import Kernel

_BYTES: tuple[tuple[str, int, int], ...] = (
    ("tensorTransformGeneric", 88, 2048),
    ("genericTranspose_kernel", 192, 2048),
    ("fmha_cutlassF_f32_aligned_64x64_rf", 512, 512),
)
"""Part of the kernel's name, bytes of a thread, threads of a multiprocessor."""


def local_memory(kernel: Kernel, multiprocessors: int) -> list[Borrowed]:
    """What the threads of a kernel write for themselves, once for every round of those that run at the same time: each
    writes over what the one before has left."""
    for part, nbytes, threads in _BYTES:
        if part in kernel.name and kernel.grid is not None and kernel.block is not None:
            count = math.prod(kernel.grid) * math.prod(kernel.block)
            rounds, last = divmod(count, threads * multiprocessors)
            said = f"{nbytes} bytes for each of {count:,} threads of {part}, which no registers hold"
            sizes = [threads * multiprocessors] * rounds + ([last] if last else [])
            return [Borrowed(LOCAL_MEMORY, nbytes * size, cause=LOCAL, evidence=said) for size in sizes]
    return []
