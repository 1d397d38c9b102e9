"""Steps that others timed: the rows are whole, the models are the ones they timed, and so are the ops."""

import json
from collections import Counter
from typing import Any

import published_steps as steps
import pytest

import rooflight
from rooflight.ledger import LOSS, Ledger
from rooflight.models import build
from tests.fixtures.paths import ROOT

STEPS = json.loads((ROOT / "tests/data/published_steps.json").read_text())
OPS = json.loads((ROOT / "tests/data/published_ops.json").read_text())
BUILDABLE = [
    (name, step, model.get(step, model))
    for name, model in STEPS["models"].items()
    for step in ("infer", "train")
    if "why_not" not in model
]


def test_every_row_says_what_was_timed_and_where_it_stands() -> None:
    for row in STEPS["rows"]:
        assert row["timed"] in STEPS["timed"] and row["model"] in STEPS["models"]
        assert row["source"].endswith(".json") and row["time_s"] > 0
        assert (row["rooflight_args"] is None) == ("why_not" in STEPS["models"][row["model"]])
        if "forward_s" in row:
            assert row["forward_s"] + row["backward_s"] == pytest.approx(row["time_s"], rel=1e-5)
    keys = Counter((row["source"], row["device"]) for row in STEPS["rows"])
    assert max(keys.values()) == 1


@pytest.mark.parametrize(
    ("model", "step", "batch", "milliseconds"),
    [("gpt2_large", "infer", 4, 215.0), ("gpt2_large", "train", 4, 638.8),
     ("bert_large", "infer", 8, 69.8), ("bert_large", "train", 8, 236.0)],
)  # fmt: skip
def test_the_h100_rows_that_were_known_before(model: str, step: str, batch: int, milliseconds: float) -> None:
    (row,) = (
        row
        for row in STEPS["rows"]
        if (row["device"], row["model"], row["timed"], row["batch"]) == ("NVIDIA H100 80GB HBM3", model, step, batch)
    )
    assert row["time_s"] * 1e3 == pytest.approx(milliseconds, abs=0.05)


@pytest.mark.parametrize(("name", "step", "model"), BUILDABLE, ids=[f"{n}-{s}" for n, s, _ in BUILDABLE])
def test_the_models_have_the_published_number_of_parameters(name: str, step: Any, model: dict[str, Any]) -> None:
    spec = str(ROOT / model["spec"])
    workload = build(spec, batch=1, seq=8, step=step, overrides=model["set"])
    assert sum(parameter.numel() for parameter in workload.model.parameters()) == model["parameters"]


def test_gpt3_parameters_by_hand() -> None:
    # words V E, positions P E, each layer 12 E^2 + 13 E, the last norm 2 E; the head is the words again
    for name, E, layers in (("gpt3_xl", 3072, 24), ("gpt3_27", 2560, 32)):
        by_hand = 50257 * E + 2048 * E + layers * (12 * E * E + 13 * E) + 2 * E
        assert STEPS["models"][name]["parameters"] == by_hand


def test_the_timed_training_step_adds_to_gradients_and_has_no_optimizer() -> None:
    small = {"n_embd": "64", "n_layer": "2", "n_head": "2", "n_positions": "16"}
    spec = str(ROOT / "benchmarks/published_models.py:gpt2")
    whole = rooflight.estimate(spec, batch=2, seq=16, step="train", overrides=small, tf32=False, accumulate=2)
    timed = steps.only(whole, steps.timed_ops(whole))
    assert {op.phase for op in timed.ops} == {"forward", "backward"}
    assert not [op for op in timed.ops if op.module == LOSS and op.phase == "forward"]
    assert [op for op in timed.ops if op.module == LOSS and op.phase == "backward"]
    assert [op.index for op in timed.ops] == list(range(len(timed.ops)))
    plain = rooflight.estimate(spec, batch=2, seq=16, step="train", overrides=small, tf32=False)
    # 2 layers of 12 tensors, two embeddings, the last norm: one addition in place for each
    assert _added(timed) - _added(plain) == 2 * 12 + 4
    names = [op.name for op in plain.ops if op.phase == "forward" and op.module != LOSS]
    assert [op.name for op in timed.ops if op.phase == "forward"] == names


def _added(ledger: Ledger) -> int:
    return sum(op.phase == "backward" and op.packet == "aten::add_" for op in ledger.ops)


def test_storages_of_the_timed_step_live_within_it() -> None:
    small = {"hidden": "64", "layers": "1", "heads": "2"}
    spec = str(ROOT / "benchmarks/published_models.py:opt")
    whole = rooflight.estimate(spec, batch=1, seq=16, step="train", overrides=small, tf32=False, accumulate=2)
    timed = steps.only(whole, steps.timed_ops(whole))
    for storage in timed.storages:
        assert storage.born is None or 0 <= storage.born <= len(timed.ops)
        assert storage.dies is None or 0 < storage.dies <= len(timed.ops)
        assert storage.born is None or storage.dies is None or storage.born <= storage.dies


def test_single_ops_have_times_on_several_devices() -> None:
    assert sum(len(op["times"]) for op in OPS["rows"]) <= 300
    for op in OPS["rows"]:
        assert "NVIDIA H100 80GB HBM3" in op["times"] and len(op["times"]) > 1
        assert all(time[0] > 0 for time in op["times"].values())
        assert ("inputs" in op) != ("k" in op)
