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
    def say(*lines: str, style: str | None = None) -> None:
        for line in lines:
            console.print(line, markup=False, highlight=False, style=style)

    say(document.title, style="bold")
    facts = (f"{fact.label}: {fact.value}{f' ({fact.detail})' if fact.detail else ''}" for fact in document.facts)
    say(*filter(None, (document.subtitle, *facts, *document.lines)))
    for section in document.sections:
        say(*filter(None, [section.title]), style="bold")
        missing = f"not here: {section.missing}" if section.missing else ""
        say(*filter(None, (missing, *section.lines)))
        for table in section.all_tables:
            console.print(drawn(table, console.width))
            say(*filter(None, [table.note]))
        say(*(f"$ {line}" for line in section.commands))
        say(*section.small_print, style="dim")
    say(*document.notes)
    say(*document.small_print, style="dim")


def drawn(table: Table, width: int) -> Any:
    """The table for rich, as wide as the terminal."""
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    table = narrowed(table, width)
    rich_table = RichTable(
        title=Text(table.title) if table.title else None,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption_justify="left",
        caption=Text(f"hidden columns: {_listed(table.left_out)}") if table.left_out else None,
    )
    texts = [[column.name for column in table.columns], *table.written()]
    for number, column in enumerate(table.columns):
        least = None if column.cuttable else max(len(row[number]) for row in texts)
        side: Any = "right" if column.right else "left"
        rich_table.add_column(
            Text(column.name), justify=side, no_wrap=not column.wraps, overflow="ellipsis", min_width=least
        )
    for number, row in enumerate(texts[1:]):
        rich_table.add_row(*(Text(cell) for cell in row), style="bold" if number in table.emphasised else None)
    return rich_table


def _listed(names: Sequence[str]) -> str:
    """`time, predicted` is one name, and reads so."""
    return ("; " if any("," in name for name in names) else ", ").join(names)


def narrowed(table: Table, width: int) -> Table:
    """The table for so many letters: names are cut short before columns are left out; numbers stay whole."""
    columns, written = table.columns, table.written()
    full = [max(map(len, texts)) for texts in zip([column.name for column in columns], *written, strict=True)]
    if sum(full) + 3 * len(full) <= width:
        return table
    least = _LEAST if width < 100 else _LEAST_WIDE
    widths = [min(wide, least) if column.cuttable else wide for wide, column in zip(full, columns, strict=True)]
    shown = _shown(columns, widths, width)
    spare = width - sum(widths[i] + 3 for i in shown)
    for i in reversed(shown):
        less = min(max(-spare, 0), widths[i] - _LAST) if columns[i].cuttable and widths[i] > _LAST else 0
        widths[i] -= less
        spare += less
    for i in shown:
        more = min(max(spare, 0), full[i] - widths[i])
        widths[i] += more
        spare -= more
    return replace(
        table,
        columns=tuple(replace(columns[i], write=str) if columns[i].cuttable else columns[i] for i in shown),
        rows=tuple(
            tuple(
                _cut(texts[i], widths[i]) if columns[i].cuttable and not columns[i].wraps else cells[i] for i in shown
            )
            for cells, texts in zip(table.rows, written, strict=True)
        ),
        left_out=(*table.left_out, *(column.name for i, column in enumerate(columns) if i not in shown)),
    )


def _shown(columns: Sequence[Column], widest: Sequence[int], width: int) -> list[int]:
    """The columns for which there is room: what is optional goes first, then the last; names give way a little more."""
    shown = list(range(len(columns)))

    def needed(*, least: bool = False) -> int:
        return sum(min(widest[i], _LAST if least and columns[i].cuttable else widest[i]) + 3 for i in shown)

    while needed() > width and any(columns[i].optional for i in shown):
        shown.remove(max(shown, key=lambda i: columns[i].optional))
    while needed(least=True) > width and len(shown) > 1:
        shown.pop()
    return shown


def _cut(text: str, width: int) -> str:
    """Of a path the end tells more than the beginning."""
    path = text.count(".") > 1 and " " not in text and len(text) > width
    return f"…{text[1 - width :]}" if path else cut(text, width)
