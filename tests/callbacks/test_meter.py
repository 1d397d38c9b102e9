"""What is logged of a training: counted by hand, on a clock that goes on only when it is told to."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import rooflight
from rooflight.callbacks import meter as meter_module
from rooflight.callbacks.lightning import FirstStep
from rooflight.callbacks.meter import BatchSize, ModuleCall, TrainingMeter, size_of
from rooflight.errors import BadInput
from rooflight.hardware.devices import find
from rooflight.machine import installed_gpus


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now_s=0.0)
    monkeypatch.setattr(meter_module, "perf_counter", lambda: clock.now_s)
    return clock


def call(module, *args, trains=True, autocast=None):
    return ModuleCall(module, args, {}, trains, autocast)


def on_h200(monkeypatch):
    """A meter that takes its device for an H200."""
    monkeypatch.setattr(installed_gpus, "device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(TrainingMeter, "_device_values", lambda self: {})
    meter = TrainingMeter(2)
    meter.device = torch.device("cuda")
    return meter


@pytest.mark.parametrize(("batch", "samples", "tokens"), [
    ({"labels": torch.zeros(9), "input_ids": torch.zeros(4, 32, dtype=torch.long)}, 4, 128),
    ([torch.zeros(8, 3, 28, 28), torch.zeros(8, dtype=torch.long)], 8, None),
    ({"pixels": torch.zeros(8, 3, 28, 28)}, 8, None),
    (torch.zeros(4, 16, dtype=torch.int32), 4, 64),
    (torch.zeros(4, 16), 4, None),
])  # fmt: skip
def test_how_much_is_in_a_batch(batch, samples, tokens):
    assert size_of(batch) == BatchSize(samples, tokens)


@pytest.mark.parametrize("batch", [None, "text", {}, torch.zeros(())])
def test_a_batch_may_not_tell(batch):
    assert size_of(batch) is None


def test_what_a_second_holds(clock):
    meter, entries = TrainingMeter(4), []
    for number in range(1, 10):
        clock.now_s += 100 if number == 1 else 2  # the first sets up
        meter.batch(BatchSize(3, 30))
        meter.batch(BatchSize(1, 10))  # gradients of two batches are gathered
        if (entry := meter.end_step(number)) is not None:
            entries.append((number, entry))
    assert [number for number, _ in entries] == [4, 8]
    for _, entry in entries:
        assert entry["rooflight/step_time_s"] == 2
        assert (entry["rooflight/samples_per_s"], entry["rooflight/tokens_per_s"]) == (2, 20)
        assert entry["rooflight/resident_bytes"] > 0
        assert "rooflight/mfu" not in entry  # a CPU has no peak here


def test_an_evaluation_before_the_first_step_does_not_make_it_count(clock):
    meter, entries = TrainingMeter(2), []
    meter.begin()
    for number in range(1, 5):
        clock.now_s += 100 if number == 1 else 2  # the first sets up
        entries.append(meter.end_step(number))
    assert [entry and entry["rooflight/step_time_s"] for entry in entries] == [None, 2, None, 2]


def test_what_lies_between_two_trainings_is_no_step(clock):
    meter, entries = TrainingMeter(2), []
    for _ in range(2):
        clock.now_s += 1000
        meter.restart()
        for number in range(1, 6):
            clock.now_s += 100 if number == 1 else 2
            entries.append(meter.end_step(number))
    assert [entry and entry["rooflight/step_time_s"] for entry in entries] == 2 * [None, 2, None, 2, None]


def test_an_evaluation_is_no_part_of_a_step(clock):
    meter = TrainingMeter(2)
    for number in (1, 2, 3):
        clock.now_s += 1
        meter.end_step(number)
    clock.now_s += 500
    meter.begin()
    clock.now_s += 1
    entry = meter.end_step(4)
    assert entry is not None and entry["rooflight/step_time_s"] == 1


def test_mfu_is_the_time_at_the_peak(clock, monkeypatch):
    meter = on_h200(monkeypatch)
    layer = nn.Linear(512, 256, bias=False)
    meter.know([call(layer, torch.randn(8, 512), autocast="bf16")], BatchSize(8, None))
    meter.end_step(1)
    meter.batch(BatchSize(16, None))  # twice the samples are twice the work
    clock.now_s += 1e-6
    entry = meter.end_step(2)
    # Forward and the weight's gradient, 2 x 512 x 256 each; its input needs none.
    flops, peak = 16 * 2 * 2 * 512 * 256, find("h200").peak("bf16")
    assert entry is not None and peak is not None
    assert entry["rooflight/mfu"] == pytest.approx(flops / peak.value / 1e-6)


def test_what_only_runs_forward_is_counted_so(monkeypatch):
    trained, frozen = (on_h200(monkeypatch) for _ in range(2))
    layer, x = nn.Linear(64, 64), torch.randn(8, 64)
    trained.know([call(layer, x)], BatchSize(8, None))
    frozen.know([call(layer, x, trains=False)], BatchSize(8, None))
    assert trained._peak_s == pytest.approx(2 * frozen._peak_s)


class Unknowable(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        raise RuntimeError("not here")


@pytest.mark.parametrize(("calls", "size", "why"), [
    ([call(Unknowable(), torch.zeros(2, 4))], BatchSize(2, None), "not here"),
    ([], BatchSize(2, None), "no call of the model was seen"),
    ([call(nn.Linear(4, 4), torch.zeros(2, 4))], None, "the first batch tells no number of samples"),
])  # fmt: skip
def test_without_an_estimate_the_rest_is_logged_and_one_line_says_so(monkeypatch, caplog, calls, size, why):
    meter = on_h200(monkeypatch)
    with caplog.at_level(logging.WARNING, "rooflight"):
        meter.know(calls, size)
    (line,) = caplog.messages
    assert line.startswith("rooflight: no MFU will be logged: ") and why in line and "\n" not in line
    meter.end_step(1)
    assert "rooflight/step_time_s" in (meter.end_step(2) or {})


def test_a_device_without_a_peak_is_told(monkeypatch, caplog):
    meter = on_h200(monkeypatch)
    monkeypatch.setattr(installed_gpus, "device_name", lambda device: "NVIDIA Nobody")
    meter.know([call(nn.Linear(4, 4), torch.zeros(2, 4))], BatchSize(2, None))
    assert "no peak of NVIDIA Nobody in" in caplog.messages[0]


def test_the_outermost_calls_of_a_step_are_seen_once():
    body, head = nn.Sequential(nn.Linear(4, 4), nn.ReLU()), nn.Linear(4, 2)
    root = nn.ModuleDict({"body": body, "head": head})
    first, x = FirstStep(root), torch.randn(3, 4)
    with torch.no_grad():
        body(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = torch.utils.checkpoint.checkpoint(body, x, use_reentrant=False)
        head(hidden).sum().backward()  # calls the body again
    seen = [(made.module, made.trains, made.autocast) for made in first.calls]
    assert seen == [(body, False, None), (body, True, "bf16"), (head, True, "bf16")]
    first.close()
    body(x)
    assert len(first.calls) == 3
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in root.modules())


def test_hooks_of_the_first_step_do_not_break_a_compiled_one():
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    compiled = torch.compile(lambda x: body(x) + 1, backend="eager", fullgraph=True)
    first = FirstStep(body)
    compiled(torch.randn(3, 4))  # a break would raise
    first.close()


@pytest.mark.parametrize(("every", "message"), [(0, "every=0"), (True, "every=True"), (2, "takes a Trainer of")])
def test_what_cannot_be_logged_is_one_line(every, message):
    with pytest.raises(BadInput, match=message):
        rooflight.log_training(object(), every=every)
