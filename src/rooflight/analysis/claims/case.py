"""A row that is being judged: as conventions and mistakes see it, and what its verdict needs of other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Protocol

from rooflight.analysis.claims.claim import Claim
from rooflight.analysis.claims.ledger_query import ClaimScope, LedgerBook
from rooflight.analysis.claims.result import Answer, CannotTell, JudgedClaim
from rooflight.analysis.claims.row_inference import ClaimTable
from rooflight.analysis.finding import Finding

Trial = Callable[["ClaimCase"], Iterator[Finding]]
"""From a row to the values that a convention or a mistake would give it."""


@dataclass(frozen=True)
class ClaimCase:
    """What the row says, what it is about, and what is right."""

    claim: Claim
    scope: ClaimScope
    answer: Answer
    table: ClaimTable
    """The other rows."""

    @property
    def batches(self) -> tuple[int, ...]:
        """All that the table mentions."""
        return tuple(dict.fromkeys(claim.batch for claim in self.table.claims if claim.batch is not None))

    @property
    def name(self) -> str:
        return self.scope.name

    @property
    def times(self) -> int:
        """FLOPs of a multiply-add, in this quantity."""
        return 1 if self.name == "macs" else 2

    @property
    def number(self) -> Fraction:
        """What is right; raises `CannotTell` for a shape or a word."""
        return self.answer.number

    def of(self, name: str, answer: Answer) -> ClaimCase:
        """The same row, taken for another quantity."""
        return replace(self, scope=self.scope.of(name), answer=answer)


class Judging(Protocol):
    """What the verdict on one row needs of the others."""

    book: LedgerBook
    table: ClaimTable

    def case(self, claim: Claim) -> ClaimCase: ...
    def row(self, number: int) -> JudgedClaim: ...


def only_for(*names: str) -> Callable[[Trial], Trial]:
    """A trial of these quantities; of others it gives nothing."""

    def limited(trial: Trial) -> Trial:
        return lambda case: trial(case) if case.name in names else iter(())

    return limited


def tried(trial: Trial, case: ClaimCase) -> Iterator[Finding]:
    """What a convention or a mistake gives; one that the ledger cannot compute gives nothing."""
    try:
        yield from trial(case)
    except (CannotTell, ZeroDivisionError):
        return


def follows(judging: Judging, inferred: Answer) -> Finding:
    """That a value is only as wrong as the rows it was made of."""
    wrongs = [row for row in map(judging.row, inferred.rows) if row.verdict == "wrong"]
    numbers = ", ".join(str(row.claim.row) for row in wrongs[:6]) + (", ..." if len(wrongs) > 6 else "")
    codes = [code for row in wrongs for finding in row.because[:1] for code in finding.codes]
    text = f"it follows from its own rows ({inferred.how})"
    if wrongs:
        text += f", of which {numbers} {'is' if len(wrongs) == 1 else 'are'} wrong"
    return Finding("+".join(dict.fromkeys(("follows-from-its-rows", *codes))), text, inferred.value)
