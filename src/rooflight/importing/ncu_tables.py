"""The tables in a log of `ncu --csv`, with the line of every row.

The program's own output and ncu's messages may stand before, between and after the rows. What a program prints is
passed over; what looks like a piece of a row is refused, because a row that is passed over makes a wrong sum. ncu
quotes every cell, so a row that lost its beginning still holds the marks between two cells, or is the end of its last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from rooflight.errors import BadFile
from rooflight.importing.ncu_metrics import is_measured, is_rollup
from rooflight.importing.source import Source, cells_of, record

HEADER = re.compile(r'"(?:ID","Process ID|Process ID","Process Name)"')
_FIXED = frozenset({
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
})  # fmt: skip
_ROW = re.compile(r'"\d*(",|"?$)')
_WITH_SIZES = re.compile(r'"\d+","\d+",".*","\(\d+, \d+, \d+\)","\(\d+, \d+, \d+\)","')
_BETWEEN_CELLS = '","'
_LAST_CELL = re.compile(r',?"(?:[^"]|"")*"')
_NUMBERED = ("ID", "Process ID")


@dataclass(frozen=True)
class Table:
    """A header, and the rows below it; both with their lines."""

    line: int
    header: list[str]
    rows: list[tuple[int, list[str]]] = field(default_factory=list)
    between: set[int] = field(default_factory=set)
    """The lines below the header that are neither rows nor ncu's messages."""

    @cached_property
    def places(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.header)}

    @cached_property
    def range_places(self) -> list[int]:
        """Columns of NVTX ranges."""
        return [place for place, name in enumerate(self.header) if "_Range:" in name]

    @cached_property
    def metrics(self) -> list[tuple[int, str]]:
        """Columns of metrics on the raw page."""
        return [(place, name) for place, name in enumerate(self.header) if name not in _FIXED and "_Range:" not in name]

    @cached_property
    def kept(self) -> list[tuple[int, str]]:
        """Those that tell something about a kernel which no other tells."""
        return [entry for entry in self.metrics if is_measured(entry[1]) and not is_rollup(entry[1], self.places)]

    @property
    def is_long(self) -> bool:
        return "Metric Name" in self.places

    def cell(self, cells: list[str], name: str) -> str:
        place = self.places.get(name, len(cells))
        return cells[place].strip() if place < len(cells) else ""

    def must_fit(self, source: Source, row: tuple[int, list[str]], *, least: int | None = None) -> None:
        """Refuse a row that has not as many cells as the header; `least`: some rows may have fewer."""
        line, cells = row
        if not (least or len(self.header)) <= len(cells) <= len(self.header):
            raise source.bad(
                line,
                f"{len(cells)} cells where the header has {len(self.header)}: the file is not whole, export it again",
            )

    def must_be_numbered(self, source: Source, row: tuple[int, list[str]]) -> None:
        """Refuse a row whose cells stand in the wrong columns, and a row of units among those of kernels."""
        line, cells = row
        for name in _NUMBERED:
            if name in self.places and not re.fullmatch(r"\d{1,18}", text := self.cell(cells, name)):
                raise source.bad(line, f"{name} is {text[:40]!r}, no number: the file is not whole, export it again")

    def skipped(self, source: Source, *, first: bool) -> int:
        """How many kernels' IDs are skipped from row to row: somebody took them out. Where another line stands in such
        a place, a row was damaged there. The `first` table of a log counts from 0."""
        total = 0
        above, last, its_process = self.line, -1, "" if first else None
        for line, cells in self.rows:
            number, process = self.cell(cells, "ID"), self.cell(cells, "Process ID")
            if not number:
                continue  # the row of units, or a summary
            # Another process may count from anywhere.
            hole = int(number) - last - 1 if its_process in ("", process) else 0
            if hole > 0 and (damaged := self.between.intersection(range(above + 1, line))):
                raise source.bad(
                    min(damaged),
                    f"the row of kernel {last + 1} is not here, nor before line {line}: the file is not whole, "
                    "export it again",
                )
            total += max(0, hole)
            above, last, its_process = line, int(number), process
        return total


def tables(source: Source) -> Iterator[Table]:
    """The tables of a log; several runs may have been written into one."""
    table: Table | None = None
    lines = iter(source.numbered())
    for number, line in lines:
        start = HEADER.search(line)
        if start is not None and (table is None or start.start() == 0):
            if table is not None:
                yield table
            # A program that does not end its last line shares it with the header.
            table = Table(number, _header(source, number, line, start.start()))
        elif table is None:
            if _WITH_SIZES.match(line):
                raise source.bad(number, "a row without a header above it: the file is not whole, export it again")
        elif _ROW.match(line):
            table.rows.append((number, record(source, lines, (number, line))))
        elif _is_piece(line):
            raise _torn(source, number)
        elif not line.startswith("=="):
            table.between.add(number)
    if table is not None:
        yield table


def _header(source: Source, number: int, line: str, start: int) -> list[str]:
    cells = cells_of(line[start:])
    if cells is None or "Kernel Name" not in cells or line[:start].endswith(","):
        raise source.bad(number, "the header row breaks off: the file is not whole, export it again")
    return cells


def _is_piece(line: str) -> bool:
    """Can the line be what is left of a row? A row ends in a quote, the JSON that a program prints in a bracket."""
    if _BETWEEN_CELLS in line:
        return not line.rstrip().endswith(("}", "]"))
    return line.endswith('"') and (line.count('"') % 2 == 1 or _LAST_CELL.fullmatch(line) is not None)


def _torn(source: Source, number: int) -> BadFile:
    return source.bad(
        number,
        "this is a piece of a row: the file is not whole, or the program printed into the row; "
        "record it again with --log-file, which keeps the two apart",
    )
