"""A linter for claims: somebody's own table against a ledger, which rows are wrong, and how.

    >>> from rooflight.claims import check, read_claims
    >>> checked = check(rooflight.load("run.json"), read_claims("table.csv"))
    >>> print(checked.grade)

Every row is answered by the ledger, by a device's figures, or by the rows it follows from. A value that is not right is
held against what each known convention and mistake *would have given here*; the one that gives it is named, and where
several do, all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflight.claims.across import findings, settled
from rooflight.claims.book import Book
from rooflight.claims.claim import Claim
from rooflight.claims.judging import Judge
from rooflight.claims.result import WORDS, Answer, Candidate, Checked, Finding, Judged, Verdict
from rooflight.claims.table import parse_claims, read_claims
from rooflight.ledger import Ledger

__all__ = [
    "WORDS", "Answer", "Candidate", "Checked", "Claim", "Finding", "Judged", "Verdict", "check", "parse_claims",
    "read_claims",
]  # fmt: skip


def check(ledger: Ledger, claims: Sequence[Claim], *, file: str = "", strict: bool = False) -> Checked:
    """Judge every row of a table, and the table as a whole. `strict`: what is right only under another convention is
    wrong."""
    judge = Judge(Book(ledger), claims)
    rows = settled(judge, [judge.judged(claim) for claim in claims])
    found = tuple(findings(judge, rows))
    if strict:
        rows = [replace(row, verdict="wrong") if row.verdict == "convention" else row for row in rows]
    return Checked(file=file, ledger=ledger, rows=tuple(rows), findings=found)
