"""`rooflight calibrate`: all micro-benchmarks of a device, in a given time, written down as they are done."""

from __future__ import annotations

import gc
import json
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import torch

from rooflight import __version__
from rooflight.calibration.ceilings import all_reduce_bandwidths, ceilings
from rooflight.calibration.clock import BenchmarkClock, CpuClock, GpuClock
from rooflight.calibration.host import gap_seconds, host_costs
from rooflight.calibration.plan import Chapter, cpu_plan, gpu_plan
from rooflight.calibration.workspaces import record
from rooflight.errors import BadFile
from rooflight.hardware.calibration import FORMAT_VERSION, Calibration, TimedPoints
from rooflight.hardware.workspaces import WorkspacePoints, by_precision
from rooflight.ledger import Value
from rooflight.machine.conditions import Conditions
from rooflight.machine.installed_gpus import cuda_version, device_name, driver_version

Progress = Callable[[str, float], None]
"""What is being measured, and which part of the time has gone."""

_SIDE = {"cuda": 8192, "cpu": 1536}
_MEGABYTES = {"cuda": 1000, "cpu": 256}
_CEILING_S = {"cuda": 0.8, "cpu": 1.5}
_HOST_S = 8.0
_WORKSPACES = "workspaces"
_WORKSPACES_SHARE = {"cuda": 0.12, "cpu": 0.0}
"""Of the seconds, for the memory that cuDNN's convolutions borrow; a CPU has no cuDNN."""


@dataclass(frozen=True)
class Bench:
    """A device to be calibrated, and what must be known of it beforehand."""

    device: torch.device
    peaks: dict[str, float]
    """FLOP/s of matrix work by precision: the largest cases are chosen by them."""
    cache_bytes: int
    seconds: float


