"""Branches and loops that torch keeps whole, and modules that torch made of others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from rooflight.errors import TraceFailed
from tests.fixtures.tracing import flops, infer, names, rows, train


class Either(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor, wanted: Tensor) -> Tensor:
        return torch.cond(wanted.all(), self.layer, torch.exp, (x,))


def test_a_branch_by_data_is_named_and_real_data_takes_one() -> None:
    x, before = torch.randn(2, 4), torch.cond
    with pytest.raises(TraceFailed, match=r"torch\.cond.*looks at values of its data"):
        infer(Either(), x, torch.tensor([True]))
    assert names(infer(Either(), x, torch.tensor([True]), real_data=True))[-1] == "addmm"
    assert names(infer(Either(), x, torch.tensor([False]), real_data=True))[-1] == "exp"
    assert len(rows(train(Either(), x, torch.tensor([True]), real_data=True), "mm", phase="backward")) == 1
    assert torch.cond is before


class Loop(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        from torch._higher_order_ops.while_loop import while_loop

        first = torch.zeros((), dtype=torch.int64, device=x.device)
        return while_loop(lambda i, x: i < 3, lambda i, x: (i + 1, x.exp()), (first, x))[1]


def test_a_loop_of_known_length_runs_as_often() -> None:
    assert names(infer(Loop(), torch.randn(2))).count("exp") == 3


def test_an_exported_module_is_traced_in_the_mode_it_has() -> None:
    layer, x = nn.Linear(4, 4), torch.randn(2, 4)
    exported = torch.export.export(layer, (x,)).module()
    assert flops(rows(infer(exported, x))) == flops(rows(infer(layer, x))) == 2 * 2 * 4 * 4


def test_a_tensor_that_wraps_others_is_trained() -> None:
    class Wrapped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(TwoTensor(torch.randn(4, 4), torch.randn(4, 4)))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    model = Wrapped()
    before = model.weight
    assert flops(rows(infer(model, torch.randn(2, 4)), "mm")) == 2 * 2 * 4 * 4
    assert flops(rows(train(model, torch.randn(2, 4)), "mm")) == 2 * (2 * 2 * 4 * 4)
    assert model.weight is before


def test_products_of_complex_numbers_run_on_the_units_of_real_ones() -> None:
    class Complex(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight

    (op,) = rows(infer(Complex(), torch.randn(2, 4, dtype=torch.complex64)), "mm")
    assert op.precision == "fp32"
    assert flops([op]) == 4 * (2 * 2 * 4 * 4)
