"""What would help, and by how much: one engine for predicted and for measured steps.

Each change is the same transformation of the step's one trace that `predict` makes when it is asked for by an option.
What it makes of the time is told by whoever knows the step's times: a prediction predicts it, a measurement is scaled
by the ratio of the predictions with and without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np

from rooflight import metrics
from rooflight.errors import RooflightError
from rooflight.prediction.deviations import NINETY, ratio_noise
from rooflight.prediction.device_run import DeviceRun, device_runs
from rooflight.prediction.result import Advice
from rooflight.step.changes import Change, changes_of
from rooflight.step.costed_step import Step

_LARGER = 4
"""How many times larger a batch is looked at."""


class Timing(Protocol):
    """A step whose times are known."""

    @property
    def wall_s(self) -> float | None: ...
    @property
    def kernel_s(self) -> float: ...
    @property
    def samples(self) -> int | None:
        """In a step."""
        ...

    def with_change(self, change: Change) -> tuple[float | None, float, str]:
        """Its wall and its kernels' time with a change, and how they were found."""
        ...

    def noise(self, change: Change) -> float:
        """By how much its gain may be off: the half of a 90% interval."""
        ...


class PredictedTiming:
    """Of a step that was predicted: what it takes with a change is predicted likewise."""

    def __init__(self, run: DeviceRun) -> None:
        self._run, self._predictor = run, run.predictor
        self._runs: dict[str, DeviceRun] = {}
        self.wall_s, self.kernel_s = run.wall_s, run.gpu_s
        header, batch = run.step.ledger.header, run.step.batch
        self.samples = None if batch is None else batch * header.accumulate
        self.origin = f"predicted, {run.predictor.tier} on {run.predictor.device.name}"

    def with_change(self, change: Change) -> tuple[float | None, float, str]:
        other = self._with(change)
        return other.wall_s, other.gpu_s, self.origin

    def noise(self, change: Change) -> float:
        """Kernels that the change leaves alone are as far off with it as without; and how far off the host is, a graph
        shows."""
        before, after = self._run.times.seconds, self._with(change).times.seconds
        same = before == after if len(before) == len(after) else np.zeros(len(after), dtype=bool)
        changed = float(after[~same].sum()) / float(after.sum() or 1.0)
        host = max(0.0, 1 - self.kernel_s / self.wall_s) if change.step.is_graph and self.wall_s else 0.0
        kernels = ratio_noise(looks_up=self._predictor.looks_up) * changed
        return math.hypot(kernels, NINETY * self._predictor.host_speed.deviation * host)

    def _with(self, change: Change) -> DeviceRun:
        if change.key not in self._runs:
            self._runs[change.key] = device_runs(change.step, [self._predictor])[0]
        return self._runs[change.key]


def advise(changes: Sequence[Change], timing: Timing) -> tuple[Advice, ...]:
    """The changes that are worth it, best first; a gain that may be none is not. Where one makes kernels faster and the
    host keeps them waiting, both together are looked at too, and told where that is better than either."""
    gains = [(change, advice_of(change, timing)) for change in changes]
    graph = next((advice for change, advice in gains if change.key == "graph"), None)
    kernels = [(change, advice) for change, advice in gains if change.key != "graph" and advice.gain_of_kernels > 0]
    if graph is not None and kernels:
        best, alone = max(kernels, key=lambda row: row[1].gain_of_kernels)
        both = best.and_graphs()
        together = advice_of(both, timing)
        if together.gain > max(graph.gain, alone.gain):
            gains.append((both, together))
    worth = [advice for change, advice in gains if advice.gain >= max(metrics.WORTH, timing.noise(change))]
    return tuple(sorted(worth, key=lambda advice: -advice.gain))


def advice_of(change: Change, timing: Timing) -> Advice:
    """What one change makes of the whole step, worth it or not."""
    wall_s, kernel_s, origin = timing.with_change(change)
    of_kernels = 1 - kernel_s / timing.kernel_s if timing.kernel_s else 0.0
    if wall_s is None or timing.wall_s is None:
        gain = metrics.gain(timing.kernel_s, kernel_s)
    else:
        gain = metrics.gain(timing.wall_s, wall_s)
    return Advice(
        change=change.words,
        key=change.key,
        options=change.options,
        how=change.how,
        origin=origin,
        time_s=wall_s,
        throughput=metrics.throughput(timing.samples, wall_s),
        gain=gain,
        wall_time_s=timing.wall_s,
        kernel_time_s=timing.kernel_s,
        changed_kernel_time_s=kernel_s,
        gain_of_kernels=of_kernels,
        assumption=change.assumption,
    )


def predicted_advice(run: DeviceRun, fits: Callable[[Step], bool] | None = None) -> tuple[Advice, ...]:
    """Of a predicted step: its changes, and after them four times its batch where that can be had and fits."""
    changes = tuple(changes_of(run.step, run.predictor.device, run.predictor.calibration))
    return (*advise(changes, PredictedTiming(run)), *(_larger_batch(run, fits) if fits is not None else ()))


def _larger_batch(run: DeviceRun, fits: Callable[[Step], bool]) -> Iterator[Advice]:
    """What a larger batch, predicted, makes of the throughput."""
    step, before = run.step, run.step.batch
    if step.at_batch is None or before is None:
        return
    batch = _LARGER * before
    try:
        larger_step = step.at_batch(batch)
    except RooflightError:  # advice never spoils what was asked
        return
    if not fits(larger_step):
        return
    larger = PredictedTiming(device_runs(larger_step, [run.predictor])[0])
    gain = metrics.gain(run.wall_s, larger.wall_s, samples=batch / before)
    if gain >= metrics.WORTH:
        yield Advice(
            change=f"batch {batch} instead of {before}",
            key="batch",
            options=f"--batch {batch}",
            how=f"with a batch of {batch:,} instead of {before:,}",
            origin=larger.origin,
            time_s=larger.wall_s,
            samples=batch / before,
            throughput=metrics.throughput(larger.samples, larger.wall_s),
            gain=gain,
            wall_time_s=run.wall_s,
            kernel_time_s=run.gpu_s,
            changed_kernel_time_s=larger.kernel_s,
        )
