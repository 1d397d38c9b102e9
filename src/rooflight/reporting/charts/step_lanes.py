"""Where everything of a measured step lies in time: phases, modules, launches and kernels by stream, for whoever draws
lanes (a trace for a viewer, a chart).

Kernels lie where they ran; an op lies from the start of its first kernel to the end of its last. A step on the CPU has
no kernels: its ops are laid end to end. Whole nanoseconds, so that ends and starts can be compared; the slices of a
lane are apart or nested.
"""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec.structs import replace as replace_fields

from rooflight.ledger import OUTSIDE, Kernel, Ledger, Op, Value
from rooflight.reporting.sections.op_families import family_of_all
from rooflight.reporting.table import kernel_name


class Stretch:
    """Something that lasts."""

    start_ns: int
    end_ns: int

    @property
    def duration_ns(self) -> int:
        return self.end_ns - self.start_ns


@dataclass(frozen=True)
class TimelineSlice(Stretch):
    """A stretch of a lane, and what is known of it."""

    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]


@dataclass(frozen=True)
class TimelinePlace(Stretch):
    """When an op ran. Without kernels of its own it has no duration: it lies where the ops before it ended."""

    start_ns: int
    end_ns: int


Places = dict[int, TimelinePlace]
"""By op."""
Streams = dict[int | None, list[tuple[Kernel, TimelinePlace]]]
"""Kernels by stream, in the order of their starts; the stream that nobody knows is the first."""
OpQuantities = dict[int, dict[str, Value]]
"""Quantities by op."""
Level = tuple[str, dict[str, Any]]
"""Name and arguments of a slice that has others inside it."""


@dataclass(frozen=True)
class StepTimeline:
    """A step with the places of its ops and kernels."""

    ledger: Ledger
    measured: OpQuantities
    streams: Streams
    places: Places

    def in_turn(self) -> Iterator[tuple[Op, TimelinePlace]]:
        """Ops that took time, by start; where two run at once, the earlier one is cut when the later begins."""
        ran = [(op, place) for op in self.ledger.ops if (place := self.places[op.index]).duration_ns]
        ran.sort(key=lambda row: (row[1].start_ns, row[0].index))
        for (op, place), following in itertools.zip_longest(ran, ran[1:]):
            end = place.end_ns if following is None else min(place.end_ns, following[1].start_ns)
            yield op, TimelinePlace(place.start_ns, end)

    def phases(self) -> list[TimelineSlice]:
        """One slice for each stretch of forward, backward or optimizer."""
        return stacks((((op.phase, {"phase": op.phase}),), place) for op, place in self.in_turn())


def timeline_of(ledger: Ledger) -> StepTimeline | None:
    """`None`: nothing in the ledger has a time."""
    measured: OpQuantities = defaultdict(dict)
    for row in ledger.measurements:
        if row.scope == "op" and len(row.ops) == 1:
            measured[row.ops[0]].update(row.quantities)
    streams = _laid_out(ledger)
    places = _places_by_kernels(ledger, streams) if streams else _places_by_host_time(ledger, measured)
    return StepTimeline(ledger, measured, streams, places) if streams or places else None


def _laid_out(ledger: Ledger) -> Streams:
    """The kernels of each stream, one after the other; those of a log without starts follow each other at once."""
    streams: Streams = {}
    timed = [kernel for kernel in ledger.kernels if kernel.time_s is not None and kernel.kind != "primitive"]
    ends: dict[int | None, int] = {}
    log_end = 0
    for kernel in sorted(timed, key=lambda kernel: -1.0 if kernel.start_s is None else kernel.start_s):
        start = log_end if kernel.start_s is None else max(nanoseconds(kernel.start_s), ends.get(kernel.stream, 0))
        end = start + nanoseconds(kernel.time_s or 0.0)
        ends[kernel.stream] = log_end = end
        streams.setdefault(kernel.stream, []).append((kernel, TimelinePlace(start, end)))
    return dict(sorted(streams.items(), key=lambda row: -1 if row[0] is None else row[0]))


def _places_by_kernels(ledger: Ledger, streams: Streams) -> Places:
    """A kernel of several ops (fused, or a graph's) lies with the first of them."""
    places: Places = {}
    for kernel, place in itertools.chain.from_iterable(streams.values()):
        if kernel.ops:
            before = places.get(kernel.ops[0], place)
            start, end = min(before.start_ns, place.start_ns), max(before.end_ns, place.end_ns)
            places[kernel.ops[0]] = TimelinePlace(start, end)
    now = 0
    for op in range(len(ledger.ops)):
        now = max(now, places.setdefault(op, TimelinePlace(now, now)).end_ns)
    return places


def _places_by_host_time(ledger: Ledger, measured: OpQuantities) -> Places:
    places: Places = {}
    now = 0
    for op in ledger.ops:
        time = measured.get(op.index, {}).get("host_time_s")
        end = now + (nanoseconds(time.value) if time is not None else 0)
        places[op.index] = TimelinePlace(now, end)
        now = end
    return places if now else {}


