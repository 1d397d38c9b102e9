"""Every op is filed under the module it ran in: forward, backward, recomputed, shared, compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rooflight.ledger import LOSS, OPTIMIZER, total
from tests.fixtures.notes import note_texts
from tests.fixtures.tracing import compiled_module, flops, infer, names, only, rows, train


class ConvNet(nn.Module):
    """Functional calls between its modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.conv2 = nn.Conv2d(4, 5, 3, padding=1)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        return self.fc(x.mean((2, 3)))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 8)
        self.b = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


class Checkpointed(nn.Module):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(4, 4)
        self.block = Block()
        self.last = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(checkpoint(self.block, self.first(x), use_reentrant=self.reentrant))


# Forward and backward


def test_a_functional_call_belongs_to_the_module_that_makes_it() -> None:
    ledger = infer(ConvNet(), torch.randn(2, 3, 8, 8))
    where = [(op.module, op.packet.removeprefix("aten::")) for op in rows(ledger)]
    assert where == [
        ("conv1", "convolution"), ("", "relu"), ("conv2", "convolution"), ("", "relu"), ("", "mean"), ("fc", "addmm"),
    ]  # fmt: skip
    assert all(op.call == 0 and op.phase == "forward" for op in ledger.ops)


def test_a_backward_op_is_filed_with_the_forward_op_it_belongs_to() -> None:
    ledger = train(ConvNet(), torch.randn(2, 3, 8, 8), loss="mse")
    assert [op.module for op in rows(ledger, "convolution_backward")] == ["conv2", "conv1"]
    assert [op.module for op in rows(ledger, "threshold_backward")] == ["", ""]
    assert [op.module for op in rows(ledger, "mm", phase="backward")] == ["fc", "fc"]
    # The gradient of the mean is spread out again by the parent, which called it.
    assert [op.module for op in rows(ledger, "div", phase="backward")] == [LOSS, ""]
    assert {op.module for op in ledger.ops} == {"", "conv1", "conv2", "fc", LOSS, OPTIMIZER}
    assert {op.module for op in ledger.ops if op.phase == "optimizer"} == {OPTIMIZER}


def test_backward_costs_are_derived_from_the_shapes_of_each_convolution() -> None:
    ledger = train(ConvNet(), torch.randn(2, 3, 8, 8))
    # conv1: 2 samples * 4 channels * 64 pixels * 3 * 9 = 13,824 MACs; conv2: 2 * 5 * 64 * 4 * 9 = 23,040.
    assert flops(rows(ledger, "convolution", module="conv1")) == 2 * 13_824
    assert flops(rows(ledger, "convolution", module="conv2")) == 2 * 23_040
    # The first layer needs no gradient of the input: weights only. The second needs both.
    assert flops(rows(ledger, "convolution_backward", module="conv1")) == 2 * 13_824
    assert flops(rows(ledger, "convolution_backward", module="conv2")) == 2 * 2 * 23_040


def test_an_input_that_wants_a_gradient_gets_one() -> None:
    ledger = train(ConvNet(), torch.randn(2, 3, 8, 8, requires_grad=True))
    assert flops(rows(ledger, "convolution_backward", module="conv1")) == 2 * 2 * 13_824


def test_the_accumulation_of_a_gradient_belongs_to_the_owner_of_the_parameter() -> None:
    ledger = train(Block(), torch.randn(3, 4), accumulate=2)
    # The second micro-batch adds to the gradients of the first: weight and bias of both layers.
    added = rows(ledger, "add_", phase="backward")
    assert sorted(op.module for op in added) == ["a", "a", "b", "b"]
    assert sorted(op.tensor("self").shape for op in added) == [(4,), (4, 8), (8,), (8, 4)]


def test_the_loss_is_no_part_of_the_model() -> None:
    ledger = train(Block(), torch.randn(3, 4), loss="cross-entropy")
    assert names(ledger, phase="forward", module=LOSS) == ["_log_softmax", "nll_loss_forward"]
    assert names(ledger, phase="backward", module=LOSS) == [
        "ones_like",
        "nll_loss_backward",
        "_log_softmax_backward_data",
    ]
    assert all(module.path != LOSS for module in ledger.modules)


def test_keys_are_unique_and_indices_run_through() -> None:
    ledger = train(ConvNet(), torch.randn(2, 3, 8, 8), accumulate=2)
    assert len({op.key for op in ledger.ops}) == len(ledger.ops)
    assert [op.index for op in ledger.ops] == list(range(len(ledger.ops)))


