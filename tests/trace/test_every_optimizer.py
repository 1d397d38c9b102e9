"""Optimizers of anybody's choosing: every name of torch.optim, classes, factories and instances, which are left alone."""

from __future__ import annotations

import copy
import functools
from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten
from torch.utils.flop_counter import FlopCounterMode

import rooflight
from rooflight.errors import BadInput, RooflightError
from rooflight.ledger import Ledger, total
from rooflight.measurement import room
from rooflight.models.resolve import workload_of
from rooflight.spec import StepSpec
from rooflight.spec.definition import Optimizer
from rooflight.trace.options import TensorKind
from tests.fixtures.notes import note_texts
from tests.fixtures.tracing import names, rows, train

TOKENS = torch.randint(0, 7, (4,))
REFUSED = ("lbfgs", "sparseadam")
NAMES = [name for name in get_args(Optimizer) if name not in REFUSED]
CLASSES = {kind.__name__.lower(): kind for kind in vars(torch.optim).values() if isinstance(kind, type)}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 5))


def state_bytes(ledger: Ledger) -> int:
    return sum(storage.nbytes for storage in ledger.storages if storage.category == "optimizer-state")


def held_bytes(*optimizers: torch.optim.Optimizer) -> int:
    states = [state for optimizer in optimizers for state in optimizer.state.values()]
    return sum(value.nbytes for state in states for value in state.values() if isinstance(value, torch.Tensor))


def made_by_hand(name: str, model: nn.Module, *, foreach: bool) -> list[torch.optim.Optimizer]:
    """As a user would, without rooflight."""
    parameters = list(model.parameters())
    if name == "momentum":
        return [torch.optim.SGD(parameters, momentum=0.9, foreach=foreach)]
    if name != "muon":
        return [CLASSES[name](parameters, foreach=foreach)]
    hidden = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    others = [parameter for parameter in parameters if all(parameter is not weight for weight in hidden)]
    return [CLASSES["muon"](hidden), torch.optim.AdamW(others, foreach=foreach)]


@functools.cache
def by_hand(name: str, foreach: bool) -> tuple[int, int]:
    """The matrix FLOPs that torch counts in a second step, and the bytes of the state after it."""
    model = net()
    optimizers = made_by_hand(name, model, foreach=foreach)
    model(TOKENS).square().mean().backward()
    for optimizer in optimizers:
        optimizer.step()
    with FlopCounterMode(display=False) as counter:
        for optimizer in optimizers:
            optimizer.step()
    return counter.get_total_flops(), held_bytes(*optimizers)


def test_every_optimizer_of_torch_has_a_name() -> None:
    assert {*CLASSES} - {"optimizer"} <= {*get_args(Optimizer)}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_flops_and_state_are_those_of_the_real_step(name: str, foreach: bool) -> None:
    if name == "muon" and "muon" not in CLASSES:
        pytest.skip("this torch has none")
    chosen = {"target": "cuda" if foreach else "cpu"} if name == "muon" else {"foreach": foreach}
    ledger = train(net(), TOKENS, optimizer=name, **chosen)
    ops = [op for op in ledger.ops if op.phase == "optimizer"]
    assert (total(ops).flops, state_bytes(ledger)) == by_hand(name, foreach)
    assert total(ops).uncounted == ()
    assert any(op.name.startswith("aten::_foreach_") for op in ops) == foreach


# What CUDA takes, and a trace without data, is not what a CPU takes: a number is made on the device, and steps that are
# counted on the device are counted by a plain number.
ON_A_CPU = {"aten::lift_fresh": "aten::scalar_tensor", "aten::_foreach_add_.Tensor": "aten::_foreach_add_.Scalar"}


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "muon"])
def test_ops_are_those_that_really_run(name: str, foreach: bool) -> None:
    def named(on: TensorKind) -> Counter[str]:
        ledger = train(net(), TOKENS, optimizer=name, foreach=foreach, target="cpu", on=on)
        called = [op.name for op in ledger.ops if op.phase == "optimizer"]
        if name in ("asgd", "rprop"):
            called = [ON_A_CPU.get(op, op) for op in called]
        if name == "asgd":  # its numbers are brought to the device without an op of their own
            called = [op for op in called if op != "aten::scalar_tensor"]
        return Counter(called)

    assert named("meta") == named("cpu")


