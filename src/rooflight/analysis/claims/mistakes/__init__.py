"""The mistakes that the linter knows. Each is a function from a row to the values that the mistake would give it; the
stated value tells which of them was made. `LIKELY` is tried first, `REMOTE` where none of those gives the value, and
`COSTLY` where none of these does.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflight.analysis.claims.case import ClaimCase, Trial, tried
from rooflight.analysis.claims.mistakes import formulas, measurements, sizes, slips
from rooflight.analysis.finding import Finding

LIKELY: tuple[Trial, ...] = (*formulas.LIKELY, *sizes.LIKELY, *measurements.LIKELY)
REMOTE: tuple[Trial, ...] = (*formulas.REMOTE, *slips.REMOTE)
COSTLY: tuple[Trial, ...] = slips.COSTLY


def values(case: ClaimCase, trials: tuple[Trial, ...]) -> Iterator[Finding]:
    """What each of the mistakes would give."""
    for trial in trials:
        yield from tried(trial, case)
