"""A document in a terminal: as wide as that is, numbers never cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from rooflight.reporting.document import Document
from rooflight.reporting.table import Column, Table, cut

_LEAST, _LEAST_WIDE = 22, 32
"""Letters that are left of a name, on a narrow terminal and on one of 100 columns or more."""
_LAST = 12
"""Letters that are left of it before the last columns go."""


def print_document(document: Document, console: Any) -> None:
    def say(text: str, style: str | None = None) -> None:
        console.print(text, markup=False, highlight=False, style=style)

    say(document.title, "bold")
    facts = (f"{fact.label}: {fact.value}{f' ({fact.detail})' if fact.detail else ''}" for fact in document.facts)
    for line in (document.subtitle, *facts, *document.lines):
        if line:
            say(line)
    for section in document.sections:
        if section.title:
            say(section.title, "bold")
        for line in (f"not here: {section.missing}" if section.missing else "", *section.lines):
            if line:
                say(line)
        for table in section.all_tables:
            console.print(drawn(table, console.width))
            if table.note:
                say(table.note)
        for line in section.commands:
            say(f"$ {line}")
        for line in section.small_print:
            say(line, "dim")
    for line in document.notes:
        say(line)
    for line in document.small_print:
        say(line, "dim")


def drawn(table: Table, width: int) -> Any:
    """The table for rich, as wide as the terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = narrowed(table, width)
    made = RichTable(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption_justify="left",
        caption=Text(f"hidden columns: {', '.join(table.left_out)}") if table.left_out else None,
    )
    texts = [[column.name for column in table.columns], *table.written()]
    for number, column in enumerate(table.columns):
        least = None if column.cuttable else max(len(row[number]) for row in texts)
        side: Any = "right" if column.right else "left"
        made.add_column(Text(column.name), justify=side, no_wrap=not column.wraps, overflow="ellipsis", min_width=least)
    for number, row in enumerate(texts[1:]):
        made.add_row(*(Text(cell) for cell in row), style="bold" if number in table.emphasised else None)
    return made


def narrowed(table: Table, width: int) -> Table:
    """The table for so many letters: names are cut short before columns are left out; numbers stay whole."""
    written = table.written()
    texts = [[column.name for column in table.columns], *written]
    full = [max(len(row[i]) for row in texts) for i in range(len(table.columns))]
    if sum(full) + 3 * len(full) <= width:
        return table
    least = _LEAST if width < 100 else _LEAST_WIDE
    cut_columns = tuple(replace(column, write=str) if column.cuttable else column for column in table.columns)
    kept = _kept(
        table.columns,
        [min(wide, least) if column.cuttable else wide for wide, column in zip(full, table.columns, strict=True)],
        width,
    )
    widths = [min(full[i], least) if cut_columns[i].cuttable else full[i] for i in range(len(full))]
    spare = width - sum(widths[i] + 3 for i in kept)
    for i in reversed(kept):
        less = min(max(-spare, 0), widths[i] - _LAST) if cut_columns[i].cuttable and widths[i] > _LAST else 0
        widths[i] -= less
        spare += less
    for i in kept:
        more = min(max(spare, 0), full[i] - widths[i])
        widths[i] += more
        spare -= more
    return _with_columns(_with_names(table, cut_columns, widths, written), kept)


def _kept(columns: Sequence[Column], widest: Sequence[int], width: int) -> list[int]:
    """The columns for which there is room: what is optional goes first, then the last; names give way a little more."""
    kept = list(range(len(columns)))

    def needed(*, least: bool = False) -> int:
        return sum(min(widest[i], _LAST if least and columns[i].cuttable else widest[i]) + 3 for i in kept)

    while needed() > width and any(columns[i].optional for i in kept):
        kept.remove(max(kept, key=lambda i: columns[i].optional))
    while needed(least=True) > width and len(kept) > 1:
        kept.pop()
    return kept


def _with_columns(table: Table, kept: Sequence[int]) -> Table:
    """The table with these columns, and a word about the others."""
    return replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
        left_out=(*table.left_out, *(column.name for i, column in enumerate(table.columns) if i not in kept)),
    )


def _cut(text: str, width: int) -> str:
    """Of a path the end tells more than the beginning."""
    path = text.count(".") > 1 and " " not in text and len(text) > width
    return f"…{text[1 - width :]}" if path else cut(text, width)


def _with_names(table: Table, columns: tuple[Column, ...], widths: list[int], written: list[list[str]]) -> Table:
    rows = tuple(
        tuple(
            _cut(shown, width) if column.cuttable and not column.wraps else cell
            for cell, shown, column, width in zip(row, texts, columns, widths, strict=True)
        )
        for row, texts in zip(table.rows, written, strict=True)
    )
    return replace(table, columns=columns, rows=rows)
