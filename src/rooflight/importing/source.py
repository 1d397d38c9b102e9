"""A log as text: unpacked, decoded, in numbered lines, with one way to say which line is wrong."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from rooflight.errors import BadFile


@dataclass(frozen=True)
class Source:
    """`name` is what messages call it."""

    name: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Split at line feeds only: a progress bar's carriage returns are no new lines to an editor either."""
        return [line.rstrip("\r") for line in self.text.split("\n")]

    def numbered(self) -> Iterator[tuple[int, str]]:
        return enumerate(self.lines, start=1)

    def must_end(self, line: int) -> None:
        """Refuse a row whose line has no end: where cells are not quoted, nothing else shows that it was cut."""
        if line == len(self.lines):
            raise self.bad(line, "the last row has no line end: the file is not whole, export it again")

    def bad(self, line: int, message: str) -> BadFile:
        return BadFile(f"{self.name}, line {line}: {message}")


def decode(content: bytes) -> str | None:
    """The text, or `None` where there is none. PowerShell's `>` writes UTF-16, old terminals a byte a letter."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def cells_of(line: str) -> list[str] | None:
    """The cells of one line of CSV; `None` when a quote is still open at its end."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return None


def record(source: Source, lines: Iterator[tuple[int, str]], first: tuple[int, str]) -> list[str]:
    """The cells of the record that starts on the line `first`; a quoted cell may hold line breaks, though few do."""
    number, text = first
    cells = cells_of(text)
    for _ in range(_MOST_LINES):
        if cells is not None:
            return cells
        following = next(lines, None)
        if following is None:
            break
        text = f"{text}\n{following[1]}"
        cells = cells_of(text)
    raise source.bad(number, "this row breaks off inside a quoted cell: the file is not whole, export it again")


_MOST_LINES = 20
