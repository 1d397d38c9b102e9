"""Verdicts and advice: hand-made numbers for layers of the recordings, what must hold of all of them, what has no
verdict, and gains against recordings that have the change."""

from __future__ import annotations

import importlib
from functools import cache

import msgspec
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import rooflight
from rooflight import recordings
from rooflight.analysis.judged_device import by_time
from rooflight.analysis.roofline_position import SHORT_S
from rooflight.analysis.verdicts import Judge, step_verdict, verdicts
from rooflight.errors import BadInput
from rooflight.hardware.devices import find
from rooflight.ledger import FORMAT_VERSION, Ledger, Measurement, Value
from rooflight.metrics import FAR_PERCENT, WORTH
from rooflight.prediction.roofline import roofline
from rooflight.profiles import read
from rooflight.reporting.sections.verdict_tables import (
    advice_lines,
    step_table,
    verdict_data,
    verdict_document,
    verdict_table,
)
from rooflight.reporting.writers.terminal import narrowed
from rooflight.step.fusion import fused_away
from rooflight.summary import By
from rooflight.summary.measured_rows import NO_OP
from rooflight.summary.measured_step import is_host_bound, wall_s
from tests.docs.test_pages import is_alike
from tests.fixtures.measured_ledgers import HEADER, compiled, toy
from tests.fixtures.paths import DATA
from tests.fixtures.recordings import recording

SHIPPED = recordings.names()
LOGS = sorted((DATA / "ncu").iterdir())
BYS: tuple[By, ...] = ("module", "type", "op")
TF32, FP32, BF16, BANDWIDTH = 494.5e12, 67e12, 989e12, 4.8e12
"""Peaks of the H200."""


@cache
def judged(name: str) -> Judge:
    return Judge(recording(name if "/" in name else f"h200/{name}"))


def layer(recording: str, name: str):
    (found,) = [row for row in judged(recording).verdicts() if row.name == name]
    return found


# --- by hand ---


def test_a_convolution_in_tf32_stands_under_the_tf32_roof():
    """VGG-19's second: 64 -> 64 channels, 3x3, 224x224, batch 16. 2*9*64*64*224*224*16 = 59,190,018,048 FLOP, all on tensor
    cores; 308,456,448 on CUDA cores (bias); 1,643,329,536 bytes; 639.807 µs.

    Units: 59.19 G / 494.5 T + 0.308 G / 67 T = 119.70 + 4.60 = 124.30 µs. Memory: 1.643 GB / 4.8 TB/s = 342.36 µs.
    """
    found = layer("vgg19-infer-fp32", "features.2")
    assert {(one.unit, one.precision): one.flops for one in found.units} == {
        ("tensor cores", "tf32"): 2 * 9 * 64 * 64 * 224 * 224 * 16, ("CUDA cores", "fp32"): 308_456_448,
    }  # fmt: skip
    assert (found.bytes, found.time_s) == (1_643_329_536, pytest.approx(639.807e-6))
    units_s, memory_s = 59_190_018_048 / TF32 + 308_456_448 / FP32, 1_643_329_536 / BANDWIDTH
    assert (units_s, memory_s) == (pytest.approx(124.30e-6, rel=1e-4), pytest.approx(342.36e-6, rel=1e-4))
    assert found.percent_of_roof == pytest.approx(100 * 342.36 / 639.807, rel=1e-4)
    assert found.percent_of_compute == pytest.approx(100 * 124.30 / 639.807, rel=1e-4)
    assert found.intensity == pytest.approx((59_190_018_048 + 308_456_448) / 1_643_329_536)
    assert found.ridge == pytest.approx(59_498_474_496 / 124.30e-6 / BANDWIDTH, rel=1e-4)  # 99.7: of the mix
    assert (found.side, found.side_text, found.bound) == ("memory", "left: memory roof", "memory")
    assert found.attainable_flops_per_s == pytest.approx(59_498_474_496 / 342.36e-6, rel=1e-4)


def test_tf32_work_under_the_fp32_roof_would_be_above_it():
    """The documents judged tensor-core work by the FP32 roof: 59.19 G / 67 T = 883 µs is more than the 640 it took."""
    found = layer("vgg19-infer-fp32", "features.2")
    assert found.flops / FP32 > 1.3 * found.time_s
    assert all(one.peak_flops_per_s == (TF32 if one.unit == "tensor cores" else FP32) for one in found.units)
    assert found.percent_of_roof < 100


