"""Conditions on B/A, as `rooflight compare A B --fail-if` has them: what holds, what noise leaves open, what is wrong."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

import rooflight
from rooflight.analysis.comparison.spread import Spread, overlap, ratio_of, spread_of
from rooflight.errors import BadInput
from rooflight.files import load
from rooflight.ledger import Ledger, Value
from rooflight.study.regressions import condition, judge_condition

EAGER, COMPILED = "recorded:h200/gpt2-infer-bf16", "recorded:h200/gpt2-infer-bf16-compiled"
NOISY = "recorded:h200/resnet50-train-fp32", "recorded:h200/resnet50-train-fp32-compiled"


def with_wall(ledger: Ledger, times: float, spread: float) -> Ledger:
    """The same step with its wall time multiplied, and repeats from `spread` below to `spread` above."""

    def changed(row):
        if row.scope != "step":
            return row
        value = row.quantities["wall_time_s"].value * times
        told = Value(value, "host clock: median of 20 plain steps", value * (1 - spread), value * (1 + spread))
        return replace(row, quantities={**row.quantities, "wall_time_s": told})

    return replace(ledger, measurements=tuple(map(changed, ledger.measurements)))


@pytest.fixture(scope="module")
def step():
    return load("recorded:h200/mnist-cnn-infer-tf32")


@pytest.mark.parametrize(
    ("times", "spread", "outcome"),
    [
        (1.02, 0.0, "passes"),  # under the limit
        (1.10, 0.0, "fails"),
        # The range of 20 repeats is 3.735 deviations: ±10% makes 5.35% each side, 1.10 × 0.9465 / 1.0535 is 0.988.
        (1.10, 0.10, "undecided"),
        (1.30, 0.10, "fails"),  # 1.30 × 0.9465 / 1.0535 = 1.168
    ],
)
def test_noise(step, times, spread, outcome):
    comparison = rooflight.compare(with_wall(step, 1.0, spread), with_wall(step, times, spread))
    verdict = judge_condition(condition("time > 1.05"), comparison)
    assert verdict.outcome == outcome
    (ratio,) = verdict.ratios
    off = 2 * spread / 3.735
    assert ratio.ratio.value == pytest.approx(times)
    assert ratio.ratio.low == pytest.approx(times * (1 - off) / (1 + off))
    assert ("within the noise" in verdict.sentence) == (outcome == "undecided")
    assert ("largest cause: launches and host +" in verdict.sentence) == (outcome == "fails")


def test_what_is_counted_has_no_noise(step):
    comparison = rooflight.compare(with_wall(step, 1.0, 0.3), with_wall(step, 1.0, 0.3))
    for text in ("memory > 1", "flops > 1", "kernels > 1", "params != 1"):
        assert judge_condition(condition(text), comparison).outcome == "passes"
    for text in ("memory >= 1", "flops ~ 1 within 1%", "not (kernels > 1)", "params = 1 and memory = 1"):
        assert judge_condition(condition(text), comparison).outcome == "fails"


def test_times_that_say_themselves_that_they_are_unreliable_fail_nothing(step):
    crowded = replace(step.header, conditions={**step.header.conditions, "waited_for_a_core": "51% of the time"})
    slow = replace(with_wall(step, 3.0, 0.0), header=crowded)
    comparison = rooflight.compare(with_wall(step, 1.0, 0.0), slow)
    verdict = judge_condition(condition("time > 1.05"), comparison)
    assert verdict.outcome == "undecided" and "B: TIMES UNRELIABLE" in verdict.sentence
    assert judge_condition(condition("memory >= 1"), comparison).outcome == "fails"


def test_a_rate_lies_the_other_way_round(step):
    comparison = rooflight.compare(with_wall(step, 1.0, 0.02), with_wall(step, 2.0, 0.02))
    verdict = judge_condition(condition("throughput < 0.6"), comparison)
    assert verdict.outcome == "fails" and verdict.ratios[0].ratio.value == pytest.approx(0.5)
    assert verdict.ratios[0].ratio.low < 0.5 < verdict.ratios[0].ratio.high


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is empty"),
        ("time", "no comparison"),
        ("tiem > 1.05", "did you mean time?"),
        ("time > 25 ms", "has a unit, and B/A has none"),
        ("time > 1 > 2", "cannot be compared again"),
        ("bound = host", "bound is not compared here"),
        ("time(batch=3) > 1", "B/A of the whole step"),
        ("max(time over batch) > 1", "is no number"),
        ("2 > 1", "name a quantity"),
        ("time > (1.05", "expected"),
    ],
)
def test_a_condition_that_cannot_be_read(text, said):
    with pytest.raises(BadInput, match=r"^--fail-if") as error:
        condition(text)
    assert said in str(error.value) and "quantities, each as B/A: time, " in str(error.value)


def test_what_a_side_does_not_know(step):
    bare = replace(step, measurements=tuple(row for row in step.measurements if row.scope != "step"))
    with pytest.raises(BadInput, match=r"time of B is not known; known of both: .*flops"):
        judge_condition(condition("time > 1.05"), rooflight.compare(step, bare))


def test_spreads():
    assert spread_of(Value(5, "counter")) == Spread(5, 5, 5)
    of_five = spread_of(Value(10.0, "median of 5 steps", 9.0, 11.326))
    assert (of_five.low, of_five.high) == (pytest.approx(9.0), pytest.approx(11.0))
    assert ratio_of(Spread(4, 3, 5), Spread(2, 1, 3)) == Spread(2.0, 1.0, 5.0)
    assert ratio_of(Spread.exact(1), Spread.exact(0)) is None
    assert overlap(Spread(1, 0.9, 1.1), Spread(1.2, 1.0, 1.4)) and not overlap(Spread.exact(1), Spread.exact(1))


# --- the command ---


def test_the_exit_code_and_the_line(run):
    code, out, err = run("compare", COMPILED, EAGER, "--fail-if", "time > 1.05", "--fail-if", "memory > 1")
    assert code == 1 and "memory > 1: passes" in out
    assert err.count("\n") == 1
    assert err.startswith("rooflight: time > 1.05: fails; time of B is 2.473 × that of A (4.38 ms → 10.8 ms; ")
    assert "largest cause: other kernels +2.88 ms of time" in err
    assert run("compare", EAGER, COMPILED, "--fail-if", "time > 1.05")[0] == 0


def test_quiet_and_json(run):
    code, out, err = run("compare", COMPILED, EAGER, "--fail-if", "gpu_time > 1.05", "--json", "--quiet")
    assert code == 1 and err.startswith("rooflight: gpu_time > 1.05: fails")
    (verdict,) = json.loads(out)["fail_if"]
    assert verdict["outcome"] == "fails" and verdict["ratios"]["gpu_busy"]["ratio"] == pytest.approx(2.77, abs=0.01)
    assert {one["quantity"] for one in json.loads(out)["from_a_to_b"]} == {"FLOPs", "DRAM bytes", "time", "memory"}


def test_noise_fails_nothing(run):
    code, out, err = run("compare", *NOISY, "--fail-if", "time > 1.01")
    assert (code, err) == (0, "") and "time > 1.01: undecided" in out
    code, _, err = run("compare", *NOISY, "--fail-if", "time > 1.01", "--json")
    assert code == 0 and "time > 1.01: undecided" in err


def test_a_slip_is_told_before_files_are_read(run):
    code, out, err = run("compare", "nowhere.json", "nowhere.json", "--fail-if", "tiem > 1")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "did you mean time?" in err
