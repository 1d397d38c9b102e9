"""What can go wrong with a study: cells that fail in every way, kills at random moments, Ctrl-C, full disks."""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import rooflight
from rooflight.errors import BadFile
from rooflight.study import journal
from rooflight.study.journal import _HOST, StoreBroken, done
from rooflight.study.plan import plan_of, read_plan
from rooflight.study.store import begin, open_study, read
from rooflight.study.work import run_cell, run_side
from rooflight.study.worker import how_it_ended
from tests.fixtures.processes import children_of, wait_until_gone
from tests.fixtures.study_kills import Soak, check_nothing_lost_nothing_doubled, entries, killed_study

FACTORIES = """
import os, signal, time
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, what):
        super().__init__()
        self.fc, self.what = nn.Linear(8, 8), what

    def forward(self, x):
        if self.what == "raises":
            raise ValueError("two\\nlines of trouble")
        if self.what == "memory":
            raise MemoryError
        if self.what == "cuda":
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return self.fc(x)


def well(batch=1):
    return Net(""), torch.zeros(batch, 8)


def raises(batch=1):
    return Net("raises"), torch.zeros(batch, 8)


def memory(batch=1):
    return Net("memory"), torch.zeros(batch, 8)


def cuda(batch=1):
    return Net("cuda"), torch.zeros(batch, 8)


def crashes():
    os.write(2, b"something terrible\\n")
    os.kill(os.getpid(), signal.SIGSEGV)


def single(batch=1):
    return crashes() if batch == 1 else well(batch)


def hangs(batch=1):
    time.sleep(1000)


def once(batch=1):
    if not os.path.exists("tried"):
        open("tried", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return well(batch)


"""


