"""`rooflight measure` at the command line: its forms of output, its files, and its bad days."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys
from functools import partial

import pytest

import rooflight
from rooflight.commands import measure as command

QUICK = ("--on", "cpu", "--repeat", "2")
INTERRUPTED = "rooflight: interrupted; what was measured before is shown, the rest is missing"


@pytest.fixture
def run(run, monkeypatch):
    """Run `rooflight measure ARGUMENTS` in this process: exit code, output, error output."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    return partial(run, "measure")


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
    for word in ("mnist-cnn", "conv2", "CPU time", "wall", "growth", "note: ", "host_time_s"):
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
    assert "2 FLOP" in out or document["header"]["notes"]


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
    assert code == 0 and "conv2" in out and f"wrote {path}" in err
    ledger = rooflight.load(path)
    assert ledger.header.model == "mnist-cnn" and ledger.measurements
    code, _, err = run("mnist-cnn", *QUICK, "-o", path)
    assert (code, err) == (
        2,
        f"rooflight: {path} exists already: add --force to replace it, or give another name\n",
    )
    code, _, _ = run("mnist-cnn", *QUICK, "-o", path, "--force")
    assert code == 0 and rooflight.load(path) != ledger
    csv_path = tmp_path / "run.csv"
    code, out, err = run("mnist-cnn", *QUICK, "-o", csv_path)
    assert (code, out) == (0, "") and f"wrote {csv_path}" in err
    assert len(list(csv.reader(io.StringIO(csv_path.read_text())))) > 5
    assert rooflight.load(tmp_path / "run.json").measurements  # beside the table, which is not all of it


def test_a_trace_for_perfetto_is_written(run, tmp_path):
    path = tmp_path / "trace.json"
    code, _, err = run("mnist-cnn", "--batch", 2, *QUICK, "--trace", path, "--json")
    assert code == 0 and f"wrote {path}; open it at https://ui.perfetto.dev" in err
    events = json.loads(path.read_text())["traceEvents"]
    ops = [event for event in events if event.get("ph") == "X" and "convolution" in event["name"]]
    assert len(ops) >= 2 and all(event["dur"] > 0 for event in ops)
    code, _, err = run("mnist-cnn", *QUICK, "--trace", path)
    assert code == 2 and "exists already" in err and len(err.splitlines()) == 1


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


@pytest.mark.parametrize(("arguments", "code", "message"), [
    (["--on", "foo"], 2, "unknown device 'foo': use cuda, cuda:1 or cpu"),
    (["--on", "cpu", "--repeat", 0], 2, "--repeat must be at least 1, got 0"),
    (["--on", "cpu", "--batch", 0], 2, "--batch must be at least 1, got 0"),
    (["--compile", "--graphs"], 2, "choose one of --compile and --graphs"),
    (["--compile-mode", "default", "--graphs"], 2, "choose one of --compile and --graphs"),
    (["--on", "cpu", "--graphs"], 2, "CUDA graphs: only on an NVIDIA GPU"),
    (["--counters", "none", "--metrics", "x.sum"], 2, "need counters"),
    (["--counters", "none", "--level", "l2"], 2, "need counters"),
    (["--counters", "none", "--per-kernel"], 2, "need counters"),
    (["--counters", "none", "--spread"], 2, "need counters"),
    (["--on", "cpu", "--spread"], 2, "the spread of counts: only on an NVIDIA GPU"),
    (["--compile", "--ncu-command", "conv2"], 2, "--ncu-command opens an op of the eager step"),
    (["--on", "cpu", "--batch", 10**9], 2, "the input alone takes 3.14 TB"),
    (["--on", "cpu", "--counters", "ncu"], 2, "ncu: only on an NVIDIA GPU, and the step is measured on the CPU"),
    (["--counters", "ncu", "--spread"], 2, "--spread repeats the step in this process"),
    (["--counters", "ncu", "--compile"], 2, "--counters ncu is for the eager step"),
    (["--counters", "perf"], 2, "'perf' is not one of"),
    (["--level", "l3"], 2, "'l3' is not one of"),
    (["--trace", "trace.txt"], 2, "the name must end in .json"),
    (["--on", "cpu", "--compile", "--trace", "trace.json"], 2, "a compiled step on the CPU has neither"),
    (["-o", "run.txt"], 2, "the name must end in .json, .json.gz, .csv or .md"),
    (["-o", "no/such/folder/run.json"], 2, "does not exist"),
    (["--json", "--csv"], 2, "choose one of --json, --csv and --md"),
    (["--loss", "mse"], 2, "--loss goes with --step train"),
    (["--set", "channels"], 2, "--set wants NAME=VALUE"),
    (["--ncu-command", "conv9"], 2, "no op in 'conv9': did you mean conv2, conv1?"),
    (["--ncu-command", "99"], 2, "there is no op 99: the step has ops 0 to 11"),
    (["--ncu-command", "²"], 2, "no op in '²'"),
    (["--on", "cpu", "--profile-op", "all"], 2, "an outer profiler is for a step on a GPU"),
])  # fmt: skip
def test_a_mistake_is_one_line(run, arguments, code, message):
    found, out, err = run("mnist-cnn", *arguments)
    assert (found, out) == (code, ""), err
    assert message in err and err.startswith("rooflight: ") and len(err.splitlines()) == 1


