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

from rooflight.errors import BadFile
from rooflight.profiles.log import LoggedLaunch, LogText, ProfilerLog, cells_of, record
from rooflight.profiles.ncu_log import (
    PrintedMetric,
    ProfiledKernel,
    capability,
    grid_or_block,
    invocations,
    is_measured,
    is_rollup,
    log_of,
    refuse_empty,
    stream_number,
)

_ONE_KERNEL = ("ID", "Process ID", "Kernel Name", "Kernel Time", "Invocations", "Grid Size", "Block Size")
"""Rows of the details page that agree in these are about the same launch."""
_RANGE = re.compile(r'"([^"]*)"')


def read(source: LogText) -> ProfilerLog:
    pages = list(tables(source))
    kernels = [kernel for table in pages for kernel in (_long if table.is_long else _wide)(source, table)]
    if not kernels:
        raise refuse_empty(source, "the table of kernels has a header and no rows")
    log = log_of(source, kernels, about=f"ncu CSV, {'details' if pages[0].is_long else 'raw'} page")
    notes = []
    if left_out := max(0 if table.is_long else len(table.metrics) - len(table.kept) for table in pages):
        notes.append(
            f"left out: {left_out:,} columns about device, launch and profiler, "
            "and averages of counters that have a sum"
        )
    if skipped := sum(table.skipped(source, first=table is pages[0]) for table in pages):
        notes.append(f"the IDs of the kernels skip {skipped:,}: rows were filtered out or lost, and no sum has them")
    return replace(log, notes=(*log.notes, *notes))


def _wide(source: LogText, table: NcuTable) -> Iterator[ProfiledKernel]:
    """The raw page."""
    if not table.rows:
        return
    first_line, units = table.rows[0]
    if units[:1] != [""]:
        raise source.bad(first_line, "the row of units is missing under the header: export it again with --page raw")
    table.must_fit(source, table.rows[0])
    for line, cells in table.rows[1:]:
        table.must_fit(source, (line, cells))
        table.must_be_numbered(source, (line, cells))
        printed = [PrintedMetric(name, units[place], cells[place], line) for place, name in table.kept]
        device = table.cell(cells, "device__attribute_display_name")
        yield ProfiledKernel(
            _launch(source, table, (line, cells)), printed, device, _capability(source, table, (line, cells))
        )


def _long(source: LogText, table: NcuTable) -> Iterator[ProfiledKernel]:
    """The details page, and summaries."""
    value = "Average" if "Average" in table.places else "Metric Value"
    if not {"Metric Unit", value} <= set(table.places):
        raise source.bad(table.line, "the header row breaks off: the file is not whole, export it again")
    # Rows without advice may end behind the value.
    last_needed = max(table.places.get(name, 0) for name in ("Metric Name", "Metric Unit", value, "Maximum"))
    current: ProfiledKernel | None = None
    key: list[str] = []
    for line, cells in table.rows:
        table.must_fit(source, (line, cells), least=last_needed + 1)
        table.must_be_numbered(source, (line, cells))
        mine = [table.cell(cells, name) for name in _ONE_KERNEL]
        if current is None or mine != key:
            if current is not None:
                yield current
            count = invocations(source, line, table.cell(cells, "Invocations"))
            launch = _launch(source, table, (line, cells))
            current = ProfiledKernel(launch, [], "", _capability(source, table, (line, cells)), count)
            key = mine
        if metric := table.cell(cells, "Metric Name"):
            ends = [table.cell(cells, name) if value == "Average" else None for name in ("Minimum", "Maximum")]
            unit, text = table.cell(cells, "Metric Unit"), table.cell(cells, value)
            current.metrics.append(PrintedMetric(metric, unit, text, line, *ends))
    if current is not None:
        yield current


def _launch(source: LogText, table: NcuTable, row: tuple[int, list[str]]) -> LoggedLaunch:
    line, cells = row
    return LoggedLaunch(
        name=table.cell(cells, "Kernel Name"),
        grid=grid_or_block(source, line, table.cell(cells, "Grid Size")),
        block=grid_or_block(source, line, table.cell(cells, "Block Size")),
        stream=stream_number(table.cell(cells, "Stream")),
        label="/".join(name for place in table.range_places for name in ranges(cells[place])),
    )


def _capability(source: LogText, table: NcuTable, row: tuple[int, list[str]]) -> str:
    return capability(source, row[0], table.cell(row[1], "CC"))


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
_NUMBERED = ("ID", "Process ID")


@dataclass(frozen=True)
class NcuTable:
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

    def must_fit(self, source: LogText, row: tuple[int, list[str]], *, least: int | None = None) -> None:
        """Refuse a row that has not as many cells as the header; `least`: some rows may have fewer."""
        line, cells = row
        if not (least or len(self.header)) <= len(cells) <= len(self.header):
            raise source.bad(
                line,
                f"{len(cells)} cells where the header has {len(self.header)}: the file is not whole, export it again",
            )

    def must_be_numbered(self, source: LogText, row: tuple[int, list[str]]) -> None:
        """Refuse a row whose cells stand in the wrong columns, and a row of units among those of kernels."""
        line, cells = row
        for name in _NUMBERED:
            if name in self.places and not re.fullmatch(r"\d{1,18}", text := self.cell(cells, name)):
                raise source.bad(line, f"{name} is {text[:40]!r}, no number: the file is not whole, export it again")

    def skipped(self, source: LogText, *, first: bool) -> int:
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
            table = NcuTable(number, _header(source, number, line, start.start()))
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


def _header(source: LogText, number: int, line: str, start: int) -> list[str]:
    cells = cells_of(line[start:])
    if cells is None or "Kernel Name" not in cells or line[:start].endswith(","):
        raise source.bad(number, "the header row breaks off: the file is not whole, export it again")
    return cells


def _is_piece(line: str) -> bool:
    """Can the line be what is left of a row? A row ends in a quote, the JSON that a program prints in a bracket."""
    if _BETWEEN_CELLS in line:
        return not line.rstrip().endswith(("}", "]"))
    return line.endswith('"') and (line.count('"') % 2 == 1 or _LAST_CELL.fullmatch(line) is not None)


def _torn(source: LogText, number: int) -> BadFile:
    return source.bad(
        number,
        "this is a piece of a row: the file is not whole, or the program printed into the row; "
        "record it again with --log-file, which keeps the two apart",
    )
