"""A meter that is read right before and right after every op of a watched step."""

from __future__ import annotations

from collections.abc import Callable


class OpDifferences:
    """Reads a meter right before and right after every op (an `Observer`)."""

    def __init__(self, read: Callable[[], int | float | None]) -> None:
        self.by_op: dict[int, int | float] = {}
        self._read = read
        self._before: int | float | None = None

    def before(self, index: int) -> None:
        self._before = self._read()

    def after(self, index: int) -> None:
        now = self._read()
        if now is not None and self._before is not None:
            self.by_op[index] = now - self._before
