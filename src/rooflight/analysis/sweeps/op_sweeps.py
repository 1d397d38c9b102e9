"""What the kernels of an op go over, one after the other: operands, results, and copies that nobody asked for.

By the names and grids of kernels. An op of which they say nothing reads its inputs and writes its results, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

from rooflight.analysis.sweeps.convolutions import ConvolutionSweeps, has_role
from rooflight.analysis.sweeps.fast_convolutions import fast_convolution
from rooflight.analysis.sweeps.local_memory import local_memory
from rooflight.analysis.sweeps.norms import NORMS, norm_sweeps
from rooflight.analysis.sweeps.pieces import PARTS, Borrowed, Sweep, whole_sweep
from rooflight.analysis.sweeps.plain_ops import plain_sweeps
from rooflight.ledger import Kernel, Op, Tensor
from rooflight.ops.fast_convolutions import is_fast
from rooflight.ops.kernel_names import KernelRole, role_of
from rooflight.ops.kernel_products import product_of_each
from rooflight.ops.rounding import ceil_div
from rooflight.ops.tile_padding import executed_tiles


def sweeps_of(op: Op, kernels: Sequence[Kernel], multiprocessors: int, workspace: int = 0) -> list[Sweep]:
    """In the order of the kernels. `workspace`: bytes that the allocator gave the op beside its results."""
    launched = [kernel for kernel in kernels if kernel.kind == "kernel"]
    cleared = {id(after) for before, after in pairwise(kernels) if before.kind == "set"}
    names = [role_of(kernel.name) for kernel in launched]
    is_convolution = op.packet in ("aten::convolution", "aten::convolution_backward")
    if is_convolution and is_fast(names):
        return fast_convolution(whole_sweep(op), launched, names, workspace)
    if is_convolution and any(has_role(name, "matrix") for name in names):
        return list(ConvolutionSweeps(op, launched, names, multiprocessors, workspace, cleared).sweeps())
    if op.packet in NORMS:
        return list(norm_sweeps(op, launched, multiprocessors))
    if attention := [kernel for kernel, name in zip(launched, names, strict=True) if has_role(name, "attention")]:
        return list(_attention(op, launched, attention[0], multiprocessors, workspace))
    if not any(has_role(name, "matrix") for name in names):
        return list(plain_sweeps(op, kernels, multiprocessors))
    whole = whole_sweep(op)
    whole = replace(whole, shared=_shared(op, launched, names))
    parts = split_parts(op, launched, names)
    if parts is None:
        return list(_by_columns(op, whole, launched, names, multiprocessors))
    return [replace(whole, writes=[parts]), Sweep([parts], whole.writes)]


_SMALL_TILE = 64 * 64


def in_columns(kernel: KernelRole) -> bool:
    """Do its blocks take all rows of a column of tiles before the next? cuBLAS's kernels for the CUDA cores do; others
    go through squares of tiles."""
    return (
        kernel.family == "xmma sm80" and kernel.unit == "cuda" and kernel.does == "product" and kernel.tile is not None
    )


def _by_columns(
    op: Op, whole: Sweep, kernels: Sequence[Kernel], names: Sequence[KernelRole | None], multiprocessors: int
) -> Iterator[Sweep]:
    """All rows of the first operand are read for as many columns of tiles as run at once, and then for the next."""
    matrices = [tensor for tensor in op.inputs if len(tensor.shape) > 1]
    name, product = names[0], product_of_each(op, names)[0]
    if len(kernels) == 1 and name is not None and product is not None and in_columns(name) and len(matrices) == 2:
        assert name.tile is not None
        rows, columns = ceil_div(product.rows, name.tile[0]), ceil_div(product.columns, name.tile[1])
        if product.batch == 1 and kernels[0].grid == (rows, columns, 1):
            blocks = 2 if name.tile[0] * name.tile[1] > _SMALL_TILE else 4  # of a multiprocessor at once
            times = min(ceil_div(rows * columns, blocks * multiprocessors), columns)
            said = f"{rows:,} rows of tiles, one after the other, for {columns:,} columns: {times} times"
            for place in range(times):
                yield replace(whole, place=place, count=times, again=matrices[:1], why=said)
            return
    yield whole


def _shared(op: Op, kernels: Sequence[Kernel], names: Sequence[KernelRole | None]) -> list[Tensor]:
    """Operands of plain products: the rows are read for every tile of columns, the columns for every tile of rows."""
    matrices = [tensor for tensor in op.inputs if len(tensor.shape) > 1]
    products = [(name, product) for name, product in zip(names, product_of_each(op, names), strict=True)
                if name is not None and product is not None]  # fmt: skip
    if len(products) != 1 or len(matrices) != 2 or products[0][0].tile is None:
        return matrices
    name, product = products[0]
    side = max(name.tile[:2]) if name.tile is not None else 1
    return [tensor for tensor, across in zip(matrices, (product.columns, product.rows), strict=True) if across > side]


def split_parts(op: Op, kernels: Sequence[Kernel], names: Sequence[KernelRole | None]) -> Borrowed | None:
    """What a product in parts leaves in memory for the kernel that adds them up."""
    if not any(has_role(name, "sum of parts") for name in names):
        return None
    for kernel, name, product in zip(kernels, names, product_of_each(op, names), strict=True):
        tiled = executed_tiles(name, kernel.grid, product) if name is not None and product is not None else None
        if tiled is not None and product is not None and tiled.parts > 1:
            results = product.rows * product.columns * product.batch
            said = f"{tiled.parts} parts of {results:,} sums are written, and read by {kernels[-1].name.split('<')[0]}"
            return Borrowed(PARTS, 4 * results * tiled.parts, evidence=said)
    return None


def _attention(
    op: Op, kernels: Sequence[Kernel], main: Kernel, multiprocessors: int, workspace: int
) -> Iterator[Sweep]:
    """Forward: one kernel. Backward: the sums of gradient times result first, then all gradients."""
    whole = whole_sweep(op)
    whole = replace(whole, shared=whole.reads)
    local = local_memory(main, multiprocessors)
    if not op.packet.endswith("_backward"):
        yield replace(whole, writes=[*whole.writes, *local[:1]])
        return
    first = [op.tensor(name) for name in ("grad_out", "grad_out_", "out") if isinstance(op.args.get(name), Tensor)]
    if "fmha_cutlassB" in main.name and len(first) == 2:
        product = Borrowed("gradient times result", first[0].nbytes, evidence="gradient times result, summed up before")
        yield Sweep(first, [product])
        yield Sweep([product], ())
    elif first:
        yield Sweep(first, ())
    if workspace and any("convert_dq" in kernel.name for kernel in kernels):
        sums = Borrowed("sums of queries' gradients", workspace, evidence="queries' gradients, summed up in fp32")
        yield Sweep((), [sums])
        yield replace(whole, writes=[*whole.writes[1:], sums])
        yield Sweep([sums], whole.writes[:1])
        return
    yield whole
