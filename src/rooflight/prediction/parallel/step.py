"""What goes in: the step of one GPU, op by op; and the two clocks that turn ops into a step.

The host launches ops one after another, the GPU runs them in that order: an op starts when it has been launched and the
one before it is done. Communication that the GPU has to wait for lies between two ops; communication on a stream of its
own only matters where something waits for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from rooflight.ledger import Ledger, Op, Phase
from rooflight.prediction.parallel.communication import NOTHING, Transfer


@dataclass(frozen=True)
class TimedStep:
    """A step and the seconds of its ops on the GPU and on the host, aligned with `ledger.ops`."""

    ledger: Ledger
    gpu_s: Sequence[float]
    host_s: Sequence[float]
    origin: str = ""
    """What the seconds come from: `spec`, `calibrated`, a measurement."""
    wait_s: Sequence[float] = ()
    """Communication that the GPU waits for right after each op; empty: none."""
    kernel_share: Sequence[float] = ()
    """The part of each op's GPU seconds in which kernels run, the rest being the gaps between them; empty: all."""
    floor_s: Sequence[float] = ()
    """What each op cannot be faster than; empty: not known."""

    def __post_init__(self) -> None:
        ops = len(self.ledger.ops)
        given = (self.wait_s, self.kernel_share, self.floor_s)
        if len(self.gpu_s) != ops or len(self.host_s) != ops or any(len(row) not in (0, ops) for row in given):
            raise ValueError(f"{ops} ops, {len(self.gpu_s)} GPU times, {len(self.host_s)} host times")

    @cached_property
    def phases(self) -> dict[Phase, tuple[int, ...]]:
        """Indices of the ops of each phase, in order."""
        found: dict[Phase, list[int]] = {"forward": [], "backward": [], "optimizer": []}
        for index, op in enumerate(self.ledger.ops):
            found[op.phase].append(index)
        return {phase: tuple(indices) for phase, indices in found.items()}

    def kernel_s(self, ops: Iterable[int]) -> float:
        """Seconds in which kernels of these ops run."""
        return sum(self.gpu_s[index] * (self.kernel_share[index] if self.kernel_share else 1.0) for index in ops)

    def scaled(self, share: float, phase: Phase) -> TimedStep:
        """The same step with the GPU seconds of one phase multiplied."""
        chosen = set(self.phases[phase])
        return replace(
            self, gpu_s=tuple(seconds * share if i in chosen else seconds for i, seconds in enumerate(self.gpu_s))
        )


StepAt = Callable[[int], TimedStep]
"""The step of one GPU at a batch size."""
Retime = Callable[[Op], float]
"""GPU seconds of an op with other shapes than the model's: a matmul that tensor parallelism has cut."""


@dataclass
class Clocks:
    """The host's clock and the GPU's, moved on op by op."""

    step: TimedStep
    host_s: float = 0.0
    gpu_s: float = 0.0
    ends: dict[int, float] = field(default_factory=dict)
    """When the GPU was done with each op that was run."""

    def run(self, ops: Iterable[int]) -> None:
        gpu_s, host_s, wait_s = self.step.gpu_s, self.step.host_s, self.step.wait_s
        for index in ops:
            self.host_s += host_s[index]
            if gpu_s[index] > 0:
                self.gpu_s = max(self.host_s, self.gpu_s) + gpu_s[index]
            if wait_s:
                self.gpu_s += wait_s[index]
            self.ends[index] = self.gpu_s

    def wait_for(self, moment_s: float) -> None:
        """The GPU does nothing before that moment; the host goes on launching."""
        self.gpu_s = max(self.gpu_s, moment_s)

    @property
    def now_s(self) -> float:
        return max(self.host_s, self.gpu_s)


_STEPS = 3


def steady_s(clocks: Clocks, one_step: Callable[[], None]) -> float:
    """What one more step adds when many follow one another: the host launches the next while the GPU still works on
    the last, as on one GPU."""
    ends = []
    for _ in range(_STEPS):
        one_step()
        ends.append(clocks.now_s)
    return ends[-1] - ends[-2]


@dataclass(frozen=True)
class Exchange:
    """One kind of communication in a step, of one GPU."""

    what: str
    """`gradients, all-reduce`."""
    calls: int
    nbytes: float
    """All messages together, as handed to the collective."""
    time_s: float
    """How long all of them take, hidden or not."""
    how: str
    """Algorithm and protocol of the largest."""


@dataclass(frozen=True)
class Outcome:
    """What one kind of parallelism makes of a step: its time and the communication in it."""

    time_s: float
    exchanges: tuple[Exchange, ...] = ()
    assumptions: tuple[str, ...] = ()


def exchange(what: str, sizes: Sequence[float], transfers: Sequence[Transfer]) -> tuple[Exchange, ...]:
    """One row for these messages; none where nothing is sent."""
    busy = [(nbytes, sent) for nbytes, sent in zip(sizes, transfers, strict=True) if sent is not NOTHING]
    if not busy:
        return ()
    _, largest = max(busy, key=lambda row: row[0])
    total_bytes, total_s = sum(nbytes for nbytes, _ in busy), sum(sent.time_s for _, sent in busy)
    return (Exchange(what, len(busy), total_bytes, total_s, largest.how),)
