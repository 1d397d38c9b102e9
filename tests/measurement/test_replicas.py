"""Processes that run one step together: how they are ended, and a training step that two of them really share."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

import rooflight
from rooflight.errors import BadInput, CannotMeasure, UnknownModel
from rooflight.ledger import Ledger
from rooflight.measurement.data_parallel import measure_replicas, refuse_for_several
from rooflight.measurement.options import MeasureOptions
from rooflight.measurement.replicas import run_replicas
from rooflight.reporting.sections.ledger_documents import headline
from rooflight.reporting.sections.measure_tables import rank_table
from rooflight.spec import StepSpec, with_part_of
from rooflight.study.cell import StudyCell
from rooflight.study.values import measured
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import rates, wall_s
from rooflight.summary.sums import OpGroup
from tests.fixtures.notes import note_texts
from tests.fixtures.processes import children_of, wait_until_gone

RANK = "import os, pathlib, sys, time; rank = int(os.environ['RANK']); folder = pathlib.Path(sys.argv[1]); "
WATCHED = RANK + "from rooflight.measurement.replicas import end_with_parent; end_with_parent(); "
MARK = "(folder / f'{rank}.pid').write_text(str(os.getpid())); "


def run(script: str, folder: Path, count: int = 2, timeout_s: float = 600.0) -> None:
    run_replicas([sys.executable, "-c", script, str(folder)], count, folder, timeout_s=timeout_s)


def pids(folder: Path, count: int = 2) -> list[int]:
    """When all have begun."""
    end = time.monotonic() + 600
    while len(files := [path for path in folder.glob("*.pid") if path.read_text()]) < count:
        assert time.monotonic() < end, "they did not begin"
        time.sleep(0.02)
    return [int(path.read_text()) for path in files]


# --- processes ---


def test_every_process_knows_its_rank(tmp_path: Path) -> None:
    run(
        RANK + "(folder / os.environ['RANK']).write_text(os.environ['WORLD_SIZE'] + os.environ['LOCAL_RANK'])",
        tmp_path,
        3,
    )
    assert [(tmp_path / str(rank)).read_text() for rank in range(3)] == ["30", "31", "32"]


@pytest.mark.parametrize(
    ("fails", "said"),
    [
        (
            "(folder / 'rank1.error').write_text('no room'); sys.exit(3)",
            "rank 1 of 2 failed, and the others were ended: no room",
        ),
        ("sys.exit('the last line')", "it ended with exit code 1: the last line"),
        ("os.kill(os.getpid(), 9)", "it was killed by signal 9"),
    ],
)
def test_one_that_fails_ends_the_others(fails: str, said: str, tmp_path: Path) -> None:
    """Rank 0 would wait for it for ever."""
    waits = "(exec('time.sleep(1000)') if rank == 0 else None); "
    begun = "[time.sleep(0.02) for _ in iter(lambda: (folder / '0.pid').exists(), True)]; "
    with pytest.raises(CannotMeasure) as caught:
        run(WATCHED + MARK + waits + begun + fails, tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    wait_until_gone(pids(tmp_path))


def test_processes_that_never_end(tmp_path: Path) -> None:
    """Nor hear that they should."""
    with pytest.raises(CannotMeasure, match=r"have not come to an end within 0\.5 s"):
        run(WATCHED + MARK + "time.sleep(1000)", tmp_path, timeout_s=0.5)
    wait_until_gone([int(path.read_text()) for path in tmp_path.glob("*.pid") if path.read_text()])


def test_processes_end_with_whoever_started_them(tmp_path: Path) -> None:
    """Killed, it can end nobody any more: they notice by themselves."""
    script = (
        "import pathlib, sys; from rooflight.measurement.replicas import run_replicas; "
        f"run_replicas([sys.executable, '-c', {WATCHED + MARK + 'time.sleep(1000)'!r}, sys.argv[1]], 2, "
        "pathlib.Path(sys.argv[1]), timeout_s=1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(tmp_path)])
    children = pids(tmp_path)
    parent.kill()
    parent.wait()
    wait_until_gone(children)


def test_nobody_leaves_a_folder_behind(tmp_path: Path) -> None:
    """Killed, who made the folder cannot remove it: those who work in it do."""
    folder = tmp_path / "shared"
    folder.mkdir()
    watched = RANK + "from rooflight.measurement.replicas import end_with_parent; end_with_parent(folder); "
    script = (
        "import pathlib, sys; from rooflight.measurement.replicas import run_replicas; "
        f"run_replicas([sys.executable, '-c', {watched + MARK + 'time.sleep(1000)'!r}, sys.argv[1]], 2, "
        "pathlib.Path(sys.argv[1]), timeout_s=1000)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script, str(folder)])
    children = pids(folder)
    parent.kill()
    parent.wait()
    wait_until_gone(children)
    assert not folder.exists()
    # Where it is alive it removes it itself, when it has read what they left.
    folder.mkdir()
    with pytest.raises(CannotMeasure, match=r"were ended: take a smaller batch, or time fewer steps"):
        run(watched + MARK + "time.sleep(1000)", folder, timeout_s=1.0)
    assert folder.exists()


# --- what is refused, and what is meant ---


def test_a_total_batch_is_shared() -> None:
    spec = StepSpec(model="mnist-cnn", step="train", gpus=4)
    assert with_part_of(spec, 256, 4).batch == 64
    with pytest.raises(BadInput, match="6 cannot be divided evenly among 4 replicas: give a multiple of 4"):
        with_part_of(spec, 6, 4)
    with pytest.raises(BadInput, match="leave one of them out"):
        with_part_of(StepSpec(model="mnist-cnn", step="train", gpus=2, batch=4), 16, 2)
    with pytest.raises(BadInput, match="leave one of them out"):  # also where it is the usual one
        rooflight.measure("mnist-cnn", step="train", gpus=2, batch=1, total_batch=8, device="cpu")


def test_what_is_wrong_is_said_before_a_process_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by rank 0, seconds later."""
    with pytest.raises(UnknownModel, match="no built-in model 'mnist'") as caught:
        rooflight.measure("mnist", step="train", gpus=2, device="cpu")
    assert "rank" not in str(caught.value)
    with pytest.raises(BadInput, match="cuda:1 is one device, and gpus takes several from the first on"):
        rooflight.measure("mnist-cnn", step="train", gpus=2, device="cuda:1")
    # Weights, gradients, momentum, and a copy of weights and momentum: 5 x 4 bytes a parameter, in both.
    room = int(1.5 * 5 * 4 * 1_199_882)
    monkeypatch.setattr("rooflight.measurement.room.free_bytes", lambda where: room)
    with pytest.raises(
        CannotMeasure, match=r"mnist-cnn needs 48\.0 MB .* in each of 2 processes, and cpu has 36\.0 MB"
    ):
        rooflight.measure("mnist-cnn", step="train", gpus=2, device="cpu")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"step": "infer"}, "measures a training step"),
        ({"step": "train", "compile": True}, "measures the eager step"),
        ({"step": "train", "graphs": True}, "measures the eager step"),
    ],
)
def test_steps_that_are_not_shared(given: dict[str, object], said: str) -> None:
    with pytest.raises(BadInput, match=said):
        measure_replicas(StepSpec(model="mnist-cnn", gpus=2, **given), on="cpu")  # type: ignore[arg-type]


