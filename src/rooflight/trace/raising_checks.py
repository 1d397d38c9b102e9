"""Whether a value is read only to raise an error, and which value raises none.

A step that comes to its end has passed all its checks: `if not valid.all(): raise`, `assert mask.any()`. What such a
line reads is known without any data.
"""

from __future__ import annotations

import ast
import dis
import linecache
import operator
import sys
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from rooflight.trace.python_line import is_foreign

_DISTRIBUTIONS = str(Path(torch.__file__).parent / "distributions")
"""Torch's own that check their arguments."""
_MUST_HOLD = (torch.__file__, str(Path(_DISTRIBUTIONS) / "constraints.py"))
"""What torch's checks (`torch._check`) and constraints ask they want to be so."""
_Span = tuple[int | None, int | None, int | None, int | None]
"""First and last line, first and last column, as Python tells them of an instruction."""


def outcome_without_error() -> bool | int | float | None:
    """What the line that reads a value now must read so as not to raise; `None`: it reads it for something else."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_foreign(name := frame.f_code.co_filename):
        if name.startswith((_DISTRIBUTIONS, *_MUST_HOLD)):
            break
        frame = frame.f_back
    if frame is None:
        return None
    if frame.f_code.co_name.startswith("warn"):
        return False  # a function that looks for something to warn of changes no op
    if name in _MUST_HOLD:
        return True
    span = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None), None)
    reading = next((one for one in dis.get_instructions(frame.f_code) if one.offset == frame.f_lasti), None)
    if span is None or reading is None:
        return None
    as_truth = any(part in reading.opname for part in ("JUMP", "BOOL", "NOT"))
    linecache.checkcache(name)  # a user may have edited the model and loaded it again
    for check, test in _checks("".join(linecache.getlines(name))):
        raising = isinstance(check, ast.If)
        conditions = _conditions(test)
        for read, negated in conditions:
            if _span(read) == span and (as_truth or _is_reading_call(read)):
                return negated == raising
            if (number := _fitting(read, negated == raising, span, frame)) is not None:
                return number
        # Some versions of Python tell a jump as the whole statement's: any of its conditions.
        if _span(check) == span and as_truth and len({negated for _, negated in conditions}) == 1:
            return conditions[0][1] == raising
    return None


@lru_cache(maxsize=64)
def _checks(source: str) -> tuple[tuple[ast.stmt, ast.expr], ...]:
    """Statements of a file that raise an error, those by `if` where their condition is true, and the condition."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    return tuple(
        (node, node.test)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assert) or (isinstance(node, ast.If) and isinstance(node.body[-1], ast.Raise))
    )


def _conditions(test: ast.expr, negated: bool = False) -> list[tuple[ast.expr, bool]]:
    """What a condition is made of by `not`, `and` and `or`: each can keep it from raising, or all together do."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _conditions(test.operand, not negated)
    if isinstance(test, ast.BoolOp):
        return [part for value in test.values for part in _conditions(value, negated)]
    return [(test, negated)]


def _is_reading_call(node: ast.expr) -> bool:
    """`x.item()` or `bool(x)`: what the call reads is what it gives."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func
    return called.attr == "item" if isinstance(called, ast.Attribute) else getattr(called, "id", "") == "bool"


def _fitting(compared: ast.expr, wanted: bool, span: _Span, frame: FrameType) -> int | float | None:
    """`x.item() <= limit`: a number for the side that is read so that the comparison is as `wanted`; `None` where the
    other side is more than names and numbers, and where nothing is compared."""
    if not isinstance(compared, ast.Compare):
        return None
    sides = [compared.left, *compared.comparators]
    read = next((side for side in sides if _span(side) == span and _is_reading_call(side)), None)
    if len(sides) != 2 or read is None:
        return None
    (other,) = (side for side in sides if side is not read)
    if not all(isinstance(node, _WITHOUT_EFFECT) for node in ast.walk(other)):
        return None
    limit = eval(compile(ast.Expression(other), "limit", "eval"), frame.f_globals, frame.f_locals)
    holds = _COMPARED.get(type(compared.ops[0]))
    if holds is None or not isinstance(limit, (int, float)):
        return None
    # The last two are for limits so large, or infinite, that one more or less is the same number.
    tried = (limit, limit - 1, limit + 1, 0, 2 * limit)
    return next((one for one in tried if holds(*(one if side is read else limit for side in sides)) is wanted), None)


_WITHOUT_EFFECT = (
    ast.Name,
    ast.Attribute,
    ast.Constant,
    ast.BinOp,
    ast.UnaryOp,
    ast.operator,
    ast.unaryop,
    ast.expr_context,
)
_COMPARED: Mapping[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}


def _span(node: ast.expr | ast.stmt) -> _Span:
    return node.lineno, node.end_lineno, node.col_offset, node.end_col_offset
