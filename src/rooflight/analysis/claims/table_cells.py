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
_DIGITS = (
    r"[+-]?[0-9](?:[0-9.,'\u2019\u00a0\u2009\u202f ]*[0-9])?\.?"
    r"(?:[eE][+-]?[0-9]{1,4})?"
)
_CELL = re.compile(rf"(?P<sign>[<>]=?|[≤≥~≈])?\s*(?P<number>{_DIGITS})\s*(?P<unit>.*)")
_TWO = re.compile(
    rf"[~≈]?\s*(?P<first>{_DIGITS})\s*(?P<unit1>[^0-9±]*?)\s*(?P<join>±|\+/-|\+-|-|to\b|\.\.+)\s*"
    rf"(?P<second>{_DIGITS})\s*(?P<unit>[^0-9]*)"
)
"""`25.6M±0.1M`, `25-26 M`."""
_ABOUT = re.compile(r"^(?:about|approx\.?|approximately|around|roughly|circa|ca\.?)\s*", re.IGNORECASE)
_POWER = re.compile(
    r"(?:(?<=[0-9])\s*[x×*·⋅]\s*10|\b(?<![0-9.,])10(?=\s*(?:\^|\*\*|[⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹])))\s*(?:\^|\*\*)?\s*"
    r"([+-]?[0-9]{1,3}|[⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]{1,3})(?![0-9])"
)
_RAISED = str.maketrans("⁺⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "+-0123456789")
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
        said = _odd_one(cells, places)
        if not said and (style := _without_whole(cells, delimiter)) is not None:
            return style
        said = said or f"{places[error.line]}: {error}: write decimals with a point"
        raise BadFile("mixed-number-style", f"{where}: {said}") from None


def _without_whole(cells: list[PrintedNumber], delimiter: str) -> NumberStyle | None:
    """A count may be stated with a fraction, as `4.089` of multiply-adds in billions. In a file with semicolons, which
    are there because the comma is taken, three digits behind a comma are a fraction."""
    try:
        return decide(cell._replace(whole=False) for cell in cells)
    except Ambiguous:
        marked = [cell.text for cell in cells if re.search("[.,]", cell.text)]
        is_comma = delimiter == ";" and all("," in text and _COMMAS.parse(text) is not None for text in marked)
        return _COMMAS if is_comma else None


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
        f"{places[odd.line]}: {odd.text} has {_marked(odd.text, mark)}, and {like.text} ({places[like.line]}) "
        f"{_marked(like.text, other)}: write all of them alike"
    )


def _marked(text: str, mark: str) -> str:
    """`25.557.032` has no decimal comma, and is written by somebody who has one."""
    if {"comma": ",", "point": "."}[mark] in text:
        return f"a decimal {mark}"
    return f"{'points' if mark == 'comma' else 'commas'} between thousands"


def plain_word(text: str) -> str:
    """A cell without the marks of emphasis around it."""
    return re.sub(r"^([*`]+)(.+?)\1$", r"\2", text.strip()).strip()


def plain_cell(text: str) -> str:
    """A cell as programs write numbers: without emphasis and words for roughly, `8.18×10^9` as `8.18e9`."""
    plain = text.strip().replace("\u2212", "-").replace("–", "-").replace("—", "-")
    plain = re.sub(r"^([*_`]+)(.+?)\1$", r"\2", plain)
    plain = _ABOUT.sub("~", plain)
    plain = re.sub(r"(?<=[0-9])_(?=[0-9]{3})", "", plain)

    def power(match: re.Match[str]) -> str:
        head = "1" if match.group().startswith("10") else ""
        return f"{head}e{match[1].translate(_RAISED)}"

    return _POWER.sub(power, plain)


def cell_parts(text: str) -> tuple[str, str]:
    """The number of a cell, and the unit that follows it; empty where there is no number."""
    text = plain_cell(text)
    match = _CELL.fullmatch(text)
    if match is None:
        return "", ""
    if (two := _two_numbers(match, text)) is not None:
        return two["first"].strip(), (two["unit"] or two["unit1"]).strip()
    return match["number"].strip(), match["unit"].strip()


