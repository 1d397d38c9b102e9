"""Recorded workspaces of convolutions, as both the workspace file and the calibration file have them.

One row a layer: the task's numbers (see rooflight.hardware.tasks.CONVOLUTION), then the bytes of its workspace forward
and for the gradients of input and weight; -1 where cuDNN had nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec
import numpy as np

from rooflight.hardware.tasks import CONVOLUTION

FAMILIES = ("conv-forward", "conv-dgrad", "conv-wgrad")
_COLUMNS = len(CONVOLUTION) + len(FAMILIES)
_LEAST = [*(0 if name in ("pad", "channels_last") else 1 for name in CONVOLUTION), *(-1 for _ in FAMILIES)]


class WorkspacePoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All recorded layers in one precision."""

    precision: str
    rows: list[list[int]]


def by_precision(points: Iterable[WorkspacePoints]) -> dict[str, list[list[int]]]:
    """As `ConvolutionWorkspaces` takes them."""
    return {some.precision: some.rows for some in points}


def fault_of(points: Iterable[WorkspacePoints]) -> str | None:
    """What is wrong with them, as the end of a sentence that begins with what they are; `None`: nothing."""
    seen = set()
    for some in points:
        if some.precision in seen:
            return f"in {some.precision} come twice"
        seen.add(some.precision)
        if not _are_layers(some.rows):
            return f"in {some.precision} are no layers"
    return None


def _are_layers(rows: list[list[int]]) -> bool:
    """Sizes are positive, padding and the layout may be nought; all of it fits 64 bits."""
    if any(len(row) != _COLUMNS for row in rows):
        return False
    try:
        table = np.fromiter(chain.from_iterable(rows), np.int64, _COLUMNS * len(rows)).reshape(-1, _COLUMNS)
    except OverflowError:
        return False
    return bool((table >= _LEAST).all() and (table < 1 << 48).all())
