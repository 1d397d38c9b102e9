"""How the cost of a layer or a model grows: its Big-O, with the dimensions of the model as named symbols.

The symbols are those of the formulas (`N * Cout * Ho * Wo * Cin * Kh * Kw`). Those that change with the batch and the
sequence are replaced by what they turn out to be (N = B, M = B·S), the others stay and are listed with their numbers.
Constant factors are dropped, and so is every term that another outgrows when all symbols grow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import reduce
from math import prod
from typing import Literal

from rooflight.estimation.symbolic.polynomial import (
    Exponents,
    Polynomial,
    number_text,
    outgrows,
    power_latex,
    power_text,
    powers_latex,
    powers_text,
)

Basis = Literal["flops", "bytes"]

_SMALL_SHARE = Fraction(1, 100)
"""Among terms that grow alike, one with less than this part of their work is left out of a total."""


@dataclass(frozen=True)
class ModelDimension:
    """A size of the model in a term, to a power. `meaning` says how it comes from the formula's own dimension."""

    name: str
    value: Fraction
    power: int = 1
    meaning: str = ""

    @property
    def definition(self) -> str:
        return f"{self.name} = {self.meaning + ' = ' if self.meaning else ''}{number_text(self.value)}"


@dataclass(frozen=True)
class GrowthTerm:
    """One product in a Big-O: powers of B and S, other growing factors such as log(S), and dimensions."""

    powers: Exponents
    factors: tuple[str, ...] = ()
    dimensions: tuple[ModelDimension, ...] = ()
    ops: tuple[tuple[str, int], ...] = ()
    """The ops it comes from, with how many there are."""
    weight: Fraction = Fraction(0)
    """The product of the dimensions, added up over its ops."""
    summed: int = 1
    """Over how many different sets of dimensions it is summed; with more than one the symbols have no single value."""
    matrix: bool = True
    """Does it count multiply-adds, or other operations?"""

    @property
    def growth(self) -> str:
        return "·".join(part for part in (powers_text(self.powers), *self.factors) if part)

    @property
    def product(self) -> str:
        """Its dimensions multiplied, `Cin·Kh·Kw/G`; empty when it has none."""
        above, below = self._above_and_below(power_text, "·")
        return f"{above or 1}/{below}" if below else above

    def _above_and_below(self, written: Callable[[str, int], str], times: str) -> tuple[str, str]:
        above = times.join(written(each.name, each.power) for each in self.dimensions if each.power > 0)
        below = times.join(written(each.name, -each.power) for each in self.dimensions if each.power < 0)
        return above, below

    @property
    def text(self) -> str:
        product = f"Σ({self.product})" if self.summed > 1 and self.dimensions else self.product
        return "·".join(part for part in (self.growth, product) if part) or "1"

    def to_latex(self) -> str:
        above, below = self._above_and_below(power_latex, " ")
        product = rf"\frac{{{above or 1}}}{{{below}}}" if below else above
        if self.summed > 1 and product:
            product = rf"\sum {product}"
        growing = [factor.replace("log", r"\log ").replace("·", " ") for factor in self.factors]
        return " ".join(part for part in (powers_latex(self.powers), *growing, product) if part) or "1"

    @property
    def count(self) -> int:
        """How many ops it comes from."""
        return sum(count for _, count in self.ops)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Growth:
    """A Big-O: its terms, and of what. Where no arithmetic is done it is that of the bytes moved."""

    terms: tuple[GrowthTerm, ...]
    basis: Basis = "flops"

    def __str__(self) -> str:
        return f"O({' + '.join(term.text for term in self.terms) or '1'})"

    def to_latex(self) -> str:
        return rf"\mathcal{{O}}({' + '.join(term.to_latex() for term in self.terms) or '1'})"

    @property
    def where(self) -> tuple[str, ...]:
        """What each symbol is, said once; a symbol or a sum that is not the same in every term, with its term."""
        numbers: dict[str, set[str]] = {}
        for term in self.terms:
            for dimension in term.dimensions if term.summed == 1 else ():
                numbers.setdefault(dimension.name, set()).add(dimension.definition)
        parts = []
        for term in self.terms:
            if term.summed > 1:
                parts.append(f"Σ({term.product}) over {term.count} ops = {number_text(term.weight)}")
            for dimension in term.dimensions if term.summed == 1 else ():
                clash = len(numbers[dimension.name]) > 1
                parts.append(dimension.definition + (f" in {term.text}" if clash else ""))
            parts += [f"{name} = a size that is no polynomial" for name in term.factors if not name.startswith("log(")]
        return tuple(dict.fromkeys(parts))

    @property
    def in_sequence(self) -> Growth:
        """What is left when the sequence alone grows."""
        highest = max((term.powers[1] for term in self.terms), default=0)
        return replace(self, terms=tuple(term for term in self.terms if term.powers[1] == highest))


def growth_of_bytes(polynomial: Polynomial | None) -> Growth | None:
    """For a layer that only moves data."""
    if polynomial is None or not polynomial.terms:
        return None
    return Growth(tuple(GrowthTerm(powers) for powers, _ in polynomial.leading), "bytes")


