"""Pointwise ops, activations, random numbers: counts derived by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fixtures.recording import cost, meta

aten = torch.ops.aten
X = meta(2, 3, 4)  # 24 elements


@pytest.mark.parametrize(
    ("function", "args", "per_element"),
    [
        (aten.relu.default, (X,), 1),
        (aten.neg.default, (X,), 1),
        (aten.rsqrt.default, (X,), 1),
        (aten.cos.default, (X,), 1),
        (aten.pow.Tensor_Scalar, (X, 2), 1),
        (aten.eq.Scalar, (X, 0), 1),
        (aten.logical_and.default, (X, X), 1),
        (aten.lerp.Scalar, (X, X, 0.1), 3),
        (aten.sigmoid.default, (X,), 4),
        (aten.silu.default, (X,), 4),
        (aten.gelu.default, (X,), 5),
        (aten.hardswish.default, (X,), 5),
        (aten.hardsigmoid.default, (X,), 4),
        (aten.hardtanh.default, (X, 0, 6), 2),
        (aten.leaky_relu.default, (X,), 2),
        (aten.mish.default, (X,), 4),
        (aten.elu.default, (X,), 3),
        (aten.softplus.default, (X,), 3),
        (aten.softplus.default, (X, 2), 5),
        (aten.clamp.default, (X, 0), 1),
        (aten.clamp.default, (X, 0, 1), 2),
        (aten.where.ScalarOther, (X > 0, X, 0.0), 0),
        (aten.threshold_backward.default, (X, X, 0), 1),
        (aten.gelu_backward.default, (X, X), 11),
        (aten.silu_backward.default, (X, X), 9),
        (aten.sigmoid_backward.default, (X, X), 3),
        (aten.tanh_backward.default, (X, X), 3),
        (aten.mish_backward.default, (X, X), 13),
        (aten.native_dropout_backward.default, (X, X > 0, 2.0), 2),
    ],
)
def test_operations_per_element(function: Any, args: tuple[Any, ...], per_element: int) -> None:
    assert cost(function, *args).other_flops == 24 * per_element


def test_gelu_by_tanh_counts_every_result() -> None:
    # x*x, *x, *k, x+, *b, tanh, 1+, 0.5*x, product = 9
    assert cost(aten.gelu.default, X, approximate="tanh").other_flops == 216
    # x*x, *x, *k, x+, *b, tanh | 0.5x | 1+t | 0.5(1+t) | t*t, 1- | 3k*x^2, 1+, *b | two products | add, times dy = 18
    assert cost(aten.gelu_backward.default, X, X, approximate="tanh").other_flops == 432


def test_a_factor_of_one_is_no_operation() -> None:
    assert cost(aten.add.Tensor, X, X).other_flops == 24
    assert cost(aten.add.Tensor, X, X, alpha=1).other_flops == 24
    assert cost(aten.add.Tensor, X, X, alpha=0.5).other_flops == 48
    assert cost(aten.sub.Tensor, X, X, alpha=-2).other_flops == 48
    assert cost(aten.addcmul.default, X, X, X).other_flops == 48
    assert cost(aten.addcmul.default, X, X, X, value=0.1).other_flops == 72
    assert cost(aten.addcdiv_.default, meta(24), meta(24), meta(24), value=-0.1).other_flops == 72


def test_broadcast_counts_results_and_reads_inputs_once() -> None:
    # [8, 1] + [1, 16]: 128 results; 24 numbers read, 128 written, 4 bytes each.
    found = cost(aten.add.Tensor, meta(8, 1), meta(1, 16))
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (128, 96, 512)


def test_in_place_reads_and_writes_its_argument() -> None:
    found = cost(aten.add_.Tensor, meta(10), meta(10))
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (10, 80, 40)
    found = cost(aten.relu_.default, meta(10))
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (10, 40, 40)


def test_complex_products() -> None:
    z, r = meta(5, dtype=torch.complex64), meta(5)
    assert cost(aten.mul.Tensor, z, z).other_flops == 30  # 4 products, 2 additions
    assert cost(aten.mul.Tensor, z, r).other_flops == 10  # both parts scaled
    assert cost(aten.add.Tensor, z, z).other_flops == 10
    assert cost(aten.abs.default, z).other_flops == 20  # 2 squares, addition, root
    assert cost(aten.polar.default, r, r).other_flops == 20  # cos, sin, 2 products


def test_glu_counts_its_half() -> None:
    # x [2, 8] -> y [2, 4]: 8 results of a * sigmoid(b), 5 each; backward 4 + 1 + 4 for each.
    assert cost(aten.glu.default, meta(2, 8)).other_flops == 40
    assert cost(aten.glu_backward.default, meta(2, 4), meta(2, 8), -1).other_flops == 72


def test_dropout_draws_compares_and_scales() -> None:
    found = cost(aten.native_dropout.default, X, 0.1, True)
    # reads 24 floats; writes 24 floats and 24 bytes of mask
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (96, 96, 120)
    assert cost(aten.native_dropout.default, X, 0.1, False).other_flops == 0


def test_random_fills_read_nothing() -> None:
    found = cost(aten.uniform_.default, meta(10))
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (10, 0, 40)
    found = cost(aten.bernoulli_.float, meta(10), 0.9)
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (20, 0, 40)
    found = cost(aten.bernoulli.default, meta(10))
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (20, 40, 40)
    found = cost(aten.rand_like.default, meta(10))
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (10, 0, 40)


def test_multinomial_of_one_sample_is_a_race() -> None:
    # 2 rows of 50: 100 draws, 100 quotients, 98 comparisons.
    assert cost(aten.multinomial.default, meta(2, 50), 1).other_flops == 298


def test_equal_compares_and_joins() -> None:
    assert cost(aten.equal.default, torch.ones(4), torch.ones(4)).other_flops == 7
