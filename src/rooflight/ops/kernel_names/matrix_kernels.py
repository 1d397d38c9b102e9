"""Names of matrix products and convolutions: cuBLAS, cuDNN and CUTLASS, of Maxwell's chips to Blackwell's.

What the conventions of Hopper's kernels mean for the work they do was found by counting single ops of random shapes
(benchmarks/h200/instructions.py), never on the models that are explained; the names of the others were read in public
traces and logs (tests/data/kernel_names.csv). Rows and columns of a tile are those of the library, which may compute
the transposed product.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from rooflight.ops.kernel_names.kernel_role import KernelRole, Unit
from rooflight.ops.matrix_product import Pass

_PASSES: dict[str, Pass] = {
    "gemm": "product",
    "fprop": "forward",
    "dgrad": "input gradient",
    "wgrad": "weight gradient",
}
_TYPES = {"tf32": "tf32", "bf16": "bf16", "f16": "fp16", "fp16": "fp16", "f32": "fp32", "fp32": "fp32", "f64": "fp64",
          "e4m3": "fp8", "e5m2": "fp8", "e2m1": "fp4", "i8": "int8", "s8": "int8", "u8": "int8", "int8": "int8",
          "i4": "int4", "s4": "int4"}  # fmt: skip
_TYPE = "|".join(sorted(_TYPES, key=len, reverse=True))
_SIZE, _POWER = r"\d{1,5}", r"1?\d"
"""Of a tile, and of two. Names come from files of anyone: a pattern takes no more digits, nor more signs in between,
than any library writes, so that no name is a number without end or a search without one."""
_LETTER_TYPES = {"s": "fp32", "d": "fp64", "h": "fp16"}
_GROUPS = re.compile(r"_g(\d{1,5})_")
_UNNAMED_DEPTH = 32
"""Depth of the tiles of older CUTLASS kernels, whose names leave it out."""

# nvjet_sm90_tst_128x256_64x4_1x2_h_bz_coopA_NNT: types, tile, depth x stages, cluster; nvjet_sm120_tst_mma_64x64x128_3
_NVJET = re.compile(
    rf"\bnvjet_(?:sm(\d{{1,5}})_)?([a-z]+)_"
    rf"(?:({_SIZE})x({_SIZE})_({_SIZE})x{_SIZE}(?:_({_SIZE})x({_SIZE})(?=_))?|mma_({_SIZE})x({_SIZE})x({_SIZE}))"
    r"(?!\d|x\d)"
)
_NVJET_LETTERS = re.compile(r"_([NT]{2})[NT]{1,2}\b")
_NVJET_TYPES = {"t": "bf16", "h": "fp16", "q": "fp8", "r": "fp8", "o": "fp4"}
# sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_...
_XMMA = re.compile(r"sm(\d{1,5})_xmma_(?:sparse_)?(gemm|fprop|dgrad|wgrad)")
_XMMA_TILE = re.compile(rf"_tilesize({_SIZE})x({_SIZE})x({_SIZE})(?!\d|x\d)")
_XMMA_TYPES = re.compile(rf"_({_TYPE})[a-z0-9]+_({_TYPE})[a-z0-9]+_[a-z0-9]+_(?:n[a-z]+|[nt]{{2}})_")
_XMMA_LETTERS = re.compile(r"_([nt]{2})_n_")
# cutlass_80_tensorop_bf16_s16816gemm_relu_bf16_128x64_64x6_tn_align8, cutlass_tensorop_s1688dgrad_optimized_tf32_...
_CUTLASS = re.compile(
    r"\bcutlass_(?:\d{1,5}_)?(?:wmma_)?(tensorop|simt)_(\w{0,60}?)(gemm|fprop|dgrad|wgrad)(\w{0,80}?)"
    rf"_({_SIZE})x({_SIZE})(?:_({_SIZE})x{_SIZE})?(?:_(\w{{1,60}}?)_?align|(?=\W|$))"
)
# cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_bf16_f32_bf16_bf16_128x128x64_2x1x1_0_ttn_align8_warpspecialized_pingpong
_CUTLASS3 = re.compile(r"\bcutlass3x_sm\d{1,5}_(?:bs)?(tensorop|simt)_(\w*?)(gemm|fprop|dgrad|wgrad)_?(\w*)")
_CUTLASS3_TILE = re.compile(
    rf"(?:^|_)({_SIZE})x({_SIZE})x({_SIZE})(?!\d|x\d)(?:_({_SIZE})x({_SIZE})x{_SIZE})?(?:_\d{{1,5}}_([nt]{{2}})[nt])?"
)
# ...::threadblock::ImplicitGemmMultistage<cutlass::gemm::GemmShape<64, 128, 16>, ...>, and the same mangled
_TEMPLATE = re.compile(
    r"threadblock(?:::|\d{1,5})\w{0,60}?(?:<[\w:]{0,120})?GemmShape"
    rf"(?:<|ILi)({_SIZE})(?:, |ELi)({_SIZE})(?:, |ELi)({_SIZE})(?!\d)"
)
_TEMPLATE_PASS = re.compile(r"Conv\dd(Fprop|Dgrad|Wgrad)")
# cutlass::gemm::collective::CollectiveMma<cutlass::gemm::MainloopSm90...<3, cute::tuple<...>, ...>, cute::tuple<...>, T
_COLLECTIVE = re.compile(
    r"CollectiveMma<cutlass::gemm::Mainloop\w{1,120}<.{0,2000}?>>?, ?(?:cute::)?tuple<(?:cute::)?C<"
    rf"(?:\(int\))?({_SIZE})>, ?(?:cute::)?C<(?:\(int\))?({_SIZE})>, ?(?:cute::)?C<(?:\(int\))?({_SIZE})> ?>"
)
# Volta_hmma_implicit_gemm_fprop_fp32_nhwc_128x128x64x1_1x3x3x0x1
_HMMA = re.compile(rf"\bVolta_hmma_implicit_gemm_(fprop|dgrad|wgrad)_\w{{0,80}}?_({_SIZE})x({_SIZE})x({_SIZE})x\d")
# volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn, ampere_sgemm_128x64_tn, turing_scudnn_128x32_relu_interior_nn_v1
_CHIP = re.compile(
    r"(?:\b|_)(maxwell|pascal|volta|turing|ampere|ada|hopper)_"
    r"(?:(\w{1,40}?)_)?([a-z]{1,20}?)(\d{1,10})?(gemm|cudnn)(?:_(\w+))?"
)
_CHIP_TILE = re.compile(rf"(?:^|_)({_SIZE})x({_SIZE})(?!\d|x\d)")
_CHIP_DEPTH = re.compile(rf"_stages_({_SIZE})x\d")
_CHIP_LETTERS = re.compile(r"_([nt]{2})(?:_v\d+)?$")
_ENGINE = re.compile(
    r"(convolve_sgemm|wgrad_alg\d_engine|dgrad_engine|dgrad2d_alg\d_\d)"
    rf"<(?:[A-Za-z_]\w*, )+(?:int=)?\d+, (?:int=)?({_POWER}), (?:int=)?({_POWER}), (?:int=)?({_POWER}), "
)
"""cuDNN's older kernels for CUDA cores, whose tiles are given as powers of two."""
_ENGINES: dict[str, Pass] = {"c": "forward", "w": "weight gradient", "d": "input gradient"}
_LARGE_DEPTH = re.compile(
    rf"sgemm_largek_lds64<\w{{1,60}}, \w{{1,60}}, (?:int=)?({_POWER}), (?:int=)?({_POWER}), (?:int=)?({_POWER}), "
)
"""cuBLAS's kernel for small results of a large depth: powers of two again."""


