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


def check(ledger: Ledger, claims: Sequence[Claim], *, file: str = "") -> Checked:
    """Judge every row of a table, and the table as a whole."""
    judge = Judge(Book(ledger), claims)
    rows = [judge.judged(claim) for claim in claims]
    rows = settled(judge, rows)
    return Checked(file=file, ledger=ledger, rows=tuple(rows), findings=tuple(findings(judge, rows)))
