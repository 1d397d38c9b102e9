"""Convolutions that sum tap by tap, without matrix tiles: most leave out the taps that fall outside the image."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from rooflight.ledger import Kernel, Op

_DIRECT = re.compile(
    r"conv_depthwise2d_(?:forward|backward|grad_weight)|conv2d_grouped_direct_kernel|[dw]grad2d_grouped_direct_kernel|"
    r"conv_depthwise3d_cuda_(?:backward_weight_)?kernel|dgrad2d_c1_k1_nhwc(?!_specialized)"
)
_OF_WEIGHT = re.compile(r"wgrad|grad_weight|backward_weight")


def is_direct(kernel: Kernel) -> bool:
    """Torch's own kernels of depthwise convolutions and cuDNN's direct ones: a multiplication and an addition for every
    tap inside the image, no more and no less; what they do beside that was counted."""
    return _DIRECT.search(kernel.name) is not None


def results_of(op: Op, kernel: Kernel) -> int:
    """Values that a kernel of a convolution makes."""
    if op.packet != "aten::convolution_backward":
        return op.outputs[0].numel
    return (op.tensor("weight") if _OF_WEIGHT.search(kernel.name) else op.tensor("input")).numel


def taps_inside(op: Op) -> int:
    """Products of a value with a weight that do not fall on the padding: of all samples, channels and positions.

    A transposed convolution is the gradient of one that goes the other way: the taps meet from its result's side.
    """
    weight, transposed = op.tensor("weight"), bool(op.args.get("transposed"))
    source = op.tensor("input" if op.has("input") else "self")
    result = op.tensor("grad_output") if op.packet == "aten::convolution_backward" else op.outputs[0]
    small, large = (source, result) if transposed else (result, source)
    sides = len(weight.shape) - 2
    met = _inside(
        small.shape[2:],
        large.shape[2:],
        weight.shape[2:],
        [_each(op, name, default, sides) for name, default in (("stride", 1), ("padding", 0), ("dilation", 1))],
    )
    return small.shape[0] * weight.shape[0] * weight.shape[1] * met


def taps_of_pool(op: Op) -> int:
    """Values inside the image that all windows of an average pool hold together."""
    backward = "backward" in op.packet
    source = op.tensor("self") if backward else next(op.inputs)
    result = op.tensor("grad_output") if backward else op.outputs[0]
    channels = math.prod(result.shape[:-2])
    if "adaptive" in op.packet:
        windows = zip(source.shape[-2:], result.shape[-2:], strict=True)
        return channels * math.prod(
            sum(-(-(i + 1) * size // out) - i * size // out for i in range(out)) for size, out in windows
        )
    kernel = _each(op, "kernel_size", 1, 2)
    stride = _each(op, "stride", 1, 2) if op.ints("stride", []) else kernel
    return channels * _inside(
        result.shape[-2:], source.shape[-2:], kernel, [stride, _each(op, "padding", 0, 2), [1, 1]]
    )


def _each(op: Op, name: str, default: int, sides: int) -> list[int]:
    """One value may stand for all sides."""
    return (list(op.ints(name, [default])) * sides)[:sides]


def _inside(results: Sequence[int], image: Sequence[int], taps: Sequence[int], geometry: Sequence[list[int]]) -> int:
    """Pairs of a result and a tap that meet inside the image, over all sides."""
    count = 1
    for side, (size, out, width) in enumerate(zip(image, results, taps, strict=True)):
        stride, pad, dilation = (values[side] for values in geometry)
        count *= sum(0 <= place * stride - pad + tap * dilation < size for place in range(out) for tap in range(width))
    return count
