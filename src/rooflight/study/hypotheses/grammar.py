"""The grammar of claims, by recursive descent: nothing of a claim is ever executed, and its size and depth are bounded.

claim      = either
either     = all { "or" all }
all        = plain { "and" plain }
plain      = "not" plain | sum [ sign sum | "~" sum "within" percent ] | fact ("=" | "!=") (word | fact)
sum        = product { ("+" | "-") product }
product    = factor { ("*" | "/") factor }
factor     = "-" factor | number [unit] | term | fold | "(" either ")"
term       = quantity [ "." side ] [ "(" filter { "," filter } ")" ]
filter     = [ axis "=" ] value
fold       = ("min" | "max" | "sum") "(" sum "over" axis { "," axis } ")"
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from typing import Literal, cast

from rooflight.study.cell import OLD_NAMES, QUANTITIES, SIDES, Side
from rooflight.study.hypotheses.checks import Wrong, check
from rooflight.study.hypotheses.dimensions import OF_UNITS
from rooflight.study.hypotheses.facts import FACTS
from rooflight.study.hypotheses.reader import KEYWORDS, Reader
from rooflight.study.hypotheses.tree import (
    Arithmetic,
    Claim,
    Comparison,
    Expression,
    Filter,
    Fold,
    Logic,
    Negative,
    Sign,
    Statement,
    Term,
    Word,
)

DEEPEST = 32
"""Parentheses in parentheses."""
MOST_PARTS = 64
"""Numbers and quantities in one claim."""
_SIGNS = {"<=": "<=", ">=": ">=", "!=": "!=", "==": "=", "<": "<", ">": ">", "=": "=", "~": "~",
          "≤": "<=", "≥": ">=", "≠": "!="}  # fmt: skip
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_VALUE = re.compile(r"[^\s,()='\"]+")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_FOLDS = ("min", "max", "sum")
_Part = Statement | Expression
_STATEMENT = (Comparison, Logic)


def parse(text: str, *, number: int | None = None) -> Claim:
    """What a claim says, its units checked. `number`: which claim of a study it is, for messages."""
    parser = _Parser(Reader(text, number))
    return Claim(text, parser.claim())


class _Parser:
    def __init__(self, reader: Reader) -> None:
        self.reader = reader
        self.depth = 0
        self.parts = 0

    def claim(self) -> Statement:
        reader = self.reader
        if reader.at == len(reader.text):
            reader.fail("the claim is empty: write one such as time(resnet50) > 2 * time(resnet18)", 0)
        says = self.either()
        if not isinstance(says, _STATEMENT):
            reader.expected("a comparison (<, <=, >, >=, =, != or ~)")
        if reader.at != len(reader.text):
            reader.expected("'and', 'or' or the end")
        try:
            check(says)
        except Wrong as wrong:
            reader.fail(wrong.message, wrong.place[0])
        return says

    def either(self) -> _Part:
        return self._joined("or", self.all)

    def all(self) -> _Part:
        return self._joined("and", self.plain)

    def _joined(self, word: Literal["and", "or"], part: Callable[[], _Part]) -> _Part:
        start = self.reader.at
        parts = [part()]
        while self.reader.word_is(word):
            self._must_be_statement(parts[-1], f"before '{word}'")
            self.reader.take(word)
            parts.append(part())
            self._must_be_statement(parts[-1], f"behind '{word}'")
        if len(parts) == 1:
            return parts[0]
        return Logic(word, tuple(one for one in parts if isinstance(one, _STATEMENT)), self.reader.since(start))

    def plain(self) -> _Part:
        reader, start = self.reader, self.reader.at
        if reader.word_is("not"):
            reader.take("not")
            self._deeper()
            denied = self.plain()
            self.depth -= 1
            if not isinstance(denied, _STATEMENT):
                reader.expected("a comparison (<, <=, >, >=, =, != or ~)")
            return Logic("not", (denied,), reader.since(start))
        left = self.sum()
        sign = reader.next_is(*_SIGNS)
        if sign is None:
            return left
        if isinstance(left, _STATEMENT):
            reader.fail("a comparison cannot be compared again: join two of them with 'and'")
        reader.take(sign)
        if isinstance(left, Term) and left.dimension is None:
            right: _Part = self._word_or_fact()
        else:
            right = self.sum()
        if isinstance(right, _STATEMENT):
            reader.fail("a comparison cannot be compared again: join two of them with 'and'", right.place[0])
        within = None
        if _SIGNS[sign] == "~":
            if not reader.word_is("within"):
                reader.expected("'within' and a percentage")
            reader.take("within")
            within = reader.number()
            if within is None or not within.text.endswith("%"):
                reader.expected("a percentage, such as 5%,")
        if reader.next_is(*_SIGNS):
            reader.fail("a comparison cannot be compared again: join two of them with 'and'")
        return Comparison(cast(Sign, _SIGNS[sign]), left, right, within, reader.since(start))

    def sum(self) -> _Part:
        return self._chain(("+", "-"), self.product)

    def product(self) -> _Part:
        return self._chain(("*", "/"), self.factor)

    def _chain(self, signs: tuple[str, ...], part: Callable[[], _Part]) -> _Part:
        start = self.reader.at
        left = part()
        while (sign := self.reader.next_is(*signs)) is not None:
            first = self._must_be_expression(left, sign)
            self.reader.take(sign)
            second = self._must_be_expression(part(), sign)
            made = cast(Literal["+", "-", "*", "/"], sign)
            left = Arithmetic(made, first, second, self.reader.since(start))
        return left

    def factor(self) -> _Part:
        reader, start = self.reader, self.reader.at
        self.parts += 1
        if self.parts > MOST_PARTS:
            reader.fail(f"more than {MOST_PARTS} numbers and quantities are too many: split the claim in two")
        if reader.took("-"):
            self._deeper()
            inner = self._must_be_expression(self.factor(), "-")
            self.depth -= 1
            return Negative(inner, reader.since(start))
        if reader.took("("):
            self._deeper()
            held = self.either()
            if not reader.took(")"):
                reader.expected("')'")
            self.depth -= 1
            return held
        number = reader.number()
        if number is not None:
            return number
        name = reader.peek(_NAME)
        if name is None or name in KEYWORDS:
            reader.expected("a number or a quantity")
        return self._fold(name) if name in _FOLDS else self._term(name)

    def _fold(self, name: str) -> Fold:
        reader, start = self.reader, self.reader.at
        reader.take(name)
        self._deeper()
        if not reader.took("("):
            reader.expected("'('")
        of = self._must_be_expression(self.sum(), name)
        if not reader.word_is("over"):
            reader.expected(f"'over' and an axis, as in {name}(time over batch),")
        reader.take("over")
        axes = [self._axis()]
        while reader.took(","):
            axes.append(self._axis())
        if not reader.took(")"):
            reader.expected("')'")
        self.depth -= 1
        return Fold(cast(Literal["min", "max", "sum"], name), of, tuple(axes), reader.since(start))

    def _axis(self) -> str:
        axis = self.reader.peek(_AXIS)
        if axis is None:
            self.reader.expected("an axis")
        if axis == "layer":
            self.reader.fail("layers are no axis: a claim names one with layer=NAME")
        return self.reader.take(axis)

    def _term(self, written: str) -> Term:
        reader, start = self.reader, self.reader.at
        name, side = self._meaning(written)
        reader.take(written)
        filters: list[Filter] = []
        layer = None
        if reader.took("("):
            while True:
                found = self._filter()
                if found.axis is not None and any(found.axis == one.axis for one in filters):
                    reader.fail(f"{found.axis} is given twice", found.place[0])
                if found.axis == "layer":
                    if layer is not None:
                        reader.fail("layer is given twice", found.place[0])
                    layer = found.value
                else:
                    filters.append(found)
                if reader.took(")"):
                    break
                if not reader.took(","):
                    reader.expected("')' or ','")
        if name == "share" and layer is None:
            reader.fail("a share is that of a layer type or of a layer: write share.Conv2d or share(layer=NAME)", start)
        if name in OLD_NAMES:
            name = OLD_NAMES[name][layer is not None]
        quantity = QUANTITIES.get(name.partition(".")[0])
        dimension = None if quantity is None else OF_UNITS[quantity.unit]
        return Term(name, dimension, side, layer, tuple(filters), reader.since(start))

    def _meaning(self, written: str) -> tuple[str, Side | None]:
        """The name of a quantity or a fact, and its side."""
        reader = self.reader
        first, *more = written.split(".")
        # Which of two an old name means, the layer tells, which comes later: they have the same sides.
        now = OLD_NAMES[first][0] if first in OLD_NAMES else first
        if now not in QUANTITIES and now not in FACTS:
            near = difflib.get_close_matches(first, [*QUANTITIES, *FACTS], n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join([*QUANTITIES, *FACTS])}"
            shown = first if len(first) <= 30 else f"{first[:29]}…"
            reader.fail(f"unknown quantity {shown!r}: {hint}")
        name = first
        if first == "share" and more and more[0] not in SIDES:
            name = f"share.{more.pop(0)}"
        known: tuple[Side, ...] = tuple(QUANTITIES[now].sides if now in QUANTITIES else FACTS[now].keys)
        if len(more) > 1 or (more and more[0] not in known):
            reader.fail(f"{name} has no side {'.'.join(more)!r}: it is {' or '.join(known)}")
        return name, cast(Side, more[0]) if more else None

    def _filter(self) -> Filter:
        reader, start = self.reader, self.reader.at
        first = self._value()
        if reader.next_is("=") is None or first.startswith(("'", '"')):
            return Filter(None, _bare(first), reader.since(start))
        if not _AXIS.fullmatch(first):
            reader.fail(f"{first!r} is no axis", start)
        reader.took("=")
        value = self._value()
        reader.read_from = start
        return Filter(first, _bare(value), reader.since(start))

    def _value(self) -> str:
        found = self.reader.peek(_QUOTED) or self.reader.peek(_VALUE)
        if found is None:
            self.reader.expected("a model, or axis=value,")
        return self.reader.take(found)

    def _word_or_fact(self) -> Word | Term:
        reader, start = self.reader, self.reader.at
        name = reader.peek(_NAME)
        if name is not None and name.partition(".")[0] in FACTS:
            return self._term(name)
        found = reader.peek(_QUOTED) or reader.peek(_AXIS)
        if found is None or found in KEYWORDS:
            reader.expected("a word")
        reader.take(found)
        return Word(_bare(found), reader.since(start))

    def _deeper(self) -> None:
        self.depth += 1
        if self.depth > DEEPEST:
            self.reader.fail(f"parentheses are nested more than {DEEPEST} deep")

    def _must_be_statement(self, part: _Part, where: str) -> None:
        if not isinstance(part, _STATEMENT):
            self.reader.expected(f"a comparison (<, <=, >, >=, =, != or ~) {where}")

    def _must_be_expression(self, part: _Part, what: str) -> Expression:
        if isinstance(part, _STATEMENT):
            self.reader.fail(f"a comparison is no number: it cannot be with '{what}'", part.place[0])
        return part


def _bare(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') else value
