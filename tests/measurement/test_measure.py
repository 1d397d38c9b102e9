"""`rooflight.measure` for real on the CPU: every op measured, memory to the byte, the model left as it was."""

from __future__ import annotations

import copy
import itertools
import shutil
import subprocess
import sys
import threading
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rooflight
from rooflight import recordings
from rooflight.errors import BadInput, CannotMeasure, OutOfMemory, RooflightError, TraceFailed
from rooflight.machine import memory_use
from rooflight.measurement import api
from rooflight.measurement.api import MeasurementStopped
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import self_check
from tests.fixtures.notes import note_texts
from tests.fixtures.photograph import assert_same, photograph
from tests.fixtures.recordings import recording
from tests.fixtures.tracing import compiled_module

MIB = 1024 * 1024

measure = partial(api.measure, device="cpu")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    torch.manual_seed(0)


@pytest.fixture(scope="module")
def mnist():
    return measure("mnist-cnn", batch=4, step="train", repeat=3)


@pytest.fixture(scope="module")
def resnet():
    return measure("resnet18", batch=1, repeat=3)


def of_step(ledger):
    return next((row.quantities for row in ledger.measurements if row.scope == "step"), {})


def of_ops(ledger):
    return {row.ops[0]: row.quantities for row in ledger.measurements if row.scope == "op"}


def of_op(ledger, name):
    (index,) = (op.index for op in ledger.ops if op.name == name)
    return {quantity: value.value for quantity, value in of_ops(ledger)[index].items()}


def has_note(ledger, *parts):
    return any(all(part in note for part in parts) for note in note_texts(ledger.header.notes))


# --- real models ---


@pytest.mark.parametrize("which", ["mnist", "resnet"])
def test_every_op_of_a_real_model_is_measured(which, request):
    ledger = request.getfixturevalue(which)
    ops = of_ops(ledger)
    assert sorted(ops) == [op.index for op in ledger.ops]
    for quantities in ops.values():
        assert {"host_time_s", "growth_bytes", "allocations", "workspace_bytes", "allocated_bytes"} <= set(quantities)
        time = quantities["host_time_s"]
        assert 0 < time.low <= time.value <= time.high
        assert quantities["workspace_bytes"].value >= 0
        assert all(value.origin for value in quantities.values())
    step = of_step(ledger)
    assert {"wall_time_s", "resident_bytes", "peak_resident_bytes", "allocated_before_bytes", "peak_allocated_bytes"} <= set(step)  # fmt: skip
    assert step["peak_resident_bytes"].value >= step["resident_bytes"].value > 0
    assert 0 < step["wall_time_s"].low <= step["wall_time_s"].value <= step["wall_time_s"].high
    header = ledger.header
    assert (header.execution, header.target, header.traced_on, header.rank, header.world) == ("eager", "cpu", "cpu", 0, 1)  # fmt: skip
    assert header.device and header.conditions["cores"]


@pytest.mark.parametrize(
    ("which", "name", "options"),
    [("mnist", "mnist-cnn", {"batch": 4, "step": "train"}), ("resnet", "resnet18", {"batch": 1})],
)
def test_measured_rows_join_the_estimated_ones(which, name, options, request):
    ledger = request.getfixturevalue(which)
    estimated = rooflight.estimate(name, target="cpu", **options)
    assert [op.key for op in ledger.ops] == [op.key for op in estimated.ops]
    assert [op.cost.flops for op in ledger.ops] == [op.cost.flops for op in estimated.ops]
    assert [module.path for module in ledger.modules] == [module.path for module in estimated.modules]


@pytest.mark.parametrize("which", ["mnist", "resnet"])
def test_memory_is_a_timeline_without_gaps(which, request):
    """What is allocated after an op is what was there before, its growth, and what Python let go in between."""
    ledger = request.getfixturevalue(which)
    step, ops = of_step(ledger), of_ops(ledger)
    allocated = [ops[op.index]["allocated_bytes"].value for op in ledger.ops]
    growth = [ops[op.index]["growth_bytes"].value for op in ledger.ops]
    before = [step["allocated_before_bytes"].value, *allocated]
    for index, op in enumerate(ledger.ops):
        number = 8 if op.phase == "optimizer" else 0  # Python's numbers become tensors of 8 bytes outside the op
        assert allocated[index] <= before[index] + growth[index] + number
    assert step["peak_allocated_bytes"].value >= max(allocated)
    # What the ops leave behind can be no more than what they made and nobody gave back.
    made = sum(storage.nbytes for storage in ledger.storages if storage.born is not None)
    assert sum(value for value in growth if value > 0) <= made + 4096


