"""Which of an op's matrix products each of its kernels works on."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from rooflight.ledger import Op
from rooflight.ops.kernel_names import KernelRole
from rooflight.ops.matrix_product import MatrixProduct, Pass
from rooflight.ops.registry import products_of


def product_of_each(op: Op, kernels: Sequence[KernelRole | None]) -> list[MatrixProduct | None]:
    """For every kernel of an op, in their order, the product it works on."""
    products = products_of(op)
    plain = [product for product in products if product.does == "product"]
    if any(kernel is not None and kernel.role == "attention" for kernel in kernels):
        plain = [product for product in plain if product.batch == 1]  # the rest of them is in that kernel
    turns = iter(plain)
    return [
        None if kernel is None or kernel.role != "matrix" else _pick(kernel, products, turns, op) for kernel in kernels
    ]


def _pick(
    kernel: KernelRole, products: list[MatrixProduct], turns: Iterator[MatrixProduct], op: Op
) -> MatrixProduct | None:
    """Of a convolution's gradients the one it is named for; of several plain products the next."""
    if kernel.does is None:
        return products[0] if len(products) == 1 else None
    if kernel.does == "product" and any(product.does == "product" for product in products):
        return next(turns, None)
    exact = [product for product in products if product.does == kernel.does]
    if exact:
        return _image_by_image(exact[0], op) if kernel.family == "engine" else exact[0]
    return _by_image(kernel, products, op) if kernel.does == "product" else None


def _image_by_image(product: MatrixProduct, op: Op) -> MatrixProduct:
    """The gradients in cuDNN's older kernels: one product an image, the input's with the taps among its results."""
    images = op.tensor("input").shape[0]
    if product.does == "weight gradient":
        return replace(product, batch=product.batch * images, depth=product.depth // images)
    if product.does == "input gradient":
        pixels = math.prod(op.tensor("grad_output").shape[2:])
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
    return MatrixProduct("product", product.columns, pixels, product.depth, batch=images)
