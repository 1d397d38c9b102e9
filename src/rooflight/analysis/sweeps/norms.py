"""What the kernels of normalisations go over: sums first, then results, so that operands are read twice."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from rooflight.analysis.sweeps.pieces import Sweep, goes_over, whole_sweep
from rooflight.ledger import Kernel, Op

NORMS = frozenset({
    "aten::native_batch_norm", "aten::cudnn_batch_norm", "aten::native_batch_norm_backward", "aten::native_group_norm",
    "aten::cudnn_batch_norm_backward", "aten::native_group_norm_backward", "aten::native_layer_norm_backward",
})  # fmt: skip
_THREADS = 2048
"""Of a multiprocessor."""
_A_CHANNEL_A_BLOCK = re.compile(r"bn_fw_tr_1C11_kernel_NCHW|bn_bw_1C11_kernel_new|batch_norm_backward_kernel")
"""A block goes over a channel twice: for its sums, then for its results."""
_SUMS = re.compile(
    r"batch_norm_collect_statistics|RowwiseMoments|ComputeInternalGradients|batch_norm_backward_reduce"
    r"|GammaBetaBackwardCUDAKernelTemplate|cuComputePartGradGammaBeta"
)
"""Kernels that only read: they come before the one that writes the results, or behind it."""


def norm_sweeps(op: Op, kernels: Sequence[Kernel], multiprocessors: int) -> Iterator[Sweep]:
    """As its kernels are named; one sweep where they say nothing."""
    whole = whole_sweep(op)
    size = max((tensor.nbytes for tensor in op.inputs), default=0)
    again = [tensor for tensor in op.inputs if tensor.nbytes == size]
    blocks = [kernel for kernel in kernels if _A_CHANNEL_A_BLOCK.search(kernel.name)]
    if blocks:
        threads = math.prod(blocks[0].block or (512,))
        at_once = max(_THREADS // threads, 1) * multiprocessors
        rounds = max(-(-again[0].shape[1] // at_once), 1) if len(again[0].shape) > 1 else 1
        for place in range(rounds):
            yield Sweep(again, (), place=place, count=rounds)
            yield Sweep(whole.reads, whole.writes, place=place, count=rounds)
        return
    written = False
    for kernel in kernels:
        if _SUMS.search(kernel.name):
            yield Sweep(again, ())
        elif not written and (goes_over(kernel, again[:1]) or "layer_norm" in kernel.name):
            written = True
            yield whole
    if not written:
        yield whole
