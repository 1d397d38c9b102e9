"""The device a trace is for, and which attention kernel torch would choose there.

`cuda` stands for Hopper or newer, `cuda:80` for a GPU of compute capability 8.0, `cpu` for the CPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from rooflight.errors import BadInput

AttentionKernel = Literal["cudnn", "flash", "efficient", "cpu-flash", "math"]

_HALF = ("fp16", "bf16")


@dataclass(frozen=True)
class Target:
    kind: Literal["cuda", "cpu"]
    capability: int = 90
    """Compute capability times ten; of no meaning for a CPU."""

    @property
    def name(self) -> str:
        return "cuda" if self == Target("cuda") else f"cuda:{self.capability}" if self.kind == "cuda" else "cpu"


def parse_target(text: str) -> Target:
    """`cuda`, `cuda:80` or `cpu`."""
    if text == "cpu":
        return Target("cpu")
    if text == "cuda":
        return Target("cuda")
    if match := re.fullmatch(r"cuda:(\d\d\d?)", text):
        capability = int(match[1])
        if 37 <= capability <= 150:
            return Target("cuda", capability)
    raise BadInput(f"unknown target {text!r}: use cuda, cuda:80 (a compute capability) or cpu")


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


def attention_kernel(call: AttentionCall, target: Target) -> AttentionKernel:
    """The kernel that attention runs as: what torch 2.11 with cuDNN 9.19 chose on an H200 in 10,560 cases.

    Older architectures differ in what they can run (flash from 8.0) and prefer (cuDNN first only from 9.0).
    """
    if target.kind == "cpu":
        return "cpu-flash" if call.dropout == 0 and call.head_dim == call.head_dim_v else "math"
    half = call.dtype in _HALF
    same_dim = call.head_dim == call.head_dim_v
    if target.capability >= 90 and half and _cudnn_runs(call):
        return "cudnn"
    square = call.length_q == call.length_kv or not call.causal
    if target.capability >= 80 and half and same_dim and call.head_dim <= 256 and not call.has_mask and square:
        return "flash"
    alignment = 8 if half else 4
    aligned = call.head_dim % alignment == 0 and call.head_dim_v % alignment == 0
    if (half or call.dtype == "fp32") and aligned and call.heads == call.heads_kv:
        return "efficient"
    return "math"


def _cudnn_runs(call: AttentionCall) -> bool:
    dims = (call.head_dim, call.head_dim_v)
    return (
        all(dim % 8 == 0 and dim <= 256 for dim in dims)
        and call.length_kv > 1
        and not (call.length_q == 1 and call.dropout > 0)
    )
