"""The most FLOP/s a device can do, by unit and precision: what MFU and HFU are measured against.

Dense figures, no sparsity, from the device database. For a device that is not there, give the peak yourself.
"""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.hardware.device import Device, Figure
from rooflight.hardware.devices import recognise_name


@dataclass(frozen=True)
class PeakRate:
    flops_per_s: float
    source: str


def unit_peak(device: str | None, quantity: str) -> PeakRate | None:
    """The peak of the unit that a quantity counts the work of: `tensor_flops_tf32`, `cuda_flops_fp32`.

    The name must be the device's whole name: an "NVIDIA H200 NVL" is another board with other peaks.
    """
    known, (unit, _, precision) = _gpu(device), quantity.partition("_flops_")
    if known is None or unit not in ("tensor", "cuda"):
        return None
    table = known.tensor_flops_per_s if unit == "tensor" else known.core_flops_per_s
    return _peak(table.get(precision))


def peak(device: str | None, precision: str) -> PeakRate | None:
    """The peak of matrix work in that precision: tensor cores where they have it. `None` where it is not known."""
    known = _gpu(device)
    return None if known is None else _peak(known.peak(precision))


def _gpu(reported: str | None) -> Device | None:
    """A name says nothing of how many cores of a processor a run had: processors have no peak here."""
    device = recognise_name(reported)
    return device if device is not None and device.kind == "gpu" else None


def _peak(figure: Figure | None) -> PeakRate | None:
    return None if figure is None else PeakRate(figure.value, figure.source)
