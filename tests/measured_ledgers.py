"""Measured ledgers made by hand, small enough to add up on paper, and one with the shape of a real training step."""

from __future__ import annotations

import msgspec

import rooflight
from rooflight.ledger import (
    FORMAT_VERSION,
    LOSS,
    OPTIMIZER,
    Cost,
    Header,
    Kernel,
    Ledger,
    MathModes,
    Measurement,
    Module,
    Op,
    Value,
)

COUNTERS = "cupti: range profiler"


def cost(flops: int = 0, read: int = 0, written: int = 0) -> Cost:
    return Cost(
        "by hand",
        macs=flops // 2,
        flops=flops,
        other_flops=0,
        bytes_read=read,
        bytes_written=written,
        flops_causal=flops,
    )


def op(
    index: int, phase: str, module: str, name: str, made: Cost, *, precision: str = "tf32", kind: str = "compute"
) -> Op:
    return Op(
        index=index, phase=phase, module=module, call=0, name=name, ordinal=0, kind=kind, precision=precision, cost=made
    )


def values(**numbers: float) -> dict[str, Value]:
    return {
        name: Value(number, COUNTERS if "flops" in name or "dram" in name else "kineto: kernels")
        for name, number in numbers.items()
    }


def allocated(growth: int, after: int, calls: int) -> dict[str, float]:
    return {"growth_bytes": growth, "allocated_bytes": after, "allocations": calls}


HEADER = Header(
    rooflight="0", torch="2.11.0", model="toy", step="train", target="cuda", batch=8, dtype="fp32",
    math=MathModes(tf32_conv=True, tf32_matmul=True), loss="mse", optimizer="sgd", device="NVIDIA H200",
    conditions={"SM clock": "1,980 MHz", "other processes": "none"},
)  # fmt: skip
MODULES = (
    Module(path="", type="Toy"), Module(path="a", type="Linear", params=10, calls=1),
    Module(path="b", type="Block", calls=1), Module(path="b.c", type="Conv2d", params=20, calls=1),
    Module(path="b.d", type="ReLU", calls=1),
)  # fmt: skip
OPS = (
    op(0, "forward", "a", "aten::mm", cost(1000, 40, 20)),
    op(1, "forward", "b.c", "aten::convolution", cost(4000, 100, 60)),
    op(2, "forward", "b.d", "aten::relu", cost(0, 60, 60), precision="fp32"),
    op(3, "forward", "b", "aten::add.Tensor", cost(0, 120, 60), precision="fp32"),
    op(4, "forward", "b", "aten::view", cost(), kind="view"),
    op(5, "forward", LOSS, "aten::mse_loss", cost(0, 60, 4), precision="fp32"),
    op(6, "backward", "b.c", "aten::convolution_backward", cost(8000, 160, 100)),
    op(7, "optimizer", OPTIMIZER, "aten::_foreach_add_.List", cost(0, 30, 30), precision="fp32"),
)


def toy(**changes: object) -> Ledger:
    """Eager: every op but the view launched; op 5 was too small for the DRAM counters.

    By hand: GPU time 10 + 20 + 3 + 4 + 1 + 50 + 2 = 90 µs; tensor 1,200 + 4,000 + 8,800 = 14,000; CUDA cores
    10 + 6 + 7 + 1 + 4 = 28; DRAM read 50 + 90 + 30 + 100 + 150 + 30 = 450, written 10 + 80 + 40 + 50 + 120 + 30 = 330.
    1,000 bytes are allocated before the step; the convolution's 512 are freed before op 3, the add's 256 before op 6, 256
    more before op 7.
    """
    measured = {
        0: values(kernel_time_s=10e-6, kernels=1, tensor_flops_tf32=1200, cuda_flops_fp32=0, dram_bytes_read=50, dram_bytes_written=10, **allocated(256, 1256, 1)),
        1: values(kernel_time_s=20e-6, kernels=2, tensor_flops_tf32=4000, cuda_flops_fp32=10, dram_bytes_read=90, dram_bytes_written=80, **allocated(512, 1768, 2), workspace_bytes=1024),
        2: values(kernel_time_s=3e-6, kernels=1, tensor_flops_tf32=0, cuda_flops_fp32=6, dram_bytes_read=30, dram_bytes_written=40, **allocated(512, 2280, 1)),
        3: values(kernel_time_s=4e-6, kernels=1, tensor_flops_tf32=0, cuda_flops_fp32=7, dram_bytes_read=100, dram_bytes_written=50, **allocated(256, 2024, 1)),
        5: values(kernel_time_s=1e-6, kernels=1, tensor_flops_tf32=0, cuda_flops_fp32=1, **allocated(512, 2536, 1)),
        6: values(kernel_time_s=50e-6, kernels=3, tensor_flops_tf32=8800, cuda_flops_fp32=0, dram_bytes_read=150, dram_bytes_written=120, **allocated(-512, 1768, 3), workspace_bytes=4096),
        7: values(kernel_time_s=2e-6, kernels=1, tensor_flops_tf32=0, cuda_flops_fp32=4, dram_bytes_read=30, dram_bytes_written=30, **allocated(0, 1512, 0)),
    }  # fmt: skip
    for found in measured.values():
        found["cuda_flops_fp64"] = Value(0, COUNTERS)
    step = {
        "wall_time_s": Value(200e-6, "clock: perf_counter", 190e-6, 230e-6), "gpu_busy_s": Value(86e-6, "kineto: union"),
        "tensor_flops_tf32": Value(14_000, COUNTERS), "cuda_flops_fp32": Value(30, COUNTERS),
        "cuda_flops_fp64": Value(0, COUNTERS), "dram_bytes_read": Value(500, COUNTERS), "dram_bytes_written": Value(330, COUNTERS),
        "peak_allocated_bytes": Value(10_000, "allocator"), "peak_reserved_bytes": Value(2_097_152, "allocator"),
    }  # fmt: skip
    rows = [Measurement(scope="op", ops=(index,), quantities=found) for index, found in measured.items()]
    ledger = Ledger(
        format_version=FORMAT_VERSION, header=HEADER, modules=MODULES, ops=OPS,
        measurements=(*rows, Measurement(scope="step", quantities=step)),
    )  # fmt: skip
    return msgspec.structs.replace(ledger, **changes)


