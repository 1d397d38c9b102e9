"""What a kernel's name says: the work it does (matrix product, layout, sum of parts), its tile, the unit it runs on.

Names are those of cuBLAS, cuDNN, CUTLASS and torch. What each convention means was found by counting single ops of
random shapes (benchmarks/h200/instructions.py), never on the models that are explained.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from rooflight.ops.matrix_product import Pass

Role = Literal[
    "matrix", "attention", "winograd", "fft", "layout", "cast", "pointwise", "reduction", "sum of parts", "bookkeeping"
]
Unit = Literal["tensor", "cuda"]
Family = Literal["nvjet", "xmma sm90", "xmma sm80", "cutlass", "cutlass conv", "engine", "plain"]


@dataclass(frozen=True)
class KernelRole:
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
    "gemm": "product",
    "fprop": "forward",
    "dgrad": "input gradient",
    "wgrad": "weight gradient",
}
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
    (
        r"scalePackedTensor|init_device_workspace|scal_kernel|precompute_indices|computeOffsets|philox|FillFunctor",
        "bookkeeping",
    ),
    (r"reduce_kernel|compute_dot_do_o", "reduction"),
    (r"elementwise_kernel|epilogue::impl|tensor_transform|op_tensor|add_tensor", "pointwise"),
    (
        r"sgemm|gemmSN|gemvN|gemv|dgrad_engine|dgrad2d|wgrad_alg|wgrad2d|dgrad_alg|convolve_sgemm|conv2d_|magma|dot_kernel|"
        r"gemmk1|conv_depthwise|direct_kernel|dgemm|cf32",
        "matrix",
    ),
)
_COMPILED_OTHERS = tuple((re.compile(pattern), role) for pattern, role in _OTHERS)


@lru_cache(maxsize=4096)
def role_of(name: str) -> KernelRole | None:
    """`None`: a name that says nothing."""
    for pattern, read in _CONVENTIONS:
        match = pattern.search(name)
        if match is not None and (role := read(match, name)) is not None:
            return role
    return next((KernelRole(role) for pattern, role in _COMPILED_OTHERS if pattern.search(name)), None)


def _nvjet(match: re.Match[str], name: str) -> KernelRole:
    a, b, k, x, y = map(int, match.groups()[:5])
    biased, split = "_bias" in name, "splitK" in name
    letters = match[6].lower()
    return KernelRole("matrix", "tensor", "nvjet", "product", (a, b, k), (x, y), letters, biased=biased, split=split)


def _xmma(match: re.Match[str], name: str) -> KernelRole | None:
    if "_cf32" in name:  # of complex numbers: a part of an FFT
        return None
    if "execute_split_k_kernel" in name:  # the second of two: it adds up what the first left in parts
        return KernelRole("sum of parts")
    letters = _LETTERS.search(name)
    return KernelRole(
        "matrix",
        "cuda" if "_ffma_" in name else "tensor",
        "xmma sm90" if int(match[1]) >= 90 else "xmma sm80",
        _PASSES[match[2]],
        (int(match[3]), int(match[4]), int(match[5])),
        letters=letters[1] if letters else "",
        packs_taps="indexed_wo_smem" in name,
        strided="_strided" in name,
        segmented="segment_k_on" in name,
    )


def _cutlass(match: re.Match[str], name: str) -> KernelRole:
    return KernelRole(
        "matrix",
        "tensor" if match[1] == "tensorop" else "cuda",
        "cutlass" if match[2] == "gemm" else "cutlass conv",
        _PASSES[match[2]],
        (int(match[3]), int(match[4]), int(match[5] or _UNNAMED_DEPTH)),
        letters=match[6][:2],
        strided=match[2] == "dgrad" and "unity_stride" not in name,
    )


def _mangled(match: re.Match[str], name: str) -> KernelRole:
    tile = (int(match[1]), int(match[2]), int(match[3]))
    return KernelRole("matrix", "tensor", "cutlass conv", _PASSES[match[4].lower()], tile)


def _engine(match: re.Match[str], name: str) -> KernelRole:
    tile = (2 ** int(match[2]), 2 ** int(match[3]), 2 ** int(match[4]))
    rows_are_channels = match[1].startswith("dgrad2d")
    does = _ENGINES[match[1][0]]
    return KernelRole("matrix", "cuda", "engine", does, tile, packs_taps=True, whole_channels=rows_are_channels)


def _large_depth(match: re.Match[str], name: str) -> KernelRole:
    tile = (2 ** int(match[1]), 2 ** int(match[2]), 2 ** int(match[3]))
    return KernelRole("matrix", "cuda", "cutlass", "product", tile)


_CONVENTIONS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], KernelRole | None]], ...] = (
    (_NVJET, _nvjet),
    (_XMMA, _xmma),
    (_CUTLASS, _cutlass),
    (_MANGLED, _mangled),
    (_ENGINE, _engine),
    (_LARGE_DEPTH, _large_depth),
)


# --- tiles, also of chips whose kernels nobody counted

_MN = r"(?P<m>\d{1,5})x(?P<n>\d{1,5})"
_MNK = rf"{_MN}x(?P<k>\d{{1,5}})"
_END = r"(?!\d|x\d)"
_CHIPS = r"\b(?:maxwell|pascal|volta|turing|ampere|ada|hopper)"

_TILE_PATTERNS = tuple(
    re.compile(pattern + _END)
    for pattern in (
        # sm90_xmma_gemm_bf16bf16_..._tilesize128x128x64_warpgroupsize1x1x1_...: cuBLAS and cuDNN
        rf"_xmma_\w*?_tilesize{_MNK}",
        # nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT (tile, depth x stages, cluster), nvjet_sm100_tst_64x32_64x16_...
        rf"\bnvjet_(?:sm\d+_)?[a-z]+_{_MN}_(?P<k>\d{{1,5}})x\d+",
        # nvjet_sm120_tst_mma_64x64x128_3_32x32x128_... (tile, stages, tile of a warp)
        rf"\bnvjet_(?:sm\d+_)?[a-z]+_mma_{_MNK}",
        # cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_..._128x128x64_2x1x1_...: the instruction has a letter before it
        rf"\bcutlass3x_sm\d+_\w*?_{_MNK}",
        # cutlass_80_simt_sgemm_128x64_8x5_nn_align1, cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_...
        rf"\bcutlass_(?:\d+_)?(?:wmma_)?(?:tensorop|simt)_\w*?_{_MN}_(?P<k>\d{{1,5}})x\d+",
        # ...::threadblock::ImplicitGemmMultistage<cutlass::gemm::GemmShape<64, 128, 16>, ...>, and the same mangled
        r"threadblock(?:::|\d+)\w{0,60}?(?:<[\w:]*)?GemmShape(?:<|ILi)"
        r"(?P<m>\d{1,5})(?:, |ELi)(?P<n>\d{1,5})(?:, |ELi)(?P<k>\d{1,5})",
        # ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_64x3_tn: the depth stands apart
        rf"{_CHIPS}_\w*?gemm_(?:\w*?_)?{_MN}_\w*?stages_(?P<k>\d{{1,5}})x\d+",
        # ampere_sgemm_128x64_tn, volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn, turing_scudnn_128x32_relu_interior_nn_v1
        rf"{_CHIPS}_\w*?(?:gemm|cudnn)_(?:\w*?_)?{_MN}",
    )
)


def tile(name: str) -> tuple[int, ...] | None:
    """(rows, columns) or (rows, columns, depth) of a matrix kernel's output tile; `None` where the name does not tell.

    cuBLAS, cuDNN and CUTLASS write it into the names of their kernels, each family in its own way. Rows and columns are
    those of the library, which may compute the transposed product. Names that hold other sizes tell nothing: Winograd
    transforms, attention (its tile is one of scores, not of output).

    >>> tile("ampere_sgemm_128x64_tn")
    (128, 64)
    """
    if "winograd" in name:
        return None
    for pattern in _TILE_PATTERNS:
        match = pattern.search(name)
        if match is not None:
            sizes = tuple(int(size) for size in match.groupdict().values())
            return sizes if all(sizes) else None
    return None


# --- as people can read them

_CASTS = r"\((?:unsigned |signed )?(?:int|long|short|char|bool|long long)\)"
_NOISE = re.compile(
    r"\(anonymous namespace\)::|<unnamed>::|\bvoid (?=\w)"
    r"|::(?:\[lambda[^\]]*\]|\{lambda\([^{}]*\)#\d+\}|operator ?\(\)\([^()]*\)(?: const)?)"
    r"|, (?:std::|at::detail::)?[Aa]rray<char ?\*, (?:\(int\)|\(unsigned long\))?\d+u?l?>|" + _CASTS
)
_NAMESPACES = re.compile(r"\b(?:\w+::)+(?=[\w~])")
_WRAPPED = re.compile(r"Kernel2?<((?:cutlass|sm\d+)_\w+)>")
_TILE_IN_NAME = re.compile(r"tilesize\d+x\d+(?:x\d+)?")


def short_name(name: str, width: int | None = None) -> str:
    """`void at::native::copy<(int)4, at::Fill<float>>(int, float *)` is `copy<4, Fill<float>>`."""
    text = _NAMESPACES.sub("", _without_arguments(_NOISE.sub("", name.strip()))).strip() or name.strip()
    if (wrapped := _WRAPPED.fullmatch(text)) is not None:
        text = wrapped[1]
    if width is None or len(text) <= width:
        return text
    tile = _TILE_IN_NAME.search(text)
    if tile is not None and tile.start() > 8:  # what tells one of a library's kernels from the next
        return f"{text[: width - len(tile[0]) - 1]}…{tile[0]}"
    return f"{text[: width - 1]}…"


def _without_arguments(text: str) -> str:
    """Leave out argument lists, of the kernel and of functions inside its template's arguments.

    In `Memcpy HtoD (Pageable -> Device)` the parentheses belong to the name: a space stands before them.
    """
    characters: list[str] = []
    inside = 0
    for place, character in enumerate(text):
        if character == "(" and (inside or (place > 0 and text[place - 1] != " ")):
            inside += 1
        elif character == ")" and inside:
            inside -= 1
        elif not inside:
            characters.append(character)
    return "".join(characters)