def test_counters_are_refused() -> None:
    refuse_for_several(live=False, options=MeasureOptions(repeat=3))
    for options in (MeasureOptions(counters="cupti"), MeasureOptions(per_kernel=True), MeasureOptions(levels=("l2",))):
        with pytest.raises(BadInput, match="hardware counters not taken: they repeat the step on one rank alone"):
            refuse_for_several(live=False, options=options)
    with pytest.raises(BadInput, match="under torchrun"):
        refuse_for_several(live=True, options=MeasureOptions())


def test_more_gpus_than_there_are() -> None:
    with pytest.raises(CannotMeasure, match=r"64 GPUs are asked for, and torch sees \d+: .rooflight predict mnist-cnn"):
        measure_replicas(StepSpec(model="mnist-cnn", step="train", gpus=64), on="cuda")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"parallel": "ddp"}, True),
        ({"parallel": "fsdp"}, False),
        ({"step": "infer"}, False),
        ({"nodes": 2}, False),
        ({"gpus": 1}, False),
        ({"compile": True}, False),
        ({"on": None}, False),
        ({"on": "v100", "dtype": "bf16"}, False),
    ],
)
def test_cells_of_a_study_that_can_be_measured_so(given: dict[str, object], expected: bool) -> None:
    usual: dict[str, object] = {"model": "mnist-cnn", "step": "train", "gpus": 2, "on": "h200"}
    assert StudyCell(**{**usual, **given}).is_data_parallel == expected  # type: ignore[arg-type]


# --- really ---


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    """A training step of two processes on the CPU, four samples each; in a folder with a file called as one of Python's."""
    monkeypatch = pytest.MonkeyPatch()
    folder = tmp_path_factory.mktemp("theirs")
    (folder / "queue.py").write_text("raise RuntimeError('not this one')\n")
    monkeypatch.chdir(folder)
    try:
        return _two()
    finally:
        monkeypatch.undo()