def compiled() -> Ledger:
    """The same step compiled: convolution and ReLU fused, the add with the loss, one kernel of nobody; counters of the
    whole graph only, and none of the CUDA cores, as inside a CUDA graph.

    By hand: 8 + (18) + (3) + 40 + 1 = 70 µs.
    """
    kernels = (
        Kernel(name="gemm", ops=(0,), time_s=8e-6), Kernel(name="triton_conv_relu", ops=(1, 2), time_s=18e-6),
        Kernel(name="triton_add_loss", ops=(3, 5), time_s=3e-6), Kernel(name="wgrad", ops=(6,), time_s=40e-6),
        Kernel(name="memset", kind="set", time_s=1e-6),
    )  # fmt: skip
    step = {
        "wall_time_s": Value(100e-6, "clock: perf_counter"), "gpu_busy_s": Value(70e-6, "kineto: union"),
        "tensor_flops_tf32": Value(14_000, COUNTERS), "dram_bytes_read": Value(250, COUNTERS),
        "dram_bytes_written": Value(165, COUNTERS),
    }  # fmt: skip
    return toy(
        header=msgspec.structs.replace(HEADER, execution="compile"),
        kernels=kernels, measurements=(Measurement(scope="step", quantities=step),),
    )  # fmt: skip


def mnist(batch: int = 64) -> Ledger:
    """A real step's ops with made-up values: 1 µs for every 100 kB that an op must move, and what it must move, moved."""
    ledger = rooflight.estimate("mnist-cnn", batch=batch, step="train")
    rows, kernels, alive = [], [], 0
    for row in ledger.ops:
        if row.kind != "compute" or row.cost is None:
            continue
        time = (row.cost.bytes_read + row.cost.bytes_written) / 1e11 + 2e-6
        alive += row.cost.bytes_written
        tensor = row.cost.flops if row.precision == "tf32" else 0
        found = values(
            kernel_time_s=time, kernels=1, tensor_flops_tf32=tensor, cuda_flops_fp32=row.cost.flops - tensor + row.cost.other_flops,
            dram_bytes_read=row.cost.bytes_read, dram_bytes_written=row.cost.bytes_written,
            cuda_flops_fp64=0, **allocated(row.cost.bytes_written, alive, 1),
        )  # fmt: skip
        rows.append(Measurement(scope="op", ops=(row.index,), quantities=found))
        kernels.append(
            Kernel(name=f"void at::native::{row.packet[6:]}_kernel<float>(int)", ops=(row.index,), time_s=time)
        )
    sums = {
        name: sum(row.quantities[name].value for row in rows)
        for name in rows[0].quantities
        if "flops" in name or "dram" in name
    }
    step = {name: Value(value, COUNTERS) for name, value in sums.items()}
    busy = sum(kernel.time_s for kernel in kernels)
    step["gpu_busy_s"] = Value(busy, "kineto: union of kernel intervals, median of 5 steps")
    step["wall_time_s"] = Value(busy * 2.5, "clock: perf_counter, median of 20 steps", busy * 2.4, busy * 3)
    return msgspec.structs.replace(
        ledger, header=msgspec.structs.replace(ledger.header, device="NVIDIA H200", conditions={"SM clock": "1,980 MHz"}),
        kernels=tuple(kernels), measurements=(*rows, Measurement(scope="step", quantities=step)),
    )  # fmt: skip