def stacks(rows: Iterable[tuple[tuple[Level, ...], TimelinePlace]]) -> list[TimelineSlice]:
    """Slices that span neighbours as long as they have the same things around them; the outer ones come first."""
    slices: list[TimelineSlice] = []
    around: list[int] = []  # positions in `slices` of those that are still open
    for stack, place in rows:
        same = 0
        while same < min(len(around), len(stack)) and _goes_on(slices[around[same]], stack[same]):
            same += 1
        del around[same:]
        for position, (_, args) in zip(around, stack, strict=False):
            opened = slices[position]
            slices[position] = replace(opened, end_ns=place.end_ns, args={**opened.args, **args})
        for name, args in stack[same:]:
            around.append(len(slices))
            slices.append(TimelineSlice(name, place.start_ns, place.end_ns, args))
    return slices


def _goes_on(row: TimelineSlice, level: Level) -> bool:
    """Is it the same thing, as far as both tell? Which call of a module it is, is only known for the op's own."""
    name, args = level
    return row.name == name and all(row.args.get(key, value) == value for key, value in args.items())


def nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


PHASES, MODULES, LAUNCHES, OPS = "phases", "modules", "launches", "ops"
_MOST_PHASES = 100
_MOST_MODULES = 300
_MOST_LAUNCHES = 900
_MOST_KERNELS = 1700
"""Of all streams together: a chart has some 3,000 marks at most."""
_DEEPEST = 4


@dataclass(frozen=True)
class LaneSlice(Stretch):
    """A stretch of a lane, or several that are too thin to be seen apart."""

    lane: str
    name: str
    start_ns: int
    end_ns: int
    family: str = ""
    op: str = ""
    module: str = ""
    phase: str = ""
    count: int = 1
    busy_ns: int = 0
    """Of all of them: less than from start to end where there are gaps."""


@dataclass(frozen=True)
class Lanes:
    slices: tuple[LaneSlice, ...]
    """Times from the first thing that happened."""
    names: tuple[str, ...]
    """From the top."""
    span_ns: int
    on_gpu: bool
    placed: bool
    """Does every kernel lie where it ran? Those of a log without starts are laid end to end."""
    busy_ns: int | None
    """In which at least one stream ran something; `None`: nothing tells, as on a CPU."""
    kernels: int
    drawn: int
    """Slices that stand for so many kernels (or ops, on a CPU)."""
    ranks: int
    has_launches: bool
    busy: tuple[float, ...] = ()
    """The part of each of equal stretches of the span in which the GPU ran something."""


