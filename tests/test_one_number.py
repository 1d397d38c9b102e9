"""One step, one answer: bound, percent of roof, MFU, intensity, gain and fits are the same wherever they are told.

Six steps on an H200, five of them predicted and one recorded; the terminal, the page, JSON, `compare` and a study.
"""

from __future__ import annotations

import html
import json
import re
import shlex

import pytest

from rooflight import formatting, metrics

pytestmark = pytest.mark.usefixtures("one_worker")

UNET = """
import torch
from torch import nn

class Block(nn.Sequential):
    def __init__(self, i, o):
        super().__init__(nn.Conv2d(i, o, 3, padding=1), nn.GroupNorm(8, o), nn.SiLU(), nn.Conv2d(o, o, 3, padding=1))

class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.a, self.b, self.c = Block(3, width), Block(width, 2 * width), Block(3 * width, width)
        self.down, self.up, self.out = nn.MaxPool2d(2), nn.Upsample(scale_factor=2), nn.Conv2d(width, 3, 1)

    def forward(self, x):
        a = self.a(x)
        return self.out(self.c(torch.cat([a, self.up(self.b(self.down(a)))], 1)))

def make(width=64):
    return UNet(width)
"""
STEPS = {
    "resnet50": "resnet50 --batch 16 --step train",
    "gpt2": "gpt2 --seq 1024 --batch 4 --step train --dtype bf16",
    "gpt2 of 2 layers": "gpt2 --set n_layer=2 --seq 1024 --batch 4 --step train --dtype bf16",
    "llama3-8b": "llama3-8b --step decode",
    "unet": "unet.py:make --input 3x64x64 --batch 8 --step train --loss mse --autocast bf16",
    "mnist-cnn": "mnist-cnn --batch 64",
    "fused": "resnet18 --batch 8 --step train --optimizer adam --fused",
}
LARGE = ("resnet50", "gpt2", "llama3-8b", "fused")
"""Full-size steps whose answers take long; what else they have to say, the other three have too."""
each_step = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in STEPS]
)
RECORDING = "recorded:h200/resnet50-train-fp32"
NAMES = ("bound", "percent_of_roof", "mfu", "intensity", "gain", "fit")