def _two_numbers(match: re.Match[str], text: str) -> re.Match[str] | None:
    """A value with its error, or a range; `None` for one number."""
    return _TWO.fullmatch(text) if re.search(r"[0-9]", match["unit"]) else None


def amount_of(text: str, unit: Unit, style: NumberStyle) -> Amount:
    """A number as the file writes numbers; its unit was found before."""
    said, text = text.strip(), plain_cell(text)
    if text.lower() in _NONE:
        raise UnreadableCell(f"{said} is no value: leave the row out, or say what was found")
    match = _CELL.fullmatch(text)
    if match is None:
        raise UnreadableCell(f"{said!r} is no number{_hint(text)}")
    if (two := _two_numbers(match, text)) is not None:
        return _between(said, two, unit, style)
    exact, half = _number(match["number"], style)
    exact, half, sign = exact * unit.factor, half * unit.factor, match["sign"] or ""
    if sign in ("<", ">"):
        return Amount(exact, None, None, unit, sign)
    low = None if sign in ("<=", "≤") else exact - half
    high = None if sign in (">=", "≥") else exact + half
    return Amount(exact, low, high, unit)


def _hint(text: str) -> str:
    if text.startswith("="):
        return ": it is a formula of a spreadsheet, save the table with its values"
    return ": write ~ in front of a rough one, and 25.6e6 or 25.6 M" if re.search(r"[0-9]", text) else ""


def _between(said: str, two: re.Match[str], unit: Unit, style: NumberStyle) -> Amount:
    """From the least to the most that a value with its error, or a range, stands for."""
    (first, half), (second, _) = (_number(two[name], style) for name in ("first", "second"))
    if two["join"] in ("±", "+/-", "+-"):
        value, low, high = first, first - second - half, first + second + half
    else:
        value, low, high = (first + second) / 2, first, second
    if low > high:
        raise UnreadableCell(f"{said!r} is no range: write the smaller number first")
    return Amount(value * unit.factor, low * unit.factor, high * unit.factor, unit)


def _number(text: str, style: NumberStyle) -> tuple[Fraction, Fraction]:
    """A number, and how far off it may be as its digits go."""
    number = text.strip()
    spaced = (NumberStyle(style.decimal, marks) for marks in ("'\u2019", "\u0020\u00a0\u2009\u202f"))
    values = (way.parse(number.removesuffix(".")) for way in (style, *spaced))
    value = next((value for value in values if value is not None), None)
    if value is None:
        hint = ": write it as 25557032 or 25.6e6"
        if _COMMAS.parse(number) is not None and "," in number:
            hint = f": it has a decimal comma, write {number.replace('.', '').replace(',', '.')}"
        elif _COMMAS.parse(number) is not None:
            hint = f": it has points between thousands, write {number.replace('.', '')}"
        elif re.search(r"[eE]\+?[0-9]{2,}", number):
            hint = ": nothing is that large"
        raise UnreadableCell(f"{number!r} is no number as this file writes them{hint}")
    body, _, exponent = number.lower().partition("e")
    decimals = body.partition(style.decimal)[2] if style.decimal in body else ""
    half = Fraction(10) ** (int(exponent or 0) - len(decimals)) / 2
    digits = re.sub("[^0-9]", "", body).lstrip("0")
    plain = not decimals and not exponent and "." not in body
    if plain:
        zeros = min(len(digits) - len(digits.rstrip("0")), len(digits) - 2)
        if zeros >= _ZEROS:
            half = Fraction(10) ** zeros / 2
    exact = Fraction(value)
    return exact, half + (0 if plain else abs(exact) * _FLOAT)


def shape_of(text: str) -> Shape:
    if _SHAPE.fullmatch(text.strip()) is None:
        raise UnreadableCell(f"{text!r} is no shape: write it as 64x24x24")
    parts = [part for part in re.split(r"[\s\[\]()x×*,]+", text.strip()) if part]
    any_batch = not parts[0].isdecimal()
    if any(len(part) > _MOST_DIGITS for part in parts):
        raise UnreadableCell(f"{text[:40]!r}... is no shape of a tensor: its sizes have too many digits")
    return Shape(tuple(map(int, parts[1:] if any_batch else parts)), any_batch)
