"""Which ops of a step nobody has a formula for."""

from collections import Counter
from collections.abc import Iterable

from rooflight.estimation.registry import find
from rooflight.ledger import Op


def without_formula(ops: Iterable[Op]) -> Counter[str]:
    """Names of ops that do something and have no formula, and how often they are called."""
    return Counter(op.name for op in ops if op.kind == "compute" and find(op) is None)
