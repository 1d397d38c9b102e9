"""The table of timed steps says what this version predicts, and what is told of it is counted right."""

from collections.abc import Iterator
from importlib import import_module as script
from pathlib import Path
from typing import Any

import pytest

from rooflight.errors import BadInput
from rooflight.hardware.calibration import COMES_ALONG, calibration_for
from rooflight.prediction import checked_steps
from rooflight.prediction.accuracy import accuracy
from rooflight.prediction.checked_steps import (
    FORMAT_VERSION,
    CheckedStep,
    CheckedSteps,
    ErrorSpread,
    checked_on,
    decoded,
    encoded,
    shipped_steps,
)
from tests.fixtures.paths import ROOT

STALE = "run `python benchmarks/accuracy.py --write --pages` and commit what it writes"


def row(device: str = "t4", step: str = "infer", *, measured: float, predicted: float, **more: Any) -> CheckedStep:
    given: dict[str, Any] = {
        "source": "timm", "model": "resnet50", "kind": "convnet", "batch": 1, "size": 224, "precision": "fp32",
        "channels_last": False, "scope": "wall",
    } | more  # fmt: skip
    return CheckedStep(
        device=device, step=step, published_s=measured,
        predictions={"transferred": (predicted, 0.8 * predicted, 1.2 * predicted)}, **given,
    )  # fmt: skip


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckedSteps]:
    """A small one: six inference steps and one of training on a T4, an op, and kernels alone."""
    times = (1.1, 1.1, 0.9, 0.9, 1.3, 1.1)
    rows = [row(measured=1.0, predicted=time) for time in times]
    rows.append(row(step="train", measured=2.0, predicted=3.0))
    rows.append(row(kind="op", measured=1.0, predicted=9.0))
    rows.append(row(scope="kernels", measured=1.0, predicted=8.0))
    made = CheckedSteps(
        format_version=FORMAT_VERSION, rooflight="1", made="2026-01-01", sources={}, tiers={"t4": "transferred"},
        rows=tuple(rows),
    )  # fmt: skip
    monkeypatch.setattr(checked_steps, "shipped_steps", lambda: made)
    checked_on.cache_clear()
    yield made
    checked_on.cache_clear()


def test_spread_by_hand() -> None:
    # |errors| 0.1, 0.1, 0.2, 0.6: mean 0.25, median 0.15, 90th percentile the fourth of four; signed (0.1-0.1+0.2-0.6)/4
    spread = ErrorSpread.of([(0.1, True), (-0.1, True), (0.2, False), (-0.6, False)])
    assert (spread.rows, spread.inside, spread.worst, spread.p90) == (4, 0.5, 0.6, 0.6)
    assert spread.mean == pytest.approx(0.25) and spread.median == pytest.approx(0.15)
    assert spread.signed == pytest.approx(-0.1)


def test_a_prediction_is_told_the_error_of_its_kind_of_step(table: CheckedSteps) -> None:
    # |errors| of the six inference steps: 0.1 x 5 and 0.3, so 0.8 / 6 = 13.3% in the mean; the op and the
    # kernels alone are not among them.
    checked = checked_on("t4", "transferred", "infer")
    assert checked.text == (
        "on 6 published inference steps of convnets on this GPU: 13% in the mean, 30% at worst; of the GPU's time alone "
        "700%"
    )
    assert (checked.steps, checked.step) == (6, "infer")
    assert checked.gpu_time_error == pytest.approx(7.0)  # the row of kernels alone: 8 s predicted, 1 s measured
    # 1.3 x 0.8 = 1.04 is above 1.0: only that one lies outside
    assert checked.inside == pytest.approx(5 / 6)


def test_steps_of_its_kind_come_first_however_few(table: CheckedSteps) -> None:
    checked = checked_on("t4", "transferred", "infer", model_kind="convnet")
    assert checked.text.startswith("on 6 published inference steps of convnets on this GPU: 13% in the mean")
    assert (checked.steps, checked.step, checked.model_kind) == (6, "infer", "convnet")
    train = checked_on("t4", "transferred", "train", model_kind="convnet")
    assert train.text.startswith("on 1 published training step of convnets on this GPU: off by 50%")


def test_what_nobody_timed_is_said_before_what_is_told_instead(table: CheckedSteps) -> None:
    other = checked_on("t4", "transferred", "infer", model_kind="transformer")
    assert other.text.startswith(
        "no step of transformers was checked; on 6 published inference steps of convnets on this GPU: 13% in the mean"
    )
    assert (other.step, other.model_kind) == ("infer", None)
    # all seven: (0.8 + 0.5) / 7 = 18.6%
    decode = checked_on("t4", "transferred", "decode", model_kind="convnet")
    assert decode.text.startswith(
        "no decode step of convnets was checked; on 7 published steps of convnets on this GPU: 19% in the mean, 50% at"
    )
    assert decode.step is None and decode.mean_error == pytest.approx(1.3 / 7)
    neither = checked_on("t4", "transferred", "decode", model_kind="transformer")
    assert neither.text.startswith("no decode step of transformers was checked; on 7 published steps of convnets")


