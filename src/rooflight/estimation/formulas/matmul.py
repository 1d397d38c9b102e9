"""Matrix products: [M, K] x [K, N] is M*N*K multiply-adds, once per matrix of a batch."""

from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op, Tensor


def _product(macs: str, where: dict[str, int], *, of: Tensor, reads: int | None = None) -> Work:
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
# of the weights, both 2-d and grouped along K. Either way every row of M meets one K x N.
@formula("aten::_grouped_mm")
def grouped_mm(op: Op) -> Work:
    left, right = op.tensor("self").shape, op.tensor("mat2").shape
    groups = left[0] if len(left) == len(right) == 3 else 1
    return Work(macs="G * M * K * N", where={"G": groups, "M": left[-2], "K": left[-1], "N": right[-1]})


# The whole linear layer as one op, as inference mode and some backends call it: x [..., K], weight [N, K].
@formula("aten::linear")
def linear(op: Op) -> Work:
    x, (n, k) = op.tensor("input"), op.tensor("weight").shape
    return Work(macs="M * K * N", where={"M": x.numel // k, "K": k, "N": n})
