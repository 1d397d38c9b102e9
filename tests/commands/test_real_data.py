"""`--real-data`: a step that data decides, estimated and predicted from one run on the CPU."""

from __future__ import annotations

import json

import pytest
import torch

import rooflight
from rooflight.errors import TraceFailed

MODEL = """
import torch
from torch import nn

class Chosen(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        y = self.first(x)
        return self.last(y[torch.arange(len(y)) % 2 == (y - y).sum()])

def chosen():
    return Chosen(), torch.randn(6, 4)
"""
# All 6 samples meet the first layer, 3 the last.
MACS = 6 * 4 * 8 + 3 * 8 * 2


@pytest.fixture
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(MODEL)
    return "mine.py:chosen"


def test_an_estimate_is_of_the_step_that_ran(run, model):
    code, _, _ = run("estimate", model)
    assert (code, run.code, run.options) == (2, "data-dependent", ("--real-data",))
    code, out, _ = run("estimate", model, "--real-data", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["totals"]["macs"] == MACS
    assert document["header"]["traced_on"] == "cpu"
    assert "random-inputs" in [note["code"] for note in document["header"]["notes"]]


def test_a_prediction_is_of_the_step_that_ran(run, model):
    code, out, _ = run("predict", model, "--real-data", "--json")
    assert code == 0
    (found,) = json.loads(out)["predictions"]
    assert found["time_s"] > 0
    with pytest.raises(TraceFailed) as refused:
        rooflight.predict(model)
    assert (refused.value.code, refused.value.options) == ("data-dependent", ("--real-data",))
    assert "real_data=True" in str(refused.value)
    predictions = rooflight.predict(model, real_data=True)
    assert "real-run" in [note.code for note in predictions.notes]


def test_a_live_module_takes_its_own_data(model, tmp_path):
    space: dict[str, type[torch.nn.Module]] = {}
    exec(MODEL, space)
    ledger = rooflight.estimate(space["Chosen"](), torch.randn(4, 4), real_data=True)
    assert [op.cost.macs for op in ledger.ops if op.packet == "aten::addmm"] == [4 * 4 * 8, 2 * 8 * 2]
    assert "random-inputs" not in [note.code for note in ledger.header.notes]


def test_what_has_no_room_is_refused_in_one_line(run, monkeypatch):
    monkeypatch.setattr("rooflight.measurement.room.free_bytes", lambda where: 1_000_000)
    for verb in ("estimate", "predict"):
        code, _, err = run(verb, "mnist-cnn", "--real-data")
        assert (code, run.code) == (2, "step-too-large") and "--real-data" in run.options
        assert "9.60 MB" in err and "1.00 MB" in err
