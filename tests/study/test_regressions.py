"""Conditions on B/A, as `rooflight compare A B --fail-if` has them: what holds, what noise leaves open, what is wrong."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from msgspec.structs import replace

import rooflight
from rooflight.analysis.comparison.spread import Spread, overlap, ratio_of, spread_of
from rooflight.errors import BadInput
from rooflight.files import load, save
from rooflight.ledger import Ledger, Value, total
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


@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        ("time > 1.05 or time < 0.95", "undecided"),  # holds at both ends, and not at 1
        ("time != 1", "undecided"),
        ("not (time ~ 1 within 5%)", "undecided"),
        ("time ~ 1.06 within 20%", "fails"),
        ("time ~ 1.06 within 5%", "undecided"),  # holds in the middle
        ("time > 0.9 and time < 1.2", "fails"),
        ("time > 1.05 or memory >= 1", "fails"),
        ("not (time < 0.9)", "fails"),
        ("time * 2 - 1 > 0.8", "fails"),
        ("-time < -0.9", "fails"),
        ("time / (time - 1) > 5", "undecided"),  # the divisor may be 0
        ("1 / time < 0.8", "passes"),
    ],
)
def test_between_the_ends_of_the_spread(step, text, outcome):
    """B/A is 1.06, from 0.94 to 1.18."""
    spread = 0.12 * 3.735 / 2 / 1.06
    comparison = rooflight.compare(with_wall(step, 1.0, 0.0), with_wall(step, 1.06, spread))
    verdict = judge_condition(condition(text), comparison)
    ratio = verdict.ratios[0].ratio
    assert (ratio.low, ratio.high) == (pytest.approx(0.94), pytest.approx(1.18))
    assert verdict.outcome == outcome


def one_slow_repeat(ledger: Ledger, low: float | None = 0.0098) -> Ledger:
    """One of twenty repeats took six times as long as the median."""

    def changed(row):
        told = Value(0.010, "host clock: median of 20 plain steps", low, 0.060)
        return row if row.scope != "step" else replace(row, quantities={**row.quantities, "wall_time_s": told})

    return replace(ledger, measurements=tuple(map(changed, ledger.measurements)))


def test_one_slow_repeat_makes_no_negative_times(step):
    comparison = rooflight.compare(one_slow_repeat(step), with_wall(step, 1.0, 0.0))
    verdict = judge_condition(condition("time < 0.9"), comparison)
    assert verdict.ratios[0].a.low == 0.0098 and verdict.outcome == "undecided"
    assert judge_condition(condition("throughput > 1.1"), comparison).outcome == "undecided"


def test_a_time_that_may_be_nought_decides_nothing(step, run, tmp_path):
    """As in a ledger that somebody edited: its least repeat is 0."""
    odd, plain = tmp_path / "odd.json.gz", tmp_path / "plain.json.gz"
    save(one_slow_repeat(step, low=0.0), odd)
    save(step, plain)
    verdict = judge_condition(condition("time < 1.5"), rooflight.compare(load(odd), step))
    assert verdict.outcome == "undecided" and " or more within " in verdict.sentence
    code, out, _ = run("compare", odd, plain, "--fail-if", "time < 1.5", "--json")
    assert code == 0 and json.loads(out)["fail_if"][0]["ratios"]["time"]["high"] is None


def test_only_causes_of_the_quantity_are_named():
    """The allocated peak rises by 78 MB; that the allocator holds 293 MB more beyond it is no cause of that."""
    comparison = rooflight.compare(load(EAGER), load(COMPILED))
    allocated = judge_condition(condition("memory > 1.05"), comparison)
    assert allocated.outcome == "fails" and "reserved" not in allocated.sentence
    assert allocated.sentence.endswith("most of it is unexplained: +78.1 MB of memory")
    reserved = judge_condition(condition("reserved > 1.05"), comparison)
    assert reserved.sentence.endswith("largest cause: reserved, not allocated +293 MB of memory")


def test_what_no_kernel_runs_in_is_no_cause_of_busy_times(step):
    comparison = rooflight.compare(*map(load, NOISY))
    assert judge_condition(condition("time > 1"), comparison).ratios[0].bridge.largest.name == "launches and host"
    for name in ("gpu_busy", "kernel_time"):
        (ratio,) = judge_condition(condition(f"{name} < 1"), comparison).ratios
        assert ratio.bridge.largest.name in ("fusion", "other kernels")
        assert ratio.bridge.difference == ratio.b.value - ratio.a.value


def test_a_prediction_is_not_called_noise():
    comparison = rooflight.compare(load("recorded:h200/resnet50-train-fp32"), on="a100-sxm-80")
    sentence = judge_condition(condition("time > 1.05"), comparison).sentence
    assert "within the 90% interval of the prediction" in sentence and "only a measurement of B tells" in sentence
    assert "quieter" not in sentence and "spread of the runs" not in sentence


def test_flops_are_by_formula_where_a_side_counted_only_some():
    """Of the CUDA graph the CUDA cores were not counted."""
    comparison = rooflight.compare(load(NOISY[0]), load(f"{NOISY[0]}-graph"))
    verdict = judge_condition(condition("flops = 1"), comparison)
    (ratio,) = verdict.ratios
    assert verdict.outcome == "fails" and ratio.a.value == ratio.b.value == total(comparison.a.ledger.ops).flops
    assert "flops by formula of B is 1 ×" in verdict.sentence and ratio.bridge is None


def test_bytes_by_formula_are_not_called_those_of_dram():
    folder = Path(__file__).parents[1] / "data" / "cpu_versions"
    comparison = rooflight.compare(*(folder / f"resnet18-{step}-torch-2.13.json.gz" for step in ("infer", "train")))
    sentence = judge_condition(condition("bytes > 1.05"), comparison).sentence
    assert "bytes by formula of B is" in sentence and "of bytes by formula" in sentence and "DRAM" not in sentence


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
        ("time > 5%", "5% is 0.05, and a name here is B/A: write a ratio, such as 1.05 for 5% more"),
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


def test_only_names_that_are_of_use_are_told():
    with pytest.raises(BadInput) as error:
        condition("foo > 1")
    said = str(error.value)
    assert "unknown quantity 'foo': it is none of those below" in said and "mfu" not in said and "bound" not in said


def test_a_division_by_zero_is_told_in_a_sentence(step):
    with pytest.raises(BadInput, match=r"'time / 0' cannot be worked out, division by zero: write a condition"):
        judge_condition(condition("time / 0 > 1"), rooflight.compare(step, step))


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
    assert ratio_of(Spread.exact(1), Spread(2, 0, 4)) == Spread(0.5, 0.25, math.inf)
    skewed = spread_of(Value(10.0, "median of 20 steps", 9.8, 60.0))
    assert (skewed.low, skewed.high) == (9.8, pytest.approx(10 + 50.2 / 3.735))
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
