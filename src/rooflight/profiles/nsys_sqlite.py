"""Nsight Systems' database: `nsys export --type sqlite`, or the .sqlite that `nsys stats` leaves beside a report.

A kernel carries the correlation of the call that launched it, in its own process; that call lies inside the NVTX ranges
that were open on its thread, and the path of those is the kernel's label. Versions differ in tables and columns: what
is not there is unknown. Times are nanoseconds of one clock. The database is read as data: only plain tables, by column.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Annotated, Any

import msgspec

from rooflight.errors import BadFile
from rooflight.formatting import seconds
from rooflight.ledger import KernelKind, Note
from rooflight.profiles.kineto import HostRange, open_ranges
from rooflight.profiles.log import COPIED, MOST_LAUNCHES, LoggedLaunch, MetricReading, ProfilerLog, dim3, several_gpus

MAGIC = b"SQLite format 3\0"
_KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
_GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
_WORK: dict[str, KernelKind] = {
    _KERNELS: "kernel",
    _GRAPHS: "kernel",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "copy",
    "CUPTI_ACTIVITY_KIND_MEMSET": "set",
}
_COPIES = {1: " Host-to-Device", 2: " Device-to-Host", 8: " Device-to-Device", 10: " Peer-to-Peer"}
_THREAD_BITS = 24
"""The lower bits of a thread's number are the thread, the others its process."""
_Key = tuple[int, int]
"""A call: its process, as the upper bits of its threads' numbers, and its correlation."""
_Texts = dict[int | None, str]
_Whole = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class _Row(msgspec.Struct, rename="camel", gc=False):
    """The columns that are read of any table. A row that lacks a time ends before it starts."""

    start: _Whole = 2**62
    end: _Whole = -1
    device_id: _Whole | None = None
    stream_id: _Whole | None = None
    correlation_id: _Whole = 0
    global_pid: _Whole = 0
    global_tid: _Whole = 0
    bytes: _Size | None = None
    copy_kind: _Whole = 0
    graph_id: _Whole = 0
    demangled_name: _Whole | None = None
    short_name: _Whole | None = None
    mangled_name: _Whole | None = None
    grid_x: _Size | None = None
    grid_y: _Size | None = None
    grid_z: _Size | None = None
    block_x: _Size | None = None
    block_y: _Size | None = None
    block_z: _Size | None = None
    id: _Whole | None = None
    text_id: _Whole | None = None
    cuda_id: _Whole | None = None
    gpu_id: _Whole | None = None
    compute_major: _Whole = 0
    compute_minor: _Whole = 0
    name: Any = ""
    text: Any = ""
    value: Any = ""

    @property
    def key(self) -> _Key:
        return (self.global_pid or self.global_tid) >> _THREAD_BITS, self.correlation_id


_FIELDS = [field.encode_name for field in msgspec.structs.fields(_Row)]


