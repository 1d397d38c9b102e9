"""A row of somebody's table, read: what it is of, and what it states.

A cell states a number with its unit and the digits it was given, a shape, or a word. `9.5 MB` is anything that rounds
to it: 9.45 to 9.55 MB. A whole number is exact, unless it ends in three zeros or more: `14080000` was rounded, and says
14,075,000 to 14,085,000. `>290` is a bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from rooflight.analysis.claims.quantities import NamedQuantity
from rooflight.profiles.numbers import NumberStyle
from rooflight.units import Unit

ZEROS = 3
"""So many zeros at the end of a whole number tell that it was rounded; two digits are always meant."""
_FLOAT = Fraction(1, 10**12)
"""How much of itself a fraction that some program computed may be off."""
_CELL = re.compile(
    r"(?P<sign>[<>]=?|[≤≥~≈])?\s*(?P<number>[+-]?[0-9](?:[0-9.,'\u2019\u00a0\u2009\u202f ]*[0-9])?\.?"
    r"(?:[eE][+-]?[0-9]{1,4})?)\s*(?P<unit>.*)"
)
_SHAPE = re.compile(r"[\[(]?\s*(?:-1|[0-9]+|[NB])(?:\s*[x×*,]\s*(?:[0-9]+))*\s*,?\s*[\])]?", re.IGNORECASE)
_NONE = frozenset({"nan", "inf", "-inf", "+inf", "infinity", "-infinity", "-nan"})
_MOST_DIGITS = 18
"""Of a size of a tensor."""


class UnreadableCell(ValueError):
    """It says nothing that can be used; the message says why."""


@dataclass(frozen=True)
class Amount:
    """A number in its base unit, and from where to where it may lie. `None`: no bound on that side."""

    text: str
    value: Fraction
    low: Fraction | None
    high: Fraction | None
    unit: Unit
    bound: str = ""
    """`<` or `>` where only a bound was stated."""

    def holds(self, value: Fraction | float) -> bool:
        """Is it what the cell says, as far as its digits go?"""
        return self.touches(value, value)

    def touches(self, low: Fraction | float, high: Fraction | float) -> bool:
        """Does what the cell says reach into a range?"""
        if self.bound in ("<", ">"):
            return Fraction(low) < self.value if self.bound == "<" else Fraction(high) > self.value
        return (self.low is None or Fraction(high) >= self.low) and (self.high is None or Fraction(low) <= self.high)

    @property
    def spread(self) -> Fraction:
        """How far from its middle it may lie, as a part of it; a bound is anywhere."""
        if self.low is None or self.high is None or not self.value:
            return Fraction(1)
        return abs((self.high - self.low) / (2 * self.value))

    def times(self, factor: Fraction) -> Amount:
        """The same digits in a unit that is so many times as large."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return replace(self, value=self.value * factor, low=low, high=high)


@dataclass(frozen=True)
class Shape:
    """`64x24x24`; `-1`, `N` or `B` in front stands for any batch."""

    text: str
    sizes: tuple[int, ...]
    any_batch: bool = False


Stated = Amount | Shape | str
"""A word is a verdict or the name of a device; of a counter, what profilers print where it gave nothing."""
StepName = Literal["forward", "backward", "optimizer", "training", "inference"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one row says. Empty text and `None`: the row does not say."""

    row: int
    """As a spreadsheet counts: the header is row 1."""
    layer: str
    quantity: str
    value: str
    named: NamedQuantity | None
    """`None`: no quantity by that name, and `trouble` says so."""
    stated: Stated | None
    trouble: str = ""
    unreadable: bool = False
    """A cell of it says nothing that can be used; `trouble` says which."""
    batch: int | None = None
    step: StepName | None = None
    precision: str = ""
    device: str = ""
    model: str = ""
    note: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Columns that nobody asked for."""

    @property
    def where(self) -> str:
        """`row 3 (conv2, flops)`."""
        subject = self.layer or self.model or self.device or "total"
        return f"row {self.row} ({subject}, {self.quantity})"

    @property
    def name(self) -> str:
        """Of the quantity; empty where there is none by that name."""
        return self.named.quantity.name if self.named is not None else ""

    @property
    def amount(self) -> Amount | None:
        """The number that it states; `None` for a bound, a shape or a word."""
        return self.stated if isinstance(self.stated, Amount) and not self.stated.bound else None

    @property
    def per_sample(self) -> bool:
        return self.named is not None and self.named.per_sample

    @property
    def counts_macs(self) -> bool:
        """Does the row say that it counts multiply-adds, by its unit or its quantity?"""
        by_unit = isinstance(self.stated, Amount) and self.stated.unit.base == "mac"
        return by_unit or self.name == "macs"


def cell_parts(text: str) -> tuple[str, str]:
    """The number of a cell, and the unit that follows it; empty where there is no number."""
    match = _CELL.fullmatch(text.strip())
    return (match["number"].strip(), match["unit"].strip()) if match is not None else ("", "")


def parse_amount(text: str, unit: Unit, style: NumberStyle) -> Amount:
    """A number as the file writes numbers; its unit was found before."""
    text = text.strip()
    if text.lower() in _NONE:
        raise UnreadableCell(f"{text} is no value: leave the row out, or say what was found")
    match = _CELL.fullmatch(text)
    if match is None:
        hint = ": write ~ in front of a rough one" if re.search(r"[0-9]", text) else ""
        raise UnreadableCell(f"{text!r} is no number{hint}")
    number = match["number"].strip()
    value = style.parse(number.removesuffix("."))
    if value is None:
        raise UnreadableCell(f"{number!r} is no number as the others of this file are written")
    body, _, exponent = number.lower().partition("e")
    decimals = body.partition(style.decimal)[2] if style.decimal in body else ""
    half = Fraction(10) ** (int(exponent or 0) - len(decimals)) / 2
    digits = re.sub("[^0-9]", "", body).lstrip("0")
    plain = not decimals and not exponent and "." not in body
    if plain:
        zeros = min(len(digits) - len(digits.rstrip("0")), len(digits) - 2)
        if zeros >= ZEROS:
            half = Fraction(10) ** zeros / 2
    exact, sign = Fraction(value), match["sign"] or ""
    half += 0 if plain else abs(exact) * _FLOAT
    exact, half = exact * unit.factor, half * unit.factor
    if sign in ("<", ">"):
        return Amount(text, exact, None, None, unit, sign)
    low = None if sign in ("<=", "≤") else exact - half
    high = None if sign in (">=", "≥") else exact + half
    return Amount(text, exact, low, high, unit)


def parse_shape(text: str) -> Shape:
    if _SHAPE.fullmatch(text.strip()) is None:
        raise UnreadableCell(f"{text!r} is no shape: write it as 64x24x24")
    parts = [part for part in re.split(r"[\s\[\]()x×*,]+", text.strip()) if part]
    any_batch = not parts[0].isdecimal()
    if any(len(part) > _MOST_DIGITS for part in parts):
        raise UnreadableCell(f"{text[:40]!r}... is no shape of a tensor: its sizes have too many digits")
    return Shape(text.strip(), tuple(map(int, parts[1:] if any_batch else parts)), any_batch)
