"""How the cost of a layer or a model grows: its Big-O, with the dimensions of the model as named symbols.

The symbols are those of the formulas (`N * Cout * Ho * Wo * Cin * Kh * Kw`). Those that change with the batch and the
sequence are replaced by what they turn out to be (N = B, M = B·S), the others stay and are listed with their numbers.
Constant factors are dropped, and so is every term that another outgrows when all symbols grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from rooflight.estimation.symbolic.polynomial import (
    Exponents,
    Polynomial,
    number_text,
    outgrows,
    powers_latex,
    powers_text,
)

Basis = Literal["flops", "bytes"]

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_SMALL_SHARE = Fraction(1, 100)
"""Among terms that grow alike, one with less than this part of their work is left out of a total."""


@dataclass(frozen=True)
class Symbol:
    """A dimension of the model in a term, to a power. `meaning` says how it comes from the formula's own symbol."""

    name: str
    value: Fraction
    power: int = 1
    meaning: str = ""

    def __str__(self) -> str:
        return self.name + (str(self.power).translate(_RAISED) if self.power > 1 else "")

    @property
    def definition(self) -> str:
        return f"{self.name} = {self.meaning + ' = ' if self.meaning else ''}{number_text(self.value)}"


@dataclass(frozen=True)
class Term:
    """One product in a Big-O: powers of B and S, other growing factors such as log(S), and dimensions."""

    powers: Exponents
    factors: tuple[str, ...] = ()
    symbols: tuple[Symbol, ...] = ()
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
    def dimensions(self) -> str:
        """Its symbols as a product, `Cin·Kh·Kw/G`; empty when it has none."""
        over = "·".join(str(symbol) for symbol in self.symbols if symbol.power > 0)
        under = "·".join(str(replace(symbol, power=-symbol.power)) for symbol in self.symbols if symbol.power < 0)
        return f"{over or 1}/{under}" if under else over

    @property
    def text(self) -> str:
        dimensions = f"Σ({self.dimensions})" if self.summed > 1 and self.symbols else self.dimensions
        return "·".join(part for part in (self.growth, dimensions) if part) or "1"

    def to_latex(self) -> str:
        over = " ".join(_latex(symbol) for symbol in self.symbols if symbol.power > 0)
        under = " ".join(_latex(replace(symbol, power=-symbol.power)) for symbol in self.symbols if symbol.power < 0)
        dimensions = rf"\frac{{{over or 1}}}{{{under}}}" if under else over
        if self.summed > 1 and dimensions:
            dimensions = rf"\sum {dimensions}"
        growing = [factor.replace("log", r"\log ").replace("·", " ") for factor in self.factors]
        return " ".join(part for part in (powers_latex(self.powers), *growing, dimensions) if part) or "1"

    @property
    def count(self) -> int:
        """How many ops it comes from."""
        return sum(count for _, count in self.ops)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Growth:
    """A Big-O: its terms, and of what. Where no arithmetic is done it is that of the bytes moved."""

    terms: tuple[Term, ...]
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
            for symbol in term.symbols if term.summed == 1 else ():
                numbers.setdefault(symbol.name, set()).add(symbol.definition)
        parts = []
        for term in self.terms:
            if term.summed > 1:
                parts.append(f"Σ({term.dimensions}) over {term.count} ops = {number_text(term.weight)}")
            for symbol in term.symbols if term.summed == 1 else ():
                clash = len(numbers[symbol.name]) > 1
                parts.append(symbol.definition + (f" in {term.text}" if clash else ""))
            parts += [f"{name} = a size that is no polynomial" for name in term.factors if not name.startswith("log(")]
        return tuple(dict.fromkeys(parts))

    @property
    def in_sequence(self) -> Growth:
        """What is left when the sequence alone grows."""
        highest = max((term.powers[1] for term in self.terms), default=0)
        return replace(self, terms=tuple(term for term in self.terms if term.powers[1] == highest))


def _latex(symbol: Symbol) -> str:
    letters = symbol.name.rstrip("'")
    name = letters[0] + (f"_{{{letters[1:]}}}" if letters[1:] else "") + "'" * (len(symbol.name) - len(letters))
    return (
        name if symbol.power == 1 else f"({name})^{{{symbol.power}}}" if "'" in name else f"{name}^{{{symbol.power}}}"
    )


def growth_of_bytes(polynomial: Polynomial | None) -> Growth | None:
    """For a layer that only moves data."""
    if polynomial is None or not polynomial.terms:
        return None
    return Growth(tuple(Term(powers) for powers, _ in polynomial.leading), "bytes")


