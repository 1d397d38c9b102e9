"""Nsight Systems' list of everything that ran on the GPU: `nsys stats --report cuda_gpu_trace --format csv`.

Older versions call the report `gputrace`. The units stand in the column names and may be any; numbers are plain.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from rooflight.ledger import KernelKind, Note
from rooflight.profiles.log import (
    COPIED,
    LoggedLaunch,
    LogRow,
    LogText,
    MetricReading,
    NotCounted,
    ProfilerLog,
    cells_of,
    dim3,
    exact,
    record,
    several_gpus,
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


class _NsysTable:
    """Where the columns are, and in which units."""

    def __init__(self, source: LogText, line: int, header: list[str]) -> None:
        matches = [_COLUMN.fullmatch(name) for name in header]
        self.places = {match["name"]: place for place, match in enumerate(matches) if match is not None}
        self.units = {match["name"]: match["unit"] or "" for match in matches if match is not None}
        self.width = len(header)
        if any(name not in self.places for name in _NEEDED):
            raise source.torn(line, f"the header lacks one of {', '.join(_NEEDED)}")

    @property
    def is_of_the_gpu(self) -> bool:
        """Calls of the runtime have a start, a duration and a name too (cuda_api_trace)."""
        return "Device" in self.places or "GrdX" in self.places

    def number(self, row: LogRow, name: str) -> Decimal | None:
        """A number in its base unit; `None` where the cell is empty."""
        text = row[name]
        if text in ("", "-"):
            return None
        unit, value = printed_unit(self.units[name]), PLAIN.parse(text)
        if value is None:
            raise row.bad(f"{name} is {shown(text)}, which is no number of a counter")
        if value < 0 and name != "Start":
            raise row.bad(f"{name} is {text!r}: the file is damaged, export it again")
        if unit is None:
            raise row.bad(f"{name} is in {self.units[name]!r}, a unit that rooflight does not know")
        return unit.in_base(value)

    def exact(self, row: LogRow, name: str) -> int | float | None:
        """The same for what is counted one by one."""
        value = self.number(row, name)
        try:
            return None if value is None else exact(value)
        except NotCounted as problem:
            raise row.bad(f"{name} is {shown(row[name])}: {problem}") from None

    def whole(self, row: LogRow, name: str) -> int | None:
        value = self.exact(row, name)
        if isinstance(value, float):
            raise row.bad(f"{name} is {shown(row[name])}, which is no whole number")
        return value


def read(source: LogText) -> ProfilerLog:
    launches: list[LoggedLaunch] = []
    devices: dict[str, None] = {}
    above, latest, out_of_order = None, 0.0, None
    for table, row in _rows(source):
        devices.setdefault(re.sub(r" \(\d+\)$", "", row["Device"]))
        launches.append(_launch(table, row))
        start = launches[-1].start_s or 0.0
        if table is above and start < latest:
            out_of_order = out_of_order or row.line
        above, latest = table, start
    if not launches:
        raise source.bad(
            len(source.lines),
            "no rows of a GPU trace (nsys stats --report cuda_gpu_trace): nothing ran on the GPU, it was cut, or it "
            "is another report",
        )
    first = min(launch.start_s or 0.0 for launch in launches)
    notes = several_gpus(devices)
    if out_of_order is not None:
        notes.append(
            Note(
                "out-of-order",
                f"line {out_of_order} starts before the line above it, though nsys sorts by start: unless the file was "
                "sorted anew, a start has lost digits, and gpu_busy_s is wrong",
            )
        )
    return ProfilerLog(
        tool="nsys",
        about="nsys GPU trace",
        launches=tuple(replace(launch, start_s=(launch.start_s or 0.0) - first) for launch in launches),
        time_origin="nsys Duration",
        device=next(iter(devices), "") or None,
        notes=tuple(notes),
    )


def _rows(source: LogText) -> Iterator[tuple[_NsysTable, LogRow]]:
    """The rows of all GPU traces in the file. Nothing but nsys writes into its tables, and names are not quoted, so
    that nothing shows what a damaged row was: a line inside a table is a row, or it is refused."""
    table: _NsysTable | None = None
    blank: int | None = None
    lines = iter(source.numbered())
    for number, line in lines:
        if HEADER.match(line):
            header = cells_of(line)
            if header is None:
                raise source.torn(number, "the header row breaks off")
            table, blank = _NsysTable(source, number, [name.strip() for name in header]), None
            table = table if table.is_of_the_gpu else None
        elif _ONLY_HERE.match(line):
            raise source.torn(number, "the header row has lost its beginning")
        elif table is None or _MESSAGE.match(line):
            continue
        elif _NEXT_REPORT.match(line):
            table = None
        elif not line.strip():
            blank = blank or number
        elif _ROW.match(line):
            if blank is not None:
                raise source.torn(blank, "an empty line among the rows")
            row = LogRow(source, number, record(source, lines, (number, line)), table.places)
            row.must_fit(table.width)
            if not line.endswith('"'):
                source.must_end(number)
            yield table, row
        elif blank is not None:
            table = None  # an empty line ends a table, and this is no part of one
        else:
            raise source.torn(number, "this is no row of the table above")


def _launch(table: _NsysTable, row: LogRow) -> LoggedLaunch:
    name = row["Name"]
    start, time = table.number(row, "Start"), table.number(row, "Duration")
    if start is None or time is None or not name:
        raise row.bad("a launch needs a start, a duration and a name: the file is not whole")
    grid, block = (dim3(*(table.whole(row, axis) for axis in axes)) for axes in _SIZES)
    size = table.exact(row, "Bytes")
    metrics = {COPIED: MetricReading(size, "byte")} if size is not None else {}
    return LoggedLaunch(
        name=name,
        kind=_kind(name),
        grid=grid,
        block=block,
        stream=table.whole(row, "Strm"),
        start_s=float(start),
        time_s=float(time),
        metrics=metrics,
    )


def _kind(name: str) -> KernelKind:
    if name.lower().startswith("[cuda memcpy"):
        return "copy"
    return "set" if name.lower().startswith("[cuda memset") else "kernel"