@pytest.mark.parametrize("which", ["mnist", "resnet"])
def test_parts_sum_to_the_whole(which, request):
    ledger = request.getfixturevalue(which)
    ops, total = of_ops(ledger), Measured(ledger).total
    for name in ("host_time_s", "allocations", "output_bytes"):
        summed = sum(row[name].value for row in ops.values() if name in row)
        assert total.values[name] == pytest.approx(summed, rel=1e-12)
    assert total.values["workspace_bytes"] == max(row["workspace_bytes"].value for row in ops.values())


def test_two_runs_are_the_same_step(mnist):
    again = measure("mnist-cnn", batch=4, step="train", repeat=1)
    assert [op.key for op in again.ops] == [op.key for op in mnist.ops]
    first, second = of_ops(mnist), of_ops(again)
    for name in ("growth_bytes", "allocations", "workspace_bytes", "output_bytes"):
        assert [row.get(name) for row in first.values()] == [row.get(name) for row in second.values()], name


def test_repeated_runs_agree_within_their_stated_spread():
    """A machine may be busy during one of them, or two: among five some two must overlap."""
    model, x = nn.Conv2d(8, 16, 3), torch.randn(2, 8, 32, 32)
    spans = []
    for _ in range(5):
        time = of_step(measure(model, x, repeat=15, counters="none"))["wall_time_s"]
        spans.append((time.low, time.high))
        if any(a[0] <= b[1] and b[0] <= a[1] for a, b in itertools.combinations(spans, 2)):
            return
    pytest.fail(f"no two runs agree: {spans}")


def test_the_processor_is_described_beside_a_step_on_it(resnet):
    rates = resnet.header.rates
    assert rates["threads"].value == torch.get_num_threads()
    assert all(value.value > 0 for value in rates.values())
    assert {"cores", "page_fault", "peak.fp32"} <= rates.keys() or sys.platform != "linux"


def test_what_held_ops_up_is_no_longer_than_they_took(resnet):
    for quantities in of_ops(resnet).values():
        assert quantities["page_faults"].value >= 0
        if "core_wait_s" in quantities:
            assert 0 <= quantities["core_wait_s"].value <= quantities["host_time_s"].value


def test_a_measured_ledger_is_saved_and_loaded(mnist, tmp_path):
    path = rooflight.save(mnist, tmp_path / "run.json.gz")
    assert rooflight.load(path) == mnist


def test_it_goes_into_a_table(mnist):
    frame = mnist.to_pandas()
    assert len(frame) == len(mnist.ops)
    assert frame["host_time_s"].sum() == pytest.approx(sum(row["host_time_s"].value for row in of_ops(mnist).values()))


# --- memory of known allocations ---


@torch.library.custom_op("rooflight_test::borrows", mutates_args=())
def borrows(x: torch.Tensor) -> torch.Tensor:
    """Takes 3 MiB and 1 MiB at the same time, keeps 1 MiB."""
    workspace = torch.empty(3 * MIB, dtype=torch.uint8)
    result = torch.empty(MIB, dtype=torch.uint8)
    del workspace
    return result


@borrows.register_fake
def _(x):
    return x.new_empty(MIB, dtype=torch.uint8)


@pytest.mark.parametrize("size", [1, 512, 1000, 12_345_679])
def test_a_known_allocation_is_right_to_the_byte(size):
    class Makes(nn.Module):
        def forward(self, x):
            return torch.empty(size, dtype=torch.uint8)

    ledger = measure(Makes(), torch.ones(1), repeat=1)
    found = of_op(ledger, "aten::empty.memory_format")
    assert (found["growth_bytes"], found["allocations"], found["workspace_bytes"]) == (size, 1, 0)
    assert found["output_bytes"] == size
    step = of_step(ledger)
    assert step["peak_allocated_bytes"].value - step["allocated_before_bytes"].value == size
    assert found["allocated_bytes"] == step["peak_allocated_bytes"].value


def test_a_temporary_is_workspace():
    class Borrows(nn.Module):
        def forward(self, x):
            return borrows(x)

    ledger = measure(Borrows(), torch.ones(1), repeat=1)
    found = of_op(ledger, "rooflight_test::borrows")
    assert (found["growth_bytes"], found["allocations"], found["workspace_bytes"]) == (MIB, 2, 3 * MIB)
    step = of_step(ledger)
    assert step["peak_allocated_bytes"].value - step["allocated_before_bytes"].value == 4 * MIB


def test_what_is_freed_between_ops_is_no_ops_growth():
    """A sum lives until the next one exists: 2 x 4,000 bytes at once, 4,000 stay."""

    class Chain(nn.Module):
        def forward(self, x):
            for _ in range(3):
                x = x + x
            return x

    ledger = measure(Chain(), torch.ones(1000), repeat=1)
    growths = [row["growth_bytes"].value for row in of_ops(ledger).values()]
    assert growths == [4000, 4000, 4000]
    step, ops = of_step(ledger), of_ops(ledger)
    before = step["allocated_before_bytes"].value
    assert [row["allocated_bytes"].value - before for row in ops.values()] == [4000, 8000, 8000]
    assert step["peak_allocated_bytes"].value - before == 8000


