"""A table as data: columns that know how to be written, rows of raw values, cells that are more than a number. One
definition, every form."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, TypeVar

from rooflight.formatting import printable
from rooflight.ops.kernel_names import short_name

Cell = Any


@dataclass(frozen=True)
class Worded:
    """Its words are only read, in every form, whatever somebody has called a module, a kernel or a file."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, str):
                object.__setattr__(self, field.name, printable(value))
            elif isinstance(value, tuple) and any(isinstance(text, str) for text in value):
                object.__setattr__(self, field.name, tuple(map(printable, value)))


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


def figure(value: float | None, write: Callable[[Any], str]) -> Label:
    """A cell of a table whose lines have different units."""
    return Label(value, write(value))


_GENERIC = re.compile(
    r"^(?:void )?(?:\w+::|\(anonymous namespace\)::)*(\w*(?:elementwise|reduce|tensor_apply)_kernel)<"
)
_WORK = re.compile(r"\b(\w*[Ff]unctor\w*|\w+_kernel_cuda|\w+_kernel_impl|\w+Ops|launch_\w+)\b")
_WRAPPERS = ("BinaryFunctor", "UnaryFunctor", "AUnaryFunctor", "BUnaryFunctor")
_TELLING = re.compile(r"ImplicitGemm[A-Za-z]*Convolution|Conv[23]d(?:Wgrad|Dgrad|Fprop)|ReduceSplitK|GemmUniversal")
_SHAPE = re.compile(r"GemmShapeILi(\d+)ELi(\d+)ELi(\d+)E")


@lru_cache(maxsize=8192)  # a step launches the same few kernels thousands of times
def kernel_name(name: str, width: int = 48) -> Label:
    """A kernel's name for a line of a table; one of torch's generic kernels is named by the work it was made for."""
    if (generic := _GENERIC.match(name)) is not None:
        work = next((word for word in _WORK.findall(name[generic.end() :]) if word not in _WRAPPERS), None)
        if work is not None:
            return Label(name, cut(f"{work} in {generic[1]}", width))
    if name.startswith("_ZN") and (words := dict.fromkeys(_TELLING.findall(name))):
        # The profiler left it mangled: its telling words are still there.
        shape = _SHAPE.search(name)
        return Label(name, cut(" ".join([*words, "x".join(shape.groups()) if shape else ""]).strip(), width))
    return Label(name, short_name(name.removeprefix("void "), width))


def cut(text: str, width: int) -> str:
    """The beginning of a name that is too long for its place."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


RowT = TypeVar("RowT")
Cells = list[tuple[Column, Callable[[RowT], Any]]]
"""Columns, each with what it shows of a row."""


def table_of(
    columns: Sequence[tuple[Column, Callable[[RowT], Any]]],
    rows: Sequence[RowT],
    *,
    title: str = "",
    has_total: bool = False,
    leave_out: Callable[[Column, Sequence[Any]], bool] | None = None,
) -> Table:
    """A table whose columns say what they show of a row. `has_total`: the last row is one. `leave_out`: which columns
    say nothing, by what stands in them; the first says what a row is, and stays."""
    cells = [[value(row) for row in rows] for _, value in columns]
    places = [
        place
        for place, (column, _) in enumerate(columns)
        if not place or leave_out is None or not leave_out(column, cells[place])
    ]
    return Table(
        title,
        tuple(columns[place][0] for place in places),
        tuple(zip(*(cells[place] for place in places), strict=True)) if rows else (),
        frozenset({len(rows) - 1}) if has_total else frozenset(),
    )


def lines_table(heading: str, lines: Sequence[str], title: str = "") -> Table:
    """Lines of text under one heading."""
    return Table(title, (Column(heading, right=False),), tuple((line,) for line in lines))


def says_nothing(column: Column, cells: Sequence[Any]) -> bool:
    """Neither a number nor a word in any row."""
    return all(cell is None or cell == "" for cell in cells)


def is_unknown(column: Column, cells: Sequence[Any]) -> bool:
    """A column of numbers that are known of no row; words are there or not."""
    return column.right and all(cell is None for cell in cells)