def test_a_vocabulary_of_odd_size_is_far_from_both_roofs():
    """GPT-2's last product, 4 x 1,024 rows, 768 deep, 50,257 columns: 3.365 ms where bf16's roof allows 0.32 and the
    memory 0.10."""
    found = layer("gpt2-infer-bf16", "lm_head")
    useful = 2 * 4 * 1024 * 768 * 50_257
    assert found.units[0].flops == pytest.approx(useful, rel=0.002)  # padded to tiles
    assert found.percent_of_compute == pytest.approx(
        100 * (found.units[0].flops / BF16 + found.units[1].flops / FP32) / 3.364911e-3
    )
    assert (found.bound, found.far) == ("compute", "neither roof")
    assert found.advice.key == "pad"
    assert "50,257 padded to 50,304" in found.sentence
    assert 0.3e-3 < found.advice.changed_kernel_time_s < 1e-3


def test_work_without_flops_is_held_against_the_memory():
    """A ReLU in place on 16 x 64 x 224 x 224 floats reads and writes 205.5 MB: 411 MB / 4.8 TB/s = 85.6 µs of 98.3."""
    found = layer("vgg19-infer-fp32", "features.1")
    assert found.flops == 0 and found.intensity == 0 and found.side == "memory"
    assert found.bytes == pytest.approx(2 * 16 * 64 * 224 * 224 * 4, rel=0.01)
    assert found.percent_of_roof == pytest.approx(100 * found.bytes / BANDWIDTH / found.time_s)
    assert found.bound == "memory" and 80 < found.percent_of_roof < 95
    assert found.ridge == pytest.approx(FP32 / BANDWIDTH)


def test_what_the_cache_gives_is_not_latency():
    """The ReLU behind features.19 touches 2 x 25.7 MB in 9.28 µs, 5.5 TB/s: more than the DRAM has, which gave 4%."""
    found = layer("vgg19-infer-fp32", "features.20")
    compulsory = 2 * 16 * 512 * 28 * 28 * 4
    assert found.percent_of_memory < 5
    assert found.percent_of_cache == pytest.approx(100 * compulsory / BANDWIDTH / found.time_s)
    assert (found.bound, found.far) == ("memory", "L2 cache") and f"{found.percent_of_cache:.0f}%" in found.evidence


def test_flops_are_twice_the_macs_as_in_the_peaks():
    """conv2 of the MNIST network at batch 64: 9 * 32 * 64 * 576 * 64 = 679,477,248 multiply-adds."""
    found = layer("mnist-cnn-infer-tf32", "conv2")
    assert found.units[0].flops == 2 * 679_477_248
    assert found.far == "neither roof"


def test_the_same_layer_on_cuda_cores_has_their_roof():
    on_cores = layer("mnist-cnn-infer-fp32", "conv2")
    assert [one.unit for one in on_cores.units] == ["CUDA cores"]
    assert on_cores.attainable_flops_per_s == pytest.approx(FP32)
    assert (on_cores.bound, on_cores.far) == ("compute", "")


# --- of every recording ---


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("by", BYS)
def test_every_row_has_its_place_or_a_reason(name, by):
    judge = judged(name)
    for row in judge.verdicts(by):
        assert row.evidence and row.sentence and "\n" not in row.sentence + row.evidence
        if row.reason:
            assert row.bound is row.side is row.percent_of_roof is None
            # What ran and has none: kernels of no op in a graph, where nothing was counted; a number that is copied.
            assert not row.time_s or row.name == NO_OP or "local_scalar_dense" in row.name
            continue
        assert 0 < row.percent_of_roof <= (105 if row.bytes_basis == "DRAM" else 400)
        both = row.percent_of_compute, row.percent_of_memory
        assert (row.bound == row.side or row.parts > 1) and row.percent_of_roof >= max(both) * (1 - 1e-9)
        assert row.intensity is None or (row.intensity >= row.ridge * (1 - 1e-9)) == (row.side == "compute")
        if row.parts == 1:
            assert row.percent_of_roof == pytest.approx(max(both)) or row.flops_basis == "useful"
            assert row.side == ("compute" if both[0] > both[1] else "memory")
        assert row.roof_time_s == pytest.approx(row.percent_of_roof / 100 * row.time_s)
        if row.kernels and row.time_s / row.kernels < SHORT_S:
            assert row.far == "short kernels"
        else:
            assert (row.far in ("neither roof", "L2 cache")) == (row.percent_of_roof < FAR_PERCENT)


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("by", BYS)
def test_times_add_up_to_the_total(name, by):
    judge = judged(name)
    rows = [row for row in judge.verdicts(by) if by != "module" or not row.depth]
    assert sum(row.time_s or 0 for row in rows) == pytest.approx(judge.measured.total.time_s)
    assert sum(row.share or 0 for row in rows) == pytest.approx(1)


