"""What would make a step shorter, layer by layer and as a whole, and by how much: computed, never recited.

A layer's gain is time of its kernels. What that makes of the step is played through on two clocks, the host's and the
GPU's: where the GPU waits for the host, faster kernels end no step earlier.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from rooflight.errors import RooflightError
from rooflight.explanation.changes import Change, Ops, changes_of
from rooflight.measured import Group, Measured
from rooflight.measured.step import busy_s, is_host_bound, wall_s
from rooflight.prediction.cache import Array
from rooflight.prediction.cells import gap_of
from rooflight.prediction.clocks import simulate
from rooflight.prediction.host import host_seconds
from rooflight.prediction.prepared import PreparedTrace, Step
from rooflight.prediction.tiers import Predictor

WORTH = 0.01
"""Part of the time below which a gain is not worth a sentence."""
_FIT = 40
"""Halvings until the host's time is found."""
_MOST_HOST = 16.0
"""How much slower than the calibrated one a host may be."""
_LARGEST = 64
"""How many times larger a batch is advised at most."""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """A change, and what it makes of a layer's kernels and of the step. Seconds of kernels and of the wall are never
    put in one ratio."""

    change: str
    how: str
    origin: str
    """How its effect was found."""
    before_s: float
    """Time of the row's kernels, measured ..."""
    after_s: float
    """... and with the change."""
    gain_of_kernels: float
    """What is gained, as part of the time of all kernels of the step."""
    wall_s: float | None = None
    """Of the whole step with this row changed; `None`: the wall was not measured."""
    wall_gain_s: float | None = None
    gain_of_step: float | None = None
    """The same as part of the wall; with more samples in a step, of the time of each."""
    samples: int = 1
    """So many times the samples are in the step then."""

    @property
    def gain_s(self) -> float:
        return self.before_s - self.after_s


@dataclass(frozen=True)
class _Timed:
    """What ran for a set of ops."""

    ops: Ops
    time_s: float
    kernels: float


