"""What would make a step shorter, layer by layer and as a whole: the one advice engine, asked of a step with its times.

A layer's gain is time of its kernels. What that makes of the step is played through on two clocks, the host's and the
GPU's: where the GPU waits for the host, faster kernels end no step earlier. What a change makes of an op is predicted
with and without it, and a measured time is scaled by the ratio of the two: an error of the prediction that both share
falls out, and what a change does not touch gains nothing. Kernels that would fall away were measured, and so were the
bytes per second at which a chain of ops runs.
"""

from __future__ import annotations

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from rooflight import metrics, summary
from rooflight.errors import RooflightError
from rooflight.ledger import Ledger
from rooflight.prediction.advice import PredictedTiming, Timing, advice_of, advise, predicted_advice
from rooflight.prediction.clocks import step_seconds
from rooflight.prediction.deviations import ratio_noise
from rooflight.prediction.device_run import DeviceRun, gap_of
from rooflight.prediction.result import Advice
from rooflight.prediction.tiers import Predictor
from rooflight.step.cache_reuse import Array
from rooflight.step.changes import Change, changes_of
from rooflight.step.costed_step import Step, own_step
from rooflight.step.host_calls import host_seconds
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s, is_host_bound, wall_s
from rooflight.summary.sums import OpGroup

Ops = tuple[int, ...]
Ratio = Callable[[Ops], float]

_FIT = 40
"""Halvings until the host's time is found."""
_MOST_HOST = 16.0
"""How much slower than the calibrated one a host may be."""
_LARGEST = 64
"""How many times larger a batch is advised at most."""
_LAYOUT = re.compile(r"nchwToNhwc|nhwcToNchw")
"""cuDNN's kernels that channels_last makes needless: they bring tensors from one order of their axes into the other."""


@dataclass(frozen=True)
class _Timed:
    """What ran for a set of ops."""

    ops: Ops
    time_s: float
    kernels: float


