"""How much memory there is, how much of it is taken and how much is free: of the machine, and of a GPU."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rooflight import formatting
from rooflight.machine import Machine, nvml
from rooflight.machine.installed_gpus import cuda_is_running


@dataclass(frozen=True)
class MemoryUse:
    """`None`: the system does not tell. A driver may keep some for itself: the parts need not make the whole."""

    total_bytes: int
    used_bytes: int | None = None
    free_bytes: int | None = None
    limited: bool = False
    """The whole is what a control group allows, less than the machine has."""

    def __str__(self) -> str:
        """`9.30 GB used, 6.70 GB free of 16.0 GB`."""
        known = (("used", self.used_bytes), ("free", self.free_bytes))
        parts = [f"{formatting.bytes_(size)} {word}" for word, size in known if size is not None]
        whole = formatting.bytes_(self.total_bytes) + (" (the limit of this container or job)" if self.limited else "")
        return f"{', '.join(parts)} of {whole}" if parts else f"{whole}, of which it is unknown how much is free"


@dataclass(frozen=True)
class GpuUse:
    """One GPU at one moment. `utilisation_percent`: how much of the last moments a kernel ran on it."""

    name: str | None
    memory: MemoryUse | None
    utilisation_percent: int | None

    def __str__(self) -> str:
        parts = [str(self.memory) if self.memory is not None else "memory unknown"]
        if self.utilisation_percent is not None:
            parts.append(f"utilisation {self.utilisation_percent}%")
        return ", ".join(parts)

    @classmethod
    def of(cls, gpu: nvml.Gpu) -> GpuUse:
        total, used, free = gpu.memory_total_bytes(), gpu.memory_used_bytes(), gpu.memory_free_bytes()
        memory = None if total is None else MemoryUse(total, used, free)
        return cls(gpu.name(), memory, gpu.utilisation_percent())


def gpu_use_by_torch(device: Any = None) -> GpuUse | None:
    """The same without NVML, where this process has CUDA running anyway; its own context is among what is used."""
    if not cuda_is_running():
        return None
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return GpuUse(torch.cuda.get_device_name(device), MemoryUse(total, total - free, free), None)


def ram(machine: Machine | None = None) -> MemoryUse | None:
    """Of the machine, or of the container or job where that may have less; `None`: the system does not tell."""
    machine = machine or Machine()
    total, available = machine.memory_bytes(), machine.memory_bytes("MemAvailable")
    if total is None:
        return _ram_by_posix() if machine.root == Path("/") else None
    limit = machine.memory_limit_bytes()
    if limit is None:
        return MemoryUse(total, None if available is None else total - available, available)
    used = _held_bytes(machine)
    if used is None:
        return MemoryUse(limit, limited=True)
    free = max(0, limit - used)
    return MemoryUse(limit, used, free if available is None else min(free, available), limited=True)


def _held_bytes(machine: Machine) -> int | None:
    """What the control group with the tightest limit holds. Files it has read can be given back and do not count."""
    for folder in machine.limiting_groups():
        for name in ("memory.current", "memory.usage_in_bytes"):
            if (used := machine.number(f"{folder}/{name}")) is not None:
                stat = machine.text(f"{folder}/memory.stat") or ""
                files = re.search(r"^(?:total_)?inactive_file (\d+)$", stat, flags=re.MULTILINE)
                return max(0, used - (int(files[1]) if files else 0))
    return None


def _ram_by_posix() -> MemoryUse | None:
    """Where there is no /proc: macOS tells how much there is, Windows nothing."""
    try:
        page = os.sysconf("SC_PAGE_SIZE")
        total = page * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    try:
        free = page * os.sysconf("SC_AVPHYS_PAGES")
    except (ValueError, OSError):
        return MemoryUse(total)
    return MemoryUse(total, total - free, free)
