"""Why the FLOPs a step executed are not those the mathematics asks for, op by op."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rooflight.analysis.cause import Cause, Explained, kernels_of_ops
from rooflight.analysis.instruction_counts import Instructions, Told, instructions, threads, values_of
from rooflight.analysis.sweeps.convolutions import reorders
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Ledger, Op
from rooflight.metrics import CUDA_FLOPS, EXECUTED_FLOPS, TENSOR_FLOPS
from rooflight.ops.attention_tiles import AttentionBlocks, attention_shape, executed_blocks
from rooflight.ops.convolution import gradients_of
from rooflight.ops.direct_convolutions import is_direct, results_of, taps_inside
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
BORDER = "taps outside the image"
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
    ("engine", None): 1,
    ("nvjet", None): 0,
}
"""CUDA-core FLOPs of a matrix kernel for every place of its tiles: alpha times the sum, plus beta times what was there.
By the counters of single kernels (benchmarks/h200/results/instructions)."""
_PER_BLOCK = {"xmma sm90": 2304}
"""And for every tile: the counters of these kernels show it whatever the tile."""
_PER_VALUE_MOVED = 1
_MOST_OVER = 0.02
"""The rules are exact: where they make more FLOPs than were counted, a kernel is not what its name says."""
_FLOATING = ("fp64", "fp32", "bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "complex32", "complex64", "complex128")


@dataclass(frozen=True)
class OpWork:
    """What the kernels of an op execute, told by their names, their grids and the op's shapes: no counter of the op."""

    op: Op
    causes: tuple[Cause, ...]
    """Why it is more or less than was asked for."""
    on_tensor_cores: tuple[tuple[Kernel, float], ...]
    """Kernels that run there, and FLOPs of each."""
    untold: tuple[Kernel, ...]
    """Kernels of which nothing tells what they execute; of an op without matrix work all, where no such op was
    counted."""


@dataclass(frozen=True)
class _Counts:
    """Counted kernels, and the units of the CUDA cores that are to be told."""

    table: Instructions | None
    units: tuple[str, ...]

    def of(self, op: Op, kernel: Kernel, count: float | None = None) -> Told | None:
        return self.table.of(op, kernel, self.units, count) if self.table is not None else None


def work_of_ops(ledger: Ledger, table: Instructions | None = None) -> list[OpWork]:
    """Every op. `table`: counted single ops to tell arithmetic outside matrix work from; those of the ledger's device
    unless given."""
    device = recognise_name(ledger.header.device)
    table = table or instructions(device.name if device is not None else None)
    kernels = kernels_of_ops(ledger)
    counts = _Counts(table, _units(ledger))
    return [_work(op, [kernel for kernel in kernels[op.index] if kernel.kind == "kernel"], counts) for op in ledger.ops]


def _units(ledger: Ledger) -> tuple[str, ...]:
    """Units of the CUDA cores that were counted; without counters those that would have been."""
    counted = {name for values in op_values(ledger) for name in CUDA_FLOPS if name in values}
    if not counted:
        half = any(tensor.dtype in ("bf16", "fp16") for op in ledger.ops for tensor in op.outputs)
        counted = {name for name in CUDA_FLOPS if half or "fp16" not in name}
    return tuple(name for name in CUDA_FLOPS if name in counted)


def explain_flops(ledger: Ledger) -> list[Explained]:
    """Every op whose executed FLOPs were counted, with what it was asked for and the causes of the difference."""
    rows = []
    for work, values in zip(work_of_ops(ledger), op_values(ledger), strict=True):
        counted = {name: values[name].value for name in EXECUTED_FLOPS if name in values}
        if counted:
            # Where the CUDA cores were not counted, nothing of theirs is there to be explained.
            cuda = any(name in counted for name in CUDA_FLOPS)
            causes = [cause for cause in work.causes if cuda or cause.name not in _OF_CUDA_CORES]
            if not any(name in counted for name in TENSOR_FLOPS):
                for kernel, flops in work.on_tensor_cores:
                    evidence = f"{_short(kernel)} runs on tensor cores, which no counter saw"
                    causes.append(Cause(NOT_COUNTED, -flops, evidence))
            rows.append(Explained(work.op, useful_flops_of(work.op), sum(counted.values()), tuple(causes), _MOST_OVER))
    return rows