def test_training_memory_of_a_linear_layer():
    """Gradients are there in the end as they were in the beginning, from the step before; the output is new."""
    ledger = measure(nn.Linear(32, 64), torch.ones(8, 32), step="train", optimizer="sgd", loss="sum", repeat=1)
    step, ops = of_step(ledger), of_ops(ledger)
    end = ops[len(ledger.ops) - 1]["allocated_bytes"].value
    assert end - step["allocated_before_bytes"].value == 4 * (8 * 64)
    made = {op.index for op in ledger.ops if op.phase == "backward" and ops[op.index]["growth_bytes"].value > 0}
    assert sum(ops[index]["growth_bytes"].value for index in made) >= 4 * (64 * 32)  # the gradient of the weights


def test_a_tensor_that_the_model_remembers_is_there_once():
    """The last sum lives when a step begins, and is let go when the next one is there: 4 MB more at the peak."""

    class Remembers(nn.Module):
        def forward(self, x):
            self.last = x + x
            return self.last + x

    step = of_step(measure(Remembers(), torch.ones(1_000_000), repeat=1))
    assert step["peak_allocated_bytes"].value - step["allocated_before_bytes"].value == 4_000_000


def test_rooflights_own_copies_are_not_the_models_memory():
    model = nn.Linear(1024, 1024, bias=False)  # 4 MiB
    elsewhere = of_step(measure(nn.Identity(), torch.ones(1, 1024), repeat=1))["allocated_before_bytes"].value
    found = of_step(measure(model, torch.ones(1, 1024), repeat=1))["allocated_before_bytes"].value
    assert found == elsewhere >= 4 * MIB  # the model is there both times; copies of it are not counted


# --- nothing is changed ---


class Everything(nn.Module):
    """Dropout, batch norm, shared weights, a frozen part, hooks, state of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.frozen = nn.BatchNorm1d(8)
        self.frozen.requires_grad_(False)
        self.seen: list[float] = []
        self.calls = 0
        self.hooked = 0
        self.first.register_forward_hook(self._count)

    def _count(self, *_):
        self.hooked += 1

    def forward(self, x):
        self.calls += 1
        self.seen.append(float(x[0, 0]))
        x = F.dropout(self.norm(self.first(x)), 0.5, self.training)
        return self.frozen(self.second(x))


def everything():
    model = Everything()
    model(torch.randn(4, 8)).sum().backward()
    model.frozen.eval()
    return model


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("training", [True, False])
def test_a_live_model_is_left_as_it_was(step, training):
    model = everything()
    if not training:
        model.eval()
    x = torch.randn(4, 8)
    before, own = photograph(model), (model.calls, list(model.seen), model.hooked)
    measure(model, x, step=step, repeat=2)
    assert_same(photograph(model), before)
    assert (model.calls, model.seen, model.hooked) == own


def test_training_goes_on_as_if_nothing_had_been_measured():
    def train(measured):
        torch.manual_seed(1)
        model = Everything()
        optimizer = torch.optim.AdamW(model.parameters())
        losses = []
        for number in range(3):
            optimizer.zero_grad()
            loss = model(torch.randn(4, 8)).square().mean()
            loss.backward()
            if measured and number == 1:
                measure(model, torch.ones(4, 8), step="train", optimizer="momentum", repeat=2)
            optimizer.step()
            losses.append(loss.item())
        return losses, photograph(model)["values"], optimizer.state_dict()

    plain, watched = train(measured=False), train(measured=True)
    assert plain[0] == watched[0]
    assert_same(plain[1], watched[1])
    assert_same(plain[2], watched[2])


def test_outputs_inside_a_measurement_are_those_of_the_plain_model():
    """Every forward of the measurement, watched or not, computes the same bits."""
    model, x = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5)), torch.randn(4, 8)
    model.eval()
    with torch.no_grad():
        expected = model(x)
    outputs = []
    handle = model.register_forward_hook(lambda module, inputs, output: outputs.append(output.detach().clone()))
    measure(model, x, repeat=2)
    handle.remove()
    assert len(outputs) > 8
    assert all(torch.equal(output, expected) for output in outputs)


def test_the_step_really_trains():
    """Weights move inside, by momentum SGD of the loss's gradient, and are put back."""
    model = nn.Linear(4, 4, bias=False)
    weights = []
    model.register_forward_pre_hook(lambda module, inputs: weights.append(module.weight.detach().clone()))
    before = model.weight.detach().clone()
    measure(model, torch.ones(2, 4), step="train", loss="sum", optimizer="sgd", repeat=2)
    moved = {round((before - weight).max().item(), 4) for weight in weights}
    # Every element's gradient is 2 (the batch) and the learning rate is 0.01: 0.02 a step without putting back.
    assert {0.0, 0.02, 0.04} <= moved
    assert torch.equal(model.weight, before)


