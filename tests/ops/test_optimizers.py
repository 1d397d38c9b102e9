"""Optimizer steps and linear algebra: counts derived by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rooflight import estimate
from rooflight.ledger import total
from tests.fixtures.recording import cost, meta

aten = torch.ops.aten


def _list(*sizes: int) -> list[torch.Tensor]:
    return [meta(size) for size in sizes]


@pytest.mark.parametrize(
    ("function", "args", "options", "per_element"),
    [
        (aten._foreach_add_.List, (_list(6, 4), _list(6, 4)), {}, 1),
        (aten._foreach_add_.List, (_list(6, 4), _list(6, 4)), {"alpha": -0.1}, 2),
        (aten._foreach_add.Scalar, (_list(6, 4), 1), {}, 1),
        (aten._foreach_mul_.Scalar, (_list(6, 4), 0.9), {}, 1),
        (aten._foreach_mul_.ScalarList, (_list(6, 4), [0.9, 0.8]), {}, 1),
        (aten._foreach_sqrt.default, (_list(6, 4),), {}, 1),
        (aten._foreach_lerp_.Scalar, (_list(6, 4), _list(6, 4), 0.1), {}, 3),
        (aten._foreach_addcmul_.Scalar, (_list(6, 4), _list(6, 4), _list(6, 4)), {"value": 0.1}, 3),
        (aten._foreach_addcmul_.Scalar, (_list(6, 4), _list(6, 4), _list(6, 4)), {}, 2),
        (aten._foreach_addcdiv_.ScalarList, (_list(6, 4), _list(6, 4), _list(6, 4), [0.1, 0.2]), {}, 3),
        (aten._foreach_zero_.default, (_list(6, 4),), {}, 0),
        (aten._foreach_copy_.default, (_list(6, 4), _list(6, 4)), {}, 0),
        (aten._foreach_pow.ScalarAndTensor, (2, _list(6, 4)), {}, 1),
    ],
)
def test_foreach(function: Any, args: tuple[Any, ...], options: dict[str, Any], per_element: int) -> None:
    assert cost(function, *args, **options).other_flops == 10 * per_element


def test_foreach_bytes() -> None:
    found = cost(aten._foreach_add_.List, _list(6, 4), _list(6, 4), alpha=-0.1)
    assert (found.bytes_read, found.bytes_written) == (80, 40)
    found = cost(aten._foreach_copy_.default, _list(6, 4), _list(6, 4))
    assert (found.bytes_read, found.bytes_written) == (40, 40)
    found = cost(aten._foreach_zero_.default, _list(6, 4))
    assert (found.bytes_read, found.bytes_written) == (0, 40)


def _sgd(**options: Any) -> tuple[int | None, int | None, int | None]:
    lists = [[torch.ones(10)] for _ in range(3)]
    chosen = {"weight_decay": 0.0, "momentum": 0.9, "lr": 0.1, "dampening": 0.0, "nesterov": False}
    chosen |= {"maximize": False, "is_first_step": False} | options
    found = cost(aten._fused_sgd_.default, *lists, **chosen)
    return found.other_flops, found.bytes_read, found.bytes_written


def test_fused_sgd() -> None:
    # m * buf + g: 2; p - lr * g: 2. Reads p, g, buf; writes p, buf: gradients stay as they are.
    assert _sgd() == (40, 120, 80)
    # Weight decay 2, Nesterov 2.
    assert _sgd(weight_decay=0.1, nesterov=True) == (80, 120, 80)
    # The first step copies g into buf.
    assert _sgd(is_first_step=True) == (20, 80, 80)


@pytest.mark.parametrize(
    ("function", "decay", "per_element"),
    [(aten._fused_adam_.default, 0.0, 13), (aten._fused_adam_.default, 0.1, 15), (aten._fused_adamw_.default, 0.1, 14)],
)
def test_fused_adam(function: Any, decay: float, per_element: int) -> None:
    # m 3, v 4, denominator 3, update 3; decay 2, or 1 where it is decoupled. Reads p, g, m, v; writes p, m, v.
    p, g, m, v = ([torch.ones(10)] for _ in range(4))
    options = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": decay, "eps": 1e-8}
    found = cost(function, p, g, m, v, [], [torch.ones(())], **options, amsgrad=False, maximize=False)
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (10 * per_element, 160, 120)


def test_loss_scaling() -> None:
    found = cost(aten._amp_foreach_non_finite_check_and_unscale_.default, _list(6, 4), meta(1), meta(1))
    assert found.other_flops == 20


@pytest.mark.parametrize(
    ("function", "args", "operations"),
    [
        (aten.linalg_cholesky_ex.default, (meta(2, 6, 6),), 144),  # 2 * 216 / 3
        (aten.linalg_lu_factor_ex.default, (meta(6, 6),), 144),  # 2 * 216 / 3
        (aten.linalg_inv_ex.default, (meta(6, 6),), 432),
        (aten._linalg_solve_ex.default, (meta(6, 6), meta(6, 2)), 144 + 144),
        (aten.linalg_qr.default, (meta(12, 6),), 2 * (864 - 144)),
        (aten.linalg_cross.default, (meta(4, 3), meta(4, 3)), 36),
        (aten._cdist_forward.default, (meta(5, 3), meta(6, 3), 2.0, None), 270),  # 30 pairs: 3 * 3
        (aten._fft_c2c.default, (meta(4, 8, dtype=torch.complex64), [1], 0, True), 480),  # 5 * 32 * 3
        (aten._fft_r2c.default, (meta(4, 8), [1], 0, True), 240),
        (aten._fft_c2r.default, (meta(4, 5, dtype=torch.complex64), [1], 2, 8), 240),
    ],
)
def test_linear_algebra(function: Any, args: tuple[Any, ...], operations: int) -> None:
    assert cost(function, *args).other_flops == operations


def test_bilinear() -> None:
    # x1 [2, 8], W [3, 8, 4], x2 [2, 4]: for each of 3 outputs [2, 8] x [8, 4] is 64 MACs, then 2 times [4] x [4] is 8;
    # its 2 results are added to zeros.
    found = cost(aten._trilinear.default, meta(2, 8), meta(3, 8, 4), meta(2, 4), [1, 3], [0], [1, 2], [2, 3])
    assert (found.macs, found.other_flops) == (3 * (64 + 8), 3 * 2)


def test_bilinear_as_a_layer_with_its_gradients() -> None:
    # 20 x 30 -> 40 at batch 8: 40 * (8 * 20 * 30 + 8 * 30) = 201,600 MACs, 403,200 FLOPs.
    inputs = torch.randn(8, 20, requires_grad=True), torch.randn(8, 30, requires_grad=True)
    ledger = estimate(nn.Bilinear(20, 30, 40), *inputs, step="train", loss="mse")
    macs = [op.cost.macs for op in ledger.ops if op.packet == "aten::_trilinear" and op.cost]
    # Backward. dx1: dy * W is 8 * 20 * 30, times x2 as much again. dW: x1 * dy is 8 * 20, times x2 8 * 20 * 30.
    # dx2: x1 * W summed over 20 is 8 * 20 * 30, times dy 8 * 30.
    assert macs[0] == 201_600
    assert sorted(macs[1:]) == sorted([40 * (4800 + 4800), 40 * (160 + 4800), 40 * (4800 + 240)])


def test_distances_of_more_than_25_rows_are_a_product() -> None:
    # 60 x 100 pairs over 16 coordinates and the two squared norms: 60 * 100 * 18 MACs, 216,000 FLOPs.
    # Other work: 3 * 60 * 16 - 60 of x, 2 * 100 * 16 - 100 of y, clamp and root of 6,000.
    found = cost(aten._euclidean_dist.default, meta(60, 16), meta(100, 16))
    assert (found.flops, found.other_flops) == (216_000, 2820 + 3100 + 12_000)
    assert total(estimate(Distances(), torch.randn(60, 16), torch.randn(100, 16)).ops).flops == 216_000
    # Below, a kernel of its own: a difference, a square and a sum for each coordinate of 25 * 25 pairs.
    few = total(estimate(Distances(), torch.randn(25, 16), torch.randn(25, 16)).ops)
    assert (few.flops, few.other_flops) == (0, 3 * 625 * 16)


class Distances(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cdist(x, y)
