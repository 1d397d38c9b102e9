"""Reads a table of claims: CSV with a header, strictly, as data. A row that cannot be read says for which cell.

A cell states a number with its unit and the digits it was given, a shape, or a word. `9.5 MB` is anything that rounds
to it: 9.45 to 9.55 MB. A whole number is exact, unless it ends in three zeros or more: `14080000` was rounded, and says
14,075,000 to 14,085,000. `>290` is a bound.
"""

from __future__ import annotations

import csv
import difflib
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from rooflight.analysis.claims.claim import Claim, Stated, StepName
from rooflight.analysis.claims.quantities import QUANTITIES, KindName, NamedQuantity, UnknownQuantity, named
from rooflight.analysis.claims.table_cells import UnreadableCell, amount_of, cell_parts, shape_of, style_of
from rooflight.errors import BadFile
from rooflight.files import read_bytes
from rooflight.profiles.numbers import NumberStyle, PrintedNumber
from rooflight.units import EXAMPLES, Unit, table_unit

REQUIRED = ("layer", "quantity", "value")
OPTIONAL = ("unit", "batch", "step", "precision", "device", "model", "kind", "note")
_ALIASES = {
    "phase": "step", "module": "layer", "layer name": "layer", "metric": "quantity", "dtype": "precision",
    "gpu": "device", "batch size": "batch",
}  # fmt: skip
_STEPS: dict[str, StepName] = {
    "forward": "forward", "fwd": "forward", "backward": "backward", "bwd": "backward", "optimizer": "optimizer",
    "train": "training", "training": "training", "training step": "training", "step": "training",
    "infer": "inference", "inference": "inference", "eval": "inference",
}  # fmt: skip
_PRECISIONS = {
    "single": "fp32", "single precision": "fp32", "float32": "fp32", "float": "fp32", "fp32": "fp32",
    "double": "fp64", "double precision": "fp64", "float64": "fp64", "fp64": "fp64", "half": "fp16", "float16": "fp16",
    "fp16": "fp16", "bf16": "bf16", "bfloat16": "bf16", "tf32": "tf32", "fp8": "fp8", "int8": "int8", "int4": "int4",
    "int1": "int1", "fp4": "fp4",
}  # fmt: skip
_MEASURED = ("measured", "measurement", "run", "actual", "counted", "profiled", "recorded", "timed")
_ESTIMATED = ("estimated", "estimate", "theoretical", "theory", "formula", "predicted", "prediction", "computed",
              "calculated", "model", "analytical")  # fmt: skip
_KINDS: dict[str, KindName] = {**dict.fromkeys(_MEASURED, "measured"), **dict.fromkeys(_ESTIMATED, "estimated")}
T = TypeVar("T")
_EXTRA = "\0"
"""No column's name: how many cells a row has that has too many."""
MOST_ROWS = 20_000
FILE_ROW = "row of the file"
"""The remark that keeps where a cell stood: claims are numbered as if they had been written one below the other."""
_NOTHING = frozenset({"", "-", "–", "—", "/"})
_WHOLE = ("flop", "mac", "byte", "count", "counter")


def read_claims(path: str | Path) -> list[Claim]:
    """The rows of a table of claims."""
    return parse_claims(read_bytes(Path(path), what="table of claims"), str(path))


def parse_claims(content: bytes, where: str) -> list[Claim]:
    """The same from the bytes of a file; `where` they are from, for messages."""
    delimiter, records = _records(_decoded(content, where), where)
    if not records:
        raise BadFile(f"{where} is empty: a table has a header (layer, quantity, value, ...) and rows")
    header = _header(records[0], where)
    rows = [_cells(number, record, header) for number, record in records[1:] if any(map(str.strip, record))]
    if not rows:
        raise BadFile(f"{where} has a header and no rows: write one claim a row")
    if len(rows) > MOST_ROWS:
        raise BadFile(f"{where} has {len(rows):,} rows: a table of claims has at most {MOST_ROWS:,}, split it")
    _check_once(rows, where)
    if "value" not in header:
        rows = _unfolded(rows, _quantity_columns(header))
        if not rows:
            raise BadFile(f"{where} states nothing: every cell under its quantities is empty, fill in what you claim")
    named_rows = [(number, row, *_named(row)) for number, row in rows]
    cells = [cell for number, row, name, _ in named_rows for cell in _cell(number, row, name)]
    style = style_of(cells, {number: _place(number, row) for number, row in rows}, delimiter, where)
    return [_claim(*named_row, style) for named_row in named_rows]


def _decoded(content: bytes, where: str) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise BadFile(f"{where} is UTF-16: save it as CSV in UTF-8")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise BadFile(
            f"{where}: line {line} is not UTF-8 (byte {error.start}): save the table as CSV in UTF-8"
        ) from None
    if "\0" in text:
        raise BadFile(f"{where} holds binary data, no text: save the table as CSV in UTF-8")
    return text