class _Database:
    """The plain tables of a database; `name` is what messages call it."""

    def __init__(self, name: str, connection: sqlite3.Connection) -> None:
        self.name = name
        self._connection = connection
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.execute("PRAGMA trusted_schema = OFF")
        listed = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall()
        plain = [table for table, made in listed if str(made).upper().startswith("CREATE TABLE")]
        self.columns = {table: self._columns(table) for table in plain}

    def _columns(self, table: str) -> list[str]:
        """The stored columns; computed ones are not listed by `table_info`."""
        return [row[1] for row in self._connection.execute(f"PRAGMA table_info({_quoted(table)})")]

    def rows(self, table: str, *, timed: bool = False) -> Iterator[_Row]:
        """All rows of a table; `timed` ones must have an end, and not before their start."""
        present = [name for name in _FIELDS if name in self.columns.get(table, ())]
        if not present:
            return
        cursor = self._connection.execute(f"SELECT {', '.join(map(_quoted, present))} FROM {_quoted(table)}")
        for number, cells in enumerate(cursor, start=1):
            values = {name: cell for name, cell in zip(present, cells, strict=True) if cell is not None}
            try:
                row = msgspec.convert(values, _Row)
            except msgspec.ValidationError as error:
                raise self.bad(table, number, str(error)) from None
            if timed and row.end < row.start:
                raise self.bad(table, number, "it ends before it starts")
            yield row

    def bad(self, table: str, number: int, what: str) -> BadFile:
        text = f"{self.name}, row {number} of {table}: {what}: the database is damaged, export it again"
        return BadFile("damaged-file", text)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def is_database(path: Path) -> bool:
    """Is it one by its first bytes, so that one larger than memory need not be read?"""
    try:
        if not path.is_file():
            return False
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read(path: Path, content: bytes | None = None) -> ProfilerLog:
    """`content`: the database, where it was unpacked into memory."""
    if content is not None:
        with tempfile.TemporaryDirectory() as folder:
            (unpacked := Path(folder) / "unpacked.sqlite").write_bytes(content)
            return _read(unpacked, str(path))
    return _read(path, str(path))


def _read(path: Path, name: str) -> ProfilerLog:
    log = path.resolve().with_name(f"{path.resolve().name}-wal")
    if log.is_file() and log.stat().st_size:
        remedy = "close the program that writes it, or run `sqlite3 FILE 'PRAGMA wal_checkpoint(TRUNCATE)'` on it"
        raise BadFile("unfinished-file", f"{name} is not finished: what was written last is in its -wal file; {remedy}")
    try:
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            return _log(_Database(name, connection))
    except (sqlite3.Error, MemoryError, OverflowError) as error:
        raise BadFile("damaged-file", f"{name} is no whole SQLite database ({error}): export it again") from None


def _log(database: _Database) -> ProfilerLog:
    if not {"StringIds", _KERNELS} & database.columns.keys():
        made = "make one with `nsys export --type sqlite FILE.nsys-rep`"
        raise BadFile("unknown-file", f"{database.name} is an SQLite database, but none of Nsight Systems: {made}")
    texts: _Texts = {}
    for text in database.rows("StringIds"):
        texts.setdefault(text.id, text.value if isinstance(text.value, str) else "")
    work = list(_work(database))
    if not any(_WORK[table] == "kernel" for table, _ in work):
        remedy = "record with `nsys profile --trace cuda,nvtx` on a machine with a GPU"
        raise BadFile("no-gpu-kernels", f"{database.name} holds no GPU kernels ({_KERNELS}): {remedy}")
    calls = _calls(database, {item.key for _, item in work})
    labels = _labels(database, calls, texts)
    devices, capability = _devices(database, {item.device_id for _, item in work})
    first = min(item.start for _, item in work)
    launches = [_launch(database, *entry, first, texts, calls, labels) for entry in enumerate(work, start=1)]
    return ProfilerLog(
        tool="nsys",
        about="nsys SQLite export",
        launches=tuple(launches),
        time_origin="nsys: end - start",
        device=next(iter(devices.values()), None),
        capability=capability,
        notes=(*several_gpus([f"{name} ({number})" for number, name in devices.items()]), *_of_graphs(work)),
    )


def _work(database: _Database) -> Iterator[tuple[str, _Row]]:
    count = 0
    for table in _WORK:
        for item in database.rows(table, timed=True):
            count += 1
            if count > MOST_LAUNCHES:
                remedy = "record a shorter part (nsys profile --duration, or --capture-range cudaProfilerApi)"
                raise BadFile(
                    "too-many-launches", f"{database.name} holds more than {MOST_LAUNCHES:,} launches: {remedy}"
                )
            yield table, item


