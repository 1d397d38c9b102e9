"""The text of a hypothesis, put into Python's words in one pass: quantities with filters, numbers with units and words
become names, `=` becomes `==`, `~` and `within` the chain `is ... in`, `over` an argument.

The pass says what is wrong with the text, and where. `docs/hypotheses.md` has the grammar.
"""

from __future__ import annotations

import ast
import difflib
import re
from fractions import Fraction
from typing import NamedTuple, NoReturn, cast

from rooflight.errors import BadInput
from rooflight.study.cell import FACTS, OLD_NAMES, QUANTITIES, SIDES, Side
from rooflight.study.hypotheses.hypothesis import (
    FOLDS,
    AxisFilter,
    FactWord,
    FoldAxes,
    Hypothesis,
    Leaf,
    NumberLiteral,
    QuantityTerm,
)
from rooflight.units import UNITS, UnitError, parse_unit

A_COMPARISON = "a comparison (<, <=, >, >=, =, != or ~)"
LONGEST = 1000
"""Letters of a claim."""
DEEPEST = 32
"""Parentheses in parentheses."""
MOST_PARTS = 64
"""Numbers and quantities in one claim."""
_DIGITS = 40
_EXPONENT = 30
_LARGEST = 10**30
_PYTHON = {"<=": "<=", ">=": ">=", "!=": "!=", "==": "==", "<": "<", ">": ">", "=": "==", "~": "is",
           "≤": "<=", "≥": ">=", "≠": "!="}  # fmt: skip
"""Signs, longer ones first, and what stands for them in Python."""
_STATEMENT_PARTS = frozenset({*_PYTHON.values(), "and", "or"})
_KEYWORDS = frozenset({"and", "or", "not", "within", "over"})
_SPACE = re.compile(r"[ \t\r\n]*")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"[0-9][0-9_]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_UNIT = re.compile(r"%|/s(?![A-Za-z0-9_.(])|[A-Za-zµμ]+(?:/(?:s|B)(?![A-Za-z0-9_.(]))?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z0-9_]+)*")
_SENTENCE = re.compile(r"\s*[A-Za-z]+\s+[A-Za-z]")
"""Two words that nothing joins: no formula begins so."""
_AXIS = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_QUOTED = re.compile(r"\"[^\"]*\"|'[^']*'")
_VALUE = re.compile(rf"{_QUOTED.pattern}|[^\s,()='\"]+")


class _Piece(NamedTuple):
    """A piece of the text, and what stands for it in Python."""

    python: str
    start: int
    end: int


