"""A staged step: every run of it is the same, watched or plain, and the model is as it was afterwards."""

from __future__ import annotations

import random
from functools import partial

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import rooflight
from rooflight.errors import BadInput, TraceFailed
from rooflight.models import build
from rooflight.models.resolve import given_workload, live_workload
from rooflight.trace import TraceOptions
from rooflight.trace.stage import staged
from rooflight.trace.tensor_values import RandomState, SavedValues
from tests.fixtures.photograph import assert_same, photograph

CPU = TraceOptions(target="cpu", on="cpu")


class Noisy(nn.Module):
    """Random numbers, statistics that move, a hook of its own, and weights that are shared."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.calls = 0
        self.history: list[int] = []

    def forward(self, x):
        self.calls += 1
        self.history.append(self.calls)
        x = self.norm(F.dropout(self.first(x), 0.5, self.training))
        return self.second(x) + random.random() + torch.rand(8) + float(numpy.random.rand())


def stage_of(model, *inputs, step="infer", **options):
    workload = live_workload(model, inputs, {}, step=step)
    return staged(workload, TraceOptions(target="cpu", on="cpu", **options))


by_name = partial(build, batch=2, device="cpu")


# --- observers ---


class Watch:
    def __init__(self):
        self.seen = []

    def before(self, index):
        self.seen.append(("before", index))

    def after(self, index):
        self.seen.append(("after", index))


@pytest.mark.parametrize("step", ["infer", "train"])
def test_an_observer_is_told_of_every_op_in_order(step):
    watch = Watch()
    with staged(by_name("mnist-cnn", step=step), CPU) as stage:
        ops = stage.record(watch).ops
    assert [op.index for op in ops] == list(range(len(ops)))
    assert watch.seen == [(what, index) for index in range(len(ops)) for what in ("before", "after")]
    assert {op.phase for op in ops} == ({"forward"} if step == "infer" else {"forward", "backward", "optimizer"})


def test_an_observer_is_told_of_the_end_of_an_op_that_raises():
    class Bad(nn.Module):
        def forward(self, x):
            return torch.linalg.cholesky(x - 1)  # not positive

    watch = Watch()
    with stage_of(Bad(), torch.zeros(2, 2)) as stage, pytest.raises(TraceFailed, match=r"test_stage\.py.*cholesky"):
        stage.record(watch)
    # The subtraction, the factorisation, and the check of its result, which raises.
    assert watch.seen == [(what, index) for index in range(3) for what in ("before", "after")]


# --- every run is the same ---


@pytest.mark.parametrize("step", ["infer", "train"])
def test_every_run_after_putting_back_gives_the_same_bits(step):
    torch.manual_seed(0)
    with stage_of(Noisy(), torch.randn(4, 8), step=step) as stage:
        stage.keep()
        plain = [stage.run().detach().clone()]
        moved = [tensor.detach().clone() for tensor in stage.model.parameters()]
        for _ in range(3):
            stage.put_back()
            plain.append(stage.run().detach().clone())
        assert all(torch.equal(plain[0], other) for other in plain)
        assert_same(moved, list(stage.model.parameters()))  # the step's effect is the same as well
        stage.put_back()
        first = stage.record().ops
        stage.put_back()
        again = stage.record().ops
    assert [op.key for op in first] == [op.key for op in again]
    assert len({op.key for op in first}) == len(first)


class Drops(nn.Module):
    """Draws which layers to run, by all the generators there are, and counts its steps."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
        self.steps, self.ran = 0, []

    def forward(self, x):
        self.steps += 1
        drawn = [random.random(), float(numpy.random.rand()), *torch.rand(3).tolist(), self.steps % 2]
        ran = [number for number, value in enumerate(drawn) if value > 0.5]
        RAN.append(ran)
        for number in ran:
            x = self.layers[number](x)
        return x


RAN: list[list[int]] = []


def test_a_step_that_draws_its_layers_draws_the_same_again_without_touching_values():
    RAN.clear()
    with stage_of(Drops(), torch.randn(4, 8), step="train", loss="sum") as stage:
        stage.keep()
        for _ in range(4):
            values = [parameter.detach().clone() for parameter in stage.model.parameters()]
            stage.put_choices_back()
            assert all(map(torch.equal, values, stage.model.parameters()))
            stage.run()
        for _ in range(6):
            stage.run()
    assert RAN[0] == RAN[1] == RAN[2] == RAN[3]
    assert any(ran != RAN[0] for ran in RAN[4:])


