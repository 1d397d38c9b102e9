"""What a kernel executes for a product: whole tiles, whether they are full or not.

Told from its tile, its cluster and its grid, never from counters. How each family of kernels does it was found on
single ops of random shapes (benchmarks/h200/results/instructions).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from rooflight.ops.kernel_names import Family, KernelRole
from rooflight.ops.matrix_product import MatrixProduct, Pass
from rooflight.ops.rounding import ceil_div, round_up

_LOADED = 4
"""Values of a load of 16 bytes: the parts of a split depth begin at whole ones."""
_WAVE = 132
"""A grid of at least so many blocks may be one that each take several tiles: it does not tell how many there are."""

_COUNTED: frozenset[Family] = frozenset({"nvjet", "xmma sm90", "xmma sm80", "cutlass", "cutlass conv", "engine"})
"""Families whose work was found by counting; what others do is told where their grid shows it."""
_ANY_STEP = 64
"""A depth that this divides is in whole steps of every kernel, also of one whose name leaves its step out."""


_AT_ONCE = {1: _WAVE, 2: _WAVE, 3: 117, 4: 120, 5: 110, 6: 102, 7: 105, 8: 120, 16: 112}
"""Blocks of an H200 that run at once, by the blocks of a cluster: one keeps to one of the parts that its units are
divided into, so that 30 of 4 find room, or 15 of 8."""
_LARGEST_CLUSTER = 16
_IN_EIGHTS: frozenset[tuple[tuple[int, int, int], Pass]] = frozenset({
    ((128, 128, 64), "forward"), ((64, 64, 64), "weight gradient"), ((128, 64, 64), "weight gradient"),
    ((128, 128, 64), "weight gradient"),
})  # fmt: skip
"""Tiles of kernels whose clusters of 120 blocks are of eight, though four would fit."""
_QUARTERS = 4
_LARGEST_STEP = 9


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
    if product.grouped:
        told = kernel.tile is not None and kernel.family in ("xmma sm80", "xmma sm90")
        return _side_by_side(kernel, grid, product) if told else None
    if kernel.family not in _COUNTED:
        return _by_grid(kernel, grid, product)
    if kernel.tile is None:
        return None
    return _whole(kernel, grid, product)


def _whole(kernel: KernelRole, grid: tuple[int, int, int] | None, product: MatrixProduct) -> ExecutedTiles:
    assert kernel.tile is not None
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


def _by_grid(kernel: KernelRole, grid: tuple[int, int, int] | None, product: MatrixProduct) -> ExecutedTiles | None:
    """A block a tile: as many blocks as the result has tiles, one way round or the other, or a whole number of times as
    many in the last direction of the grid, which are parts of the depth."""
    sides = kernel.sides if kernel.tile is None else kernel.tile[:2]
    step = _ANY_STEP if kernel.tile is None else kernel.tile[2]
    depth = product.depth * product.taps
    if sides is None or grid is None or product.remainders:
        return None
    if (kernel.tile is None or product.taps > 1) and product.depth % step:
        return None
    blocks, shown = math.prod(grid), set()
    for first, second in ((product.columns, product.rows), (product.rows, product.columns)):
        tiles = ceil_div(first, sides[0]) * ceil_div(second, sides[1]) * product.batch
        parts, left = divmod(blocks, tiles)
        if not left and (parts == 1 or grid[2] == parts * product.batch):
            shown.add((parts, tiles))
    if not shown:
        return None
    parts, tiles = min(shown)
    summed = _in_parts(depth, parts, step)
    if parts > 1 and kernel.tile is None and summed != depth:
        return None
    results = tiles * sides[0] * sides[1]
    why = f"{blocks:,} tiles of {sides[0]}×{sides[1]}, as the grid shows"
    return ExecutedTiles(2 * results * summed, results * parts, blocks, parts, why)


def _side_by_side(
    kernel: KernelRole, grid: tuple[int, int, int] | None, product: MatrixProduct
) -> ExecutedTiles | None:
    """All groups of a convolution in one kernel, as many in a tile as its name says. Channels of one with channels of
    another need no product, and are left out as far as instructions allow, which take at least a quarter of a tile's
    side; Hopper's gradients of the weights leave nothing out. A group has as many channels one way as the other."""
    assert kernel.tile is not None
    if kernel.strided and kernel.family == "xmma sm80":
        return None  # other kernels tell it which positions to take
    a, b, k = kernel.tile
    together, backward = kernel.groups, product.does == "weight gradient"
    inner, outer = (
        (product.columns // product.tapped_columns, product.rows) if backward else (product.columns, product.depth)
    )
    channels = max(inner, outer)
    rooms = (a, b) if backward else (b, k)
    if together > 1 and channels * together > max(rooms):
        return None  # they do not fit, so the name means something else
    batch = ceil_div(product.batch, together)
    one, other = (room if together > 1 else round_up(channels, room) for room in rooms)
    if backward:
        filled = replace(product, rows=one * batch, columns=product.tapped_columns * other, batch=1, loaded=1)
    else:
        filled = replace(product, columns=one, depth=other, batch=batch)
    tiled = _whole(kernel, grid, filled)
    share = 1 if backward and kernel.family == "xmma sm90" else min(together, _QUARTERS)
    return replace(tiled, flops=tiled.flops // share, why=f"{tiled.why}, {together} groups in each")


def _sides(kernel: KernelRole, product: MatrixProduct) -> tuple[int, int]:
    """Which side of the result the first number of a tile is for: libraries differ."""
    rows, columns = product.rows, product.columns
    if product.does == "weight gradient" and kernel.family == "engine":
        return columns, rows
    if product.does != "product" or (columns == 1 and kernel.family == "nvjet"):
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
    if product.does == "weight gradient" and kernel.family in ("cutlass conv", "xmma sm80"):
        filled = ceil_div(product.tapped_columns * round_up(second // product.tapped_columns, product.loaded), size)
        if grid is not None and grid[0] * grid[1] >= filled * across:
            return filled  # the grid has a block for each of them
    return ceil_div(second, size)


def _persistent(kernel: KernelRole, grid: tuple[int, int, int], product: MatrixProduct, across: int, down: int) -> int:
    """Tiles of Hopper's kernels whose blocks take one tile after the other: more than there are results for, so that
    the blocks come out even. With fewer blocks than the device takes at once every block has a tile, and the grid shows
    how many; else so many tiles go together as a cluster of blocks has, and a weight's gradient has its own steps."""
    assert kernel.tile is not None
    tiles, blocks = across * down * product.batch, math.prod(grid)
    backward = product.does == "weight gradient"
    turned = _is_turned(kernel, product)
    rows, columns = (1, grid[1]) if turned else (grid[1], 1)
    high = round_up(across, rows) * round_up(down, columns) * product.batch
    if kernel.segmented and not backward:
        return tiles if blocks < _WAVE and blocks % tiles == 0 and not turned else high
    if kernel.segmented and high <= blocks < _WAVE:
        return _shared_depth(blocks, across, down)
    clustered = product.does in ("forward", "input gradient") or (backward and kernel.tile[2] >= 64)
    if clustered and not product.grouped and product.batch == 1:
        found = _in_clusters(kernel, grid, product, across, down)
        if found is not None:
            return found
    if blocks < _WAVE:
        if (high if backward else tiles) <= blocks:
            return blocks
        if backward and (product.grouped or kernel.tile[2] >= 64):
            return high // down * _together(kernel.tile[0], grid, across, down)
    return high // down * round_up(down, _column_step(kernel, grid)) if backward else high


def _is_turned(kernel: KernelRole, product: MatrixProduct) -> bool:
    """In TF32 the gradient of an input lies the other way round: the height of the grid is that of its columns."""
    assert kernel.tile is not None
    return product.does == "input gradient" and kernel.precision == "tf32" and kernel.tile[1] >= 64


def _in_clusters(
    kernel: KernelRole, grid: tuple[int, int, int], product: MatrixProduct, across: int, down: int
) -> int | None:
    """Whole clusters of blocks, each with its rows and columns of tiles. The grid is as high as a cluster. How wide one
    is, its blocks tell: as many as there are tiles, or as many as run at once in clusters of that size. Of several that
    fit, the one with the fewest tiles, but for kernels that were only seen with eight."""
    assert kernel.tile is not None
    blocks, high = math.prod(grid), grid[1]
    turned = _is_turned(kernel, product)
    fitting = {}
    for wide in range(1, _LARGEST_CLUSTER // high + 1):
        rows, columns = (wide, high) if turned else (high, wide)
        tiles = round_up(across, rows) * round_up(down, columns)
        even = tiles == blocks and not kernel.segmented
        if even or (tiles > blocks and _AT_ONCE.get(high * wide) == blocks):
            fitting[high * wide] = tiles
    # Of weights' gradients also other clusters were seen: those that come out even, and, of large ones in more than two
    # rounds, four where they leave no column over.
    backward, large = product.does == "weight gradient", kernel.tile[1] == 128 and across * down >= 2 * blocks
    others = backward and (blocks in fitting.values() or (large and down % 4 == 0))
    if (kernel.tile, product.does) in _IN_EIGHTS and high <= 2 and 8 in fitting and not others:
        return fitting[8]
    return min(fitting.values(), default=None)


def _shared_depth(blocks: int, across: int, down: int) -> int:
    """Several blocks share a tile's depth: the columns are as many as divide the blocks."""
    fitting = (count for count in range(down, blocks + 1) if blocks % (across * count) == 0)
    return across * next(fitting, down)


def _together(rows: int, grid: tuple[int, int, int], across: int, down: int) -> int:
    """Columns of tiles, as many at a time as divide the grid: eight or four where these do, but not over many rounds;
    else the best of others."""
    wide = grid[0]
    if wide % 4 == 0 and (down % 4 or across * down < 2 * math.prod(grid)):
        return round_up(down, 8 if wide % 8 == 0 and rows <= 128 else 4)
    if wide % 4 == 0 or grid[1] > 1:
        return down
    return min((round_up(down, count) for count in range(3, _LARGEST_STEP + 1) if wide % count == 0), default=down)


def _column_step(kernel: KernelRole, grid: tuple[int, int, int]) -> int:
    assert kernel.tile is not None
    rows, _, depth = kernel.tile
    if depth < 64:
        return 2 if grid[1] == 1 and grid[0] < _WAVE else 1
    if rows > 128:
        return 4
    return {1: 8, 2: 4, 4: 4}.get(grid[1], 1)


def _parts(kernel: KernelRole, grid: tuple[int, int, int] | None, tiles: int, product: MatrixProduct) -> int:
    if grid is None or kernel.family in ("xmma sm90", "engine"):
        return 1
    if kernel.family == "nvjet":
        return max(math.prod(grid) // tiles, 1) if kernel.split else 1
    return grid[2] if product.grouped else max(grid[2] // product.batch, 1)


def _depth(kernel: KernelRole, product: MatrixProduct, parts: int) -> int:
    """Whole steps of the tile's depth in every part; each tap for itself unless the kernel packs them."""
    assert kernel.tile is not None
    step = kernel.tile[2]
    if kernel.family == "engine" and product.depth * product.taps < step:
        return product.depth * product.taps  # a short loop is not filled up
    if product.taps == 1 or kernel.packs_taps or (kernel.unit == "cuda" and product.does != "weight gradient"):
        depth = product.depth * product.taps
        return _in_parts(depth, parts, step, loads=_loads(kernel, depth, parts))
    return product.taps * _in_parts(product.depth, parts, step)


def _loads(kernel: KernelRole, depth: int, parts: int) -> int:
    """What the parts of a split depth are whole numbers of: loads of 16 bytes, or steps where the depth is one of whole
    steps, none of the parts would be left without, and the operands do not lie across it."""
    assert kernel.tile is not None
    step = kernel.tile[2]
    if kernel.family == "nvjet":
        return 1
    fits = depth % step == 0 and ceil_div(depth, round_up(ceil_div(depth, parts), step)) == parts
    if kernel.family == "cutlass" and fits and kernel.letters != "nt":
        return step
    return 2 * _LOADED if kernel.family == "cutlass" and kernel.precision in ("bf16", "fp16") else _LOADED


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
