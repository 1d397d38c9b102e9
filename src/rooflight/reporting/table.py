"""A table as data: columns that know how to be written, rows of raw values. One definition, every form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from rooflight.units import printable

Cell = Any


@dataclass(frozen=True)
class Worded:
    """Its words are only read, in every form, whatever somebody has called a module, a kernel or a file."""

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, str):
                object.__setattr__(self, one.name, printable(value))
            elif isinstance(value, tuple) and any(isinstance(text, str) for text in value):
                object.__setattr__(self, one.name, tuple(map(printable, value)))


@dataclass(frozen=True)
class Column(Worded):
    """What a column is called, and how its values are written."""

    name: str
    """Its heading."""
    write: Callable[[Any], str] = str
    """How a value is written."""
    right: bool = True
    """Is it set to the right, as numbers are?"""
    optional: int = 0
    """Columns with the highest number go first when a terminal is too narrow; 0 always stays."""
    whole: bool = False
    """Its text is never cut short: a number's is not, either."""
    wraps: bool = False
    """Its text goes on in the next line of a terminal instead of being cut short."""
    raw: str = ""
    """What the values are called where they stand as they are, with their unit; else the name serves."""
    about: str = ""
    """What a reader is told who asks what it means, where one can ask."""

    def text(self, cell: Any) -> str:
        """A value as people read it, with the minus that numbers have in print."""
        text = printable(self.write(cell))
        return f"−{text[1:]}" if self.right and text[:1] == "-" else text

    @property
    def cuttable(self) -> bool:
        """May its text be cut short where there is no room?"""
        return not self.right and not self.whole


@dataclass(frozen=True)
class Label:
    """A cell that people see otherwise than programs: the name of a row in a tree, a figure with a word."""

    full: Any
    shown: str

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True)
class Table(Worded):
    """Columns, and rows of raw values."""

    title: str
    """Its heading; "" where it has none."""
    columns: tuple[Column, ...]
    """Each with its way of writing."""
    rows: tuple[tuple[Cell, ...], ...]
    """Raw values."""
    emphasised: frozenset[int] = frozenset()
    """Rows that are totals."""
    note: str = ""
    """A sentence below it."""
    telling: int | None = None
    """So many of its first rows are enough on paper; files for programs have all."""
    more: str = ""
    """How to get the rows that are not here."""
    left_out: tuple[str, ...] = ()
    """Columns for which a terminal had no room."""

    def titled(self, title: str) -> Table:
        """The same under another heading."""
        return replace(self, title=title)

    def written(self) -> list[list[str]]:
        """Every cell as text."""
        return [[column.text(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]
