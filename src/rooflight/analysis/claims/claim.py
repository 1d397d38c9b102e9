"""A row of somebody's table: what it is of and what it states; and what a table of them turned out to be worth, a
verdict for every row and what is wrong with several at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Literal

from rooflight.analysis.claims.quantities import KindName
from rooflight.analysis.claims.quantity_names import NamedQuantity
from rooflight.analysis.finding import Finding, FoundValue, Number
from rooflight.ledger import Ledger
from rooflight.units import Unit


@dataclass(frozen=True)
class Amount:
    """A number in its base unit, and from where to where it may lie. `None`: no bound on that side."""

    value: Fraction
    low: Fraction | None
    high: Fraction | None
    unit: Unit
    bound: str = ""
    """`<` or `>` where only a bound was stated."""

    def holds(self, value: Fraction | float) -> bool:
        """Is it what the cell says, as far as its digits go?"""
        return self.touches(value, value)

    def touches(self, low: Fraction | float, high: Fraction | float) -> bool:
        """Does what the cell says reach into a range?"""
        if self.bound in ("<", ">"):
            return Fraction(low) < self.value if self.bound == "<" else Fraction(high) > self.value
        return (self.low is None or Fraction(high) >= self.low) and (self.high is None or Fraction(low) <= self.high)

    @property
    def spread(self) -> Fraction:
        """How far from its middle it may lie, as a part of it; a bound is anywhere."""
        if self.low is None or self.high is None or not self.value:
            return Fraction(1)
        return abs((self.high - self.low) / (2 * self.value))

    def amount_near(self, value: Fraction, part: Fraction) -> bool:
        """Is it, by no more than this part of it, that value?"""
        return not self.bound and abs(self.value - value) <= part * abs(value)

    def times(self, factor: Fraction) -> Amount:
        """The same digits in a unit that is so many times as large."""
        low, high = (None if end is None else end * factor for end in (self.low, self.high))
        return replace(self, value=self.value * factor, low=low, high=high)


@dataclass(frozen=True)
class Shape:
    """`64x24x24`; `-1`, `N` or `B` in front stands for any batch."""

    sizes: tuple[int, ...]
    any_batch: bool = False


Stated = Amount | Shape | str
"""A word is a verdict or the name of a device; of a counter, what profilers print where it gave nothing."""
FILE_ROW = "row of the file"
"""The remark that keeps where a cell stood: claims are numbered as if they had been written one below the other."""
StepName = Literal["forward", "backward", "optimizer", "training", "inference"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What one row says. Empty text and `None`: the row does not say."""

    row: int
    """As a spreadsheet counts: the header is row 1."""
    layer: str
    quantity: str
    value: str
    named: NamedQuantity | None
    """`None`: no quantity by that name, and `trouble` says so."""
    stated: Stated | None
    trouble: str = ""
    unreadable: bool = False
    """A cell of it says nothing that can be used; `trouble` says which."""
    batch: int | None = None
    step: StepName | None = None
    precision: str = ""
    device: str = ""
    model: str = ""
    said_kind: KindName | None = None
    """In a column of its own."""
    note: str = ""
    remarks: Mapping[str, str] = field(default_factory=dict)
    """Columns that nobody asked for."""

    @property
    def where(self) -> str:
        """`row 3 (conv2, flops)`."""
        subject = self.layer or self.model or self.device or "total"
        return f"row {self.row} ({subject}, {self.quantity})"

    @property
    def name(self) -> str:
        """Of the quantity; empty where there is none by that name."""
        return self.named.quantity.name if self.named is not None else ""

    @property
    def amount(self) -> Amount | None:
        """The number that it states; `None` for a bound, a shape or a word."""
        return self.stated if isinstance(self.stated, Amount) and not self.stated.bound else None

    @property
    def kind(self) -> KindName | None:
        """Measured or estimated, where the row says it: in its column, or by a word of its quantity."""
        return self.said_kind or (self.named.kind if self.named is not None else None)

    @property
    def per_sample(self) -> bool:
        return self.named is not None and self.named.per_sample

    @property
    def counts_macs(self) -> bool:
        """Does the row say that it counts multiply-adds, by its unit or its quantity?"""
        by_unit = isinstance(self.stated, Amount) and self.stated.unit.base == "mac"
        return by_unit or self.name == "macs"


# Verdicts.

ClaimVerdict = Literal["right", "convention", "wrong", "unknown", "unreadable"]
WORDS: dict[ClaimVerdict, str] = {
    "right": "right",
    "convention": "right under another convention",
    "wrong": "wrong",
    "unknown": "cannot be checked",
    "unreadable": "cannot be read",
}