def test_a_modules_row_tells_its_shapes_and_calls() -> None:
    ledger = infer(ConvNet(), torch.randn(2, 3, 8, 8))
    conv2 = next(module for module in ledger.modules if module.path == "conv2")
    assert (conv2.type, conv2.calls, conv2.inputs, conv2.outputs) == ("Conv2d", 1, ((2, 4, 8, 8),), ((2, 5, 8, 8),))
    assert (conv2.params, conv2.param_bytes) == (5 * 4 * 9 + 5, 4 * (5 * 4 * 9 + 5))
    assert [module.path for module in ledger.modules] == ["", "conv1", "conv2", "fc"]


# Modules called twice, shared modules, shared parameters


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(F.relu(self.layer(x)))


class SharedUnderTwoNames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.again = self.layer

    def forward(self, x: Tensor) -> Tensor:
        return self.again(F.relu(self.layer(x)))


@pytest.mark.parametrize("model", [CalledTwice(), SharedUnderTwoNames()], ids=["twice", "two names"])
def test_calls_of_one_module_are_numbered(model: nn.Module) -> None:
    ledger = train(model, torch.randn(3, 4))
    assert [(op.module, op.call) for op in rows(ledger, "addmm")] == [("layer", 0), ("layer", 1)]
    # Backward runs the second call first: gradient of its input and of the weight; the first call has no such input.
    assert [(op.module, op.call) for op in rows(ledger, "mm")] == [("layer", 1), ("layer", 1), ("layer", 0)]
    assert only(ledger, "threshold_backward").module == ""
    assert [(module.path, module.calls, module.params) for module in ledger.modules] == [("", 1, 0), ("layer", 2, 20)]


