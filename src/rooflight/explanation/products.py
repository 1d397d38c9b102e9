"""The matrix products an op consists of, and which of them each of its kernels works on.

A product is `rows x columns` results over a depth. Rows are pixels or samples, columns are the innermost of the result
in memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rooflight.explanation.kernels import Named, Pass
from rooflight.ledger import Op


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