class CannotTell(Exception):
    """The ledger has no answer: why not, and which one would have."""

    def __init__(self, reason: str, needs: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.needs = needs


@dataclass(frozen=True)
class Answer:
    """What the ledger, a device's figures or the table's own rows say."""

    value: FoundValue
    how: str
    """The formula with its numbers, or the counter, the clock, the figure."""
    origin: str
    low: Number | None = None
    """From where to where it was measured, or is rounded by different sources."""
    high: Number | None = None
    rows: tuple[int, ...] = ()
    """Rows of the table that it follows from."""

    @property
    def number(self) -> Fraction:
        """The value; raises `CannotTell` for a shape or a word."""
        number = number_of(self.value)
        if number is None:
            raise CannotTell("no number")
        return number


def number_of(value: FoundValue | None) -> Fraction | None:
    """`None` for a shape, a word or nothing."""
    return None if value is None or isinstance(value, (str, tuple)) else Fraction(value)


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    """A row and its verdict."""

    claim: Claim
    verdict: ClaimVerdict
    answer: Answer | None = None
    because: tuple[Finding, ...] = ()
    """Of a wrong row the mistakes that give its value; of one that is right by another convention, which."""
    reason: str = ""
    """Why it cannot be checked, or what else must be said."""
    needs: str = ""
    """What would be needed to check it."""
    ambiguous: bool = False
    """Several mistakes give this very value, and nothing in the row tells which was made."""

    @property
    def off_by(self) -> float | None:
        """Stated by right, of a row that is not right as it stands."""
        right = None if self.answer is None else number_of(self.answer.value)
        if self.verdict == "right" or not isinstance(self.claim.stated, Amount) or not right:
            return None
        return float(self.claim.stated.value / right)

    @property
    def right_value(self) -> Fraction | None:
        """What a wrong row should have said; `None` for one that is not wrong, or has no number."""
        return number_of(self.answer.value) if self.verdict == "wrong" and self.answer is not None else None

    def says(self, code: str) -> bool:
        return any(code in finding.codes for finding in self.because)


def right(claim: Claim, answer: Answer, reason: str = "") -> JudgedClaim:
    return JudgedClaim(claim=claim, verdict="right", answer=answer, reason=reason)


def right_by(claim: Claim, answer: Answer, *because: Finding) -> JudgedClaim:
    """Under another convention."""
    return JudgedClaim(claim=claim, verdict="convention", answer=answer, because=because)


def wrong(claim: Claim, answer: Answer, *because: Finding, reason: str = "") -> JudgedClaim:
    return JudgedClaim(claim=claim, verdict="wrong", answer=answer, because=because, reason=reason)


def unknown(claim: Claim, reason: str, needs: str = "") -> JudgedClaim:
    return JudgedClaim(claim=claim, verdict="unknown", reason=reason, needs=needs)


@dataclass(frozen=True, kw_only=True)
class CheckedTable:
    """A whole table."""

    file: str
    ledgers: tuple[Ledger, ...]
    rows: tuple[JudgedClaim, ...]
    findings: tuple[Finding, ...]
    traced: tuple[Ledger, ...] = ()
    """Of built-in models that rows name, and none of the ledgers is of."""
    strict: bool = False
    """What is right only under another convention was called wrong."""

    @property
    def ledger(self) -> Ledger:
        """That rows are held against which name no model."""
        return self.ledgers[0]

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
        counts = self.counts
        others = f" ({counts['convention']} of them under another convention)" if counts["convention"] else ""
        right = counts["right"] + counts["convention"]
        parts = [f"{right} of {len(self.rows)} right{others}", f"{counts['wrong']} wrong"]
        if counts["unknown"]:
            parts.append(f"{counts['unknown']} cannot be checked")
        if counts["unreadable"]:
            parts.append(f"{counts['unreadable']} cannot be read")
        if self.findings:
            parts.append(
                f"{len(self.findings)} {'mistake' if len(self.findings) == 1 else 'mistakes'} over several rows"
            )
        return ", ".join(parts) + ("" if self.is_checked else ": nothing was checked")

    @property
    def unread_columns(self) -> list[str]:
        """Columns of the file that no claim was read from."""
        return list(dict.fromkeys(key for row in self.rows for key in row.claim.remarks if key != FILE_ROW))

    def row(self, number: int) -> JudgedClaim:
        return next(row for row in self.rows if row.claim.row == number)

    def has(self, code: str) -> bool:
        """Was this said, of a row or of several?"""
        return any(finding.code == code for finding in self.findings) or any(row.says(code) for row in self.rows)
