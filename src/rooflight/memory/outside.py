"""What of a device's memory is not the allocator's: the driver's share, the context, the code of libraries."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rooflight.hardware.device import Device
from rooflight.ledger import Op
from rooflight.memory.libraries import PRODUCTS

MIB = 1 << 20
_CONTEXT_PER_SM = 526.8 / 132 * MIB
_KERNELS = 92 * MIB
"""Torch's own kernels, loaded with the first of them."""
_CUBLAS = 66 * MIB
"""A handle; every thread that multiplies has one, and backward runs in a thread of its own."""
_CUDNN_FORWARD, _CUDNN_BACKWARD = 8 * MIB, 10 * MIB
_USABLE, _USABLE_WITH_ECC = 0.985, 0.915
"""Of the memory: what is left to a process where that was not read. Where check bits lie in the memory itself, a
sixteenth is theirs (T4, L4 and L40S: 91 to 93%)."""


@dataclass(frozen=True)
class Outside:
    """Bytes, and what was assumed to know them."""

    usable_bytes: int
    outside_bytes: int
    notes: tuple[str, ...]


def outside(device: Device, ops: Iterable[Op]) -> Outside:
    """Of a process that runs these ops on the device."""
    if device.kind == "cpu":
        return Outside(int(device.memory_bytes.value), 0, ())
    used = {(op.packet, op.phase == "backward") for op in ops if op.kind == "compute"}
    nbytes = _KERNELS + _CUBLAS * len({backward for name, backward in used if name in PRODUCTS})
    nbytes += _CUDNN_FORWARD if any("convolution" in name for name, _ in used) else 0
    nbytes += _CUDNN_BACKWARD if any(name == "aten::convolution_backward" for name, _ in used) else 0
    assumed = []
    if device.context_bytes is not None:
        nbytes += int(device.context_bytes.value)
    else:
        nbytes += int(_CONTEXT_PER_SM * device.sms.value)
        assumed.append("the CUDA context is taken to be the H200's, by the number of SMs")
    usable, said = usable_bytes(device)
    assumed += [said] if said else []
    return Outside(usable, nbytes, (", ".join(assumed),) if assumed else ())


def usable_bytes(device: Device) -> tuple[int, str]:
    """What the driver tells processes that there is, and what was assumed to know it."""
    if device.usable_memory_bytes is not None:
        return int(device.usable_memory_bytes.value), ""
    part = _USABLE_WITH_ECC if any("with ECC on" in note for note in device.notes) else _USABLE
    return int(part * device.memory_bytes.value), f"{part:.1%} of the memory to be left to a process"
