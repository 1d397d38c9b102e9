"""Arithmetic written once as text, from which the number, the substitution and the LaTeX all come.

A formula that says "N * Cout * Ho * Wo" can then never print one thing and compute another.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from functools import cache
from types import CodeType

Number = int | float

_FUNCTIONS = {"ceil": math.ceil, "log2": math.log2, "min": min, "max": max}


@cache
def _parse(text: str) -> tuple[ast.expr, CodeType]:
    tree = ast.parse(text, mode="eval")
    return tree.body, compile(tree, f"<formula {text}>", "eval")


def evaluate(text: str | int, where: Mapping[str, Number]) -> int:
    """The value of an expression, a whole number."""
    if isinstance(text, int):
        return text
    value: Number = eval(_parse(text)[1], {"__builtins__": {}, **_FUNCTIONS}, dict(where))
    return round(value)


def symbols(text: str | int) -> list[str]:
    """The names in an expression, in order of appearance."""
    if isinstance(text, int):
        return []
    found = [node.id for node in ast.walk(_parse(text)[0]) if isinstance(node, ast.Name) and node.id not in _FUNCTIONS]
    return sorted(set(found), key=text.index)


def to_text(text: str | int, where: Mapping[str, Number] | None = None) -> str:
    """The expression as one would write it; with `where`, with the numbers put in."""
    if isinstance(text, int):
        return f"{text:,}"
    return _Plain(where).render(_parse(text)[0])


def to_latex(text: str | int, where: Mapping[str, Number] | None = None) -> str:
    if isinstance(text, int):
        return _latex_number(text)
    return _Latex(where).render(_parse(text)[0])


def _latex_number(value: Number) -> str:
    return f"{value:,}".replace(",", "{,}")


_PRECEDENCE: dict[type[ast.operator], int] = {
    ast.Add: 1,
    ast.Sub: 1,
    ast.Mult: 2,
    ast.Div: 2,
    ast.FloorDiv: 2,
    ast.Pow: 3,
}


class _Plain:
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


class _Latex(_Plain):
    times = r" \cdot "

    def number(self, value: Number) -> str:
        return _latex_number(value)

    def name(self, name: str) -> str:
        head, tail = name[0], name[1:]
        return f"{head}_{{{tail.strip('_')}}}" if tail else head

    def divide(self, above: str, below: str) -> str:
        return rf"\frac{{{above}}}{{{below}}}"

    def power(self, base: str, exponent: str) -> str:
        return f"{base}^{{{exponent}}}"
