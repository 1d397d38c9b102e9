"""Nsight Compute's CSV, as `ncu --csv` prints it: page raw, page details, and summaries over launches.

The raw page has one row for every kernel and one column for every metric, with the units in a second row. The details
page has one row for every metric of every kernel. A summary (`--print-summary`) has the least, the greatest and the
average over the launches of a kernel. The program's own output and ncu's messages may stand before, between and after.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from rooflight.importing.log import Launch, Log
from rooflight.importing.ncu_launches import Profiled, dim3, log_of, times
from rooflight.importing.ncu_messages import refuse_empty
from rooflight.importing.ncu_metrics import Printed
from rooflight.importing.ncu_tables import Table, tables
from rooflight.importing.source import Source

_ONE_KERNEL = ("ID", "Process ID", "Kernel Name", "Kernel Time", "Invocations", "Grid Size", "Block Size")
"""Rows of the details page that agree in these are about the same launch."""
_RANGE = re.compile(r'"([^"]*)"')


def read(source: Source) -> Log:
    pages = list(tables(source))
    found = [entry for table in pages for entry in (_long if table.is_long else _wide)(source, table)]
    if not found:
        raise refuse_empty(source, "the table of kernels has a header and no rows")
    log = log_of(source, found, about=f"ncu CSV, {'details' if pages[0].is_long else 'raw'} page")
    notes = []
    if left_out := max(0 if table.is_long else len(table.metrics) - len(table.kept) for table in pages):
        notes.append(
            f"left out: {left_out:,} columns about device, launch and profiler, "
            "and averages of counters that have a sum"
        )
    if skipped := sum(table.skipped(source, first=table is pages[0]) for table in pages):
        notes.append(f"the IDs of the kernels skip {skipped:,}: rows were filtered out or lost, and no sum has them")
    return replace(log, notes=(*log.notes, *notes))


def _wide(source: Source, table: Table) -> Iterator[Profiled]:
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
        printed = [Printed(name, units[place], cells[place], line) for place, name in table.kept]
        device = table.cell(cells, "device__attribute_display_name")
        yield Profiled(_launch(source, table, (line, cells)), printed, device, table.cell(cells, "CC"))


def _long(source: Source, table: Table) -> Iterator[Profiled]:
    """The details page, and summaries."""
    value = "Average" if "Average" in table.places else "Metric Value"
    if not {"Metric Unit", value} <= set(table.places):
        raise source.bad(table.line, "the header row breaks off: the file is not whole, export it again")
    # Rows without advice may end behind the value.
    last_needed = max(table.places.get(name, 0) for name in ("Metric Name", "Metric Unit", value, "Maximum"))
    current: Profiled | None = None
    key: list[str] = []
    for line, cells in table.rows:
        table.must_fit(source, (line, cells), least=last_needed + 1)
        table.must_be_numbered(source, (line, cells))
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


def _launch(source: Source, table: Table, row: tuple[int, list[str]]) -> Launch:
    line, cells = row
    stream = table.cell(cells, "Stream")
    return Launch(
        name=table.cell(cells, "Kernel Name"),
        grid=dim3(source, line, table.cell(cells, "Grid Size")),
        block=dim3(source, line, table.cell(cells, "Block Size")),
        stream=int(stream) if re.fullmatch(r"\d{1,18}", stream) else None,
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
