"""`rooflight predict`: what it prints in every form, on one device and on many, and how it answers bad input."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import re
from pathlib import Path

import msgspec
import pytest
import torch
from msgspec.structs import replace

import rooflight
from rooflight import summary
from rooflight.errors import BadInput
from rooflight.files import load
from rooflight.hardware.calibration import FORMAT_VERSION, Calibration, TimedPoints, own_path, shipped
from rooflight.hardware.recorded_tables import encode
from rooflight.ledger import Value
from rooflight.machine.recognise import this_device
from rooflight.metrics import ONCE_IT_FITS
from rooflight.ops.kernel_task import FAMILIES
from rooflight.prediction.tiers import TIERS
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s

SPECS = Path(rooflight.__file__).parent / "hardware" / "specs"
SMALL_GPT2 = ("gpt2", "--set", "n_layer=4", "--set", "n_embd=256", "--set", "n_head=4", "--seq", "128")


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """Run `rooflight predict ARGUMENTS` in this process: exit code, output, error output."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return run.of("predict")


@pytest.fixture
def predicted(run):
    def predicted(*arguments):
        code, out, err = run(*arguments, "--json")
        assert code == 0, err
        return json.loads(out)

    return predicted


def noted(found, code: str) -> list[str]:
    """The texts of the notes with this code."""
    return [note["text"] for note in found["notes"] if note["code"] == code]


# --- one device ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("gpt2", "--seq", 32), "fp32"),
        (("gpt2", "--seq", 32, "--tf32"), "fp32 (TF32 in convolutions and matmuls, not in attention)"),
        (("resnet18", "--tf32"), "fp32 (TF32 in all matrix work)"),
        (("resnet18",), "fp32 (TF32 in convolutions, not in matmuls)"),
        (("resnet18", "--on", "v100-sxm2-16"), "fp32"),
    ],
    ids=["matmuls", "matmuls in TF32", "all in TF32", "convolutions", "no TF32"],
)
def test_the_first_line_says_what_matrix_work_runs_in(run, arguments, words):
    code, out, err = run(*arguments)
    assert code == 0, err
    assert f" · {words}" in out.splitlines()[0] and out.splitlines()[0].endswith(words)


def test_page_says_time_bound_ops_advice_and_sources(run):
    code, out, err = run("resnet18", "--batch", 8, "--step", "train")
    assert code == 0, err
    lines = out.splitlines()
    assert lines[0].startswith("resnet18 ") and " 8 " in lines[0] and "fp32" in lines[0]
    assert "90%" in lines[1] and "samples/s" in lines[2] and "MFU" in lines[2]
    words = " ".join(out.split())
    for fact in ("convolution_backward", "optimizer", "calibrated", "batch 32", "494.5 TFLOP/s tf32", "2 FLOP",
                 "NVIDIA H200 product page"):  # fmt: skip
        assert fact in words, fact


@pytest.mark.parametrize("columns", [80, 150])
def test_nothing_is_wider_than_the_terminal(run, columns):
    code, out, err = run("resnet18", "--on", "h200,a100,v100", "--batch", "1,8,64", "--step", "train", "--price", "2.5",
                         "--epochs", 90, "--dataset-size", 1281167, columns=columns)  # fmt: skip
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= columns
    rows = [line.split() for line in out.splitlines() if line.startswith((" h200 ", " a100-sxm-80 ", " v100-sxm2-16 "))]
    assert [row[:3] for row in rows[:9]] == [
        [device, tier, batch]
        for device, tier in (("h200", "calibrated"), ("a100-sxm-80", "published"), ("v100-sxm2-16", "published"))
        for batch in ("1", "8", "64")
    ]
    assert "1,281,167" in out and " h200 · batch 64" in out


@pytest.mark.parametrize("more", [(), ("--gpus", 8), ("--on", "xeon-8480"), ("--on", "h200,v100,mi250x-board")])
def test_what_was_asked_for_and_the_tier_stay_in_a_narrow_terminal(run, more):
    """The cost of a sample stands nowhere else, and every line says how its time was found."""
    code, out, err = run(*SMALL_GPT2, "--step", "train", "--price", "2.5", *more, columns=80)
    assert code == 0, err
    assert max(map(len, out.splitlines())) <= 80
    head = next(line for line in out.splitlines() if line.startswith(" device "))
    assert "tier" in head and "time/step" in head and "±" in head and "cost of 1 M" in head
    code, out, err = run(*SMALL_GPT2, "--step", "train", *more, columns=80)
    head = next(line for line in out.splitlines() if line.startswith(" device "))
    assert code == 0 and "tier" in head and "samples/s" in head


