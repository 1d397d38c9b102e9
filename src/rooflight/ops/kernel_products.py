"""Which of an op's matrix products each of its kernels works on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflight.ledger import Op
from rooflight.ops.kernel_names import KernelRole
from rooflight.ops.matrix_product import MatrixProduct, Pass
from rooflight.ops.registry import products_of
from rooflight.ops.rounding import ceil_div

_LETTERS_BY_IMAGE: dict[str, Pass] = {"nn": "forward", "nt": "input gradient", "tn": "weight gradient"}
_LETTERS_AT_ONCE: dict[str, Pass] = {"tn": "forward", "nn": "input gradient", "nt": "weight gradient"}


def product_of_each(op: Op, kernels: Sequence[KernelRole | None]) -> list[MatrixProduct | None]:
    """For every kernel of an op, in their order, the product it works on."""
    products = products_of(op)
    plain = [product for product in products if product.does == "product"]
    if any(kernel is not None and kernel.role == "attention" for kernel in kernels):
        plain = [product for product in plain if product.batch == 1]  # the rest of them is in that kernel
    turns = iter(plain)
    picked = [
        None if kernel is None or kernel.role != "matrix" else _pick(kernel, products, turns, op) for kernel in kernels
    ]
    return _of_groups(op, kernels, picked) if op.packet.startswith("aten::convolution") else picked


def _of_groups(
    op: Op, kernels: Sequence[KernelRole | None], picked: list[MatrixProduct | None]
) -> list[MatrixProduct | None]:
    """A convolution's groups: one kernel has all of them, or each has its own. Any other number tells nothing."""
    groups = op.ints("groups", [1])[0]
    times = Counter((kernel.does, kernel.letters) for kernel in kernels if kernel is not None)
    found: list[MatrixProduct | None] = []
    for kernel, product in zip(kernels, picked, strict=True):
        if kernel is None or product is None:
            found.append(None)
        elif times[kernel.does, kernel.letters] == groups:
            found.append(replace(product, batch=product.batch // groups))
        else:
            found.append(replace(product, grouped=True) if times[kernel.does, kernel.letters] == 1 else None)
    return found


def _pick(
    kernel: KernelRole, products: list[MatrixProduct], turns: Iterator[MatrixProduct], op: Op
) -> MatrixProduct | None:
    """Of a convolution's gradients the one it is named for; of several plain products the next."""
    if kernel.does is None:
        return products[0] if len(products) == 1 else None
    if kernel.does == "product" and any(product.does == "product" for product in products):
        return next(turns, None)
    exact = [product for product in products if product.does == kernel.does]
    if exact and kernel.family == "engine":
        return _image_by_image(kernel, exact[0], op)
    if exact:
        # A kernel for strides of one has the others folded into the channels.
        folded = exact[0].remainders and kernel.family == "cutlass conv" and not kernel.strided
        return _folded(exact[0], op) if folded else exact[0]
    return _by_image(kernel, products, op) if kernel.does == "product" else None


def _folded(product: MatrixProduct, op: Op) -> MatrixProduct:
    """Each position takes a stride's places of every side with it, as channels, and meets as many taps fewer."""
    backward = op.packet == "aten::convolution_backward"
    x = op.tensor("input") if backward else op.outputs[0]
    small = op.tensor("grad_output") if backward else next(op.inputs)
    sides = op.tensor("weight").shape[2:]
    strides = (list(op.ints("stride", [1])) * len(sides))[: len(sides)]
    taps = [ceil_div(side, stride) for side, stride in zip(sides, strides, strict=True)]
    reached = [size + tap - 1 for size, tap in zip(small.shape[2:], taps, strict=True)]
    return replace(
        product,
        rows=x.shape[0] * math.prod(map(min, map(ceil_div, x.shape[2:], strides), reached)),
        columns=product.columns * math.prod(strides),
        taps=math.prod(taps),
        remainders=(),
    )


def _image_by_image(kernel: KernelRole, product: MatrixProduct, op: Op) -> MatrixProduct:
    """The gradients in cuDNN's older kernels: one product an image, the input's with the taps among its results."""
    images = op.tensor("input" if op.has("input") else "self").shape[0]
    if product.does == "weight gradient":
        return (
            replace(product, batch=product.batch * images, depth=product.depth // images) if kernel.split else product
        )
    if product.does == "input gradient":
        small = "input" if op.args.get("transposed") else "grad_output"
        pixels = math.prod(op.tensor(small).shape[2:])
        return MatrixProduct(
            "input gradient",
            product.columns * product.taps,
            pixels,
            product.depth,
            batch=product.batch * images,
            tapped_rows=product.taps,
        )
    return product


def _by_image(kernel: KernelRole, products: list[MatrixProduct], op: Op) -> MatrixProduct | None:
    """A 1x1 convolution as plain products, one for every image: results lie channels by pixels. One for all images
    where channels lie innermost."""
    plain = op.packet.startswith("aten::convolution") and not op.args.get("transposed")
    if not plain or any(product.taps > 1 for product in products):
        return None
    source = op.tensor("input") if "input" in op.args else next(op.inputs)
    images = source.shape[0]
    at_once = source.channels_last or math.prod(source.shape[2:]) == 1
    # The letters of the operands tell the gradients apart.
    wanted = (_LETTERS_AT_ONCE if at_once else _LETTERS_BY_IMAGE).get(kernel.letters, "product")
    chosen = [p for p in products if p.does == wanted] or (products if len(products) == 1 else [])
    if not chosen:
        return None
    product = chosen[0]
    if at_once:
        return replace(product, does="product", remainders=())
    if product.does == "weight gradient":
        return replace(product, does="product", batch=images, depth=product.depth // images, remainders=())
    pixels = product.rows // images
    return MatrixProduct("product", product.columns, pixels, product.depth, batch=images)
