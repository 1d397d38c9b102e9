"""A quantity of every row, or a calculation with some, in the grammar of claims: `params`, `time.predicted`,
`flops.measured / flops.estimated`, `flops(layer=conv2)`, `params * 4 B`."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from dataclasses import dataclass

from rooflight.errors import BadInput
from rooflight.study.cell import QUANTITIES, SIDES, Side, StudyRow
from rooflight.study.hypotheses.hypothesis import ARITHMETIC, Hypothesis, NumberLiteral, QuantityTerm
from rooflight.study.hypotheses.parser import calculated
from rooflight.units import PLAIN, Dimension

Number = int | float
_DO: dict[str, Callable[[Number, Number], Number]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}


@dataclass(frozen=True)
class RowAmount:
    """What is asked of rows: its text, what it says, and what it is measured in."""

    text: str
    read: Hypothesis
    dimension: Dimension

    @property
    def terms(self) -> list[QuantityTerm]:
        return [term for _, term in self.read.terms(self.read.tree)]

    @property
    def is_quotient(self) -> bool:
        """Is it a number that says how many times, and no count?"""
        return self.dimension == PLAIN and len(self.terms) > 1

    @property
    def quantity(self) -> QuantityTerm | None:
        """Where it is one quantity, and nothing is calculated."""
        leaf = self.read.leaf(self.read.tree)
        return leaf if isinstance(leaf, QuantityTerm) else None

    @property
    def sides(self) -> tuple[Side | None, ...]:
        """For which sides it is asked: all that its quantities know; `None` where it says which itself."""
        free = [term for term in self.terms if term.side is None]
        if not free:
            return (None,)
        # A quantity that knows one side alone stands beside those of others: parameters beside a predicted memory.
        deciding = [term for term in free if len(term.sides) > 1] or free
        return tuple(side for side in reversed(SIDES) if all(side in term.sides for term in deciding))

    def of(self, row: StudyRow, side: Side | None) -> float | None:
        """`None` where the row does not know it."""
        return self._value(self.read.tree, row, side)

    def _value(self, node: ast.expr, row: StudyRow, side: Side | None) -> Number | None:
        leaf = self.read.leaf(node)
        if isinstance(leaf, NumberLiteral):
            return leaf.value
        if isinstance(leaf, QuantityTerm):
            taken = leaf.side or (side if side in leaf.sides else leaf.sides[0])
            return row.values.get(f"{leaf.layer}/{leaf.name}.{taken}" if leaf.layer else f"{leaf.name}.{taken}")
        if isinstance(node, ast.UnaryOp):
            number = self._value(node.operand, row, side)
            return None if number is None else -number
        assert isinstance(node, ast.BinOp)
        left, right = (self._value(part, row, side) for part in (node.left, node.right))
        sign = ARITHMETIC[type(node.op)]
        if left is None or right is None or (sign == "/" and not right):
            return None
        return _DO[sign](left, right)


def amount(text: str) -> RowAmount:
    """Read it; what is wrong with it is said with all quantities that there are."""
    if not text.strip():
        raise BadInput("empty-expression", f"--of is empty: name a quantity; {_there_are()}")
    try:
        read, dimension = calculated(text)
        if any(_divides_by_zero(read, node) for node in ast.walk(read.tree)):
            raise BadInput("not-computable", "it divides by 0")
        for term in (term for _, term in read.terms(read.tree)):
            if term.filters:
                raise BadInput("bad-expression", f"{term.name} is taken of every row: leave {term.filters[0]} out")
            if term.is_fact:
                raise BadInput("not-a-number", f"{term.name} is a word, and bars are of numbers")
    except BadInput as error:
        raise error.reworded(f"--of={text}: {error}; {_there_are()}") from None
    return RowAmount(text, read, dimension)


def _divides_by_zero(read: Hypothesis, node: ast.AST) -> bool:
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    divisor = read.leaf(node.right)
    return isinstance(divisor, NumberLiteral) and divisor.value == 0


def _there_are() -> str:
    names = ", ".join(QUANTITIES)
    return (
        f"quantities are {names}; .measured, .predicted or .estimated behind one says which, and they can be "
        "calculated with, as in flops.measured / flops.estimated"
    )
