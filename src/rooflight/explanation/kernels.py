"""What a kernel's name says of the work it does: matrix product, layout, sum of parts; its tile; the unit it runs on.

Names are those of cuBLAS, cuDNN, CUTLASS and torch. What each convention means was found by counting single ops of
random shapes (benchmarks/h200/instructions.py), never on the models that are explained.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

Role = Literal[
    "matrix", "attention", "winograd", "fft", "layout", "cast", "pointwise", "reduction", "sum of parts", "bookkeeping"
]
Pass = Literal["product", "forward", "input gradient", "weight gradient"]
Unit = Literal["tensor", "cuda"]
Family = Literal["nvjet", "xmma sm90", "xmma sm80", "cutlass", "cutlass conv", "engine", "plain"]


@dataclass(frozen=True)
class Named:
    """A kernel by its name. `tile`: rows, columns and depth of what one thread block computes at a time."""

    role: Role
    unit: Unit = "cuda"
    family: Family = "plain"
    does: Pass | None = None
    tile: tuple[int, int, int] | None = None
    cluster: tuple[int, int] = (1, 1)
    """Thread blocks that go together: the grid is a multiple of it."""
    letters: str = ""
    """Which operands are transposed: `nn`, `tn`, ..."""
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


_PASSES: dict[str, Pass] = {
    "gemm": "product", "fprop": "forward", "dgrad": "input gradient", "wgrad": "weight gradient",
    "Fprop": "forward", "Dgrad": "input gradient", "Wgrad": "weight gradient",
}  # fmt: skip
_NVJET = re.compile(r"^nvjet_\w+?_(\d+)x(\d+)_(\d+)x\d+_(\d+)x(\d+)_[hv]_\w*?_([NT]{2})[NT]$")
_XMMA = re.compile(r"sm(\d+)_xmma_(gemm|fprop|dgrad|wgrad)\w*?_tilesize(\d+)x(\d+)x(\d+)")
_CUTLASS = re.compile(
    r"cutlass_(?:\d+_)?(?:wmma_)?(tensorop|simt)_\w*?(gemm|fprop|dgrad|wgrad)\w*?_(\d+)x(\d+)(?:_(\d+)x\d+)?_(\w+?)_?align"
)
_MANGLED = re.compile(r"cutlass.*GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E.*?Conv2d(Fprop|Dgrad|Wgrad)")
_ENGINE = re.compile(
    r"(convolve_sgemm|wgrad_alg\d_engine|dgrad_engine|dgrad2d_alg\d_\d)"
    r"<(?:[A-Za-z_]\w*, )+\d+, (\d+), (\d+), (\d+), "
)
"""cuDNN's older kernels for CUDA cores, whose tiles are given as powers of two."""
_LARGE_DEPTH = re.compile(r"sgemm_largek_lds64<\w+, \w+, (\d+), (\d+), (\d+), ")
"""cuBLAS's kernel for small results of a large depth: powers of two again."""
_ENGINES: dict[str, Pass] = {"c": "forward", "w": "weight gradient", "d": "input gradient"}
_LETTERS = re.compile(r"_([nt]{2})_n_")
_UNNAMED_DEPTH = 32
"""Depth of the tiles of older CUTLASS kernels, whose names leave it out."""
_OTHERS: tuple[tuple[str, Role], ...] = (
    (r"fmha_cutlass|sdpa_sm\d+_flash|flash_(?:fwd|bwd)|pytorch_flash", "attention"),
    (r"winograd", "winograd"),
    (r"\bfft|fft2d|DSE::|xmma_gemm_cf32|pointwise_mult_and_sum_complex|flip_filter|compute_gemm_pointers", "fft"),
    (r"nchwToNhwc|nhwcToNchw|FoldedNhwc|foldedNhwc|transpose_readWrite|kernel_transpose|nhwcAddPadding", "layout"),
    (r"convertTensor|convert_dq_to_16bits|copy_kernel|CatArrayBatched|direct_copy", "cast"),
    (r"splitKreduce|ReduceSplitK|reduce_wgrad|splitK_reduce", "sum of parts"),
    (r"scalePackedTensor|init_device_workspace|scal_kernel|precompute_indices|computeOffsets|philox|FillFunctor",
     "bookkeeping"),
    (r"reduce_kernel|compute_dot_do_o", "reduction"),
    (r"elementwise_kernel|epilogue::impl|tensor_transform|op_tensor|add_tensor", "pointwise"),
    (r"sgemm|gemmSN|gemvN|gemv|dgrad_engine|dgrad2d|wgrad_alg|wgrad2d|dgrad_alg|convolve_sgemm|conv2d_|magma|dot_kernel|"
     r"gemmk1|conv_depthwise|direct_kernel|dgemm|cf32", "matrix"),
)  # fmt: skip
_COMPILED_OTHERS = tuple((re.compile(pattern), role) for pattern, role in _OTHERS)


@lru_cache(maxsize=4096)
def read(name: str) -> Named | None:
    """`None`: a name that says nothing."""
    if (found := _NVJET.match(name)) is not None:
        a, b, k, x, y = map(int, found.groups()[:5])
        return Named("matrix", "tensor", "nvjet", "product", (a, b, k), (x, y), found[6].lower(),
                     biased="_bias" in name, split="splitK" in name)  # fmt: skip
    if (found := _XMMA.search(name)) is not None and "_cf32" not in name:
        if "execute_split_k_kernel" in name:  # the second of two: it adds up what the first left in parts
            return Named("sum of parts")
        letters = _LETTERS.search(name)
        return Named(
            "matrix", "cuda" if "_ffma_" in name else "tensor",
            "xmma sm90" if int(found[1]) >= 90 else "xmma sm80", _PASSES[found[2]],
            (int(found[3]), int(found[4]), int(found[5])), letters=letters[1] if letters else "",
            packs_taps="indexed_wo_smem" in name, strided="_strided" in name, segmented="segment_k_on" in name,
        )  # fmt: skip
    if (found := _CUTLASS.search(name)) is not None:
        unit: Unit = "tensor" if found[1] == "tensorop" else "cuda"
        return Named(
            "matrix", unit, "cutlass" if found[2] == "gemm" else "cutlass conv", _PASSES[found[2]],
            (int(found[3]), int(found[4]), int(found[5] or _UNNAMED_DEPTH)), letters=found[6][:2],
            strided=found[2] == "dgrad" and "unity_stride" not in name,
        )  # fmt: skip
    if (found := _MANGLED.search(name)) is not None:
        return Named("matrix", "tensor", "cutlass conv", _PASSES[found[4]],
                     (int(found[1]), int(found[2]), int(found[3])))  # fmt: skip
    if (found := _ENGINE.search(name)) is not None:
        return Named("matrix", "cuda", "engine", _ENGINES[found[1][0]],
                     (2 ** int(found[2]), 2 ** int(found[3]), 2 ** int(found[4])), packs_taps=True,
                     whole_channels=found[1].startswith("dgrad2d"))  # fmt: skip
    if (found := _LARGE_DEPTH.search(name)) is not None:
        return Named("matrix", "cuda", "cutlass", "product",
                     (2 ** int(found[1]), 2 ** int(found[2]), 2 ** int(found[3])))  # fmt: skip
    for pattern, role in _COMPILED_OTHERS:
        if pattern.search(name):
            return Named(role)
    return None
