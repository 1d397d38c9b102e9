"""Sorting, selecting, searching and counting.

By convention a sort of rows of length L costs ceil(log2(L)) comparisons per element, whatever the algorithm; selecting
(top-k, median, unique) is taken as sorting, searching as ceil(log2(L)) comparisons per value.
"""

from rooflight.estimation.registry import Work, formula
from rooflight.ledger import Op


def _sorted(n: int, length: int) -> Work:
    note = "by convention: log2 of the length, rounded up, per element"
    return Work(other="n * ceil(log2(L))" if length > 0 else 0, where={"n": n, "L": length}, note=note)


@formula("aten::sort", "aten::topk", "aten::kthvalue", "aten::mode", "aten::median", "aten::nanmedian", "aten::msort")
def sort(op: Op) -> Work:
    x = op.tensor("self")
    whole = op.name in ("aten::median", "aten::nanmedian")
    default = 0 if op.packet == "aten::msort" else -1
    length = x.numel if whole else x.shape[op.ints("dim", [default])[0]] if x.shape else 1
    return _sorted(x.numel, length)


# Sorted, then neighbours compared.
@formula("aten::_unique2")
def unique(op: Op) -> Work:
    n = op.tensor("self").numel
    return Work(other="n * ceil(log2(n)) + n - 1" if n > 0 else 0, where={"n": n})


# L slices of D elements; comparing two slices may take D comparisons.
@formula("aten::unique_dim")
def unique_dim(op: Op) -> Work:
    x = op.tensor("self")
    length = x.shape[op.ints("dim")[0]]
    other = "D * (L * ceil(log2(L)) + L - 1)" if length > 0 else 0
    return Work(other=other, where={"L": length, "D": x.numel // max(length, 1)})


@formula("aten::unique_consecutive", "aten::unique_dim_consecutive")
def unique_consecutive(op: Op) -> Work:
    n = op.tensor("self").numel
    return Work(other="n - 1" if n > 0 else 0, where={"n": n})


# One addition per element, of 1 or of its weight.
@formula("aten::bincount")
def bincount(op: Op) -> Work:
    return Work(other="n", where={"n": op.tensor("self").numel})


# Which bin: (x - min) * bins / (max - min) is 3 operations; then 1 is added. Without bounds they are looked for.
@formula("aten::histc")
def histc(op: Op) -> Work:
    bounds = op.args.get("min", 0) != op.args.get("max", 0)
    return Work(other="4 * n" if bounds else "4 * n + 2 * (n - 1)", where={"n": op.tensor("self").numel})


@formula("aten::searchsorted")
def searchsorted(op: Op) -> Work:
    length = op.tensor("sorted_sequence").shape[-1]
    return Work(other="n * ceil(log2(L + 1))", where={"n": op.outputs[0].numel, "L": length})


@formula("aten::bucketize")
def bucketize(op: Op) -> Work:
    length = op.tensor("boundaries").numel
    return Work(other="n * ceil(log2(L + 1))", where={"n": op.outputs[0].numel, "L": length})


# The L test elements sorted, then each of the n searched among them.
@formula("aten::isin")
def isin(op: Op) -> Work:
    tests = op.tensors("test_elements")
    length = tests[0].numel if tests else 1
    where = {"n": op.outputs[0].numel, "L": length}
    return Work(other="L * ceil(log2(L)) + n * ceil(log2(L + 1))" if length > 0 else 0, where=where)
