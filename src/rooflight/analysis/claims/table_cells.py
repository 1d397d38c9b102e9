"""Cells of a table: how its file writes numbers, and what a cell states: a number with its unit and the digits it was
given, or a shape."""

from __future__ import annotations

import re
from fractions import Fraction

from rooflight.analysis.claims.claim import Amount, Shape
from rooflight.errors import BadFile
from rooflight.profiles.numbers import Ambiguous, NumberStyle, PrintedNumber, decide
from rooflight.units import Unit

_ENGLISH, _COMMAS = NumberStyle(".", ","), NumberStyle(",", ".")
_ZEROS = 3
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


def style_of(cells: list[PrintedNumber], places: dict[int, str], delimiter: str, where: str) -> NumberStyle:
    """How the file writes numbers: decided once, for all of them. A file with commas between its cells is English,
    where its numbers can be read so."""
    if delimiter == "," and all(_ENGLISH.parse(cell.text) is not None for cell in cells if cell.text):
        return _ENGLISH
    try:
        return decide(cells)
    except Ambiguous as error:
        if delimiter == ",":
            return _ENGLISH  # then those that are written otherwise cannot be read
        said = _odd_one(cells, places) or f"{places[error.line]}: {error}: write decimals with a point"
        raise BadFile(f"{where}: {said}") from None


def _odd_one(cells: list[PrintedNumber], places: dict[int, str]) -> str:
    """Of numbers with decimal points and others with decimal commas: the first of the fewer, beside one of the others;
    empty where all are written alike."""
    points, commas = (
        [cell for cell in cells if cell.text and style.parse(cell.text) is not None and other.parse(cell.text) is None]
        for style, other in ((_ENGLISH, _COMMAS), (_COMMAS, _ENGLISH))
    )
    if not points or not commas:
        return ""
    (few, mark), (many, other) = sorted(((commas, "comma"), (points, "point")), key=lambda kind: len(kind[0]))
    odd, like = few[0], many[0]
    return (
        f"{places[odd.line]}: {odd.text} has a decimal {mark}, and {like.text} ({places[like.line]}) a decimal "
        f"{other}: write all of them alike"
    )


def cell_parts(text: str) -> tuple[str, str]:
    """The number of a cell, and the unit that follows it; empty where there is no number."""
    match = _CELL.fullmatch(text.strip())
    return (match["number"].strip(), match["unit"].strip()) if match is not None else ("", "")


def amount_of(text: str, unit: Unit, style: NumberStyle) -> Amount:
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
        hint = (
            f": it has a decimal comma, write {number.replace(',', '.')}" if _COMMAS.parse(number) is not None else ""
        )
        raise UnreadableCell(f"{number!r} is no number as the others of this file are written{hint}")
    body, _, exponent = number.lower().partition("e")
    decimals = body.partition(style.decimal)[2] if style.decimal in body else ""
    half = Fraction(10) ** (int(exponent or 0) - len(decimals)) / 2
    digits = re.sub("[^0-9]", "", body).lstrip("0")
    plain = not decimals and not exponent and "." not in body
    if plain:
        zeros = min(len(digits) - len(digits.rstrip("0")), len(digits) - 2)
        if zeros >= _ZEROS:
            half = Fraction(10) ** zeros / 2
    exact, sign = Fraction(value), match["sign"] or ""
    half += 0 if plain else abs(exact) * _FLOAT
    exact, half = exact * unit.factor, half * unit.factor
    if sign in ("<", ">"):
        return Amount(exact, None, None, unit, sign)
    low = None if sign in ("<=", "≤") else exact - half
    high = None if sign in (">=", "≥") else exact + half
    return Amount(exact, low, high, unit)


def shape_of(text: str) -> Shape:
    if _SHAPE.fullmatch(text.strip()) is None:
        raise UnreadableCell(f"{text!r} is no shape: write it as 64x24x24")
    parts = [part for part in re.split(r"[\s\[\]()x×*,]+", text.strip()) if part]
    any_batch = not parts[0].isdecimal()
    if any(len(part) > _MOST_DIGITS for part in parts):
        raise UnreadableCell(f"{text[:40]!r}... is no shape of a tensor: its sizes have too many digits")
    return Shape(tuple(map(int, parts[1:] if any_batch else parts)), any_batch)
