"""Normalisation, training and evaluation apart: counts derived by hand.

x [2, 3, 8, 8] is n = 384 elements in C = 3 channels.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rooflight import estimate, predict
from tests.fixtures.recording import Pretended, cost, meta
from tests.fixtures.torch_versions import needs_torch

aten = torch.ops.aten
X, C = meta(2, 3, 8, 8), meta(3)
ROWS, D = meta(4, 10), meta(10)  # n = 40, R = 4, D = 10
ALL = [True, True, True]


def test_batch_norm_training() -> None:
    # mean n, difference n, variance 2n, scale n, weight n, bias n = 7n; rstd 2C, running statistics 7C.
    found = cost(aten.native_batch_norm.default, X, C, C, C, C, True, 0.1, 1e-5)
    assert found.other_flops == 7 * 384 + 9 * 3
    # Written: y, saved mean and rstd, and the running statistics, of which the schema does not speak.
    assert found.bytes_written == (384 + 4 * 3) * 4


def test_batch_norm_training_where_the_schema_tells() -> None:
    statistics = [meta(3) for _ in range(4)]
    found = cost(aten._native_batch_norm_legit.default, X, *statistics, True, 0.1, 1e-5)
    assert found.other_flops == 7 * 384 + 9 * 3
    assert found.bytes_written == (384 + 4 * 3) * 4


def test_batch_norm_without_affine_or_running_statistics() -> None:
    found = cost(aten.native_batch_norm.default, X, None, None, None, None, True, 0.1, 1e-5)
    assert found.other_flops == 5 * 384 + 2 * 3


def test_batch_norm_evaluation() -> None:
    # difference, scale, weight, bias: 4n; rstd 2C.
    evaluated = aten._native_batch_norm_legit_no_training.default
    assert cost(aten.native_batch_norm.default, X, C, C, C, C, False, 0.1, 1e-5).other_flops == 4 * 384 + 6
    assert cost(evaluated, X, C, C, C, C, 0.1, 1e-5).other_flops == 4 * 384 + 6


def test_batch_norm_of_cudnn() -> None:
    function = Pretended(aten.cudnn_batch_norm.default, (meta(2, 3, 8, 8), meta(3), meta(3), meta(0)))
    assert cost(function, X, C, C, C, C, True, 0.1, 1e-5).other_flops == 7 * 384 + 9 * 3
    backward = Pretended(aten.cudnn_batch_norm_backward.default, (meta(2, 3, 8, 8), meta(3), meta(3)))
    assert cost(backward, X, X, C, None, None, C, C, 1e-5, meta(0)).other_flops == 9 * 384 + 3


def test_batch_norm_backward() -> None:
    backward = aten.native_batch_norm_backward.default
    # xhat 2n, dbias n - C, dweight 2n - C, dx 4n + 3C.
    assert cost(backward, X, X, C, C, C, C, C, True, 1e-5, ALL).other_flops == 9 * 384 + 3
    # Statistics constant: dx n + C, xhat 2n, dweight 2n - C, dbias n - C, rstd 2C.
    assert cost(backward, X, X, C, C, C, C, C, False, 1e-5, ALL).other_flops == 6 * 384 + 3


def test_layer_norm() -> None:
    assert cost(aten.native_layer_norm.default, ROWS, [10], D, D, 1e-5).other_flops == 7 * 40 + 2 * 4
    assert cost(aten.native_layer_norm.default, ROWS, [10], None, None, 1e-5).other_flops == 5 * 40 + 2 * 4


def test_layer_norm_backward() -> None:
    backward, row = aten.native_layer_norm_backward.default, meta(4, 1)
    # xhat 2n, dy * weight n, sums 3n (with their division), dx 4n, dweight 2n - D, dbias n - D.
    assert cost(backward, ROWS, ROWS, [10], row, row, D, D, ALL).other_flops == 13 * 40 - 20
    assert cost(backward, ROWS, ROWS, [10], row, row, None, None, [True, False, False]).other_flops == 9 * 40


def test_group_norm() -> None:
    # 2 samples of 3 groups: 6 statistics.
    assert cost(aten.native_group_norm.default, X, C, C, 2, 3, 64, 3, 1e-5).other_flops == 7 * 384 + 2 * 6
    statistics = meta(2, 3)
    backward = aten.native_group_norm_backward.default
    assert cost(backward, X, X, statistics, statistics, C, 2, 3, 64, 3, ALL).other_flops == 13 * 384 - 2 * 3


@needs_torch(2, 11, why="it has no such operator on GPUs")
def test_rms_norm() -> None:
    # square n, mean n, rstd 2R, scale n, weight n.
    assert cost(aten._fused_rms_norm.default, ROWS, [10], D, 1e-5).other_flops == 4 * 40 + 2 * 4
    # xhat n, dy * weight n, its mean with xhat 2n, dx 3n, dweight 2n - D.
    found = cost(aten._fused_rms_norm_backward.default, ROWS, ROWS, [10], meta(4, 1), D, [True, True])
    assert found.other_flops == 9 * 40 - 10


@needs_torch(2, 11, why="it has no such operator on GPUs")
@pytest.mark.parametrize(("dtype", "read", "written"), [
    # 20 rows of 64: x 5,120 and the weight 256; y 5,120 and a root for each row, 80. 10,576 bytes together.
    (torch.float32, 5120 + 256, 5120 + 80),
    (torch.bfloat16, 2560 + 128, 2560 + 80),
])  # fmt: skip
def test_rms_norm_is_one_kernel_on_a_gpu(dtype: torch.dtype, read: int, written: int) -> None:
    (op,) = estimate(nn.RMSNorm(64, dtype=dtype), torch.randn(20, 64, dtype=dtype)).ops
    assert op.packet == "aten::_fused_rms_norm" and op.cost is not None
    assert (op.cost.bytes_read, op.cost.bytes_written, op.cost.other_flops) == (read, written, 4 * 1280 + 2 * 20)
    (row,) = predict(nn.RMSNorm(64, dtype=dtype), torch.randn(20, 64, dtype=dtype), on="h200", advice=False)
    assert row.kernels == 1


@needs_torch(2, 11, why="it has no such operator on GPUs")
def test_rms_norm_in_training_is_one_kernel_each_way() -> None:
    layers = nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64))
    ledger = estimate(layers, torch.randn(20, 64), step="train", loss="mse")
    forward, backward = (op for op in ledger.ops if "norm" in op.packet)
    assert forward.module == backward.module == "1"
    assert (forward.packet, backward.packet) == ("aten::_fused_rms_norm", "aten::_fused_rms_norm_backward")
    assert backward.cost is not None and [tensor.shape for tensor in backward.outputs] == [(20, 64), (64,)]
    assert backward.cost.bytes_read == 5120 + 5120 + 80 + 256
    # Its input and the roots of its rows wait for backward; its result does not.
    kept = {storage.nbytes for storage in ledger.storages if storage.category == "activation"}
    assert 80 in kept


@pytest.mark.parametrize("layer", [
    lambda x: F.rms_norm(x.bfloat16(), (64,), torch.ones(64)),  # a weight of another type
    lambda x: F.rms_norm(x.reshape(2, 2, 5, 64).to(memory_format=torch.channels_last), (64,)),
])  # fmt: skip
@pytest.mark.filterwarnings("ignore:Mismatch dtype")
def test_rms_norm_is_taken_apart_where_cuda_has_no_kernel(layer: Callable[[Tensor], Tensor]) -> None:
    ledger = estimate(layer, torch.randn(20, 64))
    names = {op.packet for op in ledger.ops}
    assert "aten::rsqrt" in names and "aten::_fused_rms_norm" not in names


def test_weight_norm() -> None:
    # 4 rows of 10: norms 2n, quotients m, products n.
    assert cost(aten._weight_norm_interface.default, ROWS, meta(4, 1)).other_flops == 3 * 40 + 4