def test_the_cost_stands_beside_many_cells_too(run):
    batches = ",".join(map(str, range(1, 17)))
    code, out, err = run("mnist-cnn", "--on", "h200,a100", "--batch", batches, "--price", 2, columns=150)
    assert code == 0, err
    assert "cost of 1 M" in out


def test_one_is_one_and_thousands_are_told_apart(run):
    code, out, err = run(
        "mnist-cnn", "--step", "train", "--epochs", 1, "--dataset-size", 1, "--nodes", 1000, columns=150
    )
    assert code == 0, err
    assert re.search(r"\b1 epoch of 1 sample\b", out)
    assert "1,000 GPUs in 1,000 nodes" in out.splitlines()[0]


def test_nothing_is_said_of_gpus_where_there_is_none(run):
    code, out, err = run("mnist-cnn", "--on", "xeon-8480", columns=150)
    assert code == 0, err
    assert "GPU-busy" not in out and "the GPU" not in out and "% of roof" in out


def test_many_cells_are_read_side_by_side(run):
    batches = ",".join(map(str, range(1, 17)))
    code, out, err = run("mnist-cnn", "--on", "h200,a100", "--batch", batches, columns=150)
    assert code == 0, err
    heads = [line.split() for line in out.splitlines() if line.strip().startswith("batch ")]
    assert heads == [["batch", "h200", "a100-sxm-80"]] * 4
    assert re.search(r"\b12\b", out) and "max_pool" not in out  # of 12 or fewer there are details


def test_json_has_what_is_asked_of_it(predicted):
    found = predicted("mnist-cnn", "--on", "h200,a100", "--batch", "64,8", "--step", "train", "--loss", "mse")
    rows = found["predictions"]
    assert [(row["device"], row["tier"], row["batch"]) for row in rows] == [
        ("h200", "calibrated", 64), ("h200", "calibrated", 8),
        ("a100-sxm-80", "published", 64), ("a100-sxm-80", "published", 8),
    ]  # fmt: skip
    assert found["header"]["batch"] is None and found["header"]["loss"] == "mse"
    assert found["conventions"] and set(found["calibrations"]) == {"h200", "a100-sxm-80"}
    for row in rows:
        assert row["time_interval_s"]["low"] < row["time_s"] < row["time_interval_s"]["high"]
        assert row["gpu_time_interval_s"]["low"] < row["gpu_time_s"] < row["gpu_time_interval_s"]["high"]
        assert row["time_s"] >= row["gpu_time_s"] * 0.999
        assert row["throughput"] == pytest.approx(row["batch"] / row["time_s"])
        assert row["bound"] in ("compute", "memory", "host") and 0 < row["percent_of_roof"] <= 100
        assert sum(row["phases"].values()) == pytest.approx(row["gpu_time_s"])
        assert set(row["phases"]) == {"forward", "backward", "optimizer"}
        assert len(row["ops"]) == 10 and row["ops"][0]["time_s"] >= row["ops"][9]["time_s"]
        assert 0 < row["mfu"] < 1 and 0 < row["inside"] <= 1 and row["kernels"] > 0
        assert not {"op_times_s", "roofline", "many", "run"} & set(row)


def test_tokens_only_where_there_are_some(predicted):
    (row,) = predicted(*SMALL_GPT2, "--batch", 4)["predictions"]
    assert row["tokens_per_s"] == pytest.approx(128 * row["throughput"])
    (row,) = predicted("mnist-cnn")["predictions"]
    assert row["tokens_per_s"] is None