@pytest.fixture
def factories(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(FACTORIES)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def study(*arguments: object, **more) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rooflight", "study", *map(str, arguments)]
    more.setdefault("env", {**os.environ, "COLUMNS": "400"})  # long names are broken in narrower terminals
    return subprocess.run(line, capture_output=True, text=True, timeout=600, **more)


PLAN = """
[[grid]]
model = ["mine.py:raises", "mine.py:memory", "mine.py:cuda", "mine.py:once", "mine.py:well"]
[[grid]]
model = "mine.py:single"
batch = [1, 2, 3]
"""


@pytest.mark.slow
def test_cells_that_fail_in_every_way(factories):
    """Each failure has its reason, all else is done; and when it is tried again, nothing but what failed is."""
    (factories / "plan.toml").write_text(PLAN)
    result = study("plan.toml", "-o", "s", "--workers", "2")
    assert result.returncode == 0, result.stderr
    rows = {(row.cell.model.partition(":")[2], row.cell.batch): row for row in read("s")}
    failed = {("raises", 1), ("memory", 1), ("cuda", 1), ("single", 1)}
    assert {which for which, row in rows.items() if row.state == "failed"} == failed
    assert {which for which, row in rows.items() if row.state == "done"} == rows.keys() - failed
    reasons = {name: rows[name, batch].failures["estimated"] for name, batch in failed}
    assert "ValueError: two" in reasons["raises"]
    assert reasons["memory"].startswith("out of memory")
    assert reasons["cuda"].startswith("out of memory")
    assert reasons["single"] == "its process died of SIGSEGV (something terrible)"
    assert all("\n" not in reason for reason in reasons.values())
    shown = " ".join(result.stdout.split())
    assert all(reason in shown for reason in reasons.values())
    assert "--retry" in result.stderr

    assert "8 cells, 4 done, 4 failed" in study("s").stdout
    (factories / "mine.py").write_text(
        FACTORIES.replace("if self.what ==", "if None ==").replace("crashes() if", "well() if")
    )
    again = study("s", "--retry")
    assert "8 cells, 8 done" in again.stdout
    journal = Counter((entry["key"], entry["state"]) for entry in entries(Path("s")))
    for which, row in rows.items():
        expected = {"failed": 1, "again": 1, "done": 1} if which in failed else {"done": 1}
        assert {state: count for (key, state), count in journal.items() if key == row.cell.id} == expected


def test_a_cell_that_takes_too_long(factories):
    result = study("mine.py:hangs", "-o", "s", "--timeout", "0.5")
    assert result.returncode == 1, result.stderr  # nothing but failures
    (row,) = read("s")
    assert row.failures == {"estimated": "took longer than 0.5 s, which is the study's timeout_s"}


@pytest.mark.parametrize(
    ("code", "said"),
    [(7, "its process ended with exit code 7 (so)"), (-9, "was killed: usually the machine had no more memory (so)"),
     (-11, "its process died of SIGSEGV (so)"), (-60, "its process died of signal 60 (so)")],
)  # fmt: skip
def test_how_processes_end(code, said):
    assert said in how_it_ended(code, "so")


def test_out_of_memory_is_called_that_whoever_says_it():
    import torch

    from rooflight.study.work import reason_of

    with pytest.raises(RuntimeError) as host:
        torch.empty(1 << 60, dtype=torch.uint8)
    for error in (host.value, MemoryError(), torch.OutOfMemoryError("CUDA out of memory")):
        assert reason_of(error).startswith("out of memory")
    assert reason_of(ValueError("a\nb")) == "ValueError: a b"
    with pytest.raises(StoreBroken):
        reason_of(StoreBroken("study-not-writable", "full"))


@pytest.mark.slow
def test_ten_kills_at_random_moments(tmp_path):
    """Of the coordinator, of workers, of all at once; a study that ends before it is killed is followed by another."""
    asked = ["mnist-cnn", "--batch", "1,2,3,5,8", "--step", "infer,train", "--on", "v100,h200", "--workers", "1"]
    rows = None
    soak, chance = Soak(), random.Random(6)
    while soak.count < 10:
        folder = tmp_path / f"study-{soak.studies}"
        killed_study(folder, asked, soak, kills=10 - soak.count, chance=chance)
        if rows is None:
            quiet = begin(tmp_path / "quiet", read_plan(folder / "study.toml")[0])
            rows = [run_cell(quiet.folder, cell.id) for cell in quiet.cells]
        check_nothing_lost_nothing_doubled(folder, rows)


def test_workers_end_with_the_one_who_started_them(factories):
    process = subprocess.Popen([sys.executable, "-m", "rooflight", "study", "mine.py:hangs", "-o", "s"],
                               stderr=subprocess.DEVNULL)  # fmt: skip
    workers = _begun(process)
    process.kill()
    process.wait()
    wait_until_gone(workers)


def _begun(process: subprocess.Popen) -> list[int]:
    """The workers, once they are at work: torch has been imported by then."""
    end = time.monotonic() + 600
    while time.monotonic() < end:
        workers = children_of(process.pid)
        if workers and any("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in workers):
            return workers
        time.sleep(0.02)
    raise AssertionError("no worker began")


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(factories):
    models = "mine.py:well,mine.py:hangs"
    process = subprocess.Popen([sys.executable, "-m", "rooflight", "study", models, "-o", "s", "--workers", "1"],
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)  # fmt: skip
    end = time.monotonic() + 600
    while not (Path("s/journal").is_dir() and any(entry["state"] == "done" for entry in entries(Path("s")))):
        assert time.monotonic() < end
        time.sleep(0.02)
    workers = children_of(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=600)
    assert process.returncode == 130
    assert errors.splitlines()[-1] == (
        "rooflight: interrupted; what was finished is kept, go on with: rooflight study s"
    )
    wait_until_gone(workers)
    assert [row.state for row in read("s")] == ["done", "waiting"]


def test_a_file_that_may_not_grow_ends_the_work_cleanly(tmp_path):
    """As a full disk does, in the middle of a line: nothing lost, and it goes on when there is space."""
    store = begin(tmp_path / "s", plan_of({"grid": {"model": "mnist-cnn", "batch": [1, 2, 3, 4, 5, 6]}}, "s"))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, before[1]))
    try:
        with pytest.raises(StoreBroken, match="File too large; what was finished is kept: make space"):
            run_side(store, store.cells, "estimated")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    states = [row.state for row in read(store.folder)]
    assert {"done", "waiting"} == set(states)
    (segment,) = (store.folder / "journal").iterdir()
    assert segment.read_bytes().endswith(b"\n")
    run_side(store, store.cells, "estimated")
    assert {row.state for row in read(store.folder)} == {"done"}
    keys = [entry["key"] for entry in entries(store.folder)]
    assert len(keys) == len(set(keys)) == 6


@pytest.fixture
def small_disk(tmp_path):
    """256 KiB of their own."""
    place = tmp_path / "disk"
    place.mkdir()
    if (
        os.geteuid() != 0
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(place)], capture_output=True
        ).returncode
    ):
        pytest.skip("only root may mount a disk")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_ends_the_study_cleanly(small_disk):
    folder = small_disk / "s"
    filler = small_disk / "filler"
    filler.write_bytes(b"x" * 160_000)
    asked = ["mnist-cnn", "--batch", ",".join(map(str, range(1, 25))), "--step", "train"]
    result = study(*asked, "-o", folder, "--quiet", "--workers", "1")
    assert result.returncode == 2, result.stdout
    assert result.stderr.count("\n") == 1
    assert "No space left on device; what was finished is kept: make space" in result.stderr
    assert {row.state for row in read(folder)} == {"done", "waiting"}
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    again = study(folder, "--quiet")
    assert again.returncode == 0, again.stderr
    assert {row.state for row in read(folder)} == {"done"}
    for row in read(folder):
        rooflight.load(folder / row.ledgers["estimated"])
    assert not [path for path in (folder / "ledgers").iterdir() if path.name.startswith(".")]


