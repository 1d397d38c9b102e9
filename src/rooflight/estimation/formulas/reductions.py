"""Reductions: n elements into m results take n - m operations, plus what happens to each element and each result."""

from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op


def _sizes(op: Op) -> dict[str, int]:
    return {"n": op.tensor("self").numel, "m": op.outputs[0].numel}


# sum: n - m additions; the others likewise, with products, comparisons or logic.
@formula(
    *(f"aten::{name}" for name in "sum prod amax amin argmax argmin all any _is_all_true _is_any_true".split()),
    "aten::max",
    "aten::min",
)
def combine(op: Op) -> Work:
    if op.has("other"):  # max.other: pairs, not a reduction
        return Work(other="n", where={"n": op.outputs[0].numel})
    where = _sizes(op)
    return Work(other="n - m" if where["n"] > where["m"] else 0, where=where)


@formula("aten::aminmax")
def aminmax(op: Op) -> Work:
    return Work(other="2 * (n - m)", where=_sizes(op))


# n - m additions and m divisions.
@formula("aten::mean")
def mean(op: Op) -> Work:
    return Work(other="n", where=_sizes(op), note="(n - m) additions, m divisions")


# Is it NaN (or not zero), then the sum.
@formula("aten::nansum", "aten::count_nonzero")
def conditional_sum(op: Op) -> Work:
    return Work(other="2 * n - m", where=_sizes(op))


# The mean: n. The difference: n. Its square: n. Their sum divided: n.
@formula("aten::var", "aten::var_mean")
def variance(op: Op) -> Work:
    return Work(other="4 * n", where=_sizes(op))


@formula("aten::std", "aten::std_mean")
def deviation(op: Op) -> Work:
    return Work(other="4 * n + m", where=_sizes(op))


# The maximum: n - m. Subtract and exp: 2n. Their sum: n - m. log and add: 2m.
@formula("aten::logsumexp")
def logsumexp(op: Op) -> Work:
    return Work(other="4 * n", where=_sizes(op))


def norm_operations(order: object) -> str:
    """Operations of an m-fold norm of n elements."""
    # Is it zero, then the sum; or absolute values, then the sum or the maximum. Ledgers write infinity as text.
    if order in (0, 1, "inf", "-inf"):
        return "2 * n - m"
    if order in (None, 2):
        return "2 * n"  # squares n, sum n - m, root m
    return "3 * n"  # absolute value and power 2n, sum n - m, root m


@formula("aten::linalg_vector_norm", "aten::norm")
def norm(op: Op) -> Work:
    order = op.args.get("ord") if op.packet == "aten::linalg_vector_norm" else op.args.get("p")
    return Work(other=norm_operations(order), where=_sizes(op))


def _powsum_operations(order: object) -> str:
    """The norm without its root: |x|^p added up. A square needs no absolute value."""
    return "2 * n - m" if order in (None, 0, 1, 2) else "3 * n - m"


@formula("aten::linalg__powsum")
def powsum(op: Op) -> Work:
    return Work(other=_powsum_operations(op.args.get("ord")), where=_sizes(op))


@formula("aten::dist")
def dist(op: Op) -> Work:
    n = max(op.tensor("self").numel, op.tensor("other").numel)
    return Work(other=f"n + {norm_operations(op.args.get('p'))}", where={"n": n, "m": 1})


@formula("aten::_foreach_norm")
def foreach_norm(op: Op) -> Work:
    n = sum(tensor.numel for tensor in op.tensors("self"))
    return Work(other=norm_operations(op.args.get("ord")), where={"n": n, "m": len(op.tensors("self"))})


@formula("aten::_foreach_powsum")
def foreach_powsum(op: Op) -> Work:
    n = sum(tensor.numel for tensor in op.tensors("self"))
    return Work(other=_powsum_operations(op.args.get("ord")), where={"n": n, "m": len(op.tensors("self"))})


@formula("aten::_foreach_max")
def foreach_max(op: Op) -> Work:
    n = sum(tensor.numel for tensor in op.tensors("self"))
    return Work(other="n - m", where={"n": n, "m": len(op.tensors("self"))})


def _scan(op: Op) -> dict[str, int]:
    x = op.tensor("self")
    length = x.shape[op.ints("dim")[0]] if x.shape else 1
    return {"n": x.numel, "R": x.numel // max(length, 1)}


# The first of every one of R rows is copied, each further one takes one operation.
@formula("aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::cumprod_", "aten::cummax", "aten::cummin")
def scan(op: Op) -> Work:
    return Work(other="n - R", where=_scan(op))


# A scan with logaddexp, which is 7 operations.
@formula("aten::logcumsumexp")
def logcumsumexp(op: Op) -> Work:
    return Work(other="7 * (n - R)", where=_scan(op))


# Sums along the diagonal of the smaller side, and reads no more.
@formula("aten::trace")
def trace(op: Op) -> Work:
    x = op.tensor("self")
    return Work(other="n - 1", reads="n * e", where={"n": min(x.shape), "e": x.itemsize})


# For every slice its norm, the comparison, and the scaled slice.
@formula("aten::renorm", "aten::renorm_")
def renorm(op: Op) -> Work:
    x = op.tensor("self")
    where = {"n": x.numel, "m": x.shape[op.ints("dim")[0]]}
    return Work(other=f"{norm_operations(op.args.get('p'))} + m + n", where=where)
