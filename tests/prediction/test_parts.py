"""What a prediction is made of: batches from one trace, caches, two clocks, the host, interpolation, tiers, advice."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache, partial
from importlib import resources

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import nn

import rooflight
from rooflight import metrics
from rooflight.errors import BadInput
from rooflight.estimation.costs import fill_costs
from rooflight.hardware.calibration import Calibration, TimedPoints, shipped
from rooflight.hardware.devices import find, names
from rooflight.ledger import Ledger, Op, StepKind, Tensor, Value
from rooflight.ops.kernel_task import FAMILIES, OUTPUT, Task
from rooflight.ops.op_tasks import tasks_of
from rooflight.parallel.layout import Layout
from rooflight.prediction import advice as advising
from rooflight.prediction.api import Question, predict
from rooflight.prediction.calibrated.baseline import (
    LAUNCH_S,
    baseline_seconds,
    columns,
    least_seconds,
    matrix_flops,
    memory_seconds,
)
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.calibrated.interpolation import KrigingField
from rooflight.prediction.calibrated.model import _NOISE, _REACH, CalibratedModel
from rooflight.prediction.clocks import Clocks, step_seconds
from rooflight.prediction.device_run import device_runs
from rooflight.prediction.resolve_devices import waited_much
from rooflight.prediction.tiers import _NEAR, check_precision, predictor, retargeted, speed_of
from rooflight.prediction.traces import StepRequest, Traces
from rooflight.spec import StepSpec
from rooflight.step import changes
from rooflight.step.cache_reuse import Touches
from rooflight.step.costed_step import PreparedTrace
from rooflight.step.host_calls import host_class, host_seconds, module_entries
from rooflight.step.other_batches import PRIMES, DoesNotScale, OtherBatch, check_scales, prime_for
from rooflight.trace import TraceOptions
from tests.fixtures.notes import note_texts
from tests.fixtures.small_models import First, ModelSize

PRIME = 1619

# --- one trace for every batch ---

ZOO: dict[str, ModelSize] = {
    "resnet18": {},
    "googlenet": {},
    "gpt2": {"seq": 48, "overrides": {"n_layer": "2"}},
    "transformer": {},
    "distilbert-mlm": {"seq": 32, "overrides": {"n_layers": "2"}},
    "vit-b-16": {"overrides": {"num_layers": "2"}},
    "mixtral-8x7b": {"seq": 16, "overrides": {"num_hidden_layers": "1"}},
}
STEPS: list[tuple[StepKind, str]] = [("infer", "fp32"), ("infer", "bf16"), ("train", "fp32"), ("train", "bf16")]


def row(op: Op) -> tuple:
    return op.key, op.kind, op.precision, op.args, op.outputs, op.mutates, op.cost, tasks_of(op)


@pytest.mark.parametrize("place", range(len(STEPS)))
@pytest.mark.parametrize("name", list(ZOO))
def test_a_ledger_of_another_batch_is_the_one_that_a_trace_of_it_gives(name, place):
    step, dtype = STEPS[place]
    estimate = partial(rooflight.estimate, name, step=step, dtype=dtype, **ZOO[name])
    traced = estimate(batch=PRIME)
    check_scales(traced, PRIME, set())
    # All of them where it costs little, else each of them once among the four steps of a model.
    for batch in (2, 7, 64) if step == "infer" else ((7,), (64,))[place % 2]:
        real = estimate(batch=batch)
        mine = fill_costs(OtherBatch(PRIME, batch).ledger(traced))
        assert len(mine.ops) == len(real.ops)
        for found, wanted in zip(mine.ops, real.ops, strict=True):
            assert row(found) == row(wanted)
        assert mine.storages == real.storages
        assert mine.modules == real.modules
        assert mine.header == real.header


def test_a_prepared_trace_has_the_costs_and_tasks_of_every_batch():
    estimate = partial(rooflight.estimate, "gpt2", step="train", **ZOO["gpt2"])
    prepared = PreparedTrace(estimate(batch=PRIME), PRIME)
    for batch in (7, 64, 7):
        step, real = prepared.at(batch), estimate(batch=batch)
        assert [op.cost for op in step.ops_with_cost] == [op.cost for op in real.ops]
        tasks: list[list[Task]] = [[] for _ in step.kinds]
        for task, kind in zip(step.tasks, step.task_kind.tolist(), strict=True):
            tasks[kind].append(task)
        assert [tasks[kind] for kind in step.kind_of.tolist()] == [tasks_of(op) for op in real.ops]
        for mine, walked in zip(step.reuse.cold_reads(5e7), Touches(real.ops).reuse().cold_reads(5e7), strict=True):
            assert mine == pytest.approx(walked)
        assert step.at_batch is not None
        assert step.at_batch(2 * batch).batch == 2 * batch


def test_asking_for_the_traced_batch_leaves_the_others_as_they_are():
    traced = rooflight.estimate("resnet18", batch=PRIME)
    fresh, used = PreparedTrace(traced, PRIME), PreparedTrace(traced, PRIME)
    used.at(None), used.at(PRIME)
    assert used.at(8).tasks == fresh.at(8).tasks
    assert used.at(PRIME).tasks == used.at(None).tasks


@given(st.integers(0, 10**6), st.integers(0, 3), st.integers(1, 200))
def test_the_batch_takes_the_place_of_the_prime_as_often_as_it_divides(rest, times, batch):
    rest = rest if rest % PRIME else rest + 1
    assert OtherBatch(PRIME, batch).size(rest * PRIME**times) == rest * batch**times


def test_nothing_stays_nothing():
    assert OtherBatch(PRIME, 5).size(0) == 0
    tensor = Tensor(3, (PRIME, 4, 0), "fp32", (4, 1, 1), 4 * PRIME)
    assert OtherBatch(PRIME, 5).tensor(tensor) == Tensor(3, (5, 4, 0), "fp32", (4, 1, 1), 20)


def test_the_prime_is_none_of_the_batches():
    assert prime_for([1, 8]) == PRIMES[0]
    assert prime_for([PRIMES[0], PRIMES[1]]) == PRIMES[2]
    assert all(p % d for p in PRIMES for d in range(2, math.isqrt(p) + 1))


class OneMore(nn.Module):
    """A row of its own in front of the batch's."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.first = nn.Linear(8, 8), nn.Parameter(torch.zeros(1, 8))

    def forward(self, x):
        return self.linear(torch.cat([self.first, x]))


def test_a_size_of_the_batch_and_one_more_does_not_scale():
    ledger = rooflight.estimate(OneMore(), torch.randn(PRIME, 8))
    with pytest.raises(DoesNotScale, match=rf"has a size of {PRIME + 1}"):
        check_scales(ledger, PRIME, {8, 64})
    check_scales(rooflight.estimate(nn.Linear(8, 8), torch.randn(PRIME, 8)), PRIME, {8, 64})


