"""How far predicted values may be off together: can a comparison of them come out otherwise inside their 90% intervals?

A predicted step ends with the later of two clocks, its GPU's and its host's. What makes a clock's time wrong is partly
the same for every step on the device, partly for one model at all its batches, partly for this step alone; each of
these sources is turned to either end by itself. The whole way to an interval's end is divided so that

- of two devices the intervals as they stand must not overlap,
- of two models on one GPU a ratio may be off by as much as one of them: steps that were timed say no less,
- of one model at two batches, or on one GPU and on several, it may be off by `ratio_noise`, as advice has it,
- of two steps on one host it may be off by what a host is off by that was timed itself.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rooflight.metrics import is_host_bound
from rooflight.prediction.deviations import NINETY, ratio_noise
from rooflight.prediction.host_speed import CALIBRATED_HOST
from rooflight.study.cell import StudyCell, StudyRow

ErrorSource = tuple[str, ...]
Turned = Mapping[ErrorSource, int]
"""Sources that are not as predicted: -1 makes times shorter, 1 longer."""
_PASSES = 3
"""The later of two clocks hides the other: only once it is turned can the other be seen to matter."""
_FEW_CLOCKS = 4
"""Two steps on two devices have so many."""
_LEAST = 1e-3
"""Of a value: an interval that begins at nothing has no logarithm."""

_WALL, _GPU, _HOST = "wall", "GPU", "host"
_TIMES: Mapping[str, tuple[str, int]] = {
    "time": (_WALL, 1),
    "throughput": (_WALL, -1),
    "tokens": (_WALL, -1),
    "mfu": (_WALL, -1),
    "flops_per_s": (_WALL, -1),
    "bytes_per_s": (_WALL, -1),
    "gpu_busy": (_GPU, 1),
    "host_time": (_HOST, 1),
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
        # What GPUs tell each other is part of the step, and predicted apart from what each of them does.
        among = str(step.id if cell.gpus * cell.nodes == 1 else replace(cell, on=None, total_batch=None).id)
        sources = (of_device, (*of_device, "model", replace(step, batch=1).id), (*of_device, "step", among))
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

    def words(self, row: StudyRow, word: str) -> frozenset[str]:
        """What a predicted step may be bound by: the host or not, as far as both clocks leave it open; between compute
        and memory nothing is, unless it was predicted to wait for the host."""
        gpu, host = (self._of(name, row) for name in ("gpu_busy", "host_time"))
        if not gpu or not host:
            return frozenset({word})
        ends = [(busy, max(busy, other)) for busy in _ends(gpu[0]) for other in _ends(host[0])]
        waits = {is_host_bound(busy, wall) for busy, wall in ends}
        apart = {"compute", "memory"} if word == _HOST else {word}
        return frozenset({word} | ({_HOST} if True in waits else set()) | (apart if False in waits else set()))

    def _of(self, name: str, row: StudyRow) -> tuple[_Clock, ...]:
        if (name, id(row)) not in self._clocks:
            self._clocks[name, id(row)] = _clocks(name, row)
            self._rows.append(row)
        return self._clocks[name, id(row)]


def farthest(value: Callable[[Turned], float], among: Iterable[ErrorSource], sign: int) -> float:
    """The highest (`sign` 1) or lowest (-1) that a value comes to with sources turned, each to the end that takes it
    farther: from nothing turned, and from whole clocks at either end."""
    among = list(among)
    moves = _moves(among)
    return max((_climbed(value, start, moves, sign) for start in _starts(among)), key=lambda end: sign * end)


def _starts(among: Sequence[ErrorSource]) -> list[Turned]:
    """Of more than a few clocks not every one apart: as many ways as there are would be too many."""
    clocks = list(dict.fromkeys(source[:2] for source in among))
    apart = len(clocks) <= _FEW_CLOCKS
    ways = itertools.product((-1, 1), repeat=len(clocks)) if apart else ((end,) * len(clocks) for end in (-1, 1))
    ends = [dict(zip(clocks, way, strict=True)) for way in ways]
    return [{}, *({source: end[source[:2]] for source in among} for end in ends if end)]


def _climbed(
    value: Callable[[Turned], float], turned: Turned, moves: Iterable[Sequence[ErrorSource]], sign: int
) -> float:
    best = value(turned)
    for _ in range(_PASSES):
        before = best
        for move in moves:
            for end in (-1, 1):
                moved = {**turned, **dict.fromkeys(move, end)}
                tried = value(moved)
                if sign * tried > sign * best:
                    best, turned = tried, moved
        if best == before:
            break
    return best


def _moves(among: Sequence[ErrorSource]) -> list[tuple[ErrorSource, ...]]:
    """Sources that are turned at once: each alone; of two clocks those alike, or the later one stays where it is; all
    of one clock, or the one that is hidden is never seen."""
    together: dict[tuple[str, ErrorSource], list[ErrorSource]] = {}
    for source in among:
        together.setdefault(("alike", source[1:]), []).append(source)
        together.setdefault(("clock", source[:2]), []).append(source)
    groups = [tuple(group) for group in together.values() if len(group) > 1]
    return list(dict.fromkeys([*((source,) for source in among), *groups]))


def _ends(clock: _Clock) -> tuple[float, float]:
    return clock.low, clock.high


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
    host = _clock(_HOST, row, ("host_time", "host_low", "host_high"), of_host)
    if of == _HOST:
        return () if host is None else (host,)
    if gpu is not None and host is not None:
        # A clock that is never the later one decides nothing.
        return tuple(clock for clock, other in ((gpu, host), (host, gpu)) if clock.high > other.low)
    # A step on several GPUs keeps no interval of its host, and no word for what bounds it: its two times tell.
    busy, wall = (row.values.get(f"{time}.predicted") for time in ("gpu_busy", "time"))
    waits = row.facts.get("bound.predicted", _HOST if is_host_bound(busy, wall) else "") == _HOST
    alone = _clock(_HOST if waits else _GPU, row, ("time", "time_low", "time_high"), of_host if waits else noise)
    return () if alone is None else (alone,)


def _clock(name: str, row: StudyRow, names: tuple[str, str, str], noise: float) -> _Clock | None:
    value, low, high = (row.values.get(f"{one}.predicted") for one in names)
    if value is None or low is None or high is None or not 0 <= low <= value <= high or not 0 < value < math.inf:
        return None
    return _Clock.of(name, row.cell, (value, low, high), noise)
