"""Fast convolutions: how many FLOPs Winograd's and FFT's way take instead of the direct one, from the kernels' grids.

Winograd's gradient of the weights takes tiles of 4x4 results apart into 36 products of transformed tiles; FFT
multiplies spectra, a product for every frequency. The transforms' own FLOPs were counted on single convolutions
(benchmarks/h200/results/instructions): fitted there, they hold within 0.3% of each of 18 calls.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rooflight.ledger import Kernel, Op
from rooflight.ops.convolution import gradients_of
from rooflight.ops.kernel_names import KernelRole
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.tile_padding import executed_tiles

_TILE = 4
_PRODUCTS = 36
_PER_INPUT_TILE, _PER_RESULT_TILE, _PER_FILTER = 246.0, 159.0, 136.0
"""FLOPs of Winograd's transforms of a tile of one channel of the input, of the result, and of one filter."""
_FFT = re.compile(r"fft2d_(?:r2c|c2r)_(\d+)x\d+")
_PER_TRANSFORM = {16: 4_400.0, 32: 23_060.0, 64: 130_000.0}
"""FLOPs of one real two-dimensional transform, by its size."""
_TRANSFORMS_A_BLOCK = {16: 16, 32: 16, 64: 1}
_COMPLEX_MAC = 8
_SPECTRUM = re.compile(r"pointwise_mult_and_sum_complex")


def is_fast(names: Sequence[KernelRole | None]) -> bool:
    return any(name is not None and name.role in ("winograd", "fft") for name in names)


def belongs(name: KernelRole, kernel: Kernel) -> bool:
    """Is the kernel part of a fast convolution? Its products are plain ones, many at a time."""
    if name.role in ("winograd", "fft"):
        return True
    return name.role == "matrix" and name.does == "product" and kernel.grid is not None and kernel.grid[2] >= 16


def fast_flops(op: Op, kernels: Sequence[Kernel], roles: Sequence[KernelRole | None]) -> tuple[float, str] | None:
    """FLOPs executed by the kernels of the pass that was done the fast way, and the evidence; `None`: not told."""
    winograd = any(role is not None and role.role == "winograd" for role in roles)
    return _winograd(op, kernels, roles) if winograd else _fft(op, kernels)


def _winograd(op: Op, kernels: Sequence[Kernel], names: Sequence[KernelRole | None]) -> tuple[float, str] | None:
    if op.packet != "aten::convolution_backward" or not any("Wgrad" in kernel.name for kernel in kernels):
        return None
    weight, grad = op.tensor("weight"), op.tensor("grad_output")
    if not any(f"{_TILE}x{_TILE}" in kernel.name for kernel in kernels):
        return None
    tiles = grad.shape[0] * math.prod(-(-side // _TILE) for side in grad.shape[2:])
    inputs, results = weight.shape[1], weight.shape[0]
    product = MatrixProduct("product", results, inputs, tiles, batch=_PRODUCTS)
    flops = 0.0
    for kernel, name in zip(kernels, names, strict=True):
        if name is not None and belongs(name, kernel) and name.role == "matrix":
            tiled = executed_tiles(name, kernel.grid, product)
            if tiled is None:
                return None
            flops += tiled.flops + (1 if name.family == "cutlass" else 2) * tiled.results
    if not flops:
        return None
    flops += tiles * (_PER_INPUT_TILE * inputs + _PER_RESULT_TILE * results) + _PER_FILTER * inputs * results
    return flops, (
        f"Winograd: {_PRODUCTS} products of {results:,}×{inputs:,} over {tiles:,} tiles of {_TILE}×{_TILE}, "
        "and their transforms, instead of the direct sums"
    )


def _depth(op: Op) -> int:
    """What products of spectra sum over: channels in or, for an input's gradient, out; images for a weight's."""
    weight = op.tensor("weight")
    if op.packet != "aten::convolution_backward":
        return weight.shape[1]
    return weight.shape[0] if gradients_of(op)[0] else op.tensor("input").shape[0]


def _fft(op: Op, kernels: Sequence[Kernel]) -> tuple[float, str] | None:
    """Transforms as many as blocks show, and a complex product for every frequency."""
    transforms = products = 0.0
    size = 0
    weight = op.tensor("weight")
    depth = _depth(op)
    for kernel in kernels:
        if kernel.grid is None:
            continue
        blocks = math.prod(kernel.grid)
        if (match := _FFT.search(kernel.name)) is not None and int(match[1]) in _PER_TRANSFORM:
            size = int(match[1])
            transforms += blocks * _TRANSFORMS_A_BLOCK[size] * _PER_TRANSFORM[size]
        elif "_cf32cf32" in kernel.name:
            tile = re.search(r"tilesize(\d+)x(\d+)x(\d+)", kernel.name)
            if tile is None:
                return None
            a, b, k = map(int, tile.groups())
            products += _COMPLEX_MAC * blocks * a * b * (-(-depth // k) * k)
        elif _SPECTRUM.search(kernel.name):
            products += (
                _COMPLEX_MAC * size * (size // 2 + 1) * op.tensor("input").shape[0] * math.prod(weight.shape[:2])
            )
    if not transforms or not products:
        return None
    return transforms + products, f"FFT: spectra of {size}×{size} multiplied, and their transforms, instead of sums"
