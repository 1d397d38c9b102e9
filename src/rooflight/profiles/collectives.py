"""Collectives in traces of several ranks: found, matched, put on one clock, and what each rank waited for.

On a GPU a collective is a kernel of NCCL (or RCCL), which starts when its own rank has come and ends when all have done
their part; on a CPU it is a range of gloo. Those of two ranks are the same one if their group numbers them so, else if
they are the same kind of the same size in the same group, in the same order within a step of the profiler.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any

import msgspec

from rooflight.files import UNDECODABLE
from rooflight.profiles.kineto import DeviceWork, HostRange, KinetoTrace, RuntimeCall, open_ranges

_KERNEL = re.compile(r"(?:nccl|rccl)(?:Dev)?Kernel_?(?P<kind>[A-Za-z]*)", re.IGNORECASE)
_ASKED = "nccl:"
_RANGE = re.compile(r"(?:gloo|mpi|ucc):(?P<kind>\w+)")
_KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "broadcast",
    "barrier",
    "reduce",
    "gather",
    "scatter",
)
_ALL_WAIT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Nobody is done with one of these before the last has come: they end together."""
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
        size = "" if self.elements is None or self.kind in _SIZES_DIFFER else f" of {self.elements:,}"
        return f"{self.kind}{size} {self.element_type.lower()}".rstrip() if size else self.kind


@dataclass(frozen=True)
class Collective:
    """One collective: what each rank that is here did of it, on one clock."""

    name: str
    kind: str
    parts: Mapping[int, tuple[int, int]]
    """Start and end by rank."""

    @property
    def first_ns(self) -> int:
        return min(start for start, _ in self.parts.values())

    @property
    def last_ns(self) -> int:
        return max(start for start, _ in self.parts.values())

    @property
    def last_rank(self) -> int:
        return max(self.parts, key=lambda rank: self.parts[rank][0])

    @property
    def skew_ns(self) -> int:
        return self.last_ns - self.first_ns

    @property
    def transfer_ns(self) -> int:
        return max(0, max(end for _, end in self.parts.values()) - self.last_ns)

    @property
    def can_be_one(self) -> bool:
        """Was nobody done before the last had come? Else its parts were of two: a trace lacks some."""
        return self.kind not in _ALL_WAIT or min(end for _, end in self.parts.values()) >= self.last_ns

    def waiting(self, rank: int) -> tuple[int, int]:
        """From when until when it waited for the last to come."""
        start, end = self.parts[rank]
        return start, max(start, min(end, self.last_ns))

    def waiting_ns(self, rank: int) -> int:
        start, end = self.waiting(rank)
        return end - start


def is_collective(work: DeviceWork) -> bool:
    """Does it move data between ranks?"""
    return work.kind == "kernel" and _KERNEL.match(work.name) is not None


def calls_of(trace: KinetoTrace) -> list[CollectiveCall]:
    """All that a rank took part in, in the order of time."""
    steps = sorted({(round(step.ts * 1000), step.number) for step in trace.steps})
    if not trace.work:
        found = [call for item in trace.ranges if (call := _of_range(item, trace, steps)) is not None]
    else:
        kernels = [work for work in trace.work if is_collective(work)]
        wanted = {work.args.correlation for work in kernels}
        launched = {call.args.correlation: call for call in trace.calls if call.args.correlation in wanted}
        asked = [item for item in trace.ranges if item.name.startswith(_ASKED)]
        moments = ((call.thread, call.start_ns, correlation) for correlation, call in launched.items())
        within = {key: asked[stack[-1]] for key, stack in open_ranges(asked, moments) if stack}
        found = [
            _of_kernel(work, trace, steps, launched.get(work.args.correlation), within.get(work.args.correlation))
            for work in kernels
        ]
    return sorted(found, key=lambda call: call.start_ns)


def _of_kernel(
    work: DeviceWork,
    trace: KinetoTrace,
    steps: Sequence[tuple[int, int]],
    launched: RuntimeCall | None,
    asked: HostRange | None,
) -> CollectiveCall:
    """What the kernel notes of itself; older versions only have the range around its launch (`nccl:all_reduce`)."""
    match, args = _KERNEL.match(work.name), work.args
    told = args.collective if isinstance(args.collective, str) else asked.name.removeprefix(_ASKED) if asked else ""
    groups = (value for value in (args.group_ranks, args.group) if isinstance(value, str) and value)
    elements, element_type = _tensor(asked) if asked is not None and args.elements is None else (None, "")
    start_ns = trace.base_ns + work.start_ns
    return CollectiveCall(
        kind=_kind(told or (match["kind"] if match is not None else "")),
        group=next(groups, ""),
        elements=_whole(args.elements) if elements is None else elements,
        element_type=args.element_type if isinstance(args.element_type, str) else element_type,
        step=_step(work.start_ns if launched is None else launched.start_ns, steps),
        sequence=_whole(args.sequence),
        start_ns=start_ns,
        end_ns=start_ns + work.time_ns,
    )


