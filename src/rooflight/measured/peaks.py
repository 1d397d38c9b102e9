"""The most FLOP/s a device can do, by unit and precision: what MFU and HFU are measured against.

Dense figures, no sparsity. For a device that is not here, give the peak yourself.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    flops_per_s: float
    source: str


_QUOTED = "figures commonly quoted for the H200 SXM, dense; not yet checked against NVIDIA's datasheet"
_COMPUTED = "132 SMs x lanes x 2 at 1,980 MHz, as for the H100 SXM; not yet checked against NVIDIA's whitepaper"

# Figures as they are handed around for the H200 SXM, those with sparsity halved. Nobody has held them against the
# datasheet so far, and their sources say so. FP32's 67 is 132 SMs x 128 lanes x 2 at 1,980 MHz; FP64 has half as many
# lanes (33.5), and FP16 works on two values in each (133.8). Entered in November 2026.
_PEAKS: dict[str, dict[str, Peak]] = {
    "NVIDIA H200": {
        "tensor_flops_fp64": Peak(67e12, _QUOTED),
        "tensor_flops_tf32": Peak(494.5e12, _QUOTED),
        "tensor_flops_bf16": Peak(989e12, _QUOTED),
        "tensor_flops_fp16": Peak(989e12, _QUOTED),
        "tensor_flops_fp8": Peak(1979e12, _QUOTED),
        "tensor_flops_int8": Peak(1979e12, _QUOTED),
        "cuda_flops_fp32": Peak(67e12, _QUOTED),
        "cuda_flops_fp64": Peak(33.5e12, _COMPUTED),
        "cuda_flops_fp16": Peak(133.8e12, _COMPUTED),
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
