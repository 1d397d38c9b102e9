"""The matrix FLOP/s that a device can keep up: its peak, or what its power limit allows.

A small board with many cores (L4, T4) never runs matrix work at its boost clock: it has not the watts. Work at part of
the highest clock takes that part of the power, and less than that, as the voltage falls with the clock.
"""

from __future__ import annotations

from rooflight.hardware.device import Device

_FULL_CLOCK_HZ = 1.98e9
_JOULES_PER_FLOP = {"fp32": 9.97e-12, "fp64": 19.9e-12, "tf32": 1.88e-12, "bf16": 0.99e-12, "fp16": 0.99e-12,
                    "fp8": 0.5e-12, "int8": 0.5e-12}  # fmt: skip
"""Of the H200 at its highest clock, above idle: measured over sustained products of random numbers
(benchmarks/h200/results/power.json), put to that clock by `_VOLTAGE`; fp64 as twice fp32, 8 bits as
half of 16."""
_VOLTAGE = 0.5
"""Energy of a FLOP goes with this power of the clock: 0 would be a voltage that stays, 2 one that follows it."""
_IDLE = 0.2
"""Of the power limit: what memory, leakage and the board take. The H200's 122 W of 700 W, and some for its memory."""
_PROCESS = ((90, 1.0), (89, 1.0), (86, 1.4), (80, 1.25), (70, 1.7), (60, 2.1), (0, 4.0))
"""Energy of a FLOP by compute capability, in H200s: chips of 4, 8, 7, 12, 16 and 28 nm. The A100's and the V100's are
the most that their boards allow, as both run fp32 products at nearly full clock."""

_OTHERS = 0.89
"""Of the peak, what devices of other vendors keep up, whose energies nobody measured here: as the H200 does in fp32."""


def sustained_flops_per_s(device: Device, precision: str) -> float:
    """Matrix work of a precision, as long as one likes; where nothing is known of the board's power, the peak."""
    figure = device.peak(precision) or device.peak("fp32")
    assert figure is not None  # every device has fp32
    if device.vendor != "NVIDIA":
        return _OTHERS * figure.value
    if device.tdp_w is None:
        return figure.value
    unit = precision if precision in device.tensor_flops_per_s or precision == "fp64" else "fp32"
    clock = device.clock_hz.value / _FULL_CLOCK_HZ
    joules = _JOULES_PER_FLOP.get(unit, _JOULES_PER_FLOP["fp32"]) * _process(device) * clock**_VOLTAGE
    part = (1 - _IDLE) * device.tdp_w.value / (joules * figure.value)
    held: float = part ** (1 / (1 + _VOLTAGE))
    return figure.value * min(1.0, held)


def kept_up(device: Device, precision: str) -> float:
    """The same as a part of the peak."""
    figure = device.peak(precision) or device.peak("fp32")
    assert figure is not None  # every device has fp32
    return sustained_flops_per_s(device, precision) / figure.value


def is_held_back(device: Device, precision: str) -> bool:
    """Does its power limit keep matrix work far from the peak?"""
    return kept_up(device, precision) < _FAR


_FAR = 0.8


def _process(device: Device) -> float:
    capability = device.capability or 90
    return next(energy for least, energy in _PROCESS if capability >= least)
