"""One thing that is wrong with somebody's numbers, or must be said of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

Number = int | float | Fraction
FoundValue = Number | tuple[int, ...] | str
"""A number, a shape or a word."""


@dataclass(frozen=True)
class Finding:
    """By a short name for programs and a sentence for people."""

    code: str
    """Two together are joined by `+`."""
    text: str
    value: FoundValue | None = None
    """Of a mistake or another convention: what it gives here."""
    by: Fraction | None = None
    """What that was multiplied by last: somebody may have rounded before."""
    rows: tuple[int, ...] = ()
    """Of a table: where it was found, if in several rows together."""

    @property
    def codes(self) -> list[str]:
        return self.code.split("+")

    def also(self, code: str, text: str) -> Finding:
        """The same, and something else on top."""
        return replace(self, code=f"{self.code}+{code}", text=f"{self.text}; and {text}")
