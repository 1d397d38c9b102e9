"""`rooflight measure` at the command line: its forms of output, its files, and its bad days."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import subprocess
import sys

import pytest

import rooflight
from rooflight.commands import measure as command

QUICK = ("--on", "cpu", "--repeat", "2")


@pytest.fixture
def run(run, monkeypatch):
    """Run `rooflight measure ARGUMENTS` in this process: exit code, output, error output."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return run.of("measure")


def spawn(*arguments, folder, **environment):
    """The same in a process of its own, which Ctrl-C may end."""
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "COLUMNS")}
    line = [sys.executable, "-m", "rooflight", "measure", *map(str, arguments)]
    return subprocess.run(
        line, capture_output=True, text=True, timeout=600, check=False, cwd=folder, env=own | environment
    )


# --- forms ---


def test_text_has_the_tables_and_where_the_numbers_come_from(run):
    code, out, err = run("mnist-cnn", "--batch", 2, "--step", "train", *QUICK)
    assert (code, err) == (0, "")
    for word in ("mnist-cnn", "conv2", "CPU time", "wall", "growth", "host_time_s"):
        assert word in out, word


def test_json_has_measured_quantities_with_their_origins(run):
    code, out, err = run("mnist-cnn", "--batch", 2, *QUICK, "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert set(document) == {"header", "totals", "modules", "ops", "kernels"}
    for op in document["ops"]:
        time = op["measured"]["host_time_s"]
        assert 0 < time["low"] <= time["value"] <= time["high"]
        assert all(value["origin"] for value in op["measured"].values())
    totals = document["totals"]["measured"]["values"]
    assert totals["host_time_s"] == pytest.approx(sum(op["measured"]["host_time_s"]["value"] for op in document["ops"]))
    root = document["modules"][0]
    assert root["measured"]["values"]["host_time_s"] == pytest.approx(totals["host_time_s"])
    assert document["header"]["command"].startswith("rooflight measure mnist-cnn")


def test_csv_and_markdown(run):
    code, out, _ = run("mnist-cnn", *QUICK, "--csv", "--by", "op")
    assert code == 0
    rows = list(csv.reader(io.StringIO(out)))
    assert len(rows) >= 8 and len({len(row) for row in rows}) == 1
    code, out, _ = run("mnist-cnn", *QUICK, "--md")
    assert code == 0
    assert out.startswith("# mnist-cnn") and "conv2 | Conv2d" in out


def test_the_ledger_is_saved_and_shown_again(run, tmp_path, monkeypatch):
    path = tmp_path / "run.json.gz"
    code, out, err = run("mnist-cnn", *QUICK, "-o", path)
    assert code == 0 and "conv2" in out and str(path) in err
    ledger = rooflight.load(path)
    assert ledger.header.model == "mnist-cnn" and ledger.measurements
    code, _, err = run("mnist-cnn", *QUICK, "-o", path)
    assert (code, run.code, run.options) == (2, "file-exists", ("--force",)) and str(path) in err
    code, _, _ = run("mnist-cnn", *QUICK, "-o", path, "--force")
    assert code == 0 and rooflight.load(path) != ledger
    csv_path = tmp_path / "run.csv"
    code, out, err = run("mnist-cnn", *QUICK, "-o", csv_path)
    assert (code, out) == (0, "") and str(csv_path) in err
    assert len(list(csv.reader(io.StringIO(csv_path.read_text())))) > 5
    assert rooflight.load(tmp_path / "run.json").measurements  # beside the table, which is not all of it


def test_a_trace_for_perfetto_is_written(run, tmp_path):
    path = tmp_path / "trace.json"
    code, _, err = run("mnist-cnn", "--batch", 2, *QUICK, "--trace", path, "--json")
    assert code == 0 and str(path) in err and "https://ui.perfetto.dev" in err
    events = json.loads(path.read_text())["traceEvents"]
    ops = [event for event in events if event.get("ph") == "X" and "convolution" in event["name"]]
    assert len(ops) >= 2 and all(event["dur"] > 0 for event in ops)
    code, _, err = run("mnist-cnn", *QUICK, "--trace", path)
    assert (code, run.code) == (2, "file-exists") and len(err.splitlines()) == 1


def test_nothing_but_the_document_is_printed(tmp_path):
    """A model that talks, and torch's profiler, which does too, write elsewhere."""
    (tmp_path / "talks.py").write_text(
        "import torch\n"
        "class Talks(torch.nn.Linear):\n"
        "    def forward(self, x):\n"
        "        print('hello')\n"
        "        return super().forward(x)\n"
        "def model(batch=1):\n    return Talks(4, 4), (torch.ones(batch, 4),)\n"
    )
    done = spawn("talks:model", *QUICK, "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [op["op"] for op in json.loads(done.stdout)["ops"]] == ["aten::t", "aten::addmm"]
    assert set(done.stderr.split()) == {"hello"}


# --- what cannot be done is one line ---


def test_a_step_that_raises_is_one_line(tmp_path):
    (tmp_path / "bad.py").write_text(
        "import torch\n"
        "class Bad(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        raise ValueError('the data is\\nmissing')\n"
        "def model(batch=1):\n    return Bad(), (torch.ones(batch, 4),)\n"
    )
    done = spawn("bad:model", *QUICK, folder=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.splitlines()) == 1
    assert "bad.py:4" in done.stderr and "ValueError: the data is" in done.stderr


# --- the command for ncu ---


def test_the_ncu_command_is_printed_without_a_gpu(run):
    code, out, err = run("mnist-cnn", "--batch", 64, "--step", "train", "--ncu-command", "conv2")
    assert (code, err) == (0, "")
    comment, line = out.splitlines()
    assert comment == "# aten::convolution in conv2, forward, op 2 of 58"
    words = line.split()
    assert words[0] == "ncu" and words[words.index("--profile-from-start") + 1] == "off"
    assert words[words.index("-m") : words.index("-m") + 4] == ["-m", "rooflight", "measure", "mnist-cnn"]
    assert words[words.index("--batch") + 1] == "64" and words[words.index("--step") + 1] == "train"
    assert words[-2] == "--profile-op" and "conv2" in words[-1] and "aten::convolution" in words[-1]


def test_the_ncu_command_finds_an_op_by_number_and_by_name(run):
    _, by_number, _ = run("mnist-cnn", "--step", "train", "--ncu-command", "2")
    _, by_module, _ = run("mnist-cnn", "--step", "train", "--ncu-command", "conv2")
    assert by_number == by_module
    _, backward, _ = run("mnist-cnn", "--step", "train", "--ncu-command", "conv2:backward")
    assert backward.startswith("# aten::convolution_backward in conv2, backward")


# --- Ctrl-C ---


INTERRUPTS = """
import os, signal, time
import torch

calls = 0

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        global calls
        calls += 1
        if calls == {at}:
            os.kill(os.getpid(), signal.SIGINT)
        if calls > {at}:
            time.sleep({after})
        return self.linear(x)

def model(batch=1):
    return Model(), (torch.ones(batch, 8),)
"""


@pytest.mark.parametrize(("at", "after", "known"), [
    (4, 0.0, {"resident_bytes"}),
    (4, 1.6, {"resident_bytes"}),  # writing it down takes longer than Ctrl-C is patient
    (9, 0.0, {"resident_bytes", "wall_time_s", "peak_allocated_bytes"}),
])  # fmt: skip
def test_ctrl_c_keeps_what_was_measured(at, after, known, tmp_path):
    (tmp_path / "interrupts.py").write_text(INTERRUPTS.format(at=at, after=after))
    done = spawn("interrupts:model", *QUICK, "-o", "run.json", folder=tmp_path)
    assert done.returncode == 130, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 2 and "run.json" in lines[0] and lines[1].startswith("rooflight: ")
    ledger = rooflight.load(tmp_path / "run.json")
    assert "interrupted" in [note.code for note in ledger.header.notes]
    assert len(ledger.ops) == 2
    step = next(row.quantities for row in ledger.measurements if row.scope == "step")
    assert known <= set(step)


def test_ctrl_c_before_anything_was_measured(tmp_path):
    (tmp_path / "interrupts.py").write_text(INTERRUPTS.format(at=1, after=0.0))
    done = spawn("interrupts:model", *QUICK, "-o", "run.json", folder=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip().startswith("rooflight: ") and len(done.stderr.strip().splitlines()) == 1
    assert not (tmp_path / "run.json").exists()


def test_ctrl_c_while_ncu_counts_keeps_the_rest(run, monkeypatch):
    def interrupted(ledger, spec, options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_with_ncu", interrupted)
    monkeypatch.setattr(command, "_refuse_ncu", lambda device: None)
    code, out, err = run("mnist-cnn", *QUICK, "--counters", "ncu", "--json")
    assert code == 130 and err.startswith("rooflight: ") and len(err.splitlines()) == 1
    document = json.loads(out)
    assert "interrupted" in [note["code"] for note in document["header"]["notes"]]
    assert all("host_time_s" in op["measured"] for op in document["ops"])


# --- names of files under torchrun ---


@pytest.mark.parametrize(("name", "expected"), [
    ("run.json", "run.rank1.json"), ("run.json.gz", "run.rank1.json.gz"), ("a.b.json", "a.rank1.b.json"),
])  # fmt: skip
def test_every_rank_has_a_file_of_its_own(name, expected, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert command._of_rank(tmp_path / name) == tmp_path / expected
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert command._of_rank(tmp_path / name) == tmp_path / name


@pytest.mark.parametrize(
    "files", [("-o", "run.json"), ("--trace", "trace.json"), ("-o", "a.json", "--trace", "b.json")]
)
def test_a_file_that_cannot_be_written_costs_the_file_and_not_the_result(run, tmp_path, monkeypatch, files):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    monkeypatch.chdir(tmp_path)
    code, out, err = run("mnist-cnn", *QUICK, *files)
    assert (code, run.code) == (2, "write-failed") and "conv2" in out
    assert err.count(os.strerror(errno.ENOSPC)) == len(files) // 2
    assert list(tmp_path.iterdir()) == []