class Advisor:
    """A step with its times, and the changes that apply to it. `cell`: the prediction that its times are of."""

    def __init__(self, measured: Measured, predictor: Predictor | None, cell: DeviceRun | None = None) -> None:
        self._measured, self._predictor, self._cell = measured, predictor, cell
        self.reason = ""
        """Why no change is known, where that is so for want of something."""
        self._timed = _timed(measured)
        self._all = list(self._timed.values())
        self.kernel_s = sum(one.time_s for one in self._all)
        self.wall_s = wall_s(measured)
        self._step = cell.step if cell is not None else self._prepared()
        self._ratios: dict[str, Ratio] = {}
        self.changes: tuple[Change, ...] = ()
        if predictor is not None and self._step is not None and any(one.ops for one in self._all):
            possible = changes_of(self._step, predictor.device, predictor.calibration, op_by_op=True)
            # What would make no kernel faster is no change of the kernels; a graph changes the host.
            self.changes = tuple(one for one in possible if one.key == "graph" or self._touches(one))

    def _prepared(self) -> Step | None:
        """Ops as prediction takes them; a ledger from elsewhere may not say enough of its ops."""
        if self._predictor is None or not self._measured.ledger.ops:
            return None
        try:
            return self._measured.once(own_step)
        except RooflightError as error:
            self.reason = str(error)
            return None

    def rows(self, groups: Sequence[OpGroup]) -> list[Advice | None]:
        """For each group of ops, the change that gains most; `None` where none is worth it."""
        best = [self._best(self._of(group)) for group in groups]
        chosen = [choice for choice in best if choice is not None]
        walls = iter(self._walls([(rows, change) for rows, change, _ in chosen]))
        return [None if choice is None else self._advice(*choice, next(walls)) for choice in best]

    def of_change(self, key: str, group: OpGroup | None = None) -> Advice | None:
        """What one change makes of some ops, or of the whole step, worth it or not; `None` where it does not apply."""
        change = next((candidate for candidate in self.changes if candidate.key == key), None)
        if change is None:
            return None
        if group is None:
            return advice_of(change, self._timing)
        rows = self._of(group)
        return self._advice(rows, change, self._after(rows, change), self._walls([(rows, change)])[0])

    def _of(self, group: OpGroup) -> list[_Timed]:
        """A group has all facts of a set of ops or none."""
        sets = dict.fromkeys(fact.ops for fact in group.facts)
        return [self._timed[ops] for ops in sets if ops in self._timed]

    def step(self) -> tuple[Advice, ...]:
        """Every change of the whole step that is worth it, best first; then a larger batch."""
        if self._cell is not None:
            return predicted_advice(self._cell)
        others = (None if self.changes else self._graph_alone(), self._larger_batch())
        return (*advise(self.changes, self), *(advice for advice in others if advice is not None))

    def _graph_alone(self) -> Advice | None:
        """Of a measured step whose ops prediction knows nothing of: the host launches once."""
        busy = busy_s(self._measured)
        if self._predictor is None or self._measured.ledger.header.is_graph or busy is None or self.wall_s is None:
            return None
        wall, gain = self._in_graph(busy), metrics.gain(self.wall_s, self._in_graph(busy))
        if gain < metrics.WORTH:
            return None
        return Advice(
            change="one CUDA graph for the step",
            key="graph",
            options="--graphs",
            how="as one CUDA graph",
            origin=f"GPU-busy as {self._measured.origin}, with a graph's gaps",
            time_s=wall,
            gain=gain,
            throughput=metrics.throughput(self.samples, wall),
            wall_time_s=self.wall_s,
            kernel_time_s=self.kernel_s,
            changed_kernel_time_s=self.kernel_s,
        )

    def _in_graph(self, busy: float) -> float:
        """What is left of the wall in a graph: the GPU's work and the gaps between its kernels."""
        return busy + sum(row.kernels for row in self._all) * gap_of(self._known_predictor, graphs=True)

    @cached_property
    def _timing(self) -> Timing:
        return self if self._cell is None else PredictedTiming(self._cell)

    def _best(self, rows: Sequence[_Timed]) -> tuple[Sequence[_Timed], Change, float] | None:
        options = [(rows, change, self._after(rows, change)) for change in self.changes if change.key != "graph"]
        best = min(options, key=lambda one: one[2], default=None)
        before = sum(one.time_s for one in rows)
        return best if best is not None and before - best[2] >= metrics.WORTH * self.kernel_s else None

    def _after(self, rows: Sequence[_Timed], change: Change) -> float:
        ratio = self._ratio(change)
        return sum(row.time_s * ratio(row.ops) for row in rows)

    def _advice(self, rows: Sequence[_Timed], change: Change, after_s: float, wall: float | None) -> Advice:
        """Of some rows alone."""
        before_s = sum(one.time_s for one in rows)
        advice = advice_of(
            change,
            _Given(
                self.wall_s, self.kernel_s, self.samples, wall, self.kernel_s - before_s + after_s, self._origin(change)
            ),
        )
        return replace(advice, kernel_time_s=before_s, changed_kernel_time_s=after_s)

    @property
    def samples(self) -> int | None:
        return summary.samples(self._measured.ledger)

    def _larger_batch(self) -> Advice | None:
        """While the host works on a measured step, the GPU could do so many times the work. It fits where so many times
        the memory of today does: parameters do not even grow."""
        header, busy = self._measured.ledger.header, busy_s(self._measured)
        if header.batch is None or not busy or self.wall_s is None:
            return None
        times = min(int(self.wall_s / busy), _LARGEST, self._fits())
        if not is_host_bound(self._measured) or times < 2:
            return None
        batch, samples = times * header.batch, self.samples
        return Advice(
            change=f"batch {batch} instead of {header.batch}",
            key="batch",
            options=f"--batch {batch}",
            how=f"with a batch of {batch:,} instead of {header.batch:,}",
            time_s=self.wall_s,
            origin=f"GPU idle time, {self._measured.origin}",
            wall_time_s=self.wall_s,
            samples=times,
            throughput=metrics.throughput(None if samples is None else times * samples, self.wall_s),
            gain=metrics.gain(self.wall_s, self.wall_s, samples=times),
            kernel_time_s=self.kernel_s,
            changed_kernel_time_s=times * self.kernel_s,
        )

    def _fits(self) -> int:
        peak = self._measured.step.get("peak_reserved_bytes") or self._measured.step.get("peak_allocated_bytes")
        if peak is None or self._predictor is None or not peak.value:
            return 1
        device = self._predictor.device
        return int((device.usable_memory_bytes or device.memory_bytes).value / peak.value)

    def with_change(self, change: Change) -> tuple[float | None, float, str]:
        """Wall and kernels of the whole measured step with a change."""
        after, busy = self._after(self._all, change), busy_s(self._measured)
        if not change.step.is_graph or self._step is None or self._step.is_graph:
            return self._walls([(self._all, change)])[0], after, self._origin(change)
        wall = None if busy is None or self.wall_s is None else self._in_graph(busy * after / self.kernel_s)
        origin = f"GPU-busy as {self._measured.origin}, with a graph's gaps"
        return wall, after, origin if change.key == "graph" else f"{origin}; kernels: {self._origin(change)}"

    def noise(self, change: Change) -> float:
        """The step's own times were measured; those of what the change does to kernels were predicted. What a graph
        saves of the host was measured too."""
        ratio = self._ratio(change)
        after = [(row.time_s * ratio(row.ops), ratio(row.ops) != 1.0) for row in self._all]
        changed = sum(taken for taken, differs in after if differs) / (sum(taken for taken, _ in after) or 1.0)
        known = change.step.is_compiled or (self._layout_ratios and change.key.endswith("channels_last"))
        return 0.0 if known else ratio_noise(looks_up=self._known_predictor.looks_up) * changed

    def _origin(self, change: Change) -> str:
        if self._cell is None and self._layout_ratios and change.key.endswith("channels_last"):
            return f"{self._measured.origin}: the kernels that change the layout"
        if self._cell is None and change.step.is_compiled:
            return f"bytes that fused ops need not move, at the {self._measured.origin} rate"
        predictor = self._known_predictor
        return f"predicted with and without it, {predictor.tier} on {predictor.device.name}"

    def _touches(self, change: Change) -> bool:
        ratio = self._ratio(change)
        return any(ratio(row.ops) < 1 for row in self._all)

    def _ratio(self, change: Change) -> Ratio:
        """Time with a change by time without, for the sets of ops that kernels belong to. A graph changes none."""
        key = change.key.removeprefix("graph + ")
        if key not in self._ratios:
            layout = self._layout_ratios
            if self._cell is None and change.step.is_compiled and self._step is not None and not self._step.is_compiled:
                self._ratios[key] = self._compiled_ratio(self._step)
            elif self._cell is None and layout and change.key.endswith("channels_last"):
                self._ratios[key] = lambda ops: layout.get(ops, 1.0)
            else:
                self._ratios[key] = self._predicted_ratio(change.step)
        return self._ratios[key]

    def _predicted_ratio(self, step: Step) -> Ratio:
        before, after = self._seconds_before, self._known_predictor.op_times(step).seconds
        # One kernel may do the work of all of an optimizer's ops: they are compared together.
        assert self._step is not None
        optimizer = [place for place, op in enumerate(self._step.ledger.ops) if op.phase == "optimizer"]
        of_optimizer, of_update = _quotient(after, before, optimizer), frozenset(optimizer)
        each = np.divide(after, before, out=np.ones(len(before)), where=before != 0)
        each[optimizer] = of_optimizer
        alone: list[float] = each.tolist()

        def ratio(ops: Ops) -> float:
            if len(ops) == 1:
                return alone[ops[0]]
            return of_optimizer if ops and of_update.issuperset(ops) else _quotient(after, before, ops)

        return ratio

    def _compiled_ratio(self, step: Step) -> Ratio:
        """Chains of ops in one kernel, at the bytes per second they have now, with what else the compiler does."""
        moves, layout = step.moves, self._layout_ratios
        predictor = self._known_predictor
        possible = changes_of(step, predictor.device, predictor.calibration, op_by_op=True)
        others = [
            self._predicted_ratio(change.step)
            for change in possible
            if change.key == "pad" or (change.key == "channels_last" and not layout)
        ]

        def ratio(ops: Ops) -> float:
            left = float(moves[ops[0]]) if len(ops) == 1 else 1.0
            for other in others:
                left *= min(1.0, other(ops))
            return left * min(1.0, layout.get(ops, 1.0))

        return ratio

    @property
    def _known_predictor(self) -> Predictor:
        assert self._predictor is not None
        return self._predictor

    @cached_property
    def _seconds_before(self) -> Array:
        assert self._step is not None
        return self._known_predictor.op_times(self._step).seconds

    @cached_property
    def _layout_ratios(self) -> Mapping[Ops, float]:
        """What is left without the kernels that only reorder what convolutions read and write, as measured."""
        return layout_ratios(self._measured.ledger) if self._cell is None else {}

    def _walls(self, cases: Sequence[tuple[Sequence[_Timed], Change]]) -> list[float | None]:
        """The wall of the step in each case; all of them are played at once."""
        if self.wall_s is None or self._clocks is None or not cases:
            return [None] * len(cases)
        device = np.repeat(self._clocks.device_s[None, :], len(cases), axis=0)
        for number, (rows, change) in enumerate(cases):
            ratio = self._ratio(change)
            less = [row.time_s * (1 - ratio(row.ops)) for row in rows]
            np.subtract.at(device[number], [self._place(row.ops) for row in rows], less)
        return [float(wall) for wall in self._clocks.walls(np.maximum(device, 0.0))]

    def _place(self, ops: Ops) -> int:
        """What belongs to no op runs at the end."""
        return ops[0] if ops else len(self._measured.ledger.ops) - 1

    @cached_property
    def _clocks(self) -> _FittedClocks | None:
        ledger, step = self._measured.ledger, self._step
        if self._predictor is None or step is None or self.wall_s is None:
            return None
        device, kernels = np.zeros(len(ledger.ops)), np.zeros(len(ledger.ops))
        for row in self._all:
            device[self._place(row.ops)] += row.time_s
            kernels[self._place(row.ops)] += row.kernels
        graph = step.is_graph
        host = np.zeros(len(ledger.ops)) if graph else host_seconds(ledger, self._predictor.host, kernels=kernels)
        waits = np.zeros(len(ledger.ops), dtype=bool) if graph else step.waits
        clocks = _FittedClocks(host, device, kernels * gap_of(self._predictor, graphs=graph), waits)
        if self._cell is not None:
            return clocks
        return clocks.fitted(float(self.wall_s), host_bound=bool(is_host_bound(self._measured)))


