"""What goes in and what comes out: the step of one GPU, op by op; the communication that a kind of parallelism adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rooflight.ledger import Ledger, Op, Phase
from rooflight.prediction.clocks import Clocks
from rooflight.prediction.cluster.communication import NOTHING, Transfer


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

    def clocks(self) -> Clocks:
        """Of host and GPU, at the beginning of a run."""
        return Clocks(self.host_s, self.gpu_s, self.wait_s)

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
class ParallelOutcome:
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