def test_grad_mode_and_inference_mode_of_the_caller_do_not_matter():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    expected = [op.key for op in measure(model, x, step="train", repeat=1).ops]
    for mode in (torch.no_grad(), torch.inference_mode()):
        with mode:
            assert [op.key for op in measure(model, x, step="train", repeat=1).ops] == expected
    assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()


def test_threads_take_turns():
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(measure(nn.Linear(4, 4), torch.randn(2, 4), repeat=2)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 3
    assert all("host_time_s" in row for ledger in found for row in of_ops(ledger).values())


# --- bad days ---


class Fails(nn.Module):
    """Raises at one call, counted over all of a measurement."""

    def __init__(self, at, error) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)
        self.plan: Any = type("Plan", (), {"calls": 0, "at": at, "error": error})  # not the model's own state

    def forward(self, x):
        self.plan.calls += 1
        y = self.norm(self.linear(x))
        if self.plan.calls == self.plan.at:
            raise self.plan.error
        return y


def calls_of_a_measurement():
    model = Fails(0, None)
    measure(model, torch.randn(4, 8), step="train", repeat=2)
    return model.plan.calls


CALLS = 11
"""warm-up 1, memory 1, time 3 + 2, memory of every op 1, time of every op 1 + 2."""


def test_how_often_the_step_is_run():
    assert calls_of_a_measurement() >= CALLS


def test_a_step_that_raises_at_once_is_one_line():
    model = Fails(1, ValueError("boom"))
    before = photograph(model)
    with pytest.raises(TraceFailed, match=r"test_measure\.py:\d+ .*ValueError: boom") as caught:
        measure(model, torch.randn(4, 8), step="train", repeat=2)
    assert "\n" not in str(caught.value)
    before["random"] = photograph(model)["random"]  # the input was drawn in between
    assert_same(photograph(model), before)


@pytest.mark.parametrize("at", range(2, CALLS + 1))
def test_a_step_that_raises_later_costs_only_what_was_being_measured(at):
    model = Fails(at, ValueError("boom")).eval()
    x = torch.randn(4, 8)
    before = photograph(model)
    ledger = measure(model, x, step="train", repeat=2)
    assert_same(photograph(model), before)
    assert has_note(ledger, "not measured", "ValueError: boom")
    assert len(ledger.ops) > 20
    step, ops = of_step(ledger), of_ops(ledger)
    kept = ["resident_bytes" in step, "wall_time_s" in step, "growth_bytes" in ops.get(0, {}), "host_time_s" in ops.get(0, {})]  # fmt: skip
    assert sum(kept) >= 3


def test_a_step_that_always_raises_from_some_call_on_is_one_line():
    class Tired(nn.Module):
        calls = 0

        def forward(self, x):
            Tired.calls += 1
            if Tired.calls > 5:
                raise RuntimeError("no more")
            return x + 1

    with pytest.raises(TraceFailed, match="no more"):
        measure(Tired(), torch.ones(2), repeat=2)


@pytest.mark.parametrize("at", [1, 4, 8])
def test_out_of_memory_says_so(at):
    model = Fails(at, torch.OutOfMemoryError("tried to allocate 80 GiB"))
    if at == 1:
        with pytest.raises(OutOfMemory, match="smaller batch"):
            measure(model, torch.randn(4, 8), repeat=2)
    else:
        assert has_note(measure(model, torch.randn(4, 8), repeat=2), "out of memory", "smaller batch")


@pytest.mark.parametrize("at", range(3, CALLS + 1))
def test_ctrl_c_keeps_what_was_measured(at, tmp_path):
    model = Fails(at, KeyboardInterrupt()).eval()
    x = torch.randn(4, 8)
    before = photograph(model)
    with pytest.raises(KeyboardInterrupt) as caught:
        measure(model, x, step="train", repeat=2)
    assert_same(photograph(model), before)
    assert isinstance(caught.value, MeasurementStopped)
    ledger = caught.value.ledger
    assert has_note(ledger, "interrupted while measuring")
    assert rooflight.load(rooflight.save(ledger, tmp_path / "part.json")) == ledger
    step, ops = of_step(ledger), of_ops(ledger)
    assert len(ledger.ops) > 20 and all(op.cost is not None for op in ledger.ops)
    # What comes before is there, what comes after is not.
    assert "resident_bytes" in step
    assert ("wall_time_s" in step) == (at > 6)  # of two timed steps, one is enough
    assert ("growth_bytes" in ops.get(0, {})) == (at > 8)
    assert ("host_time_s" in ops.get(0, {})) == (at > 12)


