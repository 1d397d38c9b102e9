"""Workspaces that cuDNN asked for, layer by layer, on one device: points of a calibration, or a file of their own.

One row a layer: the task's numbers (see rooflight.ops.kernel_task.CONVOLUTION), then the bytes of its workspace forward
and for the gradients of input and weight; -1 where cuDNN had nothing for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import msgspec
import numpy as np

from rooflight.hardware.recorded_tables import TableFormat
from rooflight.ops.kernel_task import CONVOLUTION

FORMAT_VERSION = 1
FAMILIES = ("conv-forward", "conv-dgrad", "conv-wgrad")
_COLUMNS = len(CONVOLUTION) + len(FAMILIES)
_LEAST = [*(0 if name in ("pad", "channels_last") else 1 for name in CONVOLUTION), *(-1 for _ in FAMILIES)]


class WorkspacePoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All recorded layers in one precision."""

    precision: str
    """That the layers ran in."""
    rows: list[list[int]]
    """One a layer: its numbers, and bytes forward, for the gradient of the input and of the weight."""


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


class Workspaces(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format_version: int
    device: str
    """As the driver names it."""
    torch: str
    cudnn: str
    made: str = ""
    """The day it was made."""
    points: tuple[WorkspacePoints, ...] = ()

    def by_precision(self) -> dict[str, list[list[int]]]:
        return by_precision(self.points)


def _fault_in(workspaces: Workspaces) -> str | None:
    fault = fault_of(workspaces.points)
    return None if fault is None else f"its points {fault}"


_REMEDY = "make it again, or install rooflight again"
_FORMAT = TableFormat(Workspaces, "workspace", FORMAT_VERSION, _REMEDY, fault_of=_fault_in, after_fault=_REMEDY)
decode = _FORMAT.decode


def shipped(device: str) -> Workspaces | None:
    """The workspaces that come with rooflight for a device of the database."""
    return _FORMAT.shipped(f"{device}-workspaces", f"the shipped workspaces of {device}")
