"""Numbers as people's locales print them: `1,358,954,496.5`, `1.358.954.496,5`, `1 358 954 496,5`.

Profilers print numbers the way the terminal's locale does, and no log says which locale that was. A number such as
`1,024` is a thousand in one and one in another, so the style is decided once for a whole file: the only one in which
all its numbers can be read. What stays ambiguous is refused, never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import NamedTuple

_SPACES = "\u0020\u00a0\u2009\u202f"
_APOSTROPHES = "'\u2019"
_NUMBER = re.compile(
    rf"(?P<sign>[+-]?)(?P<body>[0-9]+(?:[.,{_SPACES}{_APOSTROPHES}][0-9]+)*)(?P<exponent>[eE][+-]?[0-9]{{1,4}})?"
)
_GREATEST = Decimal(10) ** 30
"""No 64-bit counter gets there in any unit, and nothing below is too large for a float."""
_MISSING = frozenset({"", "n/a", "no data", "na", "nan", "-nan", "inf", "-inf", "<overflow>"})


class Ambiguous(ValueError):
    """Numbers of a file that can be read in two ways, or in none; `line` is where."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class PrintedNumber(NamedTuple):
    """A printed number and where it stands. `whole`: it counts things, so that three digits behind a mark are
    thousands."""

    text: str
    line: int
    whole: bool = False


@dataclass(frozen=True)
class NumberStyle:
    """The mark before decimals, and the marks that may stand between thousands."""

    decimal: str
    groups: str

    def parse(self, text: str) -> Decimal | None:
        """The number, or `None` if this is none in this style, or one that nothing can have counted."""
        match = _NUMBER.fullmatch(text.strip())
        if match is None or (split := self._split(match["body"])) is None:
            return None
        value = Decimal(f"{match['sign']}{split[0]}.{split[1] or '0'}{match['exponent'] or ''}")
        return value if abs(value) < _GREATEST else None

    def _split(self, body: str) -> tuple[str, str] | None:
        """The digits before and after the decimal mark."""
        integer, mark, fraction = body.partition(self.decimal)
        if mark and not fraction.isdecimal():
            return None
        if integer.isdecimal():
            return integer, fraction
        marks = set(re.sub("[0-9]", "", integer))
        if len(marks) != 1 or not marks <= set(self.groups):
            return None
        parts = integer.split(marks.pop())
        return ("".join(parts), fraction) if _are_groups(parts) else None


def _are_groups(parts: list[str]) -> bool:
    """Three digits each behind one to three, or, as in India, two each and three at the end."""
    head, *middle, last = parts
    lengths = {len(part) for part in middle}
    return not head.startswith("0") and len(head) <= 3 and len(last) == 3 and lengths in (set(), {3}, {2})


PLAIN = NumberStyle(".", "")
"""As programs print them for programs: `1358954496.5`."""
_STYLES = tuple(
    NumberStyle(decimal, groups) for decimal, other in (".,", ",.") for groups in (other, _SPACES, _APOSTROPHES)
)


def looks_numeric(text: str) -> bool:
    """Is it a number in some style?"""
    return _NUMBER.fullmatch(text.strip()) is not None


def is_missing(text: str) -> bool:
    """Does the cell say that there is no value? Nsight Compute marks some with an exclamation mark."""
    return text.strip().removeprefix("(!)").strip().lower() in _MISSING


def decide(cells: Iterable[PrintedNumber]) -> NumberStyle:
    """The style in which all of these can be read; raises `Ambiguous` if there is none, or if two read differently."""
    left = frozenset(_STYLES)
    read_in_two_ways: dict[str, PrintedNumber] = {}
    for cell in cells:
        match = _NUMBER.fullmatch(cell.text.strip())
        if match is None or match["body"].isdecimal():
            continue
        shape = _shape(match["body"])
        possible = _possible(shape, cell.whole)
        if not possible:
            continue  # no number in any style: whoever needs it says so
        if not left & possible:
            raise Ambiguous(cell.line, f"{cell.text.strip()} is not written like the numbers before it")
        left &= possible
        read_in_two_ways.setdefault(shape, cell)
    for shape, cell in read_in_two_ways.items():
        if len({style._split(shape) for style in left}) > 1:
            raise Ambiguous(cell.line, f"{cell.text.strip()} could be a thousand or a fraction")
    return next(style for style in _STYLES if style in left)


def _shape(body: str) -> str:
    """What decides how a number can be read: its marks, the lengths between them, and a zero in front."""
    return ("0" if body[0] == "0" else "1") + re.sub("[0-9]", "1", body[1:])


@lru_cache(maxsize=4096)
def _possible(shape: str, whole: bool) -> frozenset[NumberStyle]:
    splits = {style: style._split(shape) for style in _STYLES}
    return frozenset(
        style for style, split in splits.items() if split is not None and not (whole and len(split[1]) == 3)
    )