@pytest.mark.parametrize("at", [1, 2])
def test_ctrl_c_before_anything_was_measured_is_plain_ctrl_c(at):
    model = Fails(at, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt) as caught:
        measure(model, torch.randn(4, 8), repeat=2)
    assert not isinstance(caught.value, MeasurementStopped)


def test_after_ctrl_c_one_can_measure_again():
    for at in (8, 10, 12):
        with pytest.raises(KeyboardInterrupt):
            measure(Fails(at, KeyboardInterrupt()), torch.randn(4, 8), step="train", repeat=2)
        assert not torch._C._autograd._profiler_enabled()
    ledger = measure(nn.Linear(4, 4), torch.randn(2, 4), repeat=1)
    assert all("host_time_s" in row for row in of_ops(ledger).values())


@pytest.mark.parametrize("how", ["another op", "another shape", "one more op"])
def test_a_step_that_does_not_repeat_itself_is_named(how):
    calls = itertools.count()

    class Changes(nn.Module):
        """Every third call is another one, whatever the random numbers."""

        def forward(self, x):
            y = x * 2
            if next(calls) % 3 == 0:
                y = {"another op": y.sin, "another shape": lambda: y[:1].cos(), "one more op": lambda: y.cos().exp()}[
                    how
                ]()
            else:
                y = y.cos()
            return y

    ledger = measure(Changes(), torch.ones(4), repeat=2)
    assert has_note(ledger, "the step does not repeat itself")
    if how == "another op":
        assert has_note(ledger, "aten::sin", "aten::cos")
    step, ops = of_step(ledger), of_ops(ledger)
    assert "wall_time_s" in step and "peak_allocated_bytes" in step
    assert all("growth_bytes" in row for row in ops.values())


def test_a_random_branch_is_no_change():
    """torch's random numbers are put back, so the same branch is taken again."""

    class Branches(nn.Module):
        def forward(self, x):
            return x.sin() if torch.rand(1).item() < 0.5 else x.cos() + 1

    for seed in range(4):
        torch.manual_seed(seed)
        assert not has_note(measure(Branches(), torch.ones(4), repeat=1), "does not repeat itself")


@pytest.mark.parametrize(("arguments", "message"), [
    ({"repeat": 0}, "repeat must be at least 1"), ({"counters": "some"}, "unknown counters 'some'; known: auto"),
    ({"levels": ("l3",)}, "unknown level 'l3'; known: dram, l2, l1"), ({"counters": "ncu"}, "ncu needs a process of its own"),
    ({"counters": "none", "per_kernel": True}, "need counters"), ({"counters": "none", "metrics": ("x.sum",)}, "need counters"),
    ({"graphs": True}, "CUDA graphs: only on an NVIDIA GPU"), ({"graphs": True, "compile": True}, "choose one of compile and graphs"),
    ({"step": "fly"}, "step must be one of infer, train, decode, got 'fly'"), ({"step": "train", "loss": "hinge"}, "loss must be one of"),
    ({"step": "train", "accumulate": 0}, "accumulate must be at least 1"), ({"dtype": "bf16"}, "dtype: only for a model by name"),
])  # fmt: skip
def test_bad_options_are_one_line(arguments, message):
    with pytest.raises(BadInput, match=message):
        measure(nn.Linear(4, 4), torch.ones(2, 4), **arguments)


@pytest.mark.parametrize("device", ["foo", "meta", "cuda:x"])
def test_a_bad_device_is_one_line(device):
    with pytest.raises(BadInput, match="use cuda, cuda:1 or cpu"):
        measure("mnist-cnn", device=device)


@pytest.mark.parametrize("step", ["infer", "train"])
def test_an_unknown_optimizer_is_one_line(step):
    with pytest.raises(BadInput, match=r"optimizer must be one of sgd, momentum, .*, got 'lion'"):
        measure("mnist-cnn", optimizer="lion", step=step, device="cpu", repeat=1)


@pytest.mark.parametrize(("step", "needed"), [("infer", "9.60 MB for its weights and a copy of them"),
                                              ("train", "33.6 MB for its weights, gradients and optimizer state")])  # fmt: skip
def test_a_model_that_does_not_fit_is_refused_before_it_is_made(monkeypatch, step, needed):
    """mnist-cnn has 4.8 MB of weights; in training gradients and Adam's two states, and all but gradients once more."""
    monkeypatch.setattr(memory_use, "ram", lambda: memory_use.MemoryUse(16_000_000, 7_000_000, 9_000_000))
    with pytest.raises(CannotMeasure, match=f"mnist-cnn needs {needed}.*cpu has 9.00 MB free"):
        measure("mnist-cnn", optimizer="adam" if step == "train" else None, step=step, device="cpu", repeat=1)