@pytest.mark.parametrize("name", SHIPPED)
def test_the_step_is_host_bound_where_the_measurement_says_so(name):
    judge = judged(name)
    step = judge.step()
    assert (step.bound == "host") == is_host_bound(judge.measured)
    assert step.whole.host_bound == is_host_bound(judge.measured)
    assert sum(step.sides.values()) == pytest.approx(1, abs=0.01)
    assert 0 <= sum(step.far.values()) <= 1.01
    assert 0 < step.percent_of_roof <= 100 and step.percent_of_roof == step.whole.percent_of_roof
    assert step.sentence.startswith(("host-bound", "compute-bound", "memory-bound"))
    # What was counted and what is by formula agree but for VGG-19, whose layout kernels move bytes that no formula has.
    formula = roofline(judge.measured.ledger, judge.device).step.bound
    assert step.bound == formula or (name.startswith("h200/vgg19") and (step.bound, formula) == ("memory", "compute"))


@pytest.mark.parametrize("name", SHIPPED)
def test_gains_are_parts_of_what_is_there(name):
    judge = judged(name)
    total = judge.measured.total.time_s
    for row in judge.verdicts():
        if row.advice is None:
            continue
        advice = row.advice
        assert advice.kernel_time_s == pytest.approx(row.time_s) and advice.saved_s > 0
        assert advice.gain_of_kernels == pytest.approx(advice.saved_s / total) and advice.gain_of_kernels >= WORTH
        # A step gains no more than its kernels do, but for what stops the host from waiting.
        assert advice.time_s <= judge.advisor.wall_s * 1.0001
        assert advice.wall_time_s - advice.time_s <= advice.saved_s * 1.01 + 1e-6
        assert advice.gain == pytest.approx(advice.wall_time_s / advice.time_s - 1)
        assert "instead of" in row.sentence and ("of the step" in row.sentence or "host-bound" in row.sentence)
    for advice in judge.step().advice:
        assert advice.gain >= WORTH and advice.origin and advice.options


@pytest.mark.parametrize("name", SHIPPED)
def test_tables_page_and_document_can_be_made(name):
    judge = judged(name)
    for by in BYS:
        table = verdict_table(judge, by, depth=2)
        assert table.rows[-1][0].full == "total" and len(table.rows) == len(verdict_table(judge, by, depth=2).written())
    page = verdict_document(judge, depth=2)
    assert page.lines[0] == judge.step().sentence
    assert page.to_markdown()
    for width in (80, 112):
        shown = narrowed(page.tables[0], width)
        texts = [[column.name for column in shown.columns], *shown.written()]
        assert sum(max(len(row[i]) for row in texts) + 3 for i in range(len(shown.columns))) <= width + 3
    made = verdict_data(judge)
    made = msgspec.json.decode(msgspec.json.encode(made))
    assert {row["name"] for row in made["rows"]} == {row.name for row in judge.rows()}
    assert all(row["evidence"] and row["sentence"] for row in made["rows"])
    assert made["step"]["bound"] == judge.step().bound


def test_the_last_row_has_the_bound_of_the_step():
    table = verdict_table(judged("resnet50-train-fp32"), "type")
    bound = [column.name for column in table.columns].index("bound")
    assert table.rows[-1][bound] == "host"


def test_folded_rows_are_judged_together():
    judge = judged("gpt2-train-bf16")
    folded = {row[0].full: row for row in verdict_table(judge, depth=3).rows}
    blocks = [row for row in judge.verdicts() if row.name.removeprefix("transformer.h.").isdigit()]
    (name,) = [name for name in folded if name.endswith("h.[0-11]")]
    assert folded[name][2] == pytest.approx(sum(row.time_s for row in blocks))


# --- advice ---


