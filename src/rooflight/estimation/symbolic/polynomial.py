"""Exact polynomials in the batch B and the sequence S, and how to find one through a few points.

All arithmetic is in whole numbers and fractions: a polynomial that holds, holds to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, lcm

Exponents = tuple[int, int]
"""Powers of B and of S."""
Point = tuple[int, int | None]
"""A batch and a sequence; `None` for a model without one."""

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Polynomial:
    """A sum of coefficient · B^i · S^j, leading terms first. Make one with `Polynomial.of`."""

    terms: tuple[tuple[Exponents, Fraction], ...] = ()

    @staticmethod
    def of(coefficients: Mapping[Exponents, Fraction | int]) -> Polynomial:
        """From {(i, j): coefficient}; zeros are dropped.

        >>> str(Polynomial.of({(1, 2): 1536, (1, 1): 2_359_296}))
        '1,536·B·S² + 2,359,296·B·S'
        """
        kept = [(powers, Fraction(value)) for powers, value in coefficients.items() if value]
        return Polynomial(tuple(sorted(kept, key=lambda term: (sum(term[0]), term[0][1], term[0][0]), reverse=True)))

    @property
    def coefficients(self) -> dict[Exponents, Fraction]:
        return dict(self.terms)

    def coefficient(self, batch_power: int, sequence_power: int = 0) -> Fraction:
        return self.coefficients.get((batch_power, sequence_power), Fraction(0))

    def at(self, batch: int, sequence: int | None = None) -> Fraction:
        """Its value; without a sequence only where none is in it."""
        if sequence is None and self.degree_in_sequence:
            raise ValueError(f"{self} needs a sequence to be evaluated")
        total = Fraction(0)
        for (i, j), value in self.terms:
            total += value * batch**i * (sequence or 0) ** j
        return total

    @property
    def degree(self) -> int:
        """Of B and S together."""
        return max((i + j for (i, j), _ in self.terms), default=0)

    @property
    def degree_in_batch(self) -> int:
        return max((i for (i, _), _ in self.terms), default=0)

    @property
    def degree_in_sequence(self) -> int:
        return max((j for (_, j), _ in self.terms), default=0)

    @property
    def leading(self) -> tuple[tuple[Exponents, Fraction], ...]:
        """The terms that no other term outgrows: B·S² outgrows B·S and S², but not B²."""
        return tuple(term for term in self.terms if not any(outgrows(other, term[0]) for other, _ in self.terms))

    def __add__(self, other: Polynomial) -> Polynomial:
        sums = self.coefficients
        for powers, value in other.terms:
            sums[powers] = sums.get(powers, Fraction(0)) + value
        return Polynomial.of(sums)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return self + other.scaled(-1)

    def scaled(self, factor: Fraction | int) -> Polynomial:
        return Polynomial.of({powers: value * factor for powers, value in self.terms})

    @property
    def content(self) -> Fraction:
        """The largest number that divides every coefficient to a whole one; 1 for the zero polynomial."""
        if not self.terms:
            return Fraction(1)
        return Fraction(
            gcd(*(value.numerator for _, value in self.terms)), lcm(*(value.denominator for _, value in self.terms))
        )

    def __str__(self) -> str:
        text = ""
        for powers, value in self.terms:
            sign = "-" if value < 0 else "+"
            text += f" {sign} {_term(powers, abs(value))}"
        return text[3:] if text.startswith(" +") else "-" + text[3:] if text else "0"

    def to_latex(self) -> str:
        text = ""
        for powers, value in self.terms:
            sign = "-" if value < 0 else "+"
            text += f" {sign} {_latex_term(powers, abs(value))}"
        return text[3:] if text.startswith(" +") else "-" + text[3:] if text else "0"


ZERO = Polynomial()


def outgrows(one: Exponents, other: Exponents) -> bool:
    """Does B^i·S^j divided by the other still grow, whichever way B and S go to infinity?"""
    return one != other and one[0] >= other[0] and one[1] >= other[1]


def powers_text(powers: Exponents) -> str:
    """`B·S²`; empty for a constant."""
    named = zip("BS", powers, strict=True)
    return "·".join(name + (str(power).translate(_RAISED) if power > 1 else "") for name, power in named if power)


def powers_latex(powers: Exponents) -> str:
    named = zip("BS", powers, strict=True)
    return " ".join(name + (f"^{{{power}}}" if power > 1 else "") for name, power in named if power)


def number_text(value: Fraction) -> str:
    return f"{value.numerator:,}" + (f"/{value.denominator:,}" if value.denominator != 1 else "")


def _term(powers: Exponents, value: Fraction) -> str:
    symbols = powers_text(powers)
    number = number_text(value)
    if not symbols:
        return number
    return symbols if value == 1 else f"{number}·{symbols}"


def _latex_term(powers: Exponents, value: Fraction) -> str:
    symbols = powers_latex(powers)
    above, below = (f"{part:,}".replace(",", "{,}") for part in (value.numerator, value.denominator))
    number = above if value.denominator == 1 else rf"\frac{{{above}}}{{{below}}}"
    if not symbols:
        return number
    return symbols if value == 1 else rf"{number}\, {symbols}"


@dataclass(frozen=True)
class Grid:
    """The points of an interpolation: every batch with every sequence. n points on an axis allow powers up to n - 1."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple((batch, sequence) for batch in self.batches for sequence in self.sequences or (None,))


def through(grid: Grid, values: Sequence[int]) -> Polynomial:
    """The one polynomial of the grid's degrees with these values, given in the order of `grid.points`."""
    return _through(grid, tuple(values))


@lru_cache(maxsize=1 << 16)
def _through(grid: Grid, values: tuple[int, ...]) -> Polynomial:
    if len(set(values)) == 1:
        return Polynomial.of({(0, 0): values[0]})
    width = len(grid.sequences) or 1
    table = [values[start : start + width] for start in range(0, len(values), width)]
    # First along S for each batch, then along B for each power of S.
    in_s = [_line(grid.sequences, row) if grid.sequences else [Fraction(row[0])] for row in table]
    in_both = [_line(grid.batches, [row[j] for row in in_s]) for j in range(width)]
    return Polynomial.of({(i, j): value for j, column in enumerate(in_both) for i, value in enumerate(column)})


def _line(places: tuple[int, ...], values: Iterable[int | Fraction]) -> list[Fraction]:
    """Coefficients, lowest power first, of the polynomial in one variable through these points."""
    result = [Fraction(0)] * len(places)
    for weights, value in zip(_lagrange(places), values, strict=True):
        if value:
            result = [sum_ + weight * value for sum_, weight in zip(result, weights, strict=True)]
    return result


@lru_cache(maxsize=64)
def _lagrange(places: tuple[int, ...]) -> tuple[tuple[Fraction, ...], ...]:
    """For each place the polynomial that is 1 there and 0 at the others."""
    made = []
    for place in places:
        weights = [Fraction(1)]
        for other in places:
            if other != place:
                # weights · (x - other) / (place - other)
                shifted = [Fraction(0), *weights]
                weights = [
                    (up - other * down) / (place - other)
                    for up, down in zip(shifted, [*weights, Fraction(0)], strict=True)
                ]
        made.append(tuple(weights))
    return tuple(made)
