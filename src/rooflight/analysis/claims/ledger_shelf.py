"""The ledgers that a table is held against: which of them answers a row. A built-in model that a row names and none of
them is of is traced."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.analysis.claims.claim import CannotTell, Claim
from rooflight.analysis.claims.ledger_query import LedgerBook, device_of
from rooflight.analysis.claims.model_parts import same_model
from rooflight.analysis.claims.retracing import traced
from rooflight.ledger import Ledger, StepKind
from rooflight.models import builtin_names

_OF_TRAINING = ("training", "backward", "optimizer")


class LedgerShelf:
    """Ledgers, each indexed once. Rows that name no model are of the first one's."""

    def __init__(self, ledgers: Sequence[Ledger]) -> None:
        self.books = [LedgerBook(ledger) for ledger in ledgers]
        self.traced: dict[tuple[str, int, StepKind], LedgerBook] = {}
        """What rows of other models were answered by."""

    @property
    def first(self) -> LedgerBook:
        return self.books[0]

    def book(self, claim: Claim) -> LedgerBook:
        """The ledger that a row is held against: of its model, and of its step, device and batch where there are
        several."""
        model = claim.model or self.first.ledger.header.model
        fitting = [book for book in self.books if same_model(model, book.ledger.header.model)]
        if not fitting:
            return self._traced(claim) or self.first
        return max(fitting, key=lambda book: self._fits(book, claim))

    def _fits(self, book: LedgerBook, claim: Claim) -> tuple[bool, bool, bool]:
        header = book.ledger.header
        step = claim.step is None or (claim.step in _OF_TRAINING) == (header.step == "train")
        try:
            device = device_of(claim)
        except CannotTell:
            device = None
        return step, device is not None and book.device is device, claim.batch == header.batch

    def _traced(self, claim: Claim) -> LedgerBook | None:
        header = self.first.ledger.header
        name = next((name for name in builtin_names() if same_model(claim.model, name)), None)
        if name is None:
            return None
        trains = claim.step in _OF_TRAINING or (claim.step is None and header.step == "train")
        batch = claim.batch or header.batch or 1
        step: StepKind = "train" if trains else "infer"
        key = (name, batch, step)
        if key not in self.traced:
            ledger = traced(name, batch, step=step)
            if ledger is None:
                return None
            self.traced[key] = LedgerBook(ledger)
        return self.traced[key]