def test_muon_takes_matrices_and_adamw_the_rest() -> None:
    pytest.importorskip("torch.optim._muon")
    ledger = train(net(), TOKENS, optimizer="muon")
    # Newton-Schulz on m x n, m the smaller: m*n*m + m*m*m + m*m*n multiply-adds, five times. 8 x 16: 2,560; 5 x 16: 925.
    assert total(op for op in ledger.ops if op.phase == "optimizer").macs == 5 * (2_560 + 925)
    state = Counter(s.name for s in ledger.storages if s.category == "optimizer-state")
    assert state == {"momentum_buffer": 2, "exp_avg": 5, "exp_avg_sq": 5, "step": 5}
    assert any("AdamW takes the others" in note for note in note_texts(ledger.header.notes))


def test_adafactor_keeps_rows_and_columns() -> None:
    ledger = train(nn.Linear(8, 16), torch.randn(4, 8), optimizer="adafactor")
    # A matrix keeps 16 + 8 numbers, the bias its 16; and each the count of its steps, on the host.
    assert state_bytes(ledger) == 4 * (16 + 8 + 16 + 1 + 1)
    assert any("takes them as 1" in note for note in note_texts(ledger.header.notes))


@pytest.mark.parametrize("name", ["momentum", "adafactor", "adamw"])
def test_what_cannot_fit_is_known_by_its_state(name: str) -> None:
    spec = StepSpec(model="alexnet", step="train", optimizer=name)  # type: ignore[arg-type]
    ledger = rooflight.estimate(spec)
    assert room.state_bytes(spec, workload_of(spec, spec, (), None, device="meta"), lists=True) == state_bytes(ledger)


def test_predicted_memory_has_the_state() -> None:
    peaks = {
        name: rooflight.predict("alexnet", step="train", optimizer=name, on="h200", advice=False)[0].memory
        for name in ("adamw", "momentum")
    }
    adamw, momentum = (memory.peak.split["optimizer-state"] for memory in peaks.values())
    assert adamw == pytest.approx(2 * momentum, rel=1e-3)


