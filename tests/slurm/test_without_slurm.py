"""What `--launcher slurm` says and refuses on a machine that has no Slurm."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rooflight.errors import BadInput
from rooflight.study.cell import StudyCell
from rooflight.study.plan import plan_of, read_plan, to_toml
from rooflight.study.slurm import queue
from rooflight.study.slurm.launcher import SlurmLauncher
from rooflight.study.slurm.options import SlurmOptions, asked, minutes, with_gpus
from rooflight.study.slurm.placement import CellGroup
from rooflight.study.slurm.records import SubmissionRecords, begun
from rooflight.study.slurm.submission import check_installed

GOLDEN = """\
would submit 3 cells to Slurm, 2 at a time, with this script:

#!/bin/bash

# Parameters
#SBATCH --account=physics
#SBATCH --array=0-2%2
#SBATCH --constraint='h100|h200'
#SBATCH --cpus-per-task=8
#SBATCH --error=HOME/found/slurm/tasks/%A_%a_0_log.err
#SBATCH --exclusive
#SBATCH --gres=gpu:1
#SBATCH --job-name=rooflight-TOKEN
#SBATCH --mem=32G
#SBATCH --nodelist='node[1-4]'
#SBATCH --nodes=1
#SBATCH --open-mode=append
#SBATCH --output=HOME/found/slurm/tasks/%A_%a_0_log.out
#SBATCH --partition=gpu
#SBATCH --qos=short
#SBATCH --requeue
#SBATCH --signal=USR2@30
#SBATCH --time=90

# setup
module load cuda

# command
export SUBMITIT_EXECUTOR=slurm
srun --unbuffered --output HOME/found/slurm/tasks/%A_%a_%t_log.out --error HOME/found/slurm/tasks/%A_%a_%t_log.err \
--cpus-per-task=8 apptainer exec --nv rooflight.sif python -u -m submitit.core._submit HOME/found/slurm/tasks

one cell a task:
    0  {0}
    1  {1}
    2  {2}
"""


def study(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`rooflight study` where nothing is on the PATH."""
    (home / "empty").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "rooflight", "study", *arguments],
        env={**os.environ, "PATH": str(home / "empty")}, cwd=home, capture_output=True, text=True, timeout=600,
    )  # fmt: skip


def test_a_dry_run_prints_the_script_and_its_cells(tmp_path: Path) -> None:
    done = study(
        tmp_path, "mnist-cnn", "--batch", "1,2,4", "-o", "found", "--launcher", "slurm", "--dry-run",
        "--partition", "gpu", "--gres", "gpu:1", "--max-parallel", "2", "--time", "1:29:30", "--account", "physics",
        "--qos", "short", "--constraint", "h100|h200", "--nodelist", "node[1-4]", "--slurm", "mem=32G",
        "--slurm", "cpus_per_task=8", "--slurm", "exclusive", "--setup", "module load cuda",
        "--python", "apptainer exec --nv rooflight.sif python",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = done.stdout.replace(str(tmp_path), "HOME")
    cells = [StudyCell(model="mnist-cnn", batch=batch).id for batch in (1, 2, 4)]
    assert told[told.index("would submit") :].strip() == GOLDEN.format(*cells).strip()
    assert not (tmp_path / "found" / "slurm").exists()


def test_one_cell_is_no_array(tmp_path: Path) -> None:
    done = study(tmp_path, "mnist-cnn", "-o", "found", "--launcher", "slurm", "--dry-run")
    assert "would submit 1 cell to Slurm" in done.stdout
    assert "--array" not in done.stdout
    assert f"{sys.executable} -u -m submitit" in done.stdout


def test_without_slurm_it_is_one_line(tmp_path: Path) -> None:
    done = study(tmp_path, "mnist-cnn", "-o", "found", "--launcher", "slurm")
    assert done.returncode == 2
    assert done.stderr == (
        "rooflight: no Slurm on this machine (sbatch, squeue, scancel, srun not found): run this where your cluster "
        "takes jobs, or add --dry-run to see what would be submitted\n"
    )


def test_options_of_slurm_go_with_its_launcher(tmp_path: Path) -> None:
    done = study(tmp_path, "mnist-cnn", "-o", "found", "--gres", "gpu:1")
    assert done.returncode == 2
    assert "--gres goes with --launcher slurm" in done.stderr
    done = study(tmp_path, "mnist-cnn", "-o", "found", "--launcher", "slurm", "--workers", "2")
    assert done.returncode == 2
    assert "--max-parallel" in done.stderr


def test_without_submitit_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(BadInput, match=r"pip install 'rooflight\[slurm\]'"):
        check_installed()


def options(**given: Any) -> SlurmOptions:
    usual = dict.fromkeys(
        ("partition", "gres", "time", "account", "qos", "constraint", "nodelist", "max_parallel", "python")
    )
    return asked({**usual, "slurm": (), "setup": (), **given})


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"slurm": ("array=0-3",)}, "--slurm array is not yours to set: every cell is a task"),
        ({"slurm": ("--job_name=x",)}, "--slurm job-name is not yours"),
        ({"slurm": ("partition=gpu",)}, "give it as --partition"),
        ({"slurm": ("mem=",)}, "--slurm mem has no value"),
        ({"slurm": ("mem 32G",)}, "got 'mem 32G'"),
        ({"slurm": ("comment=a\nrm -rf",)}, "more than one line"),
        ({"partition": "gpu\n#SBATCH --uid=0"}, "--partition: .* more than one line"),
        ({"setup": ("a\nb",)}, "--setup: .* more than one line"),
        ({"gres": ""}, "--gres has no value"),
        ({"max_parallel": 0}, "--max-parallel must be at least 1, got 0"),
        ({"time": "tomorrow"}, "--time wants minutes"),
        ({"time": "1"}, "--time 1 is too short"),
        ({"time": "0"}, "--time 0 is too short"),
    ],
)
def test_what_cannot_be_asked_for(given: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput, match=line):
        options(**given)