def matrix_role(name: str) -> KernelRole | None:
    for pattern, read in _CONVENTIONS:
        match = pattern.search(name)
        if match is not None and (role := read(match, name)) is not None:
            return role
    return None


def _tile(*sizes: str | None) -> tuple[int, int, int] | None:
    if not all(sizes):
        return None
    a, b, k = (int(size or 0) for size in sizes)
    return (a, b, k) if a and b and k else None


def _cluster(rows: str | None, columns: str | None) -> tuple[int, int]:
    a, b = int(rows or 0), int(columns or 0)
    return (a, b) if a and b else (1, 1)


def _nvjet(match: re.Match[str], name: str) -> KernelRole | None:
    chip, types, *sizes = match.groups()
    tile = _tile(*sizes[:3]) or _tile(*sizes[5:])
    if tile is None:
        return None
    letters = _NVJET_LETTERS.search(name)
    return KernelRole(
        "matrix",
        "tensor",
        "nvjet" if chip in (None, "90") else "cublas",
        "product",
        tile,
        cluster=_cluster(sizes[3], sizes[4]),
        letters=letters[1].lower() if letters else "",
        precision=_NVJET_TYPES.get(types[0]),
        biased="_bias" in name,
        split="splitK" in name,
    )


def _xmma(match: re.Match[str], name: str) -> KernelRole | None:
    if "_cf32" in name:  # of complex numbers: a part of an FFT
        return None
    if "execute_split_k_kernel" in name:  # the second of two: it adds up what the first left in parts
        return KernelRole("sum of parts")
    letters, tile, types = _XMMA_LETTERS.search(name), _XMMA_TILE.search(name), _XMMA_TYPES.search(name)
    cuda = "_ffma_" in name
    precision = _TYPES[types[2]] if types else None
    if precision == "fp32" and not cuda:  # which tensor cores do not multiply: what is stored tells
        precision = _TYPES[types[1]] if types and types[1] != "f32" else None
    return KernelRole(
        "matrix",
        "cuda" if cuda else "tensor",
        "xmma sm90" if int(match[1]) >= 90 else "xmma sm80",
        _PASSES[match[2]],
        _tile(*tile.groups()) if tile else None,
        letters=letters[1] if letters else "",
        precision=precision,
        packs_taps="indexed_wo_smem" in name,
        strided="_strided" in name,
        segmented="segment_k_on" in name,
        groups=max(1, int(groups[1])) if (groups := _GROUPS.search(name)) else 1,
    )