def test_a_lazy_parameter_elsewhere_costs_nothing():
    elsewhere = nn.LazyLinear(5)
    ledger = measure(nn.Linear(4, 4), torch.ones(2, 4), repeat=1)
    assert "peak_allocated_bytes" in of_step(ledger) and not has_note(ledger, "not measured: ValueError")
    with pytest.raises(TraceFailed, match="lazy parameters without a shape"):
        measure(elsewhere, torch.ones(2, 4), repeat=1, device="cpu")


def test_what_rooflight_keeps_is_no_memory_of_the_step():
    """Neither a copy of the input, nor the states of random generators; in a process that has no other tensors."""
    text = (
        "import torch, rooflight\n"
        "ledger = rooflight.measure(torch.nn.Identity(), torch.ones(8), repeat=1, device='cpu')\n"
        "print(next(r.quantities['allocated_before_bytes'].value for r in ledger.measurements if r.scope == 'step'))\n"
    )
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "32"


class Reordered(nn.Module):
    """A tensor of oneDNN has no memory that a recording could follow."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 4)

    def forward(self, x):
        return self.layer(x + torch.ones(8, 8).to_mkldnn().to_dense())


def test_a_step_that_runs_but_cannot_be_recorded_keeps_its_time(tmp_path):
    ledger = measure(Reordered(), torch.randn(8, 8), step="train", loss="sum", optimizer="sgd", repeat=3, device="cpu")
    assert ledger.ops == () and {"wall_time_s", "resident_bytes"} <= of_step(ledger).keys()
    assert has_note(ledger, "ops not measured: the step makes a _mkldnn tensor")
    assert not has_note(ledger, "nothing is trained")
    rooflight.save(ledger, tmp_path / "run.json")
    assert rooflight.load(tmp_path / "run.json") == ledger


def test_a_bad_device_for_a_live_module_is_one_line():
    with pytest.raises(BadInput):
        measure(nn.Linear(4, 4), torch.ones(2, 4), device="foo")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_said():
    with pytest.raises(CannotMeasure, match=r"no GPU.*cpu.*doctor"):
        measure("mnist-cnn", device="cuda")
    with pytest.raises(BadInput, match="the model is on cpu, not on cuda"):
        measure(nn.Linear(4, 4), torch.ones(2, 4), device="cuda")


def test_a_model_without_data_cannot_be_measured():
    with pytest.raises(BadInput, match="cannot measure on meta"):
        measure(nn.Linear(4, 4, device="meta"), torch.ones(2, 4, device="meta"), device=None)


def test_inputs_without_data_are_one_line():
    with pytest.raises(BadInput, match=r"an input has no data .*rooflight\.estimate"):
        measure(nn.Linear(4, 4), torch.ones(2, 4, device="meta"))


def test_wrong_inputs_are_one_line():
    with pytest.raises(RooflightError, match=r"2x3|shape"):
        measure(nn.Linear(4, 4), torch.ones(2, 3))


def test_a_real_step_is_not_told_to_use_real_tensors():
    class Ambiguous(nn.Module):
        def forward(self, x):
            return x if x > 0 else -x

    with pytest.raises(TraceFailed) as caught:
        measure(Ambiguous(), torch.ones(4), repeat=1)
    assert "ambiguous" in str(caught.value) and "without data" not in str(caught.value)


def test_what_is_only_for_a_gpu_is_said_on_the_cpu():
    with pytest.raises(BadInput, match="further counters and levels of the memory: only on an NVIDIA GPU"):
        measure(nn.Linear(4, 4), torch.ones(2, 4), repeat=1, metrics=("dram__bytes_read.sum",), levels=("l2",))


def test_without_counters_nothing_is_said_about_them():
    ledger = measure(nn.Linear(4, 4), torch.ones(2, 4), repeat=1, counters="none")
    assert not has_note(ledger, "not measured")
    assert all("host_time_s" in row for row in of_ops(ledger).values())


def test_a_profiler_of_the_caller_survives():
    with torch.profiler.profile() as profiler:
        measure(nn.Linear(4, 4), torch.ones(2, 4), repeat=1)
        torch.ones(3).cos()
    assert any(event.name == "aten::cos" for event in profiler.events())


# --- kinds of steps ---


def test_one_repeat_has_no_spread():
    step = of_step(measure(nn.Linear(4, 4), torch.ones(1, 4), repeat=1))
    assert step["wall_time_s"].low is None and step["wall_time_s"].high is None
    assert "one plain step" in step["wall_time_s"].origin


def test_a_decoding_step_begins_with_the_same_cache():
    ledger = measure("gpt2", batch=1, step="decode", past=5, overrides={"n_layer": "2"}, repeat=2)
    assert not has_note(ledger, "does not repeat itself")
    assert all("host_time_s" in row for row in of_ops(ledger).values())
    attention = next(op for op in ledger.ops if "attention" in op.name)
    assert 6 in next(iter(attention.inputs)).shape or any(6 in tensor.shape for tensor in attention.inputs)
    assert (ledger.header.step, ledger.header.past) == ("decode", 5)


def test_autocast_really_casts():
    ledger = measure(nn.Linear(8, 8), torch.ones(2, 8), autocast="fp16", repeat=1)
    assert ledger.header.autocast == "fp16"
    product = next(op for op in ledger.ops if op.name == "aten::addmm")
    assert product.outputs[0].dtype == "fp16"


def test_accumulated_gradients_are_so_many_forwards_and_one_step():
    one = measure(nn.Linear(4, 4), torch.ones(2, 4), step="train", repeat=1)
    three = measure(nn.Linear(4, 4), torch.ones(2, 4), step="train", accumulate=3, repeat=1)

    def count(ledger, phase):
        return sum(op.phase == phase for op in ledger.ops)

    assert count(three, "forward") == 3 * count(one, "forward")
    assert count(three, "optimizer") == count(one, "optimizer")
    assert three.header.accumulate == 3 and not has_note(three, "does not repeat itself")


def test_keyword_inputs_and_shared_ones():
    class Adds(nn.Module):
        def forward(self, x, *, other=None):
            return x + other

    x = torch.ones(3)
    ledger = measure(Adds(), x, kwargs={"other": x}, repeat=1)
    (op,) = ledger.ops
    assert len({tensor.storage for tensor in op.inputs}) == 1


def test_a_module_without_parameters():
    ledger = measure(nn.ReLU(), torch.randn(4), repeat=1)
    assert [op.name for op in ledger.ops] == ["aten::relu"]


def test_a_new_measurement_replaces_nothing_of_the_model_by_name(mnist):
    assert (mnist.header.model, mnist.header.batch, mnist.header.loss, mnist.header.optimizer) == ("mnist-cnn", 4, "cross-entropy", "momentum")  # fmt: skip


# --- compiled ---


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(8, 8), nn.BatchNorm1d(8)

    def forward(self, x):
        return self.norm(self.linear(x)).relu()


@pytest.fixture
def small():
    torch._dynamo.reset()
    yield Small()
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++"), reason="torch.compile needs a C++ compiler")
def test_compile_measures_the_compiled_step(small):
    model = copy.deepcopy(small)
    before = photograph(model)
    x = torch.randn(4, 8)
    before["random"] = photograph(model)["random"]
    ledger = measure(model, x, step="train", compile=True, repeat=2)
    assert_same(photograph(model), before)
    assert ledger.header.execution == "compile"
    assert "wall_time_s" in of_step(ledger)
    assert has_note(ledger, "compiled step on the CPU has no rows for its ops")
    assert of_ops(ledger) == {}
    eager = measure(model, x, step="train", repeat=1)
    assert eager.header.execution == "eager"
    assert [op.key for op in ledger.ops] == [op.key for op in eager.ops]


@pytest.mark.parametrize("how", ["whole", "in place", "a part"])
def test_a_compiled_module_is_never_measured_as_eager(small, how):
    ran = []

    def backend(graph, inputs):
        def run(*args):
            ran.append(1)
            return graph(*args)

        return run

    if how == "whole":
        model = compiled_module(small, backend=backend)
    elif how == "in place":
        model = small
        model.compile(backend=backend)
    else:
        model = nn.Sequential(compiled_module(small, backend=backend), nn.Linear(8, 8))
    model.eval()
    ledger = measure(model, torch.randn(4, 8), repeat=3)
    assert ledger.header.execution == "compile"
    assert len(ran) >= 3 + 3  # warm-up and all plain steps went through the compiled code
    assert [op.name for op in ledger.ops][:2] == ["aten::t", "aten::addmm"]


def test_an_unknown_compile_mode_is_one_line(small):
    with pytest.raises(RooflightError):
        measure(small, torch.randn(4, 8), compile=True, compile_mode="fastest")


# --- recorded on an H200 ---


FFMA = "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
CONV2 = 2 * 9 * 32 * 64 * 576 * 64
"""FLOPs of mnist-cnn's second convolution: 9 x 32 x 64 weights at 576 positions of 64 images."""


