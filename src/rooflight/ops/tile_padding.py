"""What a kernel executes for a product: whole tiles, whether they are full or not.

Told from its tile, its cluster and its grid, never from counters. How each family of kernels does it was found on
single ops of random shapes (benchmarks/h200/results/instructions).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rooflight.ops.kernel_names import KernelRole
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.rounding import ceil_div, round_up

_LOADED = 4
"""Values of a load of 16 bytes: the parts of a split depth begin at whole ones."""
_WAVE = 132
"""A grid of at least so many blocks may be one that each take several tiles: it does not tell how many there are."""


@dataclass(frozen=True)
class ExecutedTiles:
    """What a kernel executes for a product."""

    flops: int
    results: int
    """Places of results that are computed, those outside the matrix too, once for every part of a split depth."""
    blocks: int
    parts: int
    """Into which the depth is split."""
    why: str


def executed_tiles(
    kernel: KernelRole, grid: tuple[int, int, int] | None, product: MatrixProduct
) -> ExecutedTiles | None:
    """Whole tiles in every direction. `None` where the name gives no tile."""
    if kernel.tile is None:
        return None
    if product.remainders and kernel.strided:
        return _strided(kernel, grid, product)
    a, b, k = kernel.tile
    across = _first_tiles(kernel, product)
    down = _second_tiles(kernel, grid, product, across)
    why = [f"tiles of {a}×{b}×{k}"]
    if kernel.cluster != (1, 1):
        across, down = round_up(across, kernel.cluster[0]), round_up(down, kernel.cluster[1])
        why.append(f"in clusters of {kernel.cluster[0]}×{kernel.cluster[1]}")
    tiles = across * down * product.batch
    if kernel.family == "xmma sm90" and grid is not None:
        tiles = _persistent(kernel, grid, product, across, down)
        if tiles > across * down * product.batch:
            why.append(f"{tiles:,} of them on a grid of {grid[0]}×{grid[1]}")
    parts = _parts(kernel, grid, tiles, product)
    depth = _depth(kernel, product, parts)
    results = tiles * a * b
    if parts > 1:
        why.append(f"depth in {parts} parts")
    return ExecutedTiles(2 * results * depth, results * parts, tiles * parts, parts, ", ".join(why))


def _sides(kernel: KernelRole, product: MatrixProduct) -> tuple[int, int]:
    """Which side of the result the first number of a tile is for: libraries differ."""
    rows, columns = product.rows, product.columns
    if product.does != "product":
        return rows, columns
    if kernel.family in ("nvjet", "cutlass") or (kernel.family == "xmma sm90" and kernel.letters == "nn"):
        return columns, rows
    return rows, columns


def _first_tiles(kernel: KernelRole, product: MatrixProduct) -> int:
    assert kernel.tile is not None
    size, first = kernel.tile[0], _sides(kernel, product)[0]
    if not kernel.whole_channels:
        return ceil_div(first, size)
    channels, taps = first // product.tapped_rows, product.tapped_rows
    return -(-channels // (size // taps)) if taps <= size else channels * -(-taps // size)


def _second_tiles(kernel: KernelRole, grid: tuple[int, int, int] | None, product: MatrixProduct, across: int) -> int:
    """Columns of a weight's gradient: those of a tap begin a new tile in some kernels."""
    assert kernel.tile is not None
    size, second = kernel.tile[1], _sides(kernel, product)[1]
    if product.does == "weight gradient" and kernel.family == "xmma sm90":
        return product.tapped_columns * (ceil_div(second // product.tapped_columns, size))
    if product.does == "weight gradient" and kernel.family == "cutlass conv":
        filled = ceil_div(product.tapped_columns * round_up(second // product.tapped_columns, product.loaded), size)
        if grid is not None and grid[0] * grid[1] >= filled * across:
            return filled  # the grid has a block for each of them
    return ceil_div(second, size)


def _persistent(kernel: KernelRole, grid: tuple[int, int, int], product: MatrixProduct, across: int, down: int) -> int:
    """Tiles of Hopper's kernels whose blocks take one tile after the other: more than there are results for, so that
    the blocks come out even. With fewer blocks than the device takes at once every block has a tile, and the grid shows
    how many; else so many tiles go together as the grid is high, and a weight's gradient has its own steps."""
    tiles, blocks = across * down * product.batch, math.prod(grid)
    high = round_up(across, grid[1]) * down * product.batch
    if blocks < _WAVE and not kernel.segmented:
        at_least = high if product.does == "weight gradient" else tiles
        if at_least <= blocks:
            return blocks
    if product.does != "weight gradient":
        return high
    if blocks < _WAVE and kernel.segmented and tiles <= blocks:
        # Several blocks share a tile's depth: the columns are as many as divide the blocks.
        fitting = (count for count in range(down, blocks + 1) if blocks % (across * count) == 0)
        return across * next(fitting, down)
    return round_up(across, grid[1]) * round_up(down, _column_step(kernel, grid))


def _column_step(kernel: KernelRole, grid: tuple[int, int, int]) -> int:
    assert kernel.tile is not None
    rows, _, depth = kernel.tile
    if depth < 64:
        return 2 if grid[1] == 1 else 1
    if rows > 128:
        return 4
    return {1: 8, 2: 4, 4: 4}.get(grid[1], 1)


def _parts(kernel: KernelRole, grid: tuple[int, int, int] | None, tiles: int, product: MatrixProduct) -> int:
    if grid is None or kernel.family in ("xmma sm90", "engine"):
        return 1
    if kernel.family == "nvjet":
        return max(math.prod(grid) // tiles, 1) if kernel.split else 1
    return max(grid[2] // product.batch, 1)


def _depth(kernel: KernelRole, product: MatrixProduct, parts: int) -> int:
    """Whole steps of the tile's depth in every part; each tap for itself unless the kernel packs them."""
    assert kernel.tile is not None
    step = kernel.tile[2]
    if product.taps == 1 or kernel.packs_taps or (kernel.unit == "cuda" and product.does != "weight gradient"):
        return _in_parts(product.depth * product.taps, parts, step, loads=_LOADED if kernel.family != "nvjet" else 1)
    return product.taps * _in_parts(product.depth, parts, step)


def _in_parts(depth: int, parts: int, step: int, *, loads: int = 1) -> int:
    """A depth in equal parts of whole loads, each in whole steps; the last takes what is left."""
    if parts == 1:
        return round_up(depth, step)
    part = round_up(-(-depth // parts), loads)
    full, left = divmod(depth, part)
    return min(full, parts) * round_up(part, step) + (round_up(left, step) if full < parts else 0)


def _strided(kernel: KernelRole, grid: tuple[int, int, int] | None, product: MatrixProduct) -> ExecutedTiles:
    assert kernel.tile is not None
    a, b, k = kernel.tile
    down, depth = ceil_div(product.columns, b), round_up(product.depth, k)
    flops = results = blocks = 0
    most = max(rows for rows, _ in product.remainders)
    for rows, taps in product.remainders:
        # CUTLASS takes as many rows for every remainder as for the largest.
        across = ceil_div(most if kernel.family == "cutlass conv" else rows, a)
        if kernel.family == "xmma sm90" and grid is not None and grid[1] == 2:
            across = round_up(across, 2)
        tiles = across * down * product.batch
        flops += 2 * tiles * a * b * taps * depth
        results += tiles * a * b
        blocks += tiles
    return ExecutedTiles(
        flops, results, blocks, 1, f"tiles of {a}×{b}×{k}, one product for every remainder of the stride"
    )
