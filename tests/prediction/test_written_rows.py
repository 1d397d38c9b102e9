"""The time of an op that writes some rows of a tensor in place follows the bytes it moves, not the tensor's size."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rooflight import predict
from rooflight.hardware.devices import find
from rooflight.ops.op_tasks import tasks_of
from rooflight.prediction.tiers import predictor
from tests.fixtures.recording import meta, numbers, record

aten = torch.ops.aten
BATCH, HEADS, WIDTH = 64, 8, 128
"""A KV cache of so many sequences: one row of it is 64 x 8 x 128 = 65,536 elements."""


def one_row(op: Callable[..., Tensor], *more: object) -> Callable[[int], float]:
    """Return seconds on the H200 of an op on one row of a cache of so many positions."""

    def seconds(length: int) -> float:
        cache = meta(BATCH, HEADS, length, WIDTH, dtype=torch.bfloat16)
        row = meta(BATCH, HEADS, 1, WIDTH, dtype=torch.bfloat16)
        where = {
            "index": numbers(1), "index of elements": numbers(BATCH, HEADS, 1, WIDTH), "flat": numbers(row.numel()),
            "indices": [numbers(BATCH, 1), numbers(1, HEADS), numbers(1, 1)], "row": row, "rows": row[:, :, 0],
        }  # fmt: skip
        arguments = [where[name] if isinstance(name, str) and name in where else name for name in more]
        tasks = tasks_of(record(op, cache, *arguments))
        return float(predictor(find("h200")).task_seconds(tasks).sum())

    return seconds


IN_PLACE = {
    "index_copy_": one_row(aten.index_copy_.default, 2, "index", "row"),
    "index_fill_": one_row(aten.index_fill_.int_Scalar, 2, "index", 0.0),
    "index_add_": one_row(aten.index_add_.default, 2, "index", "row"),
    "index_reduce_": one_row(aten.index_reduce_.default, 2, "index", "row", "amax"),
    "index_put_": one_row(aten.index_put_.default, "indices", "rows"),
    "index_put_, added": one_row(aten.index_put_.default, "indices", "rows", True),
    "scatter_": one_row(aten.scatter_.src, 2, "index of elements", "row"),
    "scatter_ of a value": one_row(aten.scatter_.value, 2, "index of elements", 0.0),
    "scatter_add_": one_row(aten.scatter_add_.default, 2, "index of elements", "row"),
    "scatter_reduce_": one_row(aten.scatter_reduce_.two, 2, "index of elements", "row", "amax"),
    "put_": one_row(aten.put_.default, "flat", "row"),
}
COPIED = {
    "index_copy": one_row(aten.index_copy.default, 2, "index", "row"),
    "index_fill": one_row(aten.index_fill.int_Scalar, 2, "index", 0.0),
    "index_add": one_row(aten.index_add.default, 2, "index", "row"),
    "index_put": one_row(aten.index_put.default, "indices", "rows"),
    "scatter": one_row(aten.scatter.src, 2, "index of elements", "row"),
    "scatter_add": one_row(aten.scatter_add.default, 2, "index of elements", "row"),
}


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_row_takes_as_long_in_a_cache_of_any_length(name: str) -> None:
    short, long = (IN_PLACE[name](length) for length in (129, 8193))
    assert 1e-6 < short < 50e-6  # a row of 131,072 bytes: a few launches
    assert long == pytest.approx(short, rel=0.35)


@pytest.mark.parametrize("name", COPIED)
def test_out_of_place_the_cache_is_copied_first(name: str) -> None:
    # 64 x 8 x 8193 x 128 x 2 bytes, read and written at 4.8 TB/s: 447 us.
    copy_s = 2 * BATCH * HEADS * 8193 * WIDTH * 2 / 4.8e12
    assert copy_s < COPIED[name](8193) < 1.3 * copy_s


class Written(nn.Module):
    def forward(self, cache: Tensor, place: Tensor, row: Tensor) -> Tensor:
        return cache.index_copy_(2, place, row)


def test_a_static_cache_is_updated_in_microseconds() -> None:
    cache = meta(BATCH, HEADS, 8193, WIDTH, dtype=torch.bfloat16)
    row = meta(BATCH, HEADS, 1, WIDTH, dtype=torch.bfloat16)
    (found,) = predict(Written(), cache, numbers(1), row, on="h200", advice=False)
    assert found.gpu_time_s == pytest.approx(IN_PLACE["index_put_"](8193), rel=0.1)
    assert found.gpu_time_s < 3e-6


def test_rows_of_an_embedding_are_scaled_by_themselves() -> None:
    op = record(aten.embedding_renorm_.default, meta(100_000, 1024), numbers(16), 1.0, 2.0)
    assert predictor(find("h200")).task_seconds(tasks_of(op)).sum() < 5e-6