def test_roofline_has_roofs_of_both_kinds_and_every_op(predicted):
    (row,) = predicted("mnist-cnn", "--batch", 16, "--step", "train", "--roofline")["predictions"]
    plot = row["roofline"]
    assert (
        {True, False} == {roof["measured"] for roof in plot["roofs"]} == {slope["measured"] for slope in plot["memory"]}
    )
    assert plot["ridges"] and plot["zero_flop_ops"] and plot["step"]["verdict"]
    assert plot["step"]["gpu_busy_s"] == pytest.approx(row["gpu_time_s"]) == pytest.approx(sum(row["op_times_s"]))
    (row,) = predicted("mnist-cnn", "--on", "k80", "--roofline")["predictions"]
    assert {roof["measured"] for roof in row["roofline"]["roofs"]} == {False}


def test_one_trace_for_many_batches_says_the_same_as_one_for_each(predicted):
    many = predicted("resnet18", "--batch", "4,8,16", "--step", "train")["predictions"]
    (one,) = predicted("resnet18", "--batch", "8", "--step", "train")["predictions"]
    assert many[1]["gpu_time_s"] == pytest.approx(one["gpu_time_s"], rel=1e-6)
    assert many[1]["time_s"] == pytest.approx(one["time_s"], rel=1e-6)


def test_adam_does_not_wait_for_its_counters(predicted):
    """Adam reads its step counters, which lie on the host: no step may become longer than host and GPU together."""
    (row,) = predicted(*SMALL_GPT2, "--batch", 64, "--step", "train", "--optimizer", "adamw")["predictions"]
    assert row["time_s"] <= 1.1 * max(row["host_time_s"], row["gpu_time_s"] + row["kernels"] * 2e-6)


# --- tiers ---


def test_a_ppp_is_computed_from_a_measurement(predicted):
    """The recorded step itself, predicted with its own PPP, takes as long as it took."""
    recorded = "recorded:h200/resnet50-train-fp32"
    (found,) = predicted("resnet50", "--on", "h200", "--batch", "16", "--step", "train", "--loss", "mse", "--ppp",
                         recorded)["predictions"]  # fmt: skip
    assert found["tier"] == "spec"
    assert "computed: resnet50" in found["source"]
    assert found["gpu_time_s"] == pytest.approx(busy_s(Measured(load(recorded))), rel=0.02)


def test_ppp_asks_for_the_spec_tier(predicted):
    (half,), (whole,) = (predicted("resnet18", "--on", "v100", "--ppp", ppp)["predictions"] for ppp in ("0.5", "1"))
    assert half["tier"] == "spec" and "PPP 0.5 (given)" in half["source"]
    assert half["time_s"] == pytest.approx(2 * whole["time_s"])
    (row,) = predicted("resnet18", "--on", "v100", "--tier", "spec")["predictions"]
    assert row["time_interval_s"]["low"] < row["time_s"] < row["time_interval_s"]["high"]


# --- devices that nobody described, and Apple's ---

NUMBERS = "name=rtx-4075,memory=12GB,bandwidth=504GB/s,fp32=35.5T,fp16=71T,sms=56,clock=2475MHz,capability=89"


def test_a_few_numbers_stand_for_a_device(predicted):
    found = predicted("resnet18", "--on", f"a100,{NUMBERS};h200", "--batch", 8)
    rows = {row["device"]: row for row in found["predictions"]}
    assert list(rows) == ["a100-sxm-80", "rtx-4075", "h200"]
    assert rows["rtx-4075"]["tier"] == "transferred"
    assert rows["rtx-4075"]["memory"]["usable_bytes"] < 12 * 2**30
    (guessed,) = noted(found, "assumed-figures")
    assert guessed.startswith("rtx-4075: ") and "bf16 71T (as fp16), tf32 35.5T" in guessed
    (cache,) = noted(found, "assumed-cache")
    assert cache.startswith("rtx-4075: ") and "l2_bytes" in cache


