"""From A to B: the whole difference of a quantity as a sum of causes and what is left unexplained.

Two steps are matched op by op. What both sides run for the same ops is split into what follows from their sizes, types
and devices by formula, into what kernel names, tiles and caches tell on each side, and into other kernels; ops that one
side fuses, runs again or does not have are causes of their own. A + causes + unexplained = B.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.ledger import Op
from rooflight.metrics import Number

How = Literal["computed", "observed"]
"""From shapes, names and data sheets; or as what the times and counts of ops differ by that differ in nothing else."""

SIZES = "batch and sizes"
PRECISION = "precision"
PEAK = "peak of the units"
BANDWIDTH = "memory bandwidth"
EFFICIENCY = "distance to the roofs"
FUSION = "fusion"
FUSED_PASSES = "fused kernels: passes and cache"
KERNELS = "other kernels"
ALGORITHM = "other algorithm"
PADDING = "padding"
CACHES = "cache contents"
RECOMPUTATION = "recomputation"
OTHER_OPS = "other ops"
LAUNCHES = "launches and host"
OVERLAP = "kernels side by side"
BETWEEN = "between ops"
CLOCK = "clock"
_NOUGHT = 1e-12
"""Of the larger end: what rounding leaves of contributions that cancel."""
NO_OP = "kernels of no known op"


@dataclass(frozen=True)
class Contribution:
    """What one op, or one group of ops, adds to a cause."""

    cause: str
    amount: float
    op: Op | None = None
    evidence: str = ""
    how: How = "computed"
    ops: int = 1
    """How many it is of."""


@dataclass(frozen=True)
class BridgeCause:
    """One cause of a difference, over all ops."""

    name: str
    """In words."""
    amount: float
    """What B has more because of it; less: negative."""
    evidence: str
    """What it follows from, in the op where it is largest."""
    ops: int
    """Of how many ops."""
    how: How
    """Computed from evidence, or observed of ops that differ in nothing else."""


@dataclass(frozen=True)
class Bridge:
    """One quantity, from A to B."""

    quantity: str
    """As `time`."""
    unit: Literal["flop", "byte", "second"]
    """Of all amounts."""
    what: str
    """What A and B are: `wall time`, `executed FLOPs`."""
    a: Number
    """Of side A."""
    b: Number
    """Of side B."""
    causes: tuple[BridgeCause, ...]
    """The largest first, whatever their sign."""
    unexplained: float
    """What is left."""
    is_by_formula: bool = False
    """Are the ends worked out from shapes, because nothing was counted?"""
    is_within_noise: bool = False
    """May the two ends be one and the same, by the spread of the repeats that they are medians of?"""

    @property
    def difference(self) -> Number:
        """B less A."""
        return self.b - self.a

    def share(self, amount: float) -> float | None:
        """Of the difference; `None` where there is none."""
        return amount / self.difference if self.difference else None

    @property
    def largest(self) -> BridgeCause | None:
        """The cause that does most in the direction of the difference."""
        along = [cause for cause in self.causes if cause.amount * self.difference > 0]
        return max(along, key=lambda cause: abs(cause.amount), default=None)

    def of_part(self, a: Number, b: Number, without: Collection[str]) -> Bridge:
        """The same of a part of the quantity, as what is allocated of the memory: with its ends, and with those causes
        alone that change it."""
        causes = tuple(cause for cause in self.causes if cause.name not in without)
        left = math.fsum((b, -a, *(-cause.amount for cause in causes)))
        return replace(self, a=a, b=b, causes=causes, unexplained=left)


def bridge(
    quantity: str,
    unit: Literal["flop", "byte", "second"],
    what: str,
    ends: tuple[Number, Number],
    contributions: Iterable[Contribution],
) -> Bridge:
    """Contributions added up by cause; what they do not make of the difference is unexplained."""
    by_cause: dict[str, list[Contribution]] = defaultdict(list)
    for contribution in contributions:
        if contribution.amount:
            by_cause[contribution.cause].append(contribution)
    a, b = ends
    sums = (_summed(name, held) for name, held in by_cause.items())
    causes = [cause for cause in sums if abs(cause.amount) > _NOUGHT * max(abs(a), abs(b))]
    causes.sort(key=lambda cause: (-abs(cause.amount), cause.name))
    left = math.fsum((b, -a, *(-cause.amount for cause in causes)))
    return Bridge(quantity, unit, what, a, b, tuple(causes), left)


def _summed(name: str, held: list[Contribution]) -> BridgeCause:
    amount = math.fsum(contribution.amount for contribution in held)
    # The largest in the direction of the sum: it is what the sum is due to.
    along = [one for one in held if one.amount * amount > 0] or held
    most = max(along, key=lambda one: abs(one.amount))
    ops = sum(one.ops for one in held)
    where = ""
    if len(held) > 1:  # the evidence is of one of them: a reader must not take its amount for that of all
        where = f" (the largest of {len(held)} parts)"
        if most.op is not None:
            where = f" (in {most.op.module or most.op.name}, the largest of {ops:,} ops)"
    observed = math.fsum(abs(one.amount) for one in held if one.how == "observed")
    how: How = "observed" if observed > math.fsum(abs(one.amount) for one in held) / 2 else "computed"
    return BridgeCause(name, amount, most.evidence + where, ops, how)
