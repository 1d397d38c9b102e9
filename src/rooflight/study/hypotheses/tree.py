"""A claim as a tree. Where a part stands in the text is no part of what it means: two trees are equal without it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from rooflight.study.cell import Side
from rooflight.study.hypotheses.dimensions import Dimension

Place = tuple[int, int]
"""First character and the one behind the last."""
NOWHERE: Place = (0, 0)


@dataclass(frozen=True)
class Filter:
    """`batch=64`; with no axis the value may be of any."""

    axis: str | None
    value: str
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"{quoted(self.axis)}={quoted(self.value)}" if self.axis is not None else quoted(self.value)


@dataclass(frozen=True)
class Number:
    text: str
    """As it was written, with its unit."""
    value: int | float
    dimension: Dimension | None
    """`None`: no unit was given, so it takes the one it is compared with."""
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Term:
    """A quantity of the cells that its filters choose; a fact is the same in words."""

    name: str
    """`time`, `share.Conv2d`, `bound`."""
    dimension: Dimension | None
    """`None`: it is a fact."""
    side: Side | None = None
    layer: str | None = None
    filters: tuple[Filter, ...] = ()
    place: Place = field(default=NOWHERE, compare=False)

    @property
    def label(self) -> str:
        """What it is, without where: `conv2/flops`."""
        return self.name if self.layer is None else f"{self.layer}/{self.name}"

    def __str__(self) -> str:
        layer = [] if self.layer is None else [f"layer={quoted(self.layer)}"]
        inside = [*map(str, self.filters), *layer]
        name = self.name if self.side is None else f"{self.name}.{self.side}"
        return f"{name}({', '.join(inside)})" if inside else name


@dataclass(frozen=True)
class Word:
    """What a fact is compared with."""

    text: str
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"'{self.text}'" if '"' in self.text else f'"{self.text}"'


@dataclass(frozen=True)
class Negative:
    of: Expression
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"-{_held(self.of)}"


@dataclass(frozen=True)
class Arithmetic:
    sign: Literal["+", "-", "*", "/"]
    left: Expression
    right: Expression
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"{_held(self.left)} {self.sign} {_held(self.right)}"


@dataclass(frozen=True)
class Fold:
    """The least, the greatest or the sum along axes."""

    how: Literal["min", "max", "sum"]
    of: Expression
    axes: tuple[str, ...]
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"{self.how}({self.of} over {', '.join(self.axes)})"


Expression = Number | Term | Word | Negative | Arithmetic | Fold
Sign = Literal["<", "<=", ">", ">=", "=", "!=", "~"]


@dataclass(frozen=True)
class Comparison:
    sign: Sign
    left: Expression
    right: Expression
    within: Number | None = None
    """How far off, as a part of the right side, `~` allows."""
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}" + ("" if self.within is None else f" within {self.within}")


@dataclass(frozen=True)
class Logic:
    word: Literal["and", "or", "not"]
    parts: tuple[Statement, ...]
    place: Place = field(default=NOWHERE, compare=False)

    def __str__(self) -> str:
        if self.word == "not":
            return f"not ({self.parts[0]})"
        return f" {self.word} ".join(f"({one})" for one in self.parts)


Statement = Comparison | Logic


@dataclass(frozen=True)
class Claim:
    """A claim that could be read: its text as given, and what it says."""

    text: str
    says: Statement

    def __str__(self) -> str:
        return str(self.says)


def _held(part: Expression) -> str:
    """In parentheses where it is made of parts."""
    return f"({part})" if isinstance(part, Arithmetic | Negative) else str(part)


def quoted(value: str | None) -> str:
    """A value as it is, or in quotes where it could be taken for something else."""
    text = value or ""
    if text and not any(letter in " \t\n,()='\"" for letter in text):
        return text
    return f"'{text}'" if '"' in text else f'"{text}"'


def comparisons(statement: Statement) -> Iterator[Comparison]:
    if isinstance(statement, Comparison):
        yield statement
        return
    for part in statement.parts:
        yield from comparisons(part)


def leaves(node: Statement | Expression) -> Iterator[Term | Fold]:
    """What has values of its own at a place of the grid: terms, and folds as wholes."""
    match node:
        case Term() | Fold():
            yield node
        case Negative():
            yield from leaves(node.of)
        case Arithmetic() | Comparison():
            yield from leaves(node.left)
            yield from leaves(node.right)
        case Logic():
            for part in node.parts:
                yield from leaves(part)
        case _:
            return


def terms(node: Statement | Expression) -> Iterator[Term]:
    """All of them, those in folds too."""
    for leaf in leaves(node):
        if isinstance(leaf, Term):
            yield leaf
        else:
            yield from terms(leaf.of)