def test_a_host_bound_step_gains_nothing_from_faster_kernels():
    judge = judged("resnet50-infer-fp32")
    conv = next(row for row in judge.verdicts("type") if row.name == "Conv2d")
    assert conv.advice.saved_s > 0.3e-3 and abs(conv.advice.wall_time_s - conv.advice.time_s) < 1e-5
    assert "nothing of the step, which is host-bound" in conv.sentence
    changes = [advice.key for advice in judge.step().advice]
    assert "graph" in changes and "bf16" not in changes


def test_near_the_roof_there_is_nothing_to_gain():
    """86.7% of the bandwidth, and no change gains 1% of the kernels' time."""
    found = layer("vgg19-infer-fp32", "features.6")
    assert found.advice is None and found.sentence == "nothing to gain here: 87% of the roof"


def test_layout_kernels_are_the_gain_of_channels_last():
    judge = judged("vgg19-infer-fp32")
    kernels = judge.measured.ledger.kernels
    layout = sum(k.time_s for k in kernels if "nchwToNhwc" in k.name or "nhwcToNchw" in k.name)
    found = judge.advisor.of_change("channels_last")
    assert found.saved_s == pytest.approx(layout, rel=0.02)  # ops are medians of several steps, kernels are of one
    assert layout > 0.5e-3


@pytest.mark.parametrize(("before", "after", "error"), [
    *((f"{model}-{step}-fp32", f"{model}-{step}-bf16", 0.16) for model in ("resnet50", "vgg19", "distilbert", "gpt2", "transformer") for step in ("infer", "train")),
])  # fmt: skip
def test_kernels_in_bf16_take_what_was_predicted(before, after, error):
    predicted = judged(before).advisor.of_change("bf16").changed_kernel_time_s
    assert predicted == pytest.approx(judged(after).measured.total.time_s, rel=error)


@pytest.mark.parametrize(("before", "after"), [
    ("resnet50-train-fp32", "resnet50-train-fp32-compiled"), ("gpt2-infer-bf16", "gpt2-infer-bf16-compiled"),
])  # fmt: skip
def test_compiled_kernels_take_what_was_predicted(before, after):
    predicted = judged(before).advisor.of_change("compile").changed_kernel_time_s
    assert predicted == pytest.approx(judged(after).measured.total.time_s, rel=0.15)


def test_a_cuda_graph_takes_what_was_predicted():
    (found,) = [one for one in judged("resnet50-train-fp32").step().advice if one.key == "graph"]
    assert found.time_s == pytest.approx(wall_s(judged("resnet50-train-fp32-graph").measured), rel=0.03)


def test_what_a_step_is_already_is_not_advised():
    keys = {name: {change.key for change in judged(name).advisor.changes} for name in (
        "resnet50-train-fp32-graph", "resnet50-train-fp32-compiled", "gpt2-infer-bf16-compiled", "vgg19-infer-bf16")}  # fmt: skip
    assert all("bf16" not in keys[name] for name in keys if "bf16" in name)
    assert "compile" not in keys["resnet50-train-fp32-compiled"]
    assert "pad" not in keys["gpt2-infer-bf16-compiled"]
    assert "graph" not in {one.key for one in judged("resnet50-train-fp32-graph").step().advice}


def test_a_step_that_asks_the_gpu_for_a_value_cannot_be_one_graph_as_it_is():
    (found,) = [one for one in judged("gpt2-infer-bf16").step().advice if one.key == "graph"]
    assert "_local_scalar_dense" in found.how


def test_a_larger_batch_is_advised_as_far_as_time_and_memory_go():
    """21.05 ms by the wall, 9.66 ms busy: twice the batch fits into the same time, three times do not."""
    (found,) = [one for one in judged("resnet50-train-fp32").step().advice if one.key == "batch"]
    assert (found.samples, found.gain) == (2, pytest.approx(1))
    ledger = recording("h200/resnet50-train-fp32")
    full = Value(150e9, "allocator")
    rows = tuple(
        replace(row, quantities={**row.quantities, "peak_reserved_bytes": full}) if row.scope == "step" else row
        for row in ledger.measurements
    )
    assert "batch" not in {one.key for one in step_verdict(replace(ledger, measurements=rows)).advice}


# --- what a compiler need not move ---


class Chain(nn.Module):
    def forward(self, x):
        return torch.relu(x + torch.sin(x))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(64, 64))

    def forward(self, x):
        y = torch.relu(x)
        return torch.mm(y, self.weight) + y