Record = tuple[int, list[str]]
_Cells = tuple[int, dict[str, str]]
"""A row by its columns."""


def _records(text: str, where: str) -> tuple[str, list[Record]]:
    """The delimiter that the header has (comma, semicolon or tab), and rows with their numbers."""
    first = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    records: list[Record] = []
    try:
        for number, record in enumerate(reader, 1):
            if records or any(map(str.strip, record)):
                records.append((number, record))
    except csv.Error as error:
        raise BadFile(f"{where}: line {reader.line_num} is no CSV ({error}): quote cells that hold quotes") from None
    return delimiter, records


def _header(record: Record, where: str) -> list[str]:
    names = [" ".join(cell.lower().split()) for cell in record[1]]
    names = [_ALIASES.get(name, name) for name in names]
    for name in names:
        if name and names.count(name) > 1:
            raise BadFile(f"{where}: row {record[0]}: the header has the column {name!r} twice: leave one of them out")
    is_long = "layer" not in names or "quantity" in names or "value" in names
    if not is_long and _quantity_columns(names):
        return names
    for needed in REQUIRED:
        if needed not in names:
            near = difflib.get_close_matches(needed, names, n=1)
            hint = f"is it {near[0]!r}?" if near else f"the header is {', '.join(filter(None, names)) or 'empty'}"
            raise BadFile(f"{where}: row {record[0]}: no column {needed!r}: {hint} A table needs {', '.join(REQUIRED)}")
    return names


def _cells(number: int, record: list[str], header: list[str]) -> _Cells:
    """By their columns; what is behind the last one is kept under `_EXTRA`."""
    extra = {_EXTRA: str(len(record))} if any(map(str.strip, record[len(header) :])) else {}
    padded = [*record, *[""] * len(header)]
    return number, {name: cell.strip() for name, cell in zip(header, padded, strict=False) if name} | extra


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


def _unfolded(rows: list[_Cells], columns: list[str]) -> list[_Cells]:
    """A row for every cell that states something, counted on from 2."""
    unfolded: list[_Cells] = []
    for number, cells in rows:
        shared = {name: cell for name, cell in cells.items() if name not in columns}
        for column in columns:
            if (cell := cells.get(column, "")) not in _NOTHING:
                row = {**shared, "quantity": column, "value": cell, FILE_ROW: str(number)}
                unfolded.append((len(unfolded) + 2, row))
    return unfolded


# Rows.


def _check_once(rows: list[_Cells], where: str) -> None:
    """A row that was pasted twice would be summed twice."""
    seen: dict[tuple[tuple[str, str], ...], int] = {}
    for number, row in rows:
        key = tuple(sorted(row.items()))
        if key in seen:
            raise BadFile(f"{where}: row {number} is row {seen[key]} once more: leave one of them out")
        seen[key] = number


def _named(row: dict[str, str]) -> tuple[NamedQuantity | None, str]:
    if not row["quantity"]:
        return None, ""
    try:
        name = _by_value(named(row["quantity"]), row["value"])
        return _by_kind(name, _KINDS.get(row.get("kind", "").lower()) or name.kind), ""
    except UnknownQuantity as error:
        return None, str(error)


_OF_A_RUN = {"flops": "executed_flops", "bytes": "dram_bytes"}
"""What a formula gives, and what a run gives in its place."""


def _by_kind(name: NamedQuantity, kind: KindName | None) -> NamedQuantity:
    """Measured FLOPs are those that were executed, and measured bytes those of the memory."""
    other = {"measured": _OF_A_RUN, "estimated": {run: by for by, run in _OF_A_RUN.items()}}.get(kind or "", {})
    return replace(name, quantity=QUANTITIES[other[name.quantity.name]]) if name.quantity.name in other else name


def _by_value(name: NamedQuantity, value: str) -> NamedQuantity:
    """`output` is a shape, a number of elements or of bytes, and `weights` are counted or weighed, as the value is."""
    word, unit = name.written.lower(), cell_parts(value)[1]
    weighed = bool(unit) and table_unit(unit, "byte") is not None and table_unit(unit, "count") is None
    if word == "weights" and weighed:
        return replace(name, quantity=QUANTITIES["param_bytes"])
    if word == "output" and weighed:
        return replace(name, quantity=QUANTITIES["output_bytes"])
    if word == "output" and value.replace(",", "").isdecimal() and not re.search(r",(?!\d{3}(?:,|$))", value):
        return replace(name, quantity=QUANTITIES["output_elements"])
    return name


def _cell(number: int, row: dict[str, str], name: NamedQuantity | None) -> Iterator[PrintedNumber]:
    """The number of a row, for whoever decides how the file writes them."""
    if name is not None and name.quantity.unit not in ("shape", "word"):
        digits, behind = cell_parts(row["value"])
        unit = table_unit(row.get("unit", "") or behind or name.unit, name.quantity.unit)
        is_whole = name.quantity.unit in _WHOLE and (unit is None or not unit.power)
        yield PrintedNumber(digits, number, is_whole)


