"""What is wrong with a claim before any cell has run: units that do not fit, sides that would be mixed unsaid."""

from __future__ import annotations

from rooflight.study.hypotheses.dimensions import BYTE, PLAIN, SECOND, Dimension, comparable
from rooflight.study.hypotheses.facts import FACTS
from rooflight.study.hypotheses.tree import (
    Arithmetic,
    Comparison,
    Expression,
    Fold,
    Negative,
    Number,
    Statement,
    Term,
    Word,
    comparisons,
    terms,
)

_WITH_UNITS = {SECOND: "s, ms or us", BYTE: "B, MB or MiB"}
"""A bare number of these could be in any of several units; of the others it is a plain count."""


class Wrong(Exception):
    """What does not fit, and the part of the claim it is said of."""

    def __init__(self, message: str, part: Comparison | Expression) -> None:
        self.message = message
        self.place = part.place


def check(statement: Statement) -> None:
    """Raises `Wrong`."""
    for comparison in comparisons(statement):
        _check_comparison(comparison)


def unit_of(comparison: Comparison) -> str:
    """In which its two sides are, once it has been checked; empty: in none."""
    if isinstance(comparison.left, Term) and comparison.left.dimension is None:
        return ""
    dimension = dimension_of(comparison)
    return dimension.name if dimension else ""


def _check_comparison(comparison: Comparison) -> None:
    found = list(terms(comparison))
    if not found:
        raise Wrong("only numbers are compared: name a quantity", comparison)
    left, right = comparison.left, comparison.right
    if isinstance(left, Term) and left.dimension is None:
        _check_fact(comparison, left)
        return
    dimension_of(comparison)
    sided = {one.name for one in found if one.side is not None}
    for one in found:
        if one.side is None and one.name in sided:
            raise Wrong(f"{one.name} stands here with a side and without one: give both a side", one)
    if isinstance(right, Word):
        raise Wrong("a word is compared with a fact only", right)


def _check_fact(comparison: Comparison, fact: Term) -> None:
    if comparison.sign not in ("=", "!="):
        raise Wrong(f"{fact.name} is a word: compare it with = or !=", comparison)
    words = FACTS[fact.name].words
    right = comparison.right
    if isinstance(right, Word) and words is not None and right.text not in words:
        raise Wrong(f"{fact.name} is never {right.text!r}: it is {' or '.join(words)}", right)
    if isinstance(right, Term) and right.name != fact.name:
        raise Wrong(f"{fact.name} and {right.name} are different things", right)


def dimension_of(node: Comparison | Expression) -> Dimension | None:
    """`None`: a number without unit, which takes that of its neighbour."""
    match node:
        case Number():
            return node.dimension
        case Term():
            if node.dimension is None:
                raise Wrong(f"{node.name} is a word: write it first, as in {node.name} = WORD", node)
            return node.dimension
        case Word():
            return PLAIN
        case Negative():
            return dimension_of(node.of)
        case Fold():
            _check_axes(node)
            return dimension_of(node.of)
        case Comparison():
            return _alike(node, "compared")
        case Arithmetic():
            if node.sign in "+-":
                return _alike(node, "added" if node.sign == "+" else "subtracted")
            left, right = dimension_of(node.left), dimension_of(node.right)
            if left is None and right is None:
                return None
            return (left or PLAIN).times(right or PLAIN, 1 if node.sign == "*" else -1)


def _check_axes(fold: Fold) -> None:
    found = list(terms(fold.of))
    if not found:
        raise Wrong(f"{fold.how} of numbers only: name a quantity", fold)
    for axis in fold.axes:
        if all(any(chosen.axis == axis for chosen in one.filters) for one in found):
            raise Wrong(f"{fold.how} is over {axis}, which is fixed inside it", fold)


def _alike(node: Comparison | Arithmetic, how: str) -> Dimension | None:
    left, right = dimension_of(node.left), dimension_of(node.right)
    if left is None or right is None:
        known = left if left is not None else right
        bare = node.left if left is None else node.right
        if known in _WITH_UNITS and not (isinstance(bare, Number) and bare.value == 0):
            text = bare.text if isinstance(bare, Number) else "the number"
            raise Wrong(f"{text} has no unit: write it with {_WITH_UNITS[known]}", bare)
        return known
    if not comparable(left, right):
        first, second = (f"{_cut(str(part))} is in {dimension.name or 'no unit'}"
                         for part, dimension in ((node.left, left), (node.right, right)))  # fmt: skip
        raise Wrong(f"{first} and {second}: they cannot be {how}", node)
    return left if left != PLAIN else right


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
