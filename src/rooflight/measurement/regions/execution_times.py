"""Times of all executions of a region in bounded memory, and what of them was spent in the regions inside."""

from __future__ import annotations

from array import array
from statistics import median

from rooflight.ledger import Value

MOST_TIMES = 16_384
"""Beyond so many every second one is let go, then every fourth: a region may be executed millions of times."""
_COURSE = 200
"""So many points show how the times went."""


class ExecutionTimes:
    """Times in their order: how many, their median, the least and the greatest."""

    def __init__(self) -> None:
        self.count = 0
        self._kept = array("d")
        self._every = 1
        self._low, self._high = float("inf"), 0.0

    def add(self, time_s: float) -> None:
        if self.count % self._every == 0:
            self._kept.append(time_s)
            if len(self._kept) >= MOST_TIMES:
                self._kept, self._every = self._kept[::2], 2 * self._every
        self.count += 1
        self._low, self._high = min(self._low, time_s), max(self._high, time_s)

    def value(self, clock: str) -> Value | None:
        """The median with the least and the greatest of all; `None` where there is no time."""
        if not self.count:
            return None
        sampled = f", of which 1 in {self._every} is kept" if self._every > 1 else ""
        origin = f"{clock}: median of {self.count} executions{sampled}"
        several = {"low": self._low, "high": self._high} if self.count > 1 else {}
        return Value(median(self._kept), origin, **several)

    def course(self) -> list[float]:
        """How the times went: all of them, or as few medians of as many neighbours each."""
        each = -(-len(self._kept) // _COURSE)
        return [median(self._kept[at : at + each]) for at in range(0, len(self._kept), each or 1)]


class PartTimes:
    """How much of a time was spent in which regions, summed over the same executions."""

    def __init__(self) -> None:
        self.time_s = 0.0
        self._inside_s: dict[str, float] = {}

    def add(self, time_s: float, inside_s: dict[str, float]) -> None:
        self.time_s += time_s
        for name, part_s in inside_s.items():
            self._inside_s[name] = self._inside_s.get(name, 0.0) + part_s

    @property
    def shares(self) -> dict[str, float]:
        # A region that began in another and ended after it (a generator) is not inside it for longer than that was.
        return {name: min(part_s / self.time_s, 1.0) for name, part_s in self._inside_s.items()} if self.time_s else {}
