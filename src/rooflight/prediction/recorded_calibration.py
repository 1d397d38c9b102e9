"""A calibration from times that somebody has already: traces of PyTorch's profiler, ledgers, tables of times.

It is partial: it knows the works that happened to be timed. What a device cannot have done is refused in a table,
where it is a mistake of whoever wrote it, and left out of a recording.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path

from rooflight import recordings
from rooflight._version import __version__
from rooflight.calibration import points_csv
from rooflight.calibration.recorded_points import LeftOut, RecordedTimes, TimedTask, timed_tasks
from rooflight.errors import BadFile, BadInput
from rooflight.files import load, read_bytes, write_atomically
from rooflight.formatting import seconds as time_text
from rooflight.hardware.calibration import FORMAT_VERSION, FROM_FILES, Calibration, TimedPoints
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find, recognise_name
from rooflight.hardware.recorded_tables import encode
from rooflight.ledger import Ledger
from rooflight.ops.kernel_task import Task
from rooflight.prediction.believed_times import SHORT, SHORT_S, doubts, long_enough, refuse_impossible, refuse_units
from rooflight.prediction.possible_times import ALLOWANCE, least_time
from rooflight.prediction.resolve_devices import device_of

IMPOSSIBLE = "times below what the device can do"
_MOST_IMPOSSIBLE = 0.1
"""Of a recording's works: more of them, and it is of another device than it is taken for."""
RUNNING = "kernels of a running model, their inputs partly in caches"


@dataclass(frozen=True)
class RecordedCalibration:
    """A partial calibration, and how it came about."""

    calibration: Calibration
    """What `rooflight.predict(calibration=...)` takes."""
    device: Device
    """The GPU that it is of."""
    files: tuple[RecordedTimes, ...]
    """What was read, file by file: the works, and what is left out."""

    @property
    def points(self) -> int:
        """How many different works were timed."""
        return sum(len(group.rows) for group in self.calibration.points)

    @property
    def doubts(self) -> tuple[str, ...]:
        """What is hard to believe of the times: predictions say it too."""
        return tuple(doubt for file in self.files for doubt in file.doubts)

    @property
    def covered(self) -> float:
        """The part of the recorded time that gave points."""
        total = sum(file.total_s for file in self.files)
        return sum(work.seconds for file in self.files for work in file.works) / total if total else 0.0

    def __repr__(self) -> str:
        points = f"{self.points:,} point{'s' * (self.points != 1)}"
        return f"RecordedCalibration({self.device.name}: {points} from {', '.join(file.name for file in self.files)})"

    def save(self, path: str | Path, *, force: bool = False) -> Path:
        """For `rooflight.predict(calibration=...)`; `force` allows to replace an existing file."""
        path = Path(path)
        write_atomically(path, encode(self.calibration), force=force)
        return path


def calibration_from(
    files: str | Path | Sequence[str | Path], *, on: str | Device | None = None
) -> RecordedCalibration:
    """A partial calibration from times that are there already.

    `files`: traces of PyTorch's profiler (made with `record_shapes=True`), measured ledgers, `recorded:NAME`, or CSV
    tables of op, shape, dtype and time. `on`: the device they are of, where they do not name it themselves.

        >>> rooflight.calibration_from("trace.json.gz", on="rtx-4070").save("mine.json.gz")
    """
    paths = [files] if isinstance(files, (str, Path)) else list(files)
    if not paths:
        raise BadInput(
            "no-files", "no file is given: give a trace of PyTorch's profiler, a measured ledger or a table of times"
        )
    given = None if on is None else on if isinstance(on, Device) else device_of(on)
    read = [_read(path) for path in paths]
    device = _one_device(read, given)
    done = tuple(_checked(file, device) for file in read)
    if not any(file.works for file in done):
        raise BadInput("nothing-to-calibrate", _nothing(done))
    return RecordedCalibration(_calibration(done, device), device, done)


# --- reading ---


