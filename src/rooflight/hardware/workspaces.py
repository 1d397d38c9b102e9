"""The workspace file: how many bytes cuDNN asked for, layer by layer, on one device. Versioned, decoded strictly.

One row a layer: the task's numbers (see rooflight.hardware.tasks.CONVOLUTION), then the bytes of its workspace forward
and for the gradients of input and weight; -1 where cuDNN had nothing for it.
"""

from __future__ import annotations

import gzip
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from rooflight.errors import BadInput
from rooflight.hardware.calibration import FOLDER
from rooflight.hardware.tasks import CONVOLUTION

FORMAT_VERSION = 1
FAMILIES = ("conv-forward", "conv-dgrad", "conv-wgrad")


class WorkspacePoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All recorded layers in one precision."""

    precision: str
    rows: list[list[int]]


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
        """As `ConvolutionWorkspaces` takes them."""
        return {points.precision: points.rows for points in self.points}


def decode(content: bytes, source: str) -> Workspaces:
    try:
        found = msgspec.json.decode(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content)
        version = found.get("format_version") if isinstance(found, dict) else None
        if version != FORMAT_VERSION:
            raise BadInput(f"{source}: workspace format {version!r}, this rooflight reads {FORMAT_VERSION}")
        workspaces = msgspec.convert(found, Workspaces)
    except (msgspec.MsgspecError, OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise BadInput(f"{source} is no workspace file: {error}") from None
    seen = set()
    for points in workspaces.points:
        if points.precision in seen:
            raise BadInput(f"{source}: its points in {points.precision} come twice")
        seen.add(points.precision)
        if not _are_layers(points.rows):
            raise BadInput(f"{source}: its points in {points.precision} are no layers")
    return workspaces


_COLUMNS = len(CONVOLUTION) + len(FAMILIES)
_LEAST = [*(0 if name in ("pad", "channels_last") else 1 for name in CONVOLUTION), *(-1 for _ in FAMILIES)]


def _are_layers(rows: list[list[int]]) -> bool:
    """Sizes are positive, padding and the layout may be nought; all of it fits 64 bits."""
    if any(len(row) != _COLUMNS for row in rows):
        return False
    try:
        table = np.array(rows, dtype=np.int64).reshape(-1, _COLUMNS)
    except OverflowError:
        return False
    return bool((table >= _LEAST).all() and (table < 1 << 48).all())


def encode(workspaces: Workspaces) -> bytes:
    return gzip.compress(msgspec.json.encode(workspaces), mtime=0)


def read(path: Path) -> Workspaces:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None


def shipped(device: str) -> Workspaces | None:
    """The workspaces that come with rooflight for a device of the database."""
    file: Any = resources.files("rooflight.hardware") / FOLDER / f"{device}-workspaces.json.gz"
    return decode(file.read_bytes(), f"the shipped workspaces of {device}") if file.is_file() else None