def snapshot(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    held = [[id(p) for p in group["params"]] for group in optimizer.param_groups]
    gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    values = [p.detach().clone() for p in model.parameters()]
    return copy.deepcopy(optimizer.state_dict()), sorted(vars(optimizer)), held, gradients, values


def assert_same(now: Any, before: Any) -> None:
    (leaves, shape), (others, other_shape) = tree_flatten(now), tree_flatten(before)
    assert shape == other_shape
    for leaf, other in zip(leaves, others, strict=True):
        assert torch.equal(leaf, other) if isinstance(leaf, torch.Tensor) else leaf == other


@pytest.mark.parametrize("stepped", [True, False])
@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
def test_an_instance_is_used_and_left_as_it_was(on: TensorKind, stepped: bool) -> None:
    model = net()
    groups = [{"params": [model[1].weight], "lr": 0.5}, {"params": [model[3].weight], "weight_decay": 0.0}]  # type: ignore[index]
    optimizer = torch.optim.AdamW(groups)
    model(TOKENS).square().mean().backward()
    if stepped:
        optimizer.step()
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # puts a method of its own in the place of `step`
    before = snapshot(model, optimizer)
    ledger = train(model, TOKENS, optimizer=optimizer, on=on, target="cpu")
    assert_same(snapshot(model, optimizer), before)
    assert ledger.header.optimizer == "AdamW"
    # Two matrices of 8 x 16 and 16 x 5, two moments of each, and two counts of steps; in two groups, one without decay.
    assert state_bytes(ledger) == 4 * 2 * (128 + 80 + 1)
    assert names(ledger, phase="optimizer").count("addcdiv_") == 2
    assert names(ledger, phase="optimizer").count("mul_") == 3


def test_an_instance_is_left_as_it_was_by_a_step_that_fails() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    before = snapshot(model, optimizer)
    with pytest.raises(RooflightError, match="one number"):
        train(model, TOKENS, optimizer=optimizer, loss=lambda output: output, on="cpu")
    assert_same(snapshot(model, optimizer), before)


def test_a_measured_instance_is_left_as_it_was() -> None:
    model = net()
    optimizer = torch.optim.NAdam(model.parameters())
    model(TOKENS).square().mean().backward()
    optimizer.step()
    before = snapshot(model, optimizer)
    ledger = rooflight.measure(model, TOKENS, step="train", optimizer=optimizer, device="cpu", repeat=2)
    assert_same(snapshot(model, optimizer), before)
    assert ledger.header.optimizer == "NAdam"
    assert "optimizer=NAdam" in ledger.header.command


class Wrapped(torch.optim.Optimizer):
    """One that hands on to another, as Accelerate's does."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)

    def step(self, closure: Any = None) -> None:
        self.optimizer.step()


@pytest.mark.parametrize("on", ["meta", "cpu"])
def test_one_inside_another_is_left_as_it_was(on: TensorKind) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    before = snapshot(model, optimizer)
    ledger = train(model, TOKENS, optimizer=Wrapped(optimizer), on=on)
    assert_same(snapshot(model, optimizer), before)
    assert state_bytes(ledger) == 4 * sum(parameter.numel() for parameter in model.parameters())


class Lion(torch.optim.Optimizer):
    """One that torch does not have."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["moment"] = torch.zeros_like(p)
                moment = state["moment"]
                p.add_(torch.sign(moment.mul(0.9).add_(p.grad, alpha=0.1)), alpha=-group["lr"])
                moment.mul_(0.99).add_(p.grad, alpha=0.01)


@pytest.mark.parametrize(
    "choice",
    [Lion, lambda parameters: Lion(parameters, lr=1), functools.partial(Lion, lr=2)],
    ids=["class", "function", "partial"],
)
def test_an_optimizer_of_ones_own(choice: Callable[..., torch.optim.Optimizer]) -> None:
    ledger = train(nn.Linear(8, 16), torch.randn(4, 8), optimizer=choice)
    assert ledger.header.optimizer == "Lion"
    assert names(ledger, phase="optimizer") == 2 * ["mul", "add_", "sign", "add_", "mul_", "add_"]
    assert state_bytes(ledger) == 4 * (128 + 16)


@pytest.mark.parametrize(
    "choice",
    [
        {"optimizer": "adagrad", "fused": True},
        {"optimizer": torch.optim.Adagrad, "fused": True},
        {"optimizer": functools.partial(torch.optim.Adagrad, fused=True)},
    ],
    ids=["name", "class", "factory"],
)
def test_a_fused_one_is_one_op(choice: dict[str, Any]) -> None:
    ledger = train(nn.Linear(8, 16), torch.randn(4, 8), **choice)
    assert names(ledger, phase="optimizer") == ["_fused_adagrad_"]
    (op,) = rows(ledger, phase="optimizer")
    assert op.cost is not None and (op.cost.bytes_read, op.cost.bytes_written) == (3 * 4 * 144, 2 * 4 * 144)
    assert ledger.header.fused
    assert total(ledger.ops).uncounted == ()


@pytest.mark.parametrize(
    ("choice", "line"),
    [
        ({"optimizer": "lbfgs"}, "as often as the values say"),
        ({"optimizer": "sparseadam"}, "sparse gradients only"),
        ({"optimizer": torch.optim.LBFGS}, "it calls the step itself"),
        ({"optimizer": torch.optim.SparseAdam}, "does not support dense gradients"),
        ({"optimizer": "rmsprop", "fused": True}, "rmsprop has no fused version: leave fused out"),
        ({"optimizer": Lion, "foreach": False}, "lion has no foreach version"),
        ({"optimizer": lambda parameters: 3}, "makes a int, not an optimizer"),
        ({"optimizer": lambda: None}, "called with parameters alone"),
        ({"optimizer": lambda parameters: Lion(parameters), "fused": True}, "by its name or class"),
        ({"optimizer": torch.optim.SGD(net().parameters())}, "no parameter of this model"),
        ({"optimizer": 3}, "must be one of sgd"),
    ],
)
def test_what_is_no_optimizer_of_the_step_is_one_line(choice: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput, match=line) as caught:
        train(net(), TOKENS, **choice)
    assert "\n" not in str(caught.value)


def test_one_that_this_torch_does_not_have(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.optim, "Muon", raising=False)
    with pytest.raises(BadInput, match=r"has no muon: it came with torch 2\.9"):
        train(net(), TOKENS, optimizer="muon")
