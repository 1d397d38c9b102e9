"""Nsight Systems' list of everything that ran on the GPU: `nsys stats --report cuda_gpu_trace --format csv`.

Older versions call the report `gputrace`. The units stand in the column names and may be any; numbers are plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from rooflight.ledger import KernelKind
from rooflight.profiles.log import (
    LoggedLaunch,
    LogText,
    MetricReading,
    NotCounted,
    ProfilerLog,
    cells_of,
    dim3,
    exact,
    record,
    shown,
)
from rooflight.profiles.numbers import PLAIN
from rooflight.units import printed_unit

HEADER = re.compile(r'^"?Start ?\([^)]*\)"?,"?Duration ?\([^)]*\)"?,', re.MULTILINE)
_COLUMN = re.compile(r"(?P<name>[^(]+?) ?(?:\((?P<unit>[^)]*)\))?")
_NEEDED = ("Start", "Duration", "Name")
_ROW = re.compile(r'"?-?\d')
_MESSAGE = re.compile(r"(NOTICE|WARNING|ERROR|FATAL ERROR): ")
_NEXT_REPORT = re.compile(r"(Processing|Generating|SKIPPED)\b")
_ONLY_HERE = re.compile(r'.*,"?BlkZ"?,')
"""A column that no other report has."""
_SIZES = (("GrdX", "GrdY", "GrdZ"), ("BlkX", "BlkY", "BlkZ"))


class _NsysColumns:
    """Where the columns are, and in which units."""

    def __init__(self, source: LogText, line: int, header: list[str]) -> None:
        matches = [_COLUMN.fullmatch(name) for name in header]
        self.names = {match["name"]: place for place, match in enumerate(matches) if match is not None}
        self.units = {match["name"]: match["unit"] or "" for match in matches if match is not None}
        self.width = len(header)
        self.source = source
        if any(name not in self.names for name in _NEEDED):
            raise source.bad(
                line, f"the header lacks one of {', '.join(_NEEDED)}: the file is not whole, export it again"
            )

    @property
    def is_of_the_gpu(self) -> bool:
        """Calls of the runtime have a start, a duration and a name too (cuda_api_trace)."""
        return "Device" in self.names or "GrdX" in self.names

    def cell(self, cells: list[str], name: str) -> str:
        return cells[self.names[name]].strip() if name in self.names else ""

    def number(self, row: tuple[int, list[str]], name: str) -> Decimal | None:
        """A number in its base unit; `None` where the cell is empty."""
        line, cells = row
        text = self.cell(cells, name)
        if text in ("", "-"):
            return None
        known, value = printed_unit(self.units.get(name, "")), PLAIN.parse(text)
        if value is None:
            raise self.source.bad(line, f"{name} is {shown(text)}, which is no number of a counter")
        if value < 0 and name != "Start":
            raise self.source.bad(line, f"{name} is {text!r}: the file is damaged, export it again")
        if known is None:
            raise self.source.bad(line, f"{name} is in {self.units[name]!r}, a unit that rooflight does not know")
        return known.in_base(value)

    def exact(self, row: tuple[int, list[str]], name: str) -> int | float | None:
        """The same for what is counted one by one."""
        value = self.number(row, name)
        try:
            return None if value is None else exact(value)
        except NotCounted as problem:
            raise self.source.bad(row[0], f"{name} is {shown(self.cell(row[1], name))}: {problem}") from None

    def whole(self, row: tuple[int, list[str]], name: str) -> int | None:
        value = self.exact(row, name)
        if isinstance(value, float):
            raise self.source.bad(row[0], f"{name} is {shown(self.cell(row[1], name))}, which is no whole number")
        return value


def read(source: LogText) -> ProfilerLog:
    launches: list[LoggedLaunch] = []
    devices: dict[str, None] = {}
    table, latest, out_of_order = None, 0.0, None
    for columns, row in _rows(source):
        devices.setdefault(re.sub(r" \(\d+\)$", "", columns.cell(row[1], "Device")))
        launches.append(_launch(columns, row))
        start = launches[-1].start_s or 0.0
        if columns is table and start < latest:
            out_of_order = out_of_order or row[0]
        table, latest = columns, start
    if not launches:
        raise source.bad(
            len(source.lines),
            "no rows of a GPU trace (nsys stats --report cuda_gpu_trace): nothing ran on the GPU, it was cut, or it "
            "is another report",
        )
    first = min(launch.start_s or 0.0 for launch in launches)
    notes = []
    if len(devices) > 1:
        notes.append(f"the log covers {len(devices)} GPUs, all of them in the totals: {', '.join(devices)}")
    if out_of_order is not None:
        notes.append(
            f"line {out_of_order} starts before the line above it, though nsys sorts by start: unless the file was "
            "sorted anew, a start has lost digits, and gpu_busy_s is wrong"
        )
    return ProfilerLog(
        tool="nsys",
        about="nsys GPU trace",
        launches=tuple(replace(launch, start_s=(launch.start_s or 0.0) - first) for launch in launches),
        time_origin="nsys Duration",
        device=next(iter(devices), "") or None,
        notes=tuple(notes),
    )


def _rows(source: LogText) -> Iterator[tuple[_NsysColumns, tuple[int, list[str]]]]:
    """The rows of all GPU traces in the file. Nothing but nsys writes into its tables, and names are not quoted, so
    that nothing shows what a damaged row was: a line inside a table is a row, or it is refused."""
    columns: _NsysColumns | None = None
    blank: int | None = None
    lines = iter(source.numbered())
    for number, line in lines:
        if HEADER.match(line):
            header = cells_of(line)
            if header is None:
                raise source.bad(number, "the header row breaks off: the file is not whole, export it again")
            columns, blank = _NsysColumns(source, number, [name.strip() for name in header]), None
            columns = columns if columns.is_of_the_gpu else None
        elif _ONLY_HERE.match(line):
            raise source.bad(number, "the header row has lost its beginning: the file is not whole, export it again")
        elif columns is None or _MESSAGE.match(line):
            continue
        elif _NEXT_REPORT.match(line):
            columns = None
        elif not line.strip():
            blank = blank or number
        elif _ROW.match(line):
            if blank is not None:
                raise source.bad(blank, "an empty line among the rows: the file is not whole, export it again")
            yield columns, (number, _cells(columns, lines, (number, line)))
        elif blank is not None:
            columns = None  # an empty line ends a table, and this is no part of one
        else:
            raise source.bad(number, "this is no row of the table above: the file is not whole, export it again")


def _cells(columns: _NsysColumns, lines: Iterator[tuple[int, str]], first: tuple[int, str]) -> list[str]:
    number, line = first
    source = columns.source
    cells = record(source, lines, first)
    if len(cells) != columns.width:
        raise source.bad(
            number, f"{len(cells)} cells where the header has {columns.width}: the file is not whole, export it again"
        )
    if not line.endswith('"'):
        source.must_end(number)
    return cells


def _launch(columns: _NsysColumns, row: tuple[int, list[str]]) -> LoggedLaunch:
    line, cells = row
    name = columns.cell(cells, "Name")
    start, time = columns.number(row, "Start"), columns.number(row, "Duration")
    if start is None or time is None or not name:
        raise columns.source.bad(line, "a launch needs a start, a duration and a name: the file is not whole")
    grid, block = (dim3(*(columns.whole(row, axis) for axis in axes)) for axes in _SIZES)
    size = columns.exact(row, "Bytes")
    metrics = {"copied_bytes": MetricReading(size, "byte")} if size is not None else {}
    return LoggedLaunch(
        name=name,
        kind=_kind(name),
        grid=grid,
        block=block,
        stream=columns.whole(row, "Strm"),
        start_s=float(start),
        time_s=float(time),
        metrics=metrics,
    )


def _kind(name: str) -> KernelKind:
    if name.lower().startswith("[cuda memcpy"):
        return "copy"
    return "set" if name.lower().startswith("[cuda memset") else "kernel"
