"""`rooflight.compare`: two ledgers side by side, and why they differ."""

from __future__ import annotations

from pathlib import Path

from rooflight.comparison.sides import Comparison, with_its_estimate
from rooflight.files import load
from rooflight.ledger import Ledger


def compare(a: Ledger | str | Path, b: Ledger | str | Path | None = None) -> Comparison:
    """Two ledgers or their files; of a measured one alone, beside what the mathematics says of the same step.

    >>> found = rooflight.compare("recorded:h200/vgg19-infer-fp32")
    >>> [(cause.name, cause.b) for why in found.whys for cause in why.causes]
    """
    first = a if isinstance(a, Ledger) else load(a)
    if b is None:
        return with_its_estimate(first, first.header.model if isinstance(a, Ledger) else str(a))
    return Comparison(first, b if isinstance(b, Ledger) else load(b))
