"""The largest batch, or the longest sequence, that still runs on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rooflight.errors import BadInput, TraceFailed

MOST = 1 << 24
"""Beyond this a step is not run in one piece; whoever gets so far has next to no activations."""
SizeFit = tuple[bool, int, int]
"""Whether a step runs; what it would hold at most, and what there is, in bytes."""
FitAt = Callable[[int], SizeFit]


@dataclass(frozen=True)
class LargestSize:
    value: int
    """0: not even 1 fits."""
    fails: int | None
    """The least larger one that was found not to; `None`: none was, the model or the search ended before."""
    why: str = ""
    """What ended it, where that is not memory."""
    tried: int = 0
    """How many sizes were looked at."""


def largest(fit_at: FitAt, *, start: int = 1, most: int = MOST) -> LargestSize:
    """Where the line through two sizes says that memory ends, then by halving what is left in between.

    Memory grows with the size, but not in every step of it: cuDNN may take another algorithm. What is found fits, and
    what is named as failing fails.
    """
    search = _SizeSearch(fit_at)
    if not search.fits(1):
        return LargestSize(0, 1, search.why(1), search.tried)
    low, high = 1, None
    guess = min(max(2, start), most)
    while high is None and low < most:
        if search.fits(guess):
            # Where memory hardly grows, the line points far beyond what two sizes can tell.
            low, guess = guess, min(max(search.guess(guess), 2 * guess), 8 * guess, most)
        else:
            high = guess
    while high is not None and high - low > 1:
        middle = search.between(low, high)
        if search.fits(middle):
            low = middle
        else:
            high = middle
    why = "larger ones were not tried" if high is None else search.why(high)
    return LargestSize(low, high, why, search.tried)


class _SizeSearch:
    def __init__(self, fit_at: FitAt) -> None:
        self._fit_at = fit_at
        self._known: dict[int, bool] = {}
        self._points: list[tuple[int, int]] = []
        self._room = 0
        self._why: dict[int, str] = {}

    @property
    def tried(self) -> int:
        return len(self._known)

    def fits(self, size: int) -> bool:
        if size not in self._known:
            try:
                fits, held, self._room = self._fit_at(size)
            except (BadInput, TraceFailed) as error:
                self._why[size] = error.on_command_line
                self._known[size] = False
                return False
            self._points.append((size, held))
            self._known[size] = fits
        return self._known[size]

    def why(self, size: int) -> str:
        """What the model said against a size; empty: it was memory."""
        return self._why.get(size, "")

    def guess(self, low: int) -> int:
        """Where the line through the two largest sizes reaches the end of the memory; a little before it."""
        if len(self._points) < 2:
            return 2 * low
        (a, at_a), (b, at_b) = sorted(self._points)[-2:]
        if at_b <= at_a:
            return 2 * low
        end = b + (self._room - at_b) * (b - a) / (at_b - at_a)
        return max(low + 1, int(0.995 * end))

    def between(self, low: int, high: int) -> int:
        if high in self._why:  # the model ends it: the line says nothing of where
            return (low + high) // 2
        guess = self.guess(low)
        near = max(1, (high - low) // 8)
        return min(max(guess, low + near), high - near) if high - low > 2 else low + 1
