"""Pooling and interpolation: counts derived by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from rooflight.estimation.costs import cost_of
from rooflight.ops.pooling import covered
from tests.fixtures.formula_calls import call
from tests.fixtures.recording import cost, meta, numbers

aten = torch.ops.aten
X = meta(2, 3, 8, 8)


def test_max_pool_of_vgg16() -> None:
    # 64 channels of 112 x 112 results, each of 4 elements: 3 comparisons.
    assert cost(aten.max_pool2d_with_indices.default, meta(1, 64, 224, 224), [2, 2], [2, 2]).other_flops == 2_408_448


def test_max_pool_of_resnet_counts_the_padding() -> None:
    # 64 x 56 x 56 results of 3 x 3: 8 comparisons.
    found = cost(aten.max_pool2d_with_indices.default, meta(1, 64, 112, 112), [3, 3], [2, 2], [1, 1])
    assert found.other_flops == 64 * 56 * 56 * 8


def test_pooling_without_a_batch_and_in_other_dimensions() -> None:
    assert cost(aten.max_pool2d_with_indices.default, meta(3, 8, 8), [2]).other_flops == 3 * 16 * 3
    assert cost(aten.max_pool3d_with_indices.default, meta(1, 3, 8, 8, 8), [2]).other_flops == 3 * 64 * 7
    assert cost(aten.avg_pool1d.default, meta(2, 3, 8), [4]).other_flops == 2 * 3 * 2 * 4
    assert cost(aten.avg_pool3d.default, meta(1, 3, 8, 8, 8), [2]).other_flops == 3 * 64 * 8


def test_max_pool_backward_reads_no_input() -> None:
    dy, place = meta(2, 3, 4, 4), numbers(2, 3, 4, 4)
    function = aten.max_pool2d_with_indices_backward.default
    found = cost(function, dy, X, [2, 2], [2, 2], [0, 0], [1, 1], False, place)
    assert (found.other_flops, found.bytes_read, found.bytes_written) == (96, 96 * 4 + 96 * 8, 384 * 4)


def test_avg_pool() -> None:
    assert cost(aten.avg_pool2d.default, X, [2, 2]).other_flops == 96 * 4  # 3 additions, 1 division
    backward = aten.avg_pool2d_backward.default
    found = cost(backward, meta(2, 3, 4, 4), X, [2, 2], [2, 2], [0, 0], False, True, None)
    assert (found.other_flops, found.bytes_read) == (96 * 5, 384)  # 1 division, 4 additions


def test_adaptive_windows() -> None:
    assert covered(7, 1) == 7
    assert covered(8, 4) == 8
    # 10 into 7: the windows are 2 2 3 2 3 2 2 wide.
    assert covered(10, 7) == 16
    # 6 to 4: [0,2) [1,3) [3,5) [4,6).
    assert covered(6, 4) == 8
    # Larger out than in: every window is one or two wide.
    assert covered(1, 7) == 7


def test_adaptive_avg_pool() -> None:
    # AlexNet on small images repeats its one pixel: 49 windows of one, each a division.
    assert cost(aten._adaptive_avg_pool2d.default, meta(1, 256, 1, 1), [7, 7]).other_flops == 256 * 49
    # VGG's 7 x 7 to 7 x 7 is the identity.
    assert cost(aten._adaptive_avg_pool2d.default, meta(1, 512, 7, 7), [7, 7]).other_flops == 0
    assert cost(aten._adaptive_avg_pool2d.default, meta(1, 512, 7, 7), [1, 1]).other_flops == 512 * 49
    assert cost(aten._adaptive_avg_pool2d.default, meta(1, 2, 6, 6), [4, 4]).other_flops == 2 * 64
    # One division for each of 2 * 16 gradients, and 2 * 64 additions.
    assert cost(aten._adaptive_avg_pool2d_backward.default, meta(1, 2, 4, 4), meta(1, 2, 6, 6)).other_flops == 160


def test_adaptive_max_pool() -> None:
    # 64 elements in all windows, 16 results: 48 comparisons in each of 2 channels.
    assert cost(aten.adaptive_max_pool2d.default, meta(1, 2, 6, 6), [4, 4]).other_flops == 96


@pytest.mark.parametrize(
    ("function", "x", "size", "flags", "operations"),
    [
        (aten.upsample_nearest2d.default, X, [16, 16], (), 0),
        (aten.upsample_linear1d.default, meta(2, 3, 8), [16], (False,), 96 * 3),
        (aten.upsample_bilinear2d.default, X, [16, 16], (False,), 1536 * 9),
        (aten.upsample_bicubic2d.default, X, [16, 16], (False,), 1536 * 35),
        (aten.upsample_trilinear3d.default, meta(1, 1, 4, 4, 4), [8, 8, 8], (False,), 512 * 21),
        # 8 to 4 by a filter of 2 * 2 taps: first 6 x 8 x 4 results, then 6 x 4 x 4, of 4 products and 3 additions.
        (aten._upsample_bilinear2d_aa.default, X, [4, 4], (False,), 6 * 4 * (8 + 4) * 7),
    ],
)
def test_resizing(function: Any, x: torch.Tensor, size: list[int], flags: tuple[bool, ...], operations: int) -> None:
    assert cost(function, x, size, *flags).other_flops == operations


def test_resizing_backward() -> None:
    dy, sizes = meta(2, 3, 16, 16), ([16, 16], [2, 3, 8, 8])
    # Four copies of each pixel: 3 additions.
    assert cost(aten.upsample_nearest2d_backward.default, dy, *sizes).other_flops == 384 * 3
    # 4 neighbours: 2 products and 1 addition each.
    assert cost(aten.upsample_bilinear2d_backward.default, dy, *sizes, False).other_flops == 1536 * 12


def test_nearest_reads_what_it_keeps() -> None:
    assert cost(aten.upsample_nearest2d.default, X, [4, 4]).bytes_read == 96 * 4
    assert cost(aten.upsample_nearest2d.default, X, [16, 16]).bytes_read == 384 * 4


def test_grid_sampling() -> None:
    grid = meta(2, 5, 5, 2)  # 50 points
    # Coordinates 2 * 4, weights 8, and 7 for each of 3 channels.
    assert cost(aten.grid_sampler_2d.default, X, grid, 0, 0, False).other_flops == 50 * (16 + 21)
    # Nearest: coordinates and 2 roundings.
    assert cost(aten.grid_sampler_2d.default, X, grid, 1, 0, False).other_flops == 50 * 10
    # Coordinates 8, weights 8, scale 2; 8 + 24 for each channel.
    backward = aten.grid_sampler_2d_backward.default
    found = cost(backward, meta(2, 3, 5, 5), X, grid, 0, 0, False, [True, True])
    assert found.other_flops == 50 * (18 + 3 * 32)


@pytest.mark.parametrize("masked", [False, True])
def test_deformable_convolution(masked: bool) -> None:
    # [2, 4, 8, 8] by 6 x 4 x 3 x 3 to [2, 6, 6, 6], 2 groups of offsets. 432 results of 36 multiply-adds.
    # 72 pixels of 9 taps: 10 for each of 2 offsets, and 7 (8 with the mask) for each of 4 channels.
    op = call("torchvision::deform_conv2d")
    found = cost_of(replace(op, args=op.args | {"use_mask": masked}), {})
    assert found is not None
    assert (found.macs, found.other_flops) == (432 * 36, 648 * (10 * 2 + (8 if masked else 7) * 4))


def test_regions_of_interest() -> None:
    # 5 regions, 4 channels, 7 x 7: 980 results of 2 x 2 samples, 8 each; 12 for each of 245 * 4 places.
    found = cost_of(call("torchvision::roi_align"), {})
    assert found is not None and found.other_flops == 980 * 4 * 8 + 245 * 4 * 12
    # 980 * 4 samples of 4 corners are more than the 8,192 elements there are; 25 numbers of regions.
    assert (found.bytes_read, found.bytes_written) == ((8192 + 25) * 4, 980 * 4)


def test_suppression_compares_all_pairs() -> None:
    # 100 boxes: sorted, 100 * 7; 4,950 pairs of 19.
    found = cost_of(call("torchvision::nms"), {})
    assert found is not None and (found.flops, found.other_flops) == (0, 700 + 4950 * 19)