@dataclass(frozen=True)
class _ReadTable:
    """A table before its device is known, which decides what `attention` is."""

    name: str
    rows: list[points_csv.TimedRow]

    @property
    def device(self) -> str | None:
        named = {row.device: row.line for row in reversed(self.rows) if row.device}
        if len(named) > 1:
            (first, _), (second, line) = sorted(named.items(), key=lambda item: item[1])[:2]
            raise BadFile(
                "several-devices",
                f"{self.name}, line {line}: column device: {second} here and {first} above: one table a device",
            )
        return next(iter(named), None)


def _read(path: str | Path) -> RecordedTimes | _ReadTable:
    if recordings.is_recorded(path):
        return _of_ledger(load(path), str(path))
    path = Path(path)
    content = read_bytes(path, what="trace, ledger or table of times")
    if not content.strip():
        raise BadFile("empty-file", f"{path} is empty: give a trace, a measured ledger or a table of times")
    if content.lstrip()[:1] not in (b"{", b"["):
        if not points_csv.is_table(content):
            raise BadFile(
                "unknown-file",
                f"{path} is no trace of PyTorch's profiler, no ledger, and no table of times: a table begins with a "
                "line such as op,shape,dtype,time_us",
            )
        return _ReadTable(str(path), points_csv.read_table(path))
    if b'"format_version"' in content[:200]:
        if b'"header"' not in content and b'"points"' in content:
            raise BadFile(
                "is-a-calibration",
                f"{path} is a calibration: give the files that it was made from, and the new ones with them",
            )
        return _of_ledger(load(path), str(path))
    from rooflight.calibration.profiled_ops import read_trace  # needs torch, as the others do not

    step = read_trace(path)
    return _of_ledger(step.ledger, str(path), left_out=step.left_out)


def _of_ledger(ledger: Ledger, name: str, *, left_out: LeftOut | None = None) -> RecordedTimes:
    times = [kernel.time_s for kernel in ledger.kernels if kernel.time_s is not None]
    if left_out is None:
        if not times:
            raise BadFile(
                "no-kernel-times", f"{name} holds no times of kernels: give what `rooflight measure` wrote on a GPU"
            )
        if not ledger.ops:
            raise BadFile(
                "no-ops", f"{name} holds kernels and no ops: give the log that it was imported from, or measure again"
            )
    works, more = timed_tasks(ledger, name=name)
    total = sum(times)
    for reason, (count, spent) in (left_out.reasons if left_out is not None else {}).items():
        more.add(reason, spent, count)
        total += spent
    about = "measured by rooflight" if left_out is None else "profiled by torch.profiler"
    file = name if recordings.is_recorded(name) else Path(name).name
    torch = ledger.header.torch or ""
    what = f"{file}, {about}{f' with torch {torch}' if torch else ''}: {RUNNING}"
    header = ledger.header
    return RecordedTimes(name, what, header.device, tuple(works), total, more, torch, header.cuda, in_steps=True)


# --- the device ---


def _one_device(files: Sequence[RecordedTimes | _ReadTable], given: Device | None) -> Device:
    """That of all files; what they name must be it."""
    devices: dict[str, tuple[str, Device]] = {}
    unknown: list[tuple[str, str]] = []
    for file in files:
        named = file.device
        if named is None:
            continue
        device = _named(named)
        if device is None:
            unknown.append((file.name, named))
        else:
            devices.setdefault(device.name, (file.name, device))
    if given is not None:
        devices.setdefault(given.name, ("--on", given))
    if len(devices) > 1:
        places = " and ".join(f"{place} says {name}" for name, (place, _) in devices.items())
        raise BadInput("several-devices", f"{places}: a calibration is of one device")
    if given is None and unknown:
        place, name = unknown[0]
        raise BadInput(
            "device-not-in-database",
            f"{place} is of {name!r}, which is not in the database: say --on, a device or a .toml file",
        )
    if not devices:
        raise BadInput("no-device", f"{files[0].name} does not name its device: say --on, as --on=rtx-4090")
    device = given or next(device for _, device in devices.values())
    if not device.is_cuda:
        raise BadInput(
            "not-a-gpu",
            f"{device.name} is no GPU of NVIDIA or AMD, and times are transferred to no others: a CPU is calibrated on "
            "itself, by `rooflight calibrate --on cpu`",
        )
    return device


