"""Copies, fills, gather and scatter: bytes derived by hand. Floats are 4 bytes, indices 8."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.fixtures.recording import cost, meta, numbers

aten = torch.ops.aten
HALF = torch.float16


def _moved(function: Any, *args: Any, **kwargs: Any) -> tuple[int | None, int | None, int | None]:
    found = cost(function, *args, **kwargs)
    return found.other_flops, found.bytes_read, found.bytes_written


@pytest.mark.parametrize(
    ("function", "args", "read", "written"),
    [
        (aten.clone.default, (meta(10),), 40, 40),
        (aten.cat.default, ([meta(2, 3), meta(4, 3)],), 72, 72),
        (aten.constant_pad_nd.default, (meta(4), [1, 1]), 16, 24),
        (aten.roll.default, (meta(10), [1]), 40, 40),
        (aten.repeat.default, (meta(3), [4]), 12, 48),
        (aten.tril.default, (meta(4, 4),), 64, 64),
        (aten.copy_.default, (meta(10), meta(10)), 40, 40),  # the destination is not read
        (aten.copy_.default, (meta(10), meta(1)), 4, 40),
        (aten.fill_.Scalar, (meta(10), 1), 0, 40),
        (aten.fill_.Tensor, (meta(10), meta()), 4, 40),
        (aten.zero_.default, (meta(10),), 0, 40),
        (aten.zeros_like.default, (meta(10),), 0, 40),
        (aten.empty_like.default, (meta(10),), 0, 0),
        (aten.masked_fill.Scalar, (meta(10), meta(10, dtype=torch.bool), 0), 50, 40),
        (aten.slice_backward.default, (meta(2, 4), [8, 4], 0, 0, 2, 1), 32, 128),
        (aten.select_backward.default, (meta(4), [8, 4], 0, 0), 16, 128),
        (aten.slice_scatter.default, (meta(8, 4), meta(2, 4), 0, 0, 2), 128, 128),
        (aten._local_scalar_dense.default, (torch.ones(()),), 0, 0),
    ],
)
def test_copies_move_bytes_and_compute_nothing(function: Any, args: Any, read: int, written: int) -> None:
    assert _moved(function, *args) == (0, read, written)


def test_casts_read_one_type_and_write_another() -> None:
    assert _moved(aten._to_copy.default, meta(10), dtype=HALF) == (0, 40, 20)


def test_factories_write_only() -> None:
    assert _moved(aten.arange.default, 10, device="meta") == (0, 0, 80)
    assert _moved(aten.full.default, [3, 4], 1.0, device="meta") == (0, 0, 48)
    assert _moved(aten.empty.memory_format, [3, 4], device="meta") == (0, 0, 0)


def test_embedding_reads_its_rows() -> None:
    # 2 x 5 rows of 16 floats and 10 indices; writes 10 rows.
    assert _moved(aten.embedding.default, meta(1000, 16), numbers(2, 5)) == (0, 10 * 16 * 4 + 10 * 8, 640)
    # A table of 2 rows is read once, however often its rows are asked for.
    assert _moved(aten.embedding.default, meta(2, 16), numbers(2, 5)) == (0, 2 * 16 * 4 + 10 * 8, 640)


def test_embedding_backward_writes_the_whole_table() -> None:
    # 160 additions; reads dy and indices; writes 1000 x 16 floats.
    assert _moved(aten.embedding_dense_backward.default, meta(2, 5, 16), numbers(2, 5), 1000, -1, False) == (
        160,
        640 + 80,
        64_000,
    )


def test_embedding_bag_sums_rows() -> None:
    # 6 rows of 4 into 2 bags: (6 - 2) * 4 additions; 6 rows, 6 indices and 2 offsets read.
    found = cost(aten._embedding_bag.default, meta(10, 4), numbers(6), numbers(2))
    assert (found.other_flops, found.bytes_read) == (16, 6 * 4 * 4 + 6 * 8 + 2 * 8)


def test_gathers_read_what_they_give() -> None:
    assert _moved(aten.index_select.default, meta(100, 4), 0, numbers(5)) == (0, 5 * 4 * 4 + 5 * 8, 80)
    assert _moved(aten.gather.default, meta(100, 4), 0, numbers(5, 4)) == (0, 20 * 4 + 20 * 8, 80)
    assert _moved(aten.index.Tensor, meta(100, 4), [numbers(5)]) == (0, 5 * 4 * 4 + 5 * 8, 80)
    assert _moved(aten.index.Tensor, meta(3, 100), [None, numbers(5)]) == (0, 15 * 4 + 5 * 8, 60)


def test_scatters_in_place_touch_what_they_write() -> None:
    # 5 rows of 4: the source and the index are read, 20 elements written.
    rows, place = meta(5, 4), numbers(5)
    assert _moved(aten.index_copy_.default, meta(100, 4), 0, place, rows) == (0, 80 + 40, 80)
    # Adding also reads what is there.
    assert _moved(aten.index_add_.default, meta(100, 4), 0, place, rows) == (20, 80 + 40 + 80, 80)
    assert _moved(aten.index_put_.default, meta(100, 4), [place], rows) == (0, 80 + 40, 80)
    assert _moved(aten.index_put_.default, meta(100, 4), [place], rows, True) == (20, 80 + 40 + 80, 80)
    assert _moved(aten.scatter_.value, meta(100, 4), 0, numbers(5, 4), 1) == (0, 160, 80)
    assert _moved(aten.index_fill_.int_Scalar, meta(100, 4), 0, place, 1) == (0, 40, 80)
    # Two indices of 5 name 5 elements; a column of 5 and a row of 2 name 10.
    assert _moved(aten.index_put_.default, meta(100, 4), [place, place], meta(5)) == (0, 20 + 80, 20)
    assert _moved(aten.index_put_.default, meta(100, 4), [numbers(5, 1), numbers(2)], meta(5, 2)) == (0, 40 + 56, 40)


def test_scatters_out_of_place_copy_the_rest() -> None:
    # self 1600 bytes, index 160, source 80; the result is written whole.
    assert _moved(aten.scatter_add.default, meta(100, 4), 0, numbers(5, 4), meta(5, 4)) == (20, 1840, 1600)


def test_fold_adds_overlapping_windows() -> None:
    # 2 x 12 x 49 columns, each element added to its pixel.
    assert cost(aten.col2im.default, meta(2, 12, 49), [8, 8], [2, 2], [1, 1], [0, 0], [1, 1]).other_flops == 1176
    # A padded row of 10 folded back to 8: 2 additions for each of 6 rows; the input itself is not read.
    found = cost(aten.reflection_pad1d_backward.default, meta(2, 3, 10), meta(2, 3, 8), [1, 1])
    assert (found.other_flops, found.bytes_read) == (12, 240)


def test_a_scatter_touches_no_more_than_there_is() -> None:
    """10,000 values into 100 places: the places are read and written once, whatever the order."""
    x, index, source = meta(100), torch.zeros(10_000, dtype=torch.int64, device="meta"), meta(10_000)
    scattered = cost(aten.scatter_add_.default, x, 0, index, source)
    assert scattered.bytes_read == 10_000 * 8 + 10_000 * 4 + 100 * 4
    assert scattered.bytes_written == 100 * 4
    assert scattered.other_flops == 10_000


def test_overlapping_views_count_what_they_touch() -> None:
    """7 rows of 4, each one element further: 10 distinct elements."""
    x = meta(1000)
    assert cost(aten.sum.default, x.as_strided((7, 4), (1, 1))).bytes_read == 10 * 4


def test_complex_products_and_ignored_addends() -> None:
    a, b = (torch.empty(8, 8, dtype=torch.complex64, device="meta") for _ in range(2))
    assert cost(aten.mm.default, a, b).macs == 4 * 8**3
    x, y, z = meta(2, 8, 8), meta(2, 8, 8), meta(2, 8, 8)
    assert cost(aten.baddbmm.default, x, y, z, beta=0).bytes_read == 2 * 2 * 64 * 4
    assert cost(aten.baddbmm.default, x, y, z).bytes_read == 3 * 2 * 64 * 4
