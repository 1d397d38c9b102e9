"""Convolution layers as columns: what the closed forms and the comparison of layers both need."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.tasks import with_output

Column = NDArray[np.int64]


@dataclass(frozen=True)
class Layers:
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
    def of(cls, numbers: Column, size: int) -> Layers:
        """From rows of task numbers (see rooflight.hardware.tasks.CONVOLUTION)."""
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