class Scanner:
    """One pass over a text: its pieces in Python's words. Operands and operators take turns, and every parenthesis is
    closed, so that Python's parser finds nothing more to refuse."""

    def __init__(self, text: str, number: int | None) -> None:
        self.text = text
        self._prefix = "" if number is None else f"claim {number}: "
        self._at = 0
        self._last = 0
        """Where the last piece began: messages name it."""
        self._pieces: list[_Piece] = []
        self._leaves: dict[str, Leaf] = {}
        self._open: list[str] = []
        """Parentheses, folds and prefixes that are not closed yet."""
        self._about: int | None = None
        """How deep a `~` stands whose `within` is still to come."""
        if len(text) > LONGEST:
            raise BadInput(
                "text-too-long",
                f"{self._prefix}{len(text):,} letters are too many, {LONGEST:,} the most: split it in two",
            )
        odd = next((i for i, letter in enumerate(text) if not letter.isprintable() and letter not in "\t\r\n"), None)
        if odd is not None:
            self.fail(f"the letter {text[odd]!r} has no place in a claim", odd)
        self._skip()

    def hypothesis(self) -> Hypothesis:
        """What the text says, whatever its nodes are."""
        self._scan()
        starts: dict[int, int] = {}
        ends: dict[int, int] = {}
        source = ""
        for piece in self._pieces:
            starts[len(source)] = piece.start
            source += piece.python
            ends[len(source)] = piece.end
            source += " "
        return Hypothesis(self.text, ast.parse(source.strip(), mode="eval").body, self._leaves, starts, ends)

    def _scan(self) -> None:
        if self._at == len(self.text):
            self.fail("the claim is empty: write one such as time(resnet50) > 2 * time(resnet18)", 0)
        wants_operand = True
        while self._at < len(self.text):
            wants_operand = self._operand() if wants_operand else self._operator()
        if wants_operand:
            self.expected("a number or a quantity")
        if self._about is not None or self._open:
            self._expect_more()

    # --- what is wrong, and where ---

    def fail(self, message: str, at: int | None = None) -> NoReturn:
        where = self._at if at is None else at
        shown = " ".join("".join(letter if letter.isprintable() else " " for letter in self.text).split())
        shown = shown if len(shown) <= 100 else f"{shown[:99]}…"
        raise BadInput("bad-expression", f"{self._prefix}{message}, at character {where + 1} of `{shown}`")

    def expected(self, what: str) -> NoReturn:
        """`expected ')' after 'batch=64', found '>'`."""
        before = self.text[self._last : self._at].strip()
        after = f" after {_short(before)}" if before else ""
        rest = self.text[self._at :].split(maxsplit=1)
        self.fail(f"expected {what}{after}, found {_short(rest[0]) if rest else 'the end'}")

    def expected_behind(self, end: int, what: str) -> NoReturn:
        """The same of what should come behind a part that was read."""
        self._last = next(piece.start for piece in self._pieces if piece.end == end)
        self._at = end
        self._skip()
        self.expected(what)

    # --- operands and operators ---

    def _operand(self) -> bool:
        """Is one still wanted behind what was read?"""
        before = self._pieces[-1].python if self._pieces else "("
        word = self._peek(_WORD)
        prefix = self._next("-", "(")
        if prefix is None and word == "not" and before in ("(", "and", "or", "not"):
            prefix = word
        if prefix is not None:
            self._opens(prefix)
            return True
        if before in ("==", "!=") and self._compares_a_fact():
            self._add_word_or_fact()
        elif self._peek(_NUMBER) is not None:
            self._add_leaf(*self._number())
        elif word in FOLDS:
            self._opens(word)
            if not self._next("("):
                self.expected("'('")
            self._take("(", "(")
            return True
        elif word is not None and word not in _KEYWORDS:
            self._add_leaf(*self._term())
        else:
            self.expected("a number or a quantity")
        self._completed()
        return False

    def _operator(self) -> bool:
        """Is an operand wanted behind what was read?"""
        word = self._peek(_WORD)
        top = self._open[-1] if self._open else None
        if (sign := self._next(*_PYTHON)) is not None:
            self._about_is_complete()
            self._about = len(self._open) if sign == "~" else self._about
            self._take(sign, _PYTHON[sign])
            return True
        if (sign := self._next("+", "-", "*", "/")) is not None and self._is_calculable():
            self._take(sign, sign)
            return True
        if word in ("and", "or"):
            self._about_is_complete()
            self._take(word, word)
            return True
        if word == "within" and self._about == len(self._open):
            self._about = None
            self._take(word, "in")
            self._percentage()
        elif word == "over" and top in FOLDS:
            self._take(word, ",")
            self._add_axes()
            self._closed()
        elif self._next(")") and top == "(":
            self._closed()
        else:
            self._expect_more()
        return False

    def _expect_more(self) -> NoReturn:
        self._about_is_complete()
        top = self._open[-1] if self._open else None
        if top in FOLDS:
            self.expected(f"'over' and an axis, as in {top}(time over batch),")
        if top is not None:
            self.expected("')'")
        since = next((piece.python for piece in reversed(self._pieces) if piece.python in _STATEMENT_PARTS), "")
        self.expected("'and', 'or' or the end" if since in _PYTHON.values() else A_COMPARISON)

    def _is_calculable(self) -> bool:
        """May the last operand stand beside another one? A word and a percentage behind `within` may not."""
        *_, before, last = (_Piece("", 0, 0), *self._pieces)
        return before.python != "in" and not isinstance(self._leaves.get(last.python), FactWord)

    def _about_is_complete(self) -> None:
        if self._about == len(self._open):
            self.expected("'within' and a percentage")

    def _opens(self, piece: str) -> None:
        if len(self._open) == DEEPEST:
            self.fail(f"parentheses are nested more than {DEEPEST} deep")
        self._open.append(piece)
        self._take(piece, piece)

    def _closed(self) -> None:
        if not self._next(")"):
            self.expected("')'")
        self._about_is_complete()
        self._take(")", ")")
        self._open.pop()
        self._completed()

    def _completed(self) -> None:
        while self._open and self._open[-1] in ("-", "not"):
            self._open.pop()

    # --- leaves ---

    def _add_leaf(self, leaf: Leaf, start: int) -> None:
        if len(self._leaves) == MOST_PARTS:
            self.fail(f"more than {MOST_PARTS} numbers and quantities are too many: split the claim in two", start)
        name = f"_{len(self._leaves)}"
        self._leaves[name] = leaf
        self._pieces.append(_Piece(name, start, self._end()))
        self._last = start

    def _number(self) -> tuple[NumberLiteral, int]:
        """A number and its unit."""
        start, digits = self._at, self._peek(_NUMBER) or ""
        if len(digits) > _DIGITS:
            self.fail(f"a number of {len(digits)} letters is too long, {_DIGITS} are the most")
        mantissa, _, exponent = digits.replace("_", "").lower().partition("e")
        if exponent and abs(int(exponent)) > _EXPONENT:
            self.fail(f"the exponent {exponent} is too large, {_EXPONENT} is the most")
        self._take(digits)
        exact = Fraction(mantissa) * Fraction(10) ** int(exponent or 0)
        dimension = None
        word = self._peek(_UNIT)
        if word is not None and word not in _KEYWORDS:
            # 8 FLOP/B is one unit; in 8 FLOP/bytes a quantity follows.
            spelled = next((unit for unit in (word, word.partition("/")[0]) if unit in UNITS), word)
            try:
                unit = parse_unit(spelled)
            except UnitError as error:
                self.fail(str(error))
            self._take(spelled)
            exact, dimension = exact * unit.factor, unit.dimension
        if exact > _LARGEST:
            self.fail("the number is too large: 1e30 is the most", start)
        value = int(exact) if exact.denominator == 1 else float(exact)
        return NumberLiteral(self.text[start : self._end()], value, dimension), start

    def _percentage(self) -> None:
        if self._peek(_NUMBER) is None:
            self.expected("a percentage, such as 5%,")
        number, start = self._number()
        self._last = start
        if not number.text.endswith("%"):
            self.expected("a percentage, such as 5%,")
        self._add_leaf(number, start)

    def _add_axes(self) -> None:
        start, axes = self._at, [self._axis()]
        while self._next(","):
            self._take(",")
            axes.append(self._axis())
        self._add_leaf(FoldAxes(tuple(axes)), start)

    def _axis(self) -> str:
        axis = self._peek(_AXIS)
        if axis is None:
            self.expected("an axis")
        if axis == "layer":
            self.fail("layers are no axis: a claim names one with layer=NAME")
        return self._take(axis)

    def _term(self) -> tuple[QuantityTerm, int]:
        start, spelled = self._at, self._peek(_NAME) or ""
        name, side = self._meaning(spelled)
        self._take(spelled)
        given: list[AxisFilter] = []
        separator = self._next("(")
        while separator not in (None, ")"):
            self._take(separator)
            at, chosen = self._at, self._filter()
            if chosen.axis is not None and any(chosen.axis == other.axis for other in given):
                self.fail(f"{chosen.axis} is given twice", at)
            given.append(chosen)
            if (separator := self._next(")", ",")) is None:
                self.expected("')' or ','")
        if separator is not None:
            self._take(separator)
        layer = next((chosen.value for chosen in given if chosen.axis == "layer"), None)
        if name == "share" and layer is None:
            self.fail("a share is that of a layer type or of a layer: write share.Conv2d or share(layer=NAME)", start)
        if name in OLD_NAMES:
            name = OLD_NAMES[name][layer is not None]
        return QuantityTerm(name, side, layer, tuple(chosen for chosen in given if chosen.axis != "layer")), start

    def _meaning(self, spelled: str) -> tuple[str, Side | None]:
        """The name of a quantity or a fact, and its side."""
        first, *more = spelled.split(".")
        # Which of two an old name means, the layer tells, which comes later: they have the same sides.
        now = OLD_NAMES[first][0] if first in OLD_NAMES else first
        if now not in QUANTITIES and now not in FACTS:
            near = difflib.get_close_matches(first, [*QUANTITIES, *FACTS], n=1)
            hint = f"did you mean {near[0]}?" if near else f"one of {', '.join([*QUANTITIES, *FACTS])}"
            if not near and _SENTENCE.match(self.text):
                hint = "a claim is a comparison such as `time(on=a100) < time(on=v100)`; a sentence goes into `says`"
            self.fail(f"unknown quantity {_short(first)}: {hint}")
        name = first
        if first == "share" and more and more[0] not in SIDES:
            name = f"share.{more.pop(0)}"
        sides = QuantityTerm(now).sides
        if len(more) > 1 or (more and more[0] not in sides):
            self.fail(f"{name} has no side {'.'.join(more)!r}: it is {' or '.join(sides)}")
        return name, cast(Side, more[0]) if more else None

    def _filter(self) -> AxisFilter:
        start, axis, value = self._at, None, self._value()
        if self._next("=") and value[0] not in "'\"":
            if not _AXIS.fullmatch(value):
                self.fail(f"{value!r} is no axis", start)
            self._take("=")
            axis, value = value, self._value()
        self._last = start
        return AxisFilter(axis, _bare(value))

    def _value(self) -> str:
        value = self._peek(_VALUE)
        if value is None:
            self.expected("a model, or axis=value,")
        return self._take(value)

    def _compares_a_fact(self) -> bool:
        """Is what stands before the last sign a fact?"""
        before = next((piece.python for piece in reversed(self._pieces[:-1]) if piece.python != ")"), "")
        leaf = self._leaves.get(before)
        return isinstance(leaf, QuantityTerm) and leaf.is_fact

    def _add_word_or_fact(self) -> None:
        name = self._peek(_NAME)
        if name is not None and name.partition(".")[0] in FACTS:
            self._add_leaf(*self._term())
            return
        start, word = self._at, self._peek(_QUOTED) or self._peek(_AXIS)
        if word is None or word in _KEYWORDS:
            self.expected("a word")
        self._take(word)
        self._add_leaf(FactWord(_bare(word)), start)

    # --- letters ---

    def _peek(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self.text, self._at)
        return match[0] if match else None

    def _next(self, *pieces: str) -> str | None:
        """Which of these comes next; the first that fits."""
        return next((piece for piece in pieces if self.text.startswith(piece, self._at)), None)

    def _take(self, piece: str, python: str | None = None) -> str:
        self._last = self._at
        self._at += len(piece)
        if python is not None:
            self._pieces.append(_Piece(python, self._last, self._at))
        self._skip()
        return piece

    def _skip(self) -> None:
        self._at += len(self._peek(_SPACE) or "")

    def _end(self) -> int:
        """Behind the last letter that is no space."""
        return len(self.text[: self._at].rstrip())


def _bare(value: str) -> str:
    return value[1:-1] if value[0] in "'\"" else value


def _short(text: str) -> str:
    return repr(text if len(text) <= 30 else f"{text[:29]}…")