def test_numbers_and_a_file_of_the_same_device_predict_the_same(predicted, tmp_path):
    names = "memory_bytes bandwidth_bytes_per_s sms clock_hz l2_bytes tdp_w".split()
    device = rooflight_device("rtx-4070")
    by_key = dict(zip(names, ("memory", "bandwidth", "sms", "clock", "cache", "power"), strict=True))
    units = {"sms": "", "power": "W", "clock": "e0", "memory": "B", "cache": "B", "bandwidth": "B/s"}
    given = [f"{by_key[name]}={getattr(device, name).value:.0f}{units[by_key[name]]}" for name in names]
    given = [part.replace("e0", "Hz") for part in given]
    given += [
        f"{key}={figure.value:.0f}e0" for key, figure in device.core_flops_per_s.items() if key in ("fp32", "fp64")
    ]
    given += [f"{key}={figure.value:.0f}e0" for key, figure in device.tensor_flops_per_s.items()]
    described = ",".join(["name=GeForce-mine", "capability=89", *given])
    rows = predicted("resnet18", "--on", f"rtx-4070,{described}", "--batch", 16)["predictions"]
    assert rows[1]["gpu_time_s"] == pytest.approx(rows[0]["gpu_time_s"], rel=1e-9)
    assert rows[1]["time_s"] == pytest.approx(rows[0]["time_s"], rel=1e-9)


def rooflight_device(name):
    from rooflight.hardware.devices import find

    return find(name)


@pytest.mark.parametrize("step", ["infer", "train"])
def test_an_apple_gpu_has_the_spec_tier_and_says_why(predicted, step):
    found = predicted("resnet18", "--on", "m4-max,m3", "--step", step, "--memory")
    assert [row["tier"] for row in found["predictions"]] == ["spec", "spec"]
    assert [text.partition(":")[0] for text in noted(found, "spec-tier-only")] == ["m4-max", "m3"]
    assert noted(found, "other-allocator")
    assert not noted(found, "assumed-memory") and not noted(found, "workspaces-of-another-gpu")
    memory = found["predictions"][0]["memory"]
    assert memory.get("peak_reserved_bytes") is None and memory.get("outside_bytes") is None and memory["fits"]


def test_one_apple_gpu_among_others_has_the_spec_tier(predicted):
    rows = predicted("mnist-cnn", "--on", "h200,m4-max")["predictions"]
    assert [row["tier"] for row in rows] == ["calibrated", "spec"]


def test_a_processor_that_nobody_calibrated_has_the_spec_tier(predicted, tmp_path):
    mine = tmp_path / "mine.toml"
    mine.write_text((SPECS / "epyc-9654.toml").read_text().replace('name = "epyc-9654"', 'name = "mine"', 1))
    for device in ("xeon-8480", str(mine)):
        found = predicted("mnist-cnn", "--on", device)
        assert found["predictions"][0]["tier"] == "spec"
        (why,) = noted(found, "spec-tier-only")
        assert "rooflight calibrate --on cpu" in why
    asked = predicted("mnist-cnn", "--on", "xeon-8480", "--tier", "spec")
    assert not noted(asked, "spec-tier-only")


def test_processors_with_and_without_a_calibration_keep_their_order(predicted):
    path = own_path("epyc-9654")
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(cpu_calibration()))
    found = predicted("mnist-cnn", "--on", "xeon-8480,epyc-9654", "--batch", "1,8")
    assert [(row["device"], row["tier"], row["batch"]) for row in found["predictions"]] == [
        ("xeon-8480", "spec", 1), ("xeon-8480", "spec", 8),
        ("epyc-9654", "calibrated", 1), ("epyc-9654", "calibrated", 8),
    ]  # fmt: skip
    assert set(found["calibrations"]) == {"epyc-9654"}
    # One that is made or taken away in the meantime is seen, in the same process too.
    path.unlink()
    assert [row["tier"] for row in predicted("mnist-cnn", "--on", "epyc-9654")["predictions"]] == ["spec"]


def test_another_vendors_times_are_called_a_guess(predicted):
    notes = noted(predicted("mnist-cnn", "--on", "mi300x,mi250x,a100"), "other-vendor")
    assert [text.partition(":")[0] for text in notes] == ["mi300x", "mi250x"]
    assert all("NVIDIA H200 SXM 141 GB" in text and "AMD" in text for text in notes)
    assert not noted(predicted("mnist-cnn", "--on", "mi300x", "--tier", "spec"), "other-vendor")


def test_graphs_take_the_host_away(predicted):
    (eager,) = predicted("resnet18", "--step", "train")["predictions"]
    (graph,) = predicted("resnet18", "--step", "train", "--graphs")["predictions"]
    assert graph["time_s"] < eager["time_s"] and eager["bound"] == "host" and graph["bound"] != "host"


