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
from rooflight.profiles.collectives import Collective, CollectiveCall, _step, aligned, calls_of, matched
from rooflight.profiles.kineto import decode
from rooflight.profiles.rank_traces import read_logs
from rooflight.reporting.sections.ledger_documents import log_document
from tests.fixtures.notes import note_texts
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
    assert any("one machine" in note and "differ by 10.0 µs" in note for note in note_texts(ledger.header.notes))


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
    assert median(item.skew_ns for item in map(alignment.applied, found)) < 10**5


def test_groups_that_share_no_rank_have_a_clock_each(tmp_path: Path) -> None:
    """0 with 1 and 2 with 3, clocks 5, 7 and 9 s ahead: rank 1 comes 200 us after rank 0, rank 3 50 us after 2."""

    def own(group: str, start: float, end: float, shift: float) -> list[dict[str, Any]]:
        ranks = {"Process Group Name": group, "Process Group Ranks": group}
        return [
            kernel("gemm", start - 20 + shift, start - 10 + shift, 1),
            {**(event := reduced(start + shift, end + shift, 2)), "args": {**event["args"], **ranks}},
        ]

    paths = [
        trace(tmp_path, 0, own("[0, 1]", 100, 400, 0)),
        trace(tmp_path, 1, own("[0, 1]", 300, 400, 5e6)),
        trace(tmp_path, 2, own("[2, 3]", 100, 180, 7e6)),
        trace(tmp_path, 3, own("[2, 3]", 150, 180, 9e6)),
    ]
    ledger = read_logs(paths)
    assert sorted(row["skew_s"] for row in together(ledger)) == [pytest.approx(50e-6), pytest.approx(200e-6)]
    assert any(
        "ranks 0, 1 and ranks 2, 3 have no collective with each other" in note
        for note in note_texts(ledger.header.notes)
    )
    starts = {kernel.label.split("/")[0]: kernel.start_s for kernel in reversed(ledger.kernels)}
    assert starts == {"rank 0": 0, "rank 1": pytest.approx(200e-6), "rank 2": 0, "rank 3": pytest.approx(50e-6)}


def test_a_collective_between_clocks_that_are_not_aligned_is_left_out(tmp_path: Path) -> None:
    """Nobody waits for all in a broadcast: by its ends no clock is set, and its skew would be that of clocks."""

    def own(shift: float) -> list[dict[str, Any]]:
        event = reduced(100 + shift, 200 + shift, 1)
        return [{**event, "args": {**event["args"], "Collective name": "broadcast"}}]

    ledger = read_logs([trace(tmp_path, 0, own(0)), trace(tmp_path, 1, own(7e6))])
    assert together(ledger) == []
    assert any(
        "1 collective between ranks whose clocks are not aligned" in note for note in note_texts(ledger.header.notes)
    )
    assert [kernel.start_s for kernel in ledger.kernels] == [0, 0]


def test_clocks_of_each_group_are_found() -> None:
    found = [
        Collective("all_reduce", "all_reduce", {0: (0, 10), 1: (500, 510)}),
        Collective("all_reduce", "all_reduce", {2: (7000, 7010), 3: (9005, 9010)}),
        Collective("broadcast", "broadcast", {0: (20, 30), 2: (7020, 7030)}),
    ]
    alignment = aligned([0, 1, 2, 3, 4], found, one_clock=False)
    assert alignment.offsets_ns == {0: 0, 1: 500, 2: 0, 3: 2000, 4: 0}
    assert list(map(sorted, alignment.groups)) == [[0, 1], [2, 3], [4]]
    assert [alignment.holds(item) for item in found] == [True, True, False]
    assert aligned([0, 1, 2], found[:1], one_clock=True).groups == [frozenset({0, 1, 2})]


def test_waiting_is_a_part_of_communicating(tmp_path: Path) -> None:
    """Two at once on two streams, each from 0 to 1 ms on rank 0; rank 1 comes 0.9 ms late to both."""

    def own(start: float) -> list[dict[str, Any]]:
        return [reduced(start, 1000, 1, elements=10), reduced(start, 1000, 2, elements=20, stream=8)]

    ledger = read_logs([trace(tmp_path, 0, own(0)), trace(tmp_path, 1, own(900))])
    quantities = steps(ledger)["rank 0"].quantities
    assert quantities["communicating_s"].value == pytest.approx(1000e-6)
    assert quantities["rank_wait_s"].value == pytest.approx(900e-6)
    assert [row["rank_wait_s"] for row in together(ledger)] == [pytest.approx(900e-6)] * 2


def test_ranks_name_their_gpus_themselves(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="device h200: traces of several ranks name their GPUs themselves: leave"):
        read_logs(two_ranks(tmp_path), device="h200")


@pytest.mark.parametrize(("dims", "elements"), [([4, 5], 20), ([], 1), ([2**31] * 80_000, None), ([4, -5], None)])
def test_elements_of_a_call_are_counted_as_far_as_there_can_be(dims: list[int], elements: int | None) -> None:
    event = {"ph": "X", "cat": "user_annotation", "name": "gloo:all_reduce", "pid": 1, "tid": 1, "ts": 0, "dur": 5}
    args = {"Input Dims": [dims], "Input type": ["float"]}
    (found,) = calls_of(decode(json.dumps({"traceEvents": [{**event, "args": args}]}).encode(), name="here"))
    assert found.elements == elements


def test_the_step_of_a_moment_is_that_which_began_last() -> None:
    steps = [(10, 3), (20, 4)]
    assert [_step(moment, steps) for moment in (9, 10, 19, 20, 99)] == [None, 3, 3, 4, 4]


def test_what_cannot_be_one_collective_is_left_out(tmp_path: Path) -> None:
    """A rank that had ended before the other came was in another collective."""
    first = [reduced(100, 200, 1), reduced(1000, 1100, 2), reduced(2000, 2100, 3)]
    second = [reduced(150, 200, 1), reduced(1500, 1600, 2), reduced(2050, 2100, 3)]
    ledger = read_logs([trace(tmp_path, 0, first), trace(tmp_path, 1, second)])
    assert [row["skew_s"] for row in together(ledger)] == [pytest.approx(50e-6), pytest.approx(50e-6)]
    assert any("2 calls of collectives have no partner" in note for note in note_texts(ledger.header.notes))


def test_ranks_by_name_of_file_and_those_missing(tmp_path: Path) -> None:
    paths = []
    for rank in (0, 3):
        paths.append(tmp_path / f"sampled_rank-{rank}.json")
        paths[-1].write_text(json.dumps({"traceEvents": [kernel("gemm", 1, 2, 1)]}))
    ledger = read_logs(paths)
    assert "ranks 1, 2 of 4 are missing" in note_texts(ledger.header.notes)
    assert any("no collective in common" in note for note in note_texts(ledger.header.notes))


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
