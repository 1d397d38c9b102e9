"""What would help, and by how much: one engine for predicted and for measured steps.

Each change is the same transformation of the step's one trace that `predict` makes when it is asked for by an option.
What it makes of the time is told by whoever knows the step's times: a prediction predicts it, a measurement is scaled
by the ratio of the predictions with and without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

from rooflight import metrics
from rooflight.errors import RooflightError
from rooflight.prediction.cells import Cell, cells_of
from rooflight.prediction.changes import Change, changes_of
from rooflight.prediction.prepared import Step
from rooflight.prediction.result import Advice

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


class Predicted:
    """Of a step that was predicted: what it takes with a change is predicted likewise."""

    def __init__(self, cell: Cell) -> None:
        self._cell = cell
        self.wall_s, self.kernel_s = cell.wall_s, cell.gpu_s
        header, batch = cell.step.ledger.header, cell.step.batch
        self.samples = None if batch is None else batch * header.accumulate
        self._origin = f"predicted, {cell.predictor.tier} on {cell.predictor.device.name}"

    def with_change(self, change: Change) -> tuple[float | None, float, str]:
        other = cells_of(change.step, [self._cell.predictor])[0]
        return other.wall_s, other.gpu_s, self._origin


def advise(changes: Sequence[Change], timing: Timing) -> tuple[Advice, ...]:
    """The changes that are worth it, best first. Where one makes kernels faster and the host keeps them waiting, both
    together are looked at too."""
    found = [(change, advice_of(change, timing)) for change in changes]
    graph = next((advice for change, advice in found if change.key == "graph"), None)
    kernels = [(change, advice) for change, advice in found if change.key != "graph" and advice.gain_of_kernels > 0]
    if graph is not None and kernels:
        best, _ = max(kernels, key=lambda one: one[1].gain_of_kernels)
        both = best.and_graphs()
        found.append((both, advice_of(both, timing)))
    worth = [advice for _, advice in found if advice.gain >= metrics.WORTH]
    return tuple(sorted(worth, key=lambda one: -one.gain))


def advice_of(change: Change, timing: Timing) -> Advice:
    """What one change makes of the whole step, worth it or not."""
    wall_s, kernel_s, origin = timing.with_change(change)
    of_kernels = 1 - kernel_s / timing.kernel_s if timing.kernel_s else 0.0
    if wall_s is None or timing.wall_s is None:
        gain = metrics.gain(timing.kernel_s, kernel_s)
    else:
        gain = metrics.gain(timing.wall_s, wall_s)
    return Advice(
        change=change.words, key=change.key, options=change.options, how=change.how, origin=origin, time_s=wall_s,
        throughput=metrics.throughput(timing.samples, wall_s), gain=gain, wall_time_s=timing.wall_s,
        kernel_time_s=timing.kernel_s, changed_kernel_time_s=kernel_s, gain_of_kernels=of_kernels,
        assumption=change.assumption,
    )  # fmt: skip


def predicted_advice(cell: Cell, fits: Callable[[Step], bool] | None = None) -> tuple[Advice, ...]:
    """Of a predicted step: its changes, and after them four times its batch where that can be had and fits."""
    changes = changes_of(cell.step, cell.predictor)
    return (*advise_predicted(changes, cell), *(_larger_batch(cell, fits) if fits is not None else ()))


def advise_predicted(changes: Iterable[Change], cell: Cell) -> tuple[Advice, ...]:
    """Of a predicted step every figure is what asking for the change prints."""
    traced = (change.as_traced() for change in changes)
    return advise([change for change in traced if change is not None], Predicted(cell))


def _larger_batch(cell: Cell, fits: Callable[[Step], bool]) -> Iterator[Advice]:
    step = cell.step
    if step.larger is None or step.batch is None:
        return
    try:
        larger = step.larger(_LARGER * step.batch)
    except RooflightError:  # advice never spoils what was asked
        return
    if not fits(larger):
        return
    yield from batch_advice(cell, cells_of(larger, [cell.predictor])[0])


def batch_advice(cell: Cell, larger: Cell) -> Iterator[Advice]:
    """What a larger batch, predicted, makes of the throughput."""
    before, batch = cell.step.batch, larger.step.batch
    assert before is not None and batch is not None
    gain = metrics.gain(cell.wall_s, larger.wall_s, samples=batch / before)
    if gain >= metrics.WORTH:
        timing = Predicted(larger)
        yield Advice(
            change=f"batch {batch} instead of {before}", key="batch", options=f"--batch {batch}",
            how=f"with a batch of {batch:,} instead of {before:,}", origin=f"predicted, {cell.predictor.tier} on "
            f"{cell.predictor.device.name}", time_s=larger.wall_s, samples=batch / before,
            throughput=metrics.throughput(timing.samples, larger.wall_s), gain=gain, wall_time_s=cell.wall_s,
            kernel_time_s=cell.gpu_s, changed_kernel_time_s=larger.gpu_s,
        )  # fmt: skip
