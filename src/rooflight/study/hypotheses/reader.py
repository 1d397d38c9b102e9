"""Letters to pieces: where a reader of a claim stands in its text, and what it says when the text goes on wrongly."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NoReturn

from rooflight.errors import BadInput
from rooflight.study.hypotheses.dimensions import CONFUSED, UNITS
from rooflight.study.hypotheses.tree import Number, Place

LONGEST = 1000
"""Letters of a claim."""
KEYWORDS = frozenset({"and", "or", "not", "within", "over"})
_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNIT = re.compile(r"%|/s(?![A-Za-z0-9_.(])|[A-Za-zµμ]+(?:/(?:s|B)(?![A-Za-z0-9_.(]))?")
_DIGITS = 40
_EXPONENT = 30
_LARGEST = 10**30


class Reader:
    """A place in a text, and the piece behind it."""

    def __init__(self, text: str, number: int | None) -> None:
        self.text = text
        self.at = 0
        self.read_from = 0
        """Where the last piece began: `after` names it."""
        self._prefix = "" if number is None else f"claim {number}: "
        if len(text) > LONGEST:
            raise BadInput(f"{self._prefix}{len(text):,} letters are too many, {LONGEST:,} the most: split it in two")
        odd = next((i for i, letter in enumerate(text) if not letter.isprintable() and letter not in "\t\r\n"), None)
        if odd is not None:
            self.fail(f"the letter {text[odd]!r} has no place in a claim", odd)
        self.skip()

    def skip(self) -> None:
        found = _SPACE.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def next_is(self, *pieces: str) -> str | None:
        """Which of these comes next; the first that fits, so longer ones first."""
        return next((piece for piece in pieces if self.text.startswith(piece, self.at)), None)

    def word_is(self, *words: str) -> str | None:
        """The same with whole words."""
        found = self.peek(re.compile(r"[A-Za-z_][A-Za-z0-9_]*"))
        return found if found in words else None

    def peek(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        return found[0] if found and found[0] else None

    def take(self, piece: str) -> str:
        self.read_from = self.at
        self.at += len(piece)
        self.skip()
        return piece

    def took(self, *pieces: str) -> str | None:
        piece = self.next_is(*pieces)
        return None if piece is None else self.take(piece)

    def end_of_last(self) -> int:
        """Behind the last letter that is no space."""
        return len(self.text[: self.at].rstrip())

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        where = self.at if at is None else at
        shown = " ".join("".join(letter if letter.isprintable() else " " for letter in self.text).split())
        shown = shown if len(shown) <= 100 else f"{shown[:99]}…"
        raise BadInput(f"{self._prefix}{message}, at character {where + 1} of `{shown}`")

    def expected(self, what: str) -> NoReturn:
        """`expected ')' after 'batch=64', found '>'`."""
        before = self.text[self.read_from : self.at].strip()
        after = f" after {_short(before)}" if before else ""
        rest = self.text[self.at :].split(maxsplit=1)
        self.fail(f"expected {what}{after}, found {_short(rest[0]) if rest else 'the end'}")

    def number(self) -> Number | None:
        """A number and its unit, if one comes next."""
        digits = self.peek(_NUMBER)
        if digits is None:
            return None
        start = self.at
        if len(digits) > _DIGITS:
            self.fail(f"a number of {len(digits)} letters is too long, {_DIGITS} are the most")
        mantissa, _, exponent = digits.replace("_", "").lower().partition("e")
        if exponent and abs(int(exponent)) > _EXPONENT:
            self.fail(f"the exponent {exponent} is too large, {_EXPONENT} is the most")
        self.take(digits)
        unit = self._unit()
        scale, dimension = UNITS[unit] if unit else (Fraction(1), None)
        exact = Fraction(mantissa) * Fraction(10) ** int(exponent or 0) * scale
        if exact > _LARGEST:
            self.fail("the number is too large: 1e30 is the most", start)
        value = int(exact) if exact.denominator == 1 else float(exact)
        self.read_from = start
        return Number(self.text[start : self.end_of_last()], value, dimension, self.since(start))

    def _unit(self) -> str | None:
        word = self.peek(_UNIT)
        if word is None or word in KEYWORDS:
            return None
        for unit in (word, word.partition("/")[0]):
            if unit in UNITS:
                return self.take(unit)
        if word in CONFUSED:
            self.fail(f"the unit {word!r} is not clear: write {CONFUSED[word]}")
        self.fail(f"unknown unit {_short(word)}: one of FLOP, FLOP/s, FLOP/B, B, B/s (with k, M, G, T, B also with Ki, "
                  f"Mi, Gi, Ti), MAC, s, ms, us, ns, min, h, /s, samples/s, %")  # fmt: skip

    def since(self, start: int) -> Place:
        return start, self.end_of_last()


def _short(text: str) -> str:
    return repr(text if len(text) <= 30 else f"{text[:29]}…")