def test_an_unknown_model_is_one_line(run):
    code, _, err = run("resnet19", *QUICK)
    assert code == 2 and "resnet18" in err and len(err.splitlines()) == 1


def test_no_gpu_is_one_line(run):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    code, out, err = run("mnist-cnn", "--on", "cuda")
    assert (code, out) == (2, "") and len(err.splitlines()) == 1
    assert "torch sees no GPU" in err and "cpu" in err and "rooflight doctor" in err


def test_an_unknown_compile_mode_is_one_line(run):
    code, _, err = run("mnist-cnn", *QUICK, "--compile-mode", "fastest")
    assert code == 2 and "fastest" in err and len(err.splitlines()) == 1


def test_what_is_for_a_gpu_is_said_on_the_cpu(run):
    code, out, err = run("mnist-cnn", *QUICK, "--per-kernel", "--json")
    assert (code, out) == (2, "") and "counters by kernel: only on an NVIDIA GPU" in err


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
    assert lines[-1] == INTERRUPTED and len(lines) == 2 and lines[0].startswith("wrote run.json")
    assert "interrupted while measuring" in done.stdout
    ledger = rooflight.load(tmp_path / "run.json")
    assert len(ledger.ops) == 2
    step = next(row.quantities for row in ledger.measurements if row.scope == "step")
    assert known <= set(step)


def test_ctrl_c_before_anything_was_measured(tmp_path):
    (tmp_path / "interrupts.py").write_text(INTERRUPTS.format(at=1, after=0.0))
    done = spawn("interrupts:model", *QUICK, "-o", "run.json", folder=tmp_path)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "rooflight: interrupted; nothing was written"
    assert not (tmp_path / "run.json").exists()


def test_ctrl_c_while_ncu_counts_keeps_the_rest(run, monkeypatch):
    def interrupted(ledger, spec, options):
        raise KeyboardInterrupt

    monkeypatch.setattr(command, "_with_ncu", interrupted)
    monkeypatch.setattr(command, "_refuse_ncu", lambda device: None)
    code, out, err = run("mnist-cnn", *QUICK, "--counters", "ncu", "--json")
    assert code == 130 and err.strip() == INTERRUPTED
    document = json.loads(out)
    assert any("interrupted while ncu counted" in note for note in document["header"]["notes"])
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


def test_a_file_that_cannot_be_written_costs_the_file_and_not_the_result(run, tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    code, out, err = run("mnist-cnn", *QUICK, "-o", str(tmp_path / "run.json"))
    assert code == 2 and "No space left" in err and "conv2" in out
    assert list(tmp_path.iterdir()) == []
