"""Matrix products: [M, K] x [K, N] is M*N*K multiply-adds, once per matrix of a batch."""

from __future__ import annotations

from math import prod

from rooflight.ledger import Op, Tensor
from rooflight.metrics import distinct_experts
from rooflight.ops.kernel_task import Task, precision_of, reduce_task
from rooflight.ops.matrix_product import MatrixProduct
from rooflight.ops.registry import Work, aten, formula, never_timed, products, task
from rooflight.ops.rounding import ceil_div

_SPARSE = ("sparse::mm", "sparse::mv", "sparse::addmm", "sparse::_sparse_addmm")
never_timed(*_SPARSE)


def _product(macs: str, where: dict[str, int], *, of: Tensor, reads: int | str | None = None) -> Work:
    """A product of complex numbers is four of real ones."""
    return Work(macs=f"4 * {macs}" if of.dtype.startswith("complex") else macs, where=where, reads=reads)


def _read(op: Op, addend: str) -> int | None:
    """With beta = 0 the addend is not looked at."""
    if op.args.get("beta") != 0:
        return None
    return sum(tensor.nbytes for name in op.args if name != addend for tensor in op.tensors(name))


@formula("aten::mm", "aten::_int_mm", "aten::_scaled_mm")
def mm(op: Op) -> Work:
    (m, k), (_, n) = op.tensor("self").shape, op.tensor("mat2").shape
    return _product("M * K * N", {"M": m, "K": k, "N": n}, of=op.tensor("self"))


# beta * input + alpha * (mat1 @ mat2): the addend is the bias of a linear layer, and K multiplies with K-1 adds and
# the bias add make 2K, so it is not counted again.
@formula("aten::addmm", "aten::addmm_", "aten::_addmm_activation")
def addmm(op: Op) -> Work:
    (m, k), (_, n) = op.tensor("mat1").shape, op.tensor("mat2").shape
    return _product("M * K * N", {"M": m, "K": k, "N": n}, of=op.tensor("mat1"), reads=_read(op, "self"))


@formula("aten::bmm")
def bmm(op: Op) -> Work:
    (b, m, k), (_, _, n) = op.tensor("self").shape, op.tensor("mat2").shape
    return _product("b * M * K * N", {"b": b, "M": m, "K": k, "N": n}, of=op.tensor("self"))


@formula("aten::baddbmm", "aten::baddbmm_", "aten::addbmm", "aten::addbmm_")
def baddbmm(op: Op) -> Work:
    (b, m, k), (_, _, n) = op.tensor("batch1").shape, op.tensor("batch2").shape
    where = {"b": b, "M": m, "K": k, "N": n}
    return _product("b * M * K * N", where, of=op.tensor("batch1"), reads=_read(op, "self"))


@formula("aten::mv", "aten::addmv", "aten::addmv_")
def mv(op: Op) -> Work:
    m, k = op.tensor("mat" if op.has("mat") else "self").shape
    return Work(macs="M * K", where={"M": m, "K": k})


@formula("aten::dot", "aten::vdot")
def dot(op: Op) -> Work:
    return Work(macs="K", where={"K": op.tensor("self").shape[0]})


@formula("aten::addr", "aten::addr_")
def addr(op: Op) -> Work:
    return Work(macs="M * N", where={"M": op.tensor("vec1").shape[0], "N": op.tensor("vec2").shape[0]})


# Rows of one matrix sorted by expert, each group with its own weights: self [M, K], mat2 [E, K, N]; or, in the gradient
# of the weights, both 2-d and grouped along K. Either way every row of M meets one K x N. Few tokens do not meet all
# experts: the weights of the others are not read.
@formula("aten::_grouped_mm")
def grouped_mm(op: Op) -> Work:
    left, right = op.tensor("self"), op.tensor("mat2")
    groups = left.shape[0] if len(left.shape) == len(right.shape) == 3 else 1
    where = {"G": groups, "M": left.shape[-2], "K": left.shape[-1], "N": right.shape[-1]}
    reads = None
    if len(left.shape) == 2 and len(right.shape) == 3 and _groups(op) < right.shape[0]:
        offsets = sum(tensor.nbytes for tensor in op.tensors("offs"))
        reads = left.nbytes + right.nbytes // right.shape[0] * _groups(op) + offsets
    note = "rows are taken to be spread evenly over the experts that are chosen" if op.has("offs") else ""
    return Work(macs="G * M * K * N", where=where, reads=reads, note=note)


