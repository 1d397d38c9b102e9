"""From the formula of one op to the terms of its Big-O: its symbols followed over the traces, its text multiplied out.

Also the limits at which a formula changes its course, because it says min() or max().
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from rooflight.estimation.costs import work_of
from rooflight.estimation.expressions import evaluate, symbols
from rooflight.estimation.registry import Work, find
from rooflight.estimation.symbolic.bigo import Symbol, Term, numbers_of, product_of
from rooflight.estimation.symbolic.fits import Condition
from rooflight.estimation.symbolic.polynomial import Exponents, Grid, Point, Polynomial, powers_text, through
from rooflight.ledger import Op

# Symbols that count passes and operations per element: constants, not dimensions of the model.
_COUNTS = frozenset({"P", "c"})

_Product = dict[str, int]
"""Symbols and their powers; growing ones are marked, so that they do not mix with a formula's own B and S."""
_B, _S = "@B", "@S"


def terms_of(ops: Sequence[Op], grid: Grid, check: tuple[Point, Op]) -> tuple[Term, ...]:
    """The terms of one op, from its rows at the points of the grid: of its matrix work, or else of its other work."""
    works = [_work(op) for op in (*ops, check[1])]
    first = works[0]
    if first is None:
        return ()
    matrix = evaluate(first.macs, first.where) > 0
    text = first.macs if matrix else first.other
    found = [work.where for work in works if work is not None]
    if isinstance(text, int) or len(found) != len(works) or not evaluate(text, first.where):
        return ()
    known = [name for name in symbols(text) if all(name in where for where in found)]
    sizes = {name: _size([where[name] for where in found], grid, check[0]) for name in known}
    expansion = _Expansion(first.where, sizes)
    products = expansion.expand(ast.parse(text, mode="eval").body)
    terms = [_term(product, expansion, ops[0].name, matrix=matrix) for product in products]
    # D + Dv of attention are mostly the same number: one term.
    alike = {(term.powers, term.factors, numbers_of(term)): term for term in reversed(terms)}
    return tuple(reversed(alike.values()))


def _work(op: Op) -> Work | None:
    formula = find(op)
    return None if formula is None else work_of(op, formula)


def _size(values: Sequence[int | float], grid: Grid, check: Point) -> Polynomial | None:
    """A symbol of a formula as a polynomial in B and S; `None` where it is none."""
    if not all(isinstance(value, int) for value in values):
        return None
    polynomial = through(grid, [int(value) for value in values[:-1]])
    return polynomial if polynomial.at(*check) == values[-1] else None


def _term(product: _Product, expansion: _Expansion, name: str, *, matrix: bool) -> Term:
    dimensions = tuple(
        replace(expansion.dimensions[symbol], power=power) for symbol, power in product.items() if symbol[0] != "@"
    )
    factors = tuple(symbol[1:] for symbol in product if symbol[0] == "@" and symbol not in (_B, _S))
    powers = (product.get(_B, 0), product.get(_S, 0))
    return Term(powers, factors, dimensions, ((name, 1),), product_of(dimensions), matrix=matrix)


def _per(name: str, powers: Exponents) -> str:
    below = powers_text(powers)
    return f"{name}/({below})" if "·" in below else f"{name}/{below}"