def test_fp32_is_fp32_where_there_is_no_tf32(run):
    code, out, _ = run("resnet18", "--on", "v100", "--batch", 8)
    assert code == 0 and "tf32" not in out.lower()


# --- runs and what they cost ---


def test_a_run_of_epochs_and_its_cost(predicted):
    (row,) = predicted("mnist-cnn", "--batch", 64, "--step", "train", "--epochs", 3, "--dataset-size", 60000, "--price",
                       "2.5")["predictions"]  # fmt: skip
    steps = 3 * math.ceil(60000 / 64)
    assert row["run"]["steps"] == steps
    assert row["run"]["time_s"] == pytest.approx(steps * row["time_s"])
    assert row["run"]["cost"] == pytest.approx(2.5 * steps * row["time_s"] / 3600)
    assert row["cost_of_million_samples"] == pytest.approx(2.5 / 3600 * 1e6 / row["throughput"])


# --- many GPUs ---


def test_parameters_are_counted_once(predicted):
    many = [predicted(*SMALL_GPT2, "--step", "train", "--batch", 8, "--gpus", gpus)["predictions"][0]["many"]
            for gpus in (2, 8)]  # fmt: skip
    settings = {"n_layer": "4", "n_embd": "256", "n_head": "4"}
    params = summary.params(rooflight.estimate("gpt2", seq=128, overrides=settings))
    assert [row["parameters"] for row in many] == [params, params]
    assert many[0]["parameter_bytes"] == many[1]["parameter_bytes"] == 4 * params


@pytest.mark.parametrize("how", ["ddp", "fsdp", "zero1", "zero2", "zero3", "tp", "pp", "2x2x1"])
def test_every_way_of_sharing(predicted, how):
    (row,) = predicted(*SMALL_GPT2, "--step", "train", "--batch", 16, "--gpus", 4, "--parallel", how)["predictions"]
    many = row["many"]
    assert many["gpus"] == row["gpus"] == 4 == many["tensor"] * many["pipeline"] * many["data"]
    assert many["global_batch"] == 16 * many["data"]
    assert row["time_s"] == pytest.approx(many["compute_s"] + many["bubble_s"] + many["exposed_s"])
    assert row["throughput"] == pytest.approx(many["global_batch"] / row["time_s"])
    assert (many["bubble_s"] > 0) == (many["pipeline"] > 1)
    assert many["communication_s"] > 0 and many["assumptions"]
    assert many["weak"][0]["efficiency"] == 1
    assert many["weak"][-1]["gpus"] == 4096
    assert {point["global_batch"] for point in many["strong"]} == {many["global_batch"]}
    assert set(many["weak"][0]["paleo_speedup"]) == {"tree", "butterfly", "one-to-all"}


def test_what_cannot_fit_is_said(predicted):
    found = predicted("llama3-8b", "--on", "h200,k20x", "--seq", 64)
    about = [note["code"] for note in found["notes"] if "k20x" in note["text"]]
    assert len(about) == 2 and about[0] == "does-not-fit"
    assert [row["fits"] for row in found["predictions"]] == [True, False]


@pytest.mark.slow
def test_what_a_training_step_keeps_cannot_fit(run, predicted):
    """The weights alone would: with gradients and Adam's two states they are four times as much."""
    code, out, err = run(
        "llama3-8b", "--dtype", "bf16", "--step", "train", "--seq", 64, "--on", "rtx-4090", columns=200
    )
    assert code == 0, err
    line = next(line for line in out.splitlines() if line.startswith("memory: "))
    assert "25.3 GB" in line
    fits = predicted("llama3-8b", "--dtype", "bf16", "--seq", 64, "--on", "rtx-4090")
    assert fits["predictions"][0]["fits"] is True
    assert not noted(fits, "does-not-fit")
    (text,) = noted(predicted("llama3-8b", "--seq", 64, "--on", "rtx-4090"), "does-not-fit")
    assert re.search(r"\brtx-4090 at batch 1\b.* 3\S* GB .*\b25\.3 GB\b", text)


