"""What several ledgers are to each other: a pair, or the ranks of one run."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.errors import BadInput
from rooflight.ledger import Ledger


def arranged(ledgers: Sequence[Ledger], names: Sequence[str]) -> tuple[list[Ledger], list[str]]:
    """One, two that are compared, or the ranks of one run as one; with the names that a command line takes."""
    if len(ledgers) > 1 and len({ledger.header.rank for ledger in ledgers}) == len(ledgers):
        from rooflight.measurement.ranks import join

        return [join(list(ledgers))], [" ".join(names)]
    if len(ledgers) > 2:
        raise BadInput(f"{len(ledgers)} ledgers are not the ranks of one run: give one, or two to be put side by side")
    return list(ledgers), list(names)
