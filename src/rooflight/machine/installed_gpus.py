"""A torch device as the driver sees it: its name, its memory, and which of NVML's GPUs it is. Nothing here raises."""

from __future__ import annotations

import platform
import sys
from typing import Any

from rooflight.machine import Machine, nvml


def gpu_of(device: str) -> nvml.Gpu | None:
    """NVML's view of a torch device, found by its UUID or its place on the bus; `None` for a CPU."""
    library = nvml.connect() if device.startswith("cuda") else None
    properties = _properties(device) if library is not None else None
    if library is None or properties is None:
        return None
    return library.find(uuid=uuid_of(properties), pci_bus_id=pci_bus_id_of(properties))


def uuid_of(properties: Any) -> str | None:
    """Of torch's device properties."""
    uuid = getattr(properties, "uuid", None)
    return None if uuid is None else str(uuid)


def pci_bus_id_of(properties: Any) -> str | None:
    """`00000000:1B:00.0`. torch tells it since 2.8."""
    domain, bus, slot = (getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device"))
    return None if domain is None or bus is None or slot is None else f"{domain:08X}:{bus:02X}:{slot:02X}.0"


def device_name(device: str) -> str:
    """`NVIDIA H200`, or the processor's name; the device as it was given where neither can be read."""
    if device.startswith("cuda"):
        properties = _properties(device)
        return str(properties.name) if properties is not None else device
    if device.startswith("cpu"):
        return Machine().cpu_name() or platform.processor() or platform.machine() or device
    return device


def driver_version() -> str | None:
    """Of NVIDIA's driver."""
    library = nvml.connect()
    return (library.driver_version() if library else None) or Machine().driver_version()


def cuda_version() -> str | None:
    """The CUDA that torch was built with."""
    try:
        import torch
    except Exception:
        return None
    return torch.version.cuda


def process_memory_bytes(device: str) -> int | None:
    """What the driver says this process holds on the GPU; `None` in a container that renumbers processes."""
    gpu = gpu_of(device)
    own_pids = Machine().own_pids()
    sizes = [process.used_bytes for process in (gpu.processes() or () if gpu else ()) if process.pid in own_pids]
    return sizes[0] if sizes else None


def cuda_is_running() -> bool:
    """Whether this process has a context on a GPU; looking does not make one."""
    torch = sys.modules.get("torch")
    return bool(torch is not None and torch.cuda.is_initialized())


def _properties(device: str) -> Any | None:
    try:
        import torch

        number = torch.device(device).index
        return torch.cuda.get_device_properties(torch.cuda.current_device() if number is None else number)
    except Exception:  # no torch, no CUDA in it, no driver, no such device
        return None
