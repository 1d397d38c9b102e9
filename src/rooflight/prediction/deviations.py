"""By how much predicted times may be off, and ratios of them, most of whose errors are the same."""

from __future__ import annotations

NINETY = 1.645
"""Standard deviations to either side that hold 90% of a normal error."""
_OF_RATIO, _OF_TRANSFERRED_RATIO = 0.05, 0.1


def ratio_noise(*, looks_up: bool) -> float:
    """By how much the ratio of two predicted times of the same ops may be off: the half of a 90% interval. `looks_up`:
    the device itself was calibrated; else times are carried over from another."""
    return NINETY * (_OF_RATIO if looks_up else _OF_TRANSFERRED_RATIO)
