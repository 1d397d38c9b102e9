"""Walls of built-in models, measured beside the networks that the host's costs are fitted to: near their predictions, and
in the same order (benchmarks/h200/wall_times.py and graph_times.py)."""

from __future__ import annotations

import json
from functools import lru_cache
from itertools import combinations
from statistics import fmean
from typing import Any

import pytest

import rooflight
from tests.fixtures.paths import ROOT

RESULTS = ROOT / "benchmarks" / "h200" / "results"
APART = 1.1


@lru_cache
def walls() -> list[tuple[dict[str, Any], float, float]]:
    """Case, measured and predicted seconds; of packages that may be missing here, none."""
    found = []
    for name, graphs in (("wall_times", False), ("graph_times", True)):
        for row in json.loads((RESULTS / f"{name}.json").read_text())["rows"]:
            case = row["case"]
            if ":" in case["model"] or case["step"] == "decode" or "error" in row:
                continue
            one = rooflight.predict(
                case["model"], on="h200", batch=case["batch"], seq=case["seq"], dtype=case["dtype"], step=case["step"],
                loss="mse" if case["step"] == "train" else None, graphs=graphs, advice=False, find_savings=False,
            ).predictions[0]  # fmt: skip
            found.append((case | {"graphs": graphs}, float(row.get("wall_s") or row["wall_time_s"]), one.time_s))
    return found


@pytest.mark.parametrize("graphs", [False, True])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_walls_are_near_their_predictions(graphs: bool, dtype: str) -> None:
    some = [row for row in walls() if row[0]["graphs"] == graphs and row[0]["dtype"] == dtype]
    assert len(some) >= 20
    assert fmean(abs(predicted / measured - 1) for _, measured, predicted in some) < 0.15


def test_steps_that_are_a_tenth_apart_are_in_the_right_order() -> None:
    """Of one model, and differing in one thing: the batch, the precision, or whether it is a graph."""
    compared = 0
    for (here, first, one), (there, second, other) in combinations(walls(), 2):
        differing = [key for key in here if here[key] != there[key]]
        if len(differing) != 1 or differing[0] in ("model", "seq", "step"):
            continue
        if max(first / second, second / first) >= APART:
            compared += 1
            assert (first > second) == (one > other), (here, there[differing[0]])
    assert compared > 50


def test_training_in_sixteen_bits_is_not_slower() -> None:
    """As it was recorded in h200/resnet50-train-fp32 and -bf16: 21.1 and 17.3 ms."""
    for model, batch, seq in (("resnet50", 16, None), ("vit-b-16", 32, None), ("gpt2", 4, 1024)):
        times = {
            dtype: rooflight.predict(model, on="h200", step="train", batch=batch, seq=seq, dtype=dtype, advice=False,
                                     find_savings=False).predictions[0].time_s
            for dtype in ("fp32", "bf16")
        }  # fmt: skip
        assert times["bf16"] < times["fp32"], model