@pytest.fixture
def rooflight(run, monkeypatch, tmp_path):
    """Run a command in this process, in a folder of its own that holds somebody's model."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "unet.py").write_text(UNET)

    def rooflight(command: str) -> str:
        code, out, err = run(*shlex.split(command), columns=400)
        assert not code, err
        return out

    return rooflight


def same(one: dict, other: dict) -> None:
    for name in one.keys() & other.keys():
        assert other[name] == (pytest.approx(one[name], rel=1e-9) if isinstance(one[name], float) else one[name]), name


def written(values: dict) -> dict[str, str]:
    """As people read them."""
    texts = {name: metrics.text(name, values[name]) for name in NAMES if name in values}
    return texts | {"fit": metrics.fit_text(values["fit"])}


def of_prediction(row: dict) -> dict:
    return {name: row[name] for name in NAMES}


def plain(page: str) -> str:
    """The text of a page, tags and scripts apart."""
    page = re.sub(r"<script.*?</script>|<style.*?</style>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def _toml(key: str, value: str) -> str:
    if key == "set":
        return "{{ {} = {} }}".format(*value.split("="))
    return value if value.isdigit() or value == "true" else json.dumps(value)


@each_step
def test_a_predicted_step_is_the_same_everywhere(name: str, rooflight, tmp_path) -> None:
    step = STEPS[name]
    (row,) = json.loads(rooflight(f"predict {step} --on h200 --json"))["predictions"]
    told = of_prediction(row)
    assert all(value is not None for value in told.values())
    texts = written(told)

    terminal = rooflight(f"predict {step} --on h200")
    assert f"{texts['bound']}-bound, {texts['percent_of_roof']} of the attainable roof" in terminal
    assert f"MFU {texts['mfu']}; {texts['intensity']} FLOP/byte" in terminal
    assert f": {texts['fit']}" in terminal and (not told["gain"] or texts["gain"] in terminal)

    rooflight(f"estimate {step} -o step.json.gz")
    judged = json.loads(rooflight("compare step.json.gz --on h200 --json"))["verdicts"]
    same(told, {**judged["step"], "fit": judged["fit"]})
    compared = rooflight("compare step.json.gz --on h200")
    assert f"verdict on B: {texts['bound']}-bound" in compared and f"MFU {texts['mfu']}" in compared
    assert f"{texts['percent_of_roof']} of the attainable roof" in compared
    assert f"{texts['intensity']} FLOP/byte" in compared and f"memory of B: {texts['fit']}" in compared

    rooflight("report step.json.gz --on h200 -o page.html")
    page = plain((tmp_path / "page.html").read_text())
    assert f"bound by, predicted on NVIDIA H200 SXM 141 GB {texts['bound']}" in page
    assert f"{texts['percent_of_roof']} of the attainable roof" in page and f"MFU {texts['mfu']}" in page
    assert f"{texts['intensity']} FLOP/byte" in page and f"h200: {texts['fit']}" in page
    assert not told["gain"] or f"{texts['gain']} throughput" in page
    assert "as measured" not in page and "at the measured rate" not in page

    options = dict(re.findall(r"--(\S+) (\S+)", step)) | ({"fused": "true"} if "--fused" in step else {})
    lines = [f"{key} = {_toml(key, value)}" for key, value in options.items() if key != "batch"]
    model, batch = step.split()[0], options.get("batch", "1")
    (tmp_path / "study.toml").write_text(
        f'title = "one"\n[[grid]]\nmodel = ["{model}"]\nbatch = [{batch}]\non = ["h200"]\n' + "\n".join(lines)
    )
    rooflight("study study.toml -o folder")
    (cell,) = json.loads(rooflight("report folder --json"))["rows"]
    values, facts = cell["values"], cell["facts"]
    study = {name: values[f"{name}.predicted"] for name in ("percent_of_roof", "mfu", "gain")}
    study |= {"bound": facts["bound.predicted"], "intensity": values["intensity.estimated"]}
    same(told, study)
    assert facts["fits"] == metrics.FIT_WORDS[told["fit"]]


def test_a_recorded_step_is_the_same_everywhere(rooflight, tmp_path) -> None:
    judged = json.loads(rooflight(f"compare {RECORDING} --json"))["verdicts"]
    step = judged["step"]
    told = {name: step[name] for name in NAMES if name != "fit"} | {"fit": judged["fit"]}
    texts = written(told)
    assert step["times"] == "recorded"

    compared = " ".join(rooflight(f"compare {RECORDING}").split())
    assert f"verdict on B: {texts['bound']}-bound" in compared and f"MFU {texts['mfu']}" in compared
    assert f"{texts['percent_of_roof']} of the attainable roof" in compared and f"a gain of {texts['gain']}" in compared
    assert f"{texts['intensity']} FLOP/byte" in compared

    rooflight(f"report {RECORDING} -o page.html")
    page = plain((tmp_path / "page.html").read_text())
    assert f"bound by {texts['bound']}" in page and f"{texts['percent_of_roof']} of the attainable roof" in page
    assert f"MFU {texts['mfu']}" in page and f"{texts['gain']} throughput" in page and "h200: fits" in page
    assert f"{texts['intensity']} FLOP/byte" in page

    written_json = json.loads(rooflight(f"report {RECORDING} --json"))
    assert json.dumps(written_json).count(f"{texts['percent_of_roof']} of the attainable roof") >= 1


@each_step
def test_every_advice_is_an_option_that_gives_its_figure(name: str, rooflight) -> None:
    (row,) = json.loads(rooflight(f"predict {STEPS[name]} --on h200 --json"))["predictions"]
    assert row["advice"], "this step has none, and the test shows nothing"
    for advice in row["advice"]:
        (other,) = json.loads(rooflight(f"predict {STEPS[name]} {advice['options']} --on h200 --json"))["predictions"]
        assert other["time_s"] == pytest.approx(advice["time_s"], rel=1e-9), advice["options"]
        gain = other["throughput"] / row["throughput"] - 1
        assert gain == pytest.approx(advice["gain"], rel=1e-9, abs=1e-9), advice["options"]
        assert advice["gain"] >= metrics.WORTH


def test_the_layers_of_a_recorded_step_are_not_called_predicted(rooflight, tmp_path) -> None:
    rooflight(f"report {RECORDING} -o page.html")
    page = (tmp_path / "page.html").read_text()
    assert "time of its kernels, predicted for" not in page and "time of a step, recorded" in page


OF_OTHERS = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(16, 32, 5, padding=2)
        self.rnn = nn.LSTM(32, 128, 2, batch_first=True, bidirectional=True)
        self.up = nn.ConvTranspose1d(256, 16, 4, stride=2, padding=1, groups=4)

    def forward(self, x):
        return self.up(self.rnn(self.conv(x).transpose(1, 2))[0].transpose(1, 2))

def make():
    return Net()
"""
ELSEWHERE = {
    "recurrent": ("own.py:make --input 16x64 --batch 8 --step train --loss mse --dtype bf16", "h200"),
    "without tf32": ("own.py:make --input 16x64 --batch 8 --step train --loss mse", "v100"),
    "attention": ("distilbert --batch 2 --dtype fp16", "v100"),
    "decoding": ("gpt2 --step decode --past 512 --batch 4 --dtype fp16", "rtx-4090"),
    "autocast": ("gpt2 --set n_layer=2 --seq 128 --batch 2 --step train --autocast fp16 --checkpoint blocks", "t4"),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_a_saved_step_is_the_same_on_devices_that_run_it_otherwise(name: str, rooflight, tmp_path) -> None:
    """A ledger is traced for Hopper: where another device runs attention, TF32 or recurrent layers otherwise, `compare`
    and `report` say of it what `predict` says."""
    (tmp_path / "own.py").write_text(OF_OTHERS)
    step, device = ELSEWHERE[name]
    (row,) = json.loads(rooflight(f"predict {step} --on {device} --json"))["predictions"]
    rooflight(f"estimate {step} -o step.json.gz")
    compared = json.loads(rooflight(f"compare step.json.gz --on {device} --json"))
    judged = compared["verdicts"]
    same(of_prediction(row), {**judged["step"], "fit": judged["fit"]})
    assert judged["step"]["wall_s"] == pytest.approx(row["time_s"], rel=1e-9)
    rooflight(f"report step.json.gz --on {device} -o page.html")
    page, texts = plain((tmp_path / "page.html").read_text()), written(of_prediction(row))
    assert f"{texts['percent_of_roof']} of the attainable roof" in page and f"MFU {texts['mfu']}" in page
    for amount in (
        formatting.seconds(row["time_s"]),
        formatting.bytes_(row["device_bytes"]),
        f"{texts['intensity']} FLOP/byte",
    ):
        assert amount in page

    (tmp_path / "said.csv").write_text(f"layer,quantity,value,device\ntotal,bound,{row['bound']},{device}\n")
    assert "1 of 1 right" in rooflight("compare step.json.gz --claims said.csv")


def test_a_step_is_the_same_among_other_batches(rooflight) -> None:
    """What ops cost the host does not hang on the batch that was asked for first."""
    step = "vit-b-16 --set num_layers=2 --step train --dtype fp16 --on rtx-4090 --json"
    (alone,) = json.loads(rooflight(f"predict {step} --batch 8"))["predictions"]
    *_, among = json.loads(rooflight(f"predict {step} --batch 1,2,8"))["predictions"]
    for name in (*NAMES, "time_s", "host_time_s", "gpu_time_s", "device_bytes"):
        if name != "gain":
            same({name: alone[name]}, {name: among[name]})


@pytest.mark.parametrize("step", ["unet.py:make --input 3x64x64 --batch 8 --step train", "vit-b-16 --batch 4"])
def test_a_device_takes_what_it_takes_whichever_is_named_first(step: str, rooflight) -> None:
    """A V100 has no TF32 and other kernels of attention: an H200 beside it has."""
    rooflight(f"estimate {step} -o step.json.gz")

    def said(on: str) -> tuple[dict, list[str]]:
        told = json.loads(rooflight(f"report step.json.gz --on {on} --json"))["report"]["sections"]
        rows = {row["device"]: row for table in told["devices"]["tables"] for row in table["rows"] if "device" in row}
        return rows, told["origins"]["commands"]

    (first, commands), (other, others) = said("h200,v100"), said("v100,h200")
    assert first.keys() == other.keys() and len(first) == 2
    for device, row in first.items():
        same(row, other[device])
    assert not any("tf32" in one or "--target" in one for one in (*commands, *others))
