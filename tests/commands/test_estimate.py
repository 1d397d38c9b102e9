"""The command line: what it prints, in every form, and how it answers bad input."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import rooflight
from rooflight.commands.main import VERBS
from rooflight.ledger import total
from tests.fixtures.paths import DATA

RECORDING = "recorded:h200/mnist-cnn-infer-tf32"
"""What a process shows without importing torch."""


def spawn(*arguments, **options):
    command = [sys.executable, "-m", "rooflight.commands.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **options)


# --- help ---


@pytest.mark.parametrize("arguments", [["--help"], *([verb, "--help"] for verb in VERBS), ["list", "models"]])
def test_help_never_imports_torch(arguments):
    program = (
        "import sys\nfrom rooflight.commands.main import main\nsys.argv = ['rooflight', *sys.argv[1:]]\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules and 'sympy' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) > 5


# --- output ---


def test_json_is_one_document_with_exact_totals(run):
    code, out, _ = run("estimate", "mnist-cnn", "--batch", 64, "--json")
    assert code == 0
    document = json.loads(out)
    assert set(document) == {"header", "totals", "modules", "ops"}
    totals = document["totals"]
    assert totals["params"] == totals["trainable_params"] == 1_199_882
    assert totals["macs"] == 64 * 11_992_448
    assert totals["flops"] == 2 * totals["macs"]
    assert totals["uncounted"] == []
    assert totals["per_sample"]["macs"] == 11_992_448
    assert sum(op["bytes_read"] + op["bytes_written"] for op in document["ops"]) == totals["bytes"]
    assert document["header"]["batch"] == 64
    root = document["modules"][0]
    assert (root["path"], root["flops"], root["params"]) == ("", totals["flops"], 1_199_882)


@pytest.mark.parametrize(("name", "arguments"), [
    ("mnist_cnn", ["mnist-cnn"]), ("resnet18", ["resnet18"]), ("resnet50", ["resnet50"]), ("vgg11", ["vgg11"]),
    ("vgg13", ["vgg13"]), ("vgg16", ["vgg16"]), ("vgg19", ["vgg19"]), ("gpt2_s128", ["gpt2", "--seq", "128"]),
    ("gpt2_s1024", ["gpt2", "--seq", "1024"]), ("distilbert_s128", ["distilbert", "--seq", "128"]),
    ("nn_transformer_128_128", ["transformer", "--seq", "128"]), ("llama3_70b_s2048", ["llama3-70b", "--seq", "2048"]),
])  # fmt: skip
def test_reference_counts_to_the_last_digit(run, name, arguments):
    wanted = json.loads((DATA / "models.json").read_text())["models"][name]
    code, out, _ = run("estimate", *arguments, "--json")
    totals = json.loads(out)["totals"]
    assert code == 0
    assert (totals["params"], totals["macs"]) == (wanted["params"], wanted["macs"])


def test_text_shows_the_tree_the_totals_and_the_conventions(run):
    code, out, _ = run("estimate", "gpt2", "--seq", 128, "--batch", 2)
    assert code == 0
    head = out.splitlines()[0]
    assert all(word in head for word in ("gpt2", "2", "128", "fp32"))
    assert "124,439,808" in out
    assert "12 × GPT2Block" in out
    assert all(f" {scope} " in out for scope in ("step", "sample", "token"))


def test_training_shows_phases_apart(run):
    code, out, _ = run("estimate", "mnist-cnn", "--step", "train", "--epochs", 2, "--dataset-size", 1000, "--batch", 64)
    assert code == 0
    for word in ("forward", "backward", "optimizer", "<loss>"):
        assert word in out
    assert re.search(r"\b32 steps\b", out)  # 2 epochs of 1000 / 64 steps, rounded up


def test_csv_has_raw_numbers_that_sum_up(run):
    code, out, _ = run("estimate", "vgg11", "--csv", "--by", "op")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert rows[-1]["op"] == "total"
    assert sum(int(row["FLOPs"]) for row in rows[:-1]) == int(rows[-1]["FLOPs"]) == 2 * 7_609_090_048


def test_csv_names_layers_in_full(run):
    _, out, _ = run("estimate", "resnet18", "--csv")
    names = [row["layer"] for row in csv.DictReader(io.StringIO(out))]
    assert "layer4.1.conv2" in names
    assert len(names) == len(set(names))


def test_frozen_parameters_get_a_column(run, tmp_path):
    code = "import torch\ndef make():\n    m = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 2))\n"
    path = write(tmp_path / "frozen.py", code + "    m[0].requires_grad_(False)\n    return m\n")
    _, out, _ = run("estimate", f"{path}:make", "--input", "4", "--csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [(row["params"], row["trainable"]) for row in rows] == [
        ("30", "10"),
        ("20", "0"),
        ("10", "10"),
        ("30", "10"),
    ]


def test_a_full_disk_behind_the_output_is_one_line():
    for arguments in (["report", RECORDING], ["estimate", "mnist-cnn", "--json"]):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "rooflight.commands.main", *arguments]
            done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert done.returncode == 2
        assert done.stderr.startswith("rooflight: ") and done.stderr.count("\n") == 1
        assert os.strerror(errno.ENOSPC) in done.stderr


UNKNOWN = """
import torch
@torch.library.custom_op("cli_tests::unknown", mutates_args=())
def unknown(x: torch.Tensor) -> torch.Tensor:
    return x.clone()
