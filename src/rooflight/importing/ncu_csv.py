"""Nsight Compute's CSV, as `ncu --csv` prints it: page raw, page details, and summaries over launches.

The raw page has one row for every kernel and one column for every metric, with the units in a second row. The details
page has one row for every metric of every kernel. A summary (`--print-summary`) has the least, the greatest and the
average over the launches of a kernel. The program's own output and ncu's messages may stand before, between and after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from rooflight.errors import BadFile
from rooflight.importing.log import Launch, Log
from rooflight.importing.ncu_launches import Profiled, dim3, log_of, times
from rooflight.importing.ncu_messages import refuse_empty
from rooflight.importing.ncu_metrics import Printed, is_measured, is_rollup
from rooflight.importing.source import Source, cells_of, record

HEADER = re.compile(r'"(?:ID","Process ID|Process ID","Process Name)"')
_FIXED = frozenset({
    "ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream", "Block Size",
    "Grid Size", "Device", "CC",
})  # fmt: skip
_ONE_KERNEL = ("ID", "Process ID", "Kernel Name", "Kernel Time", "Invocations", "Grid Size", "Block Size")
"""Rows of the details page that agree in these are about the same launch."""
_ROW = re.compile(r'"\d*(",|"?$)')
_RANGE = re.compile(r'"([^"]*)"')


@dataclass(frozen=True)
class _Table:
    """A header, and the rows below it; both with their lines."""

    line: int
    header: list[str]
    rows: list[tuple[int, list[str]]] = field(default_factory=list)

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

    def torn(self, source: Source, line: int, cells: list[str]) -> BadFile:
        return source.bad(
            line, f"{len(cells)} cells where the header has {len(self.header)}: the file is not whole, export it again"
        )


def read(source: Source) -> Log:
    tables = list(_tables(source))
    found = [entry for table in tables for entry in (_long if table.is_long else _wide)(source, table)]
    if not found:
        raise refuse_empty(source, "the table of kernels has a header and no rows")
    log = log_of(source, found, about=f"ncu CSV, {'details' if tables[0].is_long else 'raw'} page")
    left_out = max(0 if table.is_long else len(table.metrics) - len(table.kept) for table in tables)
    note = f"left out: {left_out:,} columns about device, launch and profiler, and averages of counters that have a sum"
    return replace(log, notes=(*log.notes, note)) if left_out else log


def _tables(source: Source) -> Iterator[_Table]:
    """The tables of a log; several runs may have been written into one."""
    table: _Table | None = None
    lines = iter(source.numbered())
    for number, line in lines:
        start = HEADER.search(line)
        if start is not None and (table is None or start.start() == 0):
            if table is not None:
                yield table
            # A program that does not end its last line shares it with the header.
            table = _Table(number, _header(source, number, line[start.start() :]))
        elif table is not None and _ROW.match(line):
            table.rows.append((number, record(source, lines, (number, line))))
    if table is not None:
        yield table


def _header(source: Source, number: int, line: str) -> list[str]:
    cells = cells_of(line)
    if cells is None or "Kernel Name" not in cells:
        raise source.bad(number, "the header row breaks off: the file is not whole, export it again")
    return cells


def _wide(source: Source, table: _Table) -> Iterator[Profiled]:
    """The raw page."""
    if not table.rows:
        return
    first_line, units = table.rows[0]
    if units[:1] != [""]:
        raise source.bad(first_line, "the row of units is missing under the header: export it again with --page raw")
    for line, cells in table.rows:
        if len(cells) != len(table.header):
            raise table.torn(source, line, cells)
        if line == first_line:
            continue
        printed = [Printed(name, units[place], cells[place], line) for place, name in table.kept]
        device = table.cell(cells, "device__attribute_display_name")
        yield Profiled(_launch(source, table, (line, cells)), printed, device, table.cell(cells, "CC"))


def _long(source: Source, table: _Table) -> Iterator[Profiled]:
    """The details page, and summaries."""
    value = "Average" if "Average" in table.places else "Metric Value"
    if not {"Metric Unit", value} <= set(table.places):
        raise source.bad(table.line, "the header row breaks off: the file is not whole, export it again")
    # Rows without advice may end behind the value.
    needed = max(table.places.get(name, 0) for name in ("Metric Name", "Metric Unit", value, "Maximum"))
    current: Profiled | None = None
    key: list[str] = []
    for line, cells in table.rows:
        if not needed < len(cells) <= len(table.header):
            raise table.torn(source, line, cells)
        mine = [table.cell(cells, name) for name in _ONE_KERNEL]
        if current is None or mine != key:
            if current is not None:
                yield current
            count = times(source, line, table.cell(cells, "Invocations"))
            current = Profiled(_launch(source, table, (line, cells)), [], "", table.cell(cells, "CC"), count)
            key = mine
        if metric := table.cell(cells, "Metric Name"):
            ends = [table.cell(cells, name) if value == "Average" else None for name in ("Minimum", "Maximum")]
            unit, text = table.cell(cells, "Metric Unit"), table.cell(cells, value)
            current.metrics.append(Printed(metric, unit, text, line, *ends))
    if current is not None:
        yield current


def _launch(source: Source, table: _Table, row: tuple[int, list[str]]) -> Launch:
    line, cells = row
    stream = table.cell(cells, "Stream")
    return Launch(
        name=table.cell(cells, "Kernel Name"),
        grid=dim3(source, line, table.cell(cells, "Grid Size")),
        block=dim3(source, line, table.cell(cells, "Block Size")),
        stream=int(stream) if stream.isdecimal() else None,
        label="/".join(name for place in table.range_places for name in ranges(cells[place])),
    )


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
