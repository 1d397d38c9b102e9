"""The device a trace is for, and which attention kernel torch would choose there.

`cuda` stands for Hopper or newer, `cuda:80` for a GPU of compute capability 8.0, `cpu` for the CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rooflight.errors import BadInput

AttentionKernel = Literal["cudnn", "flash", "efficient", "cpu-flash", "math"]

OLDEST, MAXWELL, AMPERE, HOPPER = 35, 50, 80, 90
"""Compute capabilities: the least there is here, then those that brought a kernel of attention: the memory efficient
one, flash, cuDNN's."""
_HALF = ("fp16", "bf16")


@dataclass(frozen=True)
class Target:
    kind: Literal["cuda", "cpu"]
    capability: int = HOPPER
    """Compute capability times ten; of no meaning for a CPU."""

    @property
    def name(self) -> str:
        return "cuda" if self == Target("cuda") else f"cuda:{self.capability}" if self.kind == "cuda" else "cpu"


def needed_for(packet: str, precision: str | None) -> int:
    """The least compute capability that runs an op in this kernel of attention, or in this precision; 0: any does."""
    if precision == "tf32":
        return AMPERE
    for kernel, least in (("cudnn", HOPPER), ("flash", AMPERE), ("efficient", MAXWELL)):
        if packet.startswith(f"aten::_scaled_dot_product_{kernel}_attention"):
            return AMPERE if precision == "bf16" and least < AMPERE else least
    return 0


def generation(capability: int) -> int:
    """The first of those that run the same kernels of attention.

    >>> generation(89), generation(75)
    (80, 50)
    """
    return max(first for first in (OLDEST, MAXWELL, AMPERE, HOPPER) if first <= max(capability, OLDEST))


def target_for(kind: str, capability: int | None) -> str:
    """The target of a device. Where nobody tells its capability, as another vendor's: as Hopper.

    >>> target_for("gpu", 80), target_for("gpu", None), target_for("cpu", None)
    ('cuda:80', 'cuda', 'cpu')
    """
    if kind == "cpu":
        return "cpu"
    version = capability or HOPPER
    return "cuda" if version >= HOPPER else f"cuda:{max(version, OLDEST)}"


def parse_target(text: str) -> Target:
    """`cuda`, `cuda:80` or `cpu`."""
    if text == "cpu":
        return Target("cpu")
    if text == "cuda":
        return Target("cuda")
    if match := re.fullmatch(r"cuda:(\d\d\d?)", str(text)):
        capability = int(match[1])
        if OLDEST <= capability <= 150:
            return Target("cuda", capability)
    raise BadInput("unknown-choice", f"unknown --target {text!r}: use cuda, cuda:80 (a compute capability) or cpu")


@dataclass(frozen=True)
class AttentionCall:
    """What decides the kernel of one attention."""

    dtype: str
    heads: int
    heads_kv: int
    length_q: int
    length_kv: int
    head_dim: int
    head_dim_v: int
    has_mask: bool
    dropout: float
    causal: bool
    learns_mask: bool = False
    """Does the mask want a gradient, as a learned bias does?"""


def attention_kernel(call: AttentionCall, target: Target) -> AttentionKernel:
    """The kernel that attention runs as: what torch 2.11 with cuDNN 9.19 chose on an H200 in 10,560 cases.

    Older architectures differ in what they can run (flash and bf16 from 8.0, anything fused from 5.0) and prefer (cuDNN
    first only from 9.0).
    """
    if target.kind == "cpu":
        fused = call.dropout == 0 and call.head_dim == call.head_dim_v and not call.learns_mask
        return "cpu-flash" if fused else "math"
    half = call.dtype in _HALF
    same_dim = call.head_dim == call.head_dim_v
    if target.capability >= HOPPER and half and _cudnn_runs(call):
        return "cudnn"
    square = call.length_q == call.length_kv or not call.causal
    if target.capability >= AMPERE and half and same_dim and call.head_dim <= 256 and not call.has_mask and square:
        return "flash"
    alignment = 8 if half else 4
    aligned = call.head_dim % alignment == 0 and call.head_dim_v % alignment == 0
    runs = call.dtype in ("fp16", "fp32") or (call.dtype == "bf16" and target.capability >= AMPERE)
    if target.capability >= MAXWELL and runs and aligned and call.heads == call.heads_kv:
        return "efficient"
    return "math"


def _cudnn_runs(call: AttentionCall) -> bool:
    dims = (call.head_dim, call.head_dim_v)
    return (
        all(dim % 8 == 0 and dim <= 256 for dim in dims)
        and call.length_kv > 1
        and not (call.length_q == 1 and call.dropout > 0)
        and not call.learns_mask
    )