@dataclass(frozen=True)
class _Given:
    """Times of a step with a change that are known already."""

    wall_s: float | None
    kernel_s: float
    samples: int | None
    changed_wall_s: float | None
    changed_kernel_s: float
    origin: str

    def with_change(self, change: Change) -> tuple[float | None, float, str]:
        return self.changed_wall_s, self.changed_kernel_s, self.origin

    def noise(self, change: Change) -> float:
        return 0.0  # whoever knew the times has weighed them


def layout_ratios(ledger: Ledger) -> dict[Ops, float]:
    """By set of ops: the part of their kernels' time that is not spent on bringing tensors into another layout."""
    whole: dict[Ops, float] = defaultdict(float)
    layout: dict[Ops, float] = defaultdict(float)
    for kernel in ledger.kernels:
        if kernel.ops and kernel.time_s is not None:
            whole[kernel.ops] += kernel.time_s
            layout[kernel.ops] += kernel.time_s if _LAYOUT.search(kernel.name) else 0.0
    return {ops: 1 - layout[ops] / time for ops, time in whole.items() if layout[ops]}


def _quotient(after: Array, before: Array, ops: Sequence[int]) -> float:
    whole = float(before[list(ops)].sum()) if ops else 0.0
    return float(after[list(ops)].sum()) / whole if whole else 1.0


