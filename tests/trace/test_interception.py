"""A recorded step is the plain one: the same memory in the same order, every call handed over, nothing left behind."""

from __future__ import annotations

import gc
import math
import threading
from contextlib import suppress
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from rooflight.errors import TraceFailed
from rooflight.models import build
from rooflight.models.resolve import live_workload
from rooflight.trace import TraceOptions, in_place, interception, storages
from rooflight.trace.interception import as_a_mode, below_autograd, interception_for, nothing_handed_over
from rooflight.trace.stage import WatchedAnotherWay, staged
from tests.fixtures.torch_versions import VERSION, needs_torch
from tests.fixtures.tracing import flops, only, rows

TINY = {"d_model": "32", "nhead": "4", "num_encoder_layers": "2", "num_decoder_layers": "2", "dim_feedforward": "64"}
TINY_GPT2 = {"n_layer": "2", "n_embd": "64", "n_head": "4"}

unsolved = partial(pytest.mark.xfail, strict=VERSION >= (2, 11))


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def forgetful():
    """What was found out about this torch is found out again, before and after it is made to look like another."""
    in_place._nobody_else.cache_clear()
    yield
    in_place._nobody_else.cache_clear()


class Tape:
    """A handler that runs what it is given and keeps the names."""

    def __init__(self):
        self.names = []

    def __call__(self, function, args, kwargs):
        self.names.append(function._schema.name.removeprefix("aten::"))
        return function(*args, **kwargs)


class Plain(torch.Tensor):
    """A subclass without a dispatch of its own."""


