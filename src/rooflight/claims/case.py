"""A row that is being judged, as conventions and mistakes see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from rooflight.claims.book import Scope
from rooflight.claims.claim import Claim
from rooflight.claims.own import Table
from rooflight.claims.result import Answer, Candidate

Trial = Callable[["Case"], Iterator[Candidate]]
"""From a row to the values that a convention or a mistake would give it."""


@dataclass(frozen=True)
class Case:
    """What the row says, what it is about, and what is right."""

    claim: Claim
    scope: Scope
    answer: Answer
    table: Table
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

    def of(self, name: str, answer: Answer) -> Case:
        """The same row, taken for another quantity."""
        return replace(self, scope=self.scope.of(name), answer=answer)
