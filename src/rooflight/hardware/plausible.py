"""Whether the numbers of a device can be those of a real one: most mistakes are a factor of 1,000, or sparsity.

Ranges are wide, so that devices nobody has built yet fit; what one number leaves open, two together tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rooflight.hardware.device import Device, Figure

CORE_PRECISIONS = ("fp64", "fp32", "fp16", "bf16")
TENSOR_PRECISIONS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8", "int8")
LINKS = {
    "nvlink": (1e10, 1e13),
    "nvlink-c2c": (1e10, 1e13),
    "infinity-fabric": (1e10, 1e13),
    "pcie": (2.4e8, 5e11),
    "network": (1e8, 1e12),
}
"""What links are called, and between what their bytes/s in one direction lie."""

# FP32 lanes of one multiprocessor, by compute capability: table "Throughput of Native Arithmetic Instructions" of the
# CUDA C++ Programming Guide.
LANES = {
    30: 192, 35: 192, 37: 192, 50: 128, 52: 128, 53: 128, 60: 64, 61: 128, 62: 128, 70: 64, 72: 64, 75: 64,
    80: 64, 86: 128, 87: 128, 89: 128, 90: 128, 100: 128, 103: 128, 120: 128,
}  # fmt: skip
TENSOR_FLOPS_A_CYCLE = {
    70: 1024, 72: 1024, 75: 1024, 80: 2048, 86: 1024, 87: 1024, 89: 1024, 90: 4096, 100: 8192, 103: 8192, 120: 1024,
}  # fmt: skip
"""Dense FP16 FLOP of one multiprocessor, as they follow from published peaks, SMs and clocks. Boards for games do half
of it when they add up in FP32."""

_BANDWIDTH = {"gpu": (5e9, 5e13), "cpu": (2e9, 5e12)}
_FLOPS_A_CYCLE = {"gpu": (16.0, 1024.0), "cpu": (1.0, 512.0)}
"""FP32 of one multiprocessor, compute unit or CPU core, where its lanes are not known."""
_RIDGE = (1.0, 3000.0)
_RATE = {"TB/s": 1e12, "GB/s": 1e9, "MB/s": 1e6}
_SIZE = {"GB": 2.0**30, "MB": 2.0**20, "KB": 2.0**10}
_FREQUENCY = {"GHz": 1e9, "MHz": 1e6, "kHz": 1e3}
_CORE_RATIO = {"fp64": (1 / 130, 1.1), "fp16": (0.4, 8.5), "bf16": (0.4, 8.5)}
_TENSOR_RATIO = {
    "fp64": (0.005, 3.0),
    "fp32": (0.9, 3.0),
    "tf32": (0.9, 21.0),
    "fp16": (0.9, 40.0),
    "bf16": (0.9, 40.0),
    "fp8": (0.9, 90.0),
    "int8": (0.9, 90.0),
}
"""A peak over the FP32 peak of the cores: sparse figures of big tensor cores lie above."""


def is_date(text: str) -> bool:
    try:
        return date.fromisoformat(text).isoformat() == text
    except ValueError:
        return False


def problem(device: Device, figures: Sequence[tuple[str, Figure]]) -> str | None:
    """The first thing that cannot be, in one line that names the key, the value and the likely mistake.

    `figures` are all values of the device with their keys.
    """
    return next(_problems(device, figures), None)


def _problems(device: Device, figures: Sequence[tuple[str, Figure]]) -> Iterator[str]:
    yield from _keys(device)
    yield from _numbers(figures)
    yield from _sizes(device)
    yield from _peaks(device)
    yield from _ridges(device)


def _keys(device: Device) -> Iterator[str]:
    for table, known in (
        ("core_flops_per_s", CORE_PRECISIONS),
        ("tensor_flops_per_s", TENSOR_PRECISIONS),
        ("links_bytes_per_s", tuple(LINKS)),
    ):
        for key in getattr(device, table):
            if key not in known:
                yield f"{table}.{key} is no known key: it takes {', '.join(known)}"
    if "fp32" not in device.core_flops_per_s:
        yield "core_flops_per_s.fp32 is missing: every device has a peak in fp32"
    for text in ("name", "title", "vendor"):
        if not getattr(device, text).strip():
            yield f"{text} is empty"


def _numbers(figures: Sequence[tuple[str, Figure]]) -> Iterator[str]:
    for key, figure in figures:
        if not math.isfinite(figure.value) or figure.value <= 0:
            yield f"{key} = {figure.value:g} is not a positive number: leave the key out where the device has none"


def _sizes(device: Device) -> Iterator[str]:
    if device.capability is not None and not 10 <= device.capability < 1000:
        yield "capability is none that NVIDIA has: write 90 for 9.0, or leave it out"
    yield from _in_range("bandwidth_bytes_per_s", device.bandwidth_bytes_per_s, _BANDWIDTH[device.kind], _RATE)
    yield from _in_range("memory_bytes", device.memory_bytes, (1e9, 2e12), _SIZE)
    yield from _in_range("context_bytes", device.context_bytes, (1e6, 5e9), _SIZE)
    usable = device.usable_memory_bytes
    if usable is not None and not 0.7 < usable.value / device.memory_bytes.value <= 1:
        yield f"usable_memory_bytes = {usable.value:g} is not 70% to 100% of memory_bytes: one of the two is wrong"
    yield from _in_range("clock_hz", device.clock_hz, (1e8, 1e10), _FREQUENCY)
    yield from _in_range("base_clock_hz", device.base_clock_hz, (1e8, 1e10), _FREQUENCY)
    yield from _in_range("l2_bytes", device.l2_bytes, (1e5, 2e9), _SIZE)
    yield from _in_range("memory_cache_bytes", device.memory_cache_bytes, (1e6, 2e10), _SIZE)
    yield from _in_range("sms", device.sms, (1, 2000), {})
    yield from _in_range("gpus_per_node", device.gpus_per_node, (1, 1024), {})
    if device.gpus_per_node is not None and device.gpus_per_node.value % 1:
        yield f"gpus_per_node = {device.gpus_per_node.value:g} is not a whole number"
    yield from _in_range("tdp_w", device.tdp_w, (2, 5000), {"kW": 1e3})
    for link, figure in device.links_bytes_per_s.items():
        yield from _in_range(f"links_bytes_per_s.{link}", figure, LINKS[link], _RATE)
    clock, base, cache = device.clock_hz.value, device.base_clock_hz, device.l2_bytes
    if base is not None and base.value > clock * 1.001:
        yield f"base_clock_hz = {base.value:g} is above clock_hz = {clock:g}: clock_hz is the highest"
    if cache is not None and cache.value > device.memory_bytes.value / 10:
        yield f"l2_bytes = {cache.value:g} is more than a tenth of memory_bytes: that is no cache"


def _peaks(device: Device) -> Iterator[str]:
    fp32 = device.core_flops_per_s["fp32"].value
    cycles = device.sms.value * device.clock_hz.value
    lanes = LANES.get(device.capability or 0)
    if lanes is not None:
        expected = cycles * lanes * 2
        if not 0.6 < fp32 / expected < 1.6:
            yield (
                f"core_flops_per_s.fp32 = {fp32:g} does not fit sms x {lanes} lanes x 2 x clock_hz = {expected:g}: "
                f"{_scale(fp32, expected)}"
            )
    else:
        low, high = _FLOPS_A_CYCLE[device.kind]
        if not low <= fp32 / cycles <= high:
            yield (
                f"core_flops_per_s.fp32 = {fp32:g} makes {fp32 / cycles:.3g} FLOP a cycle for each of "
                f"{device.sms.value:g} sms ({low:g} to {high:g} is plausible): given in TFLOP/s? write 67e12"
            )
    for table, ratios in (("core_flops_per_s", _CORE_RATIO), ("tensor_flops_per_s", _TENSOR_RATIO)):
        for precision, figure in getattr(device, table).items():
            low, high = ratios.get(precision, (0.0, math.inf))
            ratio = figure.value / fp32
            if not low <= ratio <= high:
                word = "in another unit?" if ratio < low else "with sparsity, or in another unit?"
                yield (
                    f"{table}.{precision} = {figure.value:g} is {ratio:.3g} times the fp32 peak of the cores "
                    f"({low:.2g} to {high:g} is plausible): {word} peaks are dense FLOP/s, as 989e12"
                )
    yield from _sparsity(device, cycles)


def _sparsity(device: Device, cycles: float) -> Iterator[str]:
    rate = TENSOR_FLOPS_A_CYCLE.get(device.capability or 0)
    if rate is None:
        return
    scale = {"fp16": 1.0, "bf16": 1.0, "tf32": 0.5, "fp8": 2.0, "int8": 2.0}
    for precision, figure in device.tensor_flops_per_s.items():
        most = cycles * rate * scale.get(precision, math.inf)
        if figure.value > 1.3 * most:
            yield (
                f"tensor_flops_per_s.{precision} = {figure.value:g} is more than its tensor cores do at clock_hz "
                f"({most:.4g}): with sparsity? write the dense peak, {figure.value / 2:g}"
            )


def _ridges(device: Device) -> Iterator[str]:
    bandwidth = device.bandwidth_bytes_per_s.value
    best = max(figure.value for figure in (*device.core_flops_per_s.values(), *device.tensor_flops_per_s.values()))
    low, high = _RIDGE
    for word, peak in (("fp32", device.core_flops_per_s["fp32"].value), ("best", best)):
        ridge = peak / bandwidth
        if not low <= ridge <= high:
            hint = "too small by 1000?" if ridge > high else "too large by 1000?"
            write = bandwidth * (1e3 if ridge > high else 1e-3)
            yield (
                f"bandwidth_bytes_per_s = {bandwidth:g} puts the ridge point of its {word} peak ({peak:g} FLOP/s) at "
                f"{ridge:.3g} FLOP/byte ({low:g} to {high:g} is plausible): {hint} write {write:g}"
            )


def _in_range(
    key: str, figure: Figure | None, within: tuple[float, float], units: Mapping[str, float]
) -> Iterator[str]:
    low, high = within
    if figure is None or low <= figure.value <= high:
        return
    hints = {f"given in {unit}?": size for unit, size in units.items()}
    hints |= {"too small by 1000?": 1e3, "too large by 1000?": 1e-3}
    hint = next(
        (
            f": {word} write {figure.value * size:.6g}"
            for word, size in hints.items()
            if low <= figure.value * size <= high
        ),
        "",
    )
    yield f"{key} = {figure.value:g} is not plausible ({low:g} to {high:g}){hint}"


def _scale(value: float, expected: float) -> str:
    if value < expected:
        for size, name in ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")):
            if 0.6 < value * size / expected < 1.6:
                return f"given in {name}? write {value * size:g}"
    return "one of the three is wrong"
