"""Devices as tables: all of them side by side, and one with every value and its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rooflight.hardware.device import Device, Figure, figures
from rooflight.reporting.columns import column
from rooflight.reporting.table import Cells, Column, Table, table_of

CONVENTIONS = (
    "peaks are dense, in TFLOP/s; FP16/BF16 and TF32 on tensor cores where the device has them, FP64 on tensor "
    "cores in parentheses; GiB is the memory, GB/s its bandwidth; ridge: FLOP/byte above which a kernel can be "
    "compute-bound, for fp32 on the cores and for 16 bit"
)

_UNITS = {
    "flops_per_s": (1e12, "TFLOP/s"),
    "bytes_per_s": (1e9, "GB/s"),
    "memory_bytes": (2**30, "GiB"),
    "l2_bytes": (2**20, "MiB"),
    "cache_bytes": (2**20, "MiB"),
    "context_bytes": (2**20, "MiB"),
    "clock_hz": (1e6, "MHz"),
    "tdp_w": (1, "W"),
    "sms": (1, ""),
    "gpus_per_node": (1, ""),
}
"""How values are written, by the end of their key or of the table they stand in."""

_WORDS = {
    "memory_bytes": "memory",
    "usable_memory_bytes": "memory that a process can have",
    "context_bytes": "CUDA context of a process",
    "bandwidth_bytes_per_s": "memory bandwidth",
    "l2_bytes": "largest shared cache",
    "memory_cache_bytes": "cache before the memory",
    "gpus_per_node": "GPUs in a node",
    "clock_hz": "highest clock",
    "base_clock_hz": "base clock",
    "tdp_w": "power",
}


def devices_table(devices: Sequence[Device]) -> Table:
    columns: Cells[Device] = [
        (column("device"), lambda device: device.name),
        (Column("title", right=False, optional=3), lambda device: device.title),
        (Column("FP32", _tera, raw="fp32_flops_per_s"), lambda device: device.core_flops_per_s["fp32"].value),
        (Column("TF32", _tera, raw="tf32_flops_per_s"), _tf32),
        (Column("FP16/BF16"), lambda device: _half(device)[1]),
        (Column("FP64 (tensor)", optional=2), _double),
        (Column("GB/s", _giga, raw="bandwidth_bytes_per_s"), lambda device: device.bandwidth_bytes_per_s.value),
        (Column("GiB", _gib, raw="memory_bytes"), lambda device: device.memory_bytes.value),
        (
            Column("ridge fp32", _short, raw="ridge_fp32_flop_per_byte"),
            lambda device: ridge(device, device.core_peak("fp32")),
        ),
        (
            Column("16 bit", _short, optional=1, raw="ridge_16_bit_flop_per_byte"),
            lambda device: ridge(device, _half(device)[0]),
        ),
    ]
    return table_of(columns, devices)


def _tf32(device: Device) -> float | None:
    peak = device.tensor_flops_per_s.get("tf32")
    return None if peak is None else peak.value


def ridge(device: Device, peak: Figure | None) -> float | None:
    """FLOP/byte from which on that peak is the lower roof."""
    return None if peak is None else peak.value / device.bandwidth_bytes_per_s.value


def device_table(device: Device) -> tuple[Table, tuple[str, ...]]:
    """Every value of one device with the number of its source, and the sources in that order."""
    sources = list(dict.fromkeys(_source(figure) for _, figure in figures(device)))
    columns: Cells[tuple[str, Figure]] = [
        (Column("value of", right=False), lambda row: _what(device, row[0])),
        (Column("value"), lambda row: _written(row[0], row[1].value)),
        (Column("source"), lambda row: sources.index(_source(row[1])) + 1),
    ]
    return table_of(columns, list(figures(device))), tuple(sources)


def _source(figure: Figure) -> str:
    return f"{figure.source} ({figure.date})"


def device_data(device: Device) -> dict[str, Any]:
    """A device for programs: all figures with source and date, and the ridge points that follow."""
    fields: dict[str, Any] = msgspec.to_builtins(device)
    precisions = dict.fromkeys((*device.core_flops_per_s, *device.tensor_flops_per_s))
    fields["ridge_flop_per_byte"] = {
        "core": {name: ridge(device, device.core_peak(name)) for name in device.core_flops_per_s},
        "matrix": {name: ridge(device, device.peak(name)) for name in precisions},
    }
    return fields


# --- words and units ---


def _what(device: Device, key: str) -> str:
    table, _, name = key.partition(".")
    nvidia, cpu = device.vendor == "NVIDIA", device.kind == "cpu"
    if table == "core_flops_per_s":
        return f"{name} on {'CUDA cores' if nvidia else 'vector units'}"
    if table == "tensor_flops_per_s":
        return f"{name} on {'tensor cores' if nvidia else 'AMX' if cpu else 'matrix cores'}"
    if table == "links_bytes_per_s":
        return f"{name}, one direction"
    if key == "sms":
        return "multiprocessors" if nvidia else "cores" if cpu else "compute units"
    return _WORDS[key]


def _written(key: str, value: float) -> str:
    table = key.partition(".")[0]
    size, unit = next(scale for ending, scale in _UNITS.items() if table.endswith(ending))
    return f"{_digits(value / size)} {unit}".rstrip()


def _half(device: Device) -> tuple[Figure | None, str]:
    """The peak in 16 bit, and how it is written: with its type where the other one has not the same."""
    peaks = {name: peak for name in ("fp16", "bf16") if (peak := device.peak(name)) is not None}
    best = max(peaks, key=lambda name: peaks[name].value, default=None)
    if best is None:
        return None, "–"
    equal = len(peaks) == 2 and len({peak.value for peak in peaks.values()}) == 1
    return peaks[best], _tera(peaks[best].value) + ("" if equal else f" {best}")


def _double(device: Device) -> str:
    core, tensor = device.core_peak("fp64"), device.tensor_flops_per_s.get("fp64")
    texts = [_tera(core.value) if core is not None else "–", f"({_tera(tensor.value)})" if tensor is not None else ""]
    return " ".join(text for text in texts if text)


def _tera(value: float | None) -> str:
    return "–" if value is None else _digits(value / 1e12)


def _giga(value: float) -> str:
    return _digits(value / 1e9)


def _gib(value: float) -> str:
    return _digits(value / 2**30)


def _short(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _digits(value: float) -> str:
    """Four digits, and all of those before the point."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
