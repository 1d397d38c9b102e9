"""A profiler's log as text in numbered lines, and what every reader makes of one: launches with their metrics in base
units, before anything is computed from them.
"""

from __future__ import annotations

import csv
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cached_property

from rooflight.errors import BadFile
from rooflight.ledger import HostCall, KernelKind, Note, Op, Storage, Value

Dim3 = tuple[int, int, int]
COPIED = "copied_bytes"
"""What traces tell of copies and fills."""
_MOST_COUNTED = 2**63 - 1
MOST_LAUNCHES = 1_000_000
"""More a ledger should not hold."""


@dataclass(frozen=True)
class LogText:
    """`name` is what messages call it."""

    name: str
    text: str

    @cached_property
    def lines(self) -> list[str]:
        """Split at line feeds only: a progress bar's carriage returns are no new lines to an editor either."""
        return [line.rstrip("\r") for line in self.text.split("\n")]

    def numbered(self) -> Iterator[tuple[int, str]]:
        return enumerate(self.lines, start=1)

    def at(self, line: int) -> str:
        """Name the file and the line, as errors begin."""
        return f"{self.name}, line {line}"

    def bad(self, line: int, message: str) -> BadFile:
        return BadFile("bad-line", f"{self.at(line)}: {message}")

    def torn(self, line: int, message: str, *, again: str = "export") -> BadFile:
        return BadFile("truncated-file", f"{self.at(line)}: {message}: the file is not whole, {again} it again")


@dataclass(frozen=True)
class MetricReading:
    """A metric of one launch in its base unit. `low` and `high`: least and greatest launch of those it averages."""

    value: int | float
    unit: str
    low: int | float | None = None
    high: int | float | None = None


@dataclass(frozen=True, kw_only=True)
class LoggedLaunch:
    """One kernel, copy or fill. `metrics` go by the profiler's own names."""

    name: str
    kind: KernelKind = "kernel"
    grid: Dim3 | None = None
    block: Dim3 | None = None
    stream: int | None = None
    start_s: float | None = None
    time_s: float | None = None
    ops: tuple[int, ...] = ()
    """Of `ProfilerLog.ops`, where the log tells what an op was called with."""
    calls: int = 1
    """Launches that it stands for, where the log has only the sum of them; `time_s` is of all."""
    launch_s: float | None = None
    """When the host began to launch it, on the clock of `start_s`, and how long that took it."""
    launch_time_s: float | None = None
    label: str = ""
    metrics: dict[str, MetricReading] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ProfilerLog:
    """A whole log. `about` says in a few words what it is: `ncu CSV, raw page`."""

    tool: str
    about: str
    launches: tuple[LoggedLaunch, ...]
    time_origin: str
    """Where the launches' times come from."""
    device: str | None = None
    capability: str | None = None
    """Compute capability, as `9.0`."""
    cuda: str | None = None
    target: str = "cuda"
    ops: tuple[Op, ...] = ()
    """The calls that could be made again from what the log tells of them, with their costs."""
    storages: tuple[Storage, ...] = ()
    totals: dict[str, Value] = field(default_factory=dict)
    """What the log tells of the whole and no launch can."""
    host_calls: tuple[HostCall, ...] = ()
    """What kept the host from launching, on the clock of the launches."""
    unmatched: tuple[Note, ...] = ()
    """Notes on kernels that only one of two joined logs has: said first, for the logs may be of two programs."""
    notes: tuple[Note, ...] = ()
    file: str = ""
    """Name of the file, for what is said of several."""
    is_summary: bool = False
    """Are launches here only with the average of all of a kernel, and in no order?"""
    times_of: str = ""
    """The other file that the launches' times are of, where two were joined."""

    @property
    def counts(self) -> bool:
        """Has it counted anything but the size of copies?"""
        return any(name != COPIED for launch in self.launches for name in launch.metrics)


class NotCounted(ValueError):
    """A number that no counter can have given."""


def exact(value: Decimal, *, may_be_negative: bool = False) -> int | float:
    """A whole number stays exact; `NotCounted` for what a 64-bit counter cannot hold."""
    if value < 0 and not may_be_negative:
        raise NotCounted("nothing counts below zero")
    if abs(value) > _MOST_COUNTED:
        raise NotCounted("no counter of 64 bits gets there")
    return int(value) if value == value.to_integral_value() else float(value)


def dim3(x: int | None, y: int | None, z: int | None) -> Dim3 | None:
    """The sizes of a grid or a block, where all three are known."""
    return None if x is None or y is None or z is None else (x, y, z)


def in_blocks(threads: Dim3 | None, block: Dim3 | None) -> Dim3 | None:
    """A grid of threads as one of blocks; the last block of a row may be a part."""
    if threads is None or block is None or 0 in block:
        return None
    x, y, z = (-(-count // size) for count, size in zip(threads, block, strict=True))
    return x, y, z


def check_launches(source: LogText, counts: list[int]) -> None:
    """Refuse a summary of more launches than a ledger should hold, before they are written out one by one."""
    if sum(counts) > MOST_LAUNCHES:
        most = f"more than the {MOST_LAUNCHES:,} that rooflight imports: profile a shorter part"
        raise BadFile("too-many-launches", f"{source.name} tells of {sum(counts):,} launches, {most}")


def several_gpus(devices: Collection[str]) -> list[Note]:
    """Return a note if a log is of more than one."""
    text = f"the log covers {len(devices)} GPUs, all of them in the totals: {', '.join(devices)}"
    return [Note("several-gpus", text)] if len(devices) > 1 else []


def shown(text: str) -> str:
    """A cell in a message, in quotes and not longer than a line has room for."""
    text = text.strip()
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


def decode(content: bytes) -> str | None:
    """The text, or `None` where there is none. PowerShell's `>` writes UTF-16, old terminals a byte a letter."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content:
        return None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def cells_of(line: str) -> list[str] | None:
    """The cells of one line of CSV; `None` when a quote is still open at its end."""
    try:
        return next(csv.reader([line], strict=True), [])
    except csv.Error:
        return None