def spared(model: nn.Module) -> dict[str, float]:
    ledger = rooflight.estimate(model, torch.empty(64, 64))
    found = fused_away(ledger.ops, ledger.storages)
    return {op.packet: found.get(op.index, 0.0) for op in ledger.ops if op.kind == "compute"}


def test_a_chain_reads_its_input_and_writes_its_result_once():
    """Of n bytes a tensor: sin reads and writes n and keeps its result; the sum reads x, not the sine, and keeps its result;
    the ReLU only writes."""
    assert spared(Chain()) == {"aten::sin": pytest.approx(1 / 2), "aten::add": pytest.approx(2 / 3), "aten::relu": pytest.approx(1 / 2)}  # fmt: skip


def test_behind_a_product_everything_is_read_again():
    assert spared(Residual()) == {"aten::relu": 0.0, "aten::mm": 0.0, "aten::add": 0.0}


# --- an estimate on a device ---


@cache
def estimated(model: str = "vgg19", batch: int = 16) -> Ledger:
    return rooflight.estimate(model, batch=batch)


def test_an_estimate_is_judged_where_it_would_run():
    ledger, h200 = estimated(), find("h200")
    step = step_verdict(ledger, on=h200)
    predicted = rooflight.predict("vgg19", on="h200", batch=16).at("h200")
    assert step.times == "predicted" and step.device == h200.title
    assert step.wall_s == pytest.approx(predicted.time_s) and step.bound == predicted.bound
    assert {row.flops_basis for row in verdicts(ledger, on=h200) if not row.reason} == {"useful"}
    theirs = {one.key: one.time_s for one in predicted.advice if one.samples == 1}
    assert {one.key: one.time_s for one in step.advice} == {key: pytest.approx(time) for key, time in theirs.items()}
    assert {"bf16", "channels_last"} <= theirs.keys()


def test_tables_of_an_estimate():
    judge = Judge(estimated("mnist-cnn", 64), on=find("a100"))
    assert any(note.startswith("times are predicted") for note in verdict_document(judge).notes)
    assert step_table(judge).rows[0][-1] == "predicted"


def test_hardware_is_preferred_by_time():
    """The documents preferred the V100, whose ridge is nearer to the step. The A100 takes less time."""
    ledger = estimated("resnet50")
    v100, a100 = find("v100"), find("a100")
    names = [one.device for one in by_time(ledger, [v100, a100])]
    assert names == [a100.name, v100.name]
    ridges = {device.name: Judge(ledger, on=device).step().whole for device in (v100, a100)}
    distance = {name: abs(row.intensity / row.ridge - 1) for name, row in ridges.items()}
    assert distance[v100.name] < distance[a100.name]


# --- what has no verdict ---


def assert_no_verdict(ledger: Ledger, reason: str) -> None:
    for by in BYS:
        for row in verdicts(ledger, by):
            assert row.bound is row.side is row.percent_of_roof is row.advice is None
            assert reason in row.reason and reason in row.evidence
    step = step_verdict(ledger)
    assert step.bound is None and step.advice == () and reason in step.reason and reason in step.sentence
    assert verdict_data(ledger)["step"]["bound"] is None
    assert verdict_document(ledger).lines[0].startswith("no verdict: ")
    assert advice_lines(ledger) == []


def test_a_step_on_a_cpu_has_none():
    ledger = rooflight.measure("mnist-cnn", batch=2, device="cpu", repeat=1)
    assert_no_verdict(ledger, "ran on a CPU")
    assert all(row.time_s for row in verdicts(ledger, "op"))


def test_a_device_that_is_not_known_has_none_until_it_is_described():
    ledger = toy(header=replace(HEADER, device="NVIDIA H300"))
    assert_no_verdict(ledger, "NVIDIA H300 is not in the database")
    assert step_verdict(ledger, on=find("h200")).bound == "host"


def test_an_estimate_without_a_device_has_none():
    assert_no_verdict(estimated("mnist-cnn", 64), "name a device")


def test_several_ranks_have_none():
    ledger = toy()
    assert_no_verdict(replace(ledger, ops=(*ledger.ops[:-1], replace(ledger.ops[-1], rank=1))), "2 ranks")


def test_a_measured_step_is_judged_on_its_own_device_only():
    with pytest.raises(BadInput, match="measured on NVIDIA H200"):
        verdicts(toy(), on=find("a100"))


def test_an_estimate_on_a_cpu_has_none():
    cpu = replace(find("h200"), kind="cpu", title="a processor")
    assert "a processor is a CPU" in step_verdict(estimated("mnist-cnn", 64), on=cpu).reason


