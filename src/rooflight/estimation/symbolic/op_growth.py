"""From the formula of one op to the terms of its Big-O: its symbols followed over the traces, then multiplied out.

Also the limits at which a formula changes its course, because it says min() or max().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import sympy

from rooflight.estimation.costs import work_of
from rooflight.estimation.symbolic.fits import FitCondition
from rooflight.estimation.symbolic.growth import GrowthTerm, ModelDimension, numbers_of, product_of
from rooflight.estimation.symbolic.polynomial import Exponents, Point, Polynomial, SamplingGrid, powers_text, through
from rooflight.ledger import Op
from rooflight.ops.expressions import FUNCTIONS, Number, compute, evaluate, symbols
from rooflight.ops.registry import Work

# Symbols that count passes and operations per element: constants, not dimensions of the model.
_COUNTS = frozenset({"P", "c"})

# Assumed positive, which makes them other symbols than a formula's own B and S.
_B, _S = sympy.symbols("B S", positive=True)
_LOG = sympy.Function("log")

Symbol = Any
"""One of sympy's."""
Powers = dict[Symbol, int]
"""A product: its factors, each with its power."""
Dimensions = dict[Symbol, ModelDimension]
"""The sizes of the model in a formula, in the order of its text."""


def terms_of(ops: Sequence[Op], grid: SamplingGrid, check: tuple[Point, Op]) -> tuple[GrowthTerm, ...]:
    """The terms of one op, from its rows at the points of the grid: of its matrix work, or else of its other work."""
    works = _works((*ops, check[1]))
    if not works:
        return ()
    first = works[0]
    matrix = evaluate(first.macs, first.where) > 0
    text = first.macs if matrix else first.other
    if isinstance(text, int) or not evaluate(text, first.where):
        return ()
    dimensions: Dimensions = {}
    growing = {}
    for name in symbols(text):
        size = _size([work.where.get(name) for work in works], grid, check[0])
        growing[sympy.Symbol(name)] = _in_batch_and_sequence(name, size, dimensions)
    products = _products(_expression(text, first.where).xreplace(growing), dimensions)
    terms = [_term(product, dimensions, ops[0].name, matrix=matrix) for product in products]
    # D + Dv of attention are mostly the same number: one term.
    alike = {(term.powers, term.factors, numbers_of(term)): term for term in reversed(terms)}
    return tuple(reversed(alike.values()))


def _works(ops: Sequence[Op]) -> list[Work]:
    """What each of them does; empty where one has no formula."""
    works = [work for op in ops if (work := work_of(op)) is not None]
    return works if len(works) == len(ops) else []


def _size(values: Sequence[Number | None], grid: SamplingGrid, check: Point) -> Polynomial | None:
    """A symbol of a formula as a polynomial in B and S; `None` where it is none."""
    sizes = [value for value in values if isinstance(value, int)]
    if len(sizes) != len(values):
        return None
    polynomial = through(grid, sizes[:-1])
    return polynomial if polynomial.at(*check) == sizes[-1] else None


def _expression(text: str, where: Mapping[str, Number]) -> Any:
    """A formula for sympy, in its own symbols; of what min() and max() choose from, what they choose in the trace."""

    def traced(value: Any) -> Any:
        return sympy.sympify(value).subs(where)

    functions = {
        "min": lambda *choices: min(choices, key=traced),
        "max": lambda *choices: max(choices, key=traced),
        "log2": _LOG,
        "ceil": lambda value: value,
    }
    names = {name: sympy.Symbol(name) for name in symbols(text)}
    return sympy.sympify(compute(text, names, functions)).replace(sympy.floor, lambda value: value)


def _in_batch_and_sequence(name: str, size: Polynomial | None, dimensions: Dimensions) -> Any:
    """What grows fastest of a symbol, as an expression in B, S and the dimensions, which are noted; unknown, itself."""
    if size is None or name in _COUNTS:
        return sympy.Symbol(name)
    if size == Polynomial():
        return sympy.Integer(0)
    if size.degree == 0:
        # A formula's own B or S that does not change is another one than ours.
        return _dimension(f"{name}'" if name in ("B", "S") else name, size.coefficient(0), "", dimensions)
    growth = sympy.Integer(0)
    for (i, j), factor in size.leading:
        constant = sympy.Rational(abs(factor))
        if factor > 1 and factor.denominator == 1:
            # 197·B rows: B times a dimension of the model, written M'. A part of B·S (an expert's) is a constant.
            constant = _dimension(f"{name}'", factor, _per(name, (i, j)), dimensions)
        growth += constant * _B**i * _S**j
    return growth