def _cutlass(match: re.Match[str], name: str) -> KernelRole | None:
    tensor, does = match[1] == "tensorop", _PASSES[match[3]]
    tile = _tile(match[5], match[6], match[7] or str(_UNNAMED_DEPTH))
    if tile is None:
        return None
    return KernelRole(
        "matrix",
        "tensor" if tensor else "cuda",
        "cutlass" if does == "product" else "cutlass conv",
        does,
        tile,
        letters=(match[8] or "")[:2],
        precision=_cutlass_precision(match[2], match[4]) if tensor else _LETTER_TYPES.get(match[2][-1:]),
        strided=does == "input gradient" and "unity_stride" not in name,
    )


def _cutlass_precision(before: str, behind: str) -> str | None:
    """`bf16_s16816` gemm `_relu_bf16`: what is multiplied stands behind; `s1688` alone takes fp32 as TF32."""
    if (told := re.search(rf"_({_TYPE})$", behind)) is not None:
        return _TYPES[told[1]]
    if (told := re.search(rf"\d({_TYPE})$", before)) is not None:
        return _TYPES[told[1]]
    return {"s1688": "tf32", "d884": "fp64"}.get(before) or {"h": "fp16"}.get(before.rpartition("_")[2][:1])


def _cutlass3(match: re.Match[str], name: str) -> KernelRole:
    types = re.match(rf"(?:\w*?_)??(?:ue\d+m\d+x)?({_TYPE})_", match[4])
    cuda = match[1] == "simt"
    tile = _CUTLASS3_TILE.search(match[4])
    precision = _TYPES[types[1]] if types else None
    return KernelRole(
        "matrix",
        "cuda" if cuda else "tensor",
        "cutlass 3",
        _PASSES[match[3]],
        _tile(*tile.groups()[:3]) if tile else None,
        cluster=_cluster(tile[4], tile[5]) if tile else (1, 1),
        letters=tile[6] or "" if tile else "",
        # Tensor cores know no fp32: it is rounded to TF32.
        precision="tf32" if not cuda and precision == "fp32" else precision,
        biased="_bias" in name,
    )