class CalibrationJournal:
    """What is done so far, kept in a file, so that an interrupted calibration can be resumed."""

    def __init__(self, path: Path | None, identity: dict[str, Any]) -> None:
        self._path = path
        self.done: dict[str, Any] = {}
        if path is None:
            return
        with suppress(OSError, ValueError, KeyError, TypeError):
            lines = path.read_text().splitlines()
            if lines and json.loads(lines[0]) == identity:
                for line in lines[1:]:
                    entry = json.loads(line)
                    self.done[entry["section"]] = {**entry["found"]}
        # Written anew: what follows a line that was cut off in the middle must not become a part of it.
        lines = [json.dumps(identity), *(_line(section, content) for section, content in self.done.items())]
        with _explained(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary = path.with_name(path.name + ".new")
            temporary.write_text("\n".join(lines) + "\n")
            temporary.replace(path)

    def keep(self, section: str, content: Any) -> None:
        self.done[section] = content
        if self._path is not None:
            with _explained(self._path), self._path.open("a") as file:
                file.write(_line(section, content) + "\n")

    def close(self) -> None:
        """The calibration is complete: the file has done its service."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _line(section: str, content: Any) -> str:
    return json.dumps({"section": section, "found": content})


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadFile(
            "write-failed", f"cannot write {path}: {error.strerror or error}; choose another place with -o"
        ) from None


def calibrate(bench: Bench, progress: Progress, journal_path: Path | None = None) -> Calibration:
    kind = bench.device.type
    begun = time.monotonic()
    name = device_name(kind) or kind
    journal = CalibrationJournal(
        journal_path,
        {
            "rooflight": __version__,
            "torch": str(torch.__version__),
            "device": name,
            "driver": driver_version() if kind == "cuda" else None,
            "seconds": bench.seconds,
        },
    )
    conditions = Conditions(kind)
    conditions.before()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch warns of every thread that begins with a matrix product
        values = _values(bench, journal, progress)
        _chapters(bench, journal, progress)
        conditions.sample()
        _workspaces(bench, journal, progress)
    progress("done", 1.0)
    calibration = Calibration(
        format_version=FORMAT_VERSION,
        rooflight=__version__,
        torch=str(torch.__version__),
        device=name,
        cuda=cuda_version(),
        cudnn=_cudnn() if kind == "cuda" else None,
        driver=driver_version() if kind == "cuda" else None,
        made=date.today().isoformat(),
        seconds=round(time.monotonic() - begun, 1),
        conditions=conditions.after(),
        ceilings=values["ceilings"],
        host=values["host"],
        points=_points(journal),
        workspaces=tuple(WorkspacePoints(*some) for some in sorted(journal.done.get(_WORKSPACES, {}).items())),
    )
    journal.close()
    return calibration


def _cudnn() -> str | None:
    version = torch.backends.cudnn.version()
    return None if version is None else str(version)


def _values(bench: Bench, journal: CalibrationJournal, progress: Progress) -> dict[str, dict[str, Value]]:
    """The host first: a profiler that ran before slows every launch for as long as the process lives."""
    kind = bench.device.type
    sections: dict[str, Callable[[], dict[str, Value]]] = {
        "host": lambda: _host(bench),
        "ceilings": lambda: ceilings(
            bench.device,
            [p for p in bench.peaks if kind == "cuda" or p == "fp32"],
            side=_SIDE[kind],
            megabytes=_MEGABYTES[kind],
            cache_bytes=bench.cache_bytes,
            seconds=_CEILING_S[kind],
        ),
    }
    values = {}
    for section, make in sections.items():
        if section not in journal.done:
            progress(section, 0.0)
            journal.keep(section, msgspec.to_builtins(make()))
        values[section] = msgspec.convert(journal.done[section], dict[str, Value])
        gc.collect()
        if kind == "cuda":
            torch.cuda.empty_cache()
    return values


def _host(bench: Bench) -> dict[str, Value]:
    costs = host_costs(bench.device, min(_HOST_S, bench.seconds / 10))
    if bench.device.type == "cuda":
        costs |= gap_seconds(bench.device)
        costs |= all_reduce_bandwidths()
    return costs


def _chapters(bench: Bench, journal: CalibrationJournal, progress: Progress) -> None:
    plan = plan_for(bench)
    left = [chapter for chapter in plan if chapter.name not in journal.done]
    total = sum(chapter.share for chapter in plan)
    gone = total - sum(chapter.share for chapter in left)
    part = 1 - _WORKSPACES_SHARE[bench.device.type]
    if left:
        with closing(clock_for(bench)) as clock:
            for chapter in left:
                progress(chapter.name, part * gone / total)
                until = time.monotonic() + part * bench.seconds * chapter.share / total
                journal.keep(chapter.name, timed_rows(clock, chapter, until))
                gone += chapter.share


def _workspaces(bench: Bench, journal: CalibrationJournal, progress: Progress) -> None:
    """Last: the clock's memory is free again, and nothing is timed any more that other layers in cuDNN's caches could
    disturb."""
    share = _WORKSPACES_SHARE[bench.device.type]
    if not share or _WORKSPACES in journal.done:
        return
    gc.collect()
    torch.cuda.empty_cache()
    seconds, begun = share * bench.seconds, time.monotonic()

    def report(doing: str) -> None:
        progress(doing, 1 - share * max(0.0, 1 - (time.monotonic() - begun) / seconds))

    journal.keep(_WORKSPACES, by_precision(record(bench.device, seconds, report).points))


def timed_rows(clock: BenchmarkClock, chapter: Chapter, until: float) -> dict[str, list[list[int]]]:
    """By family and precision: a task's numbers, nanoseconds warm and cold, kernels."""
    rows: dict[str, list[list[int]]] = {}
    with chapter.setting():
        for timed in clock.timed(chapter.cases, until, many=chapter.chosen):
            row = [*timed.task.numbers, round(1e9 * timed.warm_s), round(1e9 * timed.cold_s), timed.kernels]
            rows.setdefault(f"{timed.task.family} {timed.task.precision}", []).append(row)
    return rows


def plan_for(bench: Bench) -> list[Chapter]:
    if bench.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        largest = int(min(2e8, free / 40))
        return gpu_plan(bench.peaks, largest=largest, longest_s=3e-3)
    return cpu_plan(bench.peaks, largest=4_000_000, longest_s=20e-3)


def clock_for(bench: Bench) -> BenchmarkClock:
    if bench.device.type == "cuda":
        free, _ = torch.cuda.mem_get_info()
        clock: GpuClock | CpuClock = GpuClock(bench.device, bench.cache_bytes, int(min(6 << 30, free / 8)))
        dtypes = [torch.float32, torch.bfloat16, torch.float16]
    else:
        clock, dtypes = CpuClock(bench.cache_bytes, 256 << 20), [torch.float32, torch.bfloat16]
    for dtype in dtypes:
        clock.pool.take(1, dtype=dtype)  # making the numbers takes longer than some chapters have
    return clock


def _points(journal: CalibrationJournal) -> tuple[TimedPoints, ...]:
    rows: dict[str, list[list[int]]] = {}
    for section, content in journal.done.items():
        if section not in ("host", "ceilings", _WORKSPACES):
            for key, points in content.items():
                rows.setdefault(key, []).extend(points)
    names = {key: key.split(" ", 1) for key in sorted(rows)}
    return tuple(TimedPoints(family, precision, rows[key]) for key, (family, precision) in names.items())
