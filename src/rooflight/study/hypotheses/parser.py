"""Which trees are hypotheses: nothing but joined comparisons of numbers, in units that fit, of sides that are clear.

All of it is said before any cell has run.
"""

from __future__ import annotations

import ast

from rooflight.study.cell import FACTS
from rooflight.study.hypotheses.hypothesis import (
    ARITHMETIC,
    FOLDS,
    FactWord,
    Hypothesis,
    NumberLiteral,
    QuantityTerm,
)
from rooflight.study.hypotheses.scanner import A_COMPARISON, Scanner
from rooflight.units import BYTE, FLOP, PLAIN, SECOND, Dimension

_WITH_UNITS = {SECOND: "s, ms or us", BYTE: "B, MB or MiB"}
"""A bare number of these could be in any of several units; of the others it is a plain count."""


def parse(text: str, *, number: int | None = None) -> Hypothesis:
    """What a claim says, its units checked. `number`: which claim of a study it is, for messages."""
    scanner = Scanner(text, number)
    hypothesis = scanner.hypothesis()
    try:
        _check_statement(hypothesis, hypothesis.tree, A_COMPARISON)
    except _Incomplete as incomplete:
        scanner.expected_behind(hypothesis.end(incomplete.node), incomplete.message)
    except _Refused as refused:
        scanner.fail(refused.message, hypothesis.start(refused.node))
    return hypothesis


def calculated(text: str) -> tuple[Hypothesis, Dimension]:
    """What an arithmetic with quantities says, without a comparison, and what it is measured in."""
    scanner = Scanner(text, None)
    hypothesis = scanner.hypothesis()
    folds = [node for node in ast.walk(hypothesis.tree) if isinstance(node, ast.Call)]
    if folds:
        scanner.fail("min, max and sum have no place here: it is one number of every row", hypothesis.start(folds[0]))
    if not hypothesis.terms(hypothesis.tree):
        scanner.fail("name a quantity", 0)
    if any(isinstance(node, ast.Compare | ast.BoolOp | ast.Not) for node in ast.walk(hypothesis.tree)):
        scanner.fail("a comparison has no place here: it is one number of every row", 0)
    try:
        return hypothesis, _dimension(hypothesis, hypothesis.tree, "a quantity") or PLAIN
    except _Refused as refused:
        scanner.fail(refused.message, hypothesis.start(refused.node))


def unit_of(hypothesis: Hypothesis, comparison: ast.Compare) -> str:
    """In which its two sides are, once it has been checked; empty: in none."""
    if _is_fact(hypothesis, comparison.left):
        return ""
    dimension = _dimension(hypothesis, comparison)
    return dimension.name if dimension else ""


def comparable(left: Dimension, right: Dimension) -> bool:
    """Whether two may stand on the two sides of a comparison or a sum. FLOPs are a count: `flops = 2 * macs`."""
    return left == right or {left, right} == {FLOP, PLAIN}


class _Refused(Exception):
    """What does not fit, and the part of the claim it is said of."""

    def __init__(self, message: str, node: ast.expr) -> None:
        self.message = message
        self.node = node


class _Incomplete(_Refused):
    """What is missing behind a part of the claim."""


def _check_statement(hypothesis: Hypothesis, node: ast.expr, wanted: str) -> None:
    match node:
        case ast.BoolOp(op=op, values=parts):
            word = "and" if isinstance(op, ast.And) else "or"
            for place, part in enumerate(parts):
                _check_statement(hypothesis, part, f"{A_COMPARISON} {'behind' if place else 'before'} '{word}'")
        case ast.UnaryOp(op=ast.Not(), operand=denied):
            _check_statement(hypothesis, denied, A_COMPARISON)
        case ast.Compare():
            _check_comparison(hypothesis, node)
        case _:
            raise _Incomplete(wanted, node)


def _check_comparison(hypothesis: Hypothesis, node: ast.Compare) -> None:
    again = [part for part in (node.left, *node.comparators) if isinstance(part, ast.Compare | ast.BoolOp)]
    chained = node.comparators[1:] if not isinstance(node.ops[-1], ast.In) or len(node.ops) > 2 else []
    for part in (*again, *chained):
        raise _Refused("a comparison cannot be compared again: join two of them with 'and'", part)
    terms = hypothesis.terms(node)
    if not terms:
        raise _Refused("only numbers are compared: name a quantity", node)
    if _is_fact(hypothesis, node.left):
        _check_fact(hypothesis, node)
        return
    _dimension(hypothesis, node)
    with_side = {term.name for _, term in terms if term.side is not None}
    for part, term in terms:
        if term.side is None and term.name in with_side:
            raise _Refused(f"{term.name} stands here with a side and without one: give both a side", part)
    if isinstance(hypothesis.leaf(node.comparators[0]), FactWord):
        raise _Refused("a word is compared with a fact only", node.comparators[0])


