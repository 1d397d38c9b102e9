"""The names of measured quantities: what each is, in which unit, and how it adds up.

A `Measurement` may also hold counters under their own names (`dram__bytes_read.sum`); what stands here is what
rooflight itself computes, compares and shows. Units stand in the names.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import Literal

Unit = Literal["flop", "byte", "second", "count"]


@dataclass(frozen=True)
class Quantity:
    """`additive`: the value of several ops is the sum of theirs."""

    name: str
    unit: Unit
    about: str
    additive: bool = True


TENSOR_PRECISIONS = ("tf32", "bf16", "fp16", "fp8", "fp4", "fp64", "int8", "int4", "int1")
CUDA_PRECISIONS = ("fp32", "fp16", "fp64")
CPU_PRECISIONS = ("fp32", "fp64", "bf16", "any")
"""`any`: AMD's Zen 2 to 4 do not tell precisions apart; a machine never gives it beside the others."""

QUANTITIES: dict[str, Quantity] = {
    quantity.name: quantity
    for quantity in (
        # Executed work: what the counters saw, an FMA as 2.
        *(Quantity(f"tensor_flops_{p}", "flop", f"tensor cores' operations on {p} values") for p in TENSOR_PRECISIONS),
        *(Quantity(f"cuda_flops_{p}", "flop", f"{p} add + mul + 2 x fma of the CUDA cores") for p in CUDA_PRECISIONS),
        *(Quantity(f"cpu_flops_{p}", "flop", f"{p} operations of the CPU's vector units") for p in CPU_PRECISIONS),
        # Traffic.
        Quantity("dram_bytes_read", "byte", "read from device memory"),
        Quantity("dram_bytes_written", "byte", "written to device memory"),
        Quantity("l2_bytes", "byte", "through the L2 cache"),
        Quantity("l1_bytes", "byte", "through the L1 caches"),
        # Time. Each has a scope: they are never put in one ratio.
        Quantity("wall_time_s", "second", "a whole step by the host's clock, from still to still", additive=False),
        Quantity("gpu_busy_s", "second", "union of all kernel intervals", additive=False),
        Quantity("kernel_time_s", "second", "durations of its kernels"),
        Quantity("host_time_s", "second", "time of the call on the CPU, for a step that runs there"),
        Quantity("gpu_span_s", "second", "first to last work on the GPU, gaps included", additive=False),
        Quantity("kernels", "count", "kernel launches"),
        Quantity("executions", "count", "how often a region was run", additive=False),
        Quantity("timed_executions", "count", "how many of them its time is the median of", additive=False),
        Quantity("executed_flops", "flop", "all units together, for a region", additive=False),
        # Memory, as torch's allocator sees it.
        Quantity("growth_bytes", "byte", "allocated after minus before, from op to op: no sum", additive=False),
        Quantity("allocations", "count", "calls of the allocator"),
        Quantity("output_bytes", "byte", "new storage that the results lie in, as the allocator rounds it"),
        Quantity("workspace_bytes", "byte", "most taken and given back inside an op: no sum", additive=False),
        Quantity("allocated_bytes", "byte", "allocated when it was over: the timeline", additive=False),
        Quantity("peak_allocated_bytes", "byte", "most bytes in tensors at one time", additive=False),
        Quantity("peak_reserved_bytes", "byte", "most bytes the allocator held of the device", additive=False),
        Quantity("allocated_before_bytes", "byte", "allocated when the step began", additive=False),
        Quantity("outside_bytes", "byte", "outside the allocator: CUDA context and libraries", additive=False),
        Quantity("resident_bytes", "byte", "memory of the process after the step", additive=False),
        Quantity("peak_resident_bytes", "byte", "most memory of the process; origin: since when", additive=False),
    )
}  # fmt: skip

TENSOR_FLOPS = tuple(f"tensor_flops_{p}" for p in TENSOR_PRECISIONS)
CUDA_FLOPS = tuple(f"cuda_flops_{p}" for p in CUDA_PRECISIONS)
CPU_FLOPS = tuple(f"cpu_flops_{p}" for p in CPU_PRECISIONS)
EXECUTED_FLOPS = (*TENSOR_FLOPS, *CUDA_FLOPS, *CPU_FLOPS)
"""Their sum is what was executed. Integer tensor work counts as operations, as peaks do."""
DRAM_BYTES = ("dram_bytes_read", "dram_bytes_written")
COUNTED = frozenset((*EXECUTED_FLOPS, *DRAM_BYTES, "l2_bytes", "l1_bytes"))
"""What only hardware counters tell."""


def cuda_is_known(names: Container[str], *, half: bool) -> bool:
    """Do these tell all FLOPs of the CUDA cores? Those on 16 bits are left out where no tensor has 16 (`half`)."""
    needed = CUDA_FLOPS if half else [name for name in CUDA_FLOPS if name != "cuda_flops_fp16"]
    return all(name in names for name in needed)


def executed_is_known(names: Container[str], *, half: bool) -> bool:
    """Do these tell all that was executed? A tensor pipe that stood still is there as 0, so one name of them is enough;
    without the CUDA cores the sum would be that of a part.
    """
    if any(name in names for name in CPU_FLOPS):
        return True
    return any(name in names for name in TENSOR_FLOPS) and cuda_is_known(names, half=half)
