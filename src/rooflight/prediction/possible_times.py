"""The least time that a single task can take on a device: no honest measurement is below it.

FLOPs at the peak of the unit, and bytes that no cache can hold at the bandwidth of the memory. A convolution of more
than one tap may be done with fewer multiplications than its formula counts (Winograd, FFT), never with fewer bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rooflight.hardware.device import Device
from rooflight.ops.kernel_task import Task, convolves, itemsize
from rooflight.prediction.calibrated.baseline import columns, convolution_bytes, matrix_flops, task_bytes

ALLOWANCE = 0.9
"""Of the least time: clocks and memories of single boards run some per cent above the data sheet."""
_FAST_CONVOLUTION = 4.0
"""Multiplications that Winograd's F(4x4, 3x3) saves at most: 36 where the formula counts 144."""
_COMPULSORY = {
    "batch-norm-cudnn-train": 2 / 3, "batch-norm-native-train": 2 / 3, "batch-norm-cudnn-backward": 3 / 5,
    "batch-norm-native-backward": 3 / 5, "layer-norm-backward": 3 / 4, "group-norm-backward": 3 / 5,
    "embedding-forward": 1 / 2, "embedding-backward": 0.0, "index": 1 / 2, "gather": 1 / 2,
    "index-put": 0.0, "index-add": 0.0, "scatter-add": 0.0, "max-pool-backward": 1 / 2, "avg-pool-backward": 1 / 2,
    "max-pool3d-backward": 1 / 2, "avg-pool3d-backward": 1 / 2, "nll-forward": 0.0,
}  # fmt: skip
"""What part of a family's bytes must be moved at least: the baseline counts some tensors twice, as kernels do, and rows
of a table that are read several times may stay in a cache."""


@dataclass(frozen=True)
class LeastTime:
    """Seconds at the roof that bounds a task, and the roof in words."""

    seconds: float
    roof: str


def least_time(task: Task, device: Device) -> LeastTime:
    """Of a task whose inputs may lie in the cache."""
    numbers = np.array([task.numbers], dtype=np.float64)
    named = columns(task.family, numbers)
    compute = LeastTime(0.0, "")
    flops = matrix_flops(task.family, named)
    peak = device.peak(task.precision)
    if flops is not None and peak is not None:
        count = float(flops[0])
        if convolves(task.family) and float(named["r"][0] * named["s"][0]) > 1:
            count /= _FAST_CONVOLUTION
        compute = LeastTime(count / peak.value, f"{peak.value / 1e12:,.4g} TFLOP/s in {task.precision}")
    bandwidth = device.bandwidth_bytes_per_s.value
    moved = max(0.0, _bytes(task, named) - _cache(device))
    memory = LeastTime(moved / bandwidth, f"{bandwidth / 1e9:,.5g} GB/s of memory")
    return max(compute, memory, key=lambda least: least.seconds)


def _bytes(task: Task, named: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]) -> float:
    size = itemsize(task.precision)
    if task.family == "gemm":
        m, n, k = named["m"], named["n"], named["k"]
        return float((named["batch"] * (m * k + k * n + m * n) * size)[0])
    if convolves(task.family):
        # Such a kernel passes over pixels; of a volume, along some sides it may.
        strided = (named["stride"] ** 2 > named["r"] * named["s"]) | ((named["stride"] > 1) & ("3d" in task.family))
        return 0.0 if bool(strided[0]) else float(convolution_bytes(named, task.precision)[0])
    if task.family.startswith("attention-"):
        rows = named["heads"] * named.get("length_q", 1.0) + named["heads_kv"] * named["length_kv"]
        return float((2 * named["batch"] * rows * named["head_dim"] * size)[0])
    return _COMPULSORY.get(task.family, 1.0) * float(task_bytes(task.family, named, task.precision)[0])


def _cache(device: Device) -> float:
    """Of all levels; where nothing is known of them, what no device has more of."""
    if device.l2_bytes is None:
        return 256e6
    return device.l2_bytes.value + (0.0 if device.memory_cache_bytes is None else device.memory_cache_bytes.value)