@dataclass(frozen=True)
class _FittedClocks:
    """The host's time of every op, calibrated and then fitted to the wall that was measured; the GPU's, measured."""

    host_s: Array
    device_s: Array
    gaps_s: Array
    waits: npt.NDArray[np.bool_]
    more_s: float = 0.0
    """What the wall has beyond the two clocks."""

    def walls(self, device_s: Array) -> Array:
        return step_seconds(self.host_s, device_s, gap_s=self.gaps_s[None, :], meets=self.waits) + self.more_s

    def fitted(self, wall: float, *, host_bound: bool) -> _FittedClocks:
        """Where the host is what takes the time, the wall tells how fast it is. Elsewhere it can only be said that it
        is not slower than the wall."""
        now = self._wall()
        if (now > wall or host_bound) and self.host_s.any():
            low, high = 0.0, _MOST_HOST
            for _ in range(_FIT):
                middle = (low + high) / 2
                low, high = (middle, high) if self._scaled(middle)._wall() < wall else (low, middle)
            scaled = self._scaled(low)
            return dataclasses.replace(scaled, more_s=wall - scaled._wall())
        return dataclasses.replace(self, more_s=wall - now)

    def _scaled(self, factor: float) -> _FittedClocks:
        return dataclasses.replace(self, host_s=factor * self.host_s)

    def _wall(self) -> float:
        return float(self.walls(self.device_s[None, :])[0])


def _timed(measured: Measured) -> dict[Ops, _Timed]:
    """What took time, by the set of ops that it belongs to."""
    return {
        ops: _Timed(ops, float(time), float(values.get("kernels", 0)))
        for ops, values in measured.by_ops.items()
        if (time := values.get("kernel_time_s"))
    }
