"""Reductions, softmax, sorting and losses: counts derived by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fixtures.recording import cost, meta, numbers

aten = torch.ops.aten
X = meta(4, 10)  # 40 elements, 4 rows


@pytest.mark.parametrize(
    ("function", "args", "operations"),
    [
        (aten.sum.dim_IntList, (X, [1]), 36),
        (aten.sum.default, (X,), 39),
        (aten.mean.dim, (X, [1]), 40),  # 36 additions, 4 divisions
        (aten.amax.default, (X, [1]), 36),
        (aten.max.dim, (X, 1), 36),
        (aten.argmax.default, (X, 1), 36),
        (aten.any.dim, (X, 1), 36),
        (aten.aminmax.default, (X,), 78),
        (aten.var_mean.correction, (X, [1]), 160),  # mean 40, difference 40, square 40, its mean 40
        (aten.std.correction, (X, [1]), 164),  # and 4 roots
        (aten.linalg_vector_norm.default, (X,), 80),  # 40 squares, 39 additions, 1 root
        (aten.linalg_vector_norm.default, (X, 1), 79),  # 40 absolute values, 39 additions
        (aten.linalg_vector_norm.default, (X, float("inf")), 79),
        (aten.linalg_vector_norm.default, (X, 3), 120),  # absolute value, power; 39 additions, 1 root
        (aten.logsumexp.default, (X, [1]), 160),  # max 36, subtract 40, exp 40, sum 36, log 4, add 4
        (aten.cumsum.default, (X, 1), 36),
        (aten.count_nonzero.default, (X,), 79),
        (aten._softmax.default, (X, 1, False), 192),  # 36 + 40 + 40 + 36 + 40
        (aten._log_softmax.default, (X, 1, False), 196),  # 36 + 40 + 40 + 36 + 4 + 40
        (aten._softmax_backward_data.default, (X, X, 1, torch.float32), 156),  # 40 + 36 + 40 + 40
        (aten._log_softmax_backward_data.default, (X, X, 1, torch.float32), 156),
        (aten._safe_softmax.default, (X, 1), 268),  # 192 + 40 comparisons + 36 conjunctions
    ],
)
def test_reductions(function: Any, args: tuple[Any, ...], operations: int) -> None:
    assert cost(function, *args).other_flops == operations


def test_a_mask_is_looked_at_and_the_tensor_is_not() -> None:
    found = cost(aten._nested_tensor_from_mask_left_aligned.default, torch.ones(2, 3, 4), torch.ones(2, 3) > 0)
    assert (found.other_flops, found.bytes_read) == (2 * 6, 6)


def test_softmax_over_another_dimension() -> None:
    # Over the columns there are 10 rows of 4: 5 * 40 - 2 * 10.
    assert cost(aten._softmax.default, X, 0, False).other_flops == 180


def test_max_of_pairs_is_pointwise() -> None:
    assert cost(aten.max.other, X, X).other_flops == 40


def test_foreach_norm_sums_over_the_list() -> None:
    # 2 * (6 + 4); one root per tensor replaces its missing addition.
    assert cost(aten._foreach_norm.Scalar, [meta(2, 3), meta(4)]).other_flops == 20


def test_trace_reads_the_diagonal() -> None:
    found = cost(aten.trace.default, meta(10, 10))
    assert (found.other_flops, found.bytes_read) == (9, 40)


@pytest.mark.parametrize(
    ("function", "args", "operations"),
    [
        (aten.sort.default, (X, 1), 160),  # ceil(log2(10)) = 4 comparisons for each of 40
        (aten.topk.default, (X, 3), 160),
        (aten.kthvalue.default, (X, 3), 160),
        (aten.median.default, (X,), 240),  # one row of 40: ceil(log2(40)) = 6
        (aten._unique2.default, (torch.arange(8.0),), 31),  # 8 * 3 and 7 neighbours
        (aten.bincount.default, (torch.arange(8),), 8),
        (aten.searchsorted.Tensor, (meta(7), meta(5)), 15),  # 8 places to tell apart: 3 comparisons
        (aten.bucketize.Tensor, (meta(5), meta(7)), 15),
        (aten.histc.default, (torch.ones(10), 4, 0, 1), 40),
    ],
)
def test_sorting_and_searching(function: Any, args: tuple[Any, ...], operations: int) -> None:
    assert cost(function, *args).other_flops == operations


@pytest.mark.parametrize(
    ("function", "reduction", "operations"),
    [
        (aten.mse_loss.default, 1, 120),  # subtract, square; 39 additions, 1 division
        (aten.mse_loss.default, 2, 119),
        (aten.mse_loss.default, 0, 80),
        (aten.smooth_l1_loss.default, 1, 280),
        (aten.huber_loss.default, 1, 240),
        (aten.binary_cross_entropy.default, 1, 400),
    ],
)
def test_pairwise_losses(function: Any, reduction: int, operations: int) -> None:
    options = (None, reduction) if function is aten.binary_cross_entropy.default else (reduction,)
    assert cost(function, X, X, *options).other_flops == operations


def test_logits_cost_a_log_sigmoid() -> None:
    # 1 - t, * x, log_sigmoid 6, subtract: 9; with the mean 10.
    assert cost(aten.binary_cross_entropy_with_logits.default, X, X).other_flops == 400


def test_mse_gradient() -> None:
    assert cost(aten.mse_loss_backward.default, meta(), X, X, 1).other_flops == 120


def test_nll_reads_one_element_a_row() -> None:
    # 4 rows: 4 negations, 3 additions, 1 division; 4 floats and 4 indices read; loss and total weight written.
    found = cost(aten.nll_loss_forward.default, X, numbers(4), None, 1, -100)
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (8, 48, 8)
    # Weighted: 4 products and 3 additions more, and the 10 weights read.
    found = cost(aten.nll_loss_forward.default, X, numbers(4), meta(10), 1, -100)
    assert (found.other_flops, found.bytes_read) == (4 + 4 + 3 + 3 + 1, 88)


def test_nll_gradient_is_written_whole() -> None:
    # Reads 4 indices, dy and the total weight; writes 40 floats.
    found = cost(aten.nll_loss_backward.default, meta(), X, numbers(4), None, 1, -100, meta())
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (4, 40, 160)


def test_ctc_recursion() -> None:
    # 6 steps, 1 sample, 2 labels: 5 states, 13 operations each.
    targets = torch.ones(1, 2, dtype=torch.int64)
    assert cost(aten._ctc_loss.default, torch.zeros(6, 1, 4), targets, [6], [2]).other_flops == 390
