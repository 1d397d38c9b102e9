"""Why the FLOPs a step executed are not those the mathematics asks for, op by op."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from rooflight.analysis.cause import Cause, Explained, kernels_of_ops
from rooflight.analysis.instruction_counts import Instructions, Point, doublings, instructions
from rooflight.analysis.traffic_causes import reorders
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Ledger, Op
from rooflight.metrics import CUDA_FLOPS, EXECUTED_FLOPS, TENSOR_FLOPS
from rooflight.ops.attention_tiles import attention_shape, executed_blocks
from rooflight.ops.convolution import gradients_of
from rooflight.ops.fast_convolutions import belongs, fast_flops, is_fast
from rooflight.ops.kernel_names import KernelRole, role_of, short_name
from rooflight.ops.kernel_products import product_of_each
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.registry import products_of
from rooflight.ops.tile_padding import ExecutedTiles, executed_tiles
from rooflight.summary.facts import op_values, useful_flops_of

PADDING = "tile padding"
FAST = "fast algorithm"
STRIDES = "zeros between strides"
RECOMPUTED = "recomputation"
MASKED = "masked blocks skipped"
EMULATED = "fp32 as three TF32 products"
EPILOGUE = "scaling of results"
LAYOUT = "layout and cast kernels"
POINTWISE = "pointwise and address arithmetic"
PARTS = "sums of a split depth"
NOT_COUNTED = "tensor-core work not counted"

_OF_CUDA_CORES = frozenset({EPILOGUE, LAYOUT, POINTWISE, PARTS})

_PER_RESULT: dict[tuple[str, str | None], float] = {
    ("xmma sm80", "weight gradient"): 1,
    ("xmma sm80", None): 2,
    ("xmma sm90", "input gradient"): 1,
    ("xmma sm90", "weight gradient"): 1,
    ("xmma sm90", None): 2,
    ("cutlass", None): 1,
    ("cutlass conv", None): 3,
    ("engine", "forward"): 1,
    ("engine", None): 2,
    ("nvjet", None): 0,
}
"""CUDA-core FLOPs of a matrix kernel for every place of its tiles: alpha times the sum, plus beta times what was there.
By the counters of single kernels (benchmarks/h200/results/instructions)."""
_PER_BLOCK = {"xmma sm90": 2304}
"""And for every tile: the counters of these kernels show it whatever the tile."""
_PER_VALUE_MOVED = 1
_PER_BIAS = {"fp32": 2, "bf16": 14, "fp16": 14, "fp64": 2}
"""Of the kernel that adds a bias behind a convolution: it broadcasts, which takes index arithmetic in 16 bits."""


def explain_flops(ledger: Ledger) -> list[Explained]:
    """Every op whose executed FLOPs were counted, with what it was asked for and the causes of the difference."""
    device = recognise_name(ledger.header.device)
    table = instructions(device.name if device is not None else None)
    kernels = kernels_of_ops(ledger)
    rows = []
    for op, values in zip(ledger.ops, op_values(ledger), strict=True):
        counted = {name: values[name].value for name in EXECUTED_FLOPS if name in values}
        if counted:
            of_op = [kernel for kernel in kernels[op.index] if kernel.kind == "kernel"]
            causes = _causes(op, of_op, counted, table)
            # Where the CUDA cores were not counted, nothing of theirs is there to be explained.
            cuda = any(name in counted for name in CUDA_FLOPS)
            explained = tuple(cause for cause in causes if cuda or cause.name not in _OF_CUDA_CORES)
            rows.append(Explained(op, useful_flops_of(op), sum(counted.values()), explained))
    return rows


def _asked(op: Op) -> int:
    """Of its kernels: an op that is run a second time does the same work again, none of it useful."""
    if op.recompute and op.cost is not None:
        return op.cost.recompute_flops or 0
    return useful_flops_of(op)


def _causes(
    op: Op, kernels: Sequence[Kernel], counted: dict[str, int | float], table: Instructions | None
) -> Iterator[Cause]:
    if op.cost is not None and op.cost.recompute_flops:
        yield Cause(RECOMPUTED, op.cost.recompute_flops, "the formula of the op: what is done a second time")
    if not _asked(op):
        yield from _arithmetic(op, table)
        return
    if not products_of(op) and attention_shape(op) is None:
        return  # nothing tells what its kernels work on
    names = [role_of(kernel.name) for kernel in kernels]
    on_tensor_cores = any(name in counted for name in TENSOR_FLOPS)
    fast = is_fast(names)
    parts = 1
    share = _share(op)
    for kernel, name, product in zip(kernels, names, product_of_each(op, names), strict=True):
        if name is None:
            continue
        if name.role == "attention":
            yield from _attention(op, kernel, table, on_tensor_cores=on_tensor_cores)
        elif fast and belongs(name, kernel):
            continue
        elif name.role == "matrix":
            tiled = executed_tiles(name, kernel.grid, product) if product is not None else None
            if tiled is None or product is None:
                continue
            parts = max(parts, tiled.parts)
            yield from _matrix(kernel, name, product, tiled, share)
            if name.unit == "tensor" and not on_tensor_cores:
                yield Cause(NOT_COUNTED, -tiled.flops, f"{_short(kernel)} runs on tensor cores, which no counter saw")
        else:
            yield from _beside(op, kernel, name, parts, table)
    if fast and (done := fast_flops(op, kernels, names)) is not None:
        flops, evidence = done
        yield Cause(FAST, flops - share, evidence)


def _share(op: Op) -> float:
    """Useful FLOPs of one of the op's products, where all are alike: those of a convolution's gradients."""
    if op.packet == "aten::convolution_backward":
        return _asked(op) / max(sum(gradients_of(op)[:2]), 1)
    return float(_asked(op)) if len(products_of(op)) == 1 else math.nan


def _matrix(
    kernel: Kernel, name: KernelRole, product: MatrixProduct, tiled: ExecutedTiles, share: float
) -> Iterator[Cause]:
    # Several products in one op (a fused layer) are each asked for by their own size.
    asked = product.flops if product.does == "product" or math.isnan(share) else share
    zeros = 0.0
    if product.remainders and not name.strided:
        zeros = product.flops - asked
        yield Cause(STRIDES, zeros, f"{_short(kernel)} multiplies what lies between the strides, which is zero")
    more = tiled.flops - asked - zeros
    if more:
        yield Cause(
            PADDING,
            more,
            f"{product.rows:,}×{product.columns:,} results over "
            f"{product.depth * product.taps:,}, in {tiled.why}: {_short(kernel)}",
        )
    rate = _PER_RESULT.get((name.family, name.does), _PER_RESULT.get((name.family, None), 0.0))
    rate += 1 if name.family == "nvjet" and name.biased else 0
    rate = 1 if name.family == "xmma sm80" and name.packs_taps else rate  # those that leave shared memory out
    # cuDNN's older kernels scale what they store, the others all places of their tiles.
    places = product.batch * product.rows * product.columns if name.family == "engine" else tiled.results
    scaled = rate * places + _PER_BLOCK.get(name.family, 0) * tiled.blocks
    if scaled:
        yield Cause(EPILOGUE, scaled, f"{rate:g} for each of {places:,} places: {_short(kernel)}")


def _attention(op: Op, kernel: Kernel, table: Instructions | None, *, on_tensor_cores: bool) -> Iterator[Cause]:
    of = attention_shape(op)
    blocks = executed_blocks(kernel.name, of) if of is not None else None
    if blocks is None:
        return
    for name, amount, evidence in (
        (MASKED, blocks.skipped, f"causal: whole blocks above the diagonal are left out ({blocks.why})"),
        (PADDING, blocks.padding, f"{blocks.why}: {_short(kernel)}"),
        (EMULATED, blocks.repeated, f"{_short(kernel)} multiplies fp32 as three TF32 products"),
    ):
        if amount:
            yield Cause(name, amount, evidence)
    if not on_tensor_cores:
        yield Cause(NOT_COUNTED, -blocks.executed, f"{_short(kernel)} runs on tensor cores, which no counter saw")
    yield from _arithmetic(op, table)


def _arithmetic(op: Op, table: Instructions | None) -> Iterator[Cause]:
    counted = table.of(op) if table is not None else None
    if counted is not None and counted.flops:
        yield Cause(POINTWISE, counted.flops, counted.like)


def _beside(op: Op, kernel: Kernel, name: KernelRole, parts: int, table: Instructions | None) -> Iterator[Cause]:
    """What runs beside the matrix kernel: by its own counters where there are some, else by what it moves."""
    cause = {"layout": LAYOUT, "cast": LAYOUT, "sum of parts": PARTS}.get(name.role, POINTWISE)
    counted = [kernel.quantities[key].value for key in (*CUDA_FLOPS, *TENSOR_FLOPS) if key in kernel.quantities]
    if counted:
        if done := math.fsum(counted):
            yield Cause(cause, done, f"counters of the kernel itself: {_short(kernel)}")
    elif name.role == "layout":
        moved = next((tensor.numel for tensor in (*op.inputs, *op.outputs) if reorders(kernel, tensor)), 0)
        if moved:
            yield Cause(cause, _PER_VALUE_MOVED * moved, f"{moved:,} values into another order: {_short(kernel)}")
    elif name.role == "sum of parts":
        # Of the product whose depth is split: a weight's gradient, or what the op makes.
        backward = op.packet == "aten::convolution_backward"
        results = (op.tensor("weight") if backward else op.outputs[0]).numel
        yield Cause(cause, (parts + 1) * results, f"{parts} parts for each of {results:,} results: {_short(kernel)}")
    elif name.role == "pointwise" and op.packet == "aten::convolution":
        out = op.outputs[0]
        yield Cause(cause, _PER_BIAS.get(out.dtype, 2) * out.numel, f"adds the bias to {out.numel:,} results")
    elif name.role == "reduction" and op.packet == "aten::convolution_backward" and table is not None:
        yield from _bias_gradient(op, table)


def _bias_gradient(op: Op, table: Instructions) -> Iterator[Cause]:
    grad = op.tensor("grad_output")
    dtype = "bf16" if grad.dtype in ("bf16", "fp16") else grad.dtype
    sizes = doublings(math.prod(grad.shape[2:]), grad.shape[1], grad.shape[0])
    like = Point("aten::sum.dim_IntList", dtype, "dim=[0, 2, 3]", "plain broadcast", sizes, 0.0)
    counted = table.near(like, grad.numel)
    if counted is not None:
        yield Cause(POINTWISE, counted.flops, f"the bias's gradient: {counted.like}")


def _short(kernel: Kernel) -> str:
    return short_name(kernel.name, 60)
