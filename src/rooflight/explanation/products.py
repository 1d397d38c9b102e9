"""The matrix products an op consists of, and what a kernel executes for one: whole tiles, whether they are full or not.

A product is `rows x columns` results over a depth. Rows are pixels or samples, columns are the innermost of the result
in memory. What a kernel does more than asked for is told from its tile, its cluster and its grid, never from counters.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rooflight.explanation.kernels import Named, Pass
from rooflight.ledger import Op

_LOADED = 4
"""Values of a load of 16 bytes: the parts of a split depth begin at whole ones."""
_WAVE = 132
"""A grid of at least so many blocks may be one that each take several tiles: it does not tell how many there are."""


@dataclass(frozen=True)
class Product:
    """`batch` times rows x columns x depth. A convolution's depth is `taps` times as many channels."""

    does: Pass
    rows: int
    columns: int
    depth: int
    batch: int = 1
    taps: int = 1
    tapped_columns: int = 1
    """Of the columns, as many belong to different taps: a weight's gradient."""
    tapped_rows: int = 1
    """The same of the rows: an input's gradient whose taps are added up afterwards."""
    loaded: int = 1
    """Values of a load of 16 bytes: CUTLASS fills the channels of a tap up to whole ones."""
    remainders: tuple[tuple[int, int], ...] = ()
    """Of a strided convolution's input gradient: rows and taps of the product for every remainder."""

    @property
    def flops(self) -> int:
        """All positions, those between strides too."""
        return 2 * self.batch * self.rows * self.columns * self.depth * self.taps

    @property
    def useful_flops(self) -> int:
        if not self.remainders:
            return self.flops
        return 2 * self.batch * self.columns * self.depth * sum(rows * taps for rows, taps in self.remainders)


@dataclass(frozen=True)
class Tiled:
    """What a kernel executes for a product."""

    flops: int
    results: int
    """Places of results that are computed, those outside the matrix too, once for every part of a split depth."""
    blocks: int
    parts: int
    """Into which the depth is split."""
    why: str


def products_of(op: Op) -> list[Product]:
    """Empty where an op is no matrix product, or one that is not taken apart here, or whose arguments are not told."""
    try:
        return _products(op)
    except (KeyError, IndexError, StopIteration):
        return []


def _products(op: Op) -> list[Product]:
    if op.args.get("transposed"):
        return []  # nobody counted how its kernels take it apart
    if op.packet in ("aten::mm", "aten::bmm"):
        return [_matmul(op, "self", "mat2")]
    if op.packet == "aten::addmm":
        return [_matmul(op, "mat1", "mat2")]
    if op.packet == "aten::baddbmm":
        return [_matmul(op, "batch1", "batch2")]
    if op.packet in ("aten::convolution", "aten::cudnn_convolution"):
        return [_forward(op)]
    if op.packet == "aten::convolution_backward":
        return list(_backward(op))
    if op.packet in ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention"):
        return list(_encoder_layer(op))
    return []


def _matmul(op: Op, left: str, right: str) -> Product:
    a, b = op.tensor(left), op.tensor(right)
    return Product("product", a.shape[-2], b.shape[-1], a.shape[-1], batch=math.prod(a.shape[:-2]))


def _forward(op: Op) -> Product:
    weight, out = op.tensor("weight"), op.outputs[0]
    groups = op.ints("groups", [1])[0]
    return Product("forward", out.shape[0] * math.prod(out.shape[2:]), weight.shape[0] // groups, weight.shape[1],
                   batch=groups, taps=math.prod(weight.shape[2:]))  # fmt: skip


