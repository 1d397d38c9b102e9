"""The calibration file: what micro-benchmarks found out about one device. Versioned, decoded strictly.

Times are stored as whole nanoseconds, one row a point: the task's numbers, then warm, cold, and how many kernels ran.
"""

from __future__ import annotations

import gzip
import os
import zlib
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from rooflight.errors import BadInput
from rooflight.hardware.tasks import FAMILIES, Task
from rooflight.hardware.workspace_points import WorkspacePoints, fault_of
from rooflight.ledger import Value

FORMAT_VERSION = 1
FOLDER = "calibrations"


class Points(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All timed works of one family in one precision."""

    family: str
    precision: str
    rows: list[list[int]]

    def tasks(self) -> list[Task]:
        return [Task(self.family, self.precision, tuple(row[:-3])) for row in self.rows]


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    format_version: int
    rooflight: str
    torch: str
    device: str
    """As the driver names it."""
    cuda: str | None = None
    cudnn: str | None = None
    driver: str | None = None
    made: str = ""
    """The day it was made."""
    seconds: float = 0.0
    conditions: dict[str, str] = {}
    ceilings: dict[str, Value] = {}
    """The best that was reached: sustained matrix FLOP/s by precision, copy and triad bytes/s."""
    host: dict[str, Value] = {}
    """Seconds of the host for one op of a class, and between two kernels of the device."""
    points: tuple[Points, ...] = ()
    workspaces: tuple[WorkspacePoints, ...] = ()
    """What cuDNN takes for convolutions beside their tensors; none on a CPU, and in files of before it was recorded."""
    notes: tuple[str, ...] = ()


def _of_this_version(text: bytes, source: str) -> Calibration:
    """Read in one go. Only what does not fit is read again: that it is of another version is said first."""
    try:
        calibration = msgspec.json.decode(text, type=Calibration)
    except msgspec.ValidationError:
        found = msgspec.json.decode(text)
        _check_version(found.get("format_version") if isinstance(found, dict) else None, source)
        raise
    _check_version(calibration.format_version, source)
    return calibration


def _check_version(version: object, source: str) -> None:
    if version != FORMAT_VERSION:
        raise BadInput(
            f"{source}: calibration format {version!r}, this rooflight reads {FORMAT_VERSION}; make it again with: "
            "rooflight calibrate"
        )


def decode(content: bytes, source: str) -> Calibration:
    try:
        calibration = _of_this_version(gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content, source)
    except (msgspec.MsgspecError, OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise BadInput(f"{source} is no calibration file: {error}; make one with: rooflight calibrate") from None
    for points in calibration.points:
        names = FAMILIES.get(points.family)
        if names is None or any(len(row) != len(names) + 3 or min(row) < 0 or not row[-3] or not row[-2]
                                for row in points.rows):  # fmt: skip
            raise BadInput(f"{source}: its {points.family!r} points do not fit this rooflight; make it again with: "
                           "rooflight calibrate")  # fmt: skip
    fault = fault_of(calibration.workspaces)
    if fault is not None:
        raise BadInput(f"{source}: its workspaces {fault}; make it again with: rooflight calibrate")
    for key, value in (*calibration.host.items(), *calibration.ceilings.items()):
        if value.value < 0:
            raise BadInput(f"{source}: {key} is negative; make it again with: rooflight calibrate")
    return calibration


def encode(calibration: Calibration) -> bytes:
    return gzip.compress(msgspec.json.encode(calibration), mtime=0)


def read(path: Path) -> Calibration:
    try:
        return decode(path.read_bytes(), str(path))
    except OSError as error:
        raise BadInput(
            f"cannot read {path}: {error.strerror}; give another file, or make one with: rooflight calibrate"
        ) from None


def own_path(device: str) -> Path:
    """Where `rooflight calibrate` keeps what it found, and `rooflight predict` looks first."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "rooflight" / "calibrations" / f"{device}.json.gz"


def calibration_for(device: str) -> tuple[Calibration, str] | None:
    """The user's own calibration of a device, or the one that comes along; and where it is from."""
    own = own_path(device)
    if own.is_file():
        return read(own), str(own)
    found = shipped(device)
    return None if found is None else (found, "comes with rooflight")


@lru_cache(maxsize=8)
def shipped(device: str) -> Calibration | None:
    """The calibration that comes with rooflight for a device of the database: read once, it does not change."""
    file: Any = resources.files("rooflight.hardware") / FOLDER / f"{device}.json.gz"
    return decode(file.read_bytes(), f"the shipped calibration of {device}") if file.is_file() else None
