"""Collectives in traces of several ranks: found, matched between ranks, and put on one clock.

On a GPU a collective is a kernel of NCCL (or RCCL), which starts when its own rank has come and ends when all have done
their part; on a CPU it is a range of gloo. Those of two ranks are the same one if their group numbers them so, else if
they are the same kind of the same size in the same group, in the same order within a step of the profiler.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter, itemgetter
from statistics import median
from typing import Any

import msgspec

from rooflight.files import UNDECODABLE
from rooflight.profiles.kineto import DeviceWork, HostRange, KinetoTrace

_KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_?(?P<kind>[A-Za-z]*)", re.IGNORECASE)
_RANGE = re.compile(r"(?:gloo|mpi|ucc):(?P<kind>\w+)")
_ALL_WAIT = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Every rank is done with one of these only after the last has come: they end together."""
_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "barrier", "reduce", "gather",
          "scatter")  # fmt: skip
_MOST = 2**62
"""No tensor has as many elements, and no group as many collectives."""
_SIZES_DIFFER = frozenset({"all_to_all", "gather", "scatter"})


@dataclass(frozen=True)
class CollectiveCall:
    """One rank's part of a collective, in nanoseconds of its own clock."""

    kind: str
    group: str
    elements: int | None
    element_type: str
    step: int | None
    """Of the profiler's, in which the host called it."""
    sequence: int | None
    start_ns: int
    end_ns: int

    @property
    def key(self) -> Hashable:
        if self.sequence is not None:
            return (self.group, self.sequence)
        return (self.step, self.kind, self.group, None if self.kind in _SIZES_DIFFER else self.elements)

    @property
    def name(self) -> str:
        """`all_reduce of 68,362 float`; elements of one rank."""
        if self.elements is None or self.kind in _SIZES_DIFFER:
            return self.kind
        return f"{self.kind} of {self.elements:,} {self.element_type.lower()}".rstrip()


@dataclass(frozen=True)
class Collective:
    """One collective: what each rank that is here did of it, on one clock."""

    name: str
    kind: str
    parts: Mapping[int, tuple[int, int]]
    """Start and end by rank."""

    @property
    def last_ns(self) -> int:
        return max(start for start, _ in self.parts.values())

    @property
    def last_rank(self) -> int:
        return max(self.parts, key=lambda rank: self.parts[rank][0])

    @property
    def skew_ns(self) -> int:
        return self.last_ns - min(start for start, _ in self.parts.values())

    @property
    def transfer_ns(self) -> int:
        return max(0, max(end for _, end in self.parts.values()) - self.last_ns)

    @property
    def can_be_one(self) -> bool:
        """Was no rank done before the last had come? Else its parts were of two: a trace lacks some."""
        return self.kind not in _ALL_WAIT or min(end for _, end in self.parts.values()) >= self.last_ns

    def waiting(self, rank: int) -> tuple[int, int]:
        """From when until when a rank waited for the last to come."""
        start, end = self.parts[rank]
        return start, max(start, min(end, self.last_ns))


def is_collective(work: DeviceWork) -> bool:
    """Does it move data between ranks?"""
    return work.kind == "kernel" and _KERNEL.match(work.name) is not None


def calls_of(trace: KinetoTrace) -> list[CollectiveCall]:
    """Return all that a rank took part in, in the order of time."""
    steps = sorted({(step.start_ns, step.number) for step in trace.steps})
    if trace.work:
        calls = _of_kernels(trace, steps)
    else:
        ranges = [(item, _RANGE.match(item.name)) for item in trace.ranges if item.dur >= 0]
        calls = [_of_range(trace, item, match["kind"], steps) for item, match in ranges if match is not None]
    return sorted(calls, key=attrgetter("start_ns"))


def _of_range(trace: KinetoTrace, item: HostRange, kind: str, steps: Sequence[tuple[int, int]]) -> CollectiveCall:
    start, (elements, element_type) = trace.base_ns + item.start_ns, _tensor(item)
    step = _step(item.start_ns, steps)
    return CollectiveCall(_kind(kind), "", elements, element_type, step, None, start, start + item.time_ns)


def _of_kernels(trace: KinetoTrace, steps: Sequence[tuple[int, int]]) -> list[CollectiveCall]:
    """What kernels note of themselves."""
    launched = {call.args.correlation: call.start_ns for call in trace.calls}
    calls = []
    for work in filter(is_collective, trace.work):
        args, start = work.args, trace.base_ns + work.start_ns
        kind = args.collective if isinstance(args.collective, str) else _KERNEL.findall(work.name)[0]
        group = next((value for value in (args.group_ranks, args.group) if isinstance(value, str) and value), "")
        element_type = args.element_type if isinstance(args.element_type, str) else ""
        step = _step(launched.get(args.correlation, work.start_ns), steps)
        own = (_kind(kind), group, _whole(args.elements), element_type, step, _whole(args.sequence))
        calls.append(CollectiveCall(*own, start, start + work.time_ns))
    return calls


