"""A live module is only borrowed: whatever happens in the trace, it is afterwards exactly as it was."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rooflight
from rooflight.errors import RooflightError, TraceFailed
from rooflight.ledger import total
from rooflight.spec import StepKeywords
from tests.fixtures.tracing import compiled_module, infer, names, train

STEPS = ["infer", "train"]
X = torch.randn(2, 3, 8, 8)


class Net(nn.Module):
    """Buffers, tied weights, dropout, attributes that forward changes, a frozen layer, mixed modes, hooks."""

    scale: Tensor

    def __init__(self, fail: str = "") -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.lstm = nn.LSTM(4, 4)
        self.fc = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.fc.weight
        self.register_buffer("scale", torch.ones(4))
        self.register_buffer("absent", None)
        self.table = torch.ones(4)  # a tensor that is neither parameter nor buffer
        self.calls: list[int] = []
        self.fail = fail
        self.norm.weight.requires_grad_(False)
        self.drop.eval()
        self.norm.register_forward_hook(_nothing)

    def forward(self, x: Tensor) -> Tensor:
        self.last = x
        h = self.drop(F.relu(self.norm(self.conv(x)))).mean((2, 3))
        self.count = getattr(self, "count", 0) + 1
        self.scale = self.scale * 2
        random.random()
        np.random.random()
        torch.rand(1)
        if self.fail == "raise":
            raise ValueError("midway")
        if self.fail == "data":
            h = h * h.sum().item()
        if self.fail == "shape":
            h = self.fc(h[:, :2])
        if self.fail == "grows":
            self.extra = nn.Linear(4, 4)
            del self.drop
        return self.tied(self.fc(self.lstm(h * self.scale)[0])) * self.table


def _nothing(module: nn.Module, inputs: Any, output: Any) -> None:
    return None


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return prepared(Net())


def prepared(net: Net) -> Net:
    """In a mixed state: modes differ between modules, and some parameters have gradients."""
    net.conv.weight.grad = torch.randn_like(net.conv.weight)
    net.fc.bias.grad = torch.randn_like(net.fc.bias)
    net.norm.eval()
    net(torch.randn(2, 3, 8, 8))
    return net


class Snapshot:
    """Everything that a trace could change, by identity and by value."""

    def __init__(self, model: nn.Module) -> None:
        self.modules = {path: id(module) for path, module in model.named_modules()}
        self.training = {path: module.training for path, module in model.named_modules()}
        self.keys = {path: list(module.__dict__) for path, module in model.named_modules()}
        self.attributes = {
            path: {name: id(value) for name, value in module.__dict__.items()} for path, module in model.named_modules()
        }
        self.hooks = {path: list(module._forward_hooks.items()) for path, module in model.named_modules()}
        self.children = {path: list(module._modules) for path, module in model.named_modules()}
        tensors = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
        self.identity = [
            (name, id(tensor), type(tensor), tensor.requires_grad, tensor.device) for name, tensor in tensors
        ]
        self.places = [(name, tensor.data_ptr(), tensor.stride()) for name, tensor in tensors]
        self.state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        self.gradients = {
            name: None if p.grad is None else (id(p.grad), p.grad.clone()) for name, p in model.named_parameters()
        }
        self.random = random.getstate(), str(np.random.get_state())
        self.torch = torch.get_rng_state()

    def check(self, model: nn.Module) -> None:
        now = Snapshot(model)
        for what in ("modules", "training", "keys", "attributes", "hooks", "children", "identity", "places", "random"):
            assert getattr(now, what) == getattr(self, what), what
        assert torch.equal(now.torch, self.torch)
        assert now.state.keys() == self.state.keys()
        for name, value in self.state.items():
            assert torch.equal(now.state[name], value), name
        assert now.gradients.keys() == self.gradients.keys()
        for name, gradient in self.gradients.items():
            kept = now.gradients[name]
            if gradient is None or kept is None:
                assert gradient is kept
            else:
                assert gradient[0] == kept[0], name
                assert torch.equal(gradient[1], kept[1]), name


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
def test_a_module_is_as_it_was_after_a_trace(net: Net, step: Any, on: Any) -> None:
    x = torch.randn(2, 3, 8, 8)
    values, before = x.clone(), Snapshot(net)
    rooflight.estimate(net, x, step=step, on=on)
    before.check(net)
    assert torch.equal(x, values)
    assert x.grad is None
    assert net.last.device.type == "cpu"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
@pytest.mark.parametrize("fail", ["raise", "data", "shape", "grows"])
def test_a_module_is_as_it_was_after_a_failure(step: Any, on: Any, fail: str) -> None:
    net = prepared(Net())
    net.fail = fail
    before = Snapshot(net)
    try:
        rooflight.estimate(net, X, step=step, on=on)
        assert fail == "grows" or (fail, on) == ("data", "cpu")
    except RooflightError:
        assert fail in ("raise", "data", "shape")
    before.check(net)
    assert nn.Module.__call__.__module__ == "torch.nn.modules.module"


@pytest.mark.parametrize(
    "options", [{"autocast": "bf16"}, {"accumulate": 2}, {"optimizer": "adamw"}, {"target": "cpu"}]
)
def test_options_leave_no_trace(net: Net, options: dict[str, Any]) -> None:
    before = Snapshot(net)
    train(net, X, **options)
    before.check(net)


@pytest.mark.parametrize("compiled", ["wrapped", "in place"])
def test_a_compiled_module_stays_compiled(net: Net, compiled: str) -> None:
    if compiled == "wrapped":
        model = compiled_module(net)
    else:
        net.compile()
        model = net
    before = Snapshot(model)
    train(model, X)
    before.check(model)
    assert isinstance(model, torch._dynamo.eval_frame.OptimizedModule) is (compiled == "wrapped")
    assert (net._compiled_call_impl is not None) is (compiled == "in place")


def test_torch_is_as_it_was(net: Net) -> None:
    q = torch.randn(2, 4, 8, 16)
    attention, lstm = F.scaled_dot_product_attention(q, q, q), net.lstm(torch.randn(3, 4))[0].shape
    for on in ("meta", "fake"):
        train(net, torch.randn(2, 3, 8, 8), on=on)
    assert torch.equal(F.scaled_dot_product_attention(q, q, q), attention)
    assert net.lstm(torch.randn(3, 4))[0].shape == lstm
    assert F.scaled_dot_product_attention(q.to("meta"), q.to("meta"), q.to("meta")).shape == q.shape
    assert torch.utils.backend_registration._privateuse1_backend_name != "meta"
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()


def test_the_same_module_gives_the_same_ledger_again(net: Net) -> None:
    x = torch.randn(2, 3, 8, 8)
    assert train(net, x).ops == train(net, x).ops


def test_the_module_is_traced_in_the_mode_of_the_step(net: Net) -> None:
    x = torch.randn(2, 3, 8, 8)
    assert "native_dropout" in names(train(net.eval(), x))
    assert "native_dropout" not in names(infer(net.train(), x))


def test_gradients_may_be_switched_off_around_the_call(net: Net) -> None:
    x = torch.randn(2, 3, 8, 8)
    expected = [op.key for op in train(net, x).ops]
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert [op.key for op in train(net, x).ops] == expected
    with torch.enable_grad():
        assert {op.phase for op in infer(net, x).ops} == {"forward"}


def test_a_module_of_any_size_needs_no_memory() -> None:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1 << 20, 1 << 20), nn.ReLU(), nn.Linear(1 << 20, 1 << 20))
        x = torch.empty(4, 1 << 20)
    ledger = train(model, x)
    assert sum(module.params for module in ledger.modules) == 2 * ((1 << 40) + (1 << 20))
    assert all(parameter.is_meta for parameter in model.parameters())


def test_constants_outside_the_state_may_be_on_the_cpu() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.table = nn.Linear(4, 4), torch.arange(4.0)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * self.table) + torch.tensor([1.0, 2.0, 3.0, 4.0])

    ledger = train(Table(), torch.randn(2, 4))
    assert names(ledger, phase="forward", module="") == ["mul", "add"]
    assert "mm" in names(ledger, phase="backward", module="layer")


def test_other_threads_run_as_usual_meanwhile() -> None:
    """A trace redirects operators; real tensors of another thread must not notice."""
    q, lstm, x = torch.randn(2, 4, 8, 16), nn.LSTM(4, 4), torch.randn(3, 4)
    expected = (F.scaled_dot_product_attention(q, q, q), lstm(x)[0].detach())
    found: SimpleQueue[Any] = SimpleQueue()  # what a list holds is restored

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, y: Tensor) -> Tensor:
            other = threading.Thread(
                target=lambda: found.put((F.scaled_dot_product_attention(q, q, q), lstm(x)[0].detach()))
            )
            other.start()
            other.join()
            return self.layer(y)

    for on in ("meta", "fake"):
        infer(Slow(), torch.randn(2, 4), on=on)
    assert found.qsize() == 2
    for attention, output in (found.get(), found.get()):
        assert torch.equal(attention, expected[0])
        assert torch.equal(output, expected[1])


def test_a_model_by_name_may_really_be_run() -> None:
    real, meta = rooflight.estimate("mnist-cnn", on="cpu"), rooflight.estimate("mnist-cnn")
    assert real.header.traced_on == "cpu"
    assert total(real.ops).flops == total(meta.ops).flops > 0


def test_importing_a_part_does_not_hide_the_function_of_that_name() -> None:
    import rooflight.estimation.costs
    import rooflight.ops.registry

    assert callable(rooflight.estimate)
    assert rooflight.estimate(nn.Linear(2, 2), torch.randn(1, 2)).ops


def test_a_failure_in_the_first_trace_does_not_spoil_the_next() -> None:
    net = Net("raise")
    with pytest.raises(TraceFailed):
        infer(net, torch.randn(2, 3, 8, 8))
    net.fail = ""
    assert infer(net, torch.randn(2, 3, 8, 8)).ops


class Busy(nn.Module):
    """Leaves things behind wherever it can."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.weight.scale = 2.0  # type: ignore[attr-defined]
        self.history: list[Tensor] = []
        self.named: dict[str, Tensor] = {}

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x) * self.linear.weight.scale  # type: ignore[attr-defined]
        self.history.append(y)
        self.named["y"] = y
        self.extra = y
        self.register_forward_hook(lambda *_: None)
        return y


