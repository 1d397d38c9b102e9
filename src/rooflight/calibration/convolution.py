"""Convolutions: forward, and the gradients of input (dgrad) and weight (wgrad), dense, grouped and depthwise."""

from __future__ import annotations

from functools import partial
from math import prod

import torch

from rooflight.calibration.case import DTYPES, Call, Cases, TensorPool, case
from rooflight.calibration.sampling import KNOWN_SIDES, choice, is_power_of_two, points, unusual, whole
from rooflight.ops.convolution import Geometry, convolution_numbers
from rooflight.ops.kernel_task import Task, side_of

WAYS = ("conv-forward", "conv-dgrad", "conv-wgrad")
# Kernel sides: 17 stands for 1x7, 71 for 7x1.
_KERNELS = ((40, 1), (44, 3), (8, 5), (3, 7), (2, 2), (2, 17), (2, 71))
_STEM_KERNELS = ((5, 3), (4, 7), (2, 4), (1, 11), (2, 16), (1, 5), (1, 8), (1, 14), (1, 32))
_PATCHES = (2, 4, 8, 14, 16, 32)
"""Kernels as large as their stride."""
_DEPTHWISE_KERNELS = ((6, 3), (4, 5), (3, 7))
_KINDS = ((66, 0), (9, 1), (15, 2), (10, 3))  # dense, stem (from three colours), depthwise, grouped


