"""Predictions against 120 steps that were measured on an H200, and the proof that its calibration has not seen them."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pytest

from rooflight.calibration.plan import gpu_plan
from rooflight.hardware.calibration import Calibration, shipped
from rooflight.hardware.devices import find
from rooflight.models import build, builtin_names
from rooflight.models.registry import BUILTINS
from rooflight.ops.kernel_task import Task
from rooflight.prediction.paleo import best_ppp, default_ppp
from rooflight.prediction.tiers import speed_of
from rooflight.prediction.traces import Traces
from rooflight.trace import TraceOptions
from tests.fixtures.paths import ROOT

BENCHMARKS = ROOT / "benchmarks"


@pytest.fixture(scope="module")
def outcomes() -> list[Any]:
    """Every row with its prediction, by the calibration that comes along."""
    import predict_rows

    found: list[Any] = predict_rows.outcomes(predict_rows.measured_rows())
    return found


def mean(errors: Iterable[float]) -> float:
    return statistics.fmean(abs(error) for error in errors)


# --- against the rows ---


def test_every_row_is_predicted_by_the_calibrated_tier(outcomes: list[Any]) -> None:
    assert len({outcome.key for outcome in outcomes}) == len(outcomes) == 120
    assert {outcome.prediction.tier for outcome in outcomes} == {"calibrated"}
    assert {outcome.prediction.source for outcome in outcomes} == {"comes with rooflight"}


def test_an_interval_lies_around_its_prediction(outcomes: list[Any]) -> None:
    for outcome in outcomes:
        interval = outcome.prediction.gpu_time_interval_s
        assert interval.low < outcome.prediction.gpu_time_s < interval.high < 2 * outcome.prediction.gpu_time_s


@pytest.mark.parametrize("part", ["infer", "train", "fp32", "bf16"])
def test_it_beats_paleo_with_its_best_constant_and_the_roofline(outcomes: list[Any], part: str) -> None:
    """The constant is fitted to the very rows it is judged on, all or this part of them."""
    some = [outcome for outcome in outcomes if part in (outcome.row["mode"], outcome.row["dtype"])]
    own = mean(outcome.gpu_error for outcome in some)
    assert own < mean(outcome.roofline_s / outcome.gpu_s - 1 for outcome in some)
    for fitted in (outcomes, some):
        ppp = best_ppp([outcome.peak_s for outcome in fitted], [outcome.gpu_s for outcome in fitted])
        assert own < mean(outcome.peak_s / ppp / outcome.gpu_s - 1 for outcome in some)
        default = default_ppp(find("h200")).value
        assert ppp == pytest.approx(default, rel=0.5), "the default is a sensible one"


def test_batches_predicted_together_are_those_predicted_alone(outcomes: list[Any]) -> None:
    """Three batches share a trace; two are traced each for itself."""
    from rooflight.prediction.api import predict

    known = {outcome.key: outcome.prediction for outcome in outcomes}
    alone = predict("resnet18", on="h200", batch=16, dtype="bf16", advice=False)[0]
    together = known["resnet18", "infer", "bf16", 16]
    assert together.gpu_time_s == pytest.approx(alone.gpu_time_s, rel=0.02)
    assert together.time_s == pytest.approx(alone.time_s, rel=0.02)


# --- the calibration has seen none of it ---

BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
SEQUENCES = (128, 1024)
"""Of the rows; besides, every model's own."""
LISTS = ("foreach", "fused-sgd", "fused-adam")
FEWER_LAYERS = {
    "vit-b-16": {"num_layers": "1"},
    "transformer": {"num_encoder_layers": "1", "num_decoder_layers": "1"},
    "distilbert": {"n_layers": "1"},
    "distilbert-mlm": {"n_layers": "1"},
    **{name: {"n_layer": "1"} for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")},
    **{name: {"num_hidden_layers": "1"} for name in ("llama3-8b", "llama3-70b", "mixtral-8x7b")},
}
"""Layers that are alike have the same ops: one of each kind is enough, but for the optimizer, who sees them all."""


def steps_of_model(name: str) -> Iterator[tuple[str, set[Task]]]:
    """In words and tasks: every step of a built-in model at all batches, the optimizer's lists left out where layers
    are."""
    entry = BUILTINS[name]
    lengths = {None} if entry.inputs == "image" else {*SEQUENCES, entry.shape[0]}
    if name.startswith("distilbert"):
        lengths -= {1024}  # more than it has positions
    for seq in lengths:
        for dtype in ("fp32", "bf16"):
            decoding = [("decode", None)] if entry.decodes else []
            for step, loss in [("infer", None), ("train", None), ("train", "mse"), *decoding]:
                traces = Traces(name, step=step, seq=seq - 1 if seq and step == "decode" else seq, past=None, dtype=dtype,
                                overrides=FEWER_LAYERS.get(name), input_shape=None, download=False)  # fmt: skip
                found, _ = traces.steps(BATCHES, TraceOptions(target="cuda", loss=loss, on="meta"), scaled=True)
                length = f" s{seq}" if seq else ""
                for one in found:
                    tasks = {task for task in one.tasks if name not in FEWER_LAYERS or task.family not in LISTS}
                    yield f"{name}{length} {step} {dtype} b{one.batch}", tasks


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    found = shipped("h200")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def drawn() -> set[Task]:
    """What `rooflight calibrate` would time on an H200 if it had half an hour instead of three minutes."""
    peaks = {name: speed_of(find("h200")).peaks[name] for name in ("fp32", "tf32", "bf16", "fp16")}
    plan = gpu_plan(peaks, largest=200_000_000, longest_s=3e-3)
    return {case.task for chapter in plan for case in islice(chapter.cases, 3000)}


QUICK = ("gpt2", "mnist-cnn", "resnet50", "word-lm")
"""Traced in seconds, with and without convolutions, attention and recurrent layers; the others are slow together."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in builtin_names()]
)
def test_no_calibrated_point_is_an_op_of_a_built_in_model(
    calibration: Calibration, drawn: set[Task], name: str
) -> None:
    """Neither op, nor shape, nor dtype, nor layout alone is forbidden: all of them together are."""
    calibrated = points(calibration)
    seen: dict[Task, str] = {}
    for where, tasks in steps_of_model(name):
        for task in tasks & calibrated:
            seen[task] = f"{where}, in the file that comes along"
        for task in tasks & drawn:
            seen.setdefault(task, f"{where}, among what a calibration may draw")
    listed = "\n".join(f"{task.family} {task.precision} {task.numbers}: {where}" for task, where in seen.items())
    assert not seen, f"{len(seen)} calibrated points are ops of {name}:\n{listed}"


@pytest.mark.parametrize("name", sorted(FEWER_LAYERS))
def test_no_calibrated_list_is_that_of_a_whole_model(calibration: Calibration, name: str) -> None:
    """Of the models that were traced with fewer layers: as many tensors with as many elements as their optimizer has."""
    parameters = list(build(name).model.parameters())
    whole = len(parameters), sum(parameter.numel() for parameter in parameters)
    lists = {task.numbers[:2] for task in points(calibration) if task.family in LISTS}
    assert lists and whole not in lists


_POINTS: dict[int, set[Task]] = {}


def points(calibration: Calibration) -> set[Task]:
    found = _POINTS.get(id(calibration))
    if found is None:
        found = _POINTS[id(calibration)] = {task for one in calibration.points for task in one.tasks()}
    return found


def test_every_family_that_built_in_models_need_is_calibrated(calibration: Calibration) -> None:
    """Disjoint must not mean empty."""
    known: dict[str, int] = defaultdict(int)
    for one in calibration.points:
        known[one.family] += len(one.rows)
    needed = {task.family for name in ("resnet18", "googlenet", "gpt2") for _, tasks in steps_of_model(name) for task in
              tasks}  # fmt: skip
    assert needed <= set(known)
    assert all(known[family] >= 20 for family in needed)
