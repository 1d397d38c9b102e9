"""The Big-O of a function that somebody wrote down: `5n^3 + 200n^2 + 15` is O(n³).

A function is a sum of terms, each a number times factorials, exponentials, powers and logarithms of one variable. This
is closed under sums, products and whole powers, so that terms which cancel are gone; of a root, an inverse or a
logarithm of a sum the leading term is kept. Text is parsed, never executed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import total_ordering

from rooflight.errors import BadInput
from rooflight.estimation.symbolic.polynomial import power_text

_TOKEN = re.compile(
    r"(?P<number>\d+(?:\.\d+)?)|(?P<function>log_?2|log_?10|log|lg|ln|sqrt|√)|(?P<name>[a-zA-Z])|(?P<sign>[-+*/^!()])"
)
_SPELLINGS = (("**", "^"), ("×", "*"), ("·", "*"), ("−", "-"), ("²", "^2"), ("³", "^3"))
_DEFINED = re.compile(r"^\s*[A-Za-z]\s*\(\s*[A-Za-z]\s*\)\s*=")
_MOST_EXPONENT = 4096
"""Of a number, and of a sum in brackets: more is a slip of the pen, and would take for ever."""
_LONGEST = 120
"""Characters of a function: brackets within brackets are read one inside the other."""
_BASES = {"log2": 2, "log_2": 2, "lg": 2, "log10": 10, "log_10": 10}

LADDER = ("1", "log n", "sqrt n", "n", "n log n", "n^2", "n^3", "2^n", "n!")
"""The usual functions, slowest first."""


@total_ordering
@dataclass(frozen=True)
class GrowthClass:
    """(n!)^factorials · base^n · n^power · (log n)^logs: compared as the functions themselves are for large n."""

    factorials: int = 0
    base: Fraction = Fraction(1)
    power: Fraction = Fraction(0)
    logs: Fraction = Fraction(0)

    @property
    def _rank(self) -> tuple[Fraction | int, ...]:
        return self.factorials, self.base, self.power, self.logs

    def __lt__(self, other: GrowthClass) -> bool:
        return self._rank < other._rank

    def __mul__(self, other: GrowthClass) -> GrowthClass:
        return GrowthClass(
            self.factorials + other.factorials, self.base * other.base, self.power + other.power, self.logs + other.logs
        )

    def text(self, variable: str) -> str:
        base = "e" if self.base == Fraction(math.e) else f"{float(self.base):g}"
        parts = (
            _raised(f"{variable}!", self.factorials),
            "" if self.base == 1 else f"{base}^{variable}",
            _raised(variable, self.power),
            _raised(f"log {variable}", self.logs),
        )
        return "·".join(filter(None, parts)) or "1"


def _raised(text: str, power: Fraction | int) -> str:
    if not power:
        return ""
    if power == Fraction(1, 2):
        return f"√({text})" if " " in text else f"√{text}"
    bare = text if power == 1 or " " not in text else f"({text})"
    return power_text(bare, int(power)) if power == int(power) else f"{bare}^{float(power):g}"


_ONE = GrowthClass()
_Terms = dict[GrowthClass, float | Fraction]


@dataclass(frozen=True)
class AsymptoticFunction:
    """What was written, and its terms by growth, the fastest first."""

    written: str
    variable: str
    terms: tuple[GrowthClass, ...]

    @property
    def growth(self) -> GrowthClass:
        return self.terms[0] if self.terms else _ONE

    def __str__(self) -> str:
        return f"O({self.growth.text(self.variable)})"

    @property
    def why(self) -> str:
        """Its terms in order, for a reader who wants to see which one wins."""
        return " ≫ ".join(term.text(self.variable) for term in self.terms) or "0"


def asymptotic(text: str) -> AsymptoticFunction:
    """Read a function of one variable.

    >>> str(asymptotic("T(n) = 5n^3 + 200n^2 + 15"))
    'O(n³)'
    """
    reader = _Reader(text)
    try:
        terms = reader.whole()
    except OverflowError:
        raise BadInput(
            "number-too-large", f"{text!r} has a number in it that is too large: give it a name or leave it out"
        ) from None
    ordered = sorted((term for term, count in terms.items() if count), reverse=True)
    if ordered and terms[ordered[0]] < 0:
        raise BadInput(
            "negative-cost", f"{text!r} becomes negative for large {reader.variable}: no cost does, look at its signs"
        )
    return AsymptoticFunction(text.strip(), reader.variable, tuple(ordered))


def ranked(functions: Sequence[AsymptoticFunction]) -> list[AsymptoticFunction]:
    """From the slowest growth to the fastest."""
    return sorted(functions, key=lambda function: function.growth)


class _Reader:
    """Reads by recursive descent: sums of products of powers. A product needs no sign (`5n`, `n log n`), and a function
    no brackets around a power (`log n^10` is the logarithm of n^10)."""

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _LONGEST:
            raise BadInput(
                "text-too-long", f"a function of {len(text)} characters is too long: at most {_LONGEST} are read"
            )
        plain = _DEFINED.sub("", text)
        for spelled, meant in _SPELLINGS:
            plain = plain.replace(spelled, meant)
        self.tokens = self._tokens(plain)
        names = sorted({token for kind, token in self.tokens if kind == "name" and token != "e"})
        if len(names) > 1:
            raise BadInput(
                "several-variables",
                f"{text!r} has the variables {' and '.join(names)}: write a function of one, such as n",
            )
        self.variable = names[0] if names else "n"
        self.at = 0

    def _tokens(self, plain: str) -> list[tuple[str, str]]:
        tokens, at = [], 0
        while at < len(plain):
            if plain[at].isspace():
                at += 1
                continue
            match = _TOKEN.match(plain, at)
            if match is None:
                raise BadInput(
                    "bad-expression",
                    f"{self.text!r} cannot be read at {plain[at:]!r}: write numbers, one variable, + - * / ^ !, log, "
                    "ln, log2, sqrt and brackets",
                )
            tokens.append((str(match.lastgroup), match[0]))
            at = match.end()
        if not tokens:
            raise BadInput("empty-expression", "there is no function to read: write one such as '5n^3 + 200n^2 + 15'")
        return tokens

    @property
    def next(self) -> tuple[str, str]:
        return self.tokens[self.at] if self.at < len(self.tokens) else ("end", "")

    def taken(self, *signs: str) -> str:
        sign = self.next[1] if self.next[1] in signs else ""
        self.at += bool(sign)
        return sign

    def whole(self) -> _Terms:
        terms = self.sum()
        if self.at < len(self.tokens):
            raise BadInput(
                "bad-expression",
                f"{self.text!r} cannot be read from {self.next[1]!r} on: is a bracket or a sign missing?",
            )
        return terms

    def sum(self) -> _Terms:
        terms = self.product()
        while sign := self.taken("+", "-"):
            for term, count in self.product().items():
                terms[term] = terms.get(term, Fraction(0)) + (count if sign == "+" else -count)
        return terms

    def product(self) -> _Terms:
        terms = self.signed()
        while True:
            if self.taken("*"):
                terms = _times(terms, self.signed())
            elif self.taken("/"):
                terms = _times(terms, self.to_the(self.signed(), Fraction(-1)))
            elif self.next[0] in ("number", "name", "function") or self.next[1] == "(":
                terms = _times(terms, self.power())
            else:
                return terms

    def signed(self) -> _Terms:
        if self.taken("-"):
            return {term: -count for term, count in self.signed().items()}
        self.taken("+")
        return self.power()

    def power(self) -> _Terms:
        base = self.atom()
        while self.taken("!"):
            base = self.factorial(base)
        return self.raised(base, self.signed()) if self.taken("^") else base

    def atom(self) -> _Terms:
        kind, token = self.next
        self.at += 1
        if kind == "number":
            return {_ONE: Fraction(token)}
        if kind == "name":
            return {_ONE: Fraction(math.e)} if token == "e" else {GrowthClass(power=Fraction(1)): Fraction(1)}
        if kind == "function":
            return self.function(token)
        if token == "(":
            terms = self.sum()
            if not self.taken(")"):
                raise BadInput("bad-expression", f"{self.text!r} has a bracket that is not closed")
            return terms
        raise BadInput(
            "bad-expression",
            f"{self.text!r} cannot be read at {token or 'its end'!r}: a number or the variable is missing there",
        )

    def function(self, name: str) -> _Terms:
        of = self.power()
        if _number(of) is not None and self.next[0] == "name":
            of = _times(of, self.power())  # log 2n
        if name in ("sqrt", "√"):
            return self.to_the(of, Fraction(1, 2))
        return self.logarithm(of, _BASES.get(name, math.e))

    def logarithm(self, terms: _Terms, base: float) -> _Terms:
        """Of its leading term: what is below it adds less than a constant."""
        leading = max((term for term, count in terms.items() if count), default=None)
        if leading is None or terms[leading] <= 0:
            raise BadInput("unranked-function", f"{self.text!r} has the logarithm of something that is not positive")
        if leading.logs or leading.base < 1 or leading.factorials < 0:
            raise BadInput(
                "unranked-function",
                f"{self.text!r} has a logarithm of a logarithm or of what vanishes: this is not ranked here",
            )
        scale = 1 / math.log(base)
        parts = (
            (GrowthClass(power=Fraction(1), logs=Fraction(1)), leading.factorials),
            (GrowthClass(power=Fraction(1)), math.log(leading.base)),
            (GrowthClass(logs=Fraction(1)), float(leading.power)),
            (_ONE, math.log(terms[leading])),
        )
        return {term: scale * count for term, count in parts if count} or {_ONE: Fraction(0)}

    def factorial(self, terms: _Terms) -> _Terms:
        if terms == {GrowthClass(power=Fraction(1)): 1}:
            return {GrowthClass(factorials=1): Fraction(1)}
        number = _number(terms)
        if number is None or number != int(number) or not 0 <= number <= _MOST_EXPONENT:
            raise BadInput(
                "unranked-function",
                f"{self.text!r} has a factorial of something else than {self.variable} or a whole number",
            )
        return {_ONE: Fraction(math.factorial(int(number)))}

    def raised(self, base: _Terms, exponent: _Terms) -> _Terms:
        if (number := _number(exponent)) is not None:
            return self.to_the(base, Fraction(number).limit_denominator(10**6))
        root, slope = _number(base), exponent.get(GrowthClass(power=Fraction(1)))
        if root is None or root <= 0 or slope is None or set(exponent) - {_ONE, GrowthClass(power=Fraction(1))}:
            raise BadInput(
                "unranked-function",
                f"{self.text!r} has an exponent that is not a number or a multiple of {self.variable}",
            )
        shift = self.to_the(base, Fraction(exponent.get(_ONE, 0)))
        steps = Fraction(slope)
        grown = (
            root ** int(steps)
            if steps.denominator == 1 and abs(steps) <= _MOST_EXPONENT
            else float(root) ** float(steps)
        )
        return _times({GrowthClass(base=Fraction(grown)): Fraction(1)}, shift)

    def to_the(self, terms: _Terms, exponent: Fraction) -> _Terms:
        if abs(exponent) > _MOST_EXPONENT and _number(terms) is not None:
            raise BadInput(
                "number-too-large",
                f"{self.text!r} raises a number to {float(exponent):g}: at most {_MOST_EXPONENT:,} here",
            )
        if len(terms) == 1:
            ((term, count),) = terms.items()
            whole = exponent.denominator == 1
            if (not count and exponent <= 0) or (term.factorials and not whole) or (count < 0 and not whole):
                raise BadInput(
                    "unranked-function", f"{self.text!r} divides by zero or takes a root that is not ranked here"
                )
            base = term.base ** int(exponent) if whole else Fraction(float(term.base) ** float(exponent))
            raised = GrowthClass(int(term.factorials * exponent), base, term.power * exponent, term.logs * exponent)
            return {raised: count ** int(exponent) if whole else float(count) ** float(exponent)}
        if exponent.denominator != 1 or not 0 <= exponent <= 64:
            # A root or an inverse of a sum grows like that of its leading term.
            leading = max(term for term, count in terms.items() if count)
            return self.to_the({leading: terms[leading]}, exponent)
        product: _Terms = {_ONE: Fraction(1)}
        for _ in range(int(exponent)):
            product = _times(product, terms)
        return product


def _number(terms: _Terms) -> float | Fraction | None:
    return terms[_ONE] if set(terms) == {_ONE} else None


def _times(terms: _Terms, others: _Terms) -> _Terms:
    product: _Terms = {}
    for term, count in terms.items():
        for other, times in others.items():
            both = term * other
            product[both] = product.get(both, Fraction(0)) + count * times
    return product
