"""The workspace file: how many bytes cuDNN asked for, layer by layer, on one device. Versioned, decoded strictly."""

from __future__ import annotations

import gzip
import zlib
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from rooflight.errors import BadInput
from rooflight.hardware.calibration import FOLDER
from rooflight.hardware.workspace_points import WorkspacePoints, by_precision, fault_of

FORMAT_VERSION = 1


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


def decode(content: bytes, source: str) -> Workspaces:
    try:
        workspaces = _of_this_version(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content, source)
    except (msgspec.MsgspecError, OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise BadInput(f"{source} is no workspace file: {error}; make it again, or install rooflight again") from None
    fault = fault_of(workspaces.points)
    if fault is not None:
        raise BadInput(f"{source}: its points {fault}; make it again, or install rooflight again")
    return workspaces


def _of_this_version(text: bytes, source: str) -> Workspaces:
    """Read in one go. Only what does not fit is read again: that it is of another version is said first."""
    try:
        workspaces = msgspec.json.decode(text, type=Workspaces)
    except msgspec.ValidationError:
        found = msgspec.json.decode(text)
        _check_version(found.get("format_version") if isinstance(found, dict) else None, source)
        raise
    _check_version(workspaces.format_version, source)
    return workspaces


def _check_version(version: object, source: str) -> None:
    if version != FORMAT_VERSION:
        raise BadInput(f"{source}: workspace format {version!r}, this rooflight reads {FORMAT_VERSION}; make it again")


def encode(workspaces: Workspaces) -> bytes:
    return gzip.compress(msgspec.json.encode(workspaces), mtime=0)


def read(path: Path) -> Workspaces:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}; give another file") from None


def shipped(device: str) -> Workspaces | None:
    """The workspaces that come with rooflight for a device of the database."""
    file: Any = resources.files("rooflight.hardware") / FOLDER / f"{device}-workspaces.json.gz"
    return decode(file.read_bytes(), f"the shipped workspaces of {device}") if file.is_file() else None