def growth_of_terms(
    terms: Iterable[Term], *, named_as: Iterable[Term] = (), width: Term | None = None
) -> Growth | None:
    """The Big-O of several ops: terms that grow alike put together, those outgrown dropped.

    Terms that grow alike with the same numbers are the same, whatever their names, and get the names they have in
    `named_as`. With `width` (see `width_of`) simple multiples of the model's width are written as d.
    """
    names: dict[object, tuple[Symbol, ...]] = {}
    for term in named_as:
        names.setdefault(_kind(term), term.symbols)
    classes: dict[object, Term] = {}
    for term in _without_covered(list(terms)):
        renamed = replace(term, symbols=names.setdefault(_kind(term), term.symbols))
        named = renamed if width is None else _in_width(renamed, width)
        kind = _kind(named)
        classes[kind] = _joined(classes[kind], named) if kind in classes else named
    groups: dict[object, list[Term]] = {}
    for term in classes.values():
        groups.setdefault((term.powers, term.factors, tuple(str(symbol) for symbol in term.symbols)), []).append(term)
    summed = [_summed(group) for group in groups.values()]
    kept = _without_small([one for one in summed if not any(_outgrows(other, one) for other in summed)])
    return Growth(tuple(sorted(kept, key=_order))) if kept else None


def _without_covered(terms: list[Term]) -> list[Term]:
    """Other work that grows no faster than some matrix work does not count beside it."""
    matrix = {term.powers for term in terms if term.matrix}
    return [
        term
        for term in terms
        if term.matrix or term.factors or not any(b >= term.powers[0] and s >= term.powers[1] for b, s in matrix)
    ]


def _order(term: Term) -> tuple[int, int, Fraction]:
    return -term.powers[1], -term.powers[0], -term.weight


def numbers_of(term: Term) -> object:
    """The numbers in a term: M·N of a weight's gradient are the K·N of its layer."""
    return tuple(sorted((symbol.value, symbol.power) for symbol in term.symbols))


def _kind(term: Term) -> object:
    """What two terms must have in common to be one; a sum over several shapes has no single numbers."""
    numbers = numbers_of(term) if term.summed == 1 else (term.dimensions, term.weight)
    return term.powers, term.factors, numbers


def _joined(one: Term, other: Term) -> Term:
    counts = dict(one.ops)
    for name, count in other.ops:
        counts[name] = counts.get(name, 0) + count
    return replace(one, ops=tuple(counts.items()), weight=one.weight + other.weight)


def _summed(group: Sequence[Term]) -> Term:
    result = group[0]
    for term in group[1:]:
        result = _joined(result, term)
    return replace(result, summed=sum(term.summed for term in group))


def _outgrows(one: Term, other: Term) -> bool:
    """Does this one grow faster and start higher; or has it every symbol of the other, at least to the same power?"""
    if one is other or not set(other.factors) <= set(one.factors):
        return False
    if outgrows(one.powers, other.powers) and one.weight >= other.weight:
        return True
    if one.powers[0] < other.powers[0] or one.powers[1] < other.powers[1]:
        return False
    if (other.summed > 1 or one.summed > 1) and other.symbols:
        return False
    mine = {(symbol.name, symbol.value): symbol.power for symbol in one.symbols}
    return all(mine.get((symbol.name, symbol.value), 0) >= symbol.power for symbol in other.symbols)


def _without_small(terms: list[Term]) -> list[Term]:
    sums: dict[object, Fraction] = {}
    for term in terms:
        sums[term.powers, term.factors] = sums.get((term.powers, term.factors), Fraction(0)) + term.weight
    return [term for term in terms if term.weight >= _SMALL_SHARE * sums[term.powers, term.factors]]


def width_of(terms: Iterable[Term], *, least_power: int = 2) -> Term | None:
    """The term whose dimensions make the width d of a transformer: that of attention, H·D beside S².

    `least_power` is the power of S that tells attention from the rest: 2, or 1 where one token meets a cache.
    """
    found = [term for term in terms if term.powers[1] >= least_power and term.symbols]
    counts: dict[Fraction, int] = {}
    for term in found:
        counts[product_of(term.symbols)] = counts.get(product_of(term.symbols), 0) + 1
    if not counts:
        return None
    width = max(counts, key=lambda value: counts[value])
    return next(term for term in found if product_of(term.symbols) == width)


def product_of(dimensions: Iterable[Symbol]) -> Fraction:
    result = Fraction(1)
    for symbol in dimensions:
        result *= symbol.value**symbol.power
    return result


def _in_width(term: Term, width: Term) -> Term:
    """The term with d for every dimension (or all of them together) that is a simple multiple of the width."""
    if term.summed > 1:
        return term
    size = product_of(width.symbols)
    parts = [symbol for symbol in width.symbols if symbol.value != 1]
    meaning = "·".join(str(symbol) for symbol in parts) if len(parts) > 1 else ""
    if product_of(term.symbols) == size:
        return replace(term, symbols=(Symbol("d", size, 1, meaning),))
    power = sum(symbol.power for symbol in term.symbols if _is_multiple(symbol.value, size))
    if power < 1:
        return term
    rest = tuple(symbol for symbol in term.symbols if symbol.value != 1 and not _is_multiple(symbol.value, size))
    return replace(term, symbols=(Symbol("d", size, power, meaning), *rest))


def _is_multiple(value: Fraction, size: Fraction) -> bool:
    """Is it a constant times the width: 3d, 4d, 3.5d, or d/8 as with grouped queries?"""
    ratio = value / size
    return Fraction(1, 8) <= ratio <= 16 and (ratio.denominator <= 4 or ratio.numerator == 1)
