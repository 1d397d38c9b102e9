"""The mistakes that the linter knows. Each is a function from a row to the values that the mistake would give it; the
stated value tells which of them was made. `LIKELY` is tried first, `REMOTE` where none of those gives the value, and
`COSTLY` where none of these does.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflight.claims.case import Case, Trial
from rooflight.claims.mistakes import formulas, memory, models, runs, sizes, slips
from rooflight.claims.result import Candidate, CannotTell

LIKELY: tuple[Trial, ...] = (*formulas.LIKELY, *sizes.LIKELY, *memory.LIKELY, *runs.LIKELY)
REMOTE: tuple[Trial, ...] = (*formulas.REMOTE, *slips.REMOTE)
COSTLY: tuple[Trial, ...] = models.COSTLY


def values(case: Case, trials: tuple[Trial, ...]) -> Iterator[Candidate]:
    """What each of the mistakes would give; one that the ledger cannot compute gives nothing."""
    for trial in trials:
        try:
            yield from trial(case)
        except (CannotTell, ZeroDivisionError):
            continue