@pytest.mark.parametrize(("step", "copies"), [("infer", 1), ("train", 3)])
def test_values_are_kept_once(step, copies):
    """With Adam's two states beside the weights in training."""
    model, x = nn.Sequential(nn.Linear(64, 64, bias=False), nn.BatchNorm1d(64, affine=False)), torch.randn(4, 64)
    with stage_of(model, x, step=step, optimizer="adam", loss="sum") as stage:
        stage.keep()
        weights, others = 64 * 64 * 4, 2 * 64 * 4 + 8 + x.nbytes
        assert copies * weights + others <= stage.kept_bytes <= copies * weights + others + 64


def test_a_graph_from_before_goes_backward_afterwards():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    loss = (model(x) @ model.weight).sum()
    versions = [parameter._version for parameter in model.parameters()]
    rooflight.measure(model, x, step="train", loss="mse", repeat=1, device="cpu")
    assert [parameter._version for parameter in model.parameters()] == versions
    loss.backward()
    assert model.weight.grad is not None


def test_without_putting_back_runs_differ():
    """What the test above proves is not that nothing changes."""
    torch.manual_seed(0)
    with stage_of(Noisy(), torch.randn(4, 8), step="train") as stage:
        stage.keep()
        assert not torch.equal(stage.run(), stage.run())


def test_a_watched_run_computes_what_a_plain_one_does():
    torch.manual_seed(0)
    model = Noisy().eval()
    x = torch.randn(4, 8)
    state = torch.get_rng_state(), random.getstate(), numpy.random.get_state()
    with torch.no_grad():
        expected = model(x)
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    numpy.random.set_state(state[2])
    with stage_of(model, x) as stage:
        stage.keep()
        assert torch.equal(stage.run(), expected)
        found = []
        stage.put_back()
        stage.call = stage.workload.model
        hook = stage.model.register_forward_hook(lambda module, inputs, output: found.append(output.clone()))
        stage.record(Watch())
        hook.remove()
    assert torch.equal(found[0], expected)


def test_the_optimizer_really_steps_and_is_undone():
    model = nn.Linear(4, 4)
    before = model.weight.detach().clone()
    with stage_of(model, torch.randn(2, 4), step="train", optimizer="adamw") as stage:
        stage.keep()
        kept = model.weight.detach().clone()
        state = stage.optimizer.state[model.weight]
        assert state["step"] == 1  # the reported step is the second one
        stage.run()
        assert state["step"] == 2 and not torch.equal(model.weight, kept)
        assert state["exp_avg"].abs().sum() > 0
        stage.put_back()
        assert state["step"] == 1 and torch.equal(model.weight, kept)
        assert state["exp_avg"].abs().sum() == 0
    assert torch.equal(model.weight, before) and model.weight.grad is None


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_live_model_is_given_back_as_it_was(step, mode):
    torch.manual_seed(0)
    model = Noisy()
    model(torch.randn(4, 8)).sum().backward()  # gradients and statistics that are not those of a new model
    model.train(mode == "train")
    model.norm.eval()  # a frozen part
    model.first.register_forward_hook(lambda *_: None)
    before = photograph(model)
    calls, history = model.calls, list(model.history)
    x = torch.randn(4, 8)
    before["random"] = photograph(model)["random"]
    given = x.clone()
    with stage_of(model, x, step=step) as stage:
        stage.keep()
        stage.run()
        stage.record()
    assert_same(photograph(model), before)
    assert (model.calls, model.history) == (calls, history)
    assert torch.equal(x, given)


@pytest.mark.parametrize("error", [ValueError("boom"), KeyboardInterrupt()])
def test_a_step_that_fails_leaves_the_model_as_it_was(error):
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(8)

        def forward(self, x):
            y = self.norm(x) * torch.rand(8)
            self.extra = y
            raise error

    model = Fails().eval()
    before = photograph(model)
    x = torch.randn(4, 8)
    before["random"] = photograph(model)["random"]
    wanted = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else TraceFailed

    def run():
        with stage_of(model, x, step="train") as stage:
            stage.keep()
            stage.run()

    with pytest.raises(wanted):
        run()
    assert_same(photograph(model), before)
    assert not hasattr(model, "extra")


# --- rows are those of the estimate ---