def _named(name: str) -> Device | None:
    device = recognise_name(name)
    if device is not None:
        return device
    try:
        return None if name.endswith(".toml") or "/" in name else find(name)
    except BadInput:
        return None


# --- what a device can have done ---


def _checked(file: RecordedTimes | _ReadTable, device: Device) -> RecordedTimes:
    if isinstance(file, _ReadTable):
        return _checked_table(file, device)
    bad = [work for work in file.works if work.seconds < ALLOWANCE * least_time(work.task, device).seconds]
    if len(bad) > _MOST_IMPOSSIBLE * len(file.works):
        refuse_impossible(bad[0], device, end=f"; so are {len(bad):,} of {len(file.works):,} times of {file.name}")
    for work in bad:
        file.left_out.add(IMPOSSIBLE, work.seconds)
    works = [work for work in file.works if work not in bad]
    return replace(file, works=tuple(works))


def _checked_table(file: _ReadTable, device: Device) -> RecordedTimes:
    works = points_csv.works_of(file.rows, device, name=file.name)
    refuse_units(works, device, file.name)
    for work in works:
        refuse_impossible(work, device)
    (kept, short), left_out = long_enough(works, device), LeftOut()
    for work in short:
        left_out.add(SHORT, work.seconds)
    what = f"{Path(file.name).name}, a table of times: warm or cold is not told"
    total = sum(work.seconds for work in works)
    return RecordedTimes(
        file.name, what, file.device, tuple(kept), total, left_out, doubts=tuple(doubts(kept, device, file.name))
    )


def _nothing(files: Sequence[RecordedTimes]) -> str:
    reasons: dict[str, float] = {}
    for file in files:
        for reason, (_, spent) in file.left_out.reasons.items():
            reasons[reason] = reasons.get(reason, 0.0) + spent
    names = ", ".join(file.name for file in files)
    if set(reasons) == {SHORT}:
        rows = sum(count for file in files for count, _ in file.left_out.reasons.values())
        which = f"all {rows:,} rows are" if rows > 1 else "its one row is"
        return (
            f"{names}: {which} too short to tell more than a launch (below {time_text(SHORT_S)} by what is "
            "transferred): time larger works, or give a trace of the profiler, whose times are of kernels alone"
        )
    most = max(reasons, key=lambda reason: reasons[reason], default="no kernel has a time")
    return f"{names}: no op can be used; most of the time is of {most}"


# --- the points ---


def _calibration(files: Sequence[RecordedTimes], device: Device) -> Calibration:
    versions = {file.torch for file in files}
    cuda = {file.cuda for file in files if file.cuda}
    reported = {file.device for file in files if file.device and recognise_name(file.device) is not None}
    usual = device.recognised_as[0] if device.recognised_as else device.title.partition(",")[0]
    return Calibration(
        format_version=FORMAT_VERSION,
        rooflight=__version__,
        torch=versions.pop() if len(versions) == 1 else "",
        device=reported.pop() if len(reported) == 1 else usual,
        cuda=cuda.pop() if len(cuda) == 1 else "",
        made=date.today().isoformat(),
        points=tuple(group for file in files for group in _points(file)),
        notes=(FROM_FILES, *(doubt for file in files for doubt in file.doubts)),
        partial=True,
    )


def _points(file: RecordedTimes) -> list[TimedPoints]:
    """One row a work: the median of its times, warm and cold alike. Times of a table are taken to be those of a run,
    too: that is what people have."""
    works: dict[Task, list[TimedTask]] = {}
    for work in file.works:
        works.setdefault(work.task, []).append(work)
    groups: dict[tuple[str, str], list[list[int]]] = {}
    for task, timed in works.items():
        nanoseconds = max(1, round(1e9 * statistics.median(work.seconds for work in timed)))
        kernels = round(statistics.median(work.kernels for work in timed))
        row = [*task.numbers, nanoseconds, nanoseconds, kernels]
        groups.setdefault((task.family, task.precision), []).append(row)
    return [TimedPoints(*kind, rows, file.what, in_steps=True) for kind, rows in sorted(groups.items())]
