"""Traces of several ranks as one ledger: matched collectives, one clock, and who was waited for."""

from __future__ import annotations

import json
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from rooflight.errors import BadFile, BadInput
from rooflight.files import load, save
from rooflight.ledger import Ledger, Measurement
from rooflight.measurement.rank_traces import read_logs
from rooflight.profiles.collectives import CollectiveCall, aligned, matched
from rooflight.reporting.sections.ledger_documents import log_document
from tests.fixtures.paths import DATA

FOLDER = DATA / "rank_traces"
"""Two processes of gloo on one machine: DDP with a bucket of 68,362 gradients, then an all-reduce of 1,000 numbers to
which rank 1 comes after a sleep of 10 ms; two steps."""


def kernel(name: str, start: float, end: float, correlation: int, **args: Any) -> dict[str, Any]:
    told = {"device": 0, "stream": 7, "correlation": correlation, "grid": [1, 1, 1], "block": [32, 1, 1], **args}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": start, "dur": end - start, "pid": 0, "tid": 7, "args": told}


def reduced(start: float, end: float, correlation: int, elements: int = 1000, **args: Any) -> dict[str, Any]:
    told = {"Collective name": "allreduce", "In msg nelems": elements, "Group size": 2, "dtype": "Float"}
    group = {"Process Group Name": "0", "Process Group Ranks": "[0, 1]"}
    return kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", start, end, correlation, **told, **group, **args)


def trace(folder: Path, rank: int, events: list[dict[str, Any]], **head: Any) -> Path:
    path = folder / f"rank{rank}.json"
    info = {"backend": "nccl", "rank": rank, "world_size": 2}
    path.write_text(json.dumps({"traceEvents": events, "distributedInfo": info, **head}))
    return path


def two_ranks(folder: Path, shift: float = 5000.0) -> list[Path]:
    """Rank 1 comes 200 us late to the first all-reduce and 50 us early to the second; its clock is `shift` us ahead."""
    first = [reduced(100, 400, 1), kernel("gemm", 350, 500, 2), reduced(1000, 1100, 3)]
    second = [reduced(300 + shift, 400 + shift, 1), reduced(950 + shift, 1100 + shift, 3)]
    return [trace(folder, 0, first), trace(folder, 1, second)]


def together(ledger: Ledger) -> list[dict[str, float]]:
    rows = [row for row in ledger.measurements if row.scope == "collective"]
    return [{name: value.value for name, value in row.quantities.items()} for row in rows]


def steps(ledger: Ledger) -> dict[str, Measurement]:
    return {row.name: row for row in ledger.measurements if row.scope == "step"}


@pytest.mark.parametrize("shift", [0.0, 5000.0, -123456.0])
def test_skew_is_the_same_whatever_the_clocks(shift: float, tmp_path: Path) -> None:
    ledger = read_logs(two_ranks(tmp_path, shift))
    us = pytest.approx
    assert together(ledger) == [
        {"skew_s": us(200e-6), "rank_wait_s": us(200e-6), "transfer_s": us(100e-6), "last_rank": 1},
        {"skew_s": us(50e-6), "rank_wait_s": us(50e-6), "transfer_s": us(100e-6), "last_rank": 0},
    ]
    own = {name: value.value for name, value in steps(ledger)["rank 0"].quantities.items()}
    assert own["computing_s"] == us(150e-6)  # gemm alone
    assert own["communicating_s"] == us(400e-6)
    assert own["hidden_s"] == us(50e-6)  # gemm ran from 350 to 400 us beside the first
    assert own["rank_wait_s"] == us(200e-6)
    starts = [kernel.start_s for kernel in ledger.kernels if kernel.label.startswith("rank 1")]
    assert starts == [us(200e-6), us(850e-6)]  # on rank 0's clock, whose first kernel began at 100 us
    assert (ledger.header.world, ledger.header.rank) == (2, 0)


def test_ranks_differ_in_what_times_are_counted_from(tmp_path: Path) -> None:
    """On one machine clocks are as they are: what a trace counts from is added, and nothing is aligned."""
    first = trace(tmp_path, 0, [reduced(100, 400, 1)], host_name="a", baseTimeNanoseconds=10**18)
    second = trace(tmp_path, 1, [reduced(200, 310, 1)], host_name="a", baseTimeNanoseconds=10**18 + 100_000)
    ledger = read_logs([first, second])
    assert together(ledger)[0]["skew_s"] == pytest.approx(200e-6)
    assert any("one machine" in note and "differ by 10.0 µs" in note for note in ledger.header.notes)


def test_a_folder_of_real_traces() -> None:
    ledger = read_logs([FOLDER])
    rows = [row for row in ledger.measurements if row.scope == "collective"]
    late = [row for row in rows if row.name == "all_reduce of 1,000 float"]
    assert [row.quantities["last_rank"].value for row in late] == [1, 1]
    assert all(9e-3 < row.quantities["skew_s"].value < 15e-3 for row in late)  # recorded: it slept 10 ms
    assert len(rows) == 4
    assert {op.rank for op in ledger.ops} == {0, 1}
    assert set(steps(ledger)) == {"rank 0", "rank 1"}
    assert sorted(FOLDER.iterdir()) == sorted(FOLDER.glob("rank*.json.gz"))


