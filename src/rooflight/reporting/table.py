"""A table as data: columns that know how to be written, rows of raw values. One definition, every format."""

from __future__ import annotations

import csv
import html
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight.metrics import METRICS

Cell = Any
_LEAST = 12
"""Letters that are left of a name on a narrow terminal."""


@dataclass(frozen=True)
class Column:
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
    raw: str = ""
    """What the values are called where they stand as they are, with their unit; else the name serves."""
    about: str = ""
    """What a reader is told who asks what it means, where one can ask."""

    @property
    def cuttable(self) -> bool:
        """May its text be cut short where there is no room?"""
        return not self.right and not self.whole


def metric_column(name: str, *, optional: int = 0, heading: str = "", about: str = "") -> Column:
    """A column of one of the metrics: its title, what it means, how it is written and what it is called in files come
    from there."""
    metric = METRICS[name]
    word = metric.unit == "word"
    return Column(heading or metric.title, metric.text, right=not word, optional=optional, whole=word, raw=name,
                  about=about or metric.about)  # fmt: skip


@dataclass(frozen=True)
class Label:
    """The name of a row: in full for programs, as it is shown in a tree for people."""

    full: str
    shown: str

    def __str__(self) -> str:
        return self.shown


@dataclass(frozen=True)
class Table:
    """Columns, and rows of raw values."""

    title: str
    """Its heading; "" where it has none."""
    columns: tuple[Column, ...]
    """Each with its way of writing."""
    rows: tuple[tuple[Cell, ...], ...]
    """Raw values."""
    emphasised: frozenset[int] = frozenset()
    """Rows that are totals."""
    left_out: tuple[str, ...] = ()
    """Columns for which a terminal had no room."""

    def written(self) -> list[list[str]]:
        """Every cell as text."""
        return [[column.write(cell) for column, cell in zip(self.columns, row, strict=True)] for row in self.rows]


def fitting(table: Table, width: int) -> Table:
    """The table without the columns that a terminal of this width has no room for: names give way first, but to so many
    letters; then what is optional goes, then the last columns. A number is never cut."""
    columns = list(range(len(table.columns)))
    texts = [[column.name for column in table.columns], *table.written()]
    widest = [max(len(row[i]) for row in texts) for i in columns]

    def needed(*, least: bool = False) -> int:
        cut = [_LEAST if least and table.columns[i].cuttable else widest[i] for i in columns]
        return sum(min(widest[i], room) + 3 for i, room in zip(columns, cut, strict=True))

    while needed() > width and any(table.columns[i].optional for i in columns):
        columns.remove(max(columns, key=lambda i: table.columns[i].optional))
    while needed(least=True) > width and len(columns) > 1:
        columns.pop()
    return with_columns(table, columns)


def with_columns(table: Table, kept: Sequence[int]) -> Table:
    """The table with these columns, and a word about the others."""
    return replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
        left_out=(*table.left_out, *(column.name for i, column in enumerate(table.columns) if i not in kept)),
    )


def to_rich(table: Table, *, width: int) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = fitting(table, width)
    drawn = RichTable(
        title=table.title or None, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False,
        caption=f"hidden columns: {', '.join(table.left_out)}" if table.left_out else None,
        caption_justify="left",
    )  # fmt: skip
    texts = [[column.name for column in table.columns], *table.written()]
    for number, column in enumerate(table.columns):
        # Names may be cut short, numbers never.
        least = None if column.cuttable else max(len(row[number]) for row in texts)
        side: Any = "right" if column.right else "left"
        drawn.add_column(column.name, justify=side, no_wrap=True, overflow="ellipsis", min_width=least)
    for number, row in enumerate(table.written()):
        drawn.add_row(*(Text(cell) for cell in row), style="bold" if number in table.emphasised else None)
    return drawn


def to_markdown(table: Table) -> str:
    lines = [f"**{table.title}**", ""] if table.title else []
    lines.append("| " + " | ".join(column.name for column in table.columns) + " |")
    lines.append("|" + "|".join(" ---: " if column.right else " --- " for column in table.columns) + "|")
    lines.extend("| " + " | ".join(map(_markdown_cell, row)) + " |" for row in table.written())
    return "\n".join(lines) + "\n"


def _markdown_cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;").replace("_", "\\_").replace("  ", "&nbsp;&nbsp;")


def to_csv(tables: Sequence[Table]) -> str:
    """Raw values, for spreadsheets; a blank line between tables."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    for number, table in enumerate(tables):
        if number:
            writer.writerow([])
        writer.writerow([column.raw or column.name for column in table.columns])
        for row in table.rows:
            writer.writerow([_raw(cell) for cell in row])
    return buffer.getvalue()


def _raw(cell: Cell) -> Cell:
    if isinstance(cell, tuple):
        return "x".join(map(str, cell))
    text = cell.full if isinstance(cell, Label) else cell
    # A cell that a spreadsheet would run as a formula is only text.
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def to_html(table: Table) -> str:
    """Styles stand in the cells: a notebook keeps no style sheets."""
    head = "".join(
        f"<th style='{_style(column)};border-bottom:1px solid'>{html.escape(column.name)}</th>"
        for column in table.columns
    )
    body = []
    for number, row in enumerate(table.written()):
        weight = ";font-weight:bold;border-top:1px solid" if number in table.emphasised else ""
        cells = "".join(
            f"<td style='{_style(column)}{weight}'>{html.escape(cell)}</td>"
            for column, cell in zip(table.columns, row, strict=True)
        )
        body.append(f"<tr>{cells}</tr>")
    caption = "<caption style='text-align:left;font-weight:bold;padding-top:8px'>"
    title = f"{caption}{html.escape(table.title)}</caption>" if table.title else ""
    table_style = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:4px 0"
    return f"<table style='{table_style}'>{title}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table>"


def _style(column: Column) -> str:
    side = "right" if column.right else "left"
    return f"text-align:{side};padding:1px 10px;white-space:pre"