class _Expansion:
    """Multiplies an expression out into products of symbols, without their constant factors."""

    def __init__(self, where: Mapping[str, int | float], sizes: Mapping[str, Polynomial | None]) -> None:
        self.where = where
        self.sizes = sizes
        self.dimensions: dict[str, Symbol] = {}

    def expand(self, node: ast.expr) -> list[_Product]:
        if isinstance(node, ast.Constant):
            return [{}] if node.value else []
        if isinstance(node, ast.Name):
            return self.name(node.id)
        if isinstance(node, ast.UnaryOp):
            return self.expand(node.operand)
        if isinstance(node, ast.Call):
            return self.call(node)
        assert isinstance(node, ast.BinOp), ast.dump(node)
        return self.binary(node)

    def name(self, name: str) -> list[_Product]:
        if name in _COUNTS:
            return [{}]
        size = self.sizes.get(name)
        if size is None:
            return [{f"@{name}": 1}]
        if size.degree == 0:
            # A formula's own B or S that does not change is another one than ours.
            label = f"{name}'" if name in ("B", "S") else name
            self.dimensions[label] = Symbol(label, size.coefficient(0))
            return [{label: 1}] if size.terms else []
        return [self.growing(name, powers, factor) for powers, factor in size.leading]

    def growing(self, name: str, powers: Exponents, factor: Fraction) -> _Product:
        product = {symbol: power for symbol, power in zip((_B, _S), powers, strict=True) if power}
        if factor > 1 and factor.denominator == 1:
            # 197·B rows: B times a dimension of the model, written M'. A part of B·S (an expert's) is a constant.
            self.dimensions[f"{name}'"] = Symbol(f"{name}'", factor, meaning=_per(name, powers))
            product[f"{name}'"] = 1
        return product

    def call(self, node: ast.Call) -> list[_Product]:
        assert isinstance(node.func, ast.Name)
        if node.func.id in ("min", "max"):
            choose = min if node.func.id == "min" else max
            return self.expand(choose(node.args, key=lambda argument: evaluate(ast.unparse(argument), self.where)))
        inside = self.expand(node.args[0])
        if node.func.id == "log2":
            growing = ["·".join(symbol[1:] for symbol in product if symbol[0] == "@") for product in inside]
            return [{f"@log({growing[0]})": 1}] if any(growing) else [{}]
        return inside

    def binary(self, node: ast.BinOp) -> list[_Product]:
        left, right = self.expand(node.left), self.expand(node.right)
        if isinstance(node.op, ast.Add):
            return _unmatched([*left, *right])
        if isinstance(node.op, ast.Sub):
            return left
        if isinstance(node.op, ast.Mult):
            return _unmatched([_times(one, other, 1) for one in left for other in right])
        if isinstance(node.op, ast.Pow):
            power = node.right.value if isinstance(node.right, ast.Constant) else 1
            assert isinstance(power, int), ast.dump(node)
            return [{symbol: count * power for symbol, count in product.items()} for product in left]
        return [_times(one, right[0], -1) for one in left] if len(right) == 1 else left


def _times(one: _Product, other: _Product, sign: int) -> _Product:
    result = dict(one)
    for symbol, power in other.items():
        result[symbol] = result.get(symbol, 0) + sign * power
    return {symbol: power for symbol, power in result.items() if power}


def _unmatched(products: list[_Product]) -> list[_Product]:
    """Without those whose every symbol another product has to at least the same power."""
    kept: list[_Product] = []
    for product in products:
        if any(_divides(product, other) for other in kept):
            continue
        kept = [other for other in kept if not _divides(other, product)] + [product]
    return kept


def _divides(one: _Product, other: _Product) -> bool:
    return all(other.get(symbol, 0) >= power for symbol, power in one.items())


# --- where a formula changes its course -----------------------------------------------------------------------------


def limits_of(ops: Sequence[Op], grid: Grid, check: tuple[Point, Op]) -> tuple[Condition, ...]:
    """Up to where min() and max() in the bytes of an op give what they gave in the traces: B·S ≤ 50,257."""
    works = [work for op in (*ops, check[1]) if (work := _work(op)) is not None]
    if len(works) != len(ops) + 1:
        return ()
    found: dict[Condition, None] = {}
    for text in (works[0].reads, works[0].writes):
        if not isinstance(text, str) or ("min(" not in text and "max(" not in text):
            continue
        for node in ast.walk(ast.parse(text, mode="eval")):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
                limit = _limit(node, [work.where for work in works], grid, check[0])
                found |= {limit: None} if limit is not None else {}
    return tuple(found)


def _limit(node: ast.Call, where: Sequence[Mapping[str, int | float]], grid: Grid, check: Point) -> Condition | None:
    """The condition that the smaller argument stays the smaller; `None` if it always does."""
    sizes = []
    for argument in node.args:
        text = ast.unparse(argument)
        sizes.append(_size([evaluate(text, values) for values in where], grid, check))
    if len(sizes) != 2 or sizes[0] is None or sizes[1] is None:
        return None
    small, large = sorted((sizes[0], sizes[1]), key=lambda size: size.at(*grid.points[0]))
    room = (large - small).scaled(1 / (large - small).content)
    rising = Polynomial.of({powers: -value for powers, value in room.terms if value < 0})
    rest = Polynomial.of({powers: value for powers, value in room.terms if value > 0})
    return Condition(f"{rising} ≤ {rest}", room=room) if rising.terms else None
