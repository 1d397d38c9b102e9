"""The closed forms of cuDNN's convolution workspaces, found in recorded ones; many of them fit to the byte.

Most engines want NHWC with aligned channels, so that cuDNN copies some of {input, output, weight} into its workspace.
The others transform: Winograd's and the Fourier engines keep their transformed tensors there.
"""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from rooflight.memory.cudnn_workspaces.layers import Column, ConvolutionLayers

GROUPS_AT_ONCE = 8
"""Engines without grouping of their own work through the groups, so many at a time."""
SLACK = 1024
"""What a closed form may leave over and still be exact: alignment and small tables."""
_KEPT = [kept for kept in product((1, 0), repeat=3) if any(kept)]


def closed_forms(layers: ConvolutionLayers) -> NDArray[np.float64]:
    """Bytes by every pattern: one row a pattern, one column a layer. The first `OPEN` may leave a rest."""
    return np.stack([*_copies(layers), *_transforms(layers)]).astype(np.float64)


def decode(
    forms: NDArray[np.float64], workspaces: Column, groups: Column
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Which pattern each recorded workspace is, and the rest it leaves: the pattern that leaves the least."""
    rest = workspaces - forms
    unfit = rest < 0
    unfit[OPEN:] |= rest[OPEN:] > SLACK
    rest[unfit] = np.inf
    pattern = rest.argmin(axis=0)
    return _padded(pattern, forms, groups), rest[pattern, np.arange(len(pattern))]


def _padded(pattern: NDArray[np.int64], forms: NDArray[np.float64], groups: Column) -> NDArray[np.int64]:
    """Channels that need no padding do not show that an engine pads, but those of a layer like it may: where a copy as
    it is and a padded one are the same bytes, the padded one is meant. Dense layers are padded to the alignment, groups
    to powers of two."""
    column = np.arange(len(pattern))
    to = np.where(groups > 1, _TO_POWERS, _TO_ALIGNMENT) + (pattern - 1) % len(_KEPT)
    padded = np.where((pattern > 0) & (pattern < OPEN), to, pattern)
    return np.where(forms[padded, column] == forms[pattern, column], padded, pattern)


def _copies(layers: ConvolutionLayers) -> list[Column]:
    """Nothing at all, or copies of some tensors, with the channels of a group as they are or padded."""
    width_in, width_out = layers.width_in, layers.width_out
    aligned = 16 // layers.size
    copies = [np.zeros_like(layers.n)]
    for wide_in, wide_out in (
        (width_in, width_out),
        (_up(width_in, aligned), _up(width_out, aligned)),
        (_power_of_two(width_in), _power_of_two(width_out)),
        (_up(width_in, 32), _up(width_out, 32)),
    ):
        tensors = (
            layers.n * layers.groups * wide_in * layers.h * layers.w * layers.size,
            layers.n * layers.groups * wide_out * layers.p * layers.q * layers.size,
            layers.groups * wide_out * wide_in * layers.r * layers.s * layers.size,
        )
        copies += [sum((t for t, k in zip(tensors, kept, strict=True) if k), 0 * layers.n) for kept in _KEPT]
    return copies


_TO_ALIGNMENT, _TO_POWERS = 1 + len(_KEPT), 1 + 2 * len(_KEPT)
"""Where the copies with either padding begin."""
OPEN = _TO_POWERS
"""How many patterns may leave a rest: none, and the copies as they are or aligned. The wider paddings would otherwise
swallow rests that have another cause."""


def _transforms(layers: ConvolutionLayers) -> list[Column]:
    """Patterns that count only where they fit to the byte: they would explain anything if given a rest."""
    n, groups = layers.n, layers.groups
    width_in, width_out = layers.width_in, layers.width_out
    both, pairs, at_once = width_in + width_out, width_in * width_out, np.minimum(groups, GROUPS_AT_ONCE)
    weight = layers.weights * layers.size
    padded = np.maximum(layers.h, layers.w) + 2 * layers.pad
    spectrum = _power_of_two(np.maximum(padded, 16))
    spectrum = spectrum * (spectrum // 2 + 1) * 8
    tiled = 32 * 17 * 8
    small = n * -(-layers.p // 4) * -(-layers.q // 4)
    large = _up(n, 16) * -(-layers.p // 9) * -(-layers.q // 9)
    io = n * (layers.c * layers.h * layers.w + layers.k * layers.p * layers.q) * layers.size
    return [
        # A weight gradient for every picture, summed afterwards.
        n * layers.weights * 4,
        # Some of the groups at a time.
        io * at_once // groups,
        # Winograd: tiles of 4x4 outputs transform to 6x6 numbers, of 9x9 (for 5x5 kernels) to 13x13.
        at_once * 4 * 36 * (small * both + pairs),
        at_once * 4 * 169 * (large * both + pairs),
        # Fourier, the picture as a whole or in tiles of 32x32.
        spectrum * 2 * (n * layers.c + layers.c * layers.k) + weight,
        spectrum * 2 * (n * layers.k + layers.c * layers.k) + weight,
        tiled * (np.where(padded > 32, 2, 1) * n * (layers.c + layers.k) + layers.c * layers.k),
    ]


def _up(values: Column, multiple: int) -> Column:
    return -(-values // multiple) * multiple


def _power_of_two(values: Column) -> Column:
    return 2 ** np.ceil(np.log2(values)).astype(np.int64)