def _asked(op: Op) -> int:
    """Of its kernels: an op that is run a second time does the same work again, none of it useful."""
    if op.recompute and op.cost is not None:
        return op.cost.recompute_flops or 0
    return useful_flops_of(op)


def has_floats(op: Op) -> bool:
    """Not of whole numbers alone, which take no FLOPs."""
    tensors = (*op.inputs, *op.outputs)
    return not tensors or any(tensor.dtype in _FLOATING for tensor in tensors)


def _work(op: Op, kernels: Sequence[Kernel], counts: _Counts) -> OpWork:
    causes: list[Cause] = []
    if op.cost is not None and op.cost.recompute_flops:
        causes.append(Cause(RECOMPUTED, op.cost.recompute_flops, "the formula of the op: what is done a second time"))
    if not has_floats(op):
        return OpWork(op, tuple(causes), (), ())
    if not _asked(op):
        told = [counts.of(op, kernel, share) for kernel, share in zip(kernels, _shares(op, kernels), strict=True)]
        causes += [Cause(POINTWISE, one.flops, one.like) for one in told if one is not None and one.flops]
        return OpWork(op, tuple(causes), (), tuple(k for k, one in zip(kernels, told, strict=True) if one is None))
    if not products_of(op) and attention_shape(op) is None:  # nothing tells what its kernels work on
        return OpWork(op, tuple(causes), (), tuple(kernels))
    names = [role_of(kernel.name) for kernel in kernels]
    convolves = op.packet.startswith("aten::convolution")
    fast = convolves and is_fast(names)
    done = fast_flops(op, kernels, names) if fast else None
    split = 1, 0
    share = _share(op)
    tensor: list[tuple[Kernel, float]] = []
    untold: list[Kernel] = []
    products = product_of_each(op, names)
    times = Counter(product.does for product in products if product is not None)
    for kernel, name, product in zip(kernels, names, products, strict=True):
        if name is None:
            untold.append(kernel)
        elif name.role == "attention":
            of = attention_shape(op)
            blocks = executed_blocks(kernel.name, of) if of is not None else None
            if blocks is None:
                untold.append(kernel)
                continue
            tensor.append((kernel, blocks.executed))
            causes += [*_attention(kernel, blocks), *_arithmetic(op, kernel, counts)]
        elif convolves and is_direct(kernel):
            causes += _direct(op, kernel, share, counts)
        elif fast and belongs(name, kernel):
            untold += [] if done is not None else [kernel]
        elif name.role == "matrix":
            tiled = executed_tiles(name, kernel.grid, product) if product is not None else None
            if tiled is None or product is None:
                untold.append(kernel)
                continue
            if tiled.parts > split[0]:
                split = tiled.parts, _sums(op, product)
            causes += _matrix(op, kernel, product, tiled, share / times[product.does])
            if name.unit == "tensor":
                tensor.append((kernel, tiled.flops))
        else:
            causes += _beside(op, kernel, name, split, counts)
    if done is not None:
        flops, evidence = done
        causes.append(Cause(FAST, flops - share, evidence))
    return OpWork(op, tuple(causes), tuple(tensor), tuple(untold))


def _shares(op: Op, kernels: Sequence[Kernel]) -> list[float]:
    """Values that each kernel goes over. Those of a list of tensors are shared by kernels of one name, by threads."""
    if not op.packet.startswith("aten::_foreach"):
        return [values_of(op, kernel) for kernel in kernels]
    together: Counter[str] = Counter()
    for kernel in kernels:
        together[kernel.name] += threads(kernel)
    return [values_of(op, kernel) * threads(kernel) / together[kernel.name] for kernel in kernels]


def _share(op: Op) -> float:
    """Useful FLOPs of one of the op's products, where all are alike: those of a convolution's gradients."""
    if op.packet == "aten::convolution_backward":
        return _asked(op) / max(sum(gradients_of(op)[:2]), 1)
    return float(_asked(op)) if len(products_of(op)) == 1 else math.nan


