"""What the allocator saw, over time: how much a set of ops grew it, and what was allocated after each op.

Memory is freed between ops as well as in them, so growths do not add up. The growth of a set of ops is that of its
runs: a run is a stretch of the step in which only ops of the set are; it grew by what is allocated after its last op,
less what was before its first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rooflight.ledger import Ledger, Value
from rooflight.metrics import Number


@dataclass(frozen=True)
class MemoryMoment:
    """An op, and what was allocated before and after it."""

    index: int
    rank: int
    before_bytes: Number
    after_bytes: Number


@dataclass(frozen=True)
class MemoryGrowth:
    """The ops around which the allocator was asked, in their order."""

    moments: tuple[MemoryMoment, ...]
    idle: frozenset[int]
    """Views, which take and free nothing: no row is interrupted by them."""

    def growth_bytes(self, ops: Collection[int]) -> Number | None:
        """Of these ops: the sum over their runs. `0` where there are none, `None` where nothing is known of them."""
        if not self.moments:
            return None
        places = sorted(self._place_of[index] for index in ops if index in self._place_of)
        if not places:
            return 0 if all(index in self.idle for index in ops) else None
        grown: Number = 0
        before = -2
        for place in places:
            moment, last = self.moments[place], self.moments[place - 1]
            # What was freed since the op before counts only inside a run.
            inside = before == place - 1 and last.rank == moment.rank
            grown += moment.after_bytes - (last.after_bytes if inside else moment.before_bytes)
            before = place
        return grown

    @cached_property
    def _place_of(self) -> dict[int, int]:
        """By op: which of the moments is its."""
        return {moment.index: place for place, moment in enumerate(self.moments)}


def timeline(ledger: Ledger, values: Sequence[Mapping[str, Value]]) -> MemoryGrowth:
    """From what was measured of every op alone."""
    moments, idle = [], set()
    for op, quantities in zip(ledger.ops, values, strict=True):
        if "allocated_bytes" not in quantities or "growth_bytes" not in quantities:
            continue
        after, growth = quantities["allocated_bytes"].value, quantities["growth_bytes"].value
        if op.kind == "view" and not growth:
            idle.add(op.index)
        else:
            moments.append(MemoryMoment(op.index, op.rank, after - growth, after))
    return MemoryGrowth(tuple(moments), frozenset(idle))