def test_sharding_needs_less_memory(predicted):
    def states(how):
        (row,) = predicted(*SMALL_GPT2, "--step", "train", "--gpus", 4, "--parallel", how)["predictions"]
        return sum(row["many"][name] for name in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"))

    ddp, zero1, zero2, zero3 = map(states, ("ddp", "zero1", "zero2", "zero3"))
    assert ddp > zero1 > zero2 > zero3 == pytest.approx(ddp / 4)


def test_page_of_many_gpus(run):
    code, out, err = run("resnet18", "--batch", 32, "--step", "train", "--gpus", 8, "--nodes", 4, columns=100)
    assert code == 0, err
    assert "32 GPUs in 4 nodes, ddp" in " ".join(out.split())
    for fact in ("11,689,512", "32 replicas", "all-reduce", "weak scaling", "strong scaling", "4,096"):
        assert fact in out, fact


# --- calibrations ---


def test_a_calibration_that_several_devices_share_is_described_once(run):
    text = run("mnist-cnn", "--on", "h200,a100,t4,rtx-4070,l4")[1]
    words = " ".join(text.split())
    assert words.count("NVIDIA H200, 20") == 1
    assert re.search(r"rtx-4070, l4: [^;]*\bh200\b[^;]*;[^;]*\b2022\b[^;]*\b0\.43\b", words)
    for device in ("a100-sxm-80: ", "t4: "):
        assert any(line.startswith(device) and "NeuSight" in line for line in text.splitlines())
    # Of one device, or of several that use it alike, it stands where it always stood.
    alike = " ".join(run("mnist-cnn", "--on", "rtx-4070,l4")[1].split())
    assert re.search(r"\bh200\b[^:]*: NVIDIA H200, 20", alike)


def test_the_tiers_are_the_same_everywhere(run):
    help_text = " ".join(run("--help")[1].split())
    page = (Path(__file__).parents[2] / "docs" / "predicting.md").read_text()
    assert all(f"{tier} (" in help_text for tier in TIERS) and "partial" in help_text
    assert all(f"| `{tier}` |" in page for tier in (*TIERS, "partial"))
    with pytest.raises(BadInput) as refused:
        rooflight.predict("mnist-cnn", on="h200", tier="partial")
    assert (refused.value.code, refused.value.options) == ("unknown-choice", ("--from",))


def written(path, **changes):
    calibration = shipped("h200")
    assert calibration is not None
    path.write_bytes(encode(replace(calibration, **changes)))
    return path


def test_calibration_of_another_torch_is_used_and_said(run, tmp_path):
    file = written(tmp_path / "own.json.gz", torch="2.1.0+cu118")
    code, out, _ = run("mnist-cnn", "--calibration", file, columns=200)
    here = torch.__version__.split("+")[0]
    assert code == 0 and any("2.1.0" in line and here in line for line in out.splitlines())


def test_calibration_of_another_driver_is_said_where_the_device_is_here(run, monkeypatch):
    monkeypatch.setattr("rooflight.prediction.resolve_devices.is_here", lambda device: True)
    monkeypatch.setattr("rooflight.machine.installed_gpus.driver_version", lambda: "999.1")
    code, out, _ = run("mnist-cnn", columns=200)
    assert code == 0 and "999.1" in out


def test_calibration_of_another_device_is_carried_over_and_said(predicted, tmp_path):
    file = written(tmp_path / "other.json.gz", device="NVIDIA H100 80GB HBM3")
    found = predicted("mnist-cnn", "--on", "a100", "--calibration", file)
    assert found["predictions"][0]["tier"] == "transferred"
    (text,) = noted(found, "transferred-calibration")
    assert "NVIDIA H100 80GB HBM3" in text and "a100-sxm-80" in text


def cpu_calibration():
    """Made up: every kind of work takes a nanosecond an element."""
    points = tuple(
        TimedPoints(family, "fp32", [[2**k] * len(names) + [1000 * 4**k, 1200 * 4**k, 1] for k in range(1, 5)])
        for family, names in FAMILIES.items()
    )
    return Calibration(
        format_version=FORMAT_VERSION, rooflight="0", torch=str(torch.__version__), device="a processor",
        made="2026-11-15", points=points, host={"plain.infer": Value(1e-6, "made up")},
        ceilings={"copy": Value(1e10, "made up"), "gemm.fp32": Value(1e11, "made up")},
    )  # fmt: skip


@pytest.mark.skipif(torch.cuda.is_available(), reason="here is a GPU")
@pytest.mark.parametrize("name", ["here", "cpu"])
def test_here_is_the_processor_once_it_is_calibrated(run, predicted, name):
    found = this_device(kind="cpu")
    known = None if found is None else found.device or found.outline
    if known is None:
        pytest.skip("this processor says too little of itself")
    if found.device is None:
        code, _, err = run("mnist-cnn", "--on", name)
        assert (code, run.code) == (2, "not-calibrated") and "rooflight calibrate --on cpu" in err
    path = own_path(known.name)
    path.parent.mkdir(parents=True)
    path.write_bytes(encode(cpu_calibration()))
    (row,) = predicted("mnist-cnn", "--on", name)["predictions"]
    assert row["device"] == known.name and row["tier"] == "calibrated" and row["bound"] != "host"


# --- files ---


def test_files_in_every_form_and_never_over_another(run, tmp_path):
    for name in ("p.json", "p.json.gz", "p.csv", "p.md"):
        code, out, err = run("mnist-cnn", "--batch", "1,8", "-o", tmp_path / name)
        assert (code, out) == (0, "") and str(tmp_path / name) in err
    assert json.loads((tmp_path / "p.json").read_text())["predictions"][1]["batch"] == 8
    assert json.loads(gzip.decompress((tmp_path / "p.json.gz").read_bytes()))["predictions"]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "p.csv").read_text())))
    assert [row["batch"] for row in rows] == ["1", "8"] and float(rows[0]["time_s"]) > float(rows[0]["time_low_s"]) > 0
    assert (tmp_path / "p.md").read_text().startswith("# mnist-cnn")
    code, _, _ = run("mnist-cnn", "-o", tmp_path / "p.json")
    assert (code, run.code, run.options) == (2, "file-exists", ("--force",))
    assert run("mnist-cnn", "-o", tmp_path / "p.json", "--force")[0] == 0


