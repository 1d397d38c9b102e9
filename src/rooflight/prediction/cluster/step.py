"""What goes in and what comes out: the step of one GPU, op by op; the communication that a kind of parallelism adds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from rooflight.ledger import PASSES, PHASES, Ledger, Op, Phase
from rooflight.prediction.clocks import Clocks
from rooflight.prediction.cluster.communication import NOTHING, Transfer
from rooflight.prediction.result import Traffic


@dataclass(frozen=True)
class TimedStep:
    """A step and the seconds of its ops on the GPU and on the host, aligned with `ledger.ops`."""

    ledger: Ledger
    gpu_s: Sequence[float]
    host_s: Sequence[float]
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
        places: dict[Phase, list[int]] = {phase: [] for phase in PHASES}
        for index, op in enumerate(self.ledger.ops):
            places[op.phase].append(index)
        return {phase: tuple(indices) for phase, indices in places.items()}

    def kernel_s(self, ops: Iterable[int]) -> float:
        """Seconds in which kernels of these ops run."""
        return sum(self.gpu_s[index] * (self.kernel_share[index] if self.kernel_share else 1.0) for index in ops)

    def clocks(self) -> Clocks:
        """Of host and GPU, at the beginning of a run."""
        return Clocks(self.host_s, self.gpu_s, self.wait_s)

    @cached_property
    def update(self) -> tuple[int, ...]:
        """Ops that are done once a step, on weights and gradients for the most part: the optimizer's, and what else
        is beside the passes, as clipping and averages."""
        return tuple(index for index, op in enumerate(self.ledger.ops) if op.phase not in PASSES)

    def scaled(self, share: float, *phases: Phase) -> TimedStep:
        """The same step with the GPU seconds of these phases multiplied."""
        chosen = {index for phase in phases for index in self.phases[phase]}
        return replace(
            self, gpu_s=tuple(seconds * share if i in chosen else seconds for i, seconds in enumerate(self.gpu_s))
        )


StepAt = Callable[[int], TimedStep]
"""The step of one GPU at a batch size."""
Retime = Callable[[Op], float]
"""GPU seconds of an op with other shapes than the model's: a matmul that tensor parallelism has cut."""


@dataclass(frozen=True)
class ParallelOutcome:
    """What one kind of parallelism makes of a step: its time and the communication in it."""

    time_s: float
    exchanges: tuple[Traffic, ...] = ()
    assumptions: tuple[str, ...] = ()
    bubble_s: float = 0.0
    stage_share: float = 1.0
    """The largest part of the weights that a pipeline stage has."""


Message = tuple[float, Transfer]
"""Its bytes, as handed to the collective, and how it is sent."""


def exchange(what: str, messages: Iterable[Message]) -> tuple[Traffic, ...]:
    """One row for these messages, with the way of the largest; none where nothing is sent."""
    sent = [message for message in messages if message[1] is not NOTHING]
    if not sent:
        return ()
    _, largest = max(sent, key=lambda message: message[0])
    nbytes, time_s = sum(size for size, _ in sent), sum(transfer.time_s for _, transfer in sent)
    return (Traffic(what=what, calls=len(sent), bytes=nbytes, time_s=time_s, how=largest.how),)