def _two() -> Ledger:
    return rooflight.measure("mnist-cnn", step="train", gpus=2, total_batch=8, repeat=3, device="cpu")


@pytest.mark.slow
def test_two_processes_share_a_training_step(two: Ledger) -> None:
    header, measured = two.header, Measured(two)
    assert (header.world, header.gpus, header.parallel, header.batch) == (2, 2, "ddp", 4)
    assert headline(two).startswith("mnist-cnn · training step · batch 4 on each of 2 ranks (ddp)")
    assert measured.ranks == (0, 1)
    for rank in (0, 1):
        values = {name: value.value for name, value in measured.steps[rank].items()}
        assert values["wall_time_s"] > 0
        # Weights, momentum and gradients, and the buckets in which the gradients are shared: 4 x 4 bytes a parameter.
        assert values["peak_allocated_bytes"] > 3 * 4 * 1_199_882
        assert values["peak_resident_bytes"] > values["peak_allocated_bytes"]
        # The gradients of 1,199,882 parameters in fp32, once.
        assert values["all_reduced_bytes"] == 4 * 1_199_882
    rate = rates(measured).samples_per_s
    assert rate == pytest.approx(8 / (wall_s(measured) or 0))  # all samples in the time of the slowest
    assert any("hardware counters not taken" in note for note in note_texts(header.notes))
    assert any(
        "2 processes, a replica of the model each" in note and "gloo" in note for note in note_texts(header.notes)
    )


@pytest.mark.slow
def test_a_layer_of_a_study_is_one_replicas(two: Ledger) -> None:
    """Not the sum over both processes: its FLOPs, and all that is told beside it, are of one."""
    values, _ = measured(two, ["conv2"])
    (joined,) = (row for row in Measured(two).rows("module") if row.name == "conv2")
    output = values["conv2/output.measured"]
    assert 2 * output == joined.sums.values["output_bytes"]  # both did the same
    assert output > 4 * 4 * 64 * 24 * 24  # four images in fp32, and gradients
    alone = [Measured(two).sums(OpGroup((), (fact,))).time_s or 0 for fact in Measured(two).facts
             if fact.ops and two.ops[fact.ops[0]].module == "conv2" and two.ops[fact.ops[0]].rank == 0]  # fmt: skip
    assert values["conv2/kernel_time.measured"] == pytest.approx(sum(alone))
    assert not {"kernel_time.measured", "kernels.measured", "flops.measured"} & values.keys()


@pytest.mark.slow
def test_layers_keep_their_names(two: Ledger) -> None:
    assert {module.path for module in two.modules} >= {"", "conv1", "fc2"}
    assert not any(op.module.startswith("module") for op in two.ops)
    assert sum(op.name == "c10d::allreduce_" for op in two.ops) >= 2  # at least one bucket a rank
    assert len({op.key for op in two.ops}) == len(two.ops)


@pytest.mark.slow
def test_ranks_are_shown_beside_each_other(two: Ledger, tmp_path: Path) -> None:
    table = rank_table(Measured(two))
    assert [column.name for column in table.columns] == ["rank", "wall", "allocated", "peak resident", "all-reduced"]
    assert [row[0] for row in table.rows] == [0, 1]
    again = rooflight.load(rooflight.save(two, tmp_path / "two.json"))
    assert again == two


@pytest.mark.slow
def test_a_process_that_is_killed_ends_the_measurement(tmp_path: Path) -> None:
    """One line, no orphans, no waiting."""
    command = [sys.executable, "-m", "rooflight", "measure", "mnist-cnn", "--step", "train", "--gpus", "2"]
    parent = subprocess.Popen(
        [*command, "--on", "cpu", "--repeat", "100000"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    end = time.monotonic() + 600
    while len(children := _children(parent.pid)) < 2:
        assert time.monotonic() < end and parent.poll() is None
        time.sleep(0.1)
    time.sleep(1)
    os.kill(children[0], signal.SIGKILL)
    _, said = parent.communicate(timeout=600)
    assert parent.returncode != 0
    lines = [line for line in said.splitlines() if line.startswith("rooflight: ")]
    assert len(lines) == 1 and "of 2 failed, and the others were ended: it was killed by signal 9" in lines[0]
    assert "Traceback" not in said
    wait_until_gone(children)


def _children(process: int) -> list[int]:
    """Processes that run a replica, of this parent."""
    found = []
    for child in children_of(process):
        with suppress(OSError):  # it has just ended
            if b"rooflight.measurement.replica" in Path(f"/proc/{child}/cmdline").read_bytes():
                found.append(child)
    return sorted(found)