unknown.register_fake(torch.empty_like)
class Net(torch.nn.Module):
    def forward(self, x):
        return unknown(x).relu()
"""


def test_what_has_no_formula_is_not_zero(run, tmp_path):
    path = write(tmp_path / "unknown_op.py", UNKNOWN)
    _, out, _ = run("estimate", f"{path}:Net", "--input", "4", "--by", "op", "--csv")
    rows = {row["op"]: row for row in csv.DictReader(io.StringIO(out))}
    assert [rows["cli_tests::unknown"][name] for name in ("FLOPs", "other", "bytes", "uncounted")] == ["", "", "", "1"]
    assert [rows["total"][name] for name in ("other", "uncounted", "calls")] == ["4", "1", "2"]
    _, out, _ = run("estimate", f"{path}:Net", "--input", "4")
    assert "cli_tests::unknown (1×)" in out


def test_json_says_what_is_default_too(run):
    _, out, _ = run("estimate", "mnist-cnn", "--json")
    header = json.loads(out)["header"]
    assert (header["execution"], header["accumulate"], header["autocast"], header["sequence"]) == (
        "eager",
        1,
        None,
        None,
    )


def test_markdown_is_a_table(run):
    code, out, _ = run("estimate", "mnist-cnn", "--md")
    assert code == 0
    assert out.startswith("# mnist-cnn · inference")
    lines = [line for line in out.splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in lines[:9]}) == 1


def test_depth_and_folding(run):
    _, shallow, _ = run("estimate", "resnet18", "--csv", "--depth", 1)
    _, deep, _ = run("estimate", "resnet18", "--csv")
    # model, 10 children, total
    assert len(shallow.splitlines()) == 1 + 12
    # 8 blocks call one function themselves, the addition of what went around them
    assert len(deep.splitlines()) == 1 + len(rooflight.estimate("resnet18").modules) + 8 + 1
    _, folded, _ = run("estimate", "gpt2", "--seq", 64, "--depth", 3)
    _, unfolded, _ = run("estimate", "gpt2", "--seq", 64, "--depth", 3, "--unfold")
    assert folded.count("GPT2Block") == 1
    assert unfolded.count("GPT2Block") == 12


def test_save_and_report(run, tmp_path):
    path = tmp_path / "run.json.gz"
    code, _, err = run("estimate", "mnist-cnn", "-o", path)
    assert code == 0
    assert "rooflight report" in err
    code, out, _ = run("report", path, "--to", "json")
    assert code == 0
    assert json.loads(out)["totals"]["macs"] == 11_992_448
    code, out, _ = run("report", path, "--explain", "conv2")
    assert "10,616,832" in out
    ledger = rooflight.load(path)
    assert ledger.header.command.startswith("rooflight estimate mnist-cnn")
    assert total(ledger.ops).macs == 11_992_448


def test_csv_and_markdown_files(run, tmp_path):
    for name, start in (("t.csv", "layer,"), ("t.md", "# mnist-cnn")):
        code, _, _ = run("estimate", "mnist-cnn", "-o", tmp_path / name)
        assert code == 0
        assert (tmp_path / name).read_text().startswith(start)


def test_explain_derives_conv2(run):
    code, out, _ = run("estimate", "mnist-cnn", "--batch", 64, "--explain", "conv2")
    assert code == 0
    for text in (
        "N × Cout × Ho × Wo × Cin × Kh × Kw", "64 × 64 × 24 × 24 × 32 × 3 × 3", "679,477,248", "1,358,954,496",
        "15,048,960 B", "90.3 FLOP/B", "9,511,168 B",
    ):  # fmt: skip
        assert text in out


def test_explain_in_latex(run):
    code, out, _ = run("estimate", "mnist-cnn", "--batch", 64, "--explain", "conv2", "--latex")
    assert code == 0
    assert r"N \cdot C_{out} \cdot H_{o}" in out
    assert "1{,}358{,}954{,}496" in out
    assert out.count(r"\begin{align*}") == out.count(r"\end{align*}") == 1


def test_explain_backward_and_recomputation(run):
    _, out, _ = run("estimate", "gpt2", "--seq", 64, "--step", "train", "--explain", "transformer.h.0.attn")
    assert "_scaled_dot_product_efficient_attention_backward" in out
    assert "recomputation" in out
    assert "sum: " in out


def test_symbolic_gives_the_closed_form(run):
    code, out, _ = run("estimate", "mnist-cnn", "--symbolic")
    assert code == 0
    assert "O(B" in out
    assert "21,233,664·B" in out


NOISY = """
import torch
print("hello from the model")
class Net(torch.nn.Module):
    def forward(self, x):
        print("and again")
        return x * 2