class Tied(nn.Module):
    """A language model's shape: the embedding is also the last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 4)
        self.head = nn.Linear(4, 10, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


def test_tied_weights_count_once() -> None:
    ledger = train(Tied(), torch.randint(0, 10, (2, 3)))
    params = {module.path: (module.params, module.tied) for module in ledger.modules}
    assert params == {"": (0, ()), "embedding": (40, ()), "head": (0, ("weight",))}
    assert [s.name for s in ledger.storages if s.category == "parameter"] == ["embedding.weight"]
    assert [(s.name, s.nbytes) for s in ledger.storages if s.category == "gradient"] == [("embedding.weight", 160)]
    # Both uses give a gradient, and they are added up at the owner.
    assert only(ledger, "embedding_dense_backward").module == "embedding"
    assert only(ledger, "add", phase="backward").module == "embedding"
    # head: 6 tokens * 4 * 10 MACs, forward, and twice in backward.
    assert flops(rows(ledger, module="head")) == 3 * 2 * 240


# Checkpointing: forward of the block is 3 * 4 * 8 + 3 * 8 * 4 = 192 MACs


def test_reentrant_checkpointing_runs_the_whole_block_again() -> None:
    ledger = train(Checkpointed(reentrant=True), torch.randn(3, 4))
    plain = train(nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 2)), torch.randn(3, 4))
    again = [op for op in ledger.ops if op.recompute]
    assert [(op.phase, op.module, op.packet) for op in again if op.kind == "compute"] == [
        ("backward", "block.a", "aten::addmm"),
        ("backward", "block", "aten::relu"),
        ("backward", "block.b", "aten::addmm"),
    ]
    totals = total(ledger.ops)
    assert totals.recompute_flops == 2 * 192
    assert totals.flops == total(plain.ops).flops
    backward = [(op.module, op.packet) for op in rows(ledger, phase="backward") if op.packet == "aten::mm"]
    assert [module for module, _ in backward] == ["last", "last", "block.b", "block.b", "block.a", "block.a", "first"]


def test_checkpointing_without_reentry_stops_early() -> None:
    ledger = train(Checkpointed(reentrant=False), torch.randn(3, 4))
    again = [(op.module, op.packet) for op in ledger.ops if op.recompute and op.kind == "compute"]
    # Nothing after the last tensor that backward needs (the output of relu) is computed again.
    assert again == [("block.a", "aten::addmm"), ("block", "aten::relu")]
    assert total(ledger.ops).recompute_flops == 2 * 3 * 4 * 8
    assert [op.module for op in rows(ledger, "mm", phase="backward")] == [
        "last", "last", "block.b", "block.b", "block.a", "block.a", "first",
    ]  # fmt: skip
    assert only(ledger, "threshold_backward").module == "block"


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_keeps_less_for_backward(reentrant: bool) -> None:
    def kept(model: nn.Module) -> int:
        storages = train(model, torch.randn(3, 4)).storages
        return sum(s.nbytes for s in storages if s.category == "activation")

    plain = nn.Sequential(nn.Linear(4, 4), Block(), nn.Linear(4, 2))
    # The output of relu, 3 x 8 floats, is not kept but made again.
    assert kept(plain) - kept(Checkpointed(reentrant)) == 3 * 8 * 4


# Training steps


def test_accumulation_repeats_forward_and_backward_and_steps_once() -> None:
    x = torch.randn(3, 4)
    once, thrice = train(Block(), x), train(Block(), x, accumulate=3)
    assert thrice.header.accumulate == 3
    for name in ("addmm", "relu", "mm", "threshold_backward"):
        assert len(rows(thrice, name)) == 3 * len(rows(once, name)), name
    assert names(thrice, phase="optimizer") == names(once, phase="optimizer")
    assert total(thrice.ops).flops == 3 * total(once.ops).flops
    assert [op.call for op in rows(thrice, "addmm", module="a")] == [0, 1, 2]
    phases = [op.phase for op in thrice.ops]
    changes = [phase for phase, before in zip(phases, ["", *phases], strict=False) if phase != before]
    assert changes == ["forward", "backward"] * 3 + ["optimizer"]


def test_frozen_parameters_have_no_gradient_and_no_optimizer() -> None:
    model = ConvNet()
    model.conv1.requires_grad_(False)
    model.conv2.weight.requires_grad_(False)
    ledger = train(model, torch.randn(2, 3, 8, 8))
    # Below the frozen conv1 nothing is needed; of conv2 only the bias is, which is no matrix work.
    assert [op.module for op in rows(ledger, "convolution_backward")] == ["conv2"]
    assert flops(rows(ledger, "convolution_backward")) == 0
    assert sorted(s.name for s in ledger.storages if s.category == "gradient") == ["conv2.bias", "fc.bias", "fc.weight"]
    assert [t.shape for t in rows(ledger, phase="optimizer")[0].tensors("self")] == [(5,), (2, 5), (2,)]
    assert (
        sum(module.params for module in ledger.modules) - sum(m.trainable_params for m in ledger.modules) == 112 + 180
    )


def test_a_model_without_trainable_parameters_has_only_a_forward() -> None:
    model = Block().requires_grad_(False)
    ledger = train(model, torch.randn(3, 4))
    assert {op.phase for op in ledger.ops} == {"forward"}


# Compiled modules


def compiled_whole() -> nn.Module:
    return compiled_module(Checkpointed(reentrant=False))


def compiled_in_place() -> nn.Module:
    model = Checkpointed(reentrant=False)
    model.compile()
    return model


def compiled_inside() -> nn.Module:
    model = Checkpointed(reentrant=False)
    model.block = compiled_module(model.block)  # type: ignore[assignment]
    return model


def compiled_inside_in_place() -> nn.Module:
    model = Checkpointed(reentrant=False)
    model.block.a.compile()
    return model


@pytest.mark.parametrize("make", [compiled_whole, compiled_in_place, compiled_inside, compiled_inside_in_place])
def test_a_compiled_module_is_traced_as_the_eager_module_it_was(make) -> None:
    x = torch.randn(3, 4)
    eager, compiled = train(Checkpointed(reentrant=False), x), train(make(), x)
    assert [op.key for op in compiled.ops] == [op.key for op in eager.ops]
    assert [module.path for module in compiled.modules] == [module.path for module in eager.modules]
    assert [module.calls for module in compiled.modules] == [module.calls for module in eager.modules]
    assert not note_texts(eager.header.notes)
    assert "compiled" in note_texts(compiled.header.notes)[0]
    assert [s.name for s in compiled.storages if s.category == "parameter"] == [
        s.name for s in eager.storages if s.category == "parameter"
    ]


def test_a_compiled_model_is_named_after_what_was_compiled() -> None:
    assert infer(compiled_module(Block()), torch.randn(3, 4)).header.model == "Block"


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        ctx.save_for_backward(x, w)
        return x @ w

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, w = ctx.saved_tensors
        return grads[0] @ w.T, x.T @ grads[0]


class FunctionBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8))

    def forward(self, x: Tensor) -> Tensor:
        return Product.apply(x, self.w)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_function_does_again_is_recomputation_too(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = FunctionBlock()

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.block, x, use_reentrant=reentrant)

    ledger = train(Net(), torch.randn(8, 8, requires_grad=True))
    product = 2 * 8 * 8 * 8
    sums = total(ledger.ops)
    assert (sums.flops, sums.recompute_flops) == (3 * product, product)
    again = [op for op in ledger.ops if op.recompute and op.cost and op.cost.recompute_flops]
    assert [op.module for op in again] == ["block"]