def _of_range(item: HostRange, trace: KinetoTrace, steps: Sequence[tuple[int, int]]) -> CollectiveCall | None:
    match = _RANGE.match(item.name)
    if match is None or item.dur < 0:
        return None
    elements, element_type = _tensor(item)
    start_ns = trace.base_ns + item.start_ns
    return CollectiveCall(
        kind=_kind(match["kind"]),
        group="",
        elements=elements,
        element_type=element_type,
        step=_step(item.start_ns, steps),
        sequence=None,
        start_ns=start_ns,
        end_ns=start_ns + item.time_ns,
    )


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
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MOST else None


def _step(moment_ns: int, steps: Sequence[tuple[int, int]]) -> int | None:
    """The number of the step that had begun last."""
    place = bisect_right(steps, moment_ns, key=itemgetter(0))
    return steps[place - 1][1] if place else None


def matched(calls: Mapping[int, Sequence[CollectiveCall]]) -> tuple[list[Collective], int]:
    """Collectives that more than one rank has, on the clocks of their ranks; and how many calls have no partner."""
    buckets: dict[Hashable, dict[int, list[CollectiveCall]]] = defaultdict(lambda: defaultdict(list))
    for rank, own in calls.items():
        for call in own:
            buckets[call.key][rank].append(call)
    found, alone = [], 0
    for ranks in buckets.values():
        counts = {len(own) for own in ranks.values()}
        kind = next(iter(ranks.values()))[0].kind
        if len(ranks) < 2 or len(counts) > 1 or kind not in _KINDS:
            alone += sum(len(own) for own in ranks.values())
            continue
        for place in range(counts.pop()):
            parts = {rank: (own[place].start_ns, own[place].end_ns) for rank, own in ranks.items()}
            found.append(Collective(next(iter(ranks.values()))[place].name, kind, parts))
    return sorted(found, key=lambda collective: collective.first_ns), alone


@dataclass(frozen=True)
class ClockAlignment:
    """What to take off each rank's clock, and by how much the ends of collectives still differ in the median."""

    offsets_ns: Mapping[int, int]
    groups: Sequence[frozenset[int]]
    """Of ranks whose clocks are aligned with each other, the one with the lowest rank first."""
    used: int
    spread_ns: float

    def applied(self, collectives: Sequence[Collective]) -> list[Collective]:
        return [Collective(item.name, item.kind, dict(self._moved(item))) for item in collectives]

    def holds(self, item: Collective) -> bool:
        """Are all its ranks on one clock? Else its skew is that of clocks."""
        return any(item.parts.keys() <= group for group in self.groups)

    def _moved(self, item: Collective) -> Iterator[tuple[int, tuple[int, int]]]:
        for rank, (start, end) in item.parts.items():
            offset = self.offsets_ns[rank]
            yield rank, (start - offset, end - offset)


def aligned(ranks: Sequence[int], collectives: Sequence[Collective], *, one_clock: bool) -> ClockAlignment:
    """By the ends of collectives that nobody leaves early, against the lowest rank of all that such collectives join;
    where all have one clock, as it is."""
    ends = [
        {rank: end for rank, (_, end) in collective.parts.items()}
        for collective in collectives
        if collective.kind in _ALL_WAIT
    ]
    ends_of = {rank: [own for own in ends if rank in own] for rank in ranks}
    if one_clock:
        offsets, groups = dict.fromkeys(ranks, 0), [frozenset(ranks)]
    else:
        offsets, groups = {}, []
        while left := set(ranks) - offsets.keys():
            joined = _joined_with(min(left), left, ends_of)
            offsets |= joined
            groups.append(frozenset(joined))
    spreads = [
        max(placed) - min(placed) for own in ends if (placed := [end - offsets[rank] for rank, end in own.items()])
    ]
    return ClockAlignment(offsets, groups, len(spreads), median(spreads) if spreads else 0.0)


def _joined_with(first: int, ranks: set[int], ends_of: Mapping[int, Sequence[Mapping[int, int]]]) -> dict[int, int]:
    """Offsets from the clock of the first, of all ranks that have collectives with it, or with those that have."""
    offsets = {first: 0}
    moved = True
    while moved:
        moved = False
        for rank in sorted(ranks - offsets.keys()):
            apart = [
                own[rank] - median(own[other] - offsets[other] for other in own if other in offsets)
                for own in ends_of[rank]
                if any(other in offsets for other in own)
            ]
            if apart:
                offsets[rank], moved = round(median(apart)), True
    return offsets