def _template(match: re.Match[str], name: str) -> KernelRole | None:
    told = _TEMPLATE_PASS.search(name)
    tile = _tile(match[1], match[2], match[3])
    if told is None:
        return KernelRole("matrix", None, "plain", tile=tile)
    return KernelRole("matrix", "tensor", "cutlass conv", _PASSES[told[1].lower()], tile)


def _collective(match: re.Match[str], name: str) -> KernelRole:
    types = re.match(r", ?cutlass::(bfloat16|half|tfloat32|float_e4m3|float_e5m2)_t", name[match.end() :])
    names = {"bfloat16": "bf16", "half": "fp16", "tfloat32": "tf32", "float_e4m3": "fp8", "float_e5m2": "fp8"}
    precision = names[types[1]] if types else None
    return KernelRole("matrix", "tensor", "cutlass 3", "product", _tile(*match.groups()), precision=precision)


def _chip(match: re.Match[str], name: str) -> KernelRole | None:
    chip, stored, letter, instruction, kind, rest = match.groups()
    rest = rest or ""
    if "winograd" in name:
        return KernelRole("winograd")
    if letter in ("c", "gc", "z"):
        return KernelRole("fft")  # products of spectra
    if letter not in ("s", "h", "d", "i"):
        return None
    unit: Unit = "tensor" if instruction else "cuda"
    sides, depth = _CHIP_TILE.search(rest), _CHIP_DEPTH.search(rest)
    letters = _CHIP_LETTERS.search(rest)
    known = _tile(sides[1], sides[2], depth[1] if depth else "1") if sides else None
    return KernelRole(
        "matrix",
        unit,
        "cublas" if kind == "gemm" else "plain",
        "product" if kind == "gemm" else _cudnn_pass(rest),
        known if depth else None,
        sides=known[:2] if known else None,
        letters=letters[1] if letters else "",
        precision=_chip_precision(chip, stored, letter, rest) if instruction else _LETTER_TYPES.get(letter),
        split="splitK" in rest,
    )


def _hmma(match: re.Match[str], name: str) -> KernelRole:
    return KernelRole("matrix", "tensor", "plain", _PASSES[match[1]], _tile(*match.groups()[1:]))


def _cudnn_pass(rest: str) -> Pass | None:
    """A ReLU behind the sums is there in the forward pass alone."""
    told = re.search(r"fprop|dgrad|wgrad|relu", rest)
    return None if told is None else _PASSES["fprop" if told[0] == "relu" else told[0]]


def _chip_precision(chip: str, stored: str | None, letter: str, rest: str) -> str | None:
    if letter in ("h", "d", "i"):
        return {"h": "fp16", "d": "fp64", "i": "int8"}[letter]
    told = re.match(rf"({_TYPE})_", rest)
    if told is not None:
        return _TYPES[told[1]]
    if stored is not None:
        return _TYPES.get(stored)
    return "fp16" if chip in ("volta", "turing") else None  # the one type that their tensor cores sum in fp32


def _engine(match: re.Match[str], name: str) -> KernelRole:
    rows, columns, depth = (2 ** int(size) for size in match.groups()[1:4])
    does = _ENGINES[match[1][0]]
    return KernelRole(
        "matrix",
        "cuda",
        "engine",
        does,
        (rows, columns, depth),
        precision="fp32",
        packs_taps=True,
        split=match[1].startswith("wgrad_alg0"),
        whole_channels=match[1].startswith("dgrad2d"),
    )


def _large_depth(match: re.Match[str], name: str) -> KernelRole:
    tile = (2 ** int(match[1]), 2 ** int(match[2]), 2 ** int(match[3]))
    return KernelRole("matrix", "cuda", "cutlass", "product", tile, precision="fp32")


_CONVENTIONS: tuple[tuple[re.Pattern[str], Callable[[re.Match[str], str], KernelRole | None]], ...] = (
    (_NVJET, _nvjet),
    (_XMMA, _xmma),
    (_CUTLASS3, _cutlass3),
    (_CUTLASS, _cutlass),
    (_TEMPLATE, _template),
    (_COLLECTIVE, _collective),
    (_ENGINE, _engine),
    (_LARGE_DEPTH, _large_depth),
    (_CHIP, _chip),
    (_HMMA, _hmma),
)
