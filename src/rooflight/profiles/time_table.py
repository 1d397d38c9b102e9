"""Times by kernel: Nsight Systems' `nsys stats --report cuda_gpu_kern_sum --format csv`, or any CSV with a column of
kernels and one of times.

    Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
    83.1,1108928,2,554464.0,554464.0,552192,556736,3213.1,"void gemm<float>(float *, int)"

    kernel,calls,time_us
    gemm,2,1108.9

A time is that of all calls together, unless its column says that it is the average.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from rooflight.ledger import Note
from rooflight.profiles.log import (
    Dim3,
    LoggedLaunch,
    LogRow,
    LogText,
    ProfilerLog,
    cells_of,
    record,
    shown,
)
from rooflight.profiles.numbers import PLAIN
from rooflight.units import Unit, printed_unit

_NAMES = ("name", "kernel", "kernel name", "kernel_name")
_CALLS = ("instances", "calls", "count", "launches", "invocations")
_TOTALS = ("total time", "total_time", "time", "duration", "gpu time", "gpu_time", "kernel time", "kernel_time")
_MEANS = ("avg", "average", "mean", "avg time", "average time", "mean time", "avg_time", "average_time", "mean_time")
_COLUMN = re.compile(r"(?P<name>.*?)\s*(?:\((?P<bracket>[^)]*)\)|\[(?P<square>[^\]]*)\]|_(?P<end>s|ms|us|µs|ns))?")
_OF_THE_HOST = "num calls"
"""A column of nsys' summaries of calls of the runtime and the system, whose rows have names and times too."""
_ROCPROF = "totaldurationns"
"""A column of rocprof's statistics, of kernels (kernel_stats.csv) and of calls (hip_api_stats.csv) alike."""
_OF_API = re.compile(r"(__)?hip[A-Z]\w*|hsa_\w+|roctx\w*|hipblas\w*")
_IS_NSYS = re.compile(r'^"?Time ?\(%\)"?,"?Total Time', re.MULTILINE)


@dataclass(frozen=True)
class _TimeColumns:
    """Where the columns are; `mean`: the time is that of one call."""

    line: int
    places: dict[str, int]
    width: int
    unit: Unit
    mean: bool
    rocprof: bool


def is_one(text: str) -> bool:
    return _header(LogText("", text)) is not None


def read(source: LogText) -> ProfilerLog:
    columns = _header(source)
    assert columns is not None
    rows = [(row, *_times(row, columns)) for row in _rows(source, columns)]
    if not rows:
        raise source.bad(columns.line, "the table of times by kernel has a header and no rows")
    nsys = _IS_NSYS.search(source.text) is not None
    if all(_OF_API.fullmatch(row["name"]) for row, _, _ in rows):
        raise source.bad(columns.line, "these are calls of the host, no kernels: give kernel_stats.csv")
    launches = tuple(
        LoggedLaunch(
            name=row["name"].removesuffix(" [clone .kd]"),
            grid=_dim3(row["GridXYZ"]),
            block=_dim3(row["BlockXYZ"]),
            time_s=float(total),
            calls=calls,
        )
        for row, calls, total in rows
    )
    tool, about, origin = (
        ("nsys", "nsys summary by kernel", "nsys Total Time")
        if nsys
        else ("rocprof", "rocprof statistics of kernels", "rocprof TotalDurationNs")
        if columns.rocprof
        else ("a table of times", "times by kernel", "time by kernel")
    )
    return ProfilerLog(
        tool=tool,
        about=about,
        launches=launches,
        time_origin=origin,
        is_summary=True,
        notes=(
            Note(
                "log-is-summary",
                "the log is a summary: a row is all launches of a kernel, of which no single one is known",
            ),
        ),
    )


def _header(source: LogText) -> _TimeColumns | None:
    """The first line that names a column of kernels and one of times; other lines may stand before it."""
    for number, line in source.numbered():
        cells = cells_of(line) or []
        if len(cells) < 2:
            continue
        matches = [(place, cell.strip(), _COLUMN.fullmatch(cell.strip())) for place, cell in enumerate(cells)]
        named = {match["name"].lower(): (place, match) for place, _, match in reversed(matches) if match is not None}
        whole = {cell.lower(): place for place, cell, _ in reversed(matches)}
        if _OF_THE_HOST in whole:
            continue
        name = next((whole[name] for name in _NAMES if name in whole), None)
        timed = [name for name in (*_TOTALS, *_MEANS) if name in named and _unit(named[name][1]) is not None]
        time = _ROCPROF if _ROCPROF in named and "calls" in whole else next(iter(timed), None)
        if name is None or time is None:
            continue
        place, match = named[time]
        unit = printed_unit("ns") if time == _ROCPROF else _unit(match)
        assert unit is not None
        calls = next((whole[name] for name in _CALLS if name in whole), None)
        places = {"name": name, "time": place, **({} if calls is None else {"calls": calls})}
        places.update({cell: place for place, cell, _ in matches if cell in ("GridXYZ", "BlockXYZ")})
        return _TimeColumns(number, places, len(cells), unit, time in _MEANS, time == _ROCPROF)
    return None


def _unit(match: re.Match[str]) -> Unit | None:
    unit = printed_unit(match["bracket"] or match["square"] or match["end"] or "")
    return unit if unit is not None and unit.base == "second" else None


def _rows(source: LogText, columns: _TimeColumns) -> Iterator[LogRow]:
    lines = iter(source.numbered())
    for number, line in lines:
        if number <= columns.line:
            continue
        if not line.strip():
            return  # an empty line ends a table
        row = LogRow(source, number, record(source, lines, (number, line)), columns.places)
        row.must_fit(columns.width)
        if not row["name"]:
            raise row.bad("a row without a kernel's name")
        yield row


def _times(row: LogRow, columns: _TimeColumns) -> tuple[int, Decimal]:
    """How many calls, and the seconds of all."""
    text = row["calls"] or "1"
    if not re.fullmatch(r"\d{1,9}", text) or not int(text):
        raise row.bad(f"{shown(text)} is no number of calls")
    time = PLAIN.parse(row["time"])
    if time is None or time < 0:
        raise row.bad(f"{shown(row['time'])} is no time")
    seconds = columns.unit.in_base(time)
    return int(text), seconds * int(text) if columns.mean else seconds


def _dim3(text: str) -> Dim3 | None:
    sizes = re.findall(r"\d{1,10}", text)
    return (int(sizes[0]), int(sizes[1]), int(sizes[2])) if len(sizes) == 3 else None
