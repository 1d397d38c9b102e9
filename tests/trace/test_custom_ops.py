"""Operators that are not torch's: listed while nobody knows them, counted once somebody does."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

import rooflight
from rooflight.errors import TraceFailed
from rooflight.ledger import Op, Uncounted, total
from rooflight.ops.registry import FORMULAS
from tests.fixtures.tracing import infer, train


@torch.library.custom_op("rooflighttests::project", mutates_args=())
def project(x: Tensor, weight: Tensor) -> Tensor:
    return x @ weight


@project.register_fake
def _(x: Tensor, weight: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], weight.shape[1])


@torch.library.custom_op("rooflighttests::project_backward", mutates_args=())
def project_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return gradient @ weight.T, x.T @ gradient


@project_backward.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(weight)


def _save(ctx, inputs, output) -> None:
    ctx.save_for_backward(*inputs)


project.register_autograd(lambda ctx, gradient: project_backward(gradient, *ctx.saved_tensors), setup_context=_save)


@torch.library.custom_op("rooflighttests::opaque", mutates_args=())
def opaque(x: Tensor) -> Tensor:
    return x.clone()


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return project(x, self.weight)


@pytest.fixture
def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), Projected())


MACS = 2 * 4 * 3


@pytest.fixture
def known() -> Iterator[None]:
    @rooflight.formula("rooflighttests::project")
    def project_work(op: Op) -> rooflight.Work:
        (m, k), (_, n) = op.tensor("x").shape, op.tensor("weight").shape
        return rooflight.Work(macs="M * K * N", where={"M": m, "K": k, "N": n})

    yield
    FORMULAS.unregister("rooflighttests::project")


@pytest.fixture
def known_to_torch() -> Iterator[None]:
    packets = torch.ops.rooflighttests.project, torch.ops.rooflighttests.project_backward

    @register_flop_formula(packets[0])
    def forward(x, weight, *args, out_shape=None, **kwargs) -> int:
        return 2 * x[0] * x[1] * weight[1]

    @register_flop_formula(packets[1])
    def backward(gradient, x, weight, *args, out_shape=None, **kwargs) -> int:
        return 4 * x[0] * x[1] * weight[1]

    yield
    for packet in packets:
        del flop_registry[packet]


def test_an_operator_without_a_formula_is_listed_as_uncounted(net: nn.Module) -> None:
    ledger = train(net, torch.randn(2, 4))
    totals = total(ledger.ops)
    assert totals.uncounted == (
        Uncounted("rooflighttests::project", 1), Uncounted("rooflighttests::project_backward", 1),
    )  # fmt: skip
    custom = [op for op in ledger.ops if op.name.startswith("rooflighttests")]
    assert [(op.phase, op.module, op.cost) for op in custom] == [("forward", "1", None), ("backward", "1", None)]
    assert custom[0].tensor("x").shape == (2, 4)
    assert custom[0].outputs[0].shape == (2, 3)
    # The rest is counted all the same.
    assert totals.flops == 2 * 2 * (2 * 4 * 4)


@pytest.mark.usefixtures("known")
def test_a_formula_of_ones_own_counts_it(net: nn.Module) -> None:
    ledger = infer(net, torch.randn(2, 4))
    cost = next(op.cost for op in ledger.ops if op.name == "rooflighttests::project")
    assert cost is not None
    assert (cost.macs, cost.flops, cost.other_flops) == (MACS, 2 * MACS, 0)
    # x and the weight are read, the result is written.
    assert (cost.bytes_read, cost.bytes_written) == (4 * (2 * 4 + 4 * 3), 4 * 2 * 3)
    assert cost.origin == "formula rooflighttests::project"
    assert not total(ledger.ops).uncounted


@pytest.mark.usefixtures("known_to_torch")
def test_torchs_registry_is_the_fallback(net: nn.Module) -> None:
    ledger = train(net, torch.randn(2, 4))
    forward, backward = (op.cost for op in ledger.ops if op.name.startswith("rooflighttests"))
    assert forward is not None
    assert backward is not None
    assert (forward.flops, backward.flops) == (2 * MACS, 4 * MACS)
    assert "flop_registry" in forward.origin
    # torch's registry says nothing of work outside matrices: unknown, not zero.
    assert forward.other_flops is None
    assert {row.op for row in total(ledger.ops).uncounted} == {
        "rooflighttests::project", "rooflighttests::project_backward",
    }  # fmt: skip


@pytest.mark.usefixtures("known", "known_to_torch")
def test_ones_own_formula_goes_before_torchs(net: nn.Module) -> None:
    cost = next(op.cost for op in infer(net, torch.randn(2, 4)).ops if op.name == "rooflighttests::project")
    assert cost is not None
    assert cost.origin == "formula rooflighttests::project"


def test_an_operator_that_needs_data_is_named_with_the_line_that_calls_it() -> None:
    class Opaque(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return opaque(x)  # the line

    with pytest.raises(TraceFailed, match=r"test_custom_ops\.py:\d+ \(return opaque\(x\)  # the line\)") as caught:
        infer(Opaque(), torch.randn(2))
    assert "rooflighttests::opaque" in str(caught.value)
    assert "rooflighttests::opaque cannot run on tensors without data" in str(caught.value)
    assert "real_data=True, or, if it is your own operator, give it torch.library.register_fake" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [op.name for op in infer(Opaque(), torch.randn(2), on="cpu").ops] == ["rooflighttests::opaque"]


class Doubled(torch.autograd.Function):
    """A function with a backward of its own, in plain torch."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_an_autograd_function_is_filed_under_the_module_that_applies_it() -> None:
    class Double(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return Doubled.apply(x)

    ledger = train(nn.Sequential(nn.Linear(4, 4), Double()), torch.randn(2, 4))
    found = [(op.phase, op.module) for op in ledger.ops if op.name == "aten::mul.Tensor" and op.module != "<loss>"]
    assert found == [("forward", "1"), ("backward", "1")]


def test_torchs_formula_gets_absent_arguments_in_their_places() -> None:
    @torch.library.custom_op("rooflight_tests::scores", mutates_args=())
    def scores(x: Tensor, mask: Tensor | None, w: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
        return x @ w @ v

    @scores.register_fake
    def _(x: Tensor, mask: Tensor | None, w: Tensor, v: Tensor, scale: float = 1.0) -> Tensor:
        return x.new_empty(x.shape[0], v.shape[1])

    @register_flop_formula(torch.ops.rooflight_tests.scores)
    def formula(x, mask, w, v, scale=1.0, *, out_shape=None, **kwargs) -> int:
        return 2 * x[0] * x[1] * w[1] + 2 * x[0] * w[1] * v[1]

    class Net(nn.Module):
        def forward(self, x: Tensor, w: Tensor, v: Tensor) -> Tensor:
            return scores(x, None, w, v)

    try:
        ledger = infer(Net(), torch.randn(2, 3), torch.randn(3, 4), torch.randn(4, 5))
    finally:
        del flop_registry[torch.ops.rooflight_tests.scores]
    assert total(ledger.ops).flops == 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5