def lanes_of(ledger: Ledger, *, pixels: int, stretches: int = 190) -> Lanes | None:
    """`None`: nothing in the ledger has a time. Of several ranks the first is shown."""
    ranks = sorted({op.rank for op in ledger.ops})
    timeline = timeline_of(_of_rank(ledger, ranks[0]) if len(ranks) > 1 else ledger)
    if timeline is None:
        return None
    streams = timeline.streams
    launches, work = _launches(timeline.ledger), _work(timeline)
    around = _around(timeline)
    working = [piece for lane in work.values() for piece in lane]
    pieces = [*around, *launches, *working]
    begin, end = min(piece.start_ns for piece in pieces), max(piece.end_ns for piece in pieces)
    least = max(1, (end - begin) // pixels)
    thin = [
        piece for lane in work.values() for piece in thinned(lane, _MOST_KERNELS * len(lane) // len(working), least)
    ]
    shown = [*around, *thinned(launches, _MOST_LAUNCHES, least), *thin]
    placed = bool(streams) and all(kernel.start_s is not None for rows in streams.values() for kernel, _ in rows)
    running = [(start - begin, stop - begin) for start, stop in _union(working)] if placed else []
    return Lanes(
        slices=tuple(replace(p, start_ns=p.start_ns - begin, end_ns=p.end_ns - begin) for p in shown),
        names=(*dict.fromkeys(piece.lane for piece in around), *([LAUNCHES] if launches else []), *work),
        span_ns=end - begin,
        on_gpu=bool(streams),
        placed=placed,
        busy_ns=sum(stop - start for start, stop in running) if placed else None,
        kernels=len(working),
        drawn=len(thin),
        ranks=len(ranks),
        has_launches=bool(launches),
        busy=_busy(running, end - begin, stretches) if placed else (),
    )


def _of_rank(ledger: Ledger, rank: int) -> Ledger:
    ops = ledger.ops
    return replace_fields(
        ledger,
        kernels=tuple(kernel for kernel in ledger.kernels if kernel.ops and ops[kernel.ops[0]].rank == rank),
        measurements=tuple(row for row in ledger.measurements if row.ops and ops[row.ops[0]].rank == rank),
    )


def _around(timeline: StepTimeline) -> list[LaneSlice]:
    """Phases, and the outermost modules that tell more than that it is the model."""
    ledger = timeline.ledger
    depth = _depth(ledger.ops)

    def path(op: Op) -> str:
        return ".".join(op.module.split(".")[:depth]) or ledger.header.model

    modules = stacks((((path(op), {"phase": op.phase}),), place) for op, place in timeline.in_turn())
    rows = [(PHASES, row) for row in timeline.phases()[:_MOST_PHASES]]
    rows += [(MODULES, row) for row in modules] if len(modules) <= _MOST_MODULES else []
    return [LaneSlice(lane, row.name, row.start_ns, row.end_ns, phase=row.args["phase"]) for lane, row in rows]


def _depth(ops: Sequence[Op]) -> int:
    """How many parts of a path to show: until no module holds nearly everything."""
    paths = [op.module for op in ops if op.module not in OUTSIDE and op.kind != "view"]
    for depth in range(1, _DEEPEST):
        counts = Counter(".".join(path.split(".")[:depth]) for path in paths)
        if not paths or max(counts.values()) <= 0.7 * len(paths):
            return depth
    return _DEEPEST


def _launches(ledger: Ledger) -> list[LaneSlice]:
    """The host's calls, where the recording holds them. One call may launch several kernels, as of a CUDA graph."""
    launches: dict[TimelinePlace, LaneSlice] = {}
    for kernel in ledger.kernels:
        if kernel.launch_s is not None:
            start = nanoseconds(kernel.launch_s)
            place = TimelinePlace(start, start + nanoseconds(kernel.launch_time_s or 0.0))
            launches.setdefault(place, _of_kernel(ledger, kernel, LAUNCHES, place))
    return sorted(launches.values(), key=lambda launch: launch.start_ns)


def _work(timeline: StepTimeline) -> dict[str, list[LaneSlice]]:
    """Kernels by stream; the ops of a step on a CPU."""
    if not timeline.streams:
        ops = ((op.packet.removeprefix("aten::"), op, place) for op, place in timeline.in_turn())
        return {OPS: [_slice(OPS, name, place, [op]) for name, op, place in ops]}
    return {
        name: [_of_kernel(timeline.ledger, kernel, name, place) for kernel, place in rows]
        for stream, rows in timeline.streams.items()
        for name in ["GPU" if stream is None else f"stream {stream}"]
    }


def _of_kernel(ledger: Ledger, kernel: Kernel, lane: str, place: TimelinePlace) -> LaneSlice:
    return _slice(lane, kernel_name(kernel.name).shown, place, [ledger.ops[index] for index in kernel.ops])


def _slice(lane: str, name: str, place: TimelinePlace, ops: Sequence[Op]) -> LaneSlice:
    more = f" + {len(ops) - 1} more" if len(ops) > 1 else ""
    return LaneSlice(
        lane,
        name,
        place.start_ns,
        place.end_ns,
        family=family_of_all(ops),
        op=f"{ops[0].packet.removeprefix('aten::')}{more}" if ops else "",
        module=ops[0].module if ops else "",
        phase=ops[0].phase if ops else "",
        busy_ns=place.duration_ns,
    )


# --- so few that they can be drawn ---


def thinned(slices: Sequence[LaneSlice], most: int, least_ns: int) -> list[LaneSlice]:
    """At most so many: neighbours thinner than `least_ns`, of one module and family, become one; then any, then
    wider ones."""
    fewer = list(slices)
    while len(fewer) > most:
        fewer = _joined(fewer, least_ns, alike=True)
        if len(fewer) > most:
            fewer = _joined(fewer, least_ns, alike=False)
        least_ns *= 2
    return fewer


def _joined(slices: Iterable[LaneSlice], least_ns: int, *, alike: bool) -> list[LaneSlice]:
    joined: list[LaneSlice] = []
    for piece in slices:
        last = joined[-1] if joined else None
        if (
            last is not None
            and piece.start_ns - last.end_ns < least_ns
            and piece.duration_ns < least_ns
            and (last.duration_ns < least_ns or last.count > 1)
            and (not alike or (piece.family, piece.module) == (last.family, last.module))
            and piece.end_ns - last.start_ns < 4 * least_ns
        ):
            joined[-1] = _both(last, piece)
        else:
            joined.append(piece)
    return joined


def _both(first: LaneSlice, second: LaneSlice) -> LaneSlice:
    """One slice for two; the longer names the family."""
    return replace(
        first if first.busy_ns >= second.busy_ns else second,
        start_ns=first.start_ns,
        end_ns=max(first.end_ns, second.end_ns),
        phase=first.phase,
        count=first.count + second.count,
        busy_ns=first.busy_ns + second.busy_ns,
    )


def _union(slices: Iterable[LaneSlice]) -> list[tuple[int, int]]:
    """Stretches in which something runs, apart from one another."""
    union: list[tuple[int, int]] = []
    for start, end in sorted((piece.start_ns, piece.end_ns) for piece in slices):
        if union and start <= union[-1][1]:
            union[-1] = union[-1][0], max(union[-1][1], end)
        else:
            union.append((start, end))
    return union


def _busy(union: Sequence[tuple[int, int]], span_ns: int, stretches: int) -> tuple[float, ...]:
    width = span_ns / stretches
    inside = [0.0] * stretches
    for start, end in union:
        for place in range(int(start / width), min(stretches - 1, int(end / width)) + 1):
            inside[place] += max(0.0, min(end, (place + 1) * width) - max(start, place * width))
    return tuple(value / width for value in inside)