@pytest.fixture(scope="module", params=recordings.names())
def shipped(request):
    """A measurement that was made on a real GPU, and comes with rooflight."""
    return recording(request.param)


def test_recorded_tensor_flops_of_ops_sum_to_the_step(shipped):
    if shipped.header.execution != "eager":
        pytest.skip("ops have no counters of their own")
    step, ops = of_step(shipped), of_ops(shipped)
    assert any(step[name].value for name in (*TENSOR_FLOPS, *CUDA_FLOPS) if name in step)
    for name in TENSOR_FLOPS:
        if name in step:
            assert sum(row[name].value for row in ops.values() if name in row) == step[name].value, name
    for name in CUDA_FLOPS:
        if name in step:
            summed, whole = sum(row[name].value for row in ops.values() if name in row), step[name]
            # Some kernels do not run the same number of instructions each time. This is a fourth count beside the step's
            # three, and lies outside them every second time: no further than they are apart.
            spread = whole.high - whole.low
            assert whole.low - spread <= summed <= whole.high + spread, name
    moved = sum(step[name].value for name in DRAM_BYTES)
    summed = sum(row[name].value for row in ops.values() for name in DRAM_BYTES if name in row)
    assert abs(summed - moved) <= 0.01 * moved
    for check in self_check(Measured(shipped)):
        assert check.name not in TENSOR_FLOPS or not check.difference