def _place(number: int, row: dict[str, str]) -> str:
    """Where a value stands in the file; in a wide table under the name of its quantity."""
    if FILE_ROW in row:
        return f"row {row[FILE_ROW]}, column {row['quantity']}"
    return f"row {number}, column value"


def _claim(number: int, row: dict[str, str], name: NamedQuantity | None, trouble: str, style: NumberStyle) -> Claim:
    """The row; one with a cell that says nothing usable says so, and the others are none the worse for it."""
    plain = Claim(
        row=number,
        layer=row["layer"],
        quantity=row["quantity"],
        value=" ".join(filter(None, (row["value"], row.get("unit", "")))),
        named=name,
        stated=None,
        trouble=trouble,
        device=row.get("device", ""),
        model=row.get("model", ""),
        said_kind=_KINDS.get(row.get("kind", "").lower()),
        note=row.get("note", ""),
        remarks=_remarks(row),
    )
    try:
        if _EXTRA in row:
            raise UnreadableCell(
                f"it has {row[_EXTRA]} cells, more than there are columns: put numbers with commas in quotes"
            )
        for needed in ("quantity", "value"):
            if not row[needed]:
                raise UnreadableCell(f"column {needed}: the cell is empty")
        return replace(
            plain,
            stated=None if name is None else _stated(row, name, style),
            batch=_batch(row.get("batch", "")),
            step=_one_of(row.get("step", ""), _STEPS, "step"),
            precision=_one_of(row.get("precision", ""), _PRECISIONS, "precision") or "",
            said_kind=_kind(row.get("kind", "")),
        )
    except UnreadableCell as error:
        return replace(plain, unreadable=True, trouble=str(error))


def _remarks(row: dict[str, str]) -> dict[str, str]:
    """Columns that nobody asked for; a `kind` may be a column of somebody's own, of layers for example."""
    own = {"kind": row["kind"]} if row.get("kind", "").lower() not in (*_KINDS, "") else {}
    return {key: cell for key, cell in row.items() if key not in (*REQUIRED, *OPTIONAL, _EXTRA) and cell} | own


def _kind(text: str) -> KindName | None:
    """Measured or estimated; what is neither is a remark, unless it was meant to be one of them."""
    word = text.lower()
    if word not in _KINDS and (near := difflib.get_close_matches(word, _KINDS, n=1, cutoff=0.8)):
        raise UnreadableCell(f"column kind: {text!r} is no kind: did you mean {near[0]}? Write measured or estimated")
    return _KINDS.get(word)


def _stated(row: dict[str, str], name: NamedQuantity, style: NumberStyle) -> Stated:
    text, base = row["value"], name.quantity.unit
    if base == "word" or (base == "counter" and text.lower() in ("n/a", "na")):
        return text
    unit = None if base == "shape" else _unit(row, name, base)
    try:
        if unit is None:
            return shape_of(text)
        amount = amount_of(text, unit, style)
    except UnreadableCell as error:
        place = f"row {row[FILE_ROW]} of the file, column {row['quantity']}" if FILE_ROW in row else "column value"
        raise UnreadableCell(f"{place}: {error}") from None
    if base == "part" and not unit.text and amount.value > 1:
        # A share above 1 was meant in percent.
        return amount.times(Fraction(1, 100))
    return amount


def _unit(row: dict[str, str], name: NamedQuantity, base: str) -> Unit:
    """Behind the number or in a column of its own; where both are given they must be one."""
    where = f"column {'unit' if row.get('unit') else 'value'}"
    units = []
    for text in filter(None, (cell_parts(row["value"])[1], row.get("unit", ""))):
        unit = table_unit(text, base)
        if unit is None:
            raise UnreadableCell(
                f"{where}: {name.quantity.name} has no unit {text!r}: it is counted in {EXAMPLES.get(base, base)}"
            )
        units.append(unit)
    if len({(unit.factor, unit.base) for unit in units}) == 2:
        first, second = units
        raise UnreadableCell(
            f"{where}: the value has the unit {first.text!r}, and the column unit says {second.text!r}"
        )
    unit = units[0] if units else table_unit(name.unit, base)
    assert unit is not None
    return unit


def _batch(text: str) -> int | None:
    if not text:
        return None
    digits = text.replace(",", "")
    if not digits.isascii() or not digits.isdecimal() or not 0 < len(digits) < 10 or not int(digits):
        raise UnreadableCell(f"column batch: {text!r} is no batch: write a whole number above 0")
    return int(digits)


def _one_of(text: str, words: dict[str, T], column: str) -> T | None:
    """The cell by its meaning; a word that has none is a mistake of the table."""
    if not text:
        return None
    meaning = words.get(" ".join(text.lower().split()))
    if meaning is None:
        meanings = ", ".join(dict.fromkeys(map(str, words.values())))
        raise UnreadableCell(f"column {column}: {text!r} is no {column}: write one of {meanings}")
    return meaning
