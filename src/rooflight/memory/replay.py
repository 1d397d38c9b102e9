"""A run of a step through the model of torch's allocator: the model is built, then the first step, then the second.

What each holds at its highest is asked of the allocator, as `torch.cuda.max_memory_allocated` would be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.memory.allocator import Block, CachingAllocator
from rooflight.memory.lives import Lives
from rooflight.memory.moments import Moments


@dataclass(frozen=True)
class Peaks:
    """Of one step, in bytes."""

    before: int
    """Allocated when it began."""
    allocated: int
    reserved: int
    requested: int
    op: int
    """The op at which most was allocated."""


@dataclass(frozen=True)
class Script:
    """Everything that a run allocates, with sizes in bytes."""

    lives: Lives
    nbytes: Sequence[int]
    """Of every storage."""
    moments: Sequence[Moments]
    """Of every op."""
    kept: dict[int, tuple[int, ...]]
    """What libraries take at an op, the first time, and never give back."""
    cast_from: Sequence[int] | None = None
    """Bytes of parameters and buffers before the model was cast on the device; `None`: it is built as it is."""


class Run:
    """Plays a script step after step. `OutOfMemory` is the allocator's."""

    def __init__(self, script: Script, allocator: CachingAllocator) -> None:
        self._script = script
        self.allocator = allocator
        self._blocks: dict[int, Block | None] = {}
        self._steps = 0
        self.allocated_after: list[int] = []
        """Of every op of the last step that was played with `watched`."""

    def build(self) -> None:
        """Make the model and its inputs; what its making left in the cache is given back."""
        script, allocator = self._script, self.allocator
        lives = script.lives
        if script.cast_from is None:
            self._make(lives.model)
        else:
            whole = {
                number: allocator.allocate(size) for number, size in zip(lives.model, script.cast_from, strict=True)
            }
            for number in lives.model:
                self._make((number,))
                allocator.free(whole[number])
        self._make(lives.inputs)
        allocator.empty_cache()

    def update_first(self) -> None:
        """Let the optimizer make its state by an update before the first step, as `rooflight measure` does."""
        lives = self._script.lives
        start = lives.first_optimizer_op
        if start is None:
            return
        self._make(lives.gradients)
        self._make_state()
        for freed, results in zip(lives.freed[start:], lives.results[start:], strict=False):
            self._free(freed)
            self._make(results)
        self._free([number for results in lives.results[start:] for number in results])
        self._free(lives.gradients)

    def step(self, *, watched: bool = False) -> Peaks:
        """One step. The first makes the optimizer's state and what libraries keep."""
        script, allocator, blocks = self._script, self.allocator, self._blocks
        lives, nbytes = script.lives, script.nbytes
        first = self._steps == 0
        self._steps += 1
        after: list[int] = []
        # Inputs that a step uses up, as decoding does with its cache, are there again in the next.
        self._make([number for number in lives.inputs if number not in blocks])
        allocator.reset_peaks()
        before = allocator.allocated
        self._free(lives.gradients)
        where, highest = 0, allocator.peak_allocated
        for index, (freed, results, moments) in enumerate(
            zip(lives.freed, lives.results, script.moments, strict=False)
        ):
            for number in freed:
                allocator.free(blocks.pop(number, None))
            if first:
                if index == lives.first_optimizer_op:
                    self._make_state()
                for size in script.kept.get(index, ()):
                    allocator.allocate(size)
            if not moments:
                for number in results:
                    blocks[number] = allocator.allocate(nbytes[number])
            else:
                self._inside(results, moments)
            if allocator.peak_allocated > highest:
                highest, where = allocator.peak_allocated, index
            if watched:
                after.append(allocator.allocated)
        self._free(lives.freed[-1])
        peaks = Peaks(before, allocator.peak_allocated, allocator.peak_reserved, allocator.peak_requested, where)
        self._free(lives.left)
        self.allocated_after = after
        return peaks

    def _make_state(self) -> None:
        self._make([number for number in self._script.lives.optimizer_state if number not in self._blocks])

    def _inside(self, results: Sequence[int], moments: Moments) -> None:
        allocator, blocks, nbytes = self.allocator, self._blocks, self._script.nbytes
        made = 0
        for moment in moments:
            while made < min(moment.results, len(results)):
                blocks[results[made]] = allocator.allocate(nbytes[results[made]])
                made += 1
            held = [allocator.allocate(size) for size in moment.temporaries]
            for block in held:
                allocator.free(block)
        for number in results[made:]:
            blocks[number] = allocator.allocate(nbytes[number])

    def _make(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self._blocks[number] = self.allocator.allocate(self._script.nbytes[number])

    def _free(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            self.allocator.free(self._blocks.pop(number, None))