def _backward(op: Op) -> Iterator[Product]:
    taken, weight, grad = op.tensor("input"), op.tensor("weight"), op.tensor("grad_output")
    mask = op.args.get("output_mask")
    wanted = mask if isinstance(mask, list) else [True, True, True]
    groups = op.ints("groups", [1])[0]
    taps = math.prod(weight.shape[2:])
    if wanted[0]:
        whole = Product("input gradient", taken.shape[0] * math.prod(taken.shape[2:]), weight.shape[1],
                        weight.shape[0] // groups, batch=groups, taps=taps)  # fmt: skip
        yield replace(whole, remainders=tuple(_remainders(op)))
    if wanted[1]:
        yield Product("weight gradient", weight.shape[0] // groups, weight.shape[1] * taps,
                      grad.shape[0] * math.prod(grad.shape[2:]), batch=groups, tapped_columns=taps,
                      loaded=16 // weight.itemsize)  # fmt: skip


def _remainders(op: Op) -> Iterator[tuple[int, int]]:
    """A position of the input meets only the taps that fall on a stride: for every remainder, how many of each."""
    taken, weight = op.tensor("input"), op.tensor("weight")
    sides = len(weight.shape) - 2
    strides = (op.ints("stride", [1]) * sides)[:sides]
    pads = (op.ints("padding", [0]) * sides)[:sides]
    dilations = (op.ints("dilation", [1]) * sides)[:sides]
    if all(stride == 1 for stride in strides):
        return
    per_side = []
    for size, width, stride, pad, dilation in zip(
        taken.shape[2:], weight.shape[2:], strides, pads, dilations, strict=True
    ):
        met = [0] * stride
        for tap in range(width):
            met[(tap * dilation) % stride] += 1
        per_side.append([
            (sum((place + pad) % stride == rest for place in range(size)), met[rest]) for rest in range(stride)
        ])  # fmt: skip
    combined = [(taken.shape[0], 1)]
    for side in per_side:
        combined = [(rows * more, taps * met) for rows, taps in combined for more, met in side]
    yield from ((rows, taps) for rows, taps in combined if rows)


def _encoder_layer(op: Op) -> Iterator[Product]:
    """The linear layers of torch's fused encoder layer; attention inside has its own kernels."""
    source = next(op.inputs)
    batch, length, width = source.shape if len(source.shape) == 3 else (1, *source.shape)
    rows = batch * length
    yield Product("product", rows, 3 * width, width)
    heads = (op.ints("num_heads") or op.ints("num_head") or [1])[0]
    yield Product("product", length, length, width // heads, batch=batch * heads)
    yield Product("product", length, width // heads, length, batch=batch * heads)
    yield Product("product", rows, width, width)
    if "ffn_weight_1" in op.args:
        inner = op.tensor("ffn_weight_1").shape[0]
        yield Product("product", rows, inner, width)
        yield Product("product", rows, width, inner)


def matched(op: Op, kernels: Sequence[Named | None]) -> list[Product | None]:
    """For every kernel of an op, in their order, the product it works on."""
    products = products_of(op)
    plain = [product for product in products if product.does == "product"]
    if any(kernel is not None and kernel.role == "attention" for kernel in kernels):
        plain = [product for product in plain if product.batch == 1]  # the rest of them is in that kernel
    turns = iter(plain)
    return [None if kernel is None or kernel.role != "matrix" else _pick(kernel, products, turns, op)
            for kernel in kernels]  # fmt: skip


def _pick(kernel: Named, products: list[Product], turns: Iterator[Product], op: Op) -> Product | None:
    """Of a convolution's gradients the one it is named for; of several plain products the next."""
    if kernel.does is None:
        return products[0] if len(products) == 1 else None
    if kernel.does == "product" and any(product.does == "product" for product in products):
        return next(turns, None)
    exact = [product for product in products if product.does == kernel.does]
    if exact:
        return _image_by_image(exact[0], op) if kernel.family == "engine" else exact[0]
    return _by_image(kernel, products, op) if kernel.does == "product" else None


def _image_by_image(product: Product, op: Op) -> Product:
    """The gradients in cuDNN's older kernels: one product an image, the input's with the taps among its results."""
    images = op.tensor("input").shape[0]
    if product.does == "weight gradient":
        return replace(product, batch=product.batch * images, depth=product.depth // images)
    if product.does == "input gradient":
        pixels = math.prod(op.tensor("grad_output").shape[2:])
        return Product("input gradient", product.columns * product.taps, pixels, product.depth,
                       batch=product.batch * images, tapped_rows=product.taps)  # fmt: skip
    return product


def _by_image(kernel: Named, products: list[Product], op: Op) -> Product | None:
    """A 1x1 convolution as plain products, one for every image: results lie channels by pixels."""
    if not op.packet.startswith("aten::convolution") or any(product.taps > 1 for product in products):
        return None
    images = (op.tensor("input") if "input" in op.args else next(op.inputs)).shape[0]
    # The letters of the operands tell the gradients apart: forward nn, the input's nt, the weight's tn.
    wanted: Pass = {"nn": "forward", "nt": "input gradient", "tn": "weight gradient"}.get(kernel.letters, "product")  # type: ignore[assignment]
    chosen = [p for p in products if p.does == wanted] or (products if len(products) == 1 else [])
    if not chosen:
        return None
    product = chosen[0]
    if product.does == "weight gradient":
        return replace(product, does="product", batch=images, depth=product.depth // images, remainders=())
    pixels = product.rows // images
    return Product("product", product.columns, pixels, product.depth, batch=images)


def executed(kernel: Named, grid: tuple[int, int, int] | None, product: Product) -> Tiled | None:
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
        across, down = _up(across, kernel.cluster[0]), _up(down, kernel.cluster[1])
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
    return Tiled(2 * results * depth, results * parts, tiles * parts, parts, ", ".join(why))


def _sides(kernel: Named, product: Product) -> tuple[int, int]:
    """Which side of the result the first number of a tile is for: libraries differ."""
    rows, columns = product.rows, product.columns
    if product.does != "product":
        return rows, columns
    if kernel.family in ("nvjet", "cutlass") or (kernel.family == "xmma sm90" and kernel.letters == "nn"):
        return columns, rows
    return rows, columns


def _first_tiles(kernel: Named, product: Product) -> int:
    assert kernel.tile is not None
    size, first = kernel.tile[0], _sides(kernel, product)[0]
    if not kernel.whole_channels:
        return _up(first, size) // size
    channels, taps = first // product.tapped_rows, product.tapped_rows
    return -(-channels // (size // taps)) if taps <= size else channels * -(-taps // size)


def _second_tiles(kernel: Named, grid: tuple[int, int, int] | None, product: Product, across: int) -> int:
    """Columns of a weight's gradient: those of a tap begin a new tile in some kernels."""
    assert kernel.tile is not None
    size, second = kernel.tile[1], _sides(kernel, product)[1]
    if product.does == "weight gradient" and kernel.family == "xmma sm90":
        return product.tapped_columns * (_up(second // product.tapped_columns, size) // size)
    if product.does == "weight gradient" and kernel.family == "cutlass conv":
        filled = _up(product.tapped_columns * _up(second // product.tapped_columns, product.loaded), size) // size
        if grid is not None and grid[0] * grid[1] >= filled * across:
            return filled  # the grid has a block for each of them
    return _up(second, size) // size


def _persistent(kernel: Named, grid: tuple[int, int, int], product: Product, across: int, down: int) -> int:
    """Tiles of Hopper's kernels whose blocks take one tile after the other: more than there are results for, so that
    the blocks come out even. With fewer blocks than the device takes at once every block has a tile, and the grid shows
    how many; else so many tiles go together as the grid is high, and a weight's gradient has its own steps."""
    tiles, blocks = across * down * product.batch, math.prod(grid)
    high = _up(across, grid[1]) * down * product.batch
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
    return _up(across, grid[1]) * _up(down, _column_step(kernel, grid))


def _column_step(kernel: Named, grid: tuple[int, int, int]) -> int:
    assert kernel.tile is not None
    rows, _, depth = kernel.tile
    if depth < 64:
        return 2 if grid[1] == 1 else 1
    if rows > 128:
        return 4
    return {1: 8, 2: 4, 4: 4}.get(grid[1], 1)


def _parts(kernel: Named, grid: tuple[int, int, int] | None, tiles: int, product: Product) -> int:
    if grid is None or kernel.family in ("xmma sm90", "engine"):
        return 1
    if kernel.family == "nvjet":
        return max(math.prod(grid) // tiles, 1) if kernel.split else 1
    return max(grid[2] // product.batch, 1)


def _depth(kernel: Named, product: Product, parts: int) -> int:
    """Whole steps of the tile's depth in every part; each tap for itself unless the kernel packs them."""
    assert kernel.tile is not None
    step = kernel.tile[2]
    if product.taps == 1 or kernel.packs_taps or (kernel.unit == "cuda" and product.does != "weight gradient"):
        return _in_parts(product.depth * product.taps, parts, step, loads=_LOADED if kernel.family != "nvjet" else 1)
    return product.taps * _in_parts(product.depth, parts, step)


def _in_parts(depth: int, parts: int, step: int, *, loads: int = 1) -> int:
    """A depth in equal parts of whole loads, each in whole steps; the last takes what is left."""
    if parts == 1:
        return _up(depth, step)
    part = _up(-(-depth // parts), loads)
    whole, left = divmod(depth, part)
    return min(whole, parts) * _up(part, step) + (_up(left, step) if whole < parts else 0)


def _strided(kernel: Named, grid: tuple[int, int, int] | None, product: Product) -> Tiled:
    assert kernel.tile is not None
    a, b, k = kernel.tile
    down, depth = _up(product.columns, b) // b, _up(product.depth, k)
    flops = results = blocks = 0
    most = max(rows for rows, _ in product.remainders)
    for rows, taps in product.remainders:
        # CUTLASS takes as many rows for every remainder as for the largest.
        across = _up(most if kernel.family == "cutlass conv" else rows, a) // a
        if kernel.family == "xmma sm90" and grid is not None and grid[1] == 2:
            across = _up(across, 2)
        tiles = across * down * product.batch
        flops += 2 * tiles * a * b * taps * depth
        results += tiles * a * b
        blocks += tiles
    return Tiled(flops, results, blocks, 1, f"tiles of {a}×{b}×{k}, one product for every remainder of the stride")


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
