"""What the allocator saw, over time: how much a set of ops grew it, and what was allocated after each op.

Memory is freed between ops as well as in them, so growths do not add up. The growth of a set of ops is that of its
runs: a run is a stretch of the step in which only ops of the set are; it grew by what is allocated after its last op,
less what was before its first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from rooflight.ledger import Ledger, Value

Number = int | float


@dataclass(frozen=True)
class Moment:
    """An op, and what was allocated before and after it."""

    index: int
    rank: int
    before_bytes: Number
    after_bytes: Number


@dataclass(frozen=True)
class Timeline:
    """The ops around which the allocator was asked, in their order."""

    moments: tuple[Moment, ...]
    idle: frozenset[int]
    """Views, which take and free nothing: no row is interrupted by them."""

    def growth_bytes(self, ops: Collection[int]) -> Number | None:
        """Of these ops: the sum over their runs. `0` where there are none, `None` where nothing is known of them."""
        if not self.moments:
            return None
        grown: Number = 0
        last: Moment | None = None
        known = all(index in self.idle for index in ops)
        for moment in self.moments:
            if moment.index not in ops:
                last = None
                continue
            # What was freed since the op before counts only inside a run.
            inside = last is not None and last.rank == moment.rank
            grown += moment.after_bytes - (last.after_bytes if inside and last is not None else moment.before_bytes)
            last, known = moment, True
        return grown if known else None


def timeline(ledger: Ledger, values: Sequence[Mapping[str, Value]]) -> Timeline:
    """From what was measured of every op alone."""
    found, idle = [], set()
    for op, quantities in zip(ledger.ops, values, strict=True):
        if "allocated_bytes" not in quantities or "growth_bytes" not in quantities:
            continue
        after, growth = quantities["allocated_bytes"].value, quantities["growth_bytes"].value
        if op.kind == "view" and not growth:
            idle.add(op.index)
        else:
            found.append(Moment(op.index, op.rank, after - growth, after))
    return Timeline(tuple(found), frozenset(idle))
