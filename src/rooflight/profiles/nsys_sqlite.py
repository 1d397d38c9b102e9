"""Nsight Systems' database: `nsys export --type sqlite`, or the .sqlite that `nsys stats` leaves beside a report.

A kernel carries the correlation of the call that launched it, in its own process; that call lies inside the NVTX ranges
that were open on its thread, and the path of those is the kernel's label. Versions differ in tables and columns: what
is not there is unknown. Times are nanoseconds of one clock.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rooflight.errors import BadFile
from rooflight.formatting import seconds
from rooflight.ledger import KernelKind, Note
from rooflight.profiles.kineto import HostRange, open_ranges
from rooflight.profiles.log import (
    COPIED,
    MOST_LAUNCHES,
    Dim3,
    LoggedLaunch,
    MetricReading,
    ProfilerLog,
    dim3,
    several_gpus,
)
from rooflight.profiles.sqlite_tables import SqliteTables, StoredRow, opened

_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_WORK: dict[str, KernelKind] = {
    _KERNELS: "kernel",
    _GRAPHS: "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "set",
}
_CALLS = ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER")
_NAMES = ("demangledName", "shortName", "mangledName")
_GRID, _BLOCK = ("gridX", "gridY", "gridZ"), ("blockX", "blockY", "blockZ")
_COPIES = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device", 10: "Peer-to-Peer"}
_THREAD_BITS = 24
"""The lower bits of a thread's number are the thread, the others its process."""
_Call = tuple[int, int]
"""Process, as the upper bits of its threads' numbers, and correlation."""


@dataclass(frozen=True)
class _GpuWork:
    """Something that the device ran, before its launch is known."""

    name: str
    kind: KernelKind
    start: int
    end: int
    device: int | None
    call: _Call
    grid: Dim3 | None
    block: Dim3 | None
    stream: int | None
    copied: int | None


@dataclass(frozen=True)
class _Launch:
    """The host's call: its thread, and when it was."""

    thread: int
    start: int
    end: int


def read(path: Path, content: bytes | None = None) -> ProfilerLog:
    """`content`: the database, where it was unpacked into memory."""
    with opened(path, content) as tables:
        if not any(table in tables for table in ("StringIds", _KERNELS)):
            raise BadFile(
                "unknown-file",
                f"{path} is an SQLite database, but none of Nsight Systems: make one with "
                "`nsys export --type sqlite FILE.nsys-rep`",
            )
        strings = _Strings(tables)
        work = _work(tables, strings)
        if not any(item.kind == "kernel" for item in work):
            raise BadFile(
                "no-gpu-kernels",
                f"{path} holds no GPU kernels ({_KERNELS}): record with `nsys profile --trace cuda,nvtx` on a machine "
                "with a GPU",
            )
        calls = _calls(tables, {item.call for item in work})
        labels = _labels(tables, calls, strings)
        devices, capability = _devices(tables, {item.device for item in work})
        graphs = [item for item in work if item.name.startswith("CUDA graph ")]
    first = min(item.start for item in work)
    return ProfilerLog(
        tool="nsys",
        about="nsys SQLite export",
        launches=tuple(_launch(item, first, calls.get(item.call), labels.get(item.call, "")) for item in work),
        time_origin="nsys: end - start",
        device=next(iter(devices.values()), None),
        capability=capability,
        notes=(*several_gpus([f"{name} ({number})" for number, name in devices.items()]), *_of_graphs(graphs)),
    )


def _launch(item: _GpuWork, first: int, call: _Launch | None, label: str) -> LoggedLaunch:
    return LoggedLaunch(
        name=item.name,
        kind=item.kind,
        grid=item.grid,
        block=item.block,
        stream=item.stream,
        start_s=(item.start - first) / 1e9,
        time_s=(item.end - item.start) / 1e9,
        launch_s=None if call is None else (call.start - first) / 1e9,
        launch_time_s=None if call is None else (call.end - call.start) / 1e9,
        label=label,
        metrics={} if item.copied is None else {COPIED: MetricReading(item.copied, "byte")},
    )


def _work(tables: SqliteTables, strings: _Strings) -> list[_GpuWork]:
    columns = (
        *("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", "copyKind", "graphId"),
        *(*_NAMES, *_GRID, *_BLOCK),
    )
    work: list[_GpuWork] = []
    for table, kind in _WORK.items():
        for row in tables.rows(table, *columns):
            work.append(_item(row, table, kind, strings))
            if len(work) > MOST_LAUNCHES:
                raise BadFile(
                    "too-many-launches",
                    f"{tables.name} holds more than {MOST_LAUNCHES:,} launches: record a shorter part "
                    "(nsys profile --duration, or --capture-range cudaProfilerApi)",
                )
    return work


