"""Kernels of an imported log under the roofs of their device: those whose FLOPs, bytes and time are all known."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.analysis.verdicts import Judge, Verdict
from rooflight.ledger import Ledger
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS, Number
from rooflight.reporting.sections.kernel_groups import KernelGroup, groups
from rooflight.summary.sums import OpGroup, Whole

ALL_KERNELS = "all kernels"
_COUNTED = Whole(executed=True, cuda=True, dram=True)


def timed_groups(ledger: Ledger) -> list[KernelGroup]:
    """Kernels by name, the slowest first. Copies and fills are none."""
    named = groups(ledger)
    return [group for group in named if group.time_s and all(kernel.kind == "kernel" for kernel in group.kernels)]


def all_of(some: Sequence[KernelGroup]) -> KernelGroup:
    """Those of which everything is known, together."""
    whole = [group for group in some if group.flops is not None and group.dram_bytes is not None]
    return KernelGroup(ALL_KERNELS, [kernel for group in whole for kernel in group.kernels], gathered=True)


def kernel_verdict(judge: Judge, group: KernelGroup) -> Verdict:
    """As counted; without a place where a counter is missing, and why."""
    plain = Verdict(name=group.name, time_s=group.time_s, kernels=group.calls)
    if group.flops is None or group.dram_bytes is None:
        what = "FLOPs were" if group.flops is None else "DRAM bytes were"
        return Verdict(name=group.name, time_s=group.time_s, reason=f"not all of its {what} counted")
    names = (*TENSOR_FLOPS, *CUDA_FLOPS, *DRAM_BYTES)
    values: dict[str, Number] = {name: value for name in names if (value := group.sum(name)) is not None}
    return judge.judged(plain, values, OpGroup((), ()), _COUNTED)
