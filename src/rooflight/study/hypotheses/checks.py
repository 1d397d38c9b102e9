"""What is wrong with a claim before any cell has run: units that do not fit, sides that would be mixed unsaid."""

from __future__ import annotations

from rooflight.study.hypotheses.dimensions import BYTE, PLAIN, SECOND, Dimension, comparable
from rooflight.study.hypotheses.facts import FACTS
from rooflight.study.hypotheses.reader import Reader
from rooflight.study.hypotheses.tree import (
    Arithmetic,
    Comparison,
    Expression,
    Fold,
    Logic,
    Negative,
    Number,
    Statement,
    Term,
    Word,
    terms,
)

_WITH_UNITS = {SECOND: "s, ms or us", BYTE: "B, MB or MiB"}
"""A bare number of these could be in any of several units; of the others it is a plain count."""


def check(statement: Statement, reader: Reader) -> None:
    """Raises through the reader, at the place that is wrong."""
    if isinstance(statement, Logic):
        for part in statement.parts:
            check(part, reader)
        return
    _check_comparison(statement, reader)


def _check_comparison(comparison: Comparison, reader: Reader) -> None:
    found = list(terms(comparison))
    if not found:
        reader.fail("only numbers are compared: name a quantity", comparison.place[0])
    left, right = comparison.left, comparison.right
    if isinstance(left, Term) and left.dimension is None:
        _check_fact(comparison, left, reader)
        return
    dimension_of(comparison, reader)
    sided = {one.name for one in found if one.side is not None}
    for one in found:
        if one.side is None and one.name in sided:
            reader.fail(f"{one.name} stands here with a side and without one: give both a side", one.place[0])
    if isinstance(right, Word):
        reader.fail("a word is compared with a fact only", right.place[0])


def _check_fact(comparison: Comparison, fact: Term, reader: Reader) -> None:
    if comparison.sign not in ("=", "!="):
        reader.fail(f"{fact.name} is a word: compare it with = or !=", comparison.place[0])
    words = FACTS[fact.name]
    right = comparison.right
    if isinstance(right, Word) and words is not None and right.text not in words:
        reader.fail(f"{fact.name} is never {right.text!r}: it is {' or '.join(words)}", right.place[0])
    if isinstance(right, Term) and right.name != fact.name:
        reader.fail(f"{fact.name} and {right.name} are different things", right.place[0])


def dimension_of(node: Comparison | Expression, reader: Reader) -> Dimension | None:
    """`None`: a number without unit, which takes that of its neighbour."""
    match node:
        case Number():
            return node.dimension
        case Term():
            if node.dimension is None:
                reader.fail(f"{node.name} is a word: write it first, as in {node.name} = WORD", node.place[0])
            return node.dimension
        case Word():
            return PLAIN
        case Negative():
            return dimension_of(node.of, reader)
        case Fold():
            _check_axes(node, reader)
            return dimension_of(node.of, reader)
        case Comparison():
            return _alike(node, "compared", reader)
        case Arithmetic():
            if node.sign in "+-":
                return _alike(node, "added" if node.sign == "+" else "subtracted", reader)
            left, right = dimension_of(node.left, reader), dimension_of(node.right, reader)
            if left is None and right is None:
                return None
            return (left or PLAIN).times(right or PLAIN, 1 if node.sign == "*" else -1)


def _check_axes(fold: Fold, reader: Reader) -> None:
    found = list(terms(fold.of))
    if not found:
        reader.fail(f"{fold.how} of numbers only: name a quantity", fold.place[0])
    for axis in fold.axes:
        if all(any(chosen.axis == axis for chosen in one.filters) for one in found):
            reader.fail(f"{fold.how} is over {axis}, which is fixed inside it", fold.place[0])


def _alike(node: Comparison | Arithmetic, how: str, reader: Reader) -> Dimension | None:
    left, right = dimension_of(node.left, reader), dimension_of(node.right, reader)
    if left is None or right is None:
        known = left if left is not None else right
        bare = node.left if left is None else node.right
        if known in _WITH_UNITS and not (isinstance(bare, Number) and bare.value == 0):
            text = bare.text if isinstance(bare, Number) else "the number"
            reader.fail(f"{text} has no unit: write it with {_WITH_UNITS[known]}", bare.place[0])
        return known
    if not comparable(left, right):
        shown = [_cut(reader.text[slice(*one.place)]) for one in (node.left, node.right)]
        reader.fail(f"{shown[0]} is in {left.name} and {shown[1]} in {right.name}: they cannot be {how}", node.place[0])
    return left if left != PLAIN else right


def _cut(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:39]}…"
