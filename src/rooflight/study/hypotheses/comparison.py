"""Numbers calculated and compared: whether a comparison holds, by how much, and what would have to change."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence

from rooflight.study.hypotheses.lookup import UnavailableValue


def calculated(sign: str, left: int | float, right: int | float) -> int | float:
    try:
        value: int | float = _CALCULATE[sign](left, right)
        if math.isfinite(value):  # so that comparing and writing it stays possible
            return value
    except ZeroDivisionError:
        raise UnavailableValue("division by zero", "arithmetic") from None
    except OverflowError:
        pass
    raise UnavailableValue("the number is too large", "arithmetic")


_CALCULATE = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def _sum(values: Sequence[int | float]) -> int | float:
    return sum(values) if all(isinstance(value, int) for value in values) else math.fsum(values)


FOLDED: dict[str, Callable[[Sequence[int | float]], int | float]] = {"min": min, "max": max, "sum": _sum}


def held(
    sign: str, left: int | float | str, right: int | float | str, within: int | float | str = 0
) -> tuple[bool, float]:
    """Whether a comparison holds, and how far it is on the wrong side."""
    if isinstance(left, str) or isinstance(right, str):
        return (str(left).casefold() == str(right).casefold()) == (sign == "="), 0.0
    off = left - right
    largest = max(abs(left), abs(right))
    apart = off / largest if largest else 0.0
    match sign:
        case "~":
            relative = abs(off) / abs(right) if right else math.inf if off else 0.0
            return relative <= float(within), min(relative, 1e9) - float(within)
        case "=":
            return left == right, abs(apart)
        case "!=":
            return left != right, -abs(apart)
        case "<" | "<=":
            return (left < right if sign == "<" else left <= right), apart
        case _:
            return (left > right if sign == ">" else left >= right), -apart


def excesses(sign: str, left: float, right: float, within: float = 0.0) -> tuple[float, ...]:
    """What must not be above 0 for a comparison to hold; of `!=` for it to fail."""
    match sign:
        case "~" | "=" | "!=":
            allowed = within * abs(right)
            return left - right - allowed, right - left - allowed
        case "<" | "<=":
            return (left - right,)
        case _:
            return (right - left,)


_LARGEST = 1 << 63


def plain(value: int | float | str) -> int | float | str:
    """A whole number beyond 64 bits is written as a float: JSON has no others."""
    return float(value) if isinstance(value, int) and abs(value) >= _LARGEST else value
