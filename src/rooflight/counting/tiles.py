"""The output tile of one thread block, read from the name of a matrix kernel.

cuBLAS, cuDNN and CUTLASS write the shape of the tile into the names of their kernels, each family in its own way.
Rows and columns are those of the library, which may compute the transposed product.

Names that hold other sizes give `None`: Winograd transforms, attention (its tile is one of scores, not of output).
"""

from __future__ import annotations

import re

_MN = r"(?P<m>\d+)x(?P<n>\d+)"
_MNK = rf"{_MN}x(?P<k>\d+)"
_END = r"(?!\d|x\d)"
_CHIPS = r"\b(?:maxwell|pascal|volta|turing|ampere|ada|hopper)"

_PATTERNS = tuple(
    re.compile(pattern + _END)
    for pattern in (
        # sm90_xmma_gemm_bf16bf16_..._tilesize128x128x64_warpgroupsize1x1x1_...: cuBLAS and cuDNN
        rf"_xmma_\w*?_tilesize{_MNK}",
        # nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NNT (tile, depth x stages, cluster), nvjet_sm100_tst_64x32_64x16_...
        rf"\bnvjet_(?:sm\d+_)?[a-z]+_{_MN}_(?P<k>\d+)x\d+",
        # nvjet_sm120_tst_mma_64x64x128_3_32x32x128_... (tile, stages, tile of a warp)
        rf"\bnvjet_(?:sm\d+_)?[a-z]+_mma_{_MNK}",
        # cutlass3x_sm90_tensorop_s64x128x16gemm_bf16_..._128x128x64_2x1x1_...: the instruction has a letter before it
        rf"\bcutlass3x_sm\d+_\w*?_{_MNK}",
        # cutlass_80_simt_sgemm_128x64_8x5_nn_align1, cutlass_tensorop_s1688fprop_optimized_tf32_128x128_16x4_...
        rf"\bcutlass_(?:\d+_)?(?:wmma_)?(?:tensorop|simt)_\w*?_{_MN}_(?P<k>\d+)x\d+",
        # ...::threadblock::ImplicitGemmMultistage<cutlass::gemm::GemmShape<64, 128, 16>, ...>, and the same mangled
        r"threadblock(?:::|\d+)\w{0,60}?(?:<[\w:]*)?GemmShape(?:<|ILi)"
        r"(?P<m>\d+)(?:, |ELi)(?P<n>\d+)(?:, |ELi)(?P<k>\d+)",
        # ampere_fp16_s16816gemm_fp16_256x128_ldg8_f2f_stages_64x3_tn: the depth stands apart
        rf"{_CHIPS}_\w*?gemm_(?:\w*?_)?{_MN}_\w*?stages_(?P<k>\d+)x\d+",
        # ampere_sgemm_128x64_tn, volta_fp16_s884gemm_fp16_128x64_ldg8_f2f_nn, turing_scudnn_128x32_relu_interior_nn_v1
        rf"{_CHIPS}_\w*?(?:gemm|cudnn)_(?:\w*?_)?{_MN}",
    )
)


def tile(name: str) -> tuple[int, ...] | None:
    """(rows, columns) or (rows, columns, depth) of a kernel's tile; `None` where the name does not tell.

    >>> tile("ampere_sgemm_128x64_tn")
    (128, 64)
    """
    if "winograd" in name:
        return None
    for pattern in _PATTERNS:
        found = pattern.search(name)
        if found is not None:
            sizes = tuple(int(size) for size in found.groupdict().values())
            return sizes if all(sizes) else None
    return None
