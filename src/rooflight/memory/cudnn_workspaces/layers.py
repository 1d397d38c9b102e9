"""Convolution layers as columns, and how alike two layers are to cuDNN's choice of an engine: traits whose differences
make a distance."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflight.ops.kernel_task import with_output

Column = NDArray[np.int64]


@dataclass(frozen=True)
class ConvolutionLayers:
    """Many layers of one precision, a column for each number; p x q is the output picture."""

    size: int
    """Bytes of one element."""
    n: Column
    c: Column
    h: Column
    w: Column
    k: Column
    r: Column
    s: Column
    stride: Column
    pad: Column
    groups: Column
    channels_last: Column
    p: Column
    q: Column

    @classmethod
    def of(cls, numbers: Column, size: int) -> ConvolutionLayers:
        """From rows of task numbers (see rooflight.ops.kernel_task.CONVOLUTION)."""
        n, c, h, w, k, r, s, stride, pad, _, groups, channels_last, p, q = with_output(np.maximum(numbers, 0)).T
        return cls(size, n, c, h, w, k, r, s, np.maximum(stride, 1), pad, np.maximum(groups, 1), channels_last, p, q)

    @property
    def width_in(self) -> Column:
        """Input channels of one group."""
        return np.asarray(np.maximum(self.c // self.groups, 1), dtype=np.int64)

    @property
    def width_out(self) -> Column:
        return np.asarray(np.maximum(self.k // self.groups, 1), dtype=np.int64)

    @property
    def weights(self) -> Column:
        return self.k * self.width_in * self.r * self.s

    @property
    def tensor_bytes(self) -> Column:
        """Input, output and weight together: the unit that errors are told in."""
        return self.size * (self.n * self.c * self.h * self.w + self.n * self.k * self.p * self.q + self.weights)


Floats = NDArray[np.float64]
Traits = dict[str, Floats]

_TILE = 128
"""Side of the tiles that matrix kernels cut their output into, about."""

# How much a difference in a trait matters, found by trying on layers that were not among the neighbours.
_WEIGHTS = {
    "conv-forward": {
        "n": 1.0, "c": 1.6, "k": 0.6, "pixels_in": 1.0, "pixels_out": 1.0, "kernel": 3.2, "stride": 6.4, "groups": 1.6,
        "even_c": 0.3, "even_k": 1.6, "even_pixels_in": 0.6, "even_pixels_out": 0.6, "rows": 0.5, "work": 1.0,
        "tiles_of_output": 0.2, "oblong": 3.2, "single": 2.0,
    },
    "conv-dgrad": {
        "n": 1.0, "c": 1.0, "k": 0.3, "pixels_in": 1.0, "pixels_out": 1.0, "kernel": 5.1, "stride": 4.0, "groups": 1.6,
        "even_c": 1.0, "even_k": 0.6, "even_pixels_in": 0.6, "tiles_of_output": 0.8, "few_channels": 4.0,
        "oblong": 3.2, "weights": 0.8, "single": 1.2,
    },
    "conv-wgrad": {
        "n": 1.0, "c": 1.0, "k": 0.6, "pixels_in": 0.4, "kernel": 3.2, "stride": 6.4, "groups": 1.0, "even_c": 1.0,
        "even_k": 1.0, "rows": 0.5, "tiles_of_weight": 0.5, "tiles_of_output": 0.3, "few_channels": 4.0, "oblong": 5.1,
        "weights": 0.3, "single": 2.0,
    },
}  # fmt: skip
# Other engines altogether: a layer of another kind is a neighbour only where there is none of the own.
_KINDS = {"depthwise": 8.0, "pointwise": 8.0, "channels_last": 20.0}
OTHER_KIND = min(_KINDS.values())
"""No layer of another kind is nearer than this."""


def kinds_of(layers: ConvolutionLayers) -> Column:
    """A number for each layer, the same for layers of one kind."""
    depthwise = (layers.width_in == 1) & (layers.groups > 1)
    pointwise = layers.r * layers.s == 1
    return np.asarray(4 * depthwise + 2 * pointwise + (layers.channels_last > 0), dtype=np.int64)


def likeness(traits: Traits, family: str) -> Floats:
    """One row a layer, one column a trait, scaled by what it matters to the family."""
    weights = _WEIGHTS[family] | _KINDS
    return np.stack([weight * traits[name] for name, weight in weights.items()], axis=1)


def traits_of(layers: ConvolutionLayers) -> Traits:
    """All that any family compares layers by."""
    width_in, width_out, groups = layers.width_in, layers.width_out, layers.groups
    pixels_in, pixels_out = layers.h * layers.w, layers.p * layers.q
    kernel = layers.r * layers.s
    rows, depth = layers.n * pixels_out, width_in * kernel
    tiles_out = -(-width_out // _TILE) * groups
    return {
        "n": _log(layers.n),
        "c": _log(width_in),
        "k": _log(width_out),
        "pixels_in": _log(pixels_in),
        "pixels_out": _log(pixels_out),
        "kernel": _log(kernel),
        "stride": _log(layers.stride),
        "groups": _log(groups),
        "even_c": _halvings(width_in, 6),
        "even_k": _halvings(width_out, 6),
        "even_pixels_in": _halvings(pixels_in, 4),
        "even_pixels_out": _halvings(pixels_out, 4),
        "rows": _log(rows),
        "work": _log(rows) + _log(width_out) + _log(depth),
        "tiles_of_weight": _log(tiles_out * -(-depth // _TILE)),
        "tiles_of_output": _log(tiles_out * -(-rows // _TILE)),
        "weights": _log(layers.weights),
        "single": (layers.n == 1) * 1.0,
        "few_channels": (width_in <= 4) * 1.0,
        "oblong": (layers.r != layers.s) * 1.0,
        "depthwise": ((width_in == 1) & (groups > 1)) * 1.0,
        "pointwise": (kernel == 1) * 1.0,
        "channels_last": (layers.channels_last > 0) * 1.0,
    }


def _log(values: Column) -> Floats:
    return np.asarray(np.log2(np.maximum(values, 1)), dtype=np.float64)


def _halvings(values: Column, most: int) -> Floats:
    """How often a number can be halved: what alignment asks for."""
    lowest_bit = values | 1 << most
    lowest_bit &= -lowest_bit
    return np.frexp(lowest_bit.astype(np.float64))[1] - 1.0