def _launch(
    database: _Database,
    number: int,
    work: tuple[str, _Row],
    first: int,
    texts: _Texts,
    calls: dict[_Key, _Row],
    labels: dict[_Key, str],
) -> LoggedLaunch:
    table, item = work
    kind, call = _WORK[table], calls.get(item.key)
    if table == _GRAPHS:
        name = f"CUDA graph {item.graph_id}"
    elif kind == "kernel":
        names = (item.demangled_name, item.short_name, item.mangled_name)
        name = next((text for each in names if (text := texts.get(each))), "")
        if not name:
            raise database.bad(table, number, "the kernel has no name in StringIds")
    else:
        name = f"[CUDA memcpy{_COPIES.get(item.copy_kind, '')}]" if kind == "copy" else "[CUDA memset]"
    return LoggedLaunch(
        name=name,
        kind=kind,
        grid=dim3(item.grid_x, item.grid_y, item.grid_z),
        block=dim3(item.block_x, item.block_y, item.block_z),
        stream=item.stream_id,
        start_s=(item.start - first) / 1e9,
        time_s=(item.end - item.start) / 1e9,
        launch_s=None if call is None else (call.start - first) / 1e9,
        launch_time_s=None if call is None else (call.end - call.start) / 1e9,
        label=labels.get(item.key, ""),
        metrics={COPIED: MetricReading(item.bytes, "byte")} if kind != "kernel" and item.bytes is not None else {},
    )


def _calls(database: _Database, wanted: set[_Key]) -> dict[_Key, _Row]:
    """The calls that launched something. One of the runtime and that of the driver inside it share a number: the
    outer one begins first."""
    calls: dict[_Key, _Row] = {}
    for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
        for call in database.rows(table, timed=True):
            key = call.key
            if key in wanted and key[1] and (key not in calls or call.start < calls[key].start):
                calls[key] = call
    return calls


def _labels(database: _Database, calls: dict[_Key, _Row], texts: _Texts) -> dict[_Key, str]:
    """The paths of the NVTX ranges that were open when the calls were made, and have an end."""
    threads = {call.global_tid for call in calls.values()}
    ranges = []
    for item in database.rows("NVTX_EVENTS"):
        name = item.text if isinstance(item.text, str) and item.text else texts.get(item.text_id, "")
        if item.end >= item.start and item.global_tid in threads and name:
            took = (item.end - item.start) / 1000
            ranges.append(HostRange(name=name, cat="nvtx", ts=item.start / 1000, dur=took, tid=item.global_tid))
    moments = (((None, call.global_tid), call.start, key) for key, call in calls.items())
    return {key: "/".join(ranges[position].name for position in stack) for key, stack in open_ranges(ranges, moments)}


def _devices(database: _Database, used: set[int | None]) -> tuple[dict[int, str], str | None]:
    """Names of the GPUs that worked, by number, and the capability of the first."""
    gpu_of = {row.cuda_id: row.gpu_id for row in database.rows("TARGET_INFO_CUDA_DEVICE")}
    gpus = {row.id: row for row in database.rows("TARGET_INFO_GPU")}
    numbers = sorted(number for number in used if number is not None) or [0]
    present = {number: gpus[gpu] for number in numbers if (gpu := gpu_of.get(number, number)) in gpus}
    names = {number: gpu.name for number, gpu in present.items() if isinstance(gpu.name, str) and gpu.name}
    capable = (gpu for gpu in present.values() if 0 < gpu.compute_major < 100 and 0 <= gpu.compute_minor < 10)
    return names, next((f"{gpu.compute_major}.{gpu.compute_minor}" for gpu in capable), None)


def _of_graphs(work: list[tuple[str, _Row]]) -> list[Note]:
    graphs = [item.end - item.start for table, item in work if table == _GRAPHS]
    whole = f"{len(graphs):,} CUDA graphs ({seconds(sum(graphs) / 1e9)}) were recorded as a whole"
    remedy = "each a row without its kernels: record with --cuda-graph-trace=node to see them"
    return [Note("whole-graphs", f"{whole}, {remedy}")] if graphs else []
