"""Softmax and log-softmax over R rows, n elements in all, and their gradients."""

from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op, Tensor


def _rows(op: Op, x: Tensor) -> dict[str, int]:
    dim = op.ints("dim", [-1])[0]
    length = x.shape[dim] if x.shape else 1
    return {"n": x.numel, "R": x.numel // max(length, 1)}


# The maximum n - R, subtract n, exp n, sum n - R, divide n. A mask only chooses elements.
@formula("aten::_softmax", "aten::softmax", "aten::_masked_softmax")
def softmax(op: Op) -> Work:
    return Work(other="5 * n - 2 * R", where=_rows(op, op.tensor("self")))


# Also asks whether a whole row is -inf: n comparisons, n - R conjunctions.
@formula("aten::_safe_softmax")
def safe_softmax(op: Op) -> Work:
    return Work(other="7 * n - 3 * R", where=_rows(op, op.tensor("self")))


# The maximum n - R, subtract n, exp n, sum n - R, log R, subtract n.
@formula("aten::_log_softmax", "aten::log_softmax")
def log_softmax(op: Op) -> Work:
    return Work(other="5 * n - R", where=_rows(op, op.tensor("self")))


# dx = y * (dy - sum(dy * y)): multiply n, sum n - R, subtract n, multiply n.
@formula("aten::_softmax_backward_data", "aten::_masked_softmax_backward")
def softmax_backward(op: Op) -> Work:
    return Work(other="4 * n - R", where=_rows(op, op.tensor("output")))


# dx = dy - exp(y) * sum(dy): sum n - R, exp n, multiply n, subtract n.
@formula("aten::_log_softmax_backward_data")
def log_softmax_backward(op: Op) -> Work:
    return Work(other="4 * n - R", where=_rows(op, op.tensor("output")))
