"""A document as JSON: the result's raw values, and for a report its sections; unknown is null."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rooflight.formatting import STEERING
from rooflight.reporting.document import Document, Section
from rooflight.reporting.table import Label, Table

_STEERING = "".join(chr(sign) for sign in STEERING if sign >= 127 and not 0xD800 <= sign < 0xE000)


def document_json(document: Document, *, report: bool) -> bytes:
    """`report`: with all that a reader of the page sees, beside the data."""
    data = document.data() if document.data is not None else {}
    encoded = msgspec.json.encode({**data, "report": _report(document)} if report else data)
    return encoded if encoded.isascii() else escaped(encoded.decode()).encode()


def escaped(encoded: str, more: str = "") -> str:
    """JSON without what it leaves as it is and a terminal obeys, nor any of `more`: that stands in strings only, and
    means the same there when it is escaped."""
    return re.sub(f"[{_STEERING}{more}]", lambda match: f"\\u{ord(match[0]):04x}", encoded)


def _report(document: Document) -> dict[str, Any]:
    return {
        "title": document.title,
        "subtitle": document.subtitle,
        "headline": document.facts,
        "lines": document.lines,
        "sections": {section.name: _section(section) for section in document.sections},
        "notes": document.notes,
        "conventions": document.small_print,
    }


def _section(section: Section) -> dict[str, Any]:
    return {
        "title": section.heading,
        "missing": section.missing or None,
        "lines": section.lines,
        "tables": [
            {"title": table.title, "rows": _rows(table), "note": table.note or None} for table in section.all_tables
        ],
        "conventions": section.small_print,
        "commands": section.commands,
    }


def _rows(table: Table) -> list[dict[str, Any]]:
    names = [column.raw or column.name for column in table.columns]
    return [dict(zip(names, map(_raw, row), strict=True)) for row in table.rows]


def _raw(cell: Any) -> Any:
    if isinstance(cell, Label):
        return cell.full
    if isinstance(cell, (tuple, list)):
        return [_raw(part) for part in cell]
    return cell if cell is None or isinstance(cell, (str, int, float, bool)) else str(cell)
