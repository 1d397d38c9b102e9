"""Families of ops, few enough to have a colour each: what kind of work an op, or several that ran as one, does."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.ledger import Op

OTHER = "other, fused"
FAMILIES = (
    "convolution", "matmul", "attention", "normalisation", "pointwise", "pooling, reduction", "optimizer", OTHER,
)  # fmt: skip
"""In the order of `charts.theme.COLOURS`."""
_MATRIX = FAMILIES[:3]

_REDUCING = frozenset(
    "sum nansum mean prod amax amin aminmax max min argmax argmin all any cumsum cumprod logsumexp var std var_mean "
    "std_mean median topk sort linalg_vector_norm _foreach_norm".split()
)
_PARTS = (
    ("pooling, reduction", ("pool", "softmax", "loss", "upsample", "interpol")),
    ("normalisation", ("_norm", "norm_", "rms_norm")),
    ("other, fused", ("embedding", "index", "scatter", "gather", "copy", "clone", "cat", "fill", "zero", "slice")),
)


def family_of(op: Op) -> str:
    """One of `FAMILIES`, by the op's phase, matrix work and name."""
    name = op.packet.partition("::")[2]
    if op.phase == "optimizer":
        return "optimizer"
    if "attention" in name:
        return "attention"
    if "conv" in name:
        return "convolution"
    if op.cost is not None and op.cost.macs:
        return "matmul"
    if name.rstrip("_") in _REDUCING:
        return "pooling, reduction"
    return next((family for family, parts in _PARTS if any(part in name for part in parts)), "pointwise")


def family_of_all(ops: Sequence[Op]) -> str:
    """Of ops that ran as one: that of their matrix work, or the one they share."""
    found = list(dict.fromkeys(map(family_of, ops)))
    matrix = [family for family in found if family in _MATRIX]
    if matrix:
        return matrix[0]
    return found[0] if len(found) == 1 else OTHER
