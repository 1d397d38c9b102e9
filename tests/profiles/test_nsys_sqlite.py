"""Nsight Systems' SQLite export: kernels, their launches and their NVTX ranges; and databases that are hostile."""

from __future__ import annotations

import gzip
import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from rooflight.errors import BadFile
from rooflight.ledger import Ledger
from rooflight.profiles import read
from tests.fixtures.notes import note_texts

PROCESS = 0x0001_0000_1267 << 24
"""Of the process; the number of a thread is this and the thread's own."""
MAIN, BACKWARD = PROCESS | 7, PROCESS | 8

SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE TARGET_INFO_GPU (vmId INTEGER, id INTEGER, name TEXT, computeMajor INTEGER, computeMinor INTEGER);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER, cudaId INTEGER, pid INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER NOT NULL, end INTEGER NOT NULL, deviceId INTEGER,
    contextId INTEGER, streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER,
    shortName INTEGER, gridX INTEGER, gridY INTEGER, gridZ INTEGER, blockX INTEGER, blockY INTEGER, blockZ INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER,
    correlationId INTEGER, globalPid INTEGER, value INTEGER, bytes INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, eventClass INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
"""
ROWS: dict[str, list[tuple[Any, ...]]] = {
    "StringIds": [(1, "void gemm<float>(float*)"), (2, "gemm"), (3, "conv1"), (4, "void relu<4>(int)"), (5, "relu")],
    "TARGET_INFO_GPU": [(0, 4, "NVIDIA A100-SXM4-40GB", 8, 0), (0, 5, "NVIDIA T4", 7, 5)],
    "TARGET_INFO_CUDA_DEVICE": [(4, 0, 4711)],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        (20_000, 23_000, 0, 1, 7, 11, PROCESS, 1, 2, 8, 4, 1, 256, 1, 1),
        (22_000, 26_000, 0, 1, 13, 12, PROCESS, 4, 5, 16, 1, 1, 128, 2, 1),
        # Another process has a call of the same number.
        (30_000, 31_000, 0, 1, 7, 11, PROCESS + (1 << 24), 4, 5, 1, 1, 1, 32, 1, 1),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [(10_000, 15_000, 0, 7, 10, PROCESS, 4096, 1)],
    "CUPTI_ACTIVITY_KIND_MEMSET": [(16_000, 17_000, 0, 7, 13, PROCESS, 0, 64)],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        (9_000, 9_500, 0, MAIN, 10, 0),
        # The driver's call inside that of the runtime has its number.
        (12_200, 12_900, 1, MAIN, 11, 0),
        (12_000, 13_000, 0, MAIN, 11, 0),
        (14_000, 14_500, 0, BACKWARD, 12, 0),
        (12_500, 12_600, 0, MAIN, 99, 0),
    ],
    "NVTX_EVENTS": [
        (8_000, 50_000, 59, "step", MAIN, None),
        (11_000, 13_500, 59, None, MAIN, 3),
        (11_500, None, 34, "a mark", MAIN, None),
        (13_600, 13_900, 59, "later", MAIN, None),
        (13_900, 15_000, 59, "backward", BACKWARD, None),
    ],
}  # fmt: skip


def database(
    path: Path, rows: dict[str, list[tuple[Any, ...]]] = ROWS, schema: str = SCHEMA, more: Iterable[str] = ()
) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(schema)
    for table, values in rows.items():
        for row in values:
            connection.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)
    for statement in more:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def changed(table: str, row: int, column: int, value: Any) -> dict[str, list[tuple[Any, ...]]]:
    rows = {name: [list(cells) for cells in values] for name, values in ROWS.items()}
    rows[table][row][column] = value
    return {name: [tuple(cells) for cells in values] for name, values in rows.items()}


def totals(ledger: Ledger) -> dict[str, int | float]:
    return {name: value.value for name, value in ledger.measurements[0].quantities.items()}


def test_a_database(tmp_path: Path) -> None:
    ledger = read(database(tmp_path / "run.sqlite"))
    copy, fill, gemm, _, other = ledger.kernels  # in the order they ran
    assert (copy.name, copy.kind, copy.quantities["copied_bytes"].value) == (
        "[CUDA memcpy Host-to-Device]",
        "copy",
        4096,
    )
    assert (fill.kind, fill.quantities["copied_bytes"].value) == ("set", 64)
    assert (gemm.name, gemm.grid, gemm.block, gemm.stream) == ("void gemm<float>(float*)", (8, 4, 1), (256, 1, 1), 7)
    assert (gemm.start_s, gemm.time_s) == (pytest.approx(10e-6), pytest.approx(3e-6))  # the copy began at 10 us
    assert (gemm.launch_s, gemm.launch_time_s) == (pytest.approx(2e-6), pytest.approx(1e-6))  # of the outer call
    assert [kernel.label for kernel in ledger.kernels] == ["step", "", "step/conv1", "backward", ""]
    assert other.launch_s is None  # the call of that number is of another process
    assert totals(ledger) == {
        "kernels": 3,
        "copied_bytes": 4160,
        "kernel_time_s": pytest.approx(14e-6),
        "gpu_busy_s": pytest.approx(13e-6),  # gemm and relu overlap by 1 us
    }
    assert (ledger.header.device, ledger.header.target) == ("NVIDIA A100-SXM4-40GB", "cuda:80")
    assert any("no counters" in note for note in note_texts(ledger.header.notes))


def test_recognised_by_content_and_gzipped(tmp_path: Path) -> None:
    path = database(tmp_path / "run.csv")
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read(path).kernels == read(packed).kernels
    assert not list(tmp_path.glob("*-journal")), "nothing is written beside it"


def test_other_versions_lack_tables_and_columns(tmp_path: Path) -> None:
    schema = """
    CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT);
    CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, shortName INTEGER);
    """
    rows: dict[str, list[tuple[Any, ...]]] = {"StringIds": [(2, "gemm")], "CUPTI_ACTIVITY_KIND_KERNEL": [(5, 9, 2)]}
    ledger = read(database(tmp_path / "old.sqlite", rows, schema))
    (kernel,) = ledger.kernels
    assert (kernel.name, kernel.time_s, kernel.grid, kernel.stream, kernel.label) == ("gemm", 4e-9, None, None, "")
    assert ledger.header.device is None


def test_graphs_recorded_as_a_whole_are_said(tmp_path: Path) -> None:
    table = "CREATE TABLE CUPTI_ACTIVITY_KIND_GRAPH_TRACE (start INTEGER, end INTEGER, graphId INTEGER)"
    rows = "INSERT INTO CUPTI_ACTIVITY_KIND_GRAPH_TRACE VALUES (40000, 90000, 3), (90000, 140000, 3)"
    ledger = read(database(tmp_path / "run.sqlite", more=(table, rows)))
    assert [kernel.name for kernel in ledger.kernels][-2:] == ["CUDA graph 3", "CUDA graph 3"]
    assert any("2 CUDA graphs (100 µs) were recorded as a whole" in note for note in note_texts(ledger.header.notes))


def test_several_gpus_are_said(tmp_path: Path) -> None:
    rows = changed("CUPTI_ACTIVITY_KIND_KERNEL", 1, 2, 1)
    rows["TARGET_INFO_CUDA_DEVICE"].append((5, 1, 4711))
    ledger = read(database(tmp_path / "run.sqlite", rows))
    note = "the log covers 2 GPUs, all of them in the totals: NVIDIA A100-SXM4-40GB (0), NVIDIA T4 (1)"
    assert note in note_texts(ledger.header.notes)
    assert ledger.header.device == "NVIDIA A100-SXM4-40GB"


KERNEL = "CUPTI_ACTIVITY_KIND_KERNEL"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (changed(KERNEL, 1, 1, 21_000), f"row 2 of {KERNEL}: it ends before it starts"),
        (changed(KERNEL, 0, 0, "soon"), f"row 1 of {KERNEL}: Expected `int`, got `str` - at `$.start`"),
        (changed(KERNEL, 0, 0, 2**63 - 1), "at `$.start`"),
        (changed(KERNEL, 0, 9, b"\xff\x00"), "at `$.gridX`"),
        (changed(KERNEL, 0, 9, -1), "`int` >= 0 - at `$.gridX`"),
        (changed(KERNEL, 0, 7, 77) | {"StringIds": []}, "has no name"),
        (ROWS | {KERNEL: []}, "holds no GPU kernels"),
    ],
)
def test_damaged_rows(rows: dict[str, list[tuple[Any, ...]]], said: str, tmp_path: Path) -> None:
    with pytest.raises(BadFile) as caught:
        read(database(tmp_path / "run.sqlite", rows))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_databases(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="none of Nsight Systems: make one with `nsys export --type sqlite"):
        read(database(tmp_path / "photos.sqlite", {}, "CREATE TABLE photos (id INTEGER)"))
    content = database(tmp_path / "run.sqlite").read_bytes()
    for broken in (content[:20], content[:5000], content[:4096] + b"\0" * (len(content) - 4096)):
        (tmp_path / "broken").write_bytes(broken)
        with pytest.raises(BadFile):
            read(tmp_path / "broken")


def test_nothing_of_a_database_is_run(tmp_path: Path) -> None:
    """A view in the place of a table is none; a computed column is not computed."""
    view = f"CREATE VIEW {KERNEL} AS SELECT 1 AS start, 2 AS end, 1 AS shortName"
    schema = f"CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT); {view};"
    with pytest.raises(BadFile, match="holds no GPU kernels"):
        read(database(tmp_path / "view.sqlite", {"StringIds": [(1, "gemm")]}, schema))
    computed = "CREATE TABLE StringIds (id INTEGER PRIMARY KEY, value TEXT AS (hex(zeroblob(1000))));"
    kernels = f"CREATE TABLE {KERNEL} (start INTEGER, end INTEGER, shortName INTEGER);"
    path = tmp_path / "computed.sqlite"
    connection = sqlite3.connect(path)
    connection.executescript(f"{computed}{kernels}INSERT INTO StringIds (id) VALUES (1);")
    connection.execute(f"INSERT INTO {KERNEL} VALUES (1, 2, 1)")
    connection.commit()
    connection.close()
    with pytest.raises(BadFile):
        read(path)


def test_a_database_that_is_still_written_is_not_finished(tmp_path: Path) -> None:
    """All that was written is in the write-ahead log beside the file. Closed, it is read, though its head still says
    that it may have a log."""
    path, copied, packed = tmp_path / "run.sqlite", tmp_path / "copied.sqlite", tmp_path / "packed.gz"
    writer = sqlite3.connect(path)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("PRAGMA wal_autocheckpoint = 0")
    writer.executescript(SCHEMA)
    for table, rows in ROWS.items():
        writer.executemany(f"INSERT INTO {table} VALUES ({', '.join('?' * len(rows[0]))})", rows)
    writer.commit()
    copied.write_bytes(path.read_bytes())
    packed.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(BadFile, match=r"is not finished: .* `sqlite3 FILE 'PRAGMA wal_checkpoint\(TRUNCATE\)'`"):
        read(path)
    for without_log in (copied, packed):
        with pytest.raises(BadFile, match="none of Nsight Systems"):
            read(without_log)
    writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    packed.write_bytes(gzip.compress(path.read_bytes()))
    expected = read(database(tmp_path / "plain.sqlite")).kernels
    assert read(path).kernels == expected == read(packed).kernels
    writer.close()
    assert read(path).kernels == expected