def test_a_parameter_whose_size_is_a_multiple_of_the_prime_does_not_scale():
    ledger = rooflight.estimate(nn.Linear(8, 2 * PRIME), torch.randn(PRIME, 8))
    with pytest.raises(DoesNotScale, match=rf"a parameter has a size of {2 * PRIME}"):
        check_scales(ledger, PRIME, {8, 2 * PRIME})


def test_many_batches_of_one_trace_are_as_if_each_were_traced():
    many = predict("resnet18", on="h200", batch=[2, 4, 8, 16], step="train", advice=False)
    for batch in (2, 16):
        (alone,) = predict("resnet18", on="h200", batch=batch, step="train", advice=False)
        again = many.at("h200", batch)
        assert again.time_s == pytest.approx(alone.time_s)
        assert again.op_times_s == pytest.approx(alone.op_times_s)
        assert (again.flops, again.bound, again.ops) == (alone.flops, alone.bound, alone.ops)


class Halves(nn.Module):
    """The two halves of a batch one after the other, as some do to save memory."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(512, 512)

    def forward(self, x):
        return torch.cat([self.linear(half) for half in x.chunk(2)])


class Pairs(nn.Module):
    """Two samples at a time: it takes no odd batch."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(1024, 512)

    def forward(self, x):
        return self.linear(x.reshape(x.shape[0] // 2, 1024))


def halves(batch: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Halves(), (torch.zeros(batch, 512),)


def pairs(batch: int) -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Pairs(), (torch.zeros(batch, 512),)


MIXTURE = {"overrides": {"num_hidden_layers": "1"}}


@pytest.mark.parametrize(
    ("model", "options", "why"),
    [
        (f"{__name__}:halves", {}, "has a size of 810"),
        (f"{__name__}:pairs", {}, f"the model does not take a batch of {PRIME}"),
        ("mixtral-8x7b", {"step": "decode", **MIXTURE}, "has a size of 40[45]"),  # 1619 x 2 / 8 samples an expert
        ("mixtral-8x7b", {"seq": 35, **MIXTURE}, "has a size of 1416[67]"),
    ],
    ids=["halves", "pairs", "experts of a decoded token", "experts of a sequence"],
)
def test_a_part_of_the_batch_is_traced_for_every_batch(model, options, why):
    many = predict(model, on="h200", batch=[4, 8, 64], advice=False, **options)
    assert any(re.search(f"^every batch was traced for itself: .*{why}", note) for note in note_texts(many.notes))
    (alone,) = predict(model, on="h200", batch=8, advice=False, **options)
    assert many.at("h200", 8).flops == alone.flops
    assert many.at("h200", 8).op_times_s == pytest.approx(alone.op_times_s)


class Dependent(nn.Module):
    """Steps that wait for one another, which were timed, and passes that follow one another, which were not."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(64, 64, batch_first=True)

    def forward(self, x):
        x, _ = self.recurrent(x)
        return torch.sort(torch.linalg.vector_norm(x, dim=-1))[0]


def test_what_nothing_like_it_was_timed_of_is_named_and_not_inside():
    found = predict(Dependent(), torch.randn(8, 32, 64), on="h200", advice=False)
    assert [note.rpartition(": ")[2] for note in note_texts(found.notes) if "a guess" in note] == ["sort"]
    (sort,) = (op for op in found[0].ops if op.name == "aten::sort")
    assert found[0].inside == pytest.approx(1 - sort.share, abs=0.01)  # all else lies among calibrated points
    plain = predict(nn.LSTM(64, 64).requires_grad_(False), torch.randn(8, 32, 64), tier="spec", advice=False)
    assert not any("a guess" in note for note in note_texts(plain.notes))  # PALEO takes the FLOPs of anything


def test_points_that_count_as_inside_are_predicted_much_better_when_left_out():
    model = predictor(find("h200")).model
    errors, distances = [], []
    for precision in ("bf16", "fp32"):
        family = model._family("gemm", precision)
        order = np.random.default_rng(0).permutation(len(family.rows))
        out, kept = order[:400], order[400:]
        found = KrigingField(family.points[kept], family.warm.values[kept], _REACH, _NOISE).at(family.points[out])
        errors.append(np.abs(np.exp(found.value - family.warm.values[out]) - 1))
        distances.append(found.distance)
    error, inside = np.concatenate(errors), np.concatenate(distances) <= _NEAR
    assert inside.sum() > 200 and (~inside).sum() > 20
    assert np.median(error[~inside]) > 2 * np.median(error[inside])


def test_a_precision_of_another_width_than_was_timed_is_not_inside():
    wide, usual = (predict("resnet18", on="h200", batch=8, dtype=dtype, advice=False)[0] for dtype in ("fp64", "fp32"))
    assert wide.inside < 0.2 < 0.9 < usual.inside

    def relative(one):
        return one.gpu_time_interval_s.high / one.gpu_time_s - 1

    assert relative(wide) > 2 * relative(usual)


# --- the cache ---


def brute_force_reads(ops: list[Op], cache_bytes: float) -> tuple[list[float], list[float]]:
    """Two steps one after the other; what was touched longer ago than the cache is large is cold."""
    last: dict[int, int] = {}
    touched, shares, colds = 0, {}, {}
    for turn in range(2):
        for place, op in enumerate(ops):
            if op.kind != "compute":
                continue
            reads: dict[int, int] = {}
            for tensor in op.inputs:
                reads[tensor.storage] = max(reads.get(tensor.storage, 0), tensor.nbytes)
            writes: dict[int, int] = {}
            for tensor in op.outputs:
                if tensor.storage not in reads:
                    writes.setdefault(tensor.storage, tensor.nbytes)
            cold = total = 0
            for storage, size in (*reads.items(), *writes.items()):
                touched += size
                since = touched - last[storage] if storage in last else math.inf
                last[storage] = touched
                if storage in reads:
                    total += size
                    cold += size * (since > cache_bytes)
            if turn:
                shares[place], colds[place] = cold / total if total else 0.0, cold
    return tuple([found.get(place, 0.0) for place in range(len(ops))] for found in (shares, colds))  # type: ignore[return-value]


tensors = st.builds(
    Tensor, st.integers(0, 5), st.tuples(st.integers(1, 40)), st.sampled_from(["fp32", "bf16"])
)  # fmt: skip
touching = st.builds(
    lambda kind, inputs, outputs: Op(
        index=0, phase="forward", module="", call=0, name="aten::x", ordinal=0, kind=kind, args={"self": inputs},
        outputs=tuple(outputs),
    ),
    st.sampled_from(["compute", "compute", "compute", "view"]), st.lists(tensors, max_size=3),
    st.lists(tensors, max_size=2),
)  # fmt: skip


@given(st.lists(touching, min_size=1, max_size=12), st.floats(1, 2000))
def test_shares_that_come_from_memory_are_those_of_walking_the_step_twice(ops, cache_bytes):
    found, expected = Touches(ops).reuse().cold_reads(cache_bytes), brute_force_reads(ops, cache_bytes)
    for mine, walked in zip(found, expected, strict=True):
        assert mine.tolist() == pytest.approx(walked)


def test_what_was_just_written_is_warm_and_nothing_is_in_a_cache_of_nothing():
    ops = rooflight.estimate("resnet18", batch=4).ops
    touches = Touches(ops).reuse()
    reads = np.array([op.kind == "compute" and any(t.nbytes for t in op.inputs) for op in ops])
    assert touches.cold_reads(1e15)[0][reads] == pytest.approx(0)
    assert touches.cold_reads(0)[0][reads] == pytest.approx(1)
    shares = [touches.cold_reads(size)[0].sum() for size in (1e5, 1e6, 1e7, 1e8)]
    assert shares == sorted(shares, reverse=True)


# --- two clocks ---

seconds = st.floats(0, 10, allow_nan=False).map(lambda value: round(value, 3))


@st.composite
def steps_of_two(draw):
    cells, ops = draw(st.integers(1, 3)), draw(st.integers(1, 8))
    host = draw(arrays.arrays(np.float64, ops, elements=seconds))
    device = draw(arrays.arrays(np.float64, (cells, ops), elements=st.one_of(st.just(0.0), seconds)))
    waits = draw(st.one_of(st.none(), arrays.arrays(np.bool_, ops)))
    return host, device, draw(st.sampled_from([0.0, 0.25])), waits


def brute_force_wall(host_s, device_s, gap_s, waits) -> float:
    host = free = 0.0
    ends = []
    for _ in range(3):
        for place, (spent, taken) in enumerate(zip(host_s, device_s, strict=True)):
            host += spent
            if taken > 0:
                free = max(free, host) + taken + gap_s
            if waits is not None and waits[place]:
                host = max(host, free)
        ends.append(max(host, free))
    return ends[2] - ends[1]


@given(steps_of_two())
@settings(max_examples=300)
def test_two_clocks_are_a_loop_over_ops(given_step):
    host, device, gap, waits = given_step
    walls = step_seconds(host, device, gap_s=gap, meets=() if waits is None else waits)
    for cell in range(len(device)):
        assert walls[cell] == pytest.approx(brute_force_wall(host, device[cell], gap, waits), abs=1e-9)
        taken = device[cell] + gap * (device[cell] > 0)
        clocks = Clocks(host.tolist(), taken.tolist(), meets=() if waits is None else waits.tolist())
        assert walls[cell] == pytest.approx(clocks.steady_s(lambda: clocks.run(range(len(host)))), abs=1e-9)  # noqa: B023


@given(steps_of_two())
def test_a_step_takes_as_long_as_the_slower_of_host_and_device(given_step):
    host, device, gap, _ = given_step
    walls = step_seconds(host, device, gap_s=gap)
    taken = (device + gap * (device > 0)).sum(axis=1)
    assert walls == pytest.approx(np.maximum(host.sum(), taken), abs=1e-9)


@given(steps_of_two())
def test_waiting_for_a_result_makes_no_step_shorter(given_step):
    host, device, gap, waits = given_step
    waiting = step_seconds(host, device, gap_s=gap, meets=() if waits is None else waits)
    assert (waiting >= step_seconds(host, device, gap_s=gap) - 1e-9).all()


def test_a_step_without_ops_takes_no_time():
    assert step_seconds(np.zeros(0), np.zeros((2, 0))).tolist() == [0.0, 0.0]


# --- the host ---

COSTS = {f"{name}.{phase}": Value(cost * 1e-6, "a test")
         for cost, name in enumerate(("view", "plain", "gemm", "conv", "batch-norm"), 1)
         for phase in ("infer", "forward", "backward")}  # fmt: skip
OPTIMIZER = {"optimizer.sgd.tensor": Value(1e-6, ""), "optimizer.sgd.step": Value(5e-6, ""),
             "optimizer.adamw.tensor": Value(3e-6, ""), "optimizer.adamw.step": Value(7e-6, ""),
             "step.train": Value(1e-3, "")}  # fmt: skip


@pytest.mark.parametrize("name", ["resnet18", "gpt2", "transformer"])
@pytest.mark.parametrize("step", ["infer", "train"])
def test_every_op_costs_the_host_a_finite_time(name, step):
    ledger = rooflight.estimate(name, batch=2, step=step, **ZOO[name])
    for costs in (shipped("h200").host, COSTS, {}):
        found = host_seconds(ledger, costs)
        assert found.shape == (len(ledger.ops),)
        assert np.isfinite(found).all() and (found >= 0).all()


def test_classes_of_ops_have_their_own_costs_and_others_that_of_a_plain_one():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 5), nn.Softmax(-1)
    )
    ledger = rooflight.estimate(model, torch.randn(2, 3, 8, 8))
    classes = ["view" if op.kind == "view" else host_class(tasks_of(op)[0]) for op in ledger.ops]
    assert [name for name in classes if name != "view"] == ["conv", "batch-norm", "plain", "gemm", "softmax"]
    found = dict(zip(classes, host_seconds(ledger, COSTS).tolist(), strict=True))
    assert found == pytest.approx(  # the bias of a convolution is added inside it
        {"conv": 5e-6, "batch-norm": 5e-6, "plain": 2e-6, "gemm": 3e-6, "softmax": 2e-6, "view": 1e-6}
    )


def test_every_launch_and_every_call_of_a_module_costs_the_host():
    """Six modules are called: the chain, its four layers, and what is inside the last. A bias is launched too."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Sequential(nn.Linear(144, 5)))
    ledger = rooflight.estimate(model, torch.randn(2, 3, 8, 8))
    more = {"launch.infer": Value(10e-6, ""), "module.infer": Value(100e-6, "")}
    kernels = np.array([2.0 if op.packet == "aten::convolution" else float(op.kind == "compute") for op in ledger.ops])
    plain = host_seconds(ledger, COSTS)
    found = host_seconds(ledger, COSTS | more, kernels=kernels) - plain
    assert found.sum() == pytest.approx(10e-6 * kernels.sum() + 100e-6 * 5)
    assert kernels.sum() == 4 and len(module_entries(ledger)) == len(ledger.ops)
    assert found[0] == pytest.approx(20e-6 + 100e-6)  # the convolution's own call; the model's has no name
    once = host_seconds(ledger, COSTS | more) - plain  # nobody knows better: one kernel for each op
    assert once.sum() == pytest.approx(10e-6 * 3 + 100e-6 * 5)


def test_a_truth_that_python_asks_for_makes_the_host_wait():
    class Asks(nn.Module):
        def forward(self, x):
            torch.all(x > 0)
            return x * torch.any(x > 1)

    step = PreparedTrace(rooflight.estimate(Asks(), torch.randn(4)), None).at(None)
    waits = [op.packet for op, wait in zip(step.ledger.ops, step.waits, strict=True) if wait]
    assert waits == ["aten::all"]  # the other truth is multiplied by


def test_in_a_mixture_every_op_costs_more_and_the_optimizer_does_not():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
    ledger = rooflight.estimate(model, torch.randn(2, 4), step="train", loss="mse", optimizer="sgd")
    mixed = {"mixed.forward": Value(1.5, ""), "mixed.backward": Value(1.25, "")}
    alone, among = (host_seconds(ledger, {**COSTS, **OPTIMIZER, **more}) for more in ({}, mixed))
    alone[0] -= 1e-3
    among[0] -= 1e-3  # what a training step costs beside its ops
    for op, before, after in zip(ledger.ops, alone, among, strict=True):
        factor = {"forward": 1.5, "backward": 1.25}.get(op.phase, 1.0)
        assert after == pytest.approx(before * factor)


def test_sixteen_bits_have_their_own_costs_where_they_were_timed():
    model = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.ReLU()).bfloat16()
    ledger = rooflight.estimate(model, torch.randn(2, 3, 8, 8).bfloat16())
    narrow = {**COSTS, "conv.infer.bf16": Value(9e-6, "")}
    conv, relu = (place for place, op in enumerate(ledger.ops) if op.kind == "compute")
    assert host_seconds(ledger, narrow)[[conv, relu]] == pytest.approx([9e-6, 2e-6])


def test_what_an_op_calls_inside_itself_costs_the_host_half():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).eval()
    ledger = rooflight.estimate(layer, torch.randn(2, 8, 32), target="cuda")
    (fused,) = [op for op in ledger.ops if op.packet == "aten::_transformer_encoder_layer_fwd"]
    first, *others = (COSTS.get(f"{host_class(task)}.infer", COSTS["plain.infer"]).value for task in tasks_of(fused))
    assert len(others) == 8
    assert host_seconds(ledger, COSTS)[fused.index] == pytest.approx(first + sum(others) / 2)


def optimizer_seconds(layers: int, optimizer: str, costs=OPTIMIZER) -> float:
    model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(layers)))
    ledger = rooflight.estimate(model, torch.randn(2, 4), step="train", loss="mse", optimizer=optimizer)
    found = host_seconds(ledger, costs)
    return sum(time_s for op, time_s in zip(ledger.ops, found, strict=True) if op.phase == "optimizer")


