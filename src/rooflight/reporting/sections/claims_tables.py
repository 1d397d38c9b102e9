"""A checked table of claims: the page, its tables, and the same as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import msgspec

from rooflight import formatting
from rooflight.analysis.claims.claim import WORDS, CheckedTable, JudgedClaim
from rooflight.analysis.finding import Finding, FoundValue
from rooflight.formatting import quotient, seconds
from rooflight.reporting.columns import column
from rooflight.reporting.document import Document, table_sections
from rooflight.reporting.sections import ledger_documents
from rooflight.reporting.table import Cells, Column, Label, Table, table_of

CONVENTIONS = (
    "A row is right when the correct value rounds to the digits it states. A wrong value is compared with what each "
    "convention and each mistake that rooflight knows would give here; all that match are named. 1 multiply-add = 2 "
    "FLOP; compulsory bytes; parameters once."
)
_SHORT = {
    "right": "right",
    "convention": "other convention",
    "wrong": "wrong",
    "unknown": "not checked",
    "unreadable": "not readable",
}


def plain(value: FoundValue | None) -> int | float | str | list[int] | None:
    """For programs: whole numbers whole, shapes as lists."""
    if isinstance(value, Fraction):
        return int(value) if value.denominator == 1 else float(value)
    return list(value) if isinstance(value, tuple) else value


def _number(value: int | float) -> str:
    return f"{value:,}" if isinstance(value, int) or value.is_integer() else f"{value:,.6g}"


_WRITTEN: dict[str, Callable[[Any], str]] = {
    "byte": lambda value: f"{_number(value)} B",
    "second": seconds,
    "flop/second": lambda value: f"{formatting.count(float(value))}FLOP/s",
    "byte/second": lambda value: f"{formatting.count(float(value))}B/s",
    "flop/byte": lambda value: f"{value:.4g} FLOP/B",
    "part": lambda value: f"{value:.4%}",
    "1/second": lambda value: f"{value:,.4g}/s",
}


def written(row: JudgedClaim) -> str:
    """What is right, for people."""
    if row.answer is None:
        return "–"
    value = plain(row.answer.value)
    if isinstance(value, list):
        return formatting.shape(tuple(value))
    if isinstance(value, str):
        return value
    unit = row.claim.named.quantity.unit if row.claim.named is not None else ""
    return _WRITTEN.get(unit, _number)(value)


def _codes(findings: Iterable[Finding]) -> str:
    return ", ".join(dict.fromkeys(finding.code for finding in findings))


def claims_table(checked: CheckedTable) -> Table:
    """One line a row: stated, right, verdict and the mistake by its short name."""
    columns: Cells[JudgedClaim] = [
        (Column("row", formatting.exact), lambda row: row.claim.row),
        (column("layer", optional=1), lambda row: row.claim.layer or row.claim.device or "total"),
        (Column("quantity", right=False), lambda row: row.claim.quantity),
        (Column("stated", whole=True), lambda row: row.claim.value),
        (Column("right", whole=True), _right),
        (Column("verdict", right=False, whole=True), lambda row: Label(WORDS[row.verdict], _SHORT[row.verdict])),
        (Column("stated/right", quotient, optional=3), lambda row: row.off_by if row.verdict != "right" else None),
        (Column("because", right=False, optional=2), lambda row: _codes(row.because)),
    ]
    wrong = frozenset(number for number, row in enumerate(checked.rows) if row.verdict == "wrong")
    return replace(table_of(columns, checked.rows), emphasised=wrong)


def _right(row: JudgedClaim) -> Label:
    return Label("" if row.answer is None else str(plain(row.answer.value)), written(row))


_FULL: dict[str, Callable[[JudgedClaim], object]] = {
    "row": lambda row: row.claim.row,
    "model": lambda row: row.claim.model,
    "layer": lambda row: row.claim.layer,
    "quantity": lambda row: row.claim.quantity,
    "stated": lambda row: row.claim.value,
    "right": lambda row: "" if row.answer is None else _cell(row.answer.value),
    "verdict": lambda row: WORDS[row.verdict],
    "stated/right": lambda row: row.off_by,
    "mistake": lambda row: _codes(row.because),
    "what": lambda row: "; or ".join(finding.text for finding in row.because) or row.reason,
    "how": lambda row: "" if row.answer is None else row.answer.how,
    "from": lambda row: "" if row.answer is None else row.answer.origin,
    "needs": lambda row: row.needs,
    "note": lambda row: row.claim.note,
}


def full_table(checked: CheckedTable) -> Table:
    """For spreadsheets: every word."""

    def remark(key: str) -> Callable[[JudgedClaim], object]:
        return lambda row: row.claim.remarks.get(key, "")

    remarks = dict.fromkeys(key for row in checked.rows for key in row.claim.remarks)
    columns: Cells[JudgedClaim] = [(Column(name), value) for name, value in _FULL.items()]
    return table_of([*columns, *((Column(key), remark(key)) for key in remarks)], checked.rows)


def _cell(value: FoundValue) -> object:
    return value if isinstance(value, tuple) else plain(value)


def _explained(row: JudgedClaim) -> str:
    """What a reader must know of one row that is wrong."""
    assert row.answer is not None
    right = f"{written(row)} = {row.answer.how} ({row.answer.origin})"
    line = f"{row.claim.where}: {row.claim.value} is wrong; right is {right}"
    if not row.because:
        by = "" if row.off_by is None else f"; off by {_times(row.off_by)}"
        return f"{line}. No known mistake gives it{by}{_more(row)}"
    if row.ambiguous:
        said = "; or ".join(finding.text for finding in row.because)
        return f"{line}. Each of these gives it here, and nothing in the row tells which it was: {said}"
    said = ". ".join(finding.text[0].upper() + finding.text[1:] for finding in row.because)
    return f"{line}. {said}{_more(row)}"


def _more(row: JudgedClaim) -> str:
    return f" ({row.reason})" if row.reason else ""


def _times(value: float) -> str:
    return f"{value:.3g}x" if value >= 1 or value <= 0 else f"1/{1 / value:.3g}"


def _gathered(rows: Iterable[JudgedClaim], word: Callable[[JudgedClaim], str]) -> list[str]:
    """One line for all rows of which the same is said."""
    groups: dict[str, list[int]] = {}
    for row in rows:
        groups.setdefault(word(row), []).append(row.claim.row)
    return [f"{_rows(numbers)}: {said}" for said, numbers in groups.items()]


def _rows(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:12])) + (", ..." if len(numbers) > 12 else "")
    return f"{'row' if len(numbers) == 1 else 'rows'} {shown}"


def _other_convention(row: JudgedClaim) -> str:
    if row.ambiguous:
        meant, *slips = (finding.text for finding in row.because)
        return f"right under another convention, or wrong; the row does not tell: {meant}; or {'; or '.join(slips)}"
    return f"right under another convention: {'; or '.join(finding.text for finding in row.because)}"


def _not_checked(row: JudgedClaim) -> str:
    needs = f"; needs: {row.needs}" if row.needs else ""
    return f"cannot be checked: {row.reason}{needs}"


def claims_document(checked: CheckedTable) -> Document:
    by = {verdict: [row for row in checked.rows if row.verdict == verdict] for verdict in WORDS}
    notes = [_explained(row) for row in by["wrong"]]
    notes += [f"over several rows: {finding.text}" for finding in checked.findings]
    notes += _gathered((row for row in by["right"] if row.reason), lambda row: f"right, {row.reason}")
    notes += _gathered(by["convention"], _other_convention)
    notes += _gathered(by["unknown"], _not_checked)
    notes += _gathered(by["unreadable"], lambda row: f"cannot be read: {row.reason}")
    if unread := checked.unread_columns:
        notes.append(f"not read: the {'column' if len(unread) == 1 else 'columns'} {', '.join(unread)}")
    return Document(
        title=checked.grade,
        lines=tuple(_held_against(checked)),
        sections=table_sections([claims_table(checked)]),
        notes=tuple(notes),
        small_print=(*dict.fromkeys(map(ledger_documents.provenance, checked.ledgers)), CONVENTIONS),
        rows=lambda: full_table(checked),
        data=lambda: claims_data(checked),
    )


def _held_against(checked: CheckedTable) -> Iterable[str]:
    first, *others = map(ledger_documents.headline, checked.ledgers)
    yield f"{checked.file or 'the table'} against {first}"
    yield from (f"and {headline}" for headline in others)
    for ledger in checked.traced:
        yield f"and {ledger_documents.headline(ledger)}, traced for rows that name it"


def claims_data(checked: CheckedTable) -> dict[str, Any]:
    """Raw numbers; unknown is null."""
    return {
        "file": checked.file,
        "header": msgspec.to_builtins(checked.ledger.header),
        "others": [msgspec.to_builtins(ledger.header) for ledger in (*checked.ledgers[1:], *checked.traced)],
        "strict": checked.strict,
        "grade": {
            "text": checked.grade,
            "passes": checked.passes,
            "rows": len(checked.rows),
            **{verdict: checked.counts[verdict] for verdict in WORDS},
        },
        "unread_columns": checked.unread_columns,
        "rows": [_row(row) for row in checked.rows],
        "findings": [
            {"code": finding.code, "text": finding.text, "rows": list(finding.rows)} for finding in checked.findings
        ],
    }


def _row(row: JudgedClaim) -> dict[str, Any]:
    claim, answer = row.claim, row.answer
    return {
        "row": claim.row,
        "layer": claim.layer,
        "quantity": claim.quantity,
        "name": claim.named.quantity.name if claim.named is not None else None,
        "stated": claim.value,
        "batch": claim.batch,
        "step": claim.step,
        **{name: getattr(claim, name) or None for name in ("precision", "device", "model", "kind", "note")},
        "remarks": dict(claim.remarks),
        "verdict": row.verdict,
        "right": None if answer is None else plain(answer.value),
        "how": None if answer is None else answer.how,
        "origin": None if answer is None else answer.origin,
        "follows_from": [] if answer is None else list(answer.rows),
        "off_by": row.off_by,
        "because": [
            {"code": finding.code, "text": finding.text, "value": plain(finding.value)} for finding in row.because
        ],
        "ambiguous": row.ambiguous,
        "reason": row.reason or None,
        "needs": row.needs or None,
    }