class Own(torch.Tensor):
    """A subclass with a dispatch of its own, which does nothing special."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[override]  # a plain function there
        with torch._C._DisableTorchDispatch():
            return func(*args, **(kwargs or {}))


by_name = partial(build, device="cpu")


# --- a recorded step takes and gives back the memory of the plain one ---


def memory_of(run):
    """Bytes taken (positive) and given back (negative) on the CPU, in order.

    Without single numbers: the one of `x + 1` becomes a tensor on its way, and once more when it is handed over.
    """
    gc.collect()
    gc.disable()  # it would free what others have left
    try:
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
            run()
    finally:
        gc.enable()
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    return [event.nbytes() for event in sorted(events, key=lambda e: e.start_ns()) if abs(event.nbytes()) > 16]


class Nobody:
    """An observer, as a measurement has one."""

    def before(self, index):
        pass

    def after(self, index):
        pass


def plain_and_recorded(workload, **options):
    """The memory of two plain runs and of a recorded one."""
    with staged(workload, TraceOptions(target="cpu", on="cpu", **options)) as stage:
        stage.keep()
        stage.run()
        stage.settle()

        def memory(run):
            stage.put_back()
            arguments = stage.fresh_arguments()
            return memory_of(lambda: run(arguments))

        memory(stage.run)  # the gradients that the next run finds, the profiler has seen being made
        plain, again = memory(stage.run), memory(stage.run)
        recorded = memory(lambda arguments: stage.record(Nobody(), arguments))
    assert plain == again  # else nothing would follow of what comes
    return plain, recorded


STEPS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("resnet18", dict(step="train", batch=2, input_shape=(3, 64, 64)), {}),
    ("resnet18", dict(step="train", input_shape=(3, 64, 64)), {"accumulate": 2}),
    ("transformer", dict(step="train", seq=6, overrides=TINY), {}),
    ("gpt2", dict(step="train", seq=8, overrides=TINY_GPT2), {}),
    ("mnist-cnn", dict(step="train"), {}),
    ("mnist-cnn", dict(step="train"), {"optimizer": "adamw"}),
    ("distilbert", dict(seq=8, overrides={"n_layers": "2"}), {}),
    ("mnist-cnn", {}, {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), STEPS)
def test_a_recorded_step_takes_and_frees_what_the_plain_one_does_in_the_same_order(name, arguments, options):
    plain, recorded = plain_and_recorded(by_name(name, **arguments), **options)
    assert len(plain) > 10
    assert {size > 0 for size in plain} == {True, False}
    assert recorded == plain


RESNET = STEPS[0][1]


def test_a_step_recorded_by_a_mode_is_another_one(monkeypatch):
    """Why no mode records: torch sees it, and adds up gradients into new memory."""
    monkeypatch.setattr("rooflight.trace.stage.interception_for", lambda tensors: as_a_mode)
    plain, recorded = plain_and_recorded(by_name("resnet18", **RESNET))
    assert recorded != plain
    assert taken(recorded) > taken(plain)


@needs_torch(2, 11, why="the engine asks who holds a tensor there, not its memory")
def test_a_step_whose_gradients_are_held_is_another_one(monkeypatch, forgetful):
    """Why storages that backward makes get no wrapper: it is one more reference, and torch adds in place without."""
    monkeypatch.setattr(storages, "_can_peek", lambda: False)
    plain, recorded = plain_and_recorded(by_name("resnet18", **RESNET))
    assert taken(recorded) > taken(plain)


def taken(memory):
    return sum(size for size in memory if size > 0)


class Forces(nn.Module):
    """The gradient of an energy is what this model gives."""

    def __init__(self, create_graph):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.create_graph = create_graph

    def forward(self, x):
        with torch.enable_grad():
            place = x.detach().requires_grad_()
            hidden = self.fc(place).exp()
            energy = (hidden.sin() * hidden.cos()).sum()
            (force,) = torch.autograd.grad(energy, place, create_graph=self.create_graph)
        return self.fc(force)


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("create_graph", [True, pytest.param(False, marks=unsolved(raises=AssertionError, reason=(
    "in the forward phase every storage gets a wrapper, also those of a backward that the model runs there itself"
)))])  # fmt: skip
def test_a_gradient_taken_in_forward_takes_the_memory_of_the_plain_one(step, create_graph):
    plain, recorded = plain_and_recorded(live_workload(Forces(create_graph), (torch.randn(4, 8),), {}, step=step))
    assert recorded == plain


# --- what is handed over ---


def test_forward_and_backward_are_handed_over_in_order():
    tape, x, weight = Tape(), torch.randn(2, 4), torch.randn(3, 4, requires_grad=True)
    with below_autograd(tape):
        y = F.linear(x, weight).relu()
        z = y * torch.ones(2, 3)
        z.sum().backward()
    forward = ["t", "mm", "relu", "ones", "mul", "sum"]
    assert tape.names == [*forward, "ones_like", "expand", "mul", "threshold_backward", "t", "mm", "t", "t", "detach"]
    expected = (y.detach() > 0).float().T @ x
    assert torch.equal(weight.grad, expected)


def test_calls_in_place_are_handed_over_and_write():
    tape, x = Tape(), torch.zeros(3)
    version = x._version
    with below_autograd(tape):
        same = x.add_(1).mul_(2)
        x[0] = 5
    assert tape.names == ["add_", "mul_", "lift_fresh", "select", "copy_"]
    assert same is x
    assert x.tolist() == [5, 2, 2]
    assert x._version == version + 3


@pytest.mark.parametrize(("make", "name"), [
    (lambda: torch.ones(2), "ones"), (lambda: torch.empty(2), "empty"), (lambda: torch.rand(2), "rand"),
    (lambda: torch.arange(3), "arange"), (lambda: torch.full((2,), 1.0), "full"),
    (lambda: torch.randperm(3), "randperm"), (lambda: torch.zeros(2, device="meta"), "zeros"),
    (lambda: torch.tensor([1.0]), "lift_fresh"),
])  # fmt: skip
def test_functions_that_make_a_tensor_of_nothing_are_handed_over(make, name):
    tape = Tape()
    with below_autograd(tape):
        made = make()
    assert name in tape.names
    assert (made.shape, made.dtype) == (make().shape, make().dtype)


def test_backward_alone_is_handed_over():
    tape, x = Tape(), torch.randn(3, requires_grad=True)
    y = x.exp().sum()
    with below_autograd(tape):
        y.backward()
    assert "mul" in tape.names and "exp" not in tape.names


def test_backward_after_leaving_is_not_handed_over():
    tape, x = Tape(), torch.randn(3, requires_grad=True)
    with below_autograd(tape):
        y = x.exp().sum()
    y.backward()
    assert tape.names == ["exp", "sum"]
    assert torch.equal(x.grad, x.detach().exp())


def test_another_thread_is_left_alone():
    tape, other, found = Tape(), Tape(), []

    def work():
        x = torch.ones(2, requires_grad=True)
        (x * 3).sum().backward()
        found.append(x.grad.tolist())

    def work_handed_over():
        with below_autograd(other):
            work()

    with below_autograd(tape):
        run_in_a_thread(work)
    assert found == [[3, 3]]
    assert tape.names == []
    run_in_a_thread(work_handed_over)  # it is not that threads are never seen
    assert "mul" in other.names


def run_in_a_thread(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def test_what_the_handler_calls_itself_is_not_handed_over():
    seen = []

    def handler(function, args, kwargs):
        seen.append(function)
        torch.ones(2).exp().add_(1)
        return function(*args, **kwargs)

    x = torch.randn(3, requires_grad=True)
    with below_autograd(handler):
        x.sin().backward(torch.ones_like(x))
    aten = torch.ops.aten
    assert seen[:2] == [aten.sin.default, aten.ones_like.default]
    assert not {aten.exp.default, aten.ones.default, aten.add_.Tensor} & set(seen)
    assert torch.allclose(x.grad, x.detach().cos())


def test_the_handlers_result_is_the_calls_result():
    x = torch.ones(3)
    with below_autograd(lambda function, args, kwargs: torch.full((3,), 7.0)):
        y = x.sin()
    assert y.tolist() == [7, 7, 7]


def test_what_is_hidden_is_not_handed_over():
    tape, x = Tape(), torch.randn(3, requires_grad=True)
    with below_autograd(tape):
        x.exp()
        with nothing_handed_over():
            x.sin().sum().backward()
            torch.ones(3)
        x.cos()
    assert tape.names == ["exp", "cos"]
    assert x.grad is not None


def test_what_is_hidden_from_a_mode_is_not_handed_over():
    tape = Tape()
    with as_a_mode(tape):
        torch.ones(3)
        with nothing_handed_over():
            torch.zeros(3)
    assert tape.names == ["ones"]


def test_within_what_is_hidden_another_handler_can_be_given():
    outer, inner, x = Tape(), Tape(), torch.randn(3)
    with below_autograd(outer), nothing_handed_over():
        with below_autograd(inner):
            x.exp()
        x.sin()
    assert (outer.names, inner.names) == ([], ["exp"])


def test_the_outer_handler_is_back_after_an_inner_one():
    outer, inner, x = Tape(), Tape(), torch.randn(3)
    with below_autograd(outer):
        x.exp()
        with below_autograd(inner):
            x.sin()
        x.cos()
        with pytest.raises(ValueError, match="in forward"), below_autograd(inner):
            breaks_in_forward(x)
        x.neg()
    x.abs()
    assert outer.names == ["exp", "cos", "neg"]
    assert inner.names == ["sin", "sin"]


def test_a_handler_can_hand_over_its_own_calls_to_another():
    inner, x = Tape(), torch.randn(3)

    def outer(function, args, kwargs):
        with below_autograd(inner):
            return function(*args, **kwargs).exp()

    with below_autograd(outer):
        x.sin()
        x.cos()
    assert inner.names == ["sin", "exp", "cos", "exp"]


def test_an_estimate_within_a_watched_step_is_no_part_of_it():
    tape, found = Tape(), []
    with below_autograd(tape):
        torch.ones(3)
        found.append(rooflight.estimate(nn.Linear(4, 4), torch.zeros(2, 4), step="train", target="cpu"))
        torch.zeros(3)
    assert "addmm" not in tape.names and "mm" not in tape.names
    assert tape.names[0] == "ones" and tape.names[-1] == "zeros"
    assert len(rows(found[0], "addmm")) == 1


# --- failures ---


class Breaks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("in backward")


def breaks_in_forward(x):
    x.sin()
    raise ValueError("in forward")


def breaks_in_backward(x):
    Breaks.apply(x).sum().backward()


@pytest.mark.parametrize("way", [below_autograd, as_a_mode])
@pytest.mark.parametrize("step", [breaks_in_forward, breaks_in_backward])
def test_after_a_step_that_failed_nothing_is_handed_over(way, step):
    tape, x = Tape(), torch.randn(3, requires_grad=True)
    with pytest.raises(ValueError, match=step.__name__.removeprefix("breaks_").replace("_", " ")), way(tape):
        step(x)
    seen = list(tape.names)
    assert seen
    x.exp().sum().backward()
    assert tape.names == seen
    assert torch.equal(x.grad, x.detach().exp())


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("op", ["relu", "threshold_backward"])
@pytest.mark.parametrize("way", [below_autograd, as_a_mode])
def test_an_error_of_the_handler_arrives_as_it_is(way, op, error):
    tape, x = Tape(), torch.randn(3, requires_grad=True)

    def handler(function, args, kwargs):
        result = tape(function, args, kwargs)
        if tape.names[-1] == op:
            raise error("stop")
        return result

    with pytest.raises(error, match="stop"), way(handler):
        x.relu().sum().backward()
    assert tape.names[-1] == op
    seen = list(tape.names)
    x.relu().sum().backward()
    assert tape.names == seen
    assert torch.equal(x.grad, (x.detach() > 0).float())


# --- subclasses that are made meanwhile ---


def has_patches():
    """What torch's tensors have now that they do not have otherwise."""
    return [name for name in ("_make_subclass", "as_subclass") if name in torch.Tensor.__dict__]


