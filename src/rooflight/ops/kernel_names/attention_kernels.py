"""Names of fused attention: flash-attention 1 to 4, xformers (torch's memory-efficient), cuDNN's, TensorRT-LLM's.

Their sizes are blocks of scores, not of results: they are no tile (`ops/attention_tiles.py` reads those it knows).
"""

from __future__ import annotations

import re

from rooflight.ops.kernel_names.kernel_role import Family, KernelRole, Role, Unit

_XFORMERS = re.compile(r"fmha_cutlass([FB])_(f32|f16|bf16)_\w{0,80}?sm(\d{1,5})(?!\d)")
_CUDNN = re.compile(r"cudnn_generated_\w{0,80}?sdpa_\w{0,80}?(fprop|bprop)?(?=_|$)(\w*)")
_FLASH = re.compile(
    r"flash_(fwd|bwd)|FlashAttn(Fwd|Bwd)|FlashAttention(Forward|Backward)|fmha_(fwd|bwd|dgrad)|fmhaSm\d+"
)
_BESIDE: tuple[tuple[str, Role], ...] = (
    (r"flash_fwd_splitkv_combine|FlashAttnFwdCombine", "sum of parts"),
    (r"flash_bwd_dot_do_o|flash_bwd_preprocess|FlashAttnBwdPreprocess|compute_dot_do_o", "reduction"),
    (r"flash_bwd_convert|FlashAttnBwdPostprocess|convert_dq_to_16bits", "cast"),
    (r"flash_bwd_clear", "bookkeeping"),
)
"""What runs before and behind: sums of several parts, of the gradient's rows, and into 16 bits."""
_BESIDE_PATTERNS = tuple((re.compile(pattern), role) for pattern, role in _BESIDE)
_TYPES = (("bfloat16", "bf16"), ("bf16", "bf16"), ("half_t", "fp16"), ("fp16", "fp16"), ("__half", "fp16"),
          ("e4m3", "fp8"), ("E4m3", "fp8"))  # fmt: skip


def attention_role(name: str) -> KernelRole | None:
    for pattern, role in _BESIDE_PATTERNS:
        if pattern.search(name):
            return KernelRole(role)
    if (match := _XFORMERS.search(name)) is not None:
        return _xformers(match)
    if (match := _CUDNN.search(name)) is not None:
        # Its `f16` is any type of 16 bits.
        precision = "fp8" if "fp8" in name else None
        return _fused("cudnn attention", None if match[1] is None else match[1] == "bprop", precision)
    if (match := _FLASH.search(name)) is not None:
        told = next((group for group in match.groups() if group), "").lower()
        backward = None if not told else told.startswith(("bwd", "backward", "dgrad"))
        precision = next((precision for word, precision in _TYPES if word in name), None)
        return _fused("flash-attention", backward, precision)
    return None


def _xformers(match: re.Match[str]) -> KernelRole:
    """fp32 is multiplied as TF32 by chips that have it, else by CUDA cores; so are 16 bits before Volta."""
    chip, backward = int(match[3]), match[1] == "B"
    single, recent = match[2] == "f32", chip >= 80
    if chip < 70:
        return KernelRole("attention", "cuda", "xformers", precision="fp32" if single else None, backward=backward)
    unit: Unit = "cuda" if single and not recent else "tensor"
    precision = ("tf32" if recent else "fp32") if single else {"f16": "fp16", "bf16": "bf16"}[match[2]]
    return KernelRole("attention", unit, "xformers", precision=precision, backward=backward)


def _fused(family: Family, backward: bool | None, precision: str | None) -> KernelRole:
    return KernelRole("attention", "tensor", family, precision=precision, backward=backward)