def test_a_spreadsheet_has_the_run_and_its_price(run):
    asked = ("mnist-cnn", "--step", "train", "--batch", "1,8", "--price", "3", "--epochs", "2", "--dataset-size", "80")
    code, out, err = run(*asked, "--csv")
    assert code == 0, err
    for row in csv.DictReader(io.StringIO(out)):
        assert int(row["run_steps"]) == 2 * 80 // int(row["batch"])
        assert float(row["run_time_s"]) == pytest.approx(int(row["run_steps"]) * float(row["time_s"]))
        assert float(row["run_cost"]) == pytest.approx(3 * float(row["run_time_s"]) / 3600)
        assert float(row["cost_of_million_samples"]) == pytest.approx(1e6 / float(row["throughput"]) / 1200)


# --- Python ---


def test_a_data_frame_has_a_row_for_every_device_and_batch():
    pytest.importorskip("pandas")
    found = rooflight.predict("mnist-cnn", on=["h200", "a100-80"], batch=[1, 8], advice=False)
    frame = found.to_pandas()
    assert list(zip(frame.device, frame.batch, frame.time_s, strict=True)) == [
        (one.device, one.batch, one.time_s) for one in found
    ]


def test_a_live_module_is_predicted_with_its_inputs():
    found = rooflight.predict(torch.nn.Linear(64, 64), torch.zeros(32, 64), step="train", loss="sum", optimizer="sgd")
    assert len(found) == 1 and found[0].batch == 32 and found.at("h200").time_s > 0
    assert "a step" in repr(found)
    with pytest.raises(BadInput) as refused:
        rooflight.predict(torch.nn.Linear(64, 64), torch.zeros(32, 64), batch=[1, 2])
    assert refused.value.code == "needs-a-model-name"


def test_a_live_module_on_many_gpus_keeps_its_batch():
    found = rooflight.predict(torch.nn.Linear(64, 64), torch.zeros(32, 64), step="train", loss="sum", optimizer="sgd",
                              gpus=4)  # fmt: skip
    many = found[0].many
    assert many is not None and many.global_batch == 128 and many.weak and not many.strong


def test_devices_may_stand_in_one_text():
    found = rooflight.predict("mnist-cnn", on="h200, a100", advice=False)
    assert [one.device for one in found] == ["h200", "a100-sxm-80"]