def _matrix(op: Op, kernel: Kernel, product: MatrixProduct, tiled: ExecutedTiles, share: float) -> Iterator[Cause]:
    name = role_of(kernel.name)
    assert name is not None
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
    places = _stored(op, product) if name.family == "engine" else tiled.results
    scaled = rate * places + _PER_BLOCK.get(name.family, 0) * tiled.blocks
    if scaled:
        yield Cause(EPILOGUE, scaled, f"{rate:g} for each of {places:,} places: {_short(kernel)}")


def _stored(op: Op, product: MatrixProduct) -> int:
    """Results; of an input's gradient whose taps are among them those that fall inside the image."""
    if product.tapped_rows > 1:
        return taps_inside(op) // op.tensor("weight").shape[0]
    return product.batch * product.rows * product.columns


def _sums(op: Op, product: MatrixProduct) -> int:
    """Results that are added up from parts: of a weight's gradient those of all groups and images together."""
    results = product.rows * product.columns
    if op.packet == "aten::convolution_backward":
        whole = op.tensor("weight").numel
        if product.does == "weight gradient" or results == whole:
            return whole
    return results * product.batch


def _direct(op: Op, kernel: Kernel, share: float, counts: _Counts) -> Iterator[Cause]:
    left_out = 2 * taps_inside(op) - share
    if left_out:
        yield Cause(BORDER, left_out, f"{_short(kernel)} sums over taps inside the image alone")
    yield from _arithmetic(op, kernel, counts, results_of(op, kernel))


def _attention(kernel: Kernel, blocks: AttentionBlocks) -> Iterator[Cause]:
    for name, amount, evidence in (
        (MASKED, blocks.skipped, f"causal: whole blocks above the diagonal are left out ({blocks.why})"),
        (PADDING, blocks.padding, f"{blocks.why}: {_short(kernel)}"),
        (EMULATED, blocks.repeated, f"{_short(kernel)} multiplies fp32 as three TF32 products"),
    ):
        if amount:
            yield Cause(name, amount, evidence)


def _arithmetic(op: Op, kernel: Kernel, counts: _Counts, count: int | None = None) -> Iterator[Cause]:
    told = counts.of(op, kernel, count)
    if told is not None and told.flops:
        yield Cause(POINTWISE, told.flops, told.like)


def _beside(op: Op, kernel: Kernel, name: KernelRole, split: tuple[int, int], counts: _Counts) -> Iterator[Cause]:
    """What runs beside the matrix kernel: by its own counters where there are some, else by what it moves. `split`:
    parts of a product's depth, and its results."""
    cause = {"layout": LAYOUT, "cast": LAYOUT, "sum of parts": PARTS}.get(name.role, POINTWISE)
    counted = [kernel.quantities[key].value for key in (*CUDA_FLOPS, *TENSOR_FLOPS) if key in kernel.quantities]
    if counted:
        if done := math.fsum(counted):
            yield Cause(cause, done, f"counters of the kernel itself: {_short(kernel)}")
    elif name.role == "layout":
        back = "nhwcToNchw" in kernel.name or "NhwcToNchw" in kernel.name
        held = op.outputs if back else tuple(op.inputs)
        moved = next((tensor.numel for tensor in held if reorders(kernel, tensor)), 0)
        if moved:
            yield Cause(cause, _PER_VALUE_MOVED * moved, f"{moved:,} values into another order: {_short(kernel)}")
    elif name.role == "sum of parts":
        parts, results = split
        if not results:  # no grid shows the split
            backward = op.packet == "aten::convolution_backward"
            results = (op.tensor("weight") if backward else op.outputs[0]).numel
        yield Cause(cause, (parts + 1) * results, f"{parts} parts for each of {results:,} results: {_short(kernel)}")
    elif op.packet == "aten::convolution":  # the bias
        yield from _arithmetic(op, kernel, counts, op.outputs[0].numel)
    elif op.packet == "aten::convolution_backward":  # the bias's gradient
        yield from _arithmetic(op, kernel, counts, op.tensor("grad_output").numel)
    elif op.has("query"):  # an attention, whose scores are what it goes over
        yield from _arithmetic(op, kernel, counts)


def _short(kernel: Kernel) -> str:
    return short_name(kernel.name, 60)