def test_lists_dicts_hooks_and_attributes_are_as_before() -> None:
    model = Busy()
    infer(model, torch.randn(2, 4))
    assert model.history == []
    assert model.named == {}
    assert not hasattr(model, "extra")
    assert len(model._forward_hooks) == 0
    assert model.linear.weight.scale == 2.0  # type: ignore[attr-defined]
    assert model.linear.weight.device.type == "cpu"


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.2)
        return self.linear(x)


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_two_threads_may_estimate_the_same_model(on: Any) -> None:
    model, call = Slow(), nn.Module.__call__
    results: list[int] = []
    work = [
        threading.Thread(target=lambda: results.append(total(infer(model, torch.randn(2, 4), on=on).ops).macs))
        for _ in range(3)
    ]
    for thread in work:
        thread.start()
        time.sleep(0.05)
    for thread in work:
        thread.join()
    assert results == [32, 32, 32]
    assert model.linear.weight.device.type == "cpu"
    assert nn.Module.__call__ is call


def test_an_estimate_inside_a_forward_is_its_own() -> None:
    inner = nn.Linear(4, 4)
    seen: SimpleQueue[int] = SimpleQueue()

    class Curious(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            seen.put(total(infer(inner, torch.randn(3, 4)).ops).macs)
            return self.own(x)

    ledger = infer(Curious(), torch.randn(5, 4))
    assert seen.get() == 3 * 4 * 4
    assert total(ledger.ops).macs == 5 * 4 * 2


def test_a_model_that_keeps_its_norms_in_eval_mode_is_believed() -> None:
    class Frozen(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.train(False)

        def train(self, mode: bool = True) -> Frozen:
            super().train(mode)
            self.norm.eval()
            return self

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(x)

    model = Frozen()
    ledger = train(model, torch.randn(2, 4, 3))
    assert [op.args["training"] for op in ledger.ops if "batch_norm" in op.name and op.phase == "forward"] == [False]
    assert not model.training


def test_nothing_keeps_the_model_alive() -> None:
    model = nn.Linear(4, 4)
    there = weakref.ref(model)
    ledger = train(model, torch.randn(2, 4))
    gc.collect()
    gc.disable()
    try:
        infer(model, torch.randn(2, 4))
        del model
        assert there() is None
    finally:
        gc.enable()
    assert ledger.ops


def test_a_deeply_nested_model_can_be_followed() -> None:
    model: nn.Module = nn.Linear(4, 4)
    for _ in range(150):
        model = nn.Sequential(model)
    assert total(infer(model, torch.randn(2, 4)).ops).macs == 32


@pytest.mark.parametrize(
    ("inputs", "options", "batch"),
    [
        ((torch.randn(6, 4),), {}, 6),
        (({"x": torch.randn(16, 4)},), {}, 16),
        ((torch.randn(6, 4), torch.randn(3, 4)), {}, None),
        ((torch.randn(6, 4), torch.randn(3, 4)), {"batch": 3}, 3),
    ],
)
def test_the_batch_is_read_off_the_inputs_or_unknown(inputs: Any, options: StepKeywords, batch: int | None) -> None:
    class Doubling(nn.Module):
        def forward(self, x: Any, *rest: Tensor) -> Tensor:
            return (x["x"] if isinstance(x, dict) else x) * 2

    ledger = infer(Doubling(), *inputs, **options)
    assert ledger.header.batch == batch
    assert "batch" in repr(ledger)


def test_a_recurrent_layer_has_its_batch_second() -> None:
    assert infer(nn.LSTM(8, 8), torch.randn(35, 4, 8)).header.batch == 4


def test_decoding_with_a_live_module_can_be_shown() -> None:
    ledger = rooflight.estimate(nn.Linear(4, 4), torch.randn(2, 4), step="decode")
    assert "decoding one token" in repr(ledger)
