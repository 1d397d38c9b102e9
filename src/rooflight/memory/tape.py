"""Everything that a run allocates, as a script by op and as a tape: events for the allocator, one after the other."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.memory.lives import Lives
from rooflight.memory.moments import Moments


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


@dataclass(frozen=True)
class Tape:
    """The events of a step, as `CachingAllocator.play` takes them."""

    events: list[int]
    ends: list[int]
    """Of every op: the place behind its last event."""

    def op_at(self, place: int) -> int:
        """The op that an event belongs to; the first for -1, which is none."""
        return bisect_right(self.ends, place) if place >= 0 else 0


@dataclass(frozen=True)
class Tapes:
    """Numbers are those of storages; behind them come what ops borrow and what libraries keep."""

    sizes: list[int]
    first: Tape
    """With what libraries take at their first use, and the optimizer's state where it is not there before."""
    later: Tape


def tapes_of(script: Script, *, with_state: bool) -> Tapes:
    """Of a first step and of every other. `with_state`: the first makes the optimizer's state."""
    lives, sizes = script.lives, list(script.nbytes)
    events: list[int] = []
    ends: list[int] = []
    only_first: list[_Insertion] = []
    start = lives.first_optimizer_op if with_state else None
    for op, (freed, results, moments) in enumerate(zip(lives.freed, lives.results, script.moments, strict=False)):
        if freed:
            events += [~number for number in freed]
        if op == start or op in script.kept:
            state = lives.optimizer_state if op == start else ()
            only_first.append((op, len(events), [*state, *_numbered(script.kept.get(op, ()), sizes)]))
        if moments:
            events += _inside(results, moments, sizes)
        elif results:
            events += results
        ends.append(len(events))
    later = Tape(events, ends)
    return Tapes(sizes, _with(later, only_first), later)


_Insertion = tuple[int, int, list[int]]
"""The op, the place before which they come, and the events."""


def _with(tape: Tape, insertions: Sequence[_Insertion]) -> Tape:
    events: list[int] = []
    ends, begun = list(tape.ends), 0
    for op, place, added in insertions:
        events += tape.events[begun:place]
        events += added
        ends[op:] = [end + len(added) for end in ends[op:]]
        begun = place
    events += tape.events[begun:]
    return Tape(events, ends)


def _inside(results: Sequence[int], moments: Moments, sizes: list[int]) -> list[int]:
    """Results are made one after the other, and between them things are borrowed and given back."""
    found: list[int] = []
    made = 0
    for moment in moments:
        count = min(moment.results, len(results))
        found += results[made:count]
        made = max(made, count)
        borrowed = _numbered(moment.temporaries, sizes)
        found += borrowed
        found += [~number for number in borrowed]
    found += results[made:]
    return found


def _numbered(nbytes: Sequence[int], sizes: list[int]) -> list[int]:
    """New numbers for things of these sizes."""
    start = len(sizes)
    sizes += nbytes
    return list(range(start, len(sizes)))
