"""Reads a table of claims: CSV with a header, strictly, as data. A row that cannot be read says for which cell.

A cell states a number with its unit and the digits it was given, a shape, or a word. `9.5 MB` is anything that rounds
to it: 9.45 to 9.55 MB. A whole number is exact, unless it ends in three zeros or more: `14080000` was rounded, and says
14,075,000 to 14,085,000. `>290` is a bound.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from rooflight.analysis.claims.claim import FILE_ROW, Amount, Claim, Stated, StepName
from rooflight.analysis.claims.quantities import QUANTITIES, KindName
from rooflight.analysis.claims.quantity_names import NamedQuantity, UnknownQuantity, named
from rooflight.analysis.claims.table_cells import UnreadableCell, amount_of, cell_parts, plain_word, shape_of, style_of
from rooflight.analysis.claims.table_columns import (
    OPTIONAL,
    REQUIRED,
    CellsOfRow,
    decoded,
    header_of,
    records_of,
    unfolded,
)
from rooflight.errors import BadFile
from rooflight.files import read_bytes
from rooflight.profiles.numbers import NumberStyle, PrintedNumber
from rooflight.units import EXAMPLES, Unit, table_unit

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
_NEVER_NEGATIVE = ("flop", "mac", "count", "second", "flop/second", "byte/second", "1/second", "flop/byte", "part")
_WHOLE = ("flop", "mac", "byte", "count", "counter")


def read_claims(path: str | Path) -> list[Claim]:
    """The rows of a table of claims."""
    return parse_claims(read_bytes(Path(path), what="table of claims"), str(path))


def parse_claims(content: bytes, where: str) -> list[Claim]:
    """The same from the bytes of a file; `where` they are from, for messages."""
    delimiter, records = records_of(decoded(content, where), where)
    if not records:
        raise BadFile("empty-table", f"{where} is empty: a table has a header (layer, quantity, value, ...) and rows")
    header = header_of(records[0], where)
    rows = [_cells(number, record, header) for number, record in records[1:] if any(map(str.strip, record))]
    if not rows:
        raise BadFile("empty-table", f"{where} has a header and no rows: write one claim a row")
    if len(rows) > MOST_ROWS:
        raise BadFile(
            "too-many-rows", f"{where} has {len(rows):,} rows: a table of claims has at most {MOST_ROWS:,}, split it"
        )
    repeated = _repeated(rows)
    if "value" not in header:
        rows = unfolded(rows, dict(zip(header, map(str.strip, records[0][1]), strict=False)))
        if not rows:
            raise BadFile(
                "no-claims", f"{where} states nothing: every cell under its quantities is empty, fill in what you claim"
            )
    named_rows = [(number, row, *_named(row, repeated, number)) for number, row in rows]
    cells = [cell for number, row, name, _ in named_rows for cell in _cell(number, row, name)]
    style = style_of(cells, {number: _place(number, row) for number, row in rows}, delimiter, where)
    return _in_percent([_claim(*named_row, style) for named_row in named_rows])


def _in_percent(claims: list[Claim]) -> list[Claim]:
    """Shares without a unit are in percent where one of the same column is above 1: `0.8` below `99.2` is 0.8%."""
    plain = [
        claim
        for claim in claims
        if isinstance(claim.stated, Amount) and claim.stated.unit.base == "part" and not claim.stated.unit.text
    ]
    columns = {claim.quantity for claim in plain if isinstance(claim.stated, Amount) and claim.stated.value > 1}
    rows = {claim.row for claim in plain if claim.quantity in columns}
    return [
        replace(claim, stated=claim.stated.times(Fraction(1, 100)))
        if claim.row in rows and isinstance(claim.stated, Amount)
        else claim
        for claim in claims
    ]


def _cells(number: int, record: list[str], header: list[str]) -> CellsOfRow:
    """By their columns; what is behind the last one is kept under `_EXTRA`."""
    extra = {_EXTRA: str(len(record))} if any(map(str.strip, record[len(header) :])) else {}
    padded = [*record, *[""] * len(header)]
    return number, {name: plain_word(cell) for name, cell in zip(header, padded, strict=False) if name} | extra


# Rows.


def _repeated(rows: list[CellsOfRow]) -> dict[int, int]:
    """Rows that are another one once more, which would be summed twice: by their numbers, which they are."""
    seen: dict[tuple[tuple[str, str], ...], int] = {}
    return {
        number: first
        for number, row in rows
        if (first := seen.setdefault(tuple(sorted(row.items())), number)) != number
    }


_ON = re.compile(r"(?P<name>.+?)\s+on\s+(?:the\s+|an?\s+)?(?P<device>[^/]+)", re.IGNORECASE)


def _named(row: dict[str, str], repeated: dict[int, int], number: int = 0) -> tuple[NamedQuantity | None, str]:
    """The quantity of a row; `time on V100` tells its device too."""
    if (first := repeated.get(int(row.get(FILE_ROW, number)))) is not None:
        return None, f"it is row {first} of the file once more, and is counted once: leave one of them out"
    if not row["quantity"]:
        return None, ""
    try:
        name = _by_value(named(row["quantity"]), row["value"])
    except UnknownQuantity as error:
        match = _ON.fullmatch(row["quantity"]) if not row.get("device") else None
        if match is None:
            return None, str(error)
        try:
            name = _by_value(replace(named(match["name"]), written=row["quantity"]), row["value"])
        except UnknownQuantity:
            return None, str(error)
        row["device"] = match["device"]
    if name.precision and not row.get("precision"):
        row["precision"] = name.precision
    return _by_kind(name, _KINDS.get(row.get("kind", "").lower()) or name.kind), ""


_OF_A_RUN = {"flops": "executed_flops", "bytes": "dram_bytes"}
"""What a formula gives, and what a run gives in its place."""


def _by_kind(name: NamedQuantity, kind: KindName | None) -> NamedQuantity:
    """Measured FLOPs are those that were executed, and measured bytes those of the memory."""
    other = {"measured": _OF_A_RUN, "estimated": {run: by for by, run in _OF_A_RUN.items()}}.get(kind or "", {})
    return replace(name, quantity=QUANTITIES[other[name.quantity.name]]) if name.quantity.name in other else name


def _by_value(name: NamedQuantity, value: str) -> NamedQuantity:
    """`output` is a shape, a number of elements or of bytes, and `weights` are counted or weighed, as the value is."""
    word, unit = name.written.lower(), cell_parts(value)[1]
    if word == "input size" and _is_picture(value):
        return replace(name, quantity=QUANTITIES["input_shape"])
    weighed = bool(unit) and table_unit(unit, "byte") is not None and table_unit(unit, "count") is None
    if word == "weights" and weighed:
        return replace(name, quantity=QUANTITIES["param_bytes"])
    if word == "output" and weighed:
        return replace(name, quantity=QUANTITIES["output_bytes"])
    if word == "output" and value.replace(",", "").isdecimal() and not re.search(r",(?!\d{3}(?:,|$))", value):
        return replace(name, quantity=QUANTITIES["output_elements"])
    return name


def _is_picture(value: str) -> bool:
    """`224` or `3x224x224`, and no bytes."""
    return bool(re.fullmatch(r"[\[(]?\s*[0-9]{1,4}(?:\s*[x×*,]\s*[0-9]{1,4})*\s*[\])]?", value.strip()))


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
    if amount.value < 0 and base in _NEVER_NEGATIVE:
        raise UnreadableCell(f"{text} is below zero, and no {name.quantity.name} is")
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
