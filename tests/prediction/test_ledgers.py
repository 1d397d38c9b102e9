"""A ledger in place of a model: its step on any device, as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

import rooflight
from rooflight.analysis.judged_device import by_time
from rooflight.errors import BadFile, BadInput
from rooflight.estimation.gpu_optimizer import with_optimizer_of_gpus
from rooflight.hardware.devices import find
from rooflight.ledger import Kernel, Ledger, Measurement, Value
from rooflight.prediction.result import Prediction
from rooflight.recordings import names
from rooflight.reporting.report.predictions import runs_from
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import ROOT

STEPS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("mnist-cnn", {"batch": 64}),
    ("resnet18", {"batch": 4}),
    ("gpt2", {"batch": 2, "seq": 64}),
)


def _figures(row: Prediction) -> tuple[Any, ...]:
    assert row.memory is not None
    return (
        row.device, row.tier, row.time_s, row.time_interval_s, row.gpu_time_s, row.host_time_s, row.op_times_s,
        row.memory.peak_allocated_bytes, row.memory.peak_reserved_bytes, row.memory.device_bytes,
    )  # fmt: skip


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize(("model", "size"), STEPS)
def test_a_saved_estimate_is_predicted_as_its_model_is(
    model: str, size: dict[str, Any], step: Any, tmp_path: Path
) -> None:
    # Three generations: where attention has other kernels, the step is traced for each, as it is by name.
    path = tmp_path / "step.json.gz"
    rooflight.save(rooflight.estimate(model, step=step, **size), path)
    asked: dict[str, Any] = {"on": ["h200", "a100", "v100"], "advice": False}
    stored = rooflight.predict(path, **asked)
    by_name = rooflight.predict(model, step=step, **size, **asked)
    assert [_figures(row) for row in stored] == [_figures(row) for row in by_name]
    assert stored.predictions == rooflight.predict(str(path), **asked).predictions


# --- what was measured ---


def test_a_recording_stands_beside_its_prediction_on_the_device_it_is_of() -> None:
    ratios = []
    for name in ("h200/vgg19-train-bf16", "h200/distilbert-infer-bf16", "h200/gpt2-train-bf16"):
        own, other = rooflight.predict(f"recorded:{name}", on=["h200", "l4"], advice=False)
        header = rooflight.load(f"recorded:{name}").header
        by_name = rooflight.predict(
            header.model, step=header.step, batch=header.batch, seq=header.seq, dtype=header.dtype, on="h200"
        )[0]
        assert own.gpu_time_s == pytest.approx(by_name.gpu_time_s, rel=0.02)
        assert own.memory is not None and by_name.memory is not None
        assert own.memory.peak_allocated_bytes == pytest.approx(by_name.memory.peak_allocated_bytes, rel=0.02)
        assert own.measured_time_s and own.measured_gpu_time_s
        assert own.error == own.time_s / own.measured_time_s - 1
        assert (other.measured_time_s, other.error) == (None, None)
        ratios.append(own.gpu_time_s / own.measured_gpu_time_s)
    assert all(0.88 < ratio < 1.12 for ratio in ratios)  # docs/predict-errors.md: 5% in the mean


def test_a_step_that_is_run_otherwise_was_not_measured() -> None:
    recording = "recorded:h200/mnist-cnn-train-tf32"
    plain = rooflight.predict(recording, on="h200", advice=False)[0]
    graph = rooflight.predict(recording, on="h200", advice=False, graphs=True)[0]
    assert plain.measured_time_s and graph.measured_time_s is None
    assert graph.time_s < plain.time_s
    compiled = next(name for name in names() if name.endswith("-compiled"))
    assert rooflight.predict(f"recorded:{compiled}", on="h200", advice=False)[0].measured_time_s


def test_kernels_of_another_generation_are_said() -> None:
    found = rooflight.predict("recorded:h200/gpt2-infer-bf16", on=["h200", "a100"], advice=False)
    assert [row.device for row in found] == ["h200", "a100-sxm-80"] and found.traces == 1
    (note,) = [note for note in note_texts(found.notes) if "attention ran" in note]
    assert note == "a100-sxm-80: attention ran in the kernels of cuda: those of cuda:80 are others"


def group(weights: list[nn.Parameter], lr: float) -> dict[str, Any]:
    return {"params": weights, "lr": lr}


OPTIMIZERS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "AdamW": lambda weights: torch.optim.AdamW([group(weights[:3], 1e-3), group(weights[3:], 1e-4)]),
    "momentum": lambda weights: torch.optim.SGD(weights, lr=0.1, momentum=0.9),
    "RMSprop": torch.optim.RMSprop,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_that_ran_on_a_cpu_takes_all_tensors_at_once_on_a_gpu(name: str) -> None:
    """Torch goes through them one by one on a CPU. The same step, traced for a GPU, says what is right there."""
    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(3)))
    optimizer, x = OPTIMIZERS[name](list(model.parameters())), torch.randn(8, 256)

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    on_cpu = rooflight.estimate(step, target="cpu")
    assert not any("_foreach" in op.name for op in on_cpu.ops)
    there, here = (rooflight.predict(ledger, on="h200") for ledger in (rooflight.estimate(step), on_cpu))
    for figure in ("time_s", "gpu_time_s", "host_time_s"):
        assert getattr(here[0], figure) == pytest.approx(getattr(there[0], figure), rel=1e-6), figure
    assert here[0].phases["optimizer"] == pytest.approx(there[0].phases["optimizer"], rel=1e-6)
    assert here[0].memory is not None and there[0].memory is not None
    assert here[0].memory.peak_allocated_bytes == there[0].memory.peak_allocated_bytes
    assert [advice.change for advice in here[0].advice] == [advice.change for advice in there[0].advice]
    (note,) = [note for note in note_texts(here.notes) if note.startswith("the step was traced for cpu")]
    assert "but for the optimizer's, which takes all tensors at once there: attention and TF32 may be others" in note
    (on_page,) = runs_from(on_cpu, [find("h200")])
    (judged,) = by_time(on_cpu, [find("h200")])
    assert on_page.prediction.time_s == judged.time_s == here[0].time_s


def test_an_optimizer_of_somebodys_own_stays_what_it_is() -> None:
    on_cpu = rooflight.estimate(nn.Linear(8, 8), torch.randn(2, 8), step="train", optimizer="adamw", target="cpu")
    assert with_optimizer_of_gpus(on_cpu).ops != on_cpu.ops
    own = replace(on_cpu, header=replace(on_cpu.header, optimizer="Lion"))
    assert with_optimizer_of_gpus(own) is own


def test_many_gpus() -> None:
    recording = "recorded:h200/distilbert-train-bf16"
    (row,) = rooflight.predict(recording, on="h200", gpus=8, parallel="fsdp")
    assert row.many is not None and row.many.global_batch == 8 * 16 and row.measured_time_s is None
    with pytest.raises(BadInput, match="a ledger its own, and a pipeline divides it"):
        rooflight.predict(recording, on="h200", gpus=2, parallel="pp")


# --- ops of one's own ---


@torch.library.custom_op("ledgertest::shuffle", mutates_args=())
def shuffle(x: torch.Tensor) -> torch.Tensor:
    return x.flip(0)


@shuffle.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


class WithOwnOp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(256, 256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = shuffle(self.layer(x))
        return out


OWN_S = 3e-4


def measured_with_own_op() -> Ledger:
    """As a profiler on an H200 would have it: one kernel for each op that computes."""
    ledger = rooflight.estimate(WithOwnOp(), torch.randn(512, 256))
    kernels = tuple(
        Kernel(name="k", ops=(op.index,), time_s=OWN_S if "shuffle" in op.name else 1e-5)
        for op in ledger.ops
        if op.kind == "compute"
    )
    busy = Measurement(scope="step", quantities={"gpu_busy_s": Value(OWN_S + 1e-5, "made up")})
    header = replace(ledger.header, device="NVIDIA H200")
    return replace(ledger, header=header, kernels=kernels, measurements=(busy,))


def test_an_own_op_has_the_time_that_was_measured_scaled_by_bandwidth() -> None:
    ledger = measured_with_own_op()
    place = next(op.index for op in ledger.ops if "shuffle" in op.name)
    guessed = rooflight.predict(WithOwnOp(), torch.randn(512, 256), on="h200", advice=False)
    found = rooflight.predict(ledger, on=["h200", "a100"], advice=False)
    here, there = found
    slower = find("h200").bandwidth_bytes_per_s.value / find("a100").bandwidth_bytes_per_s.value
    assert here.op_times_s[place] == OWN_S
    assert there.op_times_s[place] == pytest.approx(slower * OWN_S)
    others = [time for index, time in enumerate(here.op_times_s) if index != place]
    assert others == [time for index, time in enumerate(guessed[0].op_times_s) if index != place]
    (note,) = [note for note in note_texts(found.notes) if "ledgertest::shuffle" in note]
    share = OWN_S / sum(here.op_times_s)
    assert "NVIDIA H200" in note and f"{share:.0%} on h200" in note
    assert any("is a guess" in note and "ledgertest::shuffle" in note for note in note_texts(guessed.notes))


def test_an_own_op_beats_no_physics_but_where_it_was_measured() -> None:
    """Its formula says 2 GB, which an H200 cannot move in 90 µs, nor an A100 in what becomes of them there."""
    ledger = measured_with_own_op()
    place = next(op.index for op in ledger.ops if "shuffle" in op.name)
    cost = next(op.cost for op in ledger.ops if op.cost is not None and op.cost.bytes_read)
    much = replace(cost, flops=0, bytes_read=10**9, bytes_written=10**9)
    ops = tuple(replace(op, cost=much) if op.index == place else op for op in ledger.ops)
    kernels = tuple(replace(row, time_s=9e-5) if row.ops == (place,) else row for row in ledger.kernels)
    found = rooflight.predict(replace(ledger, ops=ops, kernels=kernels), on=["h200", "a100"], advice=False)
    here, there = found
    assert here.op_times_s[place] == 9e-5
    # What it reads may lie in a cache, and of what it writes no more than the cache holds.
    assert there.op_times_s[place] > (1e9 - 1e8) / find("a100").bandwidth_bytes_per_s.value
    for row in found:
        assert row.gpu_time_interval_s.low <= row.gpu_time_s <= row.gpu_time_interval_s.high
        assert row.time_interval_s.low <= row.time_s <= row.time_interval_s.high
    assert here.percent_of_roof < 100 and here.ops[0].percent_of_roof == pytest.approx(100)
    assert max(here.op_least_s[place]) == pytest.approx(9e-5)
    (note,) = [note for note in note_texts(found.notes) if "they count too much" in note]
    assert note.endswith("ledgertest::shuffle")


def test_an_own_op_has_a_time_in_the_spec_tier_too() -> None:
    ledger = measured_with_own_op()
    place = next(op.index for op in ledger.ops if "shuffle" in op.name)
    (row,) = rooflight.predict(ledger, on="h200", tier="spec")
    assert row.op_times_s[place] == OWN_S and row.time_s == pytest.approx(sum(row.op_times_s))


def test_the_cost_of_an_own_op_is_kept_where_its_formula_is_not_known() -> None:
    ledger = rooflight.estimate("mnist-cnn", batch=8)
    cost = next(op.cost for op in ledger.ops if op.packet == "aten::convolution")
    ops = tuple(
        replace(op, name="nobodys::convolution") if op.packet == "aten::convolution" else op for op in ledger.ops
    )
    (row,) = rooflight.predict(replace(ledger, ops=ops), on="h200", advice=False)
    assert cost is not None and cost.flops and row.flops == rooflight.predict("mnist-cnn", batch=8)[0].flops


# --- what a ledger does not tell, and what is refused ---


def test_without_lifetimes_memory_is_unknown() -> None:
    ledger = rooflight.estimate("mnist-cnn", batch=8)
    without = replace(ledger, storages=tuple(replace(row, born=None, dies=None) for row in ledger.storages))
    found = rooflight.predict(without, on="h200", memory=True)
    assert found[0].memory is None and found[0].fit is None
    assert any(note.startswith("memory is not known") for note in note_texts(found.notes))
    with pytest.raises(BadInput, match="when tensors are made and freed"):
        rooflight.predict(without, on="h200", gpus=2)


@pytest.mark.parametrize(
    ("keywords", "line"),
    [
        ({"batch": 8}, r"batch: the step of a ledger is predicted as it was \(64\).*predict mnist-cnn --batch 8"),
        ({"batch": [64, 128]}, "batch: the step of a ledger"),
        ({"step": "train"}, r"step: the step of a ledger is predicted as it was \(infer\)"),
        ({"dtype": "bf16"}, r"dtype: .* \(fp32\)"),
        ({"total_batch": 128, "gpus": 2}, "leave total_batch out"),
        ({"max_batch": True}, "max_batch needs a model by name: .* a ledger its own"),
    ],
)
def test_another_step_is_refused(keywords: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput, match=line):
        rooflight.predict("recorded:h200/mnist-cnn-infer-fp32", on="h200", **keywords)


def test_what_is_the_same_may_be_said() -> None:
    recording = "recorded:h200/mnist-cnn-infer-fp32"
    said = rooflight.predict(recording, on="h200", batch=64, step="infer", dtype="fp32", advice=False)
    assert said.predictions == rooflight.predict(recording, on="h200", advice=False).predictions


def test_a_device_without_the_precision() -> None:
    with pytest.raises(BadInput, match=r"V100.* has no bf16"):
        rooflight.predict("recorded:h200/gpt2-infer-bf16", on="v100")


def test_a_log_without_ops(tmp_path: Path) -> None:
    ledger = rooflight.load("recorded:h200/mnist-cnn-infer-fp32")
    kernels = tuple(replace(kernel, ops=()) for kernel in ledger.kernels)
    with pytest.raises(BadInput, match="no ops, whose shapes a prediction needs"):
        rooflight.predict(replace(ledger, ops=(), storages=(), kernels=kernels, measurements=()))
    with pytest.raises(BadFile, match="does not exist"):
        rooflight.predict(tmp_path / "none.json")


def test_several_processes_are_no_step() -> None:
    ledger = rooflight.estimate("mnist-cnn")
    ops = (*ledger.ops[:-1], replace(ledger.ops[-1], rank=1))
    with pytest.raises(BadInput, match="has the ops of 2 processes"):
        rooflight.predict(replace(ledger, ops=ops))


def test_what_does_not_fit_is_told_with_what_would_help() -> None:
    small = "name=small,memory=2GB,bandwidth=864GB/s,fp32=91.6T,bf16=180T"
    found = rooflight.predict("recorded:h200/vgg19-train-bf16", on=small, advice=False)
    assert found[0].fit == "does not fit" and {row.device for row in found.savings} == {"small"}
    assert not any("--batch" in row.options or "--dtype" in row.options for row in found.savings)


def test_inputs_are_not_a_ledgers() -> None:
    with pytest.raises(BadInput, match="the step of a ledger has its own"):
        rooflight.predict("recorded:h200/mnist-cnn-infer-fp32", torch.zeros(1), on="h200")


# --- the command line ---

Run = Callable[..., tuple[int, str, str]]


def test_the_command_line_shows_both_times(run: Run) -> None:
    asked = ("predict", "recorded:h200/mnist-cnn-train-tf32", "--on", "h200,a100")
    code, out, err = run(*asked)
    assert code == 0, err
    assert "measured on h200: " in out and " error " in out
    heading = run(*asked, "--csv")[1].splitlines()[0]
    assert {"measured_time_s", "measured_gpu_time_s", "error"} <= set(heading.split(","))


@pytest.mark.parametrize("words", [("--batch", "1"), ("--step", "infer"), ("--dtype", "bf16")])
def test_the_command_line_refuses_in_one_line(run: Run, words: tuple[str, str]) -> None:
    # The first two are as usual, and still not what the ledger has.
    code, out, err = run("predict", "recorded:h200/mnist-cnn-train-tf32", "--on", "h200", *words)
    assert code and not out and err.count("\n") == 1
    assert f"{words[0]}: the step of a ledger is predicted as it was" in err


def test_an_imported_trace_is_predicted(run: Run, tmp_path: Path) -> None:
    log, ledger = ROOT / "tests/data/profiled/h200-small-fp32.json.gz", tmp_path / "log.json"
    assert run("import", log, "-o", ledger)[0] == 0
    found = rooflight.predict(ledger, on=["h200", "a100"], advice=False)
    row = found[0]
    assert row.memory is None and row.batch is None and row.measured_gpu_time_s
    assert 1 / 3 < row.gpu_time_s / row.measured_gpu_time_s < 3
    assert "shortest step: h200" in run("predict", ledger, "--on", "h200,a100")[1]


def test_a_step_of_ones_own_in_a_precision_that_a_device_lacks() -> None:
    """All of them are named, and what to do."""
    model = nn.Linear(8, 8).bfloat16()
    with pytest.raises(
        BadInput, match=r"V100.* has no bf16: it has fp16, .*T4.* has no bf16.* leave v100-sxm2-16,t4 out"
    ):
        rooflight.predict(lambda x: model(x), torch.ones(2, 8, dtype=torch.bfloat16), on=["h100", "v100-sxm2-16", "t4"])