def test_an_optimizer_costs_the_host_something_for_every_tensor():
    assert optimizer_seconds(1, "sgd") == pytest.approx((5 + 2) * 1e-6)
    assert optimizer_seconds(4, "sgd") == pytest.approx((5 + 8) * 1e-6)
    assert optimizer_seconds(4, "adamw") == pytest.approx((7 + 24) * 1e-6)


def test_a_training_step_has_a_cost_of_its_own():
    ledger = rooflight.estimate(nn.Linear(4, 4), torch.randn(2, 4), step="train", loss="mse", optimizer="sgd")
    without = {key: value for key, value in OPTIMIZER.items() if key != "step.train"}
    assert host_seconds(ledger, OPTIMIZER).sum() - host_seconds(ledger, without).sum() == pytest.approx(1e-3)


# --- interpolation ---


def field(count: int = 200, noise: float = 1e-9, dimensions: int = 3) -> KrigingField:
    random = np.random.default_rng(1)
    points = random.uniform(0, 10, (count, dimensions))
    return KrigingField(points, np.sin(points).sum(1), 8.0, noise)


def test_a_field_is_what_was_measured_where_it_was_measured():
    known = field()
    found = known.at(known.points)
    same = np.isclose(found.value, known.values, atol=1e-4)
    assert same.mean() >= 0.98  # but for those that are unlike all others around
    assert (found.deviation[same] < 0.01).all()
    assert found.distance == pytest.approx(0, abs=1e-6)
    assert found.nearest[:, 0].tolist() == list(range(len(known.points)))


