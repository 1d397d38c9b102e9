"""Arithmetic written once as text, from which the number, the substitution and the LaTeX all come.

A formula that says "N * Cout * Ho * Wo" can then never print one thing and compute another.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from functools import cache
from types import CodeType
from typing import Any

from rooflight.errors import RooflightError

Number = int | float

FUNCTIONS: Mapping[str, Callable[..., Number]] = {"ceil": math.ceil, "log2": math.log2, "min": min, "max": max}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.USub)
_GRAMMAR = (ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, *_OPERATORS)


@cache
def _parse(text: str) -> tuple[ast.expr, CodeType]:
    """The tree of an expression, and its code, which can do nothing but arithmetic on the names it is given."""
    try:
        tree = ast.parse(text, mode="eval")
    except SyntaxError as error:
        raise RooflightError("bad-formula", f"the formula {text!r} is no expression: {error.msg}") from error
    for node in ast.walk(tree):
        if not _is_arithmetic(node):
            raise RooflightError(
                "bad-formula",
                f"the formula {text!r} has {ast.unparse(node)!r} in it: write numbers, symbols, + - * / // ** "
                f"and {', '.join(FUNCTIONS)}",
            )
    return tree.body, compile(tree, f"<formula {text}>", "eval")


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS and not node.keywords
    return isinstance(node, _GRAMMAR)


def compute(text: str, where: Mapping[str, Any], functions: Mapping[str, Callable[..., Any]] = FUNCTIONS) -> Any:
    """An expression with whatever its symbols stand for, numbers or not, and these functions."""
    return eval(_parse(text)[1], {"__builtins__": {}, **functions}, dict(where))


def evaluate(text: str | int, where: Mapping[str, Number]) -> int:
    """The value of an expression, a whole number."""
    return text if isinstance(text, int) else round(compute(text, where))


def symbols(text: str | int) -> list[str]:
    """The names in an expression, in order of appearance."""
    if isinstance(text, int):
        return []
    names = [node for node in ast.walk(_parse(text)[0]) if isinstance(node, ast.Name) and node.id not in FUNCTIONS]
    return list(dict.fromkeys(node.id for node in sorted(names, key=lambda node: node.col_offset)))


def to_text(text: str | int, where: Mapping[str, Number] | None = None) -> str:
    """The expression as one would write it; with `where`, with the numbers put in."""
    if isinstance(text, int):
        return f"{text:,}"
    return _PlainText(where).render(_parse(text)[0])


def to_latex(text: str | int, where: Mapping[str, Number] | None = None) -> str:
    if isinstance(text, int):
        return latex_number(text)
    return _LatexText(where).render(_parse(text)[0])


def latex_number(value: Number) -> str:
    return f"{value:,}".replace(",", "{,}")


def latex_name(name: str) -> str:
    """`C_{out}` for Cout; primes stay behind."""
    letters = name.rstrip("'")
    index = letters[1:].strip("_")
    return letters[0] + (f"_{{{index}}}" if index else "") + name[len(letters) :]


_PRECEDENCE: dict[type[ast.operator], int] = {
    ast.Add: 1,
    ast.Sub: 1,
    ast.Mult: 2,
    ast.Div: 2,
    ast.FloorDiv: 2,
    ast.Pow: 3,
}


class _PlainText:
    """Renders an expression tree as plain text."""

    times, minus = " × ", " - "

    def __init__(self, where: Mapping[str, Number] | None) -> None:
        self.where = where

    def number(self, value: Number) -> str:
        return f"{value:,}"

    def name(self, name: str) -> str:
        return name

    def divide(self, above: str, below: str) -> str:
        return f"{above} / {below}"

    def power(self, base: str, exponent: str) -> str:
        return f"{base}^{exponent}"

    def render(self, node: ast.expr, outer: int = 0) -> str:
        if isinstance(node, ast.Constant):
            assert isinstance(node.value, (int, float))
            return self.number(node.value)
        if isinstance(node, ast.Name):
            return self.number(self.where[node.id]) if self.where is not None else self.name(node.id)
        if isinstance(node, ast.Call):
            assert isinstance(node.func, ast.Name)
            return f"{node.func.id}({', '.join(self.render(argument) for argument in node.args)})"
        if isinstance(node, ast.UnaryOp):
            return f"-{self.render(node.operand, 3)}"
        assert isinstance(node, ast.BinOp), ast.dump(node)
        return self.binary(node, outer)

    def binary(self, node: ast.BinOp, outer: int) -> str:
        rank = _PRECEDENCE[type(node.op)]
        left, right = self.render(node.left, rank), self.render(node.right, rank + 1)
        if isinstance(node.op, ast.Pow):
            text = self.power(self.render(node.left, rank + 1), right)
        elif isinstance(node.op, (ast.Div, ast.FloorDiv)):
            text = self.divide(left, right)
        else:
            text = left + {ast.Add: " + ", ast.Sub: self.minus, ast.Mult: self.times}[type(node.op)] + right
        return f"({text})" if rank < outer else text


class _LatexText(_PlainText):
    times = r" \cdot "

    def number(self, value: Number) -> str:
        return latex_number(value)

    def name(self, name: str) -> str:
        return latex_name(name)

    def divide(self, above: str, below: str) -> str:
        return rf"\frac{{{above}}}{{{below}}}"

    def power(self, base: str, exponent: str) -> str:
        return f"{base}^{{{exponent}}}"
