"""The file of a table and its header: which column says what. A table has a claim a row (`layer`, `quantity`, `value`),
or a column for every quantity, and is then read as one claim a cell."""

from __future__ import annotations

import csv
import difflib
import io
import re

from rooflight.analysis.claims.claim import FILE_ROW
from rooflight.analysis.claims.quantity_names import UnknownQuantity, named
from rooflight.errors import BadFile

REQUIRED = ("layer", "quantity", "value")
OPTIONAL = ("unit", "batch", "step", "precision", "device", "model", "kind", "note")
_ALIASES = {
    "phase": "step", "module": "layer", "layer name": "layer", "layer (type)": "layer", "metric": "quantity",
    "dtype": "precision", "gpu": "device", "batch size": "batch", "bs": "batch", "architecture": "model",
    "network": "model", "net": "model", "model name": "model",
}  # fmt: skip
_NOTHING = frozenset(
    {"", "-", "–", "—", "/", "n/a", "n.a.", "na", "tbd", "tba", "?", "none", "null", "n/d", "...", "…"}
)
_COMMENT = re.compile(r"\s*(?:#(?!\s*(?:params?|parameters)\b)|sep=)", re.IGNORECASE)
"""Lines above a header that are none: a remark, or what tells Excel the delimiter."""


def decoded(content: bytes, where: str) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadFile("not-text", f"{where} is UTF-16: save it as CSV in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BadFile(
            "not-text", f"{where}: line {line} is not UTF-8 (byte {error.start}): save the table as CSV in UTF-8"
        ) from None
    if "\0" in text:
        raise BadFile("not-text", f"{where} holds binary data, no text: save the table as CSV in UTF-8")
    return text


Record = tuple[int, list[str]]
CellsOfRow = tuple[int, dict[str, str]]
"""A row by its columns."""


def records_of(text: str, where: str) -> tuple[str, list[Record]]:
    """The delimiter that the header has (comma, semicolon or tab), and rows with their numbers."""
    first = next((line for line in text.splitlines() if line.strip() and not _COMMENT.match(line)), "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    records: list[Record] = []
    try:
        for number, record in enumerate(reader, 1):
            is_above = not records and _COMMENT.match(record[0] if record else "") is not None
            if records or (any(map(str.strip, record)) and not is_above):
                records.append((number, record))
    except csv.Error as error:
        raise BadFile(
            "not-csv", f"{where}: line {reader.line_num} is no CSV ({error}): quote cells that hold quotes"
        ) from None
    return delimiter, records


def header_of(record: Record, where: str) -> list[str]:
    names = [" ".join(cell.lower().split()) for cell in record[1]]
    names = [_ALIASES.get(name, name) for name in names]
    for name in names:
        if name and names.count(name) > 1:
            raise BadFile(
                "duplicate-value",
                f"{where}: row {record[0]}: the header has the column {name!r} twice: leave one of them out",
            )
    is_long = "quantity" in names or "value" in names
    if not is_long and _quantity_columns(names) and ("layer" in names or "model" in names or "device" in names):
        return names
    for needed in REQUIRED:
        if needed not in names:
            raise BadFile(
                "missing-column", f"{where}: row {record[0]}: no column {needed!r}: {_missing(needed, names, is_long)}"
            )
    return names


def _missing(needed: str, names: list[str], is_long: bool) -> str:
    near = difflib.get_close_matches(needed, names, n=1)
    listed = ", ".join(filter(None, names)) or "empty"
    if not near and needed != "layer" and not is_long:
        return f"no column of {listed} is a quantity that can be checked. Name one, as GFLOPs or params (M)"
    return f"{f'is it {near[0]!r}?' if near else f'the header is {listed}'} A table needs {', '.join(REQUIRED)}"


# Wide tables: a column for every quantity, read as one claim a cell.


def _quantity_columns(columns: list[str]) -> list[str]:
    """The columns that are quantities themselves."""
    return [column for column in columns if column and column not in (*REQUIRED, *OPTIONAL) and _is_quantity(column)]


def _is_quantity(column: str) -> bool:
    try:
        named(column)
    except UnknownQuantity:
        return False
    return True


def unfolded(rows: list[CellsOfRow], written: dict[str, str]) -> list[CellsOfRow]:
    """A row for every cell that states something, counted on from 2; `written`: the columns as the file has them."""
    columns = _quantity_columns(list(written))
    claims: list[CellsOfRow] = []
    for number, cells in rows:
        shared = {name: cell for name, cell in cells.items() if name not in columns}
        for column in columns:
            if (cell := cells.get(column, "")).lower() not in _NOTHING:
                row = {"layer": "", **shared, "quantity": written[column], "value": cell, FILE_ROW: str(number)}
                claims.append((len(claims) + 2, row))
    return claims
