"""Nsight Compute's CSV, as `ncu --csv` prints it: page raw, page details, and summaries over launches.

The raw page has one row for every kernel and one column for every metric, with the units in a second row. The details
page has one row for every metric of every kernel. A summary (`--print-summary`) has the least, the greatest and the
average over the launches of a kernel.

The program's own output and ncu's messages may stand before, between and after the rows. What a program prints is
passed over; what looks like a piece of a row is refused, because a row that is passed over makes a wrong sum. ncu
quotes every cell, so a row that lost its beginning still holds the marks between two cells, or is the end of its last.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from rooflight.ledger import Note
from rooflight.profiles import dropped_metrics
from rooflight.profiles.log import LogRow, LogText, ProfilerLog, cells_of, record
from rooflight.profiles.ncu_log import (
    PrintedMetric,
    ProfiledKernel,
    is_measured,
    is_rollup,
    kernel_of,
    log_of,
    refuse_empty,
)

_ONE_KERNEL = ("ID", "Process ID", "Kernel Name", "Kernel Time", "Invocations", "Grid Size", "Block Size")
"""Rows of the details page that agree in these are about the same launch."""
_RANGE = re.compile(r'"([^"]*)"')


def read(source: LogText) -> ProfilerLog:
    pages = list(tables(source))
    kernels = [kernel for table in pages for kernel in (_long if table.is_long else _wide)(table)]
    if not kernels:
        raise refuse_empty(source, "the table of kernels has a header and no rows")
    log = log_of(source, kernels, about=f"ncu CSV, {'details' if pages[0].is_long else 'raw'} page")
    left_out = dict.fromkeys(name for table in pages if not table.is_long for name in table.dropped)
    notes = dropped_metrics.not_of_a_launch(left_out)
    if skipped := sum(table.skipped(first=table is pages[0]) for table in pages):
        notes.append(
            Note(
                "skipped-kernels",
                f"the IDs of the kernels skip {skipped:,}: rows were filtered out or lost, and no sum has them",
            )
        )
    return replace(log, notes=(*log.notes, *notes))


def _wide(table: NcuTable) -> Iterator[ProfiledKernel]:
    """The raw page."""
    if not table.rows:
        return
    units, *rows = table.rows
    if units.cells[:1] != [""]:
        raise units.bad("the row of units is missing under the header: export it again with --page raw")
    units.must_fit(len(table.header))
    for row in rows:
        row.must_fit(len(table.header))
        _must_be_numbered(row)
        kernel = _kernel(table, row)
        kernel.metrics.extend(
            PrintedMetric(name, units.cells[place], row.cells[place], row.line) for place, name in table.kept
        )
        yield kernel


def _long(table: NcuTable) -> Iterator[ProfiledKernel]:
    """The details page, and summaries."""
    value = "Average" if "Average" in table.places else "Metric Value"
    if not {"Metric Unit", value} <= set(table.places):
        raise table.source.torn(table.line, "the header row breaks off")
    # Rows without advice may end behind the value.
    last_needed = max(table.places.get(name, 0) for name in ("Metric Name", "Metric Unit", value, "Maximum"))
    for _, rows in groupby(table.rows, lambda row: [row[name] for name in _ONE_KERNEL]):
        kernel: ProfiledKernel | None = None
        for row in rows:
            row.must_fit(len(table.header), least=last_needed + 1)
            _must_be_numbered(row)
            kernel = kernel or _kernel(table, row)
            if metric := row["Metric Name"]:
                ends = [row[name] if value == "Average" else None for name in ("Minimum", "Maximum")]
                kernel.metrics.append(PrintedMetric(metric, row["Metric Unit"], row[value], row.line, *ends))
        if kernel is not None:
            yield kernel


def _kernel(table: NcuTable, row: LogRow) -> ProfiledKernel:
    return kernel_of(row, label="/".join(name for place in table.range_places for name in ranges(row.cells[place])))


def _must_be_numbered(row: LogRow) -> None:
    """Refuse a row whose cells stand in the wrong columns, and a row of units among those of kernels."""
    for name in ("ID", "Process ID"):
        if name in row.places and not re.fullmatch(r"\d{1,18}", row[name]):
            raise row.torn(f"{name} is {row[name][:40]!r}, no number")


def ranges(cell: str) -> list[str]:
    """The names of NVTX ranges, outermost first, out of `718  "<default domain>:conv2:none:...:none" `.

    Every range is Domain:Name and six fields about its payload, colour and message. A name may hold colons.
    """
    names = []
    for text in _RANGE.findall(cell):
        domain, *rest = text.split(":")
        name = ":".join(rest[:-6] or rest)
        names.append(name if domain == "<default domain>" else f"{domain}:{name}")
    return [name for name in names if name]


# --- tables in the text ---

HEADER = re.compile(r'"(?:ID","Process ID|Process ID","Process Name)"')
_FIXED = frozenset({
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
})  # fmt: skip
_ROW = re.compile(r'"\d*(",|"?$)')
_WITH_SIZES = re.compile(r'"\d+","\d+",".*","\(\d+, \d+, \d+\)","\(\d+, \d+, \d+\)","')
_BETWEEN_CELLS = '","'
_LAST_CELL = re.compile(r',?"(?:[^"]|"")*"')


@dataclass(frozen=True)
class NcuTable:
    """A header, and the rows below it."""

    source: LogText
    line: int
    header: list[str]
    rows: list[LogRow] = field(default_factory=list)
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
    def dropped(self) -> list[str]:
        """The others."""
        kept = {name for _, name in self.kept}
        return [name for _, name in self.metrics if name not in kept]

    @property
    def is_long(self) -> bool:
        return "Metric Name" in self.places

    def skipped(self, *, first: bool) -> int:
        """How many kernels' IDs are skipped from row to row: somebody took them out. Where another line stands in such
        a place, a row was damaged there. The `first` table of a log counts from 0."""
        total = 0
        above, last, its_process = self.line, -1, "" if first else None
        for row in self.rows:
            number, process = row["ID"], row["Process ID"]
            if not number:
                continue  # the row of units, or a summary
            # Another process may count from anywhere.
            hole = int(number) - last - 1 if its_process in ("", process) else 0
            if hole > 0 and (damaged := self.between.intersection(range(above + 1, row.line))):
                gone = f"the row of kernel {last + 1} is not here, nor before line {row.line}"
                raise self.source.torn(min(damaged), gone)
            total += max(0, hole)
            above, last, its_process = row.line, int(number), process
        return total


def tables(source: LogText) -> Iterator[NcuTable]:
    """The tables of a log; several runs may have been written into one."""
    table: NcuTable | None = None
    lines = iter(source.numbered())
    for number, line in lines:
        start = HEADER.search(line)
        if start is not None and (table is None or start.start() == 0):
            if table is not None:
                yield table
            # A program that does not end its last line shares it with the header.
            table = NcuTable(source, number, _header(source, number, line, start.start()))
        elif table is None:
            if _WITH_SIZES.match(line):
                raise source.torn(number, "a row without a header above it")
        elif _ROW.match(line):
            cells = record(source, lines, (number, line))
            table.rows.append(LogRow(source, number, cells, table.places))
        elif _is_piece(line):
            raise source.bad(
                number,
                "this is a piece of a row: the file is not whole, or the program printed into the row; "
                "record it again with --log-file, which keeps the two apart",
            )
        elif not line.startswith("=="):
            table.between.add(number)
    if table is not None:
        yield table


def _header(source: LogText, number: int, line: str, start: int) -> list[str]:
    cells = cells_of(line[start:])
    if cells is None or "Kernel Name" not in cells or line[:start].endswith(","):
        raise source.torn(number, "the header row breaks off")
    return cells


def _is_piece(line: str) -> bool:
    """Can the line be what is left of a row? A row ends in a quote, the JSON that a program prints in a bracket."""
    if _BETWEEN_CELLS in line:
        return not line.rstrip().endswith(("}", "]"))
    return line.endswith('"') and (line.count('"') % 2 == 1 or _LAST_CELL.fullmatch(line) is not None)
