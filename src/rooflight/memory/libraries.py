"""What libraries keep once they have been used: cuBLAS's workspaces, one a thread."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.ledger import Op

PRODUCTS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::_addmm_activation", "aten::mv",
                       "aten::addmv", "aten::dot", "aten::vdot", "aten::linear", "aten::_native_multi_head_attention",
                       "aten::_transformer_encoder_layer_fwd"})  # fmt: skip
_WITH_BIAS = frozenset({"aten::addmm", "aten::_addmm_activation", "aten::_native_multi_head_attention",
                        "aten::_transformer_encoder_layer_fwd"})  # fmt: skip
_CUBLAS = 4096 * 2 * 1024 + 16 * 8 * 1024
"""`:4096:2:16:8`, torch's default."""
_CUBLAS_HOPPER = 4096 * 8 * 1024
_CUBLASLT = 1 << 20


def cublas_bytes(capability: int | None) -> int:
    """The workspace torch gives a cuBLAS handle; Hopper and data-centre Blackwell get more."""
    return _CUBLAS_HOPPER if capability is not None and capability // 10 in (9, 10) else _CUBLAS


Uses = dict[int, tuple[str, ...]]
"""By op: the libraries that a thread uses there for the first time."""


def kept_workspaces(uses: Uses, capability: int | None) -> dict[int, tuple[int, ...]]:
    """By op: what the first matrix product of a thread leaves allocated."""
    nbytes = {"cublas": cublas_bytes(capability), "cublaslt": _CUBLASLT}
    return {op: tuple(nbytes[one] for one in libraries) for op, libraries in uses.items()}


def first_uses(ops: Sequence[Op]) -> Uses:
    """Backward runs in a thread of its own."""
    found: dict[int, tuple[str, ...]] = {}
    seen: set[tuple[str, bool]] = set()
    for op in ops:
        if op.packet not in PRODUCTS or op.kind == "host":
            continue
        backward = op.phase == "backward"
        used = ["cublas", "cublaslt"] if op.packet in _WITH_BIAS else ["cublas"]
        new = [one for one in used if (one, backward) not in seen]
        seen.update((one, backward) for one in new)
        if new:
            found[op.index] = tuple(new)
    return found
