"""What a table of claims turned out to be worth: a verdict for every row, and what is wrong with several at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from rooflight.claims.claim import Claim
from rooflight.ledger import Ledger

Verdict = Literal["right", "convention", "wrong", "unknown", "unreadable"]
WORDS: dict[Verdict, str] = {
    "right": "right",
    "convention": "right under another convention",
    "wrong": "wrong",
    "unknown": "cannot be checked",
    "unreadable": "cannot be read",
}
Number = int | float | Fraction
Value = Number | tuple[int, ...] | str


@dataclass(frozen=True)
class Answer:
    """What the ledger, a device's figures or the table's own rows say."""

    value: Value
    how: str
    """The formula with its numbers, or the counter, the clock, the figure."""
    origin: str
    low: Number | None = None
    """From where to where it was measured, or is rounded by different sources."""
    high: Number | None = None
    rows: tuple[int, ...] = ()
    """Rows of the table that it follows from."""
    mistaken: tuple[Candidate, ...] = ()
    """What known mistakes make of the same rows."""


@dataclass(frozen=True)
class Candidate:
    """A mistake or another convention, and the value it gives here."""

    code: str
    """For programs; two together are joined by `+`."""
    text: str
    value: Value
    by: Fraction | None = None
    """What it was multiplied by last: somebody may have rounded before that."""


class CannotTell(Exception):
    """The ledger has no answer: why not, and which one would have."""

    def __init__(self, reason: str, needs: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.needs = needs


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A row and its verdict."""

    claim: Claim
    verdict: Verdict
    answer: Answer | None = None
    because: tuple[Candidate, ...] = ()
    """Of a wrong row the mistakes that give its value; of one that is right by another convention, which."""
    reason: str = ""
    """Why it cannot be checked, or what else must be said."""
    needs: str = ""
    """What would be needed to check it."""
    off_by: float | None = None
    """Stated by right."""
    ambiguous: bool = False
    """Several mistakes give this very value, and nothing in the row tells which was made."""

    def says(self, code: str) -> bool:
        return any(code in found.code.split("+") for found in self.because)


@dataclass(frozen=True)
class Finding:
    """What is wrong with several rows together."""

    code: str
    text: str
    rows: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Checked:
    """A whole table."""

    file: str
    ledger: Ledger
    rows: tuple[Judged, ...]
    findings: tuple[Finding, ...]

    @property
    def counts(self) -> Counter[str]:
        return Counter(row.verdict for row in self.rows)

    @property
    def passes(self) -> bool:
        """No row is wrong or unreadable, none contradicts another, and something was checked: a table of which nothing
        can be is no pass. What cannot be checked beside other rows is no mistake."""
        return not self.counts["wrong"] and not self.findings and not self.counts["unreadable"] and self.is_checked

    @property
    def is_checked(self) -> bool:
        """Could any row be held against anything?"""
        return any(row.verdict in ("right", "convention", "wrong") for row in self.rows)

    @property
    def grade(self) -> str:
        """`17 of 23 right, 4 wrong, 2 cannot be checked`."""
        found = self.counts
        right = found["right"] + found["convention"]
        others = f" ({found['convention']} of them under another convention)" if found["convention"] else ""
        parts = [f"{right} of {len(self.rows)} right{others}", f"{found['wrong']} wrong"]
        if found["unknown"]:
            parts.append(f"{found['unknown']} cannot be checked")
        if found["unreadable"]:
            parts.append(f"{found['unreadable']} cannot be read")
        if self.findings:
            parts.append(
                f"{len(self.findings)} {'mistake' if len(self.findings) == 1 else 'mistakes'} over several rows"
            )
        return ", ".join(parts) + ("" if self.is_checked else ": nothing was checked")

    def row(self, number: int) -> Judged:
        return next(row for row in self.rows if row.claim.row == number)

    def has(self, code: str) -> bool:
        """Was this said, of a row or of several?"""
        return any(found.code == code for found in self.findings) or any(row.says(code) for row in self.rows)
