"""Points that fill a space evenly, however many of them there is time for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch


def points(dimensions: int, seed: int) -> Iterator[list[float]]:
    """Endless quasi-random points of the unit cube: every beginning of the sequence covers it evenly."""
    engine = torch.quasirandom.SobolEngine(dimensions, scramble=True, seed=seed)
    while True:
        yield from engine.draw(64).double().tolist()


def spread(u: float, low: float, high: float) -> float:
    """Between low and high, each doubling as likely as the next."""
    return float(low * (high / low) ** u)


def whole(u: float, low: int, high: int, multiple: int = 1) -> int:
    return max(multiple, round(spread(u, low, high) / multiple) * multiple)


def choice(u: float, weighted: Sequence[tuple[float, int]]) -> int:
    """The value whose share of the weights u falls into."""
    rest = u * sum(weight for weight, _ in weighted)
    for weight, value in weighted:
        rest -= weight
        if rest < 0:
            return value
    return weighted[-1][1]


def is_power_of_two(value: int) -> bool:
    return value > 0 and math.log2(value).is_integer()


def unusual(value: int) -> int:
    """The next number that 2, 3, 5 and 7 do not divide: sizes of networks that everybody knows are made of those, and
    what was calibrated must be nothing that is then predicted."""
    while any(value % small == 0 for small in (2, 3, 5, 7)):
        value += 1
    return value


KNOWN_SIDES = frozenset({6, 7, 8, 12, 13, 14, 24, 26, 27, 28, 54, 55, 56, 110, 111, 112, 224})
"""Of pictures inside networks that everybody knows."""