def test_saved_shown_and_for_programs(tmp_path: Path) -> None:
    ledger = read_logs([FOLDER])
    save(ledger, tmp_path / "run.json.gz")
    again = load(tmp_path / "run.json.gz")
    assert again == ledger
    document = log_document(again, top=3)
    data = document.data()
    assert [rank["rank"] for rank in data["ranks"]] == [0, 1]
    assert len(data["collectives"]) == 4
    assert data["collectives"][0].keys() == {"name", "skew_s", "rank_wait_s", "transfer_s", "last_rank"}
    headings = [[column.name for column in table.columns] for section in document.sections for table in section.tables]
    assert any("skew, median" in names for names in headings)
    assert any("communicating" in names for names in headings)


def call(
    start: int, end: int, *, elements: int = 8, step: int | None = None, sequence: int | None = None
) -> CollectiveCall:
    return CollectiveCall("all_reduce", "0", elements, "Float", step, sequence, start, end)


def test_sizes_and_steps_tell_collectives_apart() -> None:
    calls = {
        0: [call(0, 10, step=3), call(20, 30, step=3, elements=9), call(40, 50, step=4)],
        # It has not recorded step 3 from its beginning.
        1: [call(21, 30, step=3, elements=9), call(42, 50, step=4)],
    }
    found, alone = matched(calls)
    assert [item.parts for item in found] == [{0: (20, 30), 1: (21, 30)}, {0: (40, 50), 1: (42, 50)}]
    assert alone == 1


def test_numbers_of_a_group_come_first() -> None:
    calls = {0: [call(0, 10, sequence=7), call(20, 30, sequence=8)], 1: [call(22, 30, sequence=8)]}
    found, alone = matched(calls)
    assert [item.parts for item in found] == [{0: (20, 30), 1: (22, 30)}]
    assert alone == 1


def test_clocks_are_found_again() -> None:
    """Four ranks with clocks far apart, two groups that share rank 1, ends that differ a little."""
    rng = random.Random(0)
    true = {0: 0, 1: 10**9, 2: -(10**12), 3: 55}
    calls: dict[int, list[CollectiveCall]] = {rank: [] for rank in true}
    for number in range(40):
        group = (0, 1) if number % 2 else (1, 2, 3)
        end = number * 10**6
        for rank in group:
            start = end - rng.randrange(10**4, 10**5)
            moved = end + rng.randrange(-500, 500) + true[rank]
            calls[rank].append(CollectiveCall("all_reduce", str(group), 8, "", None, None, start + true[rank], moved))
    found, alone = matched(calls)
    assert (len(found), alone) == (40, 0)
    alignment = aligned(sorted(true), found, one_clock=False)
    assert all(abs(alignment.offsets_ns[rank] - true[rank]) < 500 for rank in true)
    assert alignment.spread_ns < 1000
    assert median(item.skew_ns for item in alignment.applied(found)) < 10**5


def test_what_cannot_be_one_collective_is_left_out(tmp_path: Path) -> None:
    """A rank that had ended before the other came was in another collective."""
    first = [reduced(100, 200, 1), reduced(1000, 1100, 2), reduced(2000, 2100, 3)]
    second = [reduced(150, 200, 1), reduced(1500, 1600, 2), reduced(2050, 2100, 3)]
    ledger = read_logs([trace(tmp_path, 0, first), trace(tmp_path, 1, second)])
    assert [row["skew_s"] for row in together(ledger)] == [pytest.approx(50e-6), pytest.approx(50e-6)]
    assert any("2 calls of collectives have no partner" in note for note in ledger.header.notes)


def test_traces_of_older_versions_tell_it_around_the_launch(tmp_path: Path) -> None:
    def events(start: float) -> list[dict[str, Any]]:
        call = {
            "ph": "X",
            "cat": "cuda_runtime",
            "name": "cudaLaunchKernel",
            "pid": 1,
            "tid": 1,
            "args": {"correlation": 4},
        }
        asked = {"ph": "X", "cat": "user_annotation", "name": "nccl:all_to_all", "pid": 1, "tid": 1}
        return [
            {**asked, "ts": 10, "dur": 20, "args": {"Input Dims": [[64]], "Input type": ["float"]}},
            {**call, "ts": 15, "dur": 5},
            kernel("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*)", start, 100, 4),
        ]

    ledger = read_logs([trace(tmp_path, 0, events(30)), trace(tmp_path, 1, events(60))])
    assert [row.name for row in ledger.measurements if row.scope == "collective"] == ["all_to_all"]
    assert together(ledger)[0]["skew_s"] == pytest.approx(30e-6)


def test_ranks_by_name_of_file_and_those_missing(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 3):
        paths.append(tmp_path / f"sampled_rank-{rank}.json")
        paths[-1].write_text(json.dumps({"traceEvents": [kernel("gemm", 1, 2, 1)]}))
    ledger = read_logs(paths)
    assert "ranks 1, 2 of 4 are missing" in ledger.header.notes
    assert any("no collective in common" in note for note in ledger.header.notes)


def test_bad_folders_and_files(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="a folder without traces"):
        read_logs([tmp_path])
    first, second = two_ranks(tmp_path)
    with pytest.raises(BadInput, match="is of rank 0, as another of the traces"):
        read_logs([first, first])
    stranger = tmp_path / "trace.json"
    stranger.write_text(json.dumps({"traceEvents": [kernel("gemm", 1, 2, 1)]}))
    with pytest.raises(BadInput, match="does not tell its rank"):
        read_logs([tmp_path])
    stranger.unlink()
    second.write_text(second.read_text()[:300])
    with pytest.raises(BadFile, match="breaks off"):
        read_logs([tmp_path])
