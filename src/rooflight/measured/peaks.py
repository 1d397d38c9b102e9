"""The most FLOP/s a device can do, by unit and precision: what MFU and HFU are measured against.

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
_GH100 = "NVIDIA H100 whitepaper, SXM5 (the same SMs and clock), outside the tensor cores"

# The datasheet gives, with sparsity, TF32 989, FP16 and BF16 1,979, FP8 and INT8 3,958 TFLOP/s; without, FP32 67 and
# FP64 34 on CUDA cores, 67 on tensor cores, where fp64 matrix work runs. FP32's 67 is 132 SMs x 128 lanes x 2 at
# 1,980 MHz; FP64 has half as many lanes (33.5), and FP16 works on two values in each (133.8): the whitepaper of the
# H100, which has the same SMs and clock, gives both with these digits. Entered in November 2026.
_PEAKS: dict[str, dict[str, Peak]] = {
    "NVIDIA H200": {
        "tensor_flops_fp64": Peak(67e12, f"{_H200}, FP64 tensor cores"),
        "tensor_flops_tf32": Peak(494.5e12, _HALF),
        "tensor_flops_bf16": Peak(989e12, _HALF),
        "tensor_flops_fp16": Peak(989e12, _HALF),
        "tensor_flops_fp8": Peak(1979e12, _HALF),
        "tensor_flops_int8": Peak(1979e12, _HALF),
        "cuda_flops_fp32": Peak(67e12, _H200),
        "cuda_flops_fp64": Peak(33.5e12, _GH100),
        "cuda_flops_fp16": Peak(133.8e12, _GH100),
    }
}


def unit_peak(device: str | None, quantity: str) -> Peak | None:
    """The peak of the unit that a quantity counts the work of: `tensor_flops_tf32`, `cuda_flops_fp32`.

    The name must be the device's whole name: an "NVIDIA H200 NVL" is another board with other peaks.
    """
    return _PEAKS.get(device or "", {}).get(quantity)


def peak(device: str | None, precision: str) -> Peak | None:
    """The peak of matrix work in that precision: tensor cores where they have it. `None` where it is not known."""
    return unit_peak(device, f"tensor_flops_{precision}") or unit_peak(device, f"cuda_flops_{precision}")