def _dimension(label: str, value: Fraction, meaning: str, dimensions: Dimensions) -> Symbol:
    symbol = sympy.Symbol(label)
    dimensions[symbol] = ModelDimension(label, value, meaning=meaning)
    return symbol


def _per(name: str, powers: Exponents) -> str:
    below = powers_text(powers)
    return f"{name}/({below})" if "·" in below else f"{name}/{below}"


def _products(expression: Any, dimensions: Dimensions) -> list[Powers]:
    """What an expression is the sum of when multiplied out: without constant factors, without what is subtracted, and
    without what is only a part of another product."""
    places = {symbol: place for place, symbol in enumerate((_B, _S, *dimensions))}

    def place(symbol: Symbol) -> int:
        return places.get(symbol, len(places))

    products: list[Powers] = []
    for summand in sympy.Add.make_args(expression.expand()):
        coefficient, product = summand.as_coeff_Mul()
        if coefficient.is_positive:
            powers = {_factor(base, dimensions): int(power) for base, power in product.as_powers_dict().items()}
            products.append({symbol: powers[symbol] for symbol in sorted(powers.keys() - {None}, key=place)})
    products.sort(key=lambda powers: [place(symbol) for symbol in powers])
    return [each for each in products if not any(other is not each and _divides(each, other) for other in products)]


def _factor(base: Any, dimensions: Dimensions) -> Symbol | None:
    """A factor as one symbol; `None` for constants, and for a sum that is divided by."""
    if base.func == _LOG:
        inside = _products(base.args[0], dimensions)[:1]
        growing = "·".join(str(symbol) for powers in inside for symbol in powers if symbol not in dimensions)
        return sympy.Symbol(f"log({growing})") if growing else None
    return base if base.is_Symbol and base.name not in _COUNTS else None


def _divides(product: Powers, other: Powers) -> bool:
    return all(other.get(symbol, 0) >= power for symbol, power in product.items())


def _term(product: Powers, dimensions: Dimensions, name: str, *, matrix: bool) -> GrowthTerm:
    sizes = tuple(replace(dimensions[symbol], power=power) for symbol, power in product.items() if symbol in dimensions)
    factors = tuple(symbol.name for symbol in product if symbol not in dimensions and symbol not in (_B, _S))
    powers = (product.get(_B, 0), product.get(_S, 0))
    return GrowthTerm(powers, factors, sizes, ((name, 1),), product_of(sizes), matrix=matrix)


# --- where a formula changes its course -----------------------------------------------------------------------------


def limits_of(ops: Sequence[Op], grid: SamplingGrid, check: tuple[Point, Op]) -> tuple[FitCondition, ...]:
    """Up to where min() and max() in the bytes of an op give what they gave in the traces: B·S ≤ 50,257."""
    works = _works((*ops, check[1]))
    limits: dict[FitCondition, None] = {}
    for text in (works[0].reads, works[0].writes) if works else ():
        if isinstance(text, str) and ("min(" in text or "max(" in text):
            for choices in zip(*(_choices(text, work.where) for work in works), strict=True):
                limit = _limit([_size(values, grid, check[0]) for values in zip(*choices, strict=True)], grid)
                limits |= {limit: None} if limit is not None else {}
    return tuple(limits)


def _choices(text: str, where: Mapping[str, Number]) -> list[tuple[Number, ...]]:
    """What each min() and max() of a formula chooses from."""
    choices = []

    def noted(choose: Callable[[tuple[Number, ...]], Number]) -> Callable[..., Number]:
        def chosen(*values: Number) -> Number:
            choices.append(values)
            return choose(values)

        return chosen

    compute(text, where, {**FUNCTIONS, "min": noted(min), "max": noted(max)})
    return choices


def _limit(sizes: Sequence[Polynomial | None], grid: SamplingGrid) -> FitCondition | None:
    """The condition that the smaller one stays the smaller; `None` if it always does."""
    if len(sizes) != 2 or sizes[0] is None or sizes[1] is None:
        return None
    small, large = sorted((sizes[0], sizes[1]), key=lambda size: size.at(*grid.points[0]))
    room = (large - small).primitive
    rising = Polynomial.of({powers: -value for powers, value in room.terms if value < 0})
    rest = Polynomial.of({powers: value for powers, value in room.terms if value > 0})
    return FitCondition(f"{rising} ≤ {rest}", room=room) if rising.terms else None