@pytest.mark.parametrize(("name", "options"), [
    ("mnist-cnn", {"step": "train"}), ("mnist-cnn", {}), ("resnet18", {"batch": 1}),
    ("transformer", {"step": "train", "seq": 6}), ("distilbert", {"seq": 8}),
])  # fmt: skip
def test_real_ops_have_the_keys_of_the_estimate(name, options):
    """The join of estimate and measurement: the same rows from tensors without data and from the real step."""
    with staged(by_name(name, **options), CPU) as stage:
        real = stage.record().ops
    given = {"batch": 2} | options
    estimated = rooflight.estimate(name, target="cpu", **given).ops
    assert [op.key for op in real] == [op.key for op in estimated]
    # Further outputs are what a kernel keeps for itself, such as the statistics of a batch norm.
    assert [op.outputs[0].shape for op in real if op.outputs] == [op.outputs[0].shape for op in estimated if op.outputs]


def test_a_cache_is_fresh_in_every_run():
    with staged(by_name("gpt2", step="decode", past=4, overrides={"n_layer": "2"}), CPU) as stage:
        stage.keep()
        runs = []
        for _ in range(3):
            stage.put_back()
            runs.append([(op.key, [t.shape for t in op.outputs]) for op in stage.record().ops])
            stage.run()
    assert runs[0] == runs[1] == runs[2]


# --- the values that are kept ---


def test_kept_values_are_put_back_in_place():
    tensors = [torch.randn(4, 4), torch.arange(4), nn.Parameter(torch.randn(3)), torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)]  # fmt: skip
    copies, places = [tensor.detach().clone() for tensor in tensors], [tensor.data_ptr() for tensor in tensors]
    kept = SavedValues([*tensors, tensors[0]])
    for _ in range(2):
        with torch.no_grad():
            for tensor in tensors:
                tensor.add_(1)
        kept.restore()
        assert all(torch.equal(tensor, copy) for tensor, copy in zip(tensors, copies, strict=True))
    assert [tensor.data_ptr() for tensor in tensors] == places
    assert tensors[3].is_contiguous(memory_format=torch.channels_last)


def test_what_did_not_change_is_not_written():
    still, moved = torch.zeros(2), torch.zeros(2)
    kept = SavedValues([still, moved])
    moved.add_(1)
    version = still._version
    kept.restore()
    assert still._version == version and moved.sum() == 0
    still.data.add_(1)  # which torch does not count
    kept.restore()
    assert still.tolist() == [1, 1]
    kept.restore(everything=True)
    assert still.tolist() == [0, 0]


def test_kept_values_leave_inference_tensors_alone():
    with torch.inference_mode():
        tensor = torch.zeros(2)
    SavedValues([tensor]).restore(everything=True)
    assert tensor.tolist() == [0, 0]


def test_kept_values_of_a_view_and_its_base():
    base = torch.arange(6.0)
    view = base[2:4]
    kept = SavedValues([base, view])
    view.mul_(10)
    kept.restore()
    assert base.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_buffer_whose_elements_share_memory():
    class Masked(nn.Module):
        mask: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 8)
            self.register_buffer("mask", torch.ones(1, 8).expand(4, 8))

        def forward(self, x):
            return self.linear(x) * self.mask

    model = Masked()
    with stage_of(model, torch.randn(4, 8)) as stage:
        stage.keep()
        stage.run()
    assert model.mask.stride() == (0, 1) and torch.equal(model.mask, torch.ones(4, 8))


class Counting(nn.Module):
    """Three ways to move a buffer, and what the step saw of it."""

    number: torch.Tensor

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.register_buffer("number", torch.zeros(1))

    def forward(self, x):
        seen.append(self.number.item())
        if self.how == "in place":
            self.number += 1
        elif self.how == "replaced":
            self.number = self.number + 1
        else:
            self.number.data.add_(1)
        return x * self.number


seen: list[float] = []


@pytest.mark.parametrize("how", [
    "in place",
    "replaced",
    "past torch",
])  # fmt: skip
def test_a_buffer_begins_every_run_with_the_same_value(how):
    seen.clear()
    model = Counting(how)
    with stage_of(model, torch.ones(1)) as stage:
        stage.keep()
        for _ in range(3):
            stage.put_back()
            stage.run()
    assert model.number.item() == 0
    assert seen == [0, 0, 0]