def convolution_cases(precision: str, peak: float, seed: int, longest_s: float, *, channels_last: bool) -> Cases:
    for u in points(9, seed):
        numbers = _numbers(u, int(channels_last))
        if numbers is None:
            continue
        n, c, h, w, k, r, s, stride, pad, dilation, groups, _ = numbers
        out = output_size(h, r, stride, pad, dilation) * output_size(w, s, stride, pad, dilation)
        if 2 * n * out * k * (c // groups) * r * s / peak > longest_s:
            continue
        if n * max(c * h * w, k * out) > 4e8:
            continue
        for way in WAYS:
            yield case(call_of, Task(way, precision, numbers))


def _numbers(u: list[float], channels_last: int) -> tuple[int, ...] | None:
    """A layer as networks have them: the larger the picture, the fewer its channels."""
    kind = choice(u[5], _KINDS)
    side = choice(u[4], (_KERNELS, _STEM_KERNELS, _DEPTHWISE_KERNELS, ((1, 3),))[kind])
    r, s = {17: (1, 7), 71: (7, 1)}.get(side, (side, side))
    n = whole(u[0], 1, 256)
    # Loads of 16 bytes want pictures whose pixels are a multiple of 8: sides that are multiples of 4.
    h = whole(u[3], 4, 160, (1, 2, 4, 4)[int(u[8] * 4)]) if kind != 1 else whole(u[3], 64, 384, (2, 8)[int(u[8] * 2)])
    aligned = choice(u[7], ((1, 2), (3, 8), (4, 32), (8, 64), (8, 128)))
    while aligned == 128 and kind == 0 and h in KNOWN_SIDES:
        h += 2
    low, high = max(8, 600 / h), min(2304, 36000 / h)
    c, k = (max(8, whole(value, int(low), int(high), aligned)) for value in u[1:3])
    groups = 1
    if kind == 1:
        c, k = 3, whole(u[2], 16, 128, 8)
        if side in _PATCHES:
            k = whole(u[2], 64, 1024, 32)
    elif kind == 2:
        k = groups = c
    elif kind == 3:
        width = choice(u[1] * 7 % 1, ((3, 4), (3, 8), (3, 16), (1, 24), (3, 32), (1, 48), (1, 64)))
        groups = choice(u[2] * 5 % 1, ((2, 0), (1, 16), (3, 32), (1, 64))) or max(2, c // width)
        c = k = groups * width
    stride = side if side in _PATCHES else 4 if side == 11 else 2 if (kind == 1 or u[6] > 0.8) else 1
    if side == 5 and kind == 0:
        c, k = min(c, 256), min(k, 256)
    if h < r or h < s:
        return None
    if (is_power_of_two(n) and is_power_of_two(c) and is_power_of_two(k)) or (c == 3 and k in (64, 96)):
        n += 2 if n in (1, 31) else 1  # no shape of a model that everybody knows
    if c == 3 and is_power_of_two(n):
        n += 2 if n == 1 else 1
    pad = r // 2 if (r == s and side not in _PATCHES) else 0
    return (n, c, h, h, k, r, s, stride, pad, 1, groups, channels_last)


def _of_batch(u: float) -> int:
    """A quarter of the layers for one sample, as a server has them; the others for any batch."""
    return 1 if u < 0.25 else whole((u - 0.25) / 0.75, 2, 256)


def _unknown_side(side: int) -> int:
    """A side near it that no known network has, as even as it was: loads of 16 bytes depend on that."""
    while side in KNOWN_SIDES:
        side += 2 if side % 2 else 4
    return side


def _ways(precision: str, numbers: tuple[int, ...], peak: float, longest_s: float) -> Cases:
    """All three of a layer, if it is not too large."""
    n, c, h, w, k, r, s, stride, pad, dilation, groups, _ = numbers
    out = output_size(h, r, stride, pad, dilation) * output_size(w, s, stride, pad, dilation)
    if h >= r and n * max(c * h * w, k * out) <= 4e8 and 2 * n * out * k * (c // groups) * r * s / peak <= longest_s:
        for way in WAYS:
            yield case(call_of, Task(way, precision, numbers))


def gate_cases(precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    """Weights of channels, made from their means: 1x1 convolutions of pictures of one pixel."""
    for u in points(5, seed):
        many = 8 * unusual(whole(u[1], 2, 300)) if u[3] < 0.7 else whole(u[1], 16, 2304)
        few = max(2, whole(u[2], max(2, many // 32), max(3, many // 2), 1 if u[4] < 0.5 else 4))
        c, k = (many, few) if u[3] * 10 % 1 < 0.5 else (few, many)
        yield from _ways(precision, (_of_batch(u[0]), c, 1, 1, k, 1, 1, 1, 0, 1, 1, 0), peak, longest_s)


def pointwise_cases(precision: str, peak: float, seed: int, longest_s: float, *, channels_last: bool) -> Cases:
    """1x1 convolutions of few samples: half of the layers of most networks, and hardly anything to do in each."""
    for u in points(6, seed):
        n = 1 if u[0] < 0.4 else whole((u[0] - 0.4) / 0.6, 2, 32)
        h = _unknown_side(whole(u[3], 3, 120, (1, 2, 4)[int(u[4] * 3)]))
        aligned = choice(u[5], ((1, 2), (4, 8), (2, 24), (3, 32), (3, 64)))
        low, high = max(8, 250 / h), min(2304, 12000 / h)
        c, k = (max(8, whole(value, int(low), int(high), aligned)) for value in u[1:3])
        stride = 2 if u[4] * 10 % 1 > 0.9 else 1
        yield from _ways(precision, (n, c, h, h, k, 1, 1, stride, 0, 1, 1, int(channels_last)), peak, longest_s)


def depthwise_cases(precision: str, peak: float, seed: int, longest_s: float, *, channels_last: bool) -> Cases:
    """One filter a channel, as mobile networks have them, and wide ones of 7x7."""
    for u in points(6, seed):
        side = choice(u[4], ((5, 3), (4, 5), (4, 7)))
        h = _unknown_side(whole(u[2], 4, 160, (1, 2, 4)[int(u[5] * 3)]))
        aligned = choice(u[5] * 10 % 1, ((1, 1), (4, 8), (2, 24), (4, 32)))
        c = max(8, whole(u[1], int(max(8, 1000 / h)), int(min(2304, 18000 / h)), aligned))
        stride = 2 if u[3] > 0.75 and side < 7 else 1
        numbers = (_of_batch(u[0]), c, h, h, c, side, side, stride, side // 2, 1, c, int(channels_last))
        yield from _ways(precision, numbers, peak, longest_s)


def grouped_cases(precision: str, peak: float, seed: int, longest_s: float, *, channels_last: bool) -> Cases:
    """Groups of some channels: many thin ones or few wide ones."""
    for u in points(6, seed):
        width = choice(u[1], ((3, 4), (3, 8), (1, 12), (3, 16), (2, 24), (3, 32), (1, 40), (2, 48), (1, 56), (3, 64)))
        h = _unknown_side(whole(u[3], 4, 120, (1, 2, 4)[int(u[4] * 3)]))
        most = max(2, min(2304, 30000 // h) // width)
        groups = 32 if u[2] < 0.15 else whole((u[2] - 0.15) / 0.85, 2, most) if most > 2 else 2
        stride = 2 if u[5] > 0.8 else 1
        c = groups * width
        numbers = (_of_batch(u[0]), c, h, h, c, 3, 3, stride, 1, 1, groups, int(channels_last))
        yield from _ways(precision, numbers, peak, longest_s)


def few_groups_cases(precision: str, peak: float, seed: int, longest_s: float, *, channels_last: bool) -> Cases:
    """A handful of wide groups on large pictures, as the first layers of a stage have them, half with a stride: some of
    cuDNN's engines for them are many times slower than others."""
    for u in points(6, seed):
        width = choice(
            u[1], ((2, 8), (2, 16), (3, 24), (3, 32), (2, 40), (3, 48), (2, 56), (3, 64), (2, 112), (2, 128))
        )
        groups = whole(u[2], 2, 20)
        h = _unknown_side(whole(u[3], 10, 230, (1, 2, 4)[int(u[4] * 3)]))
        n, c, stride = whole(u[0], 1, 128), groups * width, 2 if u[5] < 0.5 else 1
        numbers = (n, c, h, h, c, 3, 3, stride, 1, 1, groups, int(channels_last))
        yield from _ways(precision, numbers, peak, longest_s)


_SIDES = {1: (64, 60_000), 2: (12, 560), 3: (5, 90)}
_ODD_KERNELS = ((4, 1), (8, 2), (20, 3), (4, 4), (10, 5), (6, 7), (2, 9), (1, 11))


def odd_cases(sides: int, precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    """Sequences, images and volumes of any size with kernels, strides, paddings and dilations of any size, few channels
    as many: what no network that everybody knows has."""
    for u in points(6 + 2 * sides, seed):
        n, c, k = whole(u[0], 1, 64), _channels(u[1]), _channels(u[2])
        groups = c if u[3] < 0.08 else 1
        k = c if groups > 1 else k
        square = u[3] * 10 % 1 < 0.6
        kernel = [choice(u[6 + sides + (0 if square else side)], _ODD_KERNELS) for side in range(sides)]
        even = choice(u[0] * 10 % 1, ((2, 1), (1, 2), (2, 4), (2, 8), (2, 16), (1, 32)))
        image = [_unknown_side(whole(u[6 + (0 if square else side)], *_SIDES[sides], even)) for side in range(sides)]
        stride, dilation = choice(u[4], ((14, 1), (8, 2), (2, 3), (1, 5))), choice(u[5], ((8, 1), (1, 2), (1, 3)))
        pad = (0, kernel[0] // 2, 1)[int(u[5] * 100 % 1 * 3)]
        out = [side_of(side, size, stride, pad, dilation) for side, size in zip(image, kernel, strict=True)]
        geometry = Geometry([stride] * sides, [pad] * sides, [dilation] * sides, groups)
        if min(out) >= 1:
            yield from _shaped(precision, (n, c, *image), (k, c // groups, *kernel), geometry, peak, longest_s)


_USUAL_SIDES = {1: (8, 6000), 3: (3, 72)}


def layer_cases(sides: int, precision: str, peak: float, seed: int, longest_s: float) -> Cases:
    """Layers of sequences and of volumes as networks have them: kernels of 1 and 3, along some sides or all of them;
    the longer the sides, the fewer the channels, and those mostly multiples of 32; first layers of few channels."""
    for u in points(8, seed):
        low, high = _USUAL_SIDES[sides]
        side = _unknown_side(whole(u[0], low, high, choice(u[7], ((2, 1), (2, 2), (4, 4)))))
        first = _unknown_side(max(2, round(side * (1, 1, 0.5, 0.25)[int(u[1] * 4)])))
        image = [first, *[side] * (sides - 1)] if sides == 3 else [side]
        width = choice(u[2], ((1, 8), (2, 16), (4, 32), (6, 64)))
        most = min(1024, int(2e5 / side) if sides == 1 else int(14_000 / side))
        c, k = (whole(value, width, max(2 * width, most), width) for value in u[3:5])
        kind = choice(u[5], ((8, 0), (2, 1), (2, 2), (2, 3), (1, 4)))  # all sides, none, all but the first, the first
        c = 3 if kind == 4 else c
        odd = (3, 5, 7)[int(u[5] * 100 % 1 * 3)] if kind == 4 else 3
        kernel = [[3] * sides, [1] * sides, [1, *[3] * (sides - 1)], [3, *[1] * (sides - 1)], [odd] * sides][kind]
        stride = 2 if u[6] < 0.25 else 1
        geometry = Geometry([stride] * sides, [size // 2 for size in kernel], [1] * sides)
        n = whole(u[6] * 10 % 1, 1, 48)
        yield from _shaped(precision, (n, c, *image), (k, c, *kernel), geometry, peak, longest_s)


def _shaped(
    precision: str, x: tuple[int, ...], weight: tuple[int, ...], geometry: Geometry, peak: float, longest_s: float
) -> Cases:
    """All three of a layer, if it is not too large."""
    (n, c, *image), (k, depth, *kernel) = x, weight
    if is_power_of_two(n) and is_power_of_two(max(4, c)) and is_power_of_two(k):
        n += 2 if n == 1 else 1  # no shape of a model that everybody knows
    sides = zip(image, kernel, geometry.stride, geometry.padding, geometry.dilation, strict=True)
    out = (n, k, *(side_of(*side) for side in sides))
    too_large = n * max(c * prod(image), prod(out[1:])) > 3e8
    if too_large or 2 * prod(out) * depth * prod(kernel) / peak > longest_s:
        return
    numbers = convolution_numbers((n, *x[1:]), kernel, out, geometry, channels_last=False)
    for way in WAYS:
        family = way.replace("conv", "conv3d") if len(image) == 3 else way
        yield case(_shaped_call, Task(family, precision, numbers), ((n, *x[1:]), weight, out), geometry)


def _channels(u: float) -> int:
    return 3 if u < 0.12 else whole((u - 0.12) / 0.88, 2, 400, 1 if u * 10 % 1 < 0.3 else 8)


def _shaped_call(task: Task, shapes: tuple[tuple[int, ...], ...], geometry: Geometry, pool: TensorPool) -> Call:
    x, weight, grad = (pool.take(*shape, dtype=DTYPES[task.precision]) for shape in shapes)
    rest = (geometry.stride, geometry.padding, geometry.dilation, False, [0] * len(geometry.stride), geometry.groups)
    if task.family.endswith("forward"):
        return partial(torch.ops.aten.convolution.default, x, weight, None, *rest)
    mask = [task.family.endswith("dgrad"), task.family.endswith("wgrad"), False]
    return partial(torch.ops.aten.convolution_backward.default, grad, x, weight, None, *rest, mask)


def output_size(size: int, kernel: int, stride: int, pad: int, dilation: int) -> int:
    return max(1, (size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1)


def call_of(task: Task, pool: TensorPool) -> Call:
    n, c, h, w, k, r, s, stride, pad, dilation, groups, channels_last = task.numbers
    layout = torch.channels_last if channels_last else torch.contiguous_format
    take = partial(pool.images, dtype=DTYPES[task.precision], channels_last=bool(channels_last))
    x, weight = take(n, c, h, w), take(k, c // groups, r, s)
    geometry = ([stride] * 2, [pad] * 2, [dilation] * 2, False, [0, 0], groups)
    if task.family == "conv-forward":
        return partial(torch.ops.aten.convolution.default, x, weight, None, *geometry)
    out = (output_size(h, r, stride, pad, dilation), output_size(w, s, stride, pad, dilation))
    grad = take(n, k, *out).contiguous(memory_format=layout)
    mask = [task.family == "conv-dgrad", task.family == "conv-wgrad", False]
    return partial(torch.ops.aten.convolution_backward.default, grad, x, weight, None, *geometry, mask)