@pytest.mark.parametrize(
    ("time", "expected"),
    [("90", 90), ("90:00", 90), ("90:01", 91), ("1:30:00", 90), ("0:01:59", 2), ("1-12", 36 * 60), ("2-0:30", 2910),
     ("1-0:0:1", 1441)],
)  # fmt: skip
def test_times_as_slurm_writes_them(time: str, expected: int) -> None:
    assert minutes(time) == expected


def test_the_way_back_has_all_options() -> None:
    found = options(partition="gpu", gres="gpu:1", time="90", max_parallel=3, slurm=("mem=32G", "exclusive"),
                    setup=("module load cuda",), python="apptainer exec a.sif python")  # fmt: skip
    assert found.command("found") == (
        "rooflight study found --launcher slurm --partition gpu --gres gpu:1 --time 90 --max-parallel 3 "
        "--slurm mem=32G --slurm exclusive --setup 'module load cuda' --python 'apptainer exec a.sif python'"
    )
    assert options().command("found") == "rooflight study found --launcher slurm"


def test_records_are_read_back_and_thin_out(tmp_path: Path) -> None:
    records = SubmissionRecords(tmp_path)
    assert records.read() == []
    cut_short = begun("aa", ["one"])
    whole = begun("bb", ["two", "three"]).with_jobs(["7_0", "7_1"])
    records.write(cut_short)
    records.write(whole)
    assert records.read() == [cut_short, whole]
    records.drop(["one", "two"])
    assert [one.tasks for one in records.read()] == [{}, {"three": "7_1"}]
    records.drop(["three"])
    assert records.read() == [cut_short]


def test_a_damaged_record_is_said(tmp_path: Path) -> None:
    records = SubmissionRecords(tmp_path)
    records.write(begun("aa", ["one"]))
    (path,) = (tmp_path / "slurm" / "jobs").iterdir()
    path.write_text('{"token": "aa"')
    with pytest.raises(Exception, match="is damaged"):
        records.read()


