"""What an op takes of the device's memory inside itself: its results one after the other, and what it borrows.

Bytes are as asked for; the allocator rounds them.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moment:
    """A stretch of an op: so many of its results are there, and these temporaries, all freed when it ends."""

    results: int
    temporaries: tuple[int, ...]


Moments = tuple[Moment, ...]
"""In order; empty: the op makes its results and borrows nothing."""


@dataclass(frozen=True, slots=True)
class Chip:
    """What of a GPU decides how much torch's kernels borrow."""

    sms: int = 132
    threads_per_sm: int = 2048
