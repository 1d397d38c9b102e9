"""Which of several processes this is, as the launchers say it, and whose kernel is whose when their ledgers are joined."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rooflight.errors import BadInput
from rooflight.ledger import FORMAT_VERSION, Header, Kernel, Ledger
from rooflight.measurement.ranks import ALONE, ProcessRank, process_rank
from rooflight.profiles.joined_ranks import join, missing_ranks
from tests.fixtures.recordings import recording

TORCHRUN = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}
BATCH = {"SLURM_PROCID": "0", "SLURM_NTASKS": "4", "SLURM_LOCALID": "0"}
SRUN = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_STEP_ID": "0"}


@pytest.mark.parametrize(("environment", "expected"), [
    ({}, ALONE),
    (TORCHRUN, ProcessRank(5, 8, 1)),
    (OPEN_MPI, ProcessRank(2, 4, 0)),
    (SRUN, ProcessRank(3, 4, 1)),
    ({**SRUN, "SLURM_STEP_NUM_TASKS": "4"}, ProcessRank(3, 4, 1)),
    # Inside each other, the one nearest to the program tells.
    ({**SRUN, **TORCHRUN}, ProcessRank(5, 8, 1)),
    ({**SRUN, **OPEN_MPI}, ProcessRank(2, 4, 0)),
    # A batch script, a step of one task, and the shell that salloc opens are one process each.
    (BATCH, ALONE),
    ({**SRUN, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}, ALONE),
    ({**BATCH, "SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1"}, ALONE),
    # One variable alone says nothing; an empty one is unset.
    ({"RANK": "3"}, ALONE), ({"WORLD_SIZE": "3"}, ALONE), ({"LOCAL_RANK": "x"}, ALONE),
    ({**TORCHRUN, "RANK": ""}, ALONE), ({**SRUN, **TORCHRUN, "WORLD_SIZE": ""}, ProcessRank(3, 4, 1)),
    ({"RANK": "1", "WORLD_SIZE": "2"}, ProcessRank(1, 2, 1)), ({**TORCHRUN, "LOCAL_RANK": ""}, ProcessRank(5, 8, 5)),
])  # fmt: skip
def test_the_launcher_says_who_we_are(environment, expected):
    assert process_rank(environment) == expected


@pytest.mark.parametrize("name", [*TORCHRUN, *OPEN_MPI, *(name for name in SRUN if name != "SLURM_STEP_ID")])
@pytest.mark.parametrize("text", ["one", "-1", "1.0", " 1", "²", "٣", "0x1"])
def test_what_is_no_number_is_one_line_that_names_it(name, text):
    launcher = next(words for words in (TORCHRUN, OPEN_MPI, SRUN) if name in words)
    with pytest.raises(BadInput) as caught:
        process_rank({**launcher, name: text})
    assert str(caught.value).startswith(f"{name}={text!r} is no number: ")
    assert len(str(caught.value).splitlines()) == 1


def test_a_rank_that_is_not_one_of_them():
    with pytest.raises(BadInput, match="RANK=8 is no rank of WORLD_SIZE=8: ranks are counted from 0"):
        process_rank({**TORCHRUN, "RANK": "8"})


@given(st.dictionaries(st.sampled_from([*TORCHRUN, *OPEN_MPI, *SRUN]), st.text(max_size=3)))
def test_whatever_stands_there_it_is_a_place_or_one_line(environment):
    found, problem = None, ""
    try:
        found = process_rank(environment)
    except BadInput as error:
        problem = str(error)
    if found is None:
        assert any(problem.startswith(f"{name}=") for name in environment)
    else:
        assert 0 <= found.rank < found.world
        assert found.local_rank >= 0


def test_missing_ranks_of_many_are_named_by_their_runs():
    assert missing_ranks(range(4), 4) is None
    assert str(missing_ranks([0, 2], 4)) == "ranks 1, 3 of 4 are missing"
    assert str(missing_ranks([*range(8), 20], 64)) == "ranks 8-19, 21-63 of 64 are missing"
    assert str(missing_ranks(range(0, 18, 2), 18)) == "ranks 1, 3, 5, 7, 9, 11, 13, 15, 17 of 18 are missing"


def test_a_joined_kernel_says_whose_it_is():
    header = Header(
        rooflight="1", torch="2", model="toy", step="train", target="cuda", batch=1, dtype="fp32", math=None, world=2
    )
    kernels = (Kernel(name="gemm"), Kernel(name="gemm", label="conv1"))
    ledgers = [
        Ledger(
            format_version=FORMAT_VERSION, header=msgspec.structs.replace(header, rank=rank), kernels=kernels
        )
        for rank in range(2)
    ]  # fmt: skip
    joined = join(ledgers)
    assert [kernel.label for kernel in joined.kernels] == ["rank 0", "rank 0: conv1", "rank 1", "rank 1: conv1"]
    assert {kernel.name for kernel in joined.kernels} == {"gemm"}


def test_the_trace_of_joined_ranks_tells_their_kernels_apart():
    from rooflight.reporting.writers.perfetto import to_perfetto

    recorded = recording("h200/mnist-cnn-train-tf32")
    ledgers = [
        msgspec.structs.replace(recorded, header=msgspec.structs.replace(recorded.header, rank=rank, world=2))
        for rank in range(2)
    ]
    events = msgspec.json.decode(to_perfetto(join(ledgers)))["traceEvents"]
    labels = [event["args"]["label"] for event in events if "label" in event.get("args", {})]
    assert labels.count("rank 0") == labels.count("rank 1") == len(recorded.kernels)