def test_a_broken_folder_is_no_failure_of_a_cell(tmp_path):
    """Whoever cannot write says so, and does not blame the cell."""
    store = begin(tmp_path / "s", plan_of({"grid": {"model": "mnist-cnn"}}, "s"))
    shutil.rmtree(store.folder / "ledgers")
    with pytest.raises(StoreBroken, match="does not exist"):
        run_cell(store.folder, store.cells[0].id)
    assert [row.state for row in read(store.folder)] == ["waiting"]


def test_a_plan_that_is_being_written_is_not_tidied_away(tmp_path, monkeypatch):
    """Another process ends, and tidies, at the very moment when ours has written its plan and not yet named it."""
    folder = tmp_path / "s"
    other = begin(folder, plan_of({"grid": {"model": "mnist-cnn"}}, "s"))
    assert other.locks.is_free("anything")
    named, tidied = os.replace, []

    def replaced(source, target):
        if Path(target).name == "study.toml":
            other.tidy()
            tidied.append(Path(source).exists())
        named(source, target)

    monkeypatch.setattr(os, "replace", replaced)
    begin(folder, plan_of({"grid": {"model": "mnist-cnn", "batch": [1, 2]}}, "s"))
    assert tidied == [True]
    assert [row.cell.batch for row in read(folder)] == [1, 2]


@pytest.mark.parametrize("host", [f"{_HOST}-2", _HOST], ids=["a longer name", "the same name"])
def test_another_machines_journal_is_read_whatever_it_is_called(tmp_path, monkeypatch, host):
    """A network file system shows the size that a file of another machine had: who holds a lock must open it."""
    ours = begin(tmp_path / "s", plan_of({"grid": {"model": "mnist-cnn", "batch": [2, 3]}}, "s"))
    theirs = open_study(ours.folder)
    monkeypatch.setattr(journal, "_segment_name", lambda: f"{host}-4711-abc.jsonl")
    for cell in ours.cells:
        theirs.record([done(cell, "estimated", values={})])
        if cell is ours.cells[0]:
            ours.refresh()
            old = journal._sizes(ours.folder / "journal")
    monkeypatch.setattr(journal, "_sizes", lambda folder: old)
    ours.refresh()
    assert [row.state for row in ours.rows] == ["done", "waiting"]
    ours.refresh(surely=True)
    assert [row.state for row in ours.rows] == ["done", "done"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(BadFile, match="cannot make"):
        begin(tmp_path / "s", plan_of({"grid": {"model": "mnist-cnn"}}, "s"))
    tmp_path.chmod(0o755)


BAD = [
    (["nosuchmodel", "-o", "s"], "no built-in model 'nosuchmodel'"),
    (["mnist-cnn"], "add -o FOLDER"),
    (["mnist-cnn", "--batch", "x", "-o", "s"], "--batch wants whole numbers"),
    (["mnist-cnn", "--batch", "1,1", "-o", "s"], "batch has 1 twice"),
    (["mnist-cnn,", "-o", "s"], "an empty name"),
    (["none.toml", "-o", "s"], "none.toml does not exist"),
    (["plain", "-o", "s"], "plain is a study's folder"),
    (["plain"], "plain is no study's folder"),
    (["mnist-cnn", "-o", "file"], "file is a file"),
    (["mnist-cnn", "-o", "file/s"], "cannot make file/s"),
    (["mnist-cnn", "-o", "plain"], "plain holds other things"),
    (["mnist-cnn", "-o", "s", "--workers", "0"], "--workers must be at least 1"),
    (["mnist-cnn", "-o", "s", "--partition", "gpu"], "--partition goes with --launcher slurm"),
]


@pytest.mark.parametrize(("line", "said"), BAD, ids=[said for _, said in BAD])
def test_what_is_wrong_on_the_command_line_is_said_in_one_line(tmp_path, monkeypatch, line, said):
    from click.testing import CliRunner

    from rooflight.commands.main import _explained, cli

    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "other").write_text("x")
    result = CliRunner().invoke(cli, ["study", *line], standalone_mode=False)
    assert result.exception is not None
    text, code = _explained(result.exception)
    assert code == 2
    assert said in text
    assert not (tmp_path / "s").exists()
