"""What a kernel's name says: the work it does (matrix product, layout, sum of parts), its tile, the unit it runs on.

One reading for all chips and libraries, a file a kind of kernel: `role_of`. A name that says nothing gives nothing.
"""

from __future__ import annotations

import re
from functools import lru_cache

from rooflight.ops.kernel_names.attention_kernels import attention_role
from rooflight.ops.kernel_names.generated_kernels import generated_role
from rooflight.ops.kernel_names.kernel_role import Family, KernelRole, Role, Unit
from rooflight.ops.kernel_names.matrix_kernels import matrix_role
from rooflight.ops.kernel_names.short_names import short_name

__all__ = ["Family", "KernelRole", "Role", "Unit", "role_of", "short_name", "tile"]

_OTHERS: tuple[tuple[str, Role], ...] = (
    (r"winograd", "winograd"),
    (r"\bfft|fft2d|DSE::|xmma_gemm_cf32|pointwise_mult_and_sum_complex|flip_filter|compute_gemm_pointers", "fft"),
    (r"nchwToNhwc|nhwcToNchw|FoldedNhwc|foldedNhwc|transpose_readWrite|kernel_transpose|nhwcAddPadding|cubeTranspose",
     "layout"),
    (r"convertTensor|copy_kernel|CatArrayBatched|direct_copy", "cast"),
    (r"splitKreduce|ReduceSplitK|reduce_wgrad|splitK_reduce|reduce_1Block", "sum of parts"),
    (
        r"scalePackedTensor|init_device_workspace|scal_kernel|precompute_indices|compute\w{0,60}Offsets|philox|FillFunctor",
        "bookkeeping",
    ),
    (r"nccl(?:Dev)?Kernel|ncclAll|ncclReduce|ncclBroadcast|all_reduce_kernel", "collective"),
    (r"\bbn_[fb]w_|batch_norm_|LayerNorm|layer_norm|GroupNorm|RowwiseMoments|rms_norm|GammaBeta",
     "normalisation"),
    (r"[sS]oft[mM]ax", "softmax"),
    (r"max_pool|avg_pool|MaxPool|AveragePool|AvgPool|pooling_[fb]w", "pooling"),
    (r"RadixSort|radixSort|bitonicSort|gatherTopK", "sort"),
    (r"reduce_kernel", "reduction"),
    (r"elementwise_kernel|epilogue::impl|tensor_transform|op_tensor|add_tensor|multi_tensor_apply|NativePointwise",
     "pointwise"),
    (
        r"sgemm|gemmSN|gemvN|gemv|dgrad_engine|dgrad2d|wgrad_alg|wgrad2d|dgrad_alg|convolve_sgemm|conv2d_|magma|dot_kernel|"
        r"gemmk1|conv_depthwise|direct_kernel|dgemm|cf32",
        "matrix",
    ),
)  # fmt: skip
_TEMPLATE_TYPES = re.compile(
    r"<(?:int, )*(?:(?:__half|__nv_bfloat16|float|double), )*(__half|__nv_bfloat16|float|double)\b"
)
_COMPILED_OTHERS = tuple((re.compile(pattern), role) for pattern, role in _OTHERS)


@lru_cache(maxsize=4096)
def role_of(name: str) -> KernelRole | None:
    """`None`: a name that says nothing."""
    for read in (generated_role, attention_role, matrix_role):
        if (role := read(name)) is not None:
            return role
    other = next((role for pattern, role in _COMPILED_OTHERS if pattern.search(name)), None)
    if other == "matrix":
        return KernelRole("matrix", precision=_computes_in(name))
    return None if other is None else KernelRole(other)


def _computes_in(name: str) -> str | None:
    """Of cuBLAS's and cuDNN's templates: the last of the types that they begin with."""
    types = _TEMPLATE_TYPES.search(name)
    return None if types is None else {"float": "fp32", "double": "fp64", "__half": "fp16"}.get(types[1])


def tile(name: str) -> tuple[int, ...] | None:
    """(rows, columns) or (rows, columns, depth) of a matrix kernel's output tile; `None` where the name does not tell.

    Names that hold other sizes tell nothing: Winograd transforms, attention (its tile is one of scores, not of output).

    >>> tile("ampere_sgemm_128x64_tn")
    (128, 64)
    """
    role = role_of(name)
    return None if role is None else role.tile or role.sides