def test_statistics_of_a_batch_norm_begin_every_run_with_the_same_value():
    model = nn.BatchNorm1d(4)
    with stage_of(model, torch.randn(8, 4) + 3, step="train") as stage:
        stage.keep()
        found = []
        for _ in range(2):
            stage.put_back()
            stage.run()
            found.append(model.running_mean.clone())
    assert model.running_mean.tolist() == [0, 0, 0, 0]
    assert torch.equal(found[0], found[1])


def test_an_input_that_the_step_changes_begins_every_run_with_the_same_value():
    class Doubles(nn.Module):
        def forward(self, x):
            found.append(x[0].item())
            return x.mul_(2)

    found: list[float] = []
    x = torch.ones(3)
    with stage_of(Doubles(), x) as stage:
        stage.keep()
        for _ in range(3):
            stage.put_back()
            stage.run()
    assert x.tolist() == [1, 1, 1]
    assert found == [1, 1, 1]


def test_the_gradient_of_an_input_is_fresh_in_every_run():
    with stage_of(nn.Linear(4, 4), torch.ones(2, 4, requires_grad=True), step="train") as stage:
        stage.keep()
        first = [op.key for op in stage.record().ops]
        stage.put_back()
        assert [op.key for op in stage.record().ops] == first


def test_of_a_large_tensor_only_the_part_that_is_passed_is_kept():
    """A batch is often a slice of a data set, whose other rows are nobody's business, and may change meanwhile."""
    data = torch.zeros(1000, 8)
    with stage_of(nn.Linear(8, 8), data[:4]) as stage:
        stage.keep()
        stage.run()
        data[500] = 7  # as a loader in another thread would
        stage.put_back()
        assert data[500].tolist() == [7] * 8
    assert data[500].tolist() == [7] * 8


def test_an_input_made_in_inference_mode_can_be_trained_with():
    with torch.inference_mode():
        x = torch.ones(2, 4)
    with stage_of(nn.Linear(4, 4), x, step="train") as stage:
        assert stage.run().shape == (2, 4)


def test_every_generator_is_put_back():
    kept = RandomState(cuda=False)

    def draw():
        return random.random(), torch.rand(1).item(), numpy.random.rand()

    first = draw()
    kept.restore()
    assert draw() == first


# --- what is given ---


@pytest.mark.parametrize(("arguments", "message"), [
    (dict(model=nn.Linear(2, 2), inputs=(torch.ones(1, 2),), dtype="bf16"), "dtype: only for a model by name"),
    (dict(model=nn.Linear(2, 2), inputs=(torch.ones(1, 2),), past=3), "past: only for a model by name"),
    (dict(model=3, inputs=()), "expected the name of a model, an nn.Module or a step to call, got int"),
    (dict(model="mnist-cnn", inputs=(), step="fly"), "unknown step 'fly'; known: infer, train, decode"),
])  # fmt: skip
def test_what_does_not_go_together_is_said(arguments, message):
    usual = dict(kwargs=None, step="infer", batch=None, seq=None, past=None, dtype=None, overrides=None, input_shape=None, download=False, device="cpu")  # fmt: skip
    with pytest.raises(BadInput, match=message):
        given_workload(**(usual | arguments))


def test_a_step_under_autocast_casts_its_weights_anew() -> None:
    """Torch forgets the casts when the outermost context ends; the stage has one of its own around all steps."""
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    workload = live_workload(model, (torch.randn(4, 8),), {}, step="train")
    with staged(workload, TraceOptions(on="cpu", target="cpu", autocast="bf16", loss="sum")) as stage:
        casts = [
            sum(op.name.startswith("aten::_to_copy") for op in stage.record().ops if op.phase == "forward")
            for _ in range(2)
        ]
    assert casts[0] == casts[1] > 0


@torch.jit.script
def _scripted(x: torch.Tensor, scale: float) -> torch.Tensor:
    return (x * scale).exp() + x.detach()


class Undecided(nn.Module):
    """Runs layers by lot, and scripted code, which torch changes after its first calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            if random.random() < 0.5 or int(torch.randint(0, 2, ())):
                x = _scripted(layer(x), 2.0)
        return x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_does_not_depend_on_what_ran_before() -> None:
    model, seen = Undecided(), set()
    for seed in range(4):
        random.seed(seed)
        torch.manual_seed(seed)
        seen.add(tuple(op.key for op in rooflight.estimate(model, torch.randn(2, 4), step="train").ops))
        assert random.random() == random.Random(seed).random()
    assert len(seen) == 1
