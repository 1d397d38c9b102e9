"""How far predicted values may be off together: can a comparison of them come out otherwise inside their 90% intervals?

A predicted step ends with the later of two clocks, its GPU's and its host's. What makes a clock's time wrong is partly
the same for every step on the device, partly for one model at all its batches, partly for this step alone; each of
these sources is turned to either end by itself. The whole way to an interval's end is divided so that

- of two devices the intervals as they stand must not overlap,
- of two models on one GPU a ratio may be off by as much as one of them: steps that were timed say no less,
- of one model at two batches on one GPU it may be off by `ratio_noise`, as advice has it,
- of two steps on one host it may be off by what a host is off by that was timed itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from rooflight.prediction.deviations import NINETY, ratio_noise
from rooflight.prediction.host_speed import CALIBRATED_HOST
from rooflight.study.cell import StudyCell, StudyRow

ErrorSource = tuple[str, ...]
Turned = Mapping[ErrorSource, int]
"""Sources that are not as predicted: -1 makes times shorter, 1 longer."""
_PASSES = 2
"""The later of two clocks hides the other: only once it is turned can the other be seen to matter."""
_LEAST = 1e-3
"""Of a value: an interval that begins at nothing has no logarithm."""

_WALL, _GPU = "wall", "GPU"
_TIMES: Mapping[str, tuple[str, int]] = {
    "time": (_WALL, 1),
    "throughput": (_WALL, -1),
    "tokens": (_WALL, -1),
    "mfu": (_WALL, -1),
    "flops_per_s": (_WALL, -1),
    "bytes_per_s": (_WALL, -1),
    "gpu_busy": (_GPU, 1),
    "kernel_time": (_GPU, 1),
    "percent_of_roof": (_GPU, -1),
}
"""Quantities that go with a time, or against it. Predicted memory has no interval."""


@dataclass(frozen=True)
class _Clock:
    """A time that may be off, and the sources of its error: by how much each makes it shorter or longer."""

    value: float
    low: float
    high: float
    parts: tuple[tuple[ErrorSource, float, float], ...]
    """Logarithms, down and up: all together lead to the ends."""

    @classmethod
    def of(cls, name: str, cell: StudyCell, ends: tuple[float, float, float], noise: float) -> _Clock:
        """`noise`: by how much the ratio of two such times may be off that share all they can."""
        value, low, high = ends
        of_device, step = (name, cell.on or ""), cell.alone
        sources = (of_device, (*of_device, "model", replace(step, batch=1).id), (*of_device, "step", step.id))
        ways = []
        for end in (max(low, _LEAST * value), high):
            way = math.log(end / value)
            own = math.copysign(min(noise, abs(way)) / 2, way)
            shared = way / 2 if name == _GPU else way - own
            ways.append((shared, way - shared - own, own))
        return cls(value, low, high, tuple(zip(sources, *ways, strict=True)))

    def factor(self, turned: Turned) -> float:
        """What its time is multiplied by."""
        return math.exp(sum((0.0, up, down)[turned.get(source, 0)] for source, down, up in self.parts))


class RowErrors:
    """By how much predicted values of rows may be off. What a row says of that is looked up once."""

    def __init__(self) -> None:
        self._clocks: dict[tuple[str, int], tuple[_Clock, ...]] = {}
        self._rows: list[StudyRow] = []
        """So that no two of them ever have one `id`."""

    def sources(self, name: str, row: StudyRow) -> Iterable[ErrorSource]:
        """What may make a predicted value wrong."""
        for clock in self._of(name, row):
            for source, _, _ in clock.parts:
                yield source

    def shifted(self, name: str, value: int | float, row: StudyRow, turned: Turned) -> int | float:
        """A predicted value with some sources of its error turned."""
        clocks = self._of(name, row) if turned else ()
        if not clocks:
            return value
        now = max(clock.value for clock in clocks)
        then = max(clock.value * clock.factor(turned) for clock in clocks)
        return value * (then / now) ** _TIMES[name][1]

    def _of(self, name: str, row: StudyRow) -> tuple[_Clock, ...]:
        if (name, id(row)) not in self._clocks:
            self._clocks[name, id(row)] = _clocks(name, row)
            self._rows.append(row)
        return self._clocks[name, id(row)]


def farthest(value: Callable[[Turned], float], among: Iterable[ErrorSource], sign: int) -> float:
    """The highest (`sign` 1) or lowest (-1) that a value comes to with sources turned: one after the other, each to the
    end that takes it farther."""
    turned: dict[ErrorSource, int] = {}
    best = value(turned)
    among = list(among)
    for _ in range(_PASSES):
        for source in among:
            for end in (-1, 1):
                tried = value({**turned, source: end})
                if sign * tried > sign * best:
                    best, turned = tried, {**turned, source: end}
    return best


def _clocks(name: str, row: StudyRow) -> tuple[_Clock, ...]:
    """Those that a value is told by. None: its row keeps no interval, as those of earlier versions."""
    of, _ = _TIMES.get(name, (None, 0))
    if of is None:
        return ()
    noise = ratio_noise(looks_up=row.facts.get("tier") == "calibrated")
    gpu = _clock(_GPU, row, ("gpu_busy", "gpu_busy_low", "gpu_busy_high"), noise)
    if of == _GPU:
        return () if gpu is None else (gpu,)
    of_host = NINETY * CALIBRATED_HOST.deviation
    host = _clock("host", row, ("host_time", "host_low", "host_high"), of_host)
    if gpu is not None and host is not None:
        # A clock that is never the later one decides nothing.
        return tuple(clock for clock, other in ((gpu, host), (host, gpu)) if clock.high > other.low)
    waits = row.facts.get("bound.predicted") == "host"
    alone = _clock("host" if waits else _GPU, row, ("time", "time_low", "time_high"), of_host if waits else noise)
    return () if alone is None else (alone,)


def _clock(name: str, row: StudyRow, names: tuple[str, str, str], noise: float) -> _Clock | None:
    value, low, high = (row.values.get(f"{one}.predicted") for one in names)
    if value is None or low is None or high is None or not 0 <= low <= value <= high or not 0 < value < math.inf:
        return None
    return _Clock.of(name, row.cell, (value, low, high), noise)