"""


def test_what_a_model_prints_does_not_get_into_the_document(run, tmp_path):
    path = write(tmp_path / "noisy.py", NOISY)
    code, out, err = run("estimate", f"{path}:Net", "--input", "4", "--json")
    assert code == 0
    assert json.loads(out)["totals"]["other_flops"] == 4
    assert "hello from the model" in err


def test_a_module_named_like_ours_does_no_harm(tmp_path):
    write(tmp_path / "rich.py", "raise RuntimeError('not this one')\n")
    write(
        tmp_path / "net.py",
        "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(4, 4)\n",
    )
    # The installed command: `python -m` itself puts the current folder first.
    command = [str(Path(sys.executable).with_name("rooflight")), "estimate", "net.py:Net", "--input", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "20 parameters" in done.stdout


def test_output_that_cannot_be_written_as_it_is(tmp_path):
    done = spawn("report", RECORDING, env={**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    assert done.returncode == 0, done.stderr
    closed = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m rooflight report {RECORDING} >&-"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (closed.returncode, closed.stderr) == (0, "")


def test_the_printed_document_is_told_from_a_ledger(run, tmp_path):
    _, out, _ = run("estimate", "mnist-cnn", "--json")
    path = write(tmp_path / "printed.json", out)
    code, _, err = run("report", path)
    assert (code, run.code) == (2, "not-a-ledger")
    assert "--json" in run.options and str(path) in err


def test_the_model_itself_can_be_explained(run):
    code, out, _ = run("estimate", "mnist-cnn", "--explain", "mnist-cnn")
    assert code == 0
    assert "max_pool2d_with_indices" in out


def test_without_a_verb_there_is_help(run):
    code, out, _ = run()
    assert code == 0
    assert "estimate" in out
    assert len(out.splitlines()) > 8


def test_models_are_listed(run):
    code, out, _ = run("list", "models", "--json")
    names = {entry["name"] for entry in json.loads(out)}
    assert code == 0
    assert {"mnist-cnn", "resnet50", "gpt2", "llama3-70b", "mixtral-8x7b", "vit-b-16"} <= names
    code, out, _ = run("list", "formulas")
    assert "aten::convolution" in out.split()


# --- bad input: one line, exit code 2, nothing lost ---


def write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path


DATA_DEPENDENT = """
import torch
class Net(torch.nn.Module):
    def forward(self, x):
        if x.sum() > 0:
            return x
        return -x
