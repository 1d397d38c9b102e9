"""Memory that no tensor lies in: what libraries keep once they were used, the context, the code of libraries, and what
the driver leaves to a process."""

from __future__ import annotations

from dataclasses import dataclass

from rooflight.hardware.device import Device
from rooflight.ledger import Ledger, Note

PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation", "aten::mv",
                       "aten::addmv", "aten::dot", "aten::vdot", "aten::linear", "aten::_native_multi_head_attention",
                       "aten::_transformer_encoder_layer_fwd"})  # fmt: skip
_WITH_BIAS = frozenset(
    {
        "aten::addmm",
        "aten::_addmm_activation",
        "aten::_native_multi_head_attention",
        "aten::_transformer_encoder_layer_fwd",
    }
)
_WORKSPACE = 4096 * 2 * 1024 + 16 * 8 * 1024
"""`:4096:2:16:8`, torch's default."""
_WORKSPACE_HOPPER = 4096 * 8 * 1024
_WORKSPACE_LT = 1 << 20


def cublas_bytes(capability: int | None) -> int:
    """The workspace torch gives a cuBLAS handle; Hopper and data-centre Blackwell get more."""
    return _WORKSPACE_HOPPER if capability is not None and capability // 10 in (9, 10) else _WORKSPACE


Uses = dict[int, tuple[str, ...]]
"""By op: the libraries that a thread uses there for the first time."""


def kept_workspaces(uses: Uses, capability: int | None) -> dict[int, tuple[int, ...]]:
    """By op: what the first matrix product of a thread leaves allocated."""
    nbytes = {"cublas": cublas_bytes(capability), "cublaslt": _WORKSPACE_LT}
    return {op: tuple(nbytes[library] for library in libraries) for op, libraries in uses.items()}


def first_uses(ledger: Ledger) -> Uses:
    """Backward runs in a thread of its own."""
    uses: dict[int, tuple[str, ...]] = {}
    seen: set[tuple[str, bool]] = set()
    for op in ledger.ops:
        if op.packet not in PRODUCTS or op.kind == "host":
            continue
        backward = op.phase == "backward"
        used = ["cublas", "cublaslt"] if op.packet in _WITH_BIAS else ["cublas"]
        new = [library for library in used if (library, backward) not in seen]
        seen.update((library, backward) for library in new)
        if new:
            uses[op.index] = tuple(new)
    return uses


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


OTHER_ALLOCATOR = Note(
    "other-allocator",
    "counted is what tensors take: neither the allocator of Apple's Metal nor what it keeps is modelled",
)


@dataclass(frozen=True)
class ContextMemory:
    """Bytes, and what was assumed to know them."""

    usable_bytes: int
    outside_bytes: int
    notes: tuple[Note, ...]


def context_memory(device: Device, code_bytes: int) -> ContextMemory:
    """Of a process on the device that has loaded so much code of libraries."""
    if not device.is_cuda:
        return ContextMemory(int(device.memory_bytes.value), 0, () if device.kind == "cpu" else (OTHER_ALLOCATOR,))
    nbytes, assumed = code_bytes, []
    if device.context_bytes is not None:
        nbytes += int(device.context_bytes.value)
    else:
        nbytes += int(_CONTEXT_PER_SM * device.sms.value)
        assumed.append("the CUDA context is taken to be the H200's, by the number of SMs")
    usable, said = usable_bytes(device)
    assumed += [said] if said else []
    return ContextMemory(usable, nbytes, (Note("assumed-memory", ", ".join(assumed)),) if assumed else ())


def code_bytes(ledger: Ledger) -> int:
    """What the ops make torch, cuBLAS and cuDNN load."""
    used = {(op.packet, op.phase == "backward") for op in ledger.ops if op.kind == "compute"}
    nbytes = _KERNELS + _CUBLAS * len({backward for name, backward in used if name in PRODUCTS})
    nbytes += _CUDNN_FORWARD if any("convolution" in name for name, _ in used) else 0
    nbytes += _CUDNN_BACKWARD if any(name == "aten::convolution_backward" for name, _ in used) else 0
    return nbytes


def usable_bytes(device: Device) -> tuple[int, str]:
    """What the driver tells processes that there is, and what was assumed to know it."""
    if device.usable_memory_bytes is not None:
        return int(device.usable_memory_bytes.value), ""
    part = _USABLE_WITH_ECC if any("with ECC on" in note for note in device.notes) else _USABLE
    return int(part * device.memory_bytes.value), f"{part:.1%} of the memory to be left to a process"
