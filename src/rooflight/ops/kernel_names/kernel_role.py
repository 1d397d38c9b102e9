"""What the name of a kernel can say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from rooflight.ops.matrix_product import Pass

Role = Literal[
    "matrix", "attention", "winograd", "fft", "layout", "cast", "pointwise", "reduction", "sum of parts", "bookkeeping",
    "normalisation", "softmax", "pooling", "sort", "collective",
]  # fmt: skip
Unit = Literal["tensor", "cuda"]
Family = Literal[
    "nvjet", "xmma sm90", "xmma sm80", "cutlass", "cutlass conv", "engine", "cublas", "cutlass 3", "flash-attention",
    "xformers", "cudnn attention", "triton", "plain",
]  # fmt: skip
Generated = Literal["pointwise", "reduction", "persistent reduction", "template", "foreach", "scan"]
"""What Inductor made of the ops that it fused."""


@dataclass(frozen=True)
class KernelRole:
    """A kernel by its name. What the name does not tell is `None`, `""` or `False`."""

    role: Role
    unit: Unit | None = "cuda"
    family: Family = "plain"
    does: Pass | None = None
    tile: tuple[int, int, int] | None = None
    """Rows, columns and depth of what one thread block computes at a time."""
    sides: tuple[int, int] | None = None
    """Rows and columns of it, where the name leaves the depth out."""
    cluster: tuple[int, int] = (1, 1)
    """Thread blocks that go together: the grid is a multiple of it."""
    letters: str = ""
    """Which operands are transposed: `nn`, `tn`, ..."""
    precision: str | None = None
    """What is multiplied: `tf32`, `bf16`, ...; of CUDA cores what they compute in."""
    packs_taps: bool = False
    """The depth runs over taps and channels together, so that no tap is filled up for itself."""
    strided: bool = False
    """Takes the gradient of a strided convolution apart into one product for every remainder."""
    biased: bool = False
    split: bool = False
    """Says itself that the depth is split."""
    whole_channels: bool = False
    """A tile's rows are all taps of as many channels as fit."""
    segmented: bool = False
    """Blocks share the depth of a tile where that keeps them busy."""
    groups: int = 1
    """Of a convolution that lie side by side in one tile."""
    backward: bool | None = None
    """Of an attention: is it the gradient?"""
    generated: Generated | None = None
    """Of a kernel that Inductor wrote."""
    fused: tuple[str, ...] | None = None
    """The aten ops in its name; `None` where they cannot be told apart."""