class MakesALayer(nn.Module):
    def forward(self, x):
        return nn.Linear(8, 8)(x)


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_layer_can_be_made_in_forward(on):
    ledger = rooflight.estimate(MakesALayer(), torch.randn(2, 8), on=on, target="cpu")
    assert only(ledger, "addmm").cost.flops == 2 * 2 * 8 * 8
    assert len(rows(ledger, "uniform_")) == 2


def test_parameters_and_subclasses_are_what_they_are_plainly():
    tape, x = Tape(), torch.randn(3)
    with below_autograd(tape):
        parameter = nn.Parameter(x)
        made = x.as_subclass(Plain)
        also = torch.Tensor.as_subclass(x, Plain)
        again = torch.Tensor._make_subclass(Plain, x, True)
        subclass = Plain._make_subclass(Plain, x)
        computed = made + 1
    assert type(parameter) is nn.Parameter and parameter.requires_grad and parameter.is_leaf
    assert [type(tensor) for tensor in (made, also, again, subclass, computed)] == [Plain] * 5
    assert again.requires_grad and not subclass.requires_grad
    assert all(tensor.data_ptr() == x.data_ptr() for tensor in (parameter, made, also, again, subclass))
    assert [name for name in tape.names if name not in ("detach", "alias")] == ["add"]


