"""Exact polynomials in the batch B and the sequence S, in sympy's ring over the fractions; and the one through points.

All arithmetic is in whole numbers and fractions: a polynomial that holds, holds to the last digit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

from sympy import QQ
from sympy.polys.orderings import grlex
from sympy.polys.rings import ring

from rooflight.ops.expressions import latex_name, latex_number

Exponents = tuple[int, int]
"""Powers of B and of S."""
Point = tuple[int, int | None]
"""A batch and a sequence; `None` for a model without one."""

# With S as the first variable, of two terms of the same degree the one with more S comes first.
_RING, _S, _B = ring("S, B", QQ, grlex)

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Polynomial:
    """A sum of coefficient · B^i · S^j. Make one with `Polynomial.of`."""

    element: Any = _RING.zero
    """Of sympy's ring `QQ[S, B]`; `element.as_expr()` is an expression to go on with in sympy."""

    @staticmethod
    def of(coefficients: Mapping[Exponents, Fraction | int]) -> Polynomial:
        """From {(i, j): coefficient}; zeros are dropped.

        >>> str(Polynomial.of({(1, 2): 1536, (1, 1): 2_359_296}))
        '1,536·B·S² + 2,359,296·B·S'
        """
        return Polynomial(
            _RING.from_dict({(j, i): _rational(value) for (i, j), value in coefficients.items() if value})
        )

    @property
    def terms(self) -> tuple[tuple[Exponents, Fraction], ...]:
        """Powers with their coefficient, leading terms first."""
        return tuple(((i, j), _fraction(value)) for (j, i), value in self.element.terms())

    @property
    def coefficients(self) -> dict[Exponents, Fraction]:
        return dict(self.terms)

    def coefficient(self, batch_power: int, sequence_power: int = 0) -> Fraction:
        return _fraction(self.element.get((sequence_power, batch_power), QQ.zero))

    def at(self, batch: int, sequence: int | None = None) -> Fraction:
        """Its value; without a sequence only where none is in it."""
        if sequence is None and self.degree_in_sequence:
            raise ValueError(f"{self} needs a sequence to be evaluated")
        return _fraction(self.element(sequence or 0, batch))

    @property
    def degree(self) -> int:
        """Of B and S together."""
        return max(map(sum, self.element), default=0)

    @property
    def degree_in_batch(self) -> int:
        return max((i for _, i in self.element), default=0)

    @property
    def degree_in_sequence(self) -> int:
        return max((j for j, _ in self.element), default=0)

    @property
    def leading(self) -> tuple[tuple[Exponents, Fraction], ...]:
        """The terms that no other term outgrows: B·S² outgrows B·S and S², but not B²."""
        return tuple(term for term in self.terms if not any(outgrows(other, term[0]) for other, _ in self.terms))

    def __add__(self, other: Polynomial) -> Polynomial:
        return Polynomial(self.element + other.element)

    def __sub__(self, other: Polynomial) -> Polynomial:
        return Polynomial(self.element - other.element)

    def scaled(self, factor: Fraction | int) -> Polynomial:
        return Polynomial(self.element * _rational(factor))

    @property
    def primitive(self) -> Polynomial:
        """Divided by the largest number that leaves every coefficient whole."""
        return Polynomial(self.element.primitive()[1])

    def __str__(self) -> str:
        return _sum([(value, number_text(abs(value)), powers_text(powers)) for powers, value in self.terms], "·")

    def to_latex(self) -> str:
        return _sum([(value, _latex_value(abs(value)), powers_latex(powers)) for powers, value in self.terms], r"\, ")


ZERO = Polynomial()


def _rational(value: Fraction | int) -> Any:
    return QQ(value.numerator, value.denominator)


def _fraction(value: Any) -> Fraction:
    return Fraction(int(QQ.numer(value)), int(QQ.denom(value)))


def outgrows(powers: Exponents, other: Exponents) -> bool:
    """Does B^i·S^j divided by the other still grow, whichever way B and S go to infinity?"""
    return powers != other and powers[0] >= other[0] and powers[1] >= other[1]


# --- as text and as LaTeX --------------------------------------------------------------------------------------------


def _sum(terms: Sequence[tuple[Fraction, str, str]], times: str) -> str:
    """Terms given as value, the value without its sign as it is written, and symbols; a factor of 1 is left out."""
    text = ""
    for value, number, symbols in terms:
        product = number if not symbols else symbols if abs(value) == 1 else number + times + symbols
        text += (" - " if value < 0 else " + ") + product
    return "-" + text[3:] if text.startswith(" - ") else text[3:] or "0"


def power_text(name: str, power: int) -> str:
    return name + (str(power).translate(_RAISED) if power != 1 else "")


def power_latex(name: str, power: int) -> str:
    name = latex_name(name)
    return name if power == 1 else f"({name})^{{{power}}}" if "'" in name else f"{name}^{{{power}}}"


def powers_text(powers: Exponents) -> str:
    """`B·S²`; empty for a constant."""
    return "·".join(power_text(name, power) for name, power in zip("BS", powers, strict=True) if power)


def powers_latex(powers: Exponents) -> str:
    return " ".join(power_latex(name, power) for name, power in zip("BS", powers, strict=True) if power)


def number_text(value: Fraction) -> str:
    return f"{value.numerator:,}" + (f"/{value.denominator:,}" if value.denominator != 1 else "")


def _latex_value(value: Fraction) -> str:
    above, below = latex_number(value.numerator), latex_number(value.denominator)
    return above if value.denominator == 1 else rf"\frac{{{above}}}{{{below}}}"


# --- through points --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SamplingGrid:
    """The points of an interpolation: every batch with every sequence. n points on an axis allow powers up to n - 1."""

    batches: tuple[int, ...]
    sequences: tuple[int, ...] = ()

    @property
    def points(self) -> tuple[Point, ...]:
        return tuple((batch, sequence) for batch in self.batches for sequence in self.sequences or (None,))


def through(grid: SamplingGrid, values: Iterable[int]) -> Polynomial:
    """The one polynomial of the grid's degrees with these values, given in the order of `grid.points`."""
    return _through(grid, tuple(values))


@lru_cache(maxsize=1 << 16)
def _through(grid: SamplingGrid, values: tuple[int, ...]) -> Polynomial:
    if len(set(values)) == 1:
        return Polynomial.of({(0, 0): values[0]})
    return Polynomial(sum((basis * value for basis, value in zip(_lagrange(grid), values, strict=True)), _RING.zero))


@lru_cache(maxsize=64)
def _lagrange(grid: SamplingGrid) -> tuple[Any, ...]:
    """For each point of the grid the polynomial that is 1 there and 0 at the others."""

    def is_one_at(variable: Any, place: Any, places: Iterable[int]) -> Any:
        return prod(((variable - other) * QQ(1, place - other) for other in places if other != place), start=_RING.one)

    return tuple(is_one_at(_B, b, grid.batches) * is_one_at(_S, s, grid.sequences) for b, s in grid.points)