class Outlook:
    """A measured step and the changes that apply to it."""

    def __init__(self, measured: Measured, predictor: Predictor | None) -> None:
        self._measured, self._predictor = measured, predictor
        self.reason = ""
        """Why no change is known, where that is so for want of something."""
        self._step = self._prepared() if predictor is not None and measured.ledger.ops else None
        self.changes: tuple[Change, ...] = ()
        if predictor is not None and self._step is not None:
            self.changes = changes_of(measured, predictor, self._step)
        self.wall_s = wall_s(measured)
        self._all = _timed(measured.whole)
        self._kernels_s = sum(one.time_s for one in self._all)

    def _prepared(self) -> Step | None:
        """Ops as prediction takes them; a ledger from elsewhere may not say enough of its ops."""
        try:
            return PreparedTrace(self._measured.ledger, None).at(None)
        except RooflightError as error:
            self.reason = str(error)
            return None

    def rows(self, groups: Sequence[Group]) -> list[Advice | None]:
        """For each group of ops, the change that gains most; `None` where none is worth it."""
        found = [self._best(_timed(group)) for group in groups]
        chosen = [one for one in found if one is not None]
        walls = iter(self._walls([(rows, change) for rows, change, _ in chosen]))
        return [None if one is None else self._advice(*one, next(walls)) for one in found]

    def of_change(self, key: str, group: Group | None = None) -> Advice | None:
        """What one change makes of some ops, or of the whole step, worth it or not; `None` where it does not apply."""
        rows = self._all if group is None else _timed(group)
        return next((self._changed(rows, change) for change in self.changes if change.key == key), None)

    def _changed(self, rows: Sequence[_Timed], change: Change) -> Advice:
        return self._advice(rows, change, self._after(rows, change), self._walls([(rows, change)])[0])

    def step(self) -> tuple[Advice, ...]:
        """Every change of the whole step that is worth it, best first."""
        advised = [self._changed(self._all, change) for change in self.changes]
        advised += [one for one in (*self._graphs(), self._batch()) if one is not None]
        worth = [one for one in advised if _gain(one) >= WORTH]
        return tuple(sorted(worth, key=_gain, reverse=True))

    def _best(self, rows: Sequence[_Timed]) -> tuple[Sequence[_Timed], Change, float] | None:
        options = [(rows, change, self._after(rows, change)) for change in self.changes]
        best = min(options, key=lambda one: one[2], default=None)
        before = sum(one.time_s for one in rows)
        return best if best is not None and before - best[2] >= WORTH * self._kernels_s else None

    def _after(self, rows: Sequence[_Timed], change: Change) -> float:
        return sum(change.after_s(one.ops, one.time_s) for one in rows)

    def _advice(self, rows: Sequence[_Timed], change: Change, after_s: float, wall: float | None) -> Advice:
        before_s = sum(one.time_s for one in rows)
        gain_s = None if wall is None or self.wall_s is None else self.wall_s - wall
        return Advice(
            change=change.key, how=change.how, origin=change.origin, before_s=before_s, after_s=after_s,
            gain_of_kernels=(before_s - after_s) / self._kernels_s, wall_s=wall, wall_gain_s=gain_s,
            gain_of_step=None if gain_s is None or not self.wall_s else gain_s / self.wall_s,
        )  # fmt: skip

    def _graphs(self) -> list[Advice]:
        """The host launches once: what is left is the GPU's work and the gaps between kernels in a graph. Only then do
        faster kernels count in full."""
        header = self._measured.ledger.header
        busy = busy_s(self._measured)
        if self._predictor is None or header.is_graph or busy is None or self.wall_s is None:
            return []
        waits = [] if self._step is None else self._step.waits.tolist()
        gaps = sum(one.kernels for one in self._all) * gap_of(self._predictor, graphs=True)
        # What asks the GPU for a value cannot be captured.
        asks = sorted({op.name for op, waits in zip(self._measured.ledger.ops, waits, strict=False) if waits})
        how = f"as one CUDA graph{f' (without {asks[0]}, which no graph can hold)' if asks else ''}"
        alone = self._of_step("graph", how, "GPU-busy as measured, with a graph's gaps", busy + gaps)
        best = self._best(self._all)
        if best is None:
            return [alone]
        _, change, after = best
        wall = busy * after / self._kernels_s + gaps
        origin = f"{alone.origin}; kernels: {change.origin}"
        both = self._of_step(f"graph + {change.key}", f"{how} and {change.how}", origin, wall)
        return [alone, replace(both, after_s=after, gain_of_kernels=1 - after / self._kernels_s)]

    def _batch(self) -> Advice | None:
        """While the host works on a step, the GPU could do so many times the work. It fits where so many times the
        memory of today does: parameters do not even grow."""
        header, busy = self._measured.ledger.header, busy_s(self._measured)
        if not is_host_bound(self._measured) or header.batch is None or not busy or self.wall_s is None:
            return None
        times = min(int(self.wall_s / busy), _LARGEST, self._fits())
        if times < 2:
            return None
        how = f"with a batch of {times * header.batch:,} instead of {header.batch:,}"
        return self._of_step("batch", how, "the GPU is idle for so long, measured", self.wall_s, samples=times)

    def _fits(self) -> int:
        peak = self._measured.step.get("peak_reserved_bytes") or self._measured.step.get("peak_allocated_bytes")
        if peak is None or self._predictor is None or not peak.value:
            return 1
        device = self._predictor.device
        return int((device.usable_memory_bytes or device.memory_bytes).value / peak.value)

    def _of_step(self, key: str, how: str, origin: str, wall: float, samples: int = 1) -> Advice:
        assert self.wall_s is not None
        gain = self.wall_s - wall / samples
        return Advice(change=key, how=how, origin=origin, before_s=self._kernels_s, after_s=samples * self._kernels_s,
                      gain_of_kernels=0.0, wall_s=wall, wall_gain_s=gain, gain_of_step=gain / self.wall_s,
                      samples=samples)  # fmt: skip

    def _walls(self, cases: Sequence[tuple[Sequence[_Timed], Change]]) -> list[float | None]:
        """The wall of the step in each case; all of them are played at once."""
        if self.wall_s is None or self._clocks is None or not cases:
            return [None] * len(cases)
        device = np.repeat(self._clocks.device_s[None, :], len(cases), axis=0)
        for number, (rows, change) in enumerate(cases):
            for one in rows:
                device[number, self._place(one.ops)] -= one.time_s - change.after_s(one.ops, one.time_s)
        found = self._clocks.walls(np.maximum(device, 0.0))
        return [float(wall) for wall in found]

    def _place(self, ops: Ops) -> int:
        """What belongs to no op runs at the end."""
        return ops[0] if ops else len(self._measured.ledger.ops) - 1

    @cached_property
    def _clocks(self) -> _Clocks | None:
        ledger = self._measured.ledger
        if self._predictor is None or self._step is None or self.wall_s is None:
            return None
        graph = ledger.header.is_graph
        device, kernels = np.zeros(len(ledger.ops)), np.zeros(len(ledger.ops))
        for one in self._all:
            device[self._place(one.ops)] += one.time_s
            kernels[self._place(one.ops)] += one.kernels
        host = np.zeros(len(ledger.ops)) if graph else host_seconds(ledger, self._predictor.host)
        waits = np.zeros(len(ledger.ops), dtype=bool) if graph else self._step.waits
        made = _Clocks(host, device, kernels * gap_of(self._predictor, graphs=graph), waits)
        return made.fitted(float(self.wall_s), host_bound=bool(is_host_bound(self._measured)))


