"""A linter for claims: somebody's own table against a ledger, which rows are wrong, and how.

    >>> from rooflight.analysis.claims import check, read_claims
    >>> checked = check(rooflight.load("run.json"), read_claims("table.csv"))
    >>> print(checked.grade)

Every row is answered by the ledger, by a device's figures, or by the rows it follows from. A value that is not right is
held against what each known convention and mistake *would have given here*; the one that gives it is named, and where
several do, all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflight.analysis.claims.claim import WORDS, Answer, CheckedTable, Claim, ClaimVerdict, JudgedClaim
from rooflight.analysis.claims.cross_row_checks import findings, settled
from rooflight.analysis.claims.judging import ClaimsJudge
from rooflight.analysis.claims.ledger_shelf import LedgerShelf
from rooflight.analysis.claims.readings import settled_readings
from rooflight.analysis.claims.table import parse_claims, read_claims
from rooflight.analysis.finding import Finding
from rooflight.ledger import Ledger

__all__ = [
    "WORDS",
    "Answer",
    "CheckedTable",
    "Claim",
    "ClaimVerdict",
    "Finding",
    "JudgedClaim",
    "check",
    "parse_claims",
    "read_claims",
]


def check(
    ledger: Ledger | Sequence[Ledger], claims: Sequence[Claim], *, file: str = "", strict: bool = False
) -> CheckedTable:
    """Judge every row of a table, and the table as a whole, by one ledger or several: each row by the one that is of
    its model, step, device and batch. `strict`: what is right only under another convention is wrong."""
    ledgers = (ledger,) if isinstance(ledger, Ledger) else tuple(ledger)
    shelf = LedgerShelf(ledgers)
    claims = settled_readings(ClaimsJudge(shelf, claims), claims)
    judge = ClaimsJudge(shelf, claims)
    rows = settled(judge, [judge.judged(claim) for claim in claims])
    over_rows = tuple(findings(judge, rows))
    if strict:
        rows = [replace(row, verdict="wrong") if row.verdict == "convention" else row for row in rows]
    traced = tuple(book.ledger for book in judge.shelf.traced.values())
    return CheckedTable(file=file, ledgers=ledgers, traced=traced, rows=tuple(rows), findings=over_rows, strict=strict)