def _is_fact(hypothesis: Hypothesis, node: ast.expr) -> bool:
    leaf = hypothesis.leaf(node)
    return isinstance(leaf, QuantityTerm) and leaf.is_fact


def _check_fact(hypothesis: Hypothesis, node: ast.Compare) -> None:
    fact, right = hypothesis.leaf(node.left), hypothesis.leaf(node.comparators[0])
    assert isinstance(fact, QuantityTerm)
    if not isinstance(node.ops[0], ast.Eq | ast.NotEq):
        raise _Refused(f"{fact.name} is a word: compare it with = or !=", node)
    if not isinstance(right, FactWord | QuantityTerm):
        raise _Refused(f"{fact.name} is a word: compare it with a word", node.comparators[0])
    words = FACTS[fact.name].words
    if isinstance(right, FactWord) and words is not None and right.text not in words:
        raise _Refused(f"{fact.name} is never {right.text!r}: it is {' or '.join(words)}", node.comparators[0])
    if isinstance(right, QuantityTerm) and right.name != fact.name:
        raise _Refused(f"{fact.name} and {right.name} are different things", node.comparators[0])


def _dimension(hypothesis: Hypothesis, node: ast.expr, beside: str = "") -> Dimension | None:
    """`None`: a number without unit, which takes that of its neighbour. `beside`: what it is calculated with."""
    match node:
        case ast.Name():
            return _dimension_of_leaf(hypothesis, node)
        case ast.UnaryOp(op=ast.USub(), operand=part):
            return _dimension(hypothesis, part, "-")
        case ast.Call(func=ast.Name(id=name), args=[part, ast.Name()]) if name in FOLDS:
            dimension = _dimension(hypothesis, part, name)
            _check_axes(hypothesis, node, name)
            return dimension
        case ast.Compare(left=left, comparators=[right, *_]) if not beside:
            return _alike(hypothesis, node, (left, right), "compared")
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            sign = ARITHMETIC[type(op)]
            if sign in "+-":
                return _alike(hypothesis, node, (left, right), "added" if sign == "+" else "subtracted", sign)
            first, second = (_dimension(hypothesis, part, sign) for part in (left, right))
            if first is None and second is None:
                return None
            return (first or PLAIN).times(second or PLAIN, 1 if sign == "*" else -1)
        case _:
            raise _Refused(f"a comparison is no number: it cannot be with '{beside}'", node)


def _dimension_of_leaf(hypothesis: Hypothesis, node: ast.Name) -> Dimension | None:
    leaf = hypothesis.leaf(node)
    if isinstance(leaf, QuantityTerm) and leaf.is_fact:
        raise _Refused(f"{leaf.name} is a word: write it first, as in {leaf.name} = WORD", node)
    return leaf.dimension if isinstance(leaf, QuantityTerm | NumberLiteral) else PLAIN


def _check_axes(hypothesis: Hypothesis, fold: ast.Call, name: str) -> None:
    terms = [term for _, term in hypothesis.terms(fold)]
    if not terms:
        raise _Refused(f"{name} of numbers only: name a quantity", fold)
    for axis in hypothesis.axes(fold):
        if all(any(chosen.axis == axis for chosen in term.filters) for term in terms):
            raise _Refused(f"{name} is over {axis}, which is fixed inside it", fold)


def _alike(
    hypothesis: Hypothesis, node: ast.expr, parts: tuple[ast.expr, ast.expr], how: str, sign: str = ""
) -> Dimension | None:
    left, right = (_dimension(hypothesis, part, sign) for part in parts)
    if left is None or right is None:
        dimension, bare = (right, parts[0]) if left is None else (left, parts[1])
        number = hypothesis.leaf(bare)
        if dimension in _WITH_UNITS and not (isinstance(number, NumberLiteral) and number.value == 0):
            text = number.text if isinstance(number, NumberLiteral) else "the number"
            raise _Refused(f"{text} has no unit: write it with {_WITH_UNITS[dimension]}", bare)
        return dimension
    if not comparable(left, right):
        first, second = (
            f"{_cut(hypothesis.written(part))} is in {dimension.name or 'no unit'}"
            for part, dimension in zip(parts, (left, right), strict=True)
        )
        raise _Refused(f"{first} and {second}: they cannot be {how}", node)
    return left if left != PLAIN else right


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