def test_what_was_never_checked_says_so(table: CheckedSteps) -> None:
    assert checked_on("a10", "transferred", "infer").text == "never checked on this GPU"
    assert checked_on("epyc-9654", "spec", "infer", device_kind="cpu").text == "never checked on this CPU"
    assert checked_on("t4", "calibrated", "infer").text == "never checked on this GPU with this tier"
    own = checked_on("t4", "transferred", "infer", own_calibration=True)
    assert own.text == "never checked with this calibration" and own.steps == 0 and own.mean_error is None


def test_the_words_that_tell_a_shipped_calibration_from_an_own_one() -> None:
    found = calibration_for("h200")
    assert found is not None and COMES_ALONG in found[1]


def test_the_table_is_whole() -> None:
    made = shipped_steps()
    assert len(made.rows) > 3000 and made.rooflight and made.made
    for one in made.rows:
        assert one.source in made.sources and one.step in ("infer", "train") and one.published_s > 0
        assert one.scope in ("wall", "call", "events", "kernels") and made.tiers[one.device] in one.predictions
        for time_s, low_s, high_s in one.predictions.values():
            assert 0 <= low_s <= time_s * 1.001 and time_s <= high_s * 1.001 and time_s > 0
    keys = [(one.source, one.device, one.model, one.step, one.batch, one.size, one.precision, one.channels_last, one.scope)
            for one in made.rows]  # fmt: skip
    assert len(set(keys)) == len(keys)


def test_it_is_small_and_comes_with_its_licences() -> None:
    folder = ROOT / "src" / "rooflight" / "hardware" / "published"
    assert (folder / checked_steps.NAME).stat().st_size < 300_000
    notice = (folder / "NOTICE.md").read_text()
    for source in ("NeuSight", "pytorch-image-models", "KernelBench", "DeepLearningExamples"):
        assert source in notice
    assert "Permission is hereby granted, free of charge" in notice


def test_a_broken_table_is_one_line(tmp_path: Path) -> None:
    whole = encoded(shipped_steps())
    for content in (b"", whole[: len(whole) // 2], b"{}"):
        with pytest.raises(BadInput, match="install rooflight again"):
            decoded(content)


# --- it says what this version predicts ---


def _agrees(rows: list[Any]) -> None:
    errors, device_named = script("accuracy").errors, script("judged_steps").device_named

    shipped = {
        (one.source, one.device, one.model, one.step, one.batch, one.size, one.scope): one
        for one in shipped_steps().rows
    }
    done, left = errors(rows, make=True)
    assert done and not left
    for outcome in done:
        step = outcome.step
        key = (step.source, device_named(step.device).name, step.model, step.step, step.batch, step.size, step.scope)
        one = shipped[key]
        assert outcome.tier == shipped_steps().tiers[one.device], STALE
        told = one.predictions[outcome.tier]
        assert told == pytest.approx((outcome.predicted_s, outcome.low_s, outcome.high_s), rel=2e-3), (key, STALE)
        assert (one.kind, one.guessed) == (outcome.kind, outcome.guessed)
        assert one.published_s == pytest.approx(step.published_s, rel=1e-3)


def test_kernelbench_rows_are_those_of_this_version() -> None:
    steps = script("judged_steps").steps
    rows = [one for one in steps("kernelbench") if one.model.endswith(("_Matmul_", "_ReLU", "_Softmax", "_MLP", "_AlexNet"))
            or "BatchNorm" in one.model or "GRU" in one.model]  # fmt: skip
    rows = [one for one in rows if "Mamba" not in one.model]
    assert len({one.device for one in rows}) == 4 and len(rows) > 60
    _agrees(rows)


def test_neusight_rows_are_those_of_this_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = script("judged_steps").steps
    monkeypatch.setattr(
        script("judged_traces"), "FOLDER", tmp_path
    )  # traced anew: a kept trace may be older than the code
    rows = [one for one in steps("neusight") if one.model == "bert_large" and one.step == "infer" and one.batch == 8]
    assert len(rows) >= 3
    _agrees(rows)


def test_the_page_is_what_its_script_writes() -> None:
    assert (ROOT / "docs" / "accuracy.md").read_text() == script("accuracy_page").page(accuracy()), STALE
