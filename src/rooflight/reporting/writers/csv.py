"""A document as CSV: raw values, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from typing import Any

from rooflight.formatting import printable
from rooflight.reporting.document import Document
from rooflight.reporting.table import Label, Table


def document_csv(document: Document) -> str:
    """The result as one table where it is one; else all tables, each below its title."""
    if document.rows is not None:
        return table_csv(document.rows())
    return "\n".join(
        _lines([[f"{section.heading}: {title}" if title else section.heading]]) + table_csv(table)
        for section in document.sections
        for title, table in section.titled_tables
    )


def table_csv(table: Table) -> str:
    return _lines(
        [[column.raw or column.name for column in table.columns], *([_raw(cell) for cell in row] for row in table.rows)]
    )


def _lines(rows: Iterable[Iterable[Any]]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


def _raw(cell: Any) -> Any:
    if isinstance(cell, tuple):
        return "x".join(map(str, cell))
    text = cell.full if isinstance(cell, Label) else cell
    text = printable(text) if isinstance(text, str) else text
    # A cell that a spreadsheet would run as a formula is only text.
    return f"'{text}" if isinstance(text, str) and text[:1] in ("=", "+", "-", "@") else text
