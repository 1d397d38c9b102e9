"""The most FLOP/s a device can do, by precision: what MFU and HFU are measured against.

Dense figures, no sparsity. For a device that is not here, give the peak yourself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    flops_per_s: float
    source: str


_H200 = "NVIDIA H200 datasheet, SXM"
_HALF = f"{_H200}; dense, half of the figure with sparsity"

# The datasheet gives, with sparsity, TF32 989, FP16 and BF16 1,979, FP8 3,958 TFLOP/s; without, FP32 67 and FP64 34 on
# CUDA cores, 67 on tensor cores, where fp64 matrix work runs. FP32's 67 is 132 SMs x 128 lanes x 2 at 1,980 MHz.
# Entered in November 2026.
_PEAKS: dict[str, dict[str, Peak]] = {
    "NVIDIA H200": {
        "fp64": Peak(67e12, f"{_H200}, FP64 tensor cores"),
        "fp32": Peak(67e12, _H200),
        "tf32": Peak(494.5e12, _HALF),
        "bf16": Peak(989e12, _HALF),
        "fp16": Peak(989e12, _HALF),
        "fp8": Peak(1979e12, _HALF),
    }
}


def peak(device: str | None, precision: str) -> Peak | None:
    """The peak of matrix work in that precision; `None` where it is not known.

    The name must be the device's whole name: an "NVIDIA H200 NVL" is another board with other peaks.
    """
    return _PEAKS.get(device or "", {}).get(precision)