def _groups(op: Op) -> int:
    """Return how many groups of a grouped product have rows, in the mean."""
    left, right = op.tensor("self").shape, op.tensor("mat2").shape
    if len(left) == 3 == len(right):
        return left[0]
    rows = right[-1] if len(left) == 3 else left[0] if len(right) == 3 else left[-1]
    choices, experts = op.routed or 1, next(row[0] for row in (left, right, op.outputs[0].shape) if len(row) == 3)
    return max(1, distinct_experts(rows // choices, choices=choices, experts=experts))


# A sparse matrix of z values, its parts in a list: every value meets the row of the dense factor (or the column, where
# that comes first) that its index names.
@formula(*_SPARSE)
def sparse_product(op: Op) -> Work:
    names = ("mat1", "mat2") if op.has("mat1") else tuple(op.args)[:2]
    left, right = (op.tensors(name) for name in names)
    parts, (dense,) = (left, right) if len(right) == 1 else (right, left)
    summed = dense.shape[0 if parts is left else -1]
    others = () if op.args.get("beta") == 0 else op.args.keys() - {*names, "out"}
    addends = [tensor for name in others for tensor in op.tensors(name) if tensor != dense]
    moved = sum(tensor.nbytes for tensor in (*parts, *addends))
    where = {"z": parts[-1].numel, "K": summed, "N": dense.numel // max(summed, 1), "e": dense.itemsize, "s": moved}
    return _product("z * N", where, of=dense, reads="min(z, K) * N * e + s")


# The whole linear layer as one op, as inference mode and some backends call it: x [..., K], weight [N, K].
@formula("aten::linear")
def linear(op: Op) -> Work:
    x, (n, k) = op.tensor("input"), op.tensor("weight").shape
    return Work(macs="M * K * N", where={"M": x.numel // k, "K": k, "N": n})


def _factors(op: Op) -> tuple[Tensor, Tensor]:
    names = ("mat1", "mat2") if "mat1" in op.args else ("batch1", "batch2") if "batch1" in op.args else ("self", "mat2")
    return op.tensor(names[0]), op.tensor(names[1])


# --- kernel tasks


def product_task(
    precision: str, m: int, n: int, k: int, *, batch: int = 1, a: int = 0, b: int = 0, bias: int = 0
) -> Task:
    """`a`, `b`: is the left, the right factor transposed?"""
    return Task("gemm", precision, (batch, m, n, k, a, b, bias))


def _transposed(matrix: Tensor) -> int:
    """Do the elements of a column lie side by side, not those of a row?"""
    return int(matrix.strides is not None and matrix.strides[-2] == 1 and matrix.shape[-1] > 1)


@task(*aten("mm addmm bmm baddbmm _addmm_activation _int_mm _scaled_mm"))
def matmul_tasks(op: Op) -> list[Task]:
    a, b = _factors(op)
    batch = a.shape[0] if len(a.shape) == 3 else 1
    (m, k), n = a.shape[-2:], b.shape[-1]
    k *= 4 if a.dtype.startswith("complex") else 1  # as many real products
    bias = int("addmm" in op.packet)
    return [product_task(op.precision, m, n, k, batch=batch, a=_transposed(a), b=_transposed(b), bias=bias)]


@task("aten::_grouped_mm")
def grouped_tasks(op: Op) -> list[Task]:
    """One kernel for all groups in bf16, one product after the other in all else, as torch has no other kernel."""
    a, b = _factors(op)
    groups = _groups(op)
    (m, k), n = a.shape[-2:], b.shape[-1]
    if len(a.shape) == 2 and len(b.shape) == 3:
        m = ceil_div(m, groups)
    elif len(a.shape) == len(b.shape) == 2:
        k = ceil_div(k, groups)
    elif len(b.shape) == 2:
        n = ceil_div(n, groups)
    at_once = groups if op.precision == "bf16" or len(a.shape) == len(b.shape) == 3 else 1
    product = product_task(op.precision, m, n, k, batch=at_once, a=_transposed(a), b=_transposed(b))
    return [product] * (groups // at_once)


def any_matrix_work(op: Op) -> list[Task]:
    """What an op is taken for that counts matrix work and has no tasks: a product of that output and as many FLOPs."""
    macs = (op.cost.macs or 0) if op.cost is not None else 0
    out = max(op.outputs, key=lambda tensor: tensor.numel, default=None)
    if not macs or out is None or not out.numel:
        return []
    n = out.shape[-1] if out.shape else 1
    return [product_task(op.precision or precision_of(out.dtype), out.numel // n, n, max(1, macs // out.numel), b=1)]


@task("aten::mv", "aten::addmv")
def matrix_vector_tasks(op: Op) -> list[Task]:
    m, k = op.tensor("self" if op.packet == "aten::mv" else "mat").shape
    return [product_task(op.precision, m, 1, k)]


@task("aten::dot", "aten::vdot")
def dot_tasks(op: Op) -> list[Task]:
    x = op.tensor("self")
    return [reduce_task(x.dtype, kept=1, reduced=x.numel, innermost=True)]


# --- matrix products


@products("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm")
def matmul_products(op: Op) -> list[MatrixProduct]:
    a, b = _factors(op)
    return [MatrixProduct("product", a.shape[-2], b.shape[-1], a.shape[-1], batch=prod(a.shape[:-2]))]
