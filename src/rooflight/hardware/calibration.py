"""The calibration file: what micro-benchmarks found out about one device. Versioned, decoded strictly.

Times are stored as whole nanoseconds, one row a point: the task's numbers, then warm, cold, and how many kernels ran.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from rooflight.hardware.recorded_tables import MOST, TableFormat
from rooflight.hardware.workspaces import WorkspacePoints, fault_of
from rooflight.ledger import Value
from rooflight.ops.kernel_task import FAMILIES, OUTPUT, Task, convolves

FORMAT_VERSION = 1
COMES_ALONG = "comes with rooflight"
"""Where a calibration is from that is not the user's own."""
FROM_FILES = "made from times that were there already, by rooflight calibrate --from"
"""The first note of such a calibration; what comes after it is what is hard to believe of those times."""


class TimedPoints(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Timed works of one family in one precision, from one source."""

    family: str
    """One of `rooflight.ops.kernel_task.FAMILIES`."""
    precision: str
    """That the works ran in."""
    rows: list[list[int]]
    """One a work: its numbers, nanoseconds warm, nanoseconds cold, kernels."""
    source: str = ""
    """Where its times are from; empty: from the micro-benchmarks of `rooflight calibrate`. Several groups of points of
    one family may stand beside each other, each with its own."""
    in_steps: bool = False
    """Were they timed in running steps? A board that its power limit holds back runs one product over and over at a
    lower clock than the products of a step: what all of its points have in common then says nothing of a step."""

    def tasks(self) -> list[Task]:
        """The works, in the order of the rows."""
        return [Task(self.family, self.precision, tuple(row[:-3])) for row in self.rows]


class Calibration(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What was timed on one device."""

    format_version: int
    """Of this file."""
    rooflight: str
    """Version that wrote it."""
    torch: str
    """Version that ran; empty: not told."""
    device: str
    """As the driver names it."""
    cuda: str | None = None
    """Version of CUDA; empty: not told; `None`: no GPU."""
    cudnn: str | None = None
    """Version of cuDNN."""
    driver: str | None = None
    """Version of the driver."""
    made: str = ""
    """The day it was made."""
    seconds: float = 0.0
    """How long that took."""
    conditions: dict[str, str] = {}
    """Clocks, power, throttling and load while it ran."""
    ceilings: dict[str, Value] = {}
    """The best that was reached: sustained matrix FLOP/s by precision, copy and triad bytes/s."""
    host: dict[str, Value] = {}
    """Seconds of the host for one op of a class, and between two kernels of the device."""
    points: tuple[TimedPoints, ...] = ()
    """The timed works, by family, precision and source."""
    workspaces: tuple[WorkspacePoints, ...] = ()
    """What cuDNN takes for convolutions beside their tensors; none on a CPU, and in files of before it was recorded."""
    notes: tuple[str, ...] = ()
    """What else must be said of it."""
    partial: bool = False
    """Does it hold only what somebody happened to time? What lies far from its points is then transferred from another
    device, corrected by what the points near it say."""

    def __repr__(self) -> str:
        """Short: it may hold a hundred thousand points."""
        points = sum(len(group.rows) for group in self.points)
        return f"Calibration({self.device}, made {self.made or 'at some time'}: {points:,} timed points)"


def _fault_of(calibration: Calibration) -> str | None:
    """Its numbers are those of tasks that this rooflight knows."""
    for points in calibration.points:
        names = FAMILIES.get(points.family)
        lengths = () if names is None else (len(names), len(names) + (len(OUTPUT) if convolves(points.family) else 0))
        if not _are_points(points.rows, lengths):
            return f"its {points.family!r} points do not fit this rooflight"
    fault = fault_of(calibration.workspaces)
    if fault is not None:
        return f"its workspaces {fault}"
    for key, value in (*calibration.host.items(), *calibration.ceilings.items()):
        if value.value < 0:
            return f"{key} is negative"
        if value.value > MOST:
            return f"{key} is larger than anything that a device does"
    return None


def _are_points(rows: Sequence[Sequence[int]], lengths: Sequence[int]) -> bool:
    """All rows of a family: there may be a hundred thousand, each looked at whenever they are read."""
    return (
        {len(row) - 3 for row in rows}.issubset(lengths)
        and min(map(min, rows), default=0) >= 0
        and max(map(max, rows), default=0) < MOST
        and all(row[-3] and row[-2] for row in rows)
    )


_FORMAT = TableFormat(
    Calibration,
    "calibration",
    FORMAT_VERSION,
    "make one with: rooflight calibrate",
    fault_of=_fault_of,
    after_fault="make it again with: rooflight calibrate",
)
decode, read = _FORMAT.decode, _FORMAT.read


def own_path(device: str) -> Path:
    """Where `rooflight calibrate` keeps what it found, and `rooflight predict` looks first."""
    base = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(base) / "rooflight" / "calibrations" / f"{device}.json.gz"


def calibration_for(device: str) -> tuple[Calibration, str] | None:
    """The user's own calibration of a device, or the one that comes along; and where it is from."""
    own = own_path(device)
    if own.is_file():
        return read(own), str(own)
    calibration = shipped(device)
    return None if calibration is None else (calibration, COMES_ALONG)


def published_name(device: str) -> str:
    """Of the calibration made of what others published about a device."""
    return f"{device}-published"


@cache
def shipped(device: str) -> Calibration | None:
    """The calibration that comes with rooflight for a device of the database: read once, it does not change."""
    return _FORMAT.shipped(device, f"the shipped calibration of {device}")