def _tensor(item: HostRange) -> tuple[int | None, str]:
    """How many elements the first tensor of a call has, and of which type, where shapes were recorded."""
    try:
        dims = msgspec.json.decode(item.args.dims, type=list[Any])
        types = msgspec.json.decode(item.args.types, type=list[Any])
        first = msgspec.convert(dims[0], type=list[int])
    except (*UNDECODABLE, IndexError):
        return None, ""
    count = 1
    for size in first:
        count *= size
        if not 0 <= count < _MOST:  # at once: the product of a thousand sizes of a damaged file takes long
            return None, ""
    return count, str(types[0]) if types else ""


def _kind(name: str) -> str:
    plain = re.sub(r"[^a-z]", "", name.lower())
    return next((kind for kind in _KINDS if kind.replace("_", "") in plain), plain or "collective")


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < _MOST else None


def _step(moment_ns: int, steps: Sequence[tuple[int, int]]) -> int | None:
    """The number of the step that had begun last."""
    place = bisect_right(steps, moment_ns, key=itemgetter(0))
    return steps[place - 1][1] if place else None


def matched(calls: Mapping[int, Sequence[CollectiveCall]]) -> tuple[list[Collective], int]:
    """Return the collectives of more than one rank, on the clocks of their ranks, and the number of other calls."""
    buckets: dict[Hashable, dict[int, list[CollectiveCall]]] = defaultdict(lambda: defaultdict(list))
    for rank, own in calls.items():
        for call in own:
            buckets[call.key][rank].append(call)
    pairs, alone = [], 0
    for ranks in buckets.values():
        kind = next(iter(ranks.values()))[0].kind
        if len(ranks) < 2 or len({len(own) for own in ranks.values()}) > 1 or kind not in _KINDS:
            alone += sum(map(len, ranks.values()))
            continue
        for each in zip(*ranks.values(), strict=True):
            parts = {rank: (call.start_ns, call.end_ns) for rank, call in zip(ranks, each, strict=True)}
            pairs.append(Collective(each[0].name, kind, parts))
    return sorted(pairs, key=lambda item: item.last_ns - item.skew_ns), alone


@dataclass(frozen=True)
class ClockAlignment:
    """What to take off each rank's clock, and by how much the ends of collectives still differ in the median."""

    offsets_ns: Mapping[int, int]
    groups: Sequence[frozenset[int]]
    """Of ranks whose clocks are aligned with each other, the one with the lowest rank first."""
    used: int
    spread_ns: float

    def applied(self, item: Collective) -> Collective:
        moved = {rank: (s - self.offsets_ns[rank], e - self.offsets_ns[rank]) for rank, (s, e) in item.parts.items()}
        return replace(item, parts=moved)

    def holds(self, item: Collective) -> bool:
        """Are all its ranks on one clock? Else its skew is that of clocks."""
        return any(item.parts.keys() <= group for group in self.groups)


def aligned(ranks: Sequence[int], collectives: Sequence[Collective], *, one_clock: bool) -> ClockAlignment:
    """Align clocks by the ends of collectives that no rank leaves early, against the lowest rank of all that such
    collectives join; leave them as they are if all have one clock."""
    ends = [{rank: end for rank, (_, end) in item.parts.items()} for item in collectives if item.kind in _ALL_WAIT]
    offsets = dict.fromkeys(ranks, 0) if one_clock else {}
    groups = [frozenset(ranks)] if one_clock else []
    while apart_ranks := set(ranks) - offsets.keys():
        joined = {min(apart_ranks): 0}
        while apart := _apart(joined, apart_ranks - joined.keys(), ends):
            joined |= apart
        offsets |= joined
        groups.append(frozenset(joined))
    placed = [[end - offsets[rank] for rank, end in own.items()] for own in ends]
    return ClockAlignment(offsets, groups, len(ends), median([max(own) - min(own) for own in placed] or [0.0]))


def _apart(joined: Mapping[int, int], others: set[int], ends: Sequence[Mapping[int, int]]) -> dict[int, int]:
    """The offset of the lowest other rank that has collectives with those that are joined."""
    for rank in sorted(others):
        apart = [
            own[rank] - median(own[other] - joined[other] for other in own if other in joined)
            for own in ends
            if rank in own and joined.keys() & own.keys()
        ]
        if apart:
            return {rank: round(median(apart))}
    return {}