@dataclass(frozen=True)
class _Clocks:
    """The host's time of every op, calibrated and then fitted to the wall that was measured; the GPU's, measured."""

    host_s: Array
    device_s: Array
    gaps_s: Array
    waits: npt.NDArray[np.bool_]
    more_s: float = 0.0
    """What the wall has beyond the two clocks."""

    def walls(self, device_s: Array) -> Array:
        return simulate(self.host_s, device_s, gap_s=self.gaps_s[None, :], waits=self.waits).wall_s + self.more_s

    def fitted(self, wall: float, *, host_bound: bool) -> _Clocks:
        """Where the host is what takes the time, the wall tells how fast it is. Elsewhere it can only be said that it
        is not slower than the wall."""
        now = self._wall()
        if (now > wall or host_bound) and self.host_s.any():
            low, high = 0.0, _MOST_HOST
            for _ in range(_FIT):
                middle = (low + high) / 2
                low, high = (middle, high) if self._scaled(middle)._wall() < wall else (low, middle)
            scaled = self._scaled(low)
            return _Clocks(scaled.host_s, self.device_s, self.gaps_s, self.waits, wall - scaled._wall())
        return _Clocks(self.host_s, self.device_s, self.gaps_s, self.waits, wall - now)

    def _scaled(self, factor: float) -> _Clocks:
        return _Clocks(factor * self.host_s, self.device_s, self.gaps_s, self.waits)

    def _wall(self) -> float:
        return float(self.walls(self.device_s[None, :])[0])


def _timed(group: Group) -> list[_Timed]:
    times: dict[Ops, float] = defaultdict(float)
    kernels: dict[Ops, float] = defaultdict(float)
    for fact in group.facts:
        times[fact.ops] += fact.values.get("kernel_time_s", 0.0)
        kernels[fact.ops] += fact.values.get("kernels", 0)
    return [_Timed(ops, time, kernels[ops]) for ops, time in times.items() if time]


def _gain(advice: Advice) -> float:
    return advice.gain_of_kernels if advice.gain_of_step is None else advice.gain_of_step
