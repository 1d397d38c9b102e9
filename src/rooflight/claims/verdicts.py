"""Verdicts as they are made: a row that is wrong and why, one that nothing can be said of."""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

from rooflight.claims.amounts import Amount
from rooflight.claims.book import Book
from rooflight.claims.case import Case
from rooflight.claims.claim import Claim
from rooflight.claims.own import Table
from rooflight.claims.result import Answer, Candidate, CannotTell, Judged


class Judging(Protocol):
    """What a verdict needs of the others."""

    book: Book
    table: Table

    def case(self, claim: Claim) -> Case: ...
    def row(self, number: int) -> Judged: ...
    def followed(self, claim: Claim, made: Answer, why: CannotTell | None = None) -> Judged: ...


def off_by(claim: Claim, answer: Answer) -> float | None:
    """How many times the right value was stated."""
    if not isinstance(claim.stated, Amount) or isinstance(answer.value, (str, tuple)) or not answer.value:
        return None
    return float(claim.stated.value / Fraction(answer.value))


def wrong(claim: Claim, answer: Answer, found: tuple[Candidate, ...], reason: str = "") -> Judged:
    by = off_by(claim, answer)
    return Judged(claim=claim, verdict="wrong", answer=answer, because=found, reason=reason, off_by=by)


def unknown(claim: Claim, reason: str, needs: str = "") -> Judged:
    return Judged(claim=claim, verdict="unknown", reason=reason, needs=needs)


def follows(judging: Judging, made: Answer) -> Candidate:
    """That a value is only as wrong as the rows it was made of."""
    wrongs = [row for row in map(judging.row, made.rows) if row.verdict == "wrong"]
    numbers = ", ".join(str(row.claim.row) for row in wrongs[:6]) + (", ..." if len(wrongs) > 6 else "")
    first = [code for row in wrongs for found in row.because[:1] for code in found.code.split("+")]
    text = f"it follows from its own rows ({made.how})"
    if wrongs:
        text += f", of which {numbers} {'is' if len(wrongs) == 1 else 'are'} wrong"
    return Candidate("+".join(dict.fromkeys(("follows-from-its-rows", *first))), text, made.value)


def right_value(row: Judged) -> Fraction | None:
    """What a wrong row should have said; `None` for one that is not wrong, or has no number."""
    if row.verdict != "wrong" or row.answer is None or isinstance(row.answer.value, (str, tuple)):
        return None
    return Fraction(row.answer.value)


def short(answer: Answer) -> str:
    value = answer.value
    return str(value) if isinstance(value, (str, tuple)) else f"{float(value):,.6g}"
