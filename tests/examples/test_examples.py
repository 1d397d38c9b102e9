"""The examples run as a user would run them, and say what can be worked out by hand.

`python -m tests.examples.test_examples` runs the notebook and writes its outputs anew.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

import rooflight
from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "examples"
NOTEBOOK = EXAMPLES / "notebook.ipynb"
SHOWN = ("text/plain", "text/html", "image/png")
"""What GitHub shows of an output; the rest, such as the data of interactive charts, is not kept."""


def run(*command, cwd):
    # One thread: with more of them than cores are free, tests that run side by side wait for each other.
    alone = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "COLUMNS": "112"}
    done = subprocess.run(
        [sys.executable, *map(str, command)],
        capture_output=True, text=True, cwd=cwd, env={**os.environ, **alone}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def number(text, pattern):
    """The number in the one line that matches."""
    (found,) = re.findall(pattern, text)
    return int(found.replace(",", ""))


# --- the MNIST script with regions ---

CONV2 = 2 * 64 * 64 * 24 * 24 * 32 * 3 * 3
"""64 images, 64 channels of 24×24 results, each over 32 channels of 3×3: 1,358,954,496."""


def test_mnist_with_regions(tmp_path):
    told = run(EXAMPLES / "mnist_regions.py", "--steps", 4, cwd=tmp_path)
    assert told.splitlines()[0] == "made-up pictures, 4 steps of batch 64 on the CPU"
    assert number(told, r"conv2, by formula: ([\d,]+) FLOPs") == CONV2 == 1_358_954_496
    # input 64×32×26×26, weight 64×32×3×3, bias 64, output 64×64×24×24, 4 bytes each
    read, written = 64 * 32 * 26 * 26 + 64 * 32 * 3 * 3 + 64, 64 * 64 * 24 * 24
    assert number(told, r"conv2, by formula: .* FLOPs, ([\d,]+) bytes") == 4 * (read + written)
    conv1, fc1, fc2 = 2 * 64 * 32 * 26 * 26 * 9, 2 * 64 * 9216 * 128, 2 * 64 * 128 * 10
    # Backward is twice forward, but nobody asks for the gradient of the pictures.
    assert number(told, r"step, by formula: ([\d,]+) FLOPs") == 2 * conv1 + 3 * (CONV2 + fc1 + fc2)
    for name in ("conv2", "step"):
        assert re.search(rf"^{name}, measured: [\d.]+ ms, [\d,]+ GFLOP/s$", told, re.MULTILINE)
        assert f"{name}, missing: FLOPs and DRAM bytes: no GPU is in use" in told
    assert list(tmp_path.iterdir()) == []


def test_mnist_is_read_where_it_is(tmp_path):
    raw = tmp_path / "MNIST" / "raw"
    raw.mkdir(parents=True)
    pixels = bytes(range(256)) * 49  # 16 pictures of 784 pixels
    (raw / "train-images-idx3-ubyte").write_bytes(bytes(16) + pixels)
    (raw / "train-labels-idx1-ubyte").write_bytes(bytes(8) + bytes(range(16)))
    spec = importlib.util.spec_from_file_location("mnist_regions", EXAMPLES / "mnist_regions.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    images, labels, what = module.pictures(tmp_path)
    assert (what, images.shape, labels.tolist()) == ("MNIST", (16, 1, 28, 28), list(range(16)))
    # Pixel 255 of the first picture is white: (1 - mean) / deviation, as the PyTorch example normalises.
    assert images.flatten()[255] == pytest.approx((1 - 0.1307) / 0.3081)


# --- a Hugging Face model ---


def llama_flops(batch, sequence):
    """Width 256, 4 layers, 1,024 inside the MLP, 8,192 tokens; backward is twice forward."""
    projections, mlp, attention = 4 * 256**2, 3 * 256 * 1024, 2 * sequence * 256
    macs_of_a_token = 4 * (projections + mlp + attention) + 256 * 8192
    return 3 * 2 * batch * sequence * macs_of_a_token


def test_a_hugging_face_model(tmp_path):
    told = run(EXAMPLES / "huggingface_model.py", cwd=tmp_path)
    for sequence in (128, 512, 2048):
        assert number(told, rf"(?m)^ *{sequence} +([\d,]+) ") == llama_flops(4, sequence)
    # At 2,048 tokens: projections 262,144 and attention 1,048,576 of (1,310,720 + 786,432) × 4 + 2,097,152.
    assert re.search(r"(?m)^ *2048 .* 50\.0% +30\.0% +20\.0%$", told)
    times = re.findall(
        r"(?m)^(h200|a100-sxm-80|l4) +([\d.]+) ms \(([\d.]+) to ([\d.]+)\), \w+-bound, [\d.]+ GB fit$", told
    )
    assert [device for device, *_ in times] == ["h200", "a100-sxm-80", "l4"]
    assert all(float(low) <= float(time) <= float(high) for _, time, low, high in times)
    assert number(told, r"(?m)^([\d,]+) FLOPs$") == llama_flops(1, 64)
    assert re.search(r"(?m)^[\d.]+ \w+ a step$", told)
    assert re.search(r"(?m)^[\d.]+ ms in self_attn, [\d.]+ ms in mlp, [\d.]+ ms in lm_head$", told)


# --- a callback of the Trainer ---

GPT2_FLOPS = 3 * 2 * 8 * 64 * (2 * (12 * 128**2 + 2 * 64 * 128) + 128 * 1024)
"""8 samples of 64 tokens; 2 layers of width 128 with 12 × width² weights and attention over 64; 1,024 tokens."""
BOTH = """
import json, torch, rooflight, trainer_callback as example
plain, measure = example.train(), example.MeasureOneStep(at=2)
watched = example.train(measure)
logs = [[{key: row[key] for key in ("loss", "grad_norm")} for row in trainer.state.log_history if "loss" in row]
        for trainer in (plain, watched)]