def test_a_point_unlike_all_others_around_it_counts_as_less_odd():
    calm = field(400)
    values = calm.values.copy()
    values[7] += 50.0
    odd = KrigingField(calm.points, values, calm.reach, calm.noise)
    near = calm.points[[7]] + 0.05
    assert abs(odd.at(near).value[0] - calm.at(near).value[0]) < 10.0


def test_a_field_between_points_is_near_what_it_should_be():
    known = field(4000)
    queries = np.random.default_rng(2).uniform(1, 9, (300, 3))
    found = known.at(queries)
    error = np.abs(found.value - np.sin(queries).sum(1))
    assert error.mean() < 0.15
    assert (error < 4 * found.deviation).mean() > 0.95  # it knows how far it may be off


def test_a_field_far_away_is_finite_and_says_that_it_does_not_know():
    known = field(20)
    direction = np.array([1.0, 1.0, 1.0])
    found = known.at(np.array([5 + distance * direction for distance in (0.0, 5, 20, 100, 1e4, 1e8)]))
    assert np.isfinite(found.value).all() and np.isfinite(found.deviation).all()
    assert (np.diff(found.deviation) >= -1e-9).all()
    assert (np.diff(found.distance) > 0).all()
    assert found.value[-1] == pytest.approx(found.value[-2], abs=0.05)
    assert known.values.min() <= found.value[-1] <= known.values.max()


@pytest.mark.parametrize("count", [1, 2, 23, 24, 25])
def test_a_field_of_few_points_is_a_field(count):
    known = field(count, noise=0.03)
    found = known.at(np.zeros((5, 3)))
    assert np.isfinite(found.value).all()
    assert found.value.shape == (5,)


def test_points_that_lie_on_one_another_are_averaged():
    known = KrigingField(np.zeros((6, 2)), np.array([1.0, 2.0, 3.0, 1.0, 2.0, 3.0]), 8.0, 0.03)
    assert known.at(np.zeros((1, 2))).value == pytest.approx([2.0], abs=1e-6)


def test_a_point_left_out_is_told_by_the_others():
    known = field(300)
    errors = []
    for left_out in range(0, 300, 10):
        others = np.arange(300) != left_out
        rest = KrigingField(known.points[others], known.values[others], known.reach, known.noise)
        found = rest.at(known.points[left_out : left_out + 1])
        assert found.distance[0] > 0
        errors.append(abs(found.value[0] - known.values[left_out]))
    assert np.mean(errors) < known.values.std() / 2


# --- times of tasks ---


@pytest.fixture(scope="module")
def h200() -> CalibratedModel:
    return CalibratedModel(shipped("h200"), speed_of(find("h200")))


