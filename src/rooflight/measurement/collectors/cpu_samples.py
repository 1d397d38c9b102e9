"""Ops as models run them, at any size, to time what a call and an element of each take on this processor."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rooflight.machine.rates import TRAINING

_ROW, _CHANNELS = 512, 16


@dataclass(frozen=True)
class Sample:
    """An op that is ready to run."""

    call: Callable[[], object]
    elements: int | None
    """That it works on; `None`: what it takes does not grow with a number of elements alone."""


_POINTWISE = (
    "exp log sqrt rsqrt sigmoid tanh relu gelu silu erf neg sin cos hardswish hardtanh hardsigmoid leaky_relu elu "
    "softplus mish clone abs"
).split()
_OF_TWO = (
    "add.Tensor sub.Tensor mul.Tensor div.Tensor gelu_backward silu_backward tanh_backward sigmoid_backward "
    "hardswish_backward copy_.default add_.Tensor mul_.Tensor"
).split()


def samples(elements: int) -> dict[str, Sample]:
    """By the name of the op without its overload; all of about so many elements."""
    aten = torch.ops.aten
    x, y = torch.rand(elements) + 0.5, torch.rand(elements) + 0.5
    found: dict[str, Sample] = {}

    def add(name: str, *args: Any, count: int | None = elements, of: str = "") -> None:
        packet, _, overload = name.partition(".")
        op = getattr(getattr(aten, packet), overload or "default")
        found[f"aten::{packet}{of}"] = Sample(partial(op, *args), count)

    for name in _POINTWISE:
        add(name, x)
    for name in _OF_TWO:
        add(name, x, y)
    add("pow.Tensor_Scalar", x, 2.0)
    add("threshold_backward", x, y, 0)
    add("where.self", x > 1, x, y)
    add("native_dropout", x, 0.1, True)
    add("cat", [x, y], count=2 * elements)
    row = min(_ROW, elements)
    _add_rows(add, x.view(-1, row), y.view(-1, row))
    _add_images(add, elements)
    return found


def _add_rows(add: Callable[..., None], x: torch.Tensor, y: torch.Tensor) -> None:
    row = x.shape[1]
    weight = torch.ones(row)
    add("_softmax", x, 1, False)
    add("_log_softmax", x, 1, False)
    add("_softmax_backward_data", x, y, 1, torch.float32)
    add("_log_softmax_backward_data", x, y, 1, torch.float32)
    add("sum.dim_IntList", x, [1])
    add("mean.dim", x, [1])
    add("native_layer_norm", x, [row], weight, weight, 1e-5)
    mean, scale = x.mean(1, keepdim=True), x.var(1, keepdim=True).rsqrt()
    add("native_layer_norm_backward", y, x, [row], mean, scale, weight, weight, [True, True, True])
    add("embedding", x, torch.arange(len(x)))
    small = x[: min(len(x), 16), :16].contiguous()
    add("mm", small[:1], small.t(), count=None)
    add("addmm", weight[: len(small)], small[:1], small.t(), count=None)
    add("bmm", small[None, :1], small.t()[None], count=None)


def _add_images(add: Callable[..., None], elements: int) -> None:
    side = max(2, math.isqrt(elements // _CHANNELS))
    image, other = torch.rand(1, _CHANNELS, side, side), torch.rand(1, _CHANNELS, side, side)
    count, one, none = image.numel(), torch.ones(_CHANNELS), torch.zeros(_CHANNELS)
    add("native_batch_norm", image, one, none, none, one, True, 0.0, 1e-5, count=count, of=TRAINING)
    add("native_batch_norm", image, one, none, none, one, False, 0.0, 1e-5, count=count)
    add("_native_batch_norm_legit_no_training", image, one, none, none, one, 0.0, 1e-5, count=count)
    flags = [True, True, True]
    add("native_batch_norm_backward", other, image, one, none, one, none, one, True, 1e-5, flags, count=count)
    add("native_group_norm", image, one, none, 1, _CHANNELS, side * side, 4, 1e-5, count=count)
    # As behind a ReLU: how often a larger value is met decides. Windows go over the border.
    rectified, windows = (image - 0.5).relu(), _CHANNELS * (3 * side - 2) ** 2
    add("max_pool2d_with_indices", rectified, [3, 3], [1, 1], [1, 1], count=windows)
    add("avg_pool2d", image, [2, 2], count=count)
    add("_adaptive_avg_pool2d", image, [1, 1], count=count)
    point = torch.rand(_CHANNELS, _CHANNELS, 1, 1)
    tiny = torch.rand(1, _CHANNELS, 2, 2)
    where = ([1, 1], [0, 0], [1, 1], False, [0, 0], 1)
    add("convolution", tiny, point, None, *where, count=None)
    add("convolution_backward", tiny, tiny, point, [0], *where, [True, True, False], count=None)