def make():
    return Net()
"""


def test_syntax_error_in_the_users_file(run, tmp_path, monkeypatch):
    write(tmp_path / "bad_syntax.py", "def f(:\n")
    monkeypatch.chdir(tmp_path)
    code, _, err = run("estimate", "bad_syntax:f")
    assert (code, run.code) == (2, "model-not-imported")
    assert "bad_syntax.py" in err and ":1" in err
    assert len(err.strip().splitlines()) == 1


def test_import_error_in_the_users_file(run, tmp_path):
    path = write(tmp_path / "needs.py", "\nimport surely_not_installed\n")
    code, _, err = run("estimate", f"{path}:make")
    assert (code, run.code) == (2, "model-not-imported")
    assert "surely_not_installed" in err and "needs.py" in err


def test_data_dependent_control_flow_names_the_line(run, tmp_path):
    path = write(tmp_path / "branching.py", DATA_DEPENDENT)
    code, _, err = run("estimate", f"{path}:make", "--input", "3")
    assert (code, run.code, run.options) == (2, "data-dependent", ("--real-data",))
    assert "branching.py:5" in err
    assert "if x.sum() > 0" in err


def test_debug_shows_the_traceback(run):
    with pytest.raises(rooflight.RooflightError):
        run("estimate", "resnet5O", "--debug")


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"\x00\xff" * 500, "not-a-ledger"),
        (b"", "not-a-ledger"),
        (b'{"format_version": 99999}', "newer-format"),
        (b'{"format_version": 1}', "damaged-file"),
        (b"[1, 2", "not-a-ledger"),
        (b"\x1f\x8b\x08", "truncated-file"),
    ],
)
def test_files_that_are_no_ledgers(run, tmp_path, content, code):
    path = tmp_path / "x.json"
    path.write_bytes(content)
    ended, out, err = run("report", path)
    assert (ended, out, run.code) == (2, "", code)
    assert "x.json" in err
    assert len(err.strip().splitlines()) == 1


def test_nothing_is_overwritten_without_force(run, tmp_path):
    path = write(tmp_path / "run.json", "precious")
    code, _, _ = run("estimate", "mnist-cnn", "-o", path)
    assert (code, run.code, run.options) == (2, "file-exists", ("--force",))
    assert path.read_text() == "precious"
    code, _, _ = run("estimate", "mnist-cnn", "-o", path, "--force")
    assert code == 0
    assert rooflight.load(path).header.model == "mnist-cnn"


@pytest.mark.parametrize("delay", [0.0, 0.3, 2.5], ids=["importing", "soon", "working"])
def test_ctrl_c_is_130_and_leaves_nothing(tmp_path, delay):
    command = [sys.executable, "-m", "rooflight", "estimate", "llama3-70b", "--step", "train", "--symbolic"]
    process = subprocess.Popen([*command, "-o", str(tmp_path / "run.json")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler))  # fmt: skip
    # Before our own code runs, Ctrl-C belongs to Python: wait until the slow import of torch has begun.
    maps = Path(f"/proc/{process.pid}/maps")
    while "libtorch" not in maps.read_text() and process.poll() is None:
        time.sleep(0.01)
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=600)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_a_reader_that_stops_reading_is_no_error():
    shell = f"{sys.executable} -m rooflight.commands.main list formulas | head -n 1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {shell}"], capture_output=True, text=True, check=False, env=os.environ
    )
    assert done.stdout.startswith("aten::")
    assert done.stderr == ""