@pytest.mark.parametrize("ledger", [toy(), compiled()], ids=["eager", "compiled"])
def test_ops_that_prediction_knows_nothing_of_still_have_verdicts(ledger):
    judge = Judge(ledger)
    assert judge.step().bound == "host" and judge.advisor.changes == ()
    assert "no gains are predicted" in " ".join(verdict_document(judge).notes)
    assert {"graph"} <= {one.key for one in judge.step().advice} <= {"graph", "batch"}


@pytest.mark.parametrize("log", LOGS, ids=[log.name for log in LOGS])
def test_logs_from_elsewhere(log):
    ledger = read(log)
    step = step_verdict(ledger)
    assert (step.bound is None) == bool(step.reason)
    assert verdict_document(ledger).lines and verdict_data(ledger)["rows"]
    if step.bound is not None:
        assert "not known without its wall time" in step.sentence


def test_a_log_with_all_units_has_a_verdict():
    step = step_verdict(read(next(log for log in LOGS if log.name == "h200_mnist_ops.csv.gz")))
    assert step.sentence.startswith("memory-bound") and 0 < step.whole.percent_of_roof < FAR_PERCENT and step.whole.far


def test_regions_have_a_verdict_each():
    """2 GFLOP in TF32 in 10 µs of 4.04 at the roof; the other region was not counted on every unit."""
    counted = {"tensor_flops_tf32": 2e9, "cuda_flops_fp32": 0, "cuda_flops_fp64": 0, "dram_bytes_read": 4800, "dram_bytes_written": 0}  # fmt: skip
    rows = [
        Measurement(scope="region", name=name, quantities={key: Value(value, "by hand") for key, value in values.items()})
        for name, values in (("conv2", {**counted, "gpu_span_s": 10e-6}), ("rest", {"tensor_flops_tf32": 1e6, "gpu_span_s": 1e-6}))
    ]  # fmt: skip
    ledger = Ledger(format_version=FORMAT_VERSION, header=replace(HEADER, step=None), measurements=tuple(rows))
    conv2, rest = verdicts(ledger)
    assert conv2.percent_of_roof == pytest.approx(100 * 2e9 / TF32 / 10e-6) and conv2.bound == "compute"
    assert rest.bound is None and "not every unit was counted" in rest.reason
    assert "regions of a program" in step_verdict(ledger).sentence
    assert [row[0].full for row in verdict_table(ledger).rows[:2]] == ["conv2", "rest"]


# --- the page ---


def test_the_page_is_what_its_script_writes():
    script = importlib.import_module("advice")
    page = script.PAGE.read_text()
    shown, now = page.splitlines(), script.written(page).splitlines()
    assert len(shown) == len(now), "run python benchmarks/advice.py --write"
    for old, new in zip(shown, now, strict=True):
        assert is_alike(old, new), f"{new}: run python benchmarks/advice.py --write"


@pytest.mark.parametrize(
    ("name", "says"),
    [("vgg19-infer-fp32", "memory-bound: the GPU is busy for 95% of the wall time"),
     ("mnist-cnn-infer-tf32", "host-bound: the GPU is busy for 49% of the wall time")],
)  # fmt: skip
def test_a_step_without_its_ops_and_kernels_is_told_as_a_whole(name, says):
    """A recording cut down to its step rows: nothing is said of the roofs of ops, and nothing breaks."""
    whole = recording(f"h200/{name}")
    cut = replace(whole, measurements=tuple(row for row in whole.measurements if row.scope == "step"), kernels=())
    said = step_verdict(cut).sentence
    assert said.startswith(says)
    assert "roofs of its ops" not in said
    assert verdict_document(cut).lines[0] == said


@pytest.mark.parametrize(("batch", "fit"), [(4, "fits"), (4096, "does not fit")])
def test_no_change_is_called_best_without_a_word_of_memory_that_is_too_small(batch, fit):
    step = step_verdict(rooflight.estimate("resnet18", batch=batch, step="train"), on=find("t4"))
    assert step.fit == fit and step.advice
    too_large = (
        "it does not fit the memory of NVIDIA T4 16 GB: what takes less of it comes first; best change, once it fits"
    )
    assert (too_large in step.sentence) == (fit != "fits")
    assert ("; best change: " in step.sentence) == (fit == "fits")
