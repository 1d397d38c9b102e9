"""`rooflight study --launcher slurm` on a real Slurm: nodes that die, coordinators that are killed, tasks cancelled."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from rooflight.study.cell import StudyRow
from rooflight.study.journal import JOURNAL, JournalEntry
from rooflight.study.store import read
from tests.slurm import cluster
from tests.slurm.cluster import Cluster, wait_for

pytestmark = pytest.mark.slow

MODELS = Path(__file__).parent / "models_on_nodes.py"
GATED, BROKEN = f"{MODELS}:gated", f"{MODELS}:broken"


class Site:
    """A user at the cluster: a folder for a study, a gate, and the commands that are running."""

    def __init__(self, slurm: Cluster, home: Path) -> None:
        self.slurm = slurm
        self.home = home
        self.folder = home / "found"
        self.gate = home / "gate"
        self.gate.mkdir()
        self._running: list[subprocess.Popen[bytes]] = []
        self._others: set[str] = set()
        self._others = self.jobs()

    def plan(self, *grids: str) -> Path:
        path = self.home / "study.toml"
        path.write_text("".join(f"[[grid]]\n{grid}\n" for grid in grids))
        return path

    def start(self, *arguments: object, before: Path | None = None) -> subprocess.Popen[bytes]:
        """`rooflight study`, its messages in a file; `before`: a folder that comes first on the PATH."""
        environment = {**self.slurm.environment, "ROOFLIGHT_TEST_GATE": str(self.gate), "COLUMNS": "200"}
        if before is not None:
            environment["PATH"] = f"{before}:{environment['PATH']}"
        log = self.home / f"command-{len(self._running)}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", "rooflight", "study", *map(str, arguments)],
                env=environment, cwd=self.home, stdout=file, stderr=file, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        self._running.append(process)
        return process

    def on_slurm(self, what: object, *more: object, **how: Path) -> subprocess.Popen[bytes]:
        given = ("--launcher", "slurm", "--partition", cluster.PARTITION, "--gres", "gpu:1")
        folder = () if what == self.folder else ("-o", self.folder)
        return self.start(what, *folder, *given, *more, **how)

    def said(self, process: subprocess.Popen[bytes]) -> str:
        return (self.home / f"command-{self._running.index(process)}.log").read_text()

    def finish(self, process: subprocess.Popen[bytes], code: int = 0) -> str:
        """What it said, when it has ended so."""
        assert process.wait(timeout=600) == code, self.said(process)
        return self.said(process)

    def at_the_gate(self) -> list[tuple[str, str]]:
        """Task and node of every time that a gated model began."""
        return [(note.name.split(".")[0], note.name.split(".")[1]) for note in self.gate.glob("*.began")]

    def wait_at_the_gate(self, count: int) -> None:
        wait_for(lambda: len(self.at_the_gate()) >= count, f"{count} gated cells", seconds=120)

    def open_gate(self) -> None:
        (self.gate / "open").touch()

    def rows(self) -> list[StudyRow]:
        return read(self.folder)

    def entries(self) -> list[JournalEntry]:
        lines = [line for path in (self.folder / JOURNAL).glob("*.jsonl") for line in path.read_bytes().splitlines()]
        return [msgspec.json.decode(line, type=JournalEntry) for line in lines]

    def assert_each_done_once(self) -> None:
        finished = Counter((entry.key, entry.side) for entry in self.entries() if entry.state == "done")
        assert set(finished.values()) == {1}
        assert [row.state for row in self.rows()] == ["done"] * len(finished)

    def jobs(self) -> set[str]:
        """Every job of this test, whatever became of it."""
        return {job.partition("_")[0] for job in self.slurm.jobs(states="all")} - self._others

    def running(self) -> int:
        return sum(state == "RUNNING" for state, _ in self.slurm.jobs().values())

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()


@pytest.fixture
def site(slurm: Cluster, tmp_path: Path) -> Iterator[Site]:
    with closing(Site(slurm, tmp_path)) as found:
        yield found


def test_a_node_is_lost_in_the_middle_and_one_cell_fails(site: Site) -> None:
    plan = site.plan(
        f'model = "{GATED}"\nbatch = [1, 2, 3]',
        f'model = "{BROKEN}"',
        'model = "mnist-cnn"\nbatch = [1, 2, 3, 4, 5, 6, 7, 8]',
    )
    command = site.on_slurm(plan, "--max-parallel", 3)
    site.wait_at_the_gate(3)
    assert site.running() == 3  # on six GPUs, with nine that wait
    lost = site.at_the_gate()[0][1]
    moved = {task for task, node in site.at_the_gate() if node == lost}
    site.slurm.drain(lost)
    site.slurm.pull_the_plug(lost)
    at_once: set[int] = set()

    def is_back() -> bool:
        at_once.add(site.running())
        again = {task for task, node in site.at_the_gate() if node != lost}
        return moved <= again

    wait_for(is_back, "requeued cells on another node", seconds=120)
    assert command.poll() is None
    site.open_gate()
    while command.poll() is None:
        at_once.add(site.running())
        time.sleep(0.2)
    said = site.finish(command)

    assert site.slurm.node_state(lost).startswith("drain")
    rows = {(row.cell.model, row.cell.batch): row for row in site.rows()}
    assert len(rows) == 12
    failed = rows.pop((BROKEN, 1))
    assert failed.state == "failed"
    assert "this model cannot be built" in failed.failures["estimated"]
    assert {row.state for row in rows.values()} == {"done"}
    assert rows["mnist-cnn", 8].values["flops.estimated"] == 8 * rows["mnist-cnn", 1].values["flops.estimated"]
    assert set(Counter((entry.key, entry.side, entry.state) for entry in site.entries()).values()) == {1}
    assert max(at_once) <= 3
    # An array takes nine here: twelve cells are two of them, of which the second waits for the first.
    assert re.findall(r"submitted (\d+) cells", said) == ["9", "3"]
    assert "Dependency" in said
    assert f"failed: estimated {failed.cell.id}" in said
    assert not list((site.folder / "slurm" / "jobs").iterdir())


def test_a_killed_coordinator_comes_back_to_its_tasks(site: Site) -> None:
    plan = site.plan(f'model = "{GATED}"\nbatch = [1, 2]', 'model = "mnist-cnn"')
    first = site.on_slurm(plan)
    site.wait_at_the_gate(2)
    first.kill()
    first.wait()
    before = site.jobs()
    second = site.on_slurm(site.folder)
    wait_for(lambda: "running on" in site.said(second), "the second coordinator")
    site.open_gate()
    said = site.finish(second)
    assert "submitted" not in said
    assert site.jobs() == before
    assert len(site.at_the_gate()) == 2
    site.assert_each_done_once()


def test_killed_before_the_job_was_written_down(site: Site) -> None:
    """sbatch has answered, and nobody was there to hear it: that job is cancelled, and its cells submitted again."""
    programs = site.home / "bin"
    programs.mkdir()
    deadly = programs / "sbatch"
    real = cluster._found("sbatch")
    deadly.write_text(f'#!/bin/sh\n{real} "$@"\nkill -KILL $PPID\n')
    deadly.chmod(0o755)
    site.open_gate()
    first = site.on_slurm(site.plan(f'model = "{GATED}"\nbatch = [1, 2]'), before=programs)
    assert first.wait(timeout=600) == -signal.SIGKILL
    (orphan,) = site.jobs()
    said = site.finish(site.on_slurm(site.folder))
    assert "submitted 2 cells" in said
    wait_for(lambda: not site.slurm.jobs(), "the end of all jobs")
    states = {job: state for job, (state, _) in site.slurm.jobs(states="all").items()}
    assert {state for job, state in states.items() if job.startswith(f"{orphan}_")} <= {"CANCELLED"}
    assert len(site.at_the_gate()) == 2
    site.assert_each_done_once()


def test_cancelled_tasks_are_failures_with_their_reason_and_can_be_retried(site: Site) -> None:
    """One while it runs, one while nobody follows; one that is out of time; two before they began, of which Slurm forgets
    the first at once."""
    plan = site.plan(f'model = "{GATED}"\nbatch = [1, 2, 3, 4, 5]')
    first = site.on_slurm(plan, "--max-parallel", 3, "--time", 2)
    site.wait_at_the_gate(3)
    (job,) = site.jobs()
    wait_for(lambda: "pending" in site.said(first), "the coordinator")
    for task in (4, 3, 0):
        site.slurm.slurm("scancel", f"{job}_{task}")
    assert f"{job}_4" not in site.slurm.jobs(states="all")
    wait_for(lambda: site.said(first).count("failed: ") == 3, "three failures")
    first.kill()
    site.slurm.slurm("scancel", f"{job}_1")
    # What Slurm sends shortly before the time limit.
    site.slurm.slurm("scancel", "--signal=USR2", f"{job}_2")
    wait_for(lambda: not site.slurm.jobs(), "the end of all tasks")
    said = site.finish(site.on_slurm(site.folder), code=1)  # nothing but failures
    assert "submitted" not in said
    reasons = {row.cell.batch: row.failures["estimated"] for row in site.rows()}
    assert re.fullmatch(rf"Slurm: task {job}_0 on node\d was cancelled", reasons[1])
    assert re.fullmatch(rf"Slurm: task {job}_1 on node\d was cancelled", reasons[2])
    assert re.fullmatch(rf"Slurm: task {job}_2 on node\d ended as failed: the time limit was reached: .*", reasons[3])
    assert reasons[4] == f"Slurm: task {job}_3 was cancelled before it began"
    assert reasons[5] == f"Slurm: task {job}_4 was cancelled before it began"

    site.open_gate()
    assert "submitted 5 cells" in site.finish(site.on_slurm(site.folder, "--retry"))
    site.assert_each_done_once()


def test_a_preempted_task_is_requeued(site: Site) -> None:
    """Also with commands before it, and a Python that is started by another program, as in a container."""
    elsewhere = site.home / "elsewhere"
    elsewhere.mkdir()
    more = ("--setup", f"export ROOFLIGHT_TEST_GATE={elsewhere}", "--python", f"nice -n 1 {sys.executable}")
    command = site.on_slurm(site.plan(f'model = "{GATED}"\nbatch = [1, 2]'), *more)
    site.gate = elsewhere
    site.wait_at_the_gate(2)
    task = site.at_the_gate()[0][0]
    site.slurm.slurm("scancel", "--signal=USR2", task)
    site.wait_at_the_gate(3)
    site.open_gate()
    site.finish(command)
    assert Counter(name for name, _ in site.at_the_gate())[task] == 2
    site.assert_each_done_once()


def test_a_controller_that_is_away_is_waited_for(own_cluster: Cluster, tmp_path: Path) -> None:
    """And one cell is a job of its own, no array."""
    with closing(Site(own_cluster, tmp_path)) as site:
        command = site.on_slurm(site.plan(f'model = "{GATED}"'))
        site.wait_at_the_gate(1)
        site.slurm.stop_controller()
        wait_for(lambda: "Slurm does not answer" in site.said(command), "the coordinator to notice")
        site.slurm.start_controller()
        wait_for(lambda: site.said(command).rstrip().endswith("1 running on node1"), "the coordinator to go on")
        site.open_gate()
        site.finish(command)
        assert len(site.at_the_gate()) == 1
        site.assert_each_done_once()


def test_interrupted_jobs_go_on_until_they_are_cancelled(site: Site) -> None:
    command = site.on_slurm(site.plan(f'model = "{GATED}"\nbatch = [1, 2]'), "--max-parallel", 1)
    site.wait_at_the_gate(1)
    (job,) = site.jobs()
    command.send_signal(signal.SIGINT)
    assert command.wait(timeout=600) == 130
    said = site.said(command)
    assert f"job {job} goes on in Slurm" in said
    assert f"study {site.folder} --launcher slurm --partition gpu --gres gpu:1 --max-parallel 1;" in said
    assert {state for state, _ in site.slurm.jobs().values()} == {"RUNNING", "PENDING"}
    said = site.finish(site.start(site.folder, "--launcher", "slurm", "--cancel"))
    assert "2 tasks" in said
    wait_for(lambda: not site.slurm.jobs(), "the end of all tasks")
    assert [row.state for row in site.rows()] == ["waiting", "waiting"]


def test_what_no_node_has_stays_open(site: Site) -> None:
    plan = site.home / "study.toml"
    plan.write_text('measure = true\n[grid]\nmodel = "mnist-cnn"\non = "h200"\n')
    said = site.finish(site.on_slurm(plan))
    (row,) = site.rows()
    assert row.state == "waiting"
    assert row.failures == {}
    assert {"flops.estimated", "time.predicted"} <= row.values.keys()
    assert f"predicted {row.cell.id}" in said


def test_what_slurm_refuses_is_one_line(site: Site) -> None:
    command = site.start("mnist-cnn", "-o", site.folder, "--launcher", "slurm", "--partition", "nowhere")
    assert command.wait(timeout=600) == 2
    assert site.said(command) == "rooflight: Slurm did not take the job: Invalid partition name specified\n"
    assert not list((site.folder / "slurm" / "jobs").iterdir())


def test_a_cluster_ends_with_whoever_started_it(possible: None) -> None:
    """Killed without a chance to clean up, with a job running."""
    program = (
        "import os, cluster\n"
        "with cluster.running() as found:\n"
        "    found.slurm('sbatch', '--output=/dev/null', '--wrap', 'sleep 4242')\n"
        "    cluster.wait_for(lambda: 'RUNNING' in str(found.jobs()), 'the job')\n"
        "    print(found.folder, flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == -signal.SIGKILL, done.stderr
    folder = done.stdout.strip()
    assert folder

    def is_gone() -> bool:
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        return not Path(folder).exists() and not any(folder.encode() in line or b"4242" in line for line in lines)

    wait_for(is_gone, "the end of the cluster")


def test_cells_go_where_the_nodes_of_their_device_are(site: Site) -> None:
    """Two partitions, a device each: no job holds cells of both, and both run at the same time."""
    plan = site.plan(f'model = "{GATED}"\nbatch = [1, 2]\non = "v100"', f'model = "{GATED}"\nbatch = 4\non = "a100"')
    plan.write_text(
        plan.read_text()
        + '[slurm]\ngres = "gpu:1"\n[slurm.device.v100]\npartition = "old"\n[slurm.device.a100]\npartition = "new"\n'
    )
    command = site.start(plan, "-o", site.folder, "--launcher", "slurm")
    site.wait_at_the_gate(3)
    nodes = Counter(node for _, node in site.at_the_gate())
    assert nodes["node3"] == 2
    assert nodes["node1"] + nodes["node2"] == 1
    assert len(site.jobs()) == 2
    site.open_gate()
    said = site.finish(command)
    assert "Slurm: submitted 2 cells to old as job" in said and "Slurm: submitted 1 cell to new as job" in said
    assert [row.state for row in site.rows()] == ["done"] * 3