def test_recorded_kernels_belong_to_ops_that_have_their_time(shipped):
    ops = of_ops(shipped)
    for kernel in shipped.kernels:
        assert all(0 <= index < len(shipped.ops) for index in kernel.ops)
        assert kernel.time_s is not None and kernel.time_s > 0
        if len(kernel.ops) == 1:
            assert ops[kernel.ops[0]]["kernel_time_s"].value >= kernel.time_s
            assert ops[kernel.ops[0]]["kernels"].value >= 1
    if shipped.header.execution == "eager":
        launched = {index for kernel in shipped.kernels for index in kernel.ops}
        assert launched == {index for index, row in ops.items() if "kernels" in row}
        for index in launched:
            own = [kernel.time_s for kernel in shipped.kernels if kernel.ops == (index,)]
            assert ops[index]["kernel_time_s"].value == pytest.approx(sum(own))
            assert ops[index]["kernels"].value == len(own)
            assert any(name in ops[index] for name in (*TENSOR_FLOPS, *CUDA_FLOPS))


def test_recorded_kernels_sum_to_their_op_where_they_were_counted(shipped):
    counted = [kernel for kernel in shipped.kernels if any("flops" in name for name in kernel.quantities)]
    if not counted or shipped.header.execution != "eager":
        pytest.skip("no counters for kernels")
    assert {kernel.kind for kernel in counted} == {"kernel"}
    assert len(counted) == sum(kernel.kind == "kernel" for kernel in shipped.kernels)
    for index, row in of_ops(shipped).items():
        own = [kernel for kernel in counted if kernel.ops == (index,)]
        if not own:
            continue
        for name in (*TENSOR_FLOPS, *CUDA_FLOPS):
            if name in row:
                assert sum(kernel.quantities[name].value for kernel in own) == pytest.approx(row[name].value, rel=1e-4), (index, name)  # fmt: skip


def test_recorded_memory_and_time_make_sense(shipped):
    step = of_step(shipped)
    assert 0 < step["peak_allocated_bytes"].value <= step["peak_reserved_bytes"].value
    assert 0 < step["gpu_busy_s"].value <= step["kernel_time_s"].value * (1 + 1e-9)
    assert 0 < step["wall_time_s"].low <= step["wall_time_s"].value <= step["wall_time_s"].high
    for row in of_ops(shipped).values():
        assert all(value.value >= 0 for name, value in row.items() if name != "growth_bytes")


def conv2(name):
    """The op, and its kernels in the order of launch."""
    ledger = recording(f"h200/{name}")
    op = next(op for op in ledger.ops if op.module == "conv2")
    assert op.cost.flops == CONV2
    kernels = [kernel for kernel in ledger.kernels if kernel.ops == (op.index,) and kernel.kind == "kernel"]
    return of_ops(ledger)[op.index], kernels


def test_conv2_in_tf32_on_the_h200_to_the_last_digit():
    op, kernels = conv2("mnist-cnn-infer-tf32")
    assert op["tensor_flops_tf32"].value == CONV2 == 1_358_954_496
    (convolution,) = (kernel for kernel in kernels if kernel.quantities["tensor_flops_tf32"].value)
    assert "tf32" in convolution.name and convolution.quantities["tensor_flops_tf32"].value == CONV2
    assert "elementwise" in kernels[-1].name  # the bias: one FFMA for each output
    assert kernels[-1].quantities[FFMA].value == op[FFMA].value == 64 * 64 * 576


def test_conv2_in_fp32_on_the_h200_to_the_last_digit():
    op, kernels = conv2("mnist-cnn-infer-fp32")
    assert op["tensor_flops_tf32"].value == 0
    assert op[FFMA].value == 681_836_544
    convolution, bias = kernels
    assert convolution.quantities[FFMA].value == CONV2 // 2 == 679_477_248
    assert "elementwise" in bias.name and bias.quantities[FFMA].value == 681_836_544 - 679_477_248 == 64 * 64 * 576


@pytest.mark.slow
def test_a_compiled_function_inside_the_model_is_never_measured_as_eager():
    twice = torch.compile(lambda x: torch.relu(x) * 2)

    class Partly(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            return twice(self.linear(x))

    ledger = measure(Partly(), torch.randn(4, 8), repeat=1)
    assert ledger.header.execution == "compile"
