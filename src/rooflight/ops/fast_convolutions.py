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

_WINOGRAD = re.compile(r"winograd[A-Za-z]+?(\d{1,4})x\d+(?:_(\d{1,4})x\d+)?")
_TILE = 4
"""Tiles whose transforms were counted."""
_PER_INPUT_TILE, _PER_RESULT_TILE, _PER_FILTER = 246.0, 159.0, 136.0
"""FLOPs of Winograd's transforms of a tile of one channel of the input, of the result, and of one filter."""
_FFT = re.compile(r"fft2d_(?:r2c|c2r)_(\d{1,4})x\d+")
_LONG_FFT = re.compile(r"regular_fft_pad<\d+, \d+, (\d{1,4})")
"""Of larger spectra, whose transforms nobody counted."""
_PER_TRANSFORM = {16: 4_400.0, 32: 23_060.0, 64: 130_000.0}
"""FLOPs of one real two-dimensional transform, by its size."""
_OF_FILTERS = 19_000.0
"""Of one that is mostly zeros, as its name says: a filter."""
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
    if op.args.get("transposed"):
        return None
    winograd = any(role is not None and role.role == "winograd" for role in roles)
    return _winograd(op, kernels, roles) if winograd else _fft(op, kernels)


def _winograd(op: Op, kernels: Sequence[Kernel], names: Sequence[KernelRole | None]) -> tuple[float, str] | None:
    backward = any("Wgrad" in kernel.name for kernel in kernels)
    if not backward and op.packet == "aten::convolution_backward" and not gradients_of(op)[0]:
        return None
    tile = next((match for kernel in kernels if (match := _WINOGRAD.search(kernel.name)) is not None), None)
    if tile is None or not int(tile[1]):
        return None
    weight, groups = op.tensor("weight"), op.ints("groups", [1])[0]
    made = op.tensor("grad_output") if backward else op.outputs[0]
    side = int(tile[1])
    tiles = made.shape[0] * math.prod(-(-size // side) for size in made.shape[2:])
    inputs, results = weight.shape[1], weight.shape[0] // groups
    count = (side + (int(tile[2]) if tile[2] else weight.shape[2]) - 1) ** 2
    product = MatrixProduct("product", results, inputs, tiles, batch=count)
    if not backward:  # its products, without what is filled up and transformed
        return groups * product.flops, f"Winograd: {count} products over {tiles:,} tiles, without their transforms"
    flops = 0.0
    for kernel, name in zip(kernels, names, strict=True):
        if name is not None and belongs(name, kernel) and name.role == "matrix":
            tiled = executed_tiles(name, kernel.grid, product)
            if tiled is None:
                return None
            flops += tiled.flops + (1 if name.family == "cutlass" else 2) * tiled.results
    if not flops:
        return None
    known = side == _TILE and backward
    if known:
        of_tiles = tiles * (_PER_INPUT_TILE * inputs + _PER_RESULT_TILE * results)
        flops += groups * (of_tiles + _PER_FILTER * inputs * results)
    return flops, (
        f"Winograd: {count} products of {results:,}×{inputs:,} over {tiles:,} tiles of {side}×{side}, "
        f"{'and their transforms' if known else 'without their transforms'}, instead of the direct sums"
    )


def _depth(op: Op) -> int:
    """What products of spectra sum over: channels in or, for an input's gradient, out; images for a weight's."""
    weight = op.tensor("weight")
    if op.packet != "aten::convolution_backward":
        return weight.shape[1]
    outputs = weight.shape[0] // op.ints("groups", [1])[0]
    return outputs if gradients_of(op)[0] else op.tensor("input").shape[0]


def _fft(op: Op, kernels: Sequence[Kernel]) -> tuple[float, str] | None:
    """Transforms as many as blocks show, and a complex product for every frequency."""
    transforms = products = 0.0
    size = 0
    weight, groups = op.tensor("weight"), op.ints("groups", [1])[0]
    depth = _depth(op)
    for kernel in kernels:
        if kernel.grid is None:
            continue
        blocks = math.prod(kernel.grid)
        if (match := _FFT.search(kernel.name)) is not None and int(match[1]) in _PER_TRANSFORM:
            size = int(match[1])
            each = _OF_FILTERS if size == 32 and ", 5u, " in kernel.name else _PER_TRANSFORM[size]
            transforms += blocks * _TRANSFORMS_A_BLOCK[size] * each
        elif (match := _LONG_FFT.search(kernel.name)) is not None:
            size = int(match[1])
        elif "_cf32cf32" in kernel.name:
            tile = re.search(r"tilesize(\d{1,5})x(\d{1,5})x(\d{1,5})", kernel.name)
            if tile is None:
                return None
            a, b, k = map(int, tile.groups())
            products += _COMPLEX_MAC * blocks * a * b * (-(-depth // k) * k)
        elif _SPECTRUM.search(kernel.name):
            pairs = weight.shape[0] * weight.shape[1] // groups
            products += _COMPLEX_MAC * size * (size // 2 + 1) * op.tensor("input").shape[0] * pairs
    if not products:
        return None
    beside = "and their transforms" if transforms else "without their transforms"
    return transforms + products, f"FFT: spectra of {size}×{size} multiplied, {beside}, instead of sums"