def test_a_parameter_made_meanwhile_is_trained():
    tape, x = Tape(), torch.ones(2, 4)
    with below_autograd(tape):
        layer = nn.Linear(4, 3)
        layer(x).sum().backward()
    assert "mm" in tape.names
    assert layer.weight.grad.tolist() == [[2] * 4] * 3


@unsolved(raises=RuntimeError, reason="torch refuses a subclass, made by calling it, of a tensor that was handed over")
@pytest.mark.parametrize("make", [lambda x: Plain(x), lambda x: Plain([1.0, 2.0]), lambda x: Plain(2, 3)])
def test_a_subclass_can_be_made_by_calling_it(make):
    with below_autograd(Tape()):
        assert type(make(torch.ones(2))) is Plain


def test_torch_is_as_it_was_afterwards():
    fake_mode = dict(torch._subclasses.FakeTensorMode.__dict__)
    assert has_patches() == []
    with below_autograd(Tape()):
        assert has_patches() == ["_make_subclass", "as_subclass"]
        with below_autograd(Tape()):
            pass
        assert has_patches() == ["_make_subclass", "as_subclass"]
        assert type(torch.ones(2).as_subclass(Plain)) is Plain
        with pytest.raises(ValueError, match="in forward"), below_autograd(Tape()):
            breaks_in_forward(torch.ones(2))
        assert type(nn.Parameter(torch.ones(2))) is nn.Parameter
    assert has_patches() == []
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), below_autograd(Tape()):
            raise error
        assert has_patches() == []
    assert dict(torch._subclasses.FakeTensorMode.__dict__) == fake_mode
    assert type(torch.ones(2).as_subclass(Plain)) is Plain