def _item(row: StoredRow, table: str, kind: KernelKind, strings: _Strings) -> _GpuWork:
    start, end = row.needed("start"), row.needed("end")
    if end < start:
        raise row.bad("it ends before it starts")
    if table == _GRAPHS:
        name = f"CUDA graph {row.whole('graphId') or 0}"
    elif kind == "kernel":
        name = next((text for column in _NAMES if (text := strings(row.whole(column)))), "")
        if not name:
            raise row.bad("the kernel has no name in StringIds")
    else:
        way = _COPIES.get(row.whole("copyKind") or 0, "")
        name = f"[CUDA memcpy {way}]".replace(" ]", "]") if kind == "copy" else "[CUDA memset]"
    of_kernel = table == _KERNELS
    grid, block = (dim3(*(row.size(axis) for axis in axes)) if of_kernel else None for axes in (_GRID, _BLOCK))
    process = (row.whole("globalPid") or 0) >> _THREAD_BITS
    return _GpuWork(
        name=name,
        kind=kind,
        start=start,
        end=end,
        device=row.whole("deviceId"),
        call=(process, row.whole("correlationId") or 0),
        grid=grid,
        block=block,
        stream=row.whole("streamId"),
        copied=None if kind == "kernel" else row.size("bytes"),
    )


class _Strings:
    """Texts by their numbers. Read once, all of them: a table without a key is searched from its begin for each."""

    def __init__(self, tables: SqliteTables) -> None:
        self._texts: dict[int | None, str] = {}
        for row in tables.rows("StringIds", "id", "value"):
            self._texts.setdefault(row.whole("id"), row.text("value"))

    def __call__(self, number: int | None) -> str:
        return "" if number is None else self._texts.get(number, "")


def _calls(tables: SqliteTables, wanted: set[_Call]) -> dict[_Call, _Launch]:
    """The calls that launched something. One of the runtime and that of the driver inside it share a number: the
    outer one begins first."""
    calls: dict[_Call, _Launch] = {}
    for table in _CALLS:
        for row in tables.rows(table, "start", "end", "globalTid", "correlationId"):
            thread = row.whole("globalTid") or 0
            key = (thread >> _THREAD_BITS, row.whole("correlationId") or 0)
            if key not in wanted or not key[1]:
                continue
            call = _Launch(thread, row.needed("start"), row.needed("end"))
            if call.end < call.start:
                raise row.bad("it ends before it starts")
            if key not in calls or call.start < calls[key].start:
                calls[key] = call
    return calls


def _labels(tables: SqliteTables, calls: dict[_Call, _Launch], strings: _Strings) -> dict[_Call, str]:
    threads = {call.thread for call in calls.values()}
    ranges = list(_ranges(tables, threads, strings))
    moments = (((None, call.thread), call.start, key) for key, call in calls.items())
    return {key: "/".join(ranges[position].name for position in stack) for key, stack in open_ranges(ranges, moments)}


def _ranges(tables: SqliteTables, threads: set[int], strings: _Strings) -> Iterator[HostRange]:
    """NVTX ranges of these threads. Marks have no end; a range that was open when recording stopped has none either."""
    for row in tables.rows("NVTX_EVENTS", "start", "end", "globalTid", "text", "textId"):
        start, end, thread = row.whole("start"), row.whole("end"), row.whole("globalTid") or 0
        if start is None or end is None or end < start or thread not in threads:
            continue
        name = row.text("text") or strings(row.whole("textId"))
        if name:
            yield HostRange(name=name, cat="nvtx", ts=start / 1000, dur=(end - start) / 1000, tid=thread)


def _devices(tables: SqliteTables, used: set[int | None]) -> tuple[dict[int, str], str | None]:
    """Names of the GPUs that worked, by number, and the capability of the first."""
    gpu_of = {
        row.whole("cudaId"): row.whole("gpuId") for row in tables.rows("TARGET_INFO_CUDA_DEVICE", "cudaId", "gpuId")
    }
    gpus = {
        row.whole("id"): (row.text("name"), row.whole("computeMajor"), row.whole("computeMinor"))
        for row in tables.rows("TARGET_INFO_GPU", "id", "name", "computeMajor", "computeMinor")
    }
    numbers = sorted(number for number in used if number is not None) or [0]
    found = {number: gpus[gpu] for number in numbers if (gpu := gpu_of.get(number, number)) in gpus}
    names = {number: name for number, (name, _, _) in found.items() if name}
    capabilities = (f"{major}.{minor}" for _, major, minor in found.values() if _is_generation(major, minor))
    return names, next(capabilities, None)


def _is_generation(major: int | None, minor: int | None) -> bool:
    return major is not None and minor is not None and 0 < major < 100 and 0 <= minor < 10


def _of_graphs(graphs: list[_GpuWork]) -> list[Note]:
    if not graphs:
        return []
    took = seconds(sum(item.end - item.start for item in graphs) / 1e9)
    return [
        Note(
            "whole-graphs",
            f"{len(graphs):,} CUDA graphs ({took}) were recorded as a whole, each a row without its kernels: "
            "record with --cuda-graph-trace=node to see them",
        )
    ]