def test_a_prediction_that_is_not_there_is_one_kind_of_error():
    found = rooflight.predict("mnist-cnn", on=["h200", "a100"], batch=[1, 2, 4, 8], advice=False)
    there = [f"{one.device} at batch {one.batch}" for one in found]
    for asked, code in ((("h200", 9), "no-prediction"), (("l4",), "no-prediction"), (("h21",), "unknown-device")):
        with pytest.raises(BadInput) as caught:
            found.at(*asked)
        message = str(caught.value)
        assert caught.value.code == code and asked[0] in message and "None" not in message and "\n" not in message
        if code == "no-prediction":
            assert isinstance(caught.value, KeyError)
            assert [one for one in there if one in message] == there[:6]  # and how many more
            assert message.endswith(" 2 more")


def test_predictions_can_be_written_as_they_are():
    found = rooflight.predict("mnist-cnn", batch=[1, 2, 3], on=["h200", "l4"])
    assert json.loads(msgspec.json.encode(found))["predictions"][5]["device"] == "l4"


# --- bad input ---


@pytest.mark.parametrize(("old", "new", "key"), [
    ("bandwidth_bytes_per_s = {", "bandwidth = {", "bandwidth"),
    ("value = 4.8e12", "value = 4.8e15", "bandwidth"),
    ("value = 4.8e12", "value = -1", ""),
    ("kind = \"gpu\"", "kind = \"toaster\"", "kind"),
])  # fmt: skip
def test_a_spec_file_with_something_wrong_in_it(run, tmp_path, old, new, key):
    text = (SPECS / "h200.toml").read_text()
    assert old in text
    file = tmp_path / "mine.toml"
    file.write_text(text.replace(old, new, 1))
    code, out, err = run("mnist-cnn", "--on", file)
    assert (code, out, run.code) == (2, "", "bad-device-file") and err.count("\n") == 1
    assert str(file) in err and key in err


def test_a_spec_file_of_ones_own(predicted, tmp_path):
    file = tmp_path / "mine.toml"
    text = (SPECS / "h200.toml").read_text()
    file.write_text(text.replace('name = "h200"', 'name = "mine"', 1))
    (row,) = predicted("mnist-cnn", "--on", file)["predictions"]
    assert row["device"] == "mine" and row["tier"] == "transferred"
    file.write_text(text.replace("value = 4.8e12", "value = 2.4e12", 1))
    found = predicted("mnist-cnn", "--on", file)
    assert found["predictions"][0]["tier"] == "transferred" and noted(found, "differs-from-database")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"{}", b'{"format_version": 99}', b"\x1f\x8bnonsense"])
def test_a_corrupt_calibration_is_one_line(run, tmp_path, content):
    file = tmp_path / "own.json.gz"
    file.write_bytes(content)
    code, out, err = run("mnist-cnn", "--calibration", file)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert run.code in ("damaged-file", "truncated-file", "unknown-format")
    assert str(file) in err and "rooflight calibrate" in err


def test_a_calibration_of_a_cpu_is_none_of_a_gpu(run, tmp_path):
    file = tmp_path / "cpu.json.gz"
    file.write_bytes(encode(cpu_calibration()))
    code, _, err = run("mnist-cnn", "--on", "h200", "--calibration", file)
    assert (code, run.code) == (2, "calibration-of-another-device")
    assert "h200" in err and "CPU (a processor)" in err and "--calibration" in run.options


def test_every_device_of_a_page_has_its_assumptions_and_equal_ones_are_told_once(run):
    _, out, _ = run(*SMALL_GPT2, "--batch", 2, "--step", "train", "--gpus", 16, "--on", "h200,v100", columns=400)
    assumed = [line for line in out.splitlines() if line.startswith("assumed: ")]
    assert len(assumed) == len({*assumed})
    for device, link in (("h200", "371 GB/s"), ("v100-sxm2-16", "120 GB/s")):
        assert any(line.startswith(f"assumed: {device}: ") and link in line for line in assumed)


def test_advice_for_a_step_that_does_not_fit_comes_after_what_makes_it_fit(run):
    _, out, _ = run("resnet18", "--batch", 4096, "--step", "train", "--on", "t4")
    assert out.index("less memory") < out.index(ONCE_IT_FITS)
    _, out, _ = run("resnet18", "--batch", 4, "--step", "train", "--on", "t4")
    assert ONCE_IT_FITS not in out