def test_the_states_of_tasks() -> None:
    alive = ["PENDING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "REQUEUE_HOLD", "CONFIGURING"]
    broken = ["CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "BOOT_FAIL", "DEADLINE"]
    assert not any(queue.SlurmTask("1", state).has_ended for state in alive)
    assert all(queue.SlurmTask("1", state).is_broken for state in broken)
    assert queue.SlurmTask("1", "COMPLETED").has_ended
    assert not queue.SlurmTask("1", "COMPLETED").is_broken


# --- a device's cells go where its nodes are ---

PLACED = """
[grid]
model = "mnist-cnn"
batch = [1, 2]
on = ["v100", "a100", "h100"]

[slurm]
account = "physics"
cpus_per_task = 4
setup = "module load cuda"

[slurm.device.v100]
partition = "old"
gres = "gpu:v100:1"
time = "2:00:00"

[slurm.device.a100]
partition = "new"
cpus-per-task = 16
setup = ["module load nccl"]
exclusive = true
"""


def scripts(told: str) -> dict[str, dict[str, str | None]]:
    """Options of every script in a dry run, by its first line."""
    found: dict[str, dict[str, str | None]] = {}
    for part in told.split("would submit ")[1:]:
        options = re.findall(r"^#SBATCH --([a-z-]+)(?:=(.*))?$", part, flags=re.MULTILINE)
        found[part.partition(" to Slurm")[0]] = {name: value or None for name, value in options}
    return found


def test_a_job_holds_cells_of_one_device(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLACED)
    given = ("--launcher", "slurm", "--dry-run", "--account", "chemistry", "--partition", "any")
    done = study(tmp_path, "plan.toml", "-o", "found", *given)
    assert done.returncode == 0, done.stderr
    told = scripts(done.stdout)
    old, new = (next(told[key] for key in told if key.startswith(f"2 cells on {name}")) for name in ("v100", "a100"))
    others = told["2 cells"]
    assert len(told) == 3
    assert {name: old[name] for name in ("partition", "gres", "time", "cpus-per-task", "array")} == {
        "partition": "old", "gres": "gpu:v100:1", "time": "120", "cpus-per-task": "4", "array": "0-1%2",
    }  # fmt: skip
    assert (new["partition"], new["cpus-per-task"], "exclusive" in new, "gres" in new) == ("new", "16", True, False)
    # h100 has nothing of its own: what the command line says counts more than [slurm], and less than a device's own.
    assert (others["partition"], others["cpus-per-task"], others["time"]) == ("any", "4", "60")
    assert {options["account"] for options in told.values()} == {"chemistry"}
    blocks = done.stdout.split("would submit ")
    nccl = [block for block in blocks if "module load nccl" in block]
    assert len(nccl) == 1 and "module load cuda\nmodule load nccl" in nccl[0]
    for block in blocks[1:]:
        cells = block.partition("one cell a task:")[2]
        assert sum(f"fp32-{device}" in cells for device in ("v100", "a100", "h100")) == 1


def test_cells_that_are_measured_on_several_gpus_ask_for_as_many() -> None:
    grid = {"model": "mnist-cnn", "step": "train", "on": ["v100", "a100"], "gpus": [1, 2, 4]}
    slurm = {"gpus-per-node": 1, "device": {"v100": {"gres": "gpu:v100:1,lustre:1"}}}
    plan = plan_of({"grid": grid, "slurm": slurm}, "plan.toml")
    placed = SlurmLauncher({}).placement(plan)
    asked_for = {tuple(group): placed.options_of(group) for group in placed.groups(plan.cells)}
    v100 = next(name for name, _ in asked_for if name)
    assert {key: options.gres for key, options in asked_for.items() if key[0]} == {
        (v100, gpus): f"gpu:v100:{gpus},lustre:1" for gpus in (1, 2, 4)
    }
    assert [asked_for["", gpus].more for gpus in (1, 2, 4)] == [{"gpus-per-node": f"{gpus}"} for gpus in (1, 2, 4)]
    # What is only computed needs no more, and who asked for more than that has it.
    computed = SlurmLauncher({}).placement(plan_of({"grid": grid, "slurm": slurm, "measure": False}, "plan.toml"))
    assert {group.gpus for group in computed.groups(plan.cells)} == {1}
    assert [with_gpus(SlurmOptions(gres=gres), 2).gres for gres in ("gpu", "gpu:8", "gpu:rtx-3090", None)] == [
        "gpu:2", "gpu:8", "gpu:rtx-3090:2", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (
            '[slurm.device.h200]\npartition = "x"',
            "[slurm.device.h200]: no cell of this study is on it: its devices are v100",
        ),
        ("[slurm.device.v100]\npartition = 7.5", '[slurm.device.v100] partition: one value, such as partition = "..."'),
        (
            '[slurm.device.v100]\npartiton = "gpu"',
            "[slurm.device.v100] unknown key 'partiton': did you mean partition?",
        ),
        ('[slurm]\nmem_per_cpus = "4G"', "[slurm] unknown key 'mem_per_cpus': did you mean mem_per_cpu?"),
        ('[slurm.device.v100]\narray = "0-3"', "[slurm.device.v100]: --slurm array is not yours to set"),
        ('[slurm]\ntime = "soon"', "[slurm]: --time wants minutes"),
        ('[slurm]\nmax_parallel = "many"', "[slurm] max_parallel is a whole number, got 'many'"),
        ('[slurm]\ndevice = "v100"', "[slurm.device.NAME] is a table of options"),
        ('[slurm.device.v100]\nqos = "a"\n[slurm.device.V100_SXM2]\nqos = "b"', "are the same device"),
    ],
)
def test_a_plan_whose_slurm_is_wrong(wrong: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(f'[grid]\nmodel = "mnist-cnn"\non = "v100"\n{wrong}\n')
    with pytest.raises(BadInput) as caught:
        read_plan(tmp_path / "plan.toml")
    assert said in str(caught.value)


def test_a_plan_with_slurm_is_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(PLACED)
    plan, _ = read_plan(tmp_path / "plan.toml")
    (tmp_path / "again.toml").write_text(to_toml(plan))
    assert read_plan(tmp_path / "again.toml")[0] == plan


def test_a_launcher_of_ones_own_asks_for_what_it_was_given() -> None:
    """Without the command line: what counts is the same, and beside it what the plan says itself."""
    plan = plan_of({"grid": {"model": "mnist-cnn", "on": "v100"}, "slurm": {"account": "physics", "time": "30"}}, "it")
    options = SlurmLauncher({"partition": "old", "time": "90"}).placement(plan).options_of(CellGroup(""))
    assert (options.partition, options.time, options.account) == ("old", "90", "physics")