same = [torch.equal(a, b) for a, b in zip(plain.model.state_dict().values(), watched.model.state_dict().values())]
hooks = sum(len(module._forward_pre_hooks) for module in watched.model.modules())
example.tell(rooflight.load("recorded:h200/resnet50-train-fp32"), depth=0)
print(json.dumps({"logs": logs, "same": same, "measured": len(measure.ledger.ops), "hooks": hooks}))
"""


def test_the_callback_measures_a_step(tmp_path):
    told = run(EXAMPLES / "trainer_callback.py", "--at", 4, "-o", "step.json.gz", cwd=tmp_path)
    assert told.startswith("5 steps, step 4 measured\nlosses ")
    layer = 3 * 2 * 8 * 64 * (12 * 128**2 + 2 * 64 * 128)
    flops = {
        name: int(count.replace(",", "")) for name, count in re.findall(r"(?m)^(\S.*?) {2,}([\d,]+) +[\d.]+ ms$", told)
    }
    assert flops["whole model"] == GPT2_FLOPS == 1_711_276_032
    assert flops["transformer.h.0"] == flops["transformer.h.1"] == layer
    assert flops["lm_head"] == GPT2_FLOPS - 2 * layer
    assert flops["<optimizer>"] == 0
    assert "no MFU: the peak of" in told
    ledger = rooflight.load(tmp_path / "step.json.gz")
    assert (ledger.header.step, ledger.header.batch, ledger.header.loss) == ("train", 8, "model's own")
    assert [path.name for path in tmp_path.iterdir()] == ["step.json.gz"]


def test_the_callback_does_not_change_the_training(tmp_path):
    """Losses, gradients and weights to the last bit, although the network drops values at random."""
    (tmp_path / "both.py").write_text(f"import sys\nsys.path.insert(0, {str(EXAMPLES)!r})\n{BOTH}")
    told = run("both.py", cwd=tmp_path)
    found = json.loads(told.splitlines()[-1])
    plain, watched = found["logs"]
    assert len(plain) == 5 and len({row["loss"] for row in plain}) > 1
    assert watched == plain
    assert found["same"] and all(found["same"])
    assert found["measured"] > 0 and found["hooks"] == 0
    # 389 GFLOP in 21.1 ms, of 494.5 TFLOP/s: 3.7%.
    assert "MFU 3.7% of 494.5 TFLOP/s tf32" in told


# --- one's own model ---

STEM, DEPTHWISE, POINTWISE, HEAD = 8 * 16 * 1024 * 27, 8 * 16 * 1024 * 9, 8 * 32 * 1024 * 16, 8 * 32 * 10
"""Multiply-adds of 8 pictures of 32×32 = 1,024 pixels."""


def test_own_model_from_the_command_line(tmp_path):
    shutil.copy(EXAMPLES / "own_model.py", tmp_path)
    options = ("own_model:Net", "--input", "3x32x32", "--batch", 8)
    told = run("-m", "rooflight", "estimate", *options, "--explain", "depthwise", cwd=tmp_path)
    assert f"= {DEPTHWISE:,}\n" in told and f"FLOPs   = 2 × MACs = {2 * DEPTHWISE:,} " in told
    measured = json.loads(run("-m", "rooflight", "measure", *options, "--on", "cpu", "--json", cwd=tmp_path))
    rows = {row["path"]: row for row in measured["modules"]}
    useful = {name: rows[name]["flops"] for name in ("stem", "depthwise", "pointwise", "head")}
    assert list(useful.values()) == [2 * STEM, 2 * DEPTHWISE, 2 * POINTWISE, 2 * HEAD]


def test_own_model_in_python(tmp_path):
    told = run(EXAMPLES / "own_model.py", cwd=tmp_path)
    backward = {"stem": 1, "depthwise": 2, "pointwise": 2, "head": 2}  # nobody asks for the gradient of the pictures
    rows = {
        name: (int(forward.replace(",", "")), int(back.replace(",", "")))
        for name, forward, back in re.findall(r"(?m)^(\w+) +([\d,]+) forward +([\d,]+) backward$", told)
    }
    macs = dict(zip(backward, (STEM, DEPTHWISE, POINTWISE, HEAD), strict=True))
    assert rows == {name: (2 * macs[name], 2 * macs[name] * backward[name]) for name in backward}
    assert number(told, r"batch 8: ([\d,]+) FLOPs") == sum(map(sum, rows.values()))
    assert re.search(r"(?m)^[\d.]+ \w+ a step$", told)


# --- the notebook ---


def executed(folder):
    """The notebook after all its cells have run, by the Python of this process."""
    kernel = folder / "kernels" / "here"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": command, "display_name": "here", "language": "python"}))
    places = {"JUPYTER_PATH": folder, "JUPYTER_RUNTIME_DIR": folder / "runtime", "IPYTHONDIR": folder / "ipython"}
    found = nbformat.read(NOTEBOOK, as_version=4)
    with pytest.MonkeyPatch.context() as patch:
        for name, place in places.items():
            patch.setenv(name, str(place))
        patch.setenv("COLUMNS", "112")
        patch.setenv("OMP_NUM_THREADS", "1")
        resources = {"metadata": {"path": str(folder)}}
        NotebookClient(found, timeout=600, kernel_name="here", record_timing=False, resources=resources).execute()
    return found


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def plain(cell):
    """What a cell says, without the lines that name versions."""
    parts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs]
    return [line.rstrip() for line in "".join(parts).splitlines() if "torch " not in line]


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    return executed(tmp_path_factory.mktemp("notebook"))


def test_the_notebook_runs(notebook):
    said = ["\n".join(plain(cell)) for cell in code_cells(notebook)]
    assert all(said)
    explained = next(text for text in said if "FLOPs   = 2 × MACs" in text)
    assert f"FLOPs   = 2 × MACs = {CONV2:,}" in explained
    # Useful, executed by tensor cores: the same number twice in the row of conv2.
    assert any(re.search(rf"conv2 .*\b{CONV2} +{CONV2}\b", text) for text in said)
    # 1,024 pictures: a depthwise 3×3 over 32 channels, then 32 -> 64 channels, at 24×24 places.
    separable = 2 * 1024 * 24 * 24 * (32 * 9 + 32 * 64)
    assert re.search(rf"plain +{16 * CONV2} ", said[-1]) and re.search(rf"separable +{separable} ", said[-1])


def test_a_ledger_shows_its_layers_and_its_roofline_in_the_notebook(notebook):
    shown = [
        output.data["text/html"]
        for cell in code_cells(notebook)
        for output in cell.outputs
        if "text/html" in output.get("data", {})
    ]
    ledgers = [html for html in shown if "conv2" in html and "1.36 G" in html]
    assert len(ledgers) == 2  # the estimate and the recording
    assert all("<table" in html and 'alt="Roofline of mnist-cnn' in html for html in ledgers)


def test_the_notebook_is_stored_as_it_runs(notebook):
    """What predictions say may move a little with the machine; all else is compared to the letter."""
    stored = nbformat.read(NOTEBOOK, as_version=4)
    for cell, fresh in zip(code_cells(stored), code_cells(notebook), strict=True):
        assert cell.outputs, "run python -m tests.examples.test_examples"
        if "predict(" not in cell.source:
            assert plain(cell) == plain(fresh), "run python -m tests.examples.test_examples"


def test_the_stored_notebook_is_small_and_clean():
    text = NOTEBOOK.read_text()
    assert len(text) < 300_000
    stored = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(stored)
    outputs = [output for cell in code_cells(stored) for output in cell.outputs]
    assert {output.output_type for output in outputs} <= {"stream", "execute_result", "display_data"}
    assert {mime for output in outputs for mime in output.get("data", {})} <= set(SHOWN)
    assert str(Path.home()) not in text and str(EXAMPLES.parent) not in text


def overwrite():
    """Run the notebook, and store of its outputs what a reader on GitHub sees."""
    with tempfile.TemporaryDirectory() as folder:
        found = executed(Path(folder))
    stored = nbformat.read(NOTEBOOK, as_version=4)
    for cell, fresh in zip(code_cells(stored), code_cells(found), strict=True):
        cell.execution_count = fresh.execution_count
        cell.outputs = fresh.outputs
        for output in cell.outputs:
            if "data" in output:
                output.data = {mime: _released(value) for mime, value in output.data.items() if mime in SHOWN}
                output.metadata = {}
    nbformat.write(stored, NOTEBOOK)


def _released(text):
    """A version between two releases names a commit, which says nothing to the reader."""
    return re.sub(r"(rooflight \d+\.\d+\.\d+)\.dev\S*?(?=[\s<]|$)", r"\1", text)


if __name__ == "__main__":
    overwrite()
