"""Numbers as locales print them: `1,358,954,496.5`, `1.358.954.496,5`, `1 358 954 496,5`.

No log says which locale its terminal had, and `1,024` is a thousand in one and about one in another. So the decimal
sign is decided once for a whole file: the only one with which all its numbers can be read. A file that leaves it open
is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from functools import cached_property, lru_cache
from typing import NamedTuple

_GROUPS = "\u0020\u00a0\u2009\u202f'\u2019"
_NUMERIC = re.compile(rf"[+-]?[0-9]+(?:[.,{_GROUPS}][0-9]+)*(?:[eE][+-]?[0-9]{{1,4}})?")
_GREATEST = Decimal(10) ** 30
"""No 64-bit counter gets there in any unit, and nothing below is too large for a float."""
_MISSING = frozenset({"", "-", "n/a", "no data", "na", "nan", "-nan", "inf", "-inf"})


class Ambiguous(ValueError):
    """Numbers of a file that can be read in two ways, or in none; `line` is where."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


class PrintedNumber(NamedTuple):
    """A printed number and where it stands. `whole`: it counts things, so three digits behind a mark are thousands."""

    text: str
    line: int
    whole: bool = False


@dataclass(frozen=True)
class NumberStyle:
    """The mark before decimals, and the marks that may stand between thousands."""

    decimal: str
    groups: str

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        grouped = rf"|[1-9][0-9]{{0,2}}(?P<mark>[{re.escape(self.groups)}])[0-9]{{3}}(?:(?P=mark)[0-9]{{3}})*"
        return re.compile(
            rf"(?P<sign>[+-]?)(?P<integer>[0-9]+{grouped if self.groups else ''})"
            rf"(?:{re.escape(self.decimal)}(?P<fraction>[0-9]+))?(?P<exponent>[eE][+-]?[0-9]{{1,4}})?"
        )

    def parse(self, text: str) -> Decimal | None:
        """Return the number, or `None` if this is none in this style, or one that nothing can have counted."""
        match = self._pattern.fullmatch(text.strip())
        if match is None:
            return None
        integer = re.sub("[^0-9]", "", match["integer"])
        value = Decimal(f"{match['sign']}{integer}.{match['fraction'] or '0'}{match['exponent'] or ''}")
        return value if abs(value) < _GREATEST else None


PLAIN = NumberStyle(".", "")
"""As programs print numbers for programs: `1358954496.5`."""
ENGLISH = NumberStyle(".", f",{_GROUPS}")
_STYLES = (ENGLISH, NumberStyle(",", f".{_GROUPS}"))


def looks_numeric(text: str) -> bool:
    """Is it a number in some style?"""
    return _NUMERIC.fullmatch(text.strip()) is not None


def is_missing(text: str) -> bool:
    """Does the cell say that there is no value? Nsight Compute marks some with an exclamation mark."""
    return text.strip().removeprefix("(!)").strip().lower() in _MISSING


def decide(cells: Iterable[PrintedNumber]) -> NumberStyle:
    """Return the style in which all of these can be read; raise `Ambiguous` if none can, or two read differently."""
    styles = frozenset(_STYLES)
    readable_twice: dict[str, PrintedNumber] = {}
    for cell in cells:
        text = cell.text.strip()
        if text.isdecimal() or not looks_numeric(text):
            continue
        shape = ("0" if text.lstrip("+-")[0] == "0" else "1") + re.sub("[0-9]", "1", text.lstrip("+-")[1:])
        possible = _possible(shape, cell.whole)
        if not possible:
            continue
        if not styles & possible:
            raise Ambiguous(cell.line, f"{text} is not written like the numbers before it")
        styles &= possible
        readable_twice.setdefault(shape, cell)
    for shape, cell in readable_twice.items():
        if len({style.parse(shape) for style in styles}) > 1:
            raise Ambiguous(cell.line, f"{cell.text.strip()} could be a thousand or a fraction")
    return next(style for style in _STYLES if style in styles)


@lru_cache(maxsize=4096)
def _possible(shape: str, whole: bool) -> frozenset[NumberStyle]:
    """The styles in which a number can be read, by its marks, the digits between them and a zero in front."""
    matches = {style: style._pattern.fullmatch(shape) for style in _STYLES}
    return frozenset(
        style for style, match in matches.items() if match and not (whole and len(match["fraction"] or "") == 3)
    )
