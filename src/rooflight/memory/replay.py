"""A run of a step through the model of torch's allocator: the model is built, then the first step, then the second.

What each holds at its highest is asked of the allocator, as `torch.cuda.max_memory_allocated` would be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from rooflight.memory.allocation_script import AllocationScript, RunEvents, StepEvents, events_of
from rooflight.memory.allocator import CachingAllocator, Held


@dataclass(frozen=True)
class StepPeaks:
    """Of one step, in bytes."""

    before: int
    """Allocated when it began."""
    allocated: int
    reserved: int
    op: int
    """The op at which most was allocated."""


class AllocatorRun:
    """Plays a script step after step. `OutOfMemory` is the allocator's."""

    def __init__(self, script: AllocationScript, allocator: CachingAllocator) -> None:
        self._script = script
        self.allocator = allocator
        self._held: Held = {}
        self._steps = 0
        self._has_state = False
        self.allocated_after: list[int] = []
        """Of every op of the last step that was played with `watched`."""

    @cached_property
    def _tapes(self) -> RunEvents:
        return events_of(self._script, with_state=not self._has_state)

    def build(self, *, dropped: Sequence[int] = (), emptied: bool = True) -> None:
        """Make the model and its inputs; what its making left in the cache is given back, if it is `emptied`.
        `dropped`: bytes that the making throws away before the model is cast, as a head's own weight that is then tied.
        """
        script, allocator = self._script, self.allocator
        lives = script.lives
        if script.cast_from is None:
            self._make(lives.model)
        else:
            uncast: Held = {}
            sizes = dict(zip(lives.model, script.cast_from, strict=True))
            allocator.play(lives.model, sizes, uncast)
            for block in [allocator.allocate(size) for size in dropped]:
                allocator.free(block)
            for number in lives.model:
                self._make((number,))
                allocator.play((~number,), (), uncast)
        self._make(lives.inputs)
        if emptied:
            allocator.empty_cache()

    def update_first(self) -> None:
        """Let the optimizer make its state by an update before the first step, as `rooflight measure` does."""
        lives = self._script.lives
        start = lives.first_optimizer_op
        if start is None:
            return
        self._make(lives.gradients)
        self._make(lives.optimizer_state)
        self._has_state = True
        for freed, results in zip(lives.freed[start:], lives.results[start:], strict=False):
            self._free(freed)
            self._make(results)
        self._free(number for results in lives.results[start:] for number in results)
        self._free(lives.gradients)

    def renew_inputs(self) -> None:
        """Inputs that a step uses up, as decoding does with its cache, are there again in the next."""
        self._make(number for number in self._script.lives.inputs if number not in self._held)

    def step(self, *, watched: bool = False) -> StepPeaks:
        """One step. The first makes the optimizer's state and what libraries keep."""
        allocator, lives = self.allocator, self._script.lives
        tape = self._tapes.later if self._steps else self._tapes.first
        self._steps += 1
        self.renew_inputs()
        allocator.reset_peaks()
        before = allocator.allocated
        self._free(lives.gradients)
        self.allocated_after = []
        where = self._play_watched(tape) if watched else allocator.play(tape.events, self._tapes.sizes, self._held)
        self._free(lives.freed[-1])
        peaks = StepPeaks(before, allocator.peak_allocated, allocator.peak_reserved, tape.op_at(where))
        self._free(lives.left)
        return peaks

    def _play_watched(self, tape: StepEvents) -> int:
        """Op by op."""
        highest, start = -1, 0
        for end in tape.ends:
            place = self.allocator.play(tape.events[start:end], self._tapes.sizes, self._held)
            highest = start + place if place >= 0 else highest
            start = end
            self.allocated_after.append(self.allocator.allocated)
        return highest

    def _make(self, numbers: Iterable[int]) -> None:
        self.allocator.play(tuple(numbers), self._script.nbytes, self._held)

    def _free(self, numbers: Iterable[int]) -> None:
        self.allocator.play([~number for number in numbers], (), self._held)
