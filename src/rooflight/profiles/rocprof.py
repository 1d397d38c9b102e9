"""AMD's profilers: rocprofv3's `kernel_trace.csv` and `counter_collection.csv`, and `results.csv` of rocprof before it.

A launch is a row of a trace; counters are a row each (rocprofv3) or a column each (rocprof). AMD counts a grid in
threads, a block is a workgroup: the grid here is in blocks, as everywhere. Times are nanoseconds. No file names its
GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from rooflight.profiles.log import (
    Dim3,
    LoggedLaunch,
    LogRow,
    LogText,
    MetricReading,
    ProfilerLog,
    cells_of,
    dim3,
    exact,
    record,
    several_gpus,
    shown,
)
from rooflight.profiles.numbers import PLAIN

TOOL = "rocprof"
HEADER = re.compile(
    r"^(?=[^\n]*\bKernel_?Name\b)(?=[^\n]*(?:\bStart_Timestamp\b|\bCounter_Name\b|\bgpu-id\b))[^\n]*$", re.MULTILINE
)
_FIXED = frozenset({
    "Index", "KernelName", "gpu-id", "queue-id", "queue-index", "pid", "tid", "grd", "wgr", "lds", "scr", "vgpr",
    "arch_vgpr", "accum_vgpr", "sgpr", "wave_size", "fbar", "sig", "obj", "DispatchNs", "BeginNs", "EndNs",
    "CompleteNs", "DurationNs", "Correlation_ID", "Correlation_Id",
})  # fmt: skip
"""Columns of rocprof's that are no counters."""
_AXES = ("X", "Y", "Z")


@dataclass(frozen=True)
class _Named:
    """What the kinds of tables call the same things."""

    name: str
    start: str
    end: str
    agent: str
    queues: tuple[str, ...]


_V3 = _Named("Kernel_Name", "Start_Timestamp", "End_Timestamp", "Agent_Id", ("Stream_Id", "Queue_Id"))
_V1 = _Named("KernelName", "BeginNs", "EndNs", "gpu-id", ("queue-id",))


def read(source: LogText) -> ProfilerLog:
    rows = list(_rows(source))
    if not rows:
        raise source.bad(len(source.lines), "the table of rocprof has a header and no rows: nothing ran on the GPU")
    places = rows[0].places
    named = _V3 if _V3.name in places else _V1
    first = min(_whole(row, named.start) or 0 for row in rows)
    if "Counter_Name" in places:
        launches = list(_counted(rows, named, first))
    else:
        launches = [_launch(row, named, first) for row in rows]
    agents = {row[named.agent] for row in rows}
    version = "rocprofv3" if named is _V3 else "rocprof"
    counted = any(launch.metrics for launch in launches)
    return ProfilerLog(
        tool=TOOL,
        about=f"{version} counters" if counted else f"{version} kernel trace",
        launches=tuple(launches),
        time_origin=f"{version}: end - start",
        notes=tuple(several_gpus(sorted(agents))),
    )


def _rows(source: LogText) -> Iterator[LogRow]:
    """Of the first table of kernels; rocprof may write an empty line below its header."""
    places: dict[str, int] | None = None
    width = 0
    lines = iter(source.numbered())
    for number, line in lines:
        if places is None:
            if HEADER.match(line):
                header = [cell.strip() for cell in cells_of(line) or []]
                places, width = {name: place for place, name in enumerate(header)}, len(header)
            continue
        if not line.strip():
            continue
        row = LogRow(source, number, record(source, lines, (number, line)), places)
        row.must_fit(width)
        if not line.endswith('"'):
            source.must_end(number)
        if row["Kind"] in ("", "KERNEL_DISPATCH"):
            yield row


def _launch(row: LogRow, named: _Named, first: int) -> LoggedLaunch:
    name = _plain(row[named.name])
    if not name:
        raise row.bad("a row without a kernel's name")
    start, end = _whole(row, named.start), _whole(row, named.end)
    if start is not None and end is not None and end < start:
        raise row.bad("the kernel ends before it starts: the file is damaged, export it again")
    block = dim3(*(_whole(row, f"Workgroup_Size_{axis}") for axis in _AXES))
    grid = dim3(*(_whole(row, f"Grid_Size_{axis}") for axis in _AXES))
    queue = next((row[column] for column in named.queues if row[column]), "")
    return LoggedLaunch(
        name=name,
        grid=in_blocks(grid, block),
        block=block,
        stream=int(queue) if re.fullmatch(r"\d{1,15}", queue) else None,
        start_s=None if start is None else (start - first) / 1e9,
        time_s=None if start is None or end is None else (end - start) / 1e9,
        metrics=_columns(row) if named is _V1 else {},
    )


def in_blocks(threads: Dim3 | None, block: Dim3 | None) -> Dim3 | None:
    """A grid of threads as one of blocks; the last block of a row may be a part."""
    if threads is None or block is None or 0 in block:
        return None
    x, y, z = (-(-count // size) for count, size in zip(threads, block, strict=True))
    return x, y, z


def _counted(rows: list[LogRow], named: _Named, first: int) -> Iterator[LoggedLaunch]:
    """A launch for every dispatch; a counter that stands there several times (for parts of the chip) is their sum."""
    dispatches: dict[tuple[str, str, str], tuple[LogRow, dict[str, int | float]]] = {}
    for row in rows:
        key = (row["Process_Id"], row[named.agent], row["Dispatch_Id"])
        _, values = dispatches.setdefault(key, (row, {}))
        counter = row["Counter_Name"]
        if not counter:
            raise row.bad("a row without a counter's name")
        values[counter] = values.get(counter, 0) + _number(row, "Counter_Value")
    for row, values in dispatches.values():
        yield replace(
            _launch(row, named, first), metrics={name: MetricReading(value, "") for name, value in values.items()}
        )


def _columns(row: LogRow) -> dict[str, MetricReading]:
    return {
        name: MetricReading(_number(row, name), "") for name in row.places if name not in _FIXED and name and row[name]
    }


def _whole(row: LogRow, column: str) -> int | None:
    """`None` where the table has no such column."""
    text = row[column]
    if not text and column not in row.places:
        return None
    if not re.fullmatch(r"\d{1,19}", text):
        raise row.bad(f"{column} is {shown(text)}, which is no whole number: the file is damaged, export it again")
    return int(text)


def _number(row: LogRow, column: str) -> int | float:
    value = PLAIN.parse(row[column])
    if value is None or value < 0 or value > 2**63 - 1:
        raise row.bad(f"{column} is {shown(row[column])}, which is no number of a counter")
    return exact(value)


def _plain(name: str) -> str:
    """Without the mark of a kernel descriptor."""
    return name.removesuffix(" [clone .kd]").removesuffix(".kd")