@cache
def some_tasks(model: CalibratedModel, each: int = 40) -> list[Task]:
    """Of a hundred thousand points."""
    return [task for points in model.calibration.points
            for task in points.tasks()[:: max(1, len(points.rows) // each)]]  # fmt: skip


def test_times_are_positive_and_cold_ones_no_shorter(h200):
    tasks = some_tasks(h200)
    times = h200.times(tasks)
    for values in (times.warm_s, times.cold_s, times.deviation):
        assert np.isfinite(values).all()
    assert (times.warm_s > 0).all()
    assert (times.cold_s >= times.warm_s).all()
    assert (times.deviation > 0).all() and (times.kernels >= 1).all()
    assert times.distance == pytest.approx(0, abs=1e-4)  # they are the points themselves


def test_times_of_calibrated_tasks_are_about_those_that_were_measured(h200):
    for points in h200.calibration.points:
        some = slice(None, None, max(1, len(points.rows) // 50))
        measured = np.array([row[-3] for row in points.rows[some]]) * 1e-9
        found = h200.times(points.tasks()[some]).warm_s
        assert np.median(np.abs(np.log(found / measured))) < 0.15, points.family


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_more_work_takes_longer_on_the_average(h200, family):
    tasks = [task for task in some_tasks(h200) if task.family == family]
    if "elements" in FAMILIES[family]:
        scaled = ("elements", "bytes_read", "bytes_written", "largest")
    else:
        second = family.startswith(("gemm", "reduce", "scan", "recurrent-"))
        scaled = (FAMILIES[family][1 if second else 0],)  # type: ignore[assignment]
    names_ = (*FAMILIES[family], *OUTPUT)  # convolutions may tell the sides of theirs
    larger = [
        Task(family, task.precision, tuple(8 * value if name in scaled else value
                                           for name, value in zip(names_, task.numbers, strict=False)))
        for task in tasks
    ]  # fmt: skip
    ratio = h200.times(larger).warm_s / h200.times(tasks).warm_s
    assert np.exp(np.log(ratio).mean()) > 1.1


MATRIX = ("gemm", "conv-", "conv3d-", "attention-", "recurrent-")


def test_no_matrix_work_is_faster_than_the_peak(h200):
    tasks = [task for task in some_tasks(h200, 100) if task.family.startswith(MATRIX)]
    for device in ("h200", "a100", "v100", "t4", "k80", "mi300x", "b200", "rtx-4090"):
        target = find(device)
        one = predictor(target, "transferred") if device != "h200" else predictor(target)
        here = [task for task in tasks if target.peak(retargeted(task, target).precision)]
        times = one.task_times(here)
        for task, warm_s, cold_s in zip(here, times.warm_s, times.cold_s, strict=True):
            family, precision, numbers = retargeted(task, target)
            least = least_seconds(family, precision, np.array([numbers], dtype=float), speed_of(target))[0]
            assert cold_s >= warm_s >= least * (1 - 1e-9), (device, task)
    assert all(least_seconds(family, "fp32", np.ones((1, len(names_))), h200.speed)[0] == 0
               for family, names_ in FAMILIES.items() if not family.startswith(MATRIX))  # fmt: skip


@pytest.mark.parametrize("stride", [1, 2])
def test_the_gradients_of_a_convolution_have_the_flops_of_the_formulas(stride):
    model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 16, 3, stride=stride, padding=1, groups=2, bias=False))
    ledger = rooflight.estimate(model, torch.randn(2, 3, 12, 12), step="train", loss="mse", optimizer="sgd")
    for op in ledger.ops:
        if op.module == "1" and "convolution" in op.name:
            found = sum(float(matrix_flops(t.family, columns(t.family, np.array([t.numbers], dtype=float)))[0])
                        for t in tasks_of(op))  # fmt: skip
            assert found == op.cost.flops


def test_attention_and_products_have_the_flops_of_the_formulas():
    ledger = rooflight.estimate("gpt2", batch=2, step="train", dtype="bf16", **ZOO["gpt2"])
    for op in ledger.ops:
        for task in tasks_of(op):
            if task.family.startswith(("gemm", "attention")):
                found = float(matrix_flops(task.family, columns(task.family, np.array([task.numbers], dtype=float)))[0])
                assert found == pytest.approx(op.cost.flops_causal, rel=0.03)  # half, without the diagonal


def test_a_family_that_nobody_timed_is_told_by_the_baseline_and_counts_as_outside(h200):
    few = msgspec.structs.replace(
        h200.calibration, points=tuple(p for p in h200.calibration.points if p.family == "gemm")
    )
    task = Task("reduce", "fp32", (1000, 1000, 1))
    for calibration in (few, msgspec.structs.replace(few, points=())):
        times = CalibratedModel(calibration, h200.speed).times([task])
        base = baseline_seconds(*task[:2], np.array([task.numbers], dtype=float), h200.speed)
        assert times.warm_s == pytest.approx(base)
        assert times.distance[0] == math.inf
        assert times.deviation[0] > 0.5
    assert CalibratedModel(msgspec.structs.replace(few, points=()), h200.speed).shortest_s == LAUNCH_S


def test_precisions_and_kernels_that_were_not_timed_are_told_by_their_like(h200):
    def timed(family, precision, numbers):
        times = h200.times([Task(family, precision, numbers)])
        assert np.isfinite(times.warm_s).all() and times.warm_s[0] > 0
        return times.warm_s[0]

    gemm = (1, 4096, 4096, 4096, 0, 1, 0)
    assert timed("gemm", "fp64", gemm) > 0
    assert timed("conv-forward", "fp16", (32, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 0)) > 0
    assert timed("attention-cudnn-forward", "fp16", (8, 12, 12, 1024, 1024, 64, 1, 0)) > 0
    assert timed("attention-flash-backward", "fp32", (8, 12, 12, 1024, 1024, 64, 1, 0)) > 0
    assert timed("batch-norm-cudnn-train", "bf16", (32, 64, 3136, 0)) > 0


# --- the baseline, by which devices are carried over ---

BIG = {"gemm": (1, 16384, 16384, 16384, 0, 1, 0), "plain": (10**8, 4 * 10**8, 4 * 10**8)}


def one(family, precision, speed):
    return baseline_seconds(family, precision, np.array([BIG[family]], dtype=float), speed)[0]


def test_large_products_follow_the_peak_and_large_copies_the_bandwidth():
    speed = speed_of(find("h200"))
    double = replace(speed, peaks={key: 2 * value for key, value in speed.peaks.items()})
    assert one("gemm", "bf16", speed) / one("gemm", "bf16", double) == pytest.approx(2, rel=0.02)
    assert one("plain", "fp32", double) == one("plain", "fp32", speed)
    wide = replace(speed, bandwidth=2 * speed.bandwidth, cache_bandwidth=2 * speed.cache_bandwidth)
    assert one("plain", "fp32", speed) / one("plain", "fp32", wide) == pytest.approx(2, rel=0.02)
    assert one("gemm", "bf16", wide) == one("gemm", "bf16", speed)


def test_few_tiles_do_not_fill_more_units():
    """A product of one tile takes no less time on a device with more units of the same speed."""
    speed = speed_of(find("h200"))
    more = replace(speed, units=2 * speed.units, peaks={key: 2 * value for key, value in speed.peaks.items()})
    small = np.array([[1, 128, 128, 65536, 0, 0, 0]], dtype=float)
    large = np.array([BIG["gemm"]], dtype=float)
    gain = [
        (baseline_seconds("gemm", "bf16", n, speed) / baseline_seconds("gemm", "bf16", n, more))[0]
        for n in (small, large)
    ]
    assert gain[0] < gain[1] == pytest.approx(2, rel=0.02)


@given(st.floats(1, 1e10), st.floats(1.01, 100))
def test_more_bytes_take_longer_and_those_of_a_cache_less(nbytes, factor):
    speed = speed_of(find("h200"))
    few, many = memory_seconds(np.array([nbytes, nbytes * factor]), speed)
    assert few < many
    assert nbytes / speed.cache_bandwidth <= few * (1 + 1e-9)
    assert few <= nbytes / speed.bandwidth * (1 + 1e-9)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_features_are_finite_for_the_smallest_task(family):
    numbers = np.ones((1, len(FAMILIES[family])))
    for precision in ("fp32", "bf16"):
        assert np.isfinite(features(family, precision, numbers)).all()
        assert np.isfinite(baseline_seconds(family, precision, numbers, speed_of(find("a100")))).all()


# --- tiers ---

GPUS = [name for name in names() if find(name).is_cuda]
_CONV = (8, 64, 56, 56, 64, 3, 3, 1, 1, 1, 1, 0)
_ATTENTION = (8, 12, 12, 512, 512, 64, 1, 0)


def test_tf32_is_fp32_where_there_is_none():
    task = Task("conv-forward", "tf32", _CONV)
    assert retargeted(task, find("v100")).precision == "fp32"
    assert retargeted(task, find("t4")).precision == "fp32"
    assert retargeted(task, find("a100")) == task
    assert retargeted(Task("gemm", "bf16", (1, 8, 8, 8, 0, 0, 0)), find("a100")).precision == "bf16"


@pytest.mark.parametrize(
    ("device", "kernel"), [("h200", "cudnn"), ("h100", "cudnn"), ("b200", "cudnn"), ("a100", "flash"), ("l4", "flash"),
                           ("rtx-3090", "flash"), ("v100", "efficient"), ("t4", "efficient"), ("p100", "efficient")],
)  # fmt: skip
def test_attention_runs_in_the_kernel_that_the_device_has(device, kernel):
    for way in ("forward", "backward"):
        task = Task(f"attention-cudnn-{way}", "fp16", _ATTENTION)
        assert retargeted(task, find(device)).family == f"attention-{kernel}-{way}"
    fp32 = Task("attention-efficient-forward", "fp32", _ATTENTION)
    assert retargeted(fp32, find(device)) == fp32


def test_tiers_are_named():
    assert predictor(find("h200")).tier == "calibrated"
    carried, public = predictor(find("rtx-2080-ti")), predictor(find("a100"))
    assert carried.tier == "transferred"
    assert public.tier == "published"
    assert "NeuSight" in public.source and "aiconfigurator" in public.source
    assert "h200" in carried.source and "h200" in public.source
    assert predictor(find("a100"), "transferred").tier == "transferred"
    with pytest.raises(BadInput, match="nobody has published single ops of rtx-2080-ti"):
        predictor(find("rtx-2080-ti"), "published")
    assert predictor(find("h200"), "transferred").tier == "transferred"
    assert predictor(find("a100"), calibration=shipped("h200")).tier == "calibrated"
    with pytest.raises(BadInput, match="there is no calibration of a100"):
        predictor(find("a100"), "calibrated")
    with pytest.raises(BadInput, match="cannot be transferred to a CPU"):
        predictor(find("epyc-9654"))


def test_a_device_carried_over_to_itself_is_itself(h200):
    tasks = some_tasks(h200, 5)
    own, carried = (predictor(find("h200"), tier).task_times(tasks) for tier in (None, "transferred"))
    assert carried.warm_s == pytest.approx(own.warm_s)


@pytest.mark.parametrize("tier", ["calibrated", "published", "transferred", "spec"])
def test_every_prediction_says_by_which_tier_it_was_found(tier):
    device = "a100" if tier in ("published", "transferred") else "h200"
    (found,) = predict("resnet18", on=device, batch=4, step="train", tier=tier, advice=False)
    assert found.tier == tier
    assert found.source
    assert found.time_interval_s.low <= found.time_s <= found.time_interval_s.high
    assert found.gpu_time_interval_s.low <= found.gpu_time_s <= found.gpu_time_interval_s.high
    assert sum(found.op_times_s) == pytest.approx(found.gpu_time_s)
    assert sum(found.phases.values()) == pytest.approx(found.gpu_time_s)
    assert 0 < found.percent_of_roof <= 100
    assert len(found.ops) == 10
    assert (found.host_time_s is None) == (tier == "spec")


def test_the_constant_of_the_spec_tier_is_what_its_times_are_divided_by():
    half, whole = (predict("resnet18", on="a100", batch=4, ppp=ppp)[0] for ppp in (0.5, 1.0))
    assert half.tier == whole.tier == "spec"
    assert half.time_s == pytest.approx(2 * whole.time_s)
    assert predict("resnet18", on="a100", batch=4, tier="spec")[0].time_s > whole.time_s
    with pytest.raises(BadInput, match="spec tier"):
        predict("resnet18", on="a100", batch=4, tier="calibrated", ppp=0.5)


@pytest.mark.parametrize("name", ["resnet18", "gpt2"])
def test_every_gpu_of_the_database_can_be_carried_over_to(name):
    for dtype in ("fp32", "fp16", "bf16"):
        devices = [device for device in GPUS if find(device).peak(dtype) is not None]
        found = predict(name, on=devices, batch=4, step="train", dtype=dtype, advice=False, **ZOO[name])
        assert [one.device for one in found] == devices
        for one_ in found:
            assert one_.tier in ({"calibrated"} if one_.device == "h200" else {"published", "transferred"})
            assert 0 < one_.gpu_time_s < 100 and one_.time_s >= one_.gpu_time_s * (1 - 1e-9)
            assert one_.throughput == pytest.approx(4 / one_.time_s)
    times = {one_.device: one_.gpu_time_s for one_ in predict(name, on=GPUS, batch=64, advice=False, **ZOO[name])}
    assert times["h100-sxm"] < times["a100-sxm-80"] < times["v100-sxm2-16"] < times["k80"]


def test_a_precision_that_the_device_lacks_is_one_clear_line():
    with pytest.raises(BadInput, match=r"V100.* has no bf16: it has .*choose with dtype"):
        predict("resnet18", on="v100", batch=1, dtype="bf16")
    with pytest.raises(BadInput, match="has no fp16"):
        check_precision("fp16", [find("k80")])
    with pytest.raises(BadInput, match=r"V100.*K80.*or leave v100-sxm2-16,k80 out of on"):
        predict("resnet18", on=["a100", "v100", "k80"], batch=1, dtype="bf16")


def test_fused_attention_runs_in_the_type_of_its_inputs_forward_and_backward():
    """Its row sums are fp32; counted as such, long sequences had an MFU above 1."""
    found = predict("gpt2", on="h200", batch=1, seq=8192, step="train", dtype="bf16",
                    overrides={"n_positions": "8192", "n_layer": "2"}, advice=False)[0]  # fmt: skip
    assert 0.05 < found.mfu < 0.9
    attention = [one for one in found.ops if "attention" in one.name]
    assert attention and {one.precision for one in attention} == {"bf16"}


def test_a_prediction_is_found_by_any_name_of_its_device():
    found = predict("mnist-cnn", on=["a100", "h200"], batch=2, advice=False)
    assert found.at("a100") is found[0] is found.at("a100-sxm-80", 2)
    with pytest.raises(KeyError, match="there are a100-sxm-80 at batch 2"):
        found.at("a100", 3)


def test_what_a_devices_file_leaves_out_is_said(tmp_path):
    described = (resources.files("rooflight.hardware") / "specs" / "l40s.toml").read_text().splitlines()
    file = tmp_path / "mine.toml"
    file.write_text("\n".join(line.replace('"l40s"', '"mine"') for line in described
                              if not line.startswith(("l2_bytes", "aliases", "recognised_as"))))  # fmt: skip
    notes = note_texts(predict("mnist-cnn", on=str(file), batch=2, advice=False).notes)
    assert any("nothing tells its cache (l2_bytes)" in note for note in notes)


def test_a_busy_machine_is_told_from_a_quiet_one():
    assert waited_much("48% of the time")
    assert not waited_much("3% of the time")
    assert not waited_much("")


def test_an_interval_of_a_device_of_another_kind_is_wider():
    widths = [one.gpu_time_interval_s.high / one.gpu_time_s - 1 for one in
              predict("resnet18", on=["h200", "h100", "a100"], batch=16, advice=False)]  # fmt: skip
    assert widths == sorted(widths)


# --- advice ---


@pytest.fixture(scope="module")
def trained():
    ledger = rooflight.estimate("resnet18", batch=PRIME, step="train")
    return PreparedTrace(ledger, PRIME)


def advice_for(step, device="h200", *, graphs=False, **options):
    one_ = predictor(find(device), **options)
    (cell,) = device_runs(changes.as_graph(step).step if graphs else step, [one_])
    return cell, advising.predicted_advice(cell, lambda _: True)


def test_what_helps_is_listed_by_how_much(trained):
    cell, found = advice_for(trained.at(2))
    assert found
    gains = [one_.gain for one_ in found if one_.samples == 1]
    assert gains == sorted(gains, reverse=True) and [one_.key for one_ in found[len(gains) :]] == ["batch"]
    assert all(one_.gain >= metrics.WORTH for one_ in found)
    assert len({one_.change for one_ in found}) == len(found)
    graphs = next(one_ for one_ in found if one_.key == "graph")
    graph = changes.as_graph(trained.at(2)).step
    assert graphs.time_s == pytest.approx(device_runs(graph, [predictor(find("h200"))])[0].wall_s)
    assert graphs.gain == pytest.approx(cell.wall_s / graphs.time_s - 1)


def test_every_change_is_another_prediction(trained):
    """The time that is given is that of the changed step, and each change changes the tasks it should."""
    step = trained.at(64)
    one_ = predictor(find("h200"))
    (cell,) = device_runs(step, [one_])
    possible = {change.key: change.step for change in changes.changes_of(step, one_.device, one_.calibration)}
    assert {*possible} >= {"bf16", "channels_last", "fused", "compile", "graph"}
    for key, other in possible.items():
        (after,) = device_runs(other, [one_])
        assert after.wall_s > 0
        assert after.wall_s != cell.wall_s or after.gpu_s != cell.gpu_s, key
    for told in advising.predicted_advice(cell):
        other = possible[told.key.removeprefix("graph + ")]
        other = changes.as_graph(other).step if told.key.startswith("graph + ") else other
        assert told.time_s == pytest.approx(device_runs(other, [one_])[0].wall_s)


def test_changed_tasks_are_those_of_the_model_that_was_changed():
    """bf16 as predicted from the fp32 step has the products and convolutions of the bf16 step."""

    def matrix(step):
        return sorted(task for task in step.tasks if task.family.startswith(("gemm", "conv")))

    steps = {dtype: PreparedTrace(rooflight.estimate("resnet18", batch=4, step="train", dtype=dtype), None).at(None)
             for dtype in ("fp32", "bf16")}  # fmt: skip
    changed = changes.in_bf16(steps["fp32"])
    assert matrix(changed) == matrix(steps["bf16"])
    fused = changes.fused(steps["fp32"])
    assert [task.family for task in fused.tasks if "fused" in task.family or task.family == "foreach"] == ["fused-sgd"]
    assert all(task.numbers[-1] for task in changes.in_channels_last(changed).tasks if task.family.startswith("conv"))


@pytest.mark.parametrize("device", ["h200", "a100"])
def test_bf16_is_what_asking_for_it_predicts(device):
    """On an A100 attention in bf16 is another kernel than on an H200, which also leaves other copies to be made."""
    step = {"batch": 64, "step": "train", "seq": 128, "on": device}
    (plain,) = predict("transformer", **step)
    (told,) = [one_ for one_ in plain.advice if one_.options == "--dtype bf16"]
    (asked,) = predict("transformer", **step, dtype="bf16", advice=False)
    assert told.time_s == asked.time_s and told.changed_kernel_time_s == asked.gpu_time_s
    assert not told.assumption


def test_advice_for_a_live_module_is_in_its_callers_words():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Tanh(), nn.Linear(512, 512))
    (found,) = predict(model, torch.randn(16384, 512), on="h200")
    told = {one_.key: one_ for one_ in found.advice}
    assert told["TF32"].options == "tf32=True" and told["compile"].options == "compile=True"
    assert told["bf16"].options == "model.bfloat16()" and "predicted from this trace" in told["bf16"].assumption
    assert told["graph + bf16"].options == "graphs=True, model.bfloat16()"


def test_a_graph_is_not_added_where_the_gpu_is_the_limit_anyway():
    model = nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Tanh(), nn.Linear(512, 512))
    (found,) = predict(model, torch.randn(65536, 512), on="h200")
    told = {one_.key for one_ in found.advice}
    assert "bf16" in told and not any("graph" in key for key in told)


def test_a_model_that_cannot_run_in_bf16_is_not_told_to(tmp_path, monkeypatch):
    (tmp_path / "strict.py").write_text(
        "import torch\nfrom torch import nn\n\nclass Strict(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(512, 512)\n\n"
        "    def forward(self, x):\n        if x.dtype != torch.float32:\n            raise ValueError('fp32 only')\n"
        "        return self.fc(x)\n"
    )
    monkeypatch.chdir(tmp_path)
    (found,) = predict("strict.py:Strict", on="h200", batch=8192, input_shape="512")
    assert found.advice and not any("bf16" in one_.key for one_ in found.advice)


def test_what_is_done_already_is_not_advised(trained):
    _, found = advice_for(trained.at(2), graphs=True)
    assert not any("graph" in one_.change for one_ in found)
    half = PreparedTrace(rooflight.estimate("resnet18", batch=2, step="train", dtype="bf16"), None).at(None)
    _, found = advice_for(half)
    assert not any("bf16" in one_.change for one_ in found)
    infer = PreparedTrace(rooflight.estimate("resnet18", batch=2), None).at(None)
    _, found = advice_for(infer)
    assert not any("fused" in one_.change or "batch" in one_.change for one_ in found)


def test_what_the_device_lacks_is_not_advised(trained):
    for device, missing in (("v100", ("bf16", "TF32")), ("t4", ("bf16", "TF32")), ("k80", ("bf16", "TF32"))):
        _, found = advice_for(trained.at(64), device)
        assert not any(word in one_.change for one_ in found for word in missing)


def test_nothing_that_only_a_gpu_has_is_advised_to_a_cpu(h200):
    """With what a CPU's calibration has: fp32 products, and memory in two widths."""
    points = tuple(
        TimedPoints(p.family, p.precision, p.rows[:30]) for p in h200.calibration.points
        if "cudnn" not in p.family and "fused" not in p.family
        and (p.precision == "fp32" or not p.family.startswith(MATRIX))
    )  # fmt: skip
    calibration: Calibration = msgspec.structs.replace(h200.calibration, points=points)
    ledger: Ledger = rooflight.estimate("resnet18", batch=2, step="train", target="cpu")
    _, found = advice_for(PreparedTrace(ledger, None).at(None), "xeon-8480", calibration=calibration)
    assert not any(word in one_.change for one_ in found for word in ("graph", "fused", "TF32", "bf16"))


def test_a_model_that_computes_nothing_takes_no_time():
    (found,) = predict(nn.Flatten(), torch.randn(2, 3, 4), on="h200")
    assert found.gpu_time_s == 0
    assert found.ops == found.advice == ()


def test_a_recurrent_network_is_predicted_too():
    """Kernels that calibration has no chapter for."""
    (found,) = predict(First(nn.LSTM(16, 32, 2)), torch.randn(5, 4, 16), on="h200", step="train")
    assert found.time_s > 0


def test_a_compiled_step_says_that_its_memory_and_kernels_are_those_of_eager_mode():
    eager, made = (predict("mnist-cnn", batch=4, step="train", advice=False, compile=how) for how in (False, True))
    assert (made[0].kernels, made[0].memory) == (eager[0].kernels, eager[0].memory)
    assert any("memory and the number of kernels are those of eager mode" in note for note in note_texts(made.notes))


# --- one question of many to a trace ---


@pytest.mark.parametrize(
    ("how", "asked", "says"),
    [
        ({"graphs": True}, {"tier": "spec"}, "the spec tier knows no host"),
        ({"compile": True}, {"tier": "spec"}, "--compile changes those of a GPU"),
        ({}, {"micro_batches": 2}, "--micro-batches goes with several GPUs"),
        ({}, {"layout": Layout(data=2), "roofline": True}, "a roofline is of one device"),
    ],
)
def test_what_does_not_go_together_is_refused_of_shared_traces_too(how, asked, says):
    """As a report asks: it has no command line that would have refused it before."""
    shared = StepRequest(Traces("mnist-cnn", **StepSpec(model="mnist-cnn").build), TraceOptions(**how))
    with pytest.raises(BadInput) as told:
        Question(shared, [find("h200")], [2], **asked).answer()
    assert says in told.value.on_command_line


NEW = (
    "conv3d-forward",
    "recurrent-forward",
    "scan",
    "nll-forward",
    "max-pool3d-forward",
    "reduce-norm",
    "reduce-index",
    "index",
    "gather",
    "index-put",
    "index-add",
    "scatter-add",
)


@pytest.mark.parametrize("family", NEW)
def test_a_calibration_of_before_a_family_was_timed_answers_and_is_unsure(h200, family):
    """Those of users are older than this rooflight."""
    points = tuple(some for some in h200.calibration.points if some.family != family)
    older = CalibratedModel(msgspec.structs.replace(h200.calibration, points=points), h200.speed)
    tasks = [task for task in some_tasks(h200) if task.family == family]
    times = older.times(tasks)
    assert (times.deviation >= 0.7).all() and np.isinf(times.distance).all() and not older.has(family, "bf16")
    assert h200.has(family, "bf16")
    # within a factor of ten of what was measured, in the median
    assert abs(float(np.median(np.log(times.warm_s / h200.times(tasks).warm_s)))) < np.log(10)


def test_recurrent_layers_that_nobody_timed_are_launched_step_by_step_and_called_a_guess(h200):
    points = tuple(some for some in h200.calibration.points if not some.family.startswith("recurrent"))
    older = msgspec.structs.replace(h200.calibration, points=points)
    found = predict(
        nn.LSTM(64, 64).requires_grad_(False), torch.randn(8, 32, 64), on="h200", calibration=older, advice=False
    )
    assert [note.rpartition(": ")[2] for note in note_texts(found.notes) if "a guess" in note] == ["_cudnn_rnn"]
    assert found[0].kernels >= 2 * 8


def test_a_likelihood_goes_with_rows_and_clocks_not_with_the_memory():
    task = Task("nll-forward", "fp32", (8192, 32000))
    seconds = {
        name: predictor(find(name), None).task_times([task]).cold_s[0] for name in ("h200", "l4", "t4", "rtx-4090")
    }
    assert max(seconds.values()) < 3 * seconds["h200"]


def test_two_changes_together_are_advised_only_where_that_is_better_than_either():
    """A graph costs something to begin, which a step that the GPU bounds does not win back."""
    for model, batch in (("resnet18", 1), ("resnet50", 256), ("mnist-cnn", 4096)):
        (row,) = predict(model, on="h200", batch=batch)
        gains = {advice.change: advice.gain for advice in row.advice}
        for change, gain in gains.items():
            first, _, second = change.partition(", and ")
            if second:
                assert gain > max(gains.get(first, 0.0), gains.get(second, 0.0)), change
