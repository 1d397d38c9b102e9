"""How far a repeated measurement may be off: by one standard deviation of its repeats.

A ledger holds the median of the repeats with the least and the greatest. The range of n values of a normal distribution
is d2(n) standard deviations wide on the average. The repeats of one run share its clocks, its host and its neighbours:
that many of them agree does not make their median more exact, so the deviation is not divided by the root of n. One
repeat that took far longer makes the range wide, but none was faster than the least: a value lies no lower than that.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from rooflight.ledger import Value
from rooflight.metrics import Number

_REPEATS = re.compile(r"median of (\d+)")
_WIDTHS = {
    2: 1.128, 3: 1.693, 4: 2.059, 5: 2.326, 6: 2.534, 7: 2.704, 8: 2.847, 9: 2.970, 10: 3.078, 15: 3.472, 20: 3.735,
    25: 3.931, 30: 4.086, 40: 4.322, 50: 4.498, 75: 4.806, 100: 5.015,
}  # fmt: skip
"""The constant d2 of control charts (ASTM E2587, table of factors), by the number of values."""


@dataclass(frozen=True)
class Spread:
    """A value and between which two it may lie; the three are one where nothing varies."""

    value: Number
    low: Number
    high: Number

    @classmethod
    def exact(cls, value: Number) -> Spread:
        """Of what is counted or added up without noise."""
        return cls(value, value, value)

    @property
    def varies(self) -> bool:
        return self.low < self.high


def spread_of(value: Value) -> Spread:
    """Of a median with least and greatest; of anything else the value alone."""
    if value.low is None or value.high is None or value.high <= value.low:
        return Spread.exact(value.value)
    repeats = _REPEATS.search(value.origin)
    count = int(repeats[1]) if repeats is not None else 2
    width = max((factor for n, factor in _WIDTHS.items() if n <= max(count, 2)), default=_WIDTHS[2])
    off = (value.high - value.low) / width
    return Spread(value.value, max(value.value - off, min(value.low, value.value)), value.value + off)


def ratio_of(b: Spread, a: Spread) -> Spread | None:
    """B by A; `None` where A is nought. Without an upper end where A may be nought."""
    if not a.value:
        return None
    return Spread(b.value / a.value, b.low / a.high, b.high / a.low if a.low > 0 else math.inf)


def overlap(a: Spread, b: Spread) -> bool:
    """May the two be one and the same, where one of them varies?"""
    return (a.varies or b.varies) and a.low <= b.high and b.low <= a.high