# --- inference mode ---


@pytest.mark.parametrize("way", [below_autograd, as_a_mode])
def test_in_inference_mode_composite_calls_come_as_what_they_are_made_of(way):
    tape, layer, x = Tape(), nn.Linear(4, 3), torch.randn(2, 4)
    with way(tape), torch.inference_mode():
        y = layer(x)
        F.conv2d(torch.ones(1, 1, 4, 4), torch.ones(1, 1, 3, 3))
        torch.matmul(torch.ones(2, 3, 4), torch.ones(4, 5))
    assert tape.names[:2] == ["t", "addmm"]
    assert not {"linear", "conv2d", "matmul"} & set(tape.names)
    assert {"convolution", "mm"} <= set(tape.names)
    assert torch.equal(y, layer(x).detach())


class Inferring(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc, self.conv = nn.Linear(4, 4), nn.Conv2d(1, 1, 3)

    def forward(self, x):
        with torch.inference_mode():
            return self.fc(self.conv(x))


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_model_that_turns_inference_mode_on_has_the_ops_of_one_that_does_not(on):
    x = torch.randn(2, 1, 4, 6)
    ledger = rooflight.estimate(Inferring(), x, on=on, target="cpu")
    model = Inferring()
    plain = rooflight.estimate(nn.Sequential(model.conv, model.fc), x, on=on, target="cpu")
    assert [op.name for op in ledger.ops] == [op.name for op in plain.ops]
    assert flops(ledger.ops) == flops(plain.ops) > 0


# --- subclasses with a dispatch of their own, and others' modes ---


class WithOwn(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.register_buffer("table", torch.Tensor._make_subclass(Own, torch.randn(8, 8)))

    def forward(self, x):
        return self.fc(x) @ self.table


def fake():
    with torch._subclasses.FakeTensorMode():
        return torch.ones(2)


@pytest.mark.parametrize(("tensors", "way"), [
    (lambda: [], below_autograd),
    (lambda: [torch.ones(2), nn.Parameter(torch.ones(2)), torch.ones(2, device="meta")], below_autograd),
    (lambda: [torch.ones(2).as_subclass(Plain)], below_autograd),
    (lambda: WithOwn().buffers(), as_a_mode),
    (lambda: [torch.ones(2), torch.Tensor._make_subclass(Own, torch.ones(2))], as_a_mode),
    (lambda: [fake()], as_a_mode),
])  # fmt: skip
def test_the_way_is_chosen_by_the_tensors(tensors, way):
    assert interception_for(tensors()) is way


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_model_with_a_subclass_of_its_own_dispatch_is_traced(on):
    ledger = rooflight.estimate(WithOwn(), torch.randn(4, 8), on=on, target="cpu")
    assert ledger.header.traced_on == on
    assert [op.packet for op in ledger.ops] == ["aten::t", "aten::addmm", "aten::mm"]
    assert flops(ledger.ops) == 2 * (2 * 4 * 8 * 8)


def test_a_model_with_a_subclass_of_its_own_dispatch_is_measured():
    ledger = rooflight.measure(WithOwn(), torch.randn(4, 8), device="cpu", repeat=2)
    assert [op.packet for op in ledger.ops] == ["aten::t", "aten::addmm", "aten::mm"]
    measured = {row.ops[0] for row in ledger.measurements if row.scope == "op" and "host_time_s" in row.quantities}
    assert measured == {0, 1, 2}


class MakesItsOwn(nn.Module):
    def forward(self, x):
        return torch.Tensor._make_subclass(Own, x) + 1


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_subclass_with_its_own_dispatch_can_be_made_in_forward(on):
    ledger = rooflight.estimate(MakesItsOwn(), torch.zeros(2), on=on, target="cpu")
    assert ledger.header.traced_on == on
    assert [op.packet for op in ledger.ops if op.kind == "compute"] == ["aten::add"]


def test_a_model_that_makes_a_subclass_with_its_own_dispatch_is_measured():
    ledger = rooflight.measure(MakesItsOwn(), torch.zeros(2), device="cpu", repeat=2)
    assert [op.packet for op in ledger.ops if op.kind == "compute"] == ["aten::add"]
    assert {row.ops[0] for row in ledger.measurements if row.scope == "op"} == {op.index for op in ledger.ops}


class MakesItsOwnLate(nn.Module):
    """Ops before the one that torch cannot hand over."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3)

    def forward(self, x):
        y = self.first(x)
        y = TwoTensor(y, y)
        for _ in range(4):
            y = y + 1
        return torch.Tensor._make_subclass(Own, y.a) + 1


def test_no_op_is_observed_twice_when_it_must_be_watched_another_way(tmp_path):
    ledger = rooflight.measure(MakesItsOwnLate(), torch.randn(4, 3, 16, 16), device="cpu", repeat=2)
    assert {row.ops[0] for row in ledger.measurements if row.scope == "op"} == {op.index for op in ledger.ops}
    rooflight.save(ledger, tmp_path / "run.json")
    assert rooflight.load(tmp_path / "run.json").ops == ledger.ops


def test_an_observer_that_saw_a_part_is_not_used_again():
    class Seen:
        def __init__(self):
            self.before, self.indices = self.see, []

        def see(self, index):
            self.indices.append(index)

        def after(self, index):
            pass

    workload = live_workload(MakesItsOwnLate(), (torch.randn(4, 3, 16, 16),), {}, step="infer")
    with staged(workload, TraceOptions(target="cpu", on="cpu")) as stage:
        stage.keep()
        with pytest.raises(WatchedAnotherWay):
            stage.record(Seen())
        second = Seen()
        ops = stage.record(second).ops
        assert second.indices == [op.index for op in ops]


class MakesItsOwnOnce(MakesItsOwn):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) * self.calls


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_the_second_try_for_such_a_model_begins_as_the_first_did(on):
    ledger = rooflight.estimate(MakesItsOwnOnce(), torch.zeros(2), on=on, target="cpu")
    assert only(ledger, "mul").args["other"] == 1


class OpensAFakeMode(nn.Module):
    """Asks what shape something would have."""

    def forward(self, x):
        with torch._subclasses.FakeTensorMode():
            size = torch.ones(8, 4).matmul(torch.ones(4, 3)).shape[1]
        return x.narrow(1, 0, size).exp()


def test_what_a_model_does_in_a_fake_mode_is_no_part_of_the_step():
    ledger = rooflight.estimate(OpensAFakeMode(), torch.ones(2, 8), on="cpu", target="cpu")
    assert [op.packet for op in ledger.ops] == ["aten::slice", "aten::exp"]
    assert ledger.ops[-1].outputs[0].shape == (2, 3)


class Selective(nn.Module):
    """Keeps the products for backward and computes the rest again."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def block(self, x):
        return self.second(self.first(x).relu()).relu()

    def forward(self, x):
        contexts = partial(create_selective_checkpoint_contexts, self.policy)
        return checkpoint(self.block, x, use_reentrant=False, context_fn=contexts)

    @staticmethod
    def policy(context, op, *args, **kwargs):
        saved = op is torch.ops.aten.addmm.default
        return CheckpointPolicy.MUST_SAVE if saved else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_selective_checkpointing_computes_again_what_it_did_not_save(on):
    ledger = rooflight.estimate(Selective(), torch.randn(4, 8), step="train", on=on, target="cpu")
    assert ledger.header.traced_on == on
    again = [op for op in ledger.ops if op.recompute and op.kind == "compute"]
    assert [op.packet for op in again] == ["aten::relu", "aten::relu"]
    assert [op.module for op in rows(ledger, "addmm")] == ["first", "second"]
    # Forward has two products; backward three, as the input wants no gradient.
    assert flops(ledger.ops) == 5 * (2 * 4 * 8 * 8)


class FailsSelectively(Selective):
    """In a run of its block: the first is forward's, the second backward's."""

    def __init__(self, failing):
        super().__init__()
        self.runs_left = failing

    def block(self, x):
        x = self.first(x).relu()
        self.runs_left -= 1
        if self.runs_left == 0:
            raise ValueError("on purpose")
        return self.second(x).relu()


@pytest.mark.parametrize("on", ["meta", "cpu"])
@pytest.mark.parametrize("failing", [1, 2])
def test_a_failure_in_selective_checkpointing_leaves_no_mode_open(failing, on):
    for _ in range(2):
        with pytest.raises(TraceFailed, match="on purpose"):
            rooflight.estimate(FailsSelectively(failing), torch.randn(4, 8), step="train", on=on, target="cpu")
        assert not _get_current_dispatch_mode_stack()


class FallsBack(nn.Module):
    """A checkpoint fails, and it goes another way."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def fails(self, x):
        raise NotImplementedError(self.first(x).relu().shape)

    def forward(self, x):
        result = None
        with suppress(NotImplementedError):
            result = checkpoint(self.fails, x, use_reentrant=False)
        return self.second(self.first(x).relu() if result is None else result)


def test_a_model_may_go_another_way_where_a_checkpoint_fails():
    ledger = rooflight.estimate(FallsBack(), torch.randn(4, 8), step="train", target="cpu")
    assert len([op for op in rows(ledger, "addmm") if op.phase == "forward"]) == 3
    assert not any(op.recompute for op in ledger.ops)


def test_a_checkpoint_of_another_thread_is_left_alone():
    traced, checkpointed, over = threading.Event(), threading.Event(), threading.Event()
    gradients = []

    class Waits(nn.Linear):
        def forward(self, x):
            traced.set()
            assert checkpointed.wait(60)
            return super().forward(x)

    def train():
        assert traced.wait(60)
        inputs = torch.ones(4, requires_grad=True)

        def doubled(x):
            checkpointed.set()
            assert over.wait(60)
            return (2 * x).sin()

        checkpoint(doubled, inputs, use_reentrant=False).exp().sum().backward()
        gradients.append(inputs.grad)

    other = threading.Thread(target=train)
    other.start()
    rooflight.estimate(Waits(8, 8), torch.randn(4, 8), step="train", target="cpu")
    over.set()
    other.join()
    assert len(gradients) == 1


def test_the_first_trace_of_a_process_may_be_fake():
    storages.detach_is_copied.cache_clear()
    ledger = rooflight.estimate(Turned(), torch.randn(3, 5), step="train", on="fake", target="cpu")
    assert ledger.header.traced_on == "fake"
    after_fake = storages.detach_is_copied()
    storages.detach_is_copied.cache_clear()
    assert storages.detach_is_copied() == after_fake


def test_a_step_is_traced_inside_a_mode():
    estimate = partial(rooflight.estimate, Turned(), torch.randn(3, 5), step="train", target="cpu")
    expected = estimate()
    with FlopCounterMode(display=False):
        ledger = estimate()
    assert flops(ledger.ops) == flops(expected.ops) > 0


# --- another torch ---


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_without_a_place_in_the_dispatcher_a_mode_records(on, monkeypatch, forgetful):
    estimate = partial(rooflight.estimate, "mnist-cnn", step="train", batch=2, target="cpu", on=on)
    expected = estimate()
    in_place._nobody_else.cache_clear()
    monkeypatch.setattr(interception, "_available", lambda: False)
    recorder = Mock(wraps=as_a_mode)
    monkeypatch.setattr(interception, "as_a_mode", recorder)
    ledger = estimate()
    assert recorder.called
    assert flops(ledger.ops) == flops(expected.ops) > 0
    names = [op.name for op in ledger.ops if op.packet != "aten::detach"]
    assert names == [op.name for op in expected.ops if op.packet != "aten::detach"]


def test_where_tensors_lie_otherwise_in_memory_the_trace_is_the_same(monkeypatch, forgetful):
    estimate = partial(rooflight.estimate, "mnist-cnn", step="train", batch=2, target="cpu")
    expected = estimate()
    in_place._nobody_else.cache_clear()
    monkeypatch.setattr(storages, "_can_peek", lambda: False)
    ledger = estimate()
    assert flops(ledger.ops) == flops(expected.ops) > 0
    assert [op.key for op in ledger.ops] == [op.key for op in expected.ops]
    assert [(s.nbytes, s.category, s.born, s.dies) for s in ledger.storages] == [
        (s.nbytes, s.category, s.born, s.dies) for s in expected.storages
    ]


def test_this_torch_has_a_place_and_lays_tensors_out_as_thought():
    """Else the tests of this file would test the ways for others."""
    assert interception._available()
    assert storages._can_peek()


# --- storages that backward makes ---


class Turned(nn.Module):
    """In backward, results of products and of exp's node are turned before they are read."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 5))
        self.fc = nn.Linear(3, 2, bias=False)

    def forward(self, x):
        return self.fc((self.weight * x).t().exp())


@pytest.mark.parametrize("peek", [True, False])
@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_storages_made_in_backward_live_as_long_as_a_tensor_of_theirs(on, peek, monkeypatch, forgetful):
    if not peek:
        monkeypatch.setattr(storages, "_can_peek", lambda: False)
    options = dict(step="train", loss="sum", optimizer="sgd", on=on, target="cpu")
    ledger = rooflight.estimate(Turned(), torch.randn(3, 5), **options)
    backward = [op for op in ledger.ops if op.phase == "backward"]
    assert [op.packet.removeprefix("aten::") for op in backward] == [
        "ones_like", "expand", "t", "mm", "t", "t", "mm", "t", "t", "detach", "mul", "t", "mul", "detach",
    ]  # fmt: skip
    first, end = backward[0].index, backward[-1].index + 1
    made = [s for s in ledger.storages if s.born is not None and first <= s.born < end]
    assert [(s.name or s.category, s.nbytes, s.born - first, s.dies and s.dies - first) for s in made] == [
        ("temporary", 4, 0, end - first),  # the loss's gradient, of which others are views; held until backward ends
        ("fc.weight", 2 * 3 * 4, 3, None),  # a gradient: the turned result of the first mm, whose own tensor is gone
        ("temporary", 3 * 5 * 4, 6, 11),  # the second mm, read by the first mul as it was turned
        ("temporary", 3 * 5 * 4, 10, 13),  # the first mul, read by the second as it was turned
        ("weight", 3 * 5 * 4, 12, None),
    ]
    for storage in made:
        tensor = next(t for t in ledger.ops[storage.born].outputs if t.storage == storage.id)
        assert storage.nbytes == math.prod(tensor.shape) * 4


class Gaps(torch.autograd.Function):
    """Its backward gives a tensor whose rows of 4 numbers begin 8 numbers apart."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient.new_empty_strided((4, 4), (8, 1)).copy_(gradient)


class WithGaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x):
        return Gaps.apply(self.fc(x).sin())


@pytest.mark.parametrize("peek", [True, False])
@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_a_storage_made_in_backward_reaches_to_its_last_number(on, peek, monkeypatch, forgetful):
    if not peek:
        monkeypatch.setattr(storages, "_can_peek", lambda: False)
    ledger = rooflight.estimate(WithGaps(), torch.randn(4, 4), step="train", loss="sum", on=on, target="cpu")
    made = only(ledger, "new_empty_strided").outputs[0]
    storage = next(s for s in ledger.storages if s.id == made.storage)
    assert storage.nbytes == (3 * 8 + 4) * 4
    assert storage.dies is not None


def test_a_gradient_that_somebody_keeps_outlives_backward():
    kept: list[torch.Tensor] = []

    class Keeps(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(4, 4)

        def forward(self, x):
            y = self.fc(x).exp()
            if self.keep:
                y.register_hook(kept.append)
            return y.sin()

    model, x = Keeps(), torch.randn(2, 4)
    lives = {}
    for model.keep in (False, True):  # type: ignore[assignment]
        ledger = rooflight.estimate(model, x, step="train", loss="sum", target="cpu")
        sine = next(op for op in ledger.ops if op.phase == "backward" and op.packet == "aten::cos")
        gradient = next(op for op in ledger.ops[sine.index + 1 :] if op.packet == "aten::mul")
        lives[model.keep] = next(s for s in ledger.storages if s.id == gradient.outputs[0].storage).dies
    assert lives[False] is not None and lives[True] is None  # type: ignore[index]