def growth_of_terms(
    terms: Iterable[GrowthTerm], *, named_as: Iterable[GrowthTerm] = (), width: GrowthTerm | None = None
) -> Growth | None:
    """The Big-O of several ops: terms that grow alike put together, those outgrown dropped.

    Terms that grow alike with the same numbers are the same, whatever their names, and get the names they have in
    `named_as`. With `width` (see `width_of`) simple multiples of the model's width are written as d.
    """
    names: dict[object, tuple[ModelDimension, ...]] = {}
    for term in named_as:
        names.setdefault(_kind(term), term.dimensions)
    classes: dict[object, GrowthTerm] = {}
    for term in _without_covered(list(terms)):
        renamed = replace(term, dimensions=names.setdefault(_kind(term), term.dimensions))
        named = renamed if width is None else _in_width(renamed, width)
        kind = _kind(named)
        classes[kind] = _joined(classes[kind], named) if kind in classes else named
    groups: dict[object, list[GrowthTerm]] = {}
    for term in classes.values():
        groups.setdefault((term.powers, term.factors, term.product), []).append(term)
    summed = [_summed(group) for group in groups.values()]
    leading = _without_small([term for term in summed if not any(_outgrows(other, term) for other in summed)])
    return Growth(tuple(sorted(leading, key=_order))) if leading else None


def _without_covered(terms: list[GrowthTerm]) -> list[GrowthTerm]:
    """Other work that grows no faster than some matrix work does not count beside it."""
    matrix = {term.powers for term in terms if term.matrix}
    return [
        term
        for term in terms
        if term.matrix or term.factors or not any(b >= term.powers[0] and s >= term.powers[1] for b, s in matrix)
    ]


def _order(term: GrowthTerm) -> tuple[int, int, Fraction]:
    return -term.powers[1], -term.powers[0], -term.weight


def numbers_of(term: GrowthTerm) -> object:
    """The numbers in a term: M·N of a weight's gradient are the K·N of its layer."""
    return tuple(sorted((dimension.value, dimension.power) for dimension in term.dimensions))


def _kind(term: GrowthTerm) -> object:
    """What two terms must have in common to be one; a sum over several shapes has no single numbers."""
    numbers = numbers_of(term) if term.summed == 1 else (term.product, term.weight)
    return term.powers, term.factors, numbers


def _joined(term: GrowthTerm, other: GrowthTerm) -> GrowthTerm:
    counts = Counter(dict(term.ops))
    counts.update(dict(other.ops))
    return replace(term, ops=tuple(counts.items()), weight=term.weight + other.weight)


def _summed(group: Sequence[GrowthTerm]) -> GrowthTerm:
    return replace(reduce(_joined, group), summed=sum(term.summed for term in group))


def _outgrows(term: GrowthTerm, other: GrowthTerm) -> bool:
    """Does this one grow faster and start higher; or has it every symbol of the other, at least to the same power?"""
    if term is other or not set(other.factors) <= set(term.factors):
        return False
    if outgrows(term.powers, other.powers) and term.weight >= other.weight:
        return True
    if term.powers[0] < other.powers[0] or term.powers[1] < other.powers[1]:
        return False
    if (other.summed > 1 or term.summed > 1) and other.dimensions:
        return False
    mine = {(dimension.name, dimension.value): dimension.power for dimension in term.dimensions}
    return all(mine.get((dimension.name, dimension.value), 0) >= dimension.power for dimension in other.dimensions)


def _without_small(terms: list[GrowthTerm]) -> list[GrowthTerm]:
    sums: dict[object, Fraction] = {}
    for term in terms:
        sums[term.powers, term.factors] = sums.get((term.powers, term.factors), Fraction(0)) + term.weight
    return [term for term in terms if term.weight >= _SMALL_SHARE * sums[term.powers, term.factors]]


def width_of(terms: Iterable[GrowthTerm], *, least_power: int = 2) -> GrowthTerm | None:
    """The term whose dimensions make the width d of a transformer: that of attention, H·D beside S².

    `least_power` is the power of S that tells attention from the rest: 2, or 1 where one token meets a cache.
    """
    candidates = [term for term in terms if term.powers[1] >= least_power and term.dimensions]
    widths = Counter(product_of(term.dimensions) for term in candidates).most_common(1)
    return next((term for term in candidates if product_of(term.dimensions) == widths[0][0]), None)


def product_of(dimensions: Iterable[ModelDimension]) -> Fraction:
    return prod((dimension.value**dimension.power for dimension in dimensions), start=Fraction(1))


def _in_width(term: GrowthTerm, width: GrowthTerm) -> GrowthTerm:
    """The term with d for every dimension (or all of them together) that is a simple multiple of the width."""
    if term.summed > 1:
        return term
    size = product_of(width.dimensions)
    parts = [dimension for dimension in width.dimensions if dimension.value != 1]
    meaning = "·".join(power_text(each.name, each.power) for each in parts) if len(parts) > 1 else ""
    if product_of(term.dimensions) == size:
        return replace(term, dimensions=(ModelDimension("d", size, 1, meaning),))
    power = sum(dimension.power for dimension in term.dimensions if _is_multiple(dimension.value, size))
    if power < 1:
        return term
    rest = tuple(
        dimension for dimension in term.dimensions if dimension.value != 1 and not _is_multiple(dimension.value, size)
    )
    return replace(term, dimensions=(ModelDimension("d", size, power, meaning), *rest))


def _is_multiple(value: Fraction, size: Fraction) -> bool:
    """Is it a constant times the width: 3d, 4d, 3.5d, or d/8 as with grouped queries?"""
    ratio = value / size
    return Fraction(1, 8) <= ratio <= 16 and (ratio.denominator <= 4 or ratio.numerator == 1)
