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

from rooflight.ledger import LOSS, OPTIMIZER, Kernel, Ledger, Op, Value
from rooflight.reporting.sections.op_families import family_of, family_of_all
from rooflight.reporting.table import kernel_name


@dataclass(frozen=True)
class TimelineSlice:
    """A stretch of a lane, and what is known of it."""

    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]


@dataclass(frozen=True)
class TimelinePlace:
    """When an op ran. Without kernels of its own it has no duration: it lies where the ops before it ended."""

    start_ns: int
    end_ns: int


Places = dict[int, TimelinePlace]
"""By op."""
Streams = dict[int | None, list[tuple[Kernel, TimelinePlace]]]
OpQuantities = dict[int, dict[str, Value]]
"""Quantities by op."""
Level = tuple[str, dict[str, Any]]
"""Name and arguments of a slice that has others inside it."""


def measured_alone(ledger: Ledger) -> OpQuantities:
    """Quantities of single ops."""
    found: OpQuantities = defaultdict(dict)
    for row in ledger.measurements:
        if row.scope == "op" and len(row.ops) == 1:
            found[row.ops[0]].update(row.quantities)
    return found


def laid_out(ledger: Ledger) -> Streams:
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
    return streams


def places_by_kernels(ledger: Ledger, streams: Streams) -> Places:
    """A kernel of several ops (fused, or a graph's) lies with the first of them."""
    found: Places = {}
    for kernel, place in (row for rows in streams.values() for row in rows):
        if kernel.ops:
            known = found.get(kernel.ops[0], place)
            found[kernel.ops[0]] = TimelinePlace(min(known.start_ns, place.start_ns), max(known.end_ns, place.end_ns))
    now = 0
    for op in range(len(ledger.ops)):
        if op not in found:
            found[op] = TimelinePlace(now, now)
        now = max(now, found[op].end_ns)
    return found


def places_by_host_time(ledger: Ledger, measured: OpQuantities) -> Places:
    found: Places = {}
    now = 0
    for op in ledger.ops:
        time = measured.get(op.index, {}).get("host_time_s")
        end = now + (nanoseconds(time.value) if time is not None else 0)
        found[op.index] = TimelinePlace(now, end)
        now = end
    return found if now else {}


def in_turn(ledger: Ledger, places: Places) -> Iterator[tuple[Op, TimelinePlace]]:
    """Ops that took time, by start; where two run at once, the earlier one is cut when the later begins."""
    ran = sorted(
        (op for op in ledger.ops if places[op.index].end_ns > places[op.index].start_ns),
        key=lambda op: (places[op.index].start_ns, op.index),
    )
    for op, following in itertools.zip_longest(ran, ran[1:]):
        place = places[op.index]
        end = place.end_ns if following is None else min(place.end_ns, places[following.index].start_ns)
        yield op, TimelinePlace(place.start_ns, end)


def phases(ledger: Ledger, places: Places) -> list[TimelineSlice]:
    """One slice for each stretch of forward, backward or optimizer."""
    return stacks((((op.phase, {"phase": op.phase}),), place) for op, place in in_turn(ledger, places))


def stacks(rows: Iterable[tuple[tuple[Level, ...], TimelinePlace]]) -> list[TimelineSlice]:
    """Slices that span neighbours as long as they have the same things around them; the outer ones come first."""
    found: list[TimelineSlice] = []
    around: list[int] = []  # positions in `found` of the slices that are still open
    for stack, place in rows:
        same = 0
        while same < min(len(around), len(stack)) and _goes_on(found[around[same]], stack[same]):
            same += 1
        del around[same:]
        for position, (_, args) in zip(around, stack, strict=False):
            found[position] = replace(found[position], end_ns=place.end_ns, args={**found[position].args, **args})
        for name, args in stack[same:]:
            around.append(len(found))
            found.append(TimelineSlice(name, place.start_ns, place.end_ns, args))
    return found


def _goes_on(row: TimelineSlice, level: Level) -> bool:
    """Is it the same thing, as far as both tell? Which call of a module it is, is only known for the op's own."""
    name, args = level
    return row.name == name and all(row.args.get(key, value) == value for key, value in args.items())


def nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)


PHASES, MODULES, LAUNCHES, OPS = "phases", "modules", "launches", "ops"
_MOST_MODULES = 300
_MOST_LAUNCHES = 900
_MOST_KERNELS = 1700
"""Of all streams together: a chart has some 3,000 marks at most."""
_DEEPEST = 4


@dataclass(frozen=True)
class LaneSlice:
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
    if len(ranks) > 1:
        ledger = _of_rank(ledger, ranks[0])
    streams = laid_out(ledger)
    measured = measured_alone(ledger)
    places = places_by_kernels(ledger, streams) if streams else places_by_host_time(ledger, measured)
    if not places and not streams:
        return None
    launches = _launches(ledger)
    work = _kernels(ledger, streams) if streams else {OPS: _ops(ledger, places)}
    around = [*_phases(ledger, places), *_modules(ledger, places)]
    every = [*around, *launches, *(one for lane in work.values() for one in lane)]
    begin, end = min(one.start_ns for one in every), max(one.end_ns for one in every)
    least = max(1, (end - begin) // pixels)
    count = sum(map(len, work.values()))
    thin = [one for lane in work.values() for one in thinned(lane, _MOST_KERNELS * len(lane) // count, least)]
    kept = [*around, *thinned(launches, _MOST_LAUNCHES, least), *thin]
    names = [*dict.fromkeys(one.lane for one in around), *([LAUNCHES] if launches else []), *work]
    placed = bool(streams) and all(kernel.start_s is not None for rows in streams.values() for kernel, _ in rows)
    union = _union(one for lane in work.values() for one in lane) if placed else []
    return Lanes(
        tuple(_shifted(one, begin) for one in kept),
        tuple(names),
        end - begin,
        bool(streams),
        placed,
        sum(stop - start for start, stop in union) if placed else None,
        count,
        len(thin),
        len(ranks),
        bool(launches),
        _busy([(start - begin, stop - begin) for start, stop in union], end - begin, stretches) if placed else (),
    )


def _of_rank(ledger: Ledger, rank: int) -> Ledger:
    ops = ledger.ops
    return replace_fields(
        ledger,
        kernels=tuple(one for one in ledger.kernels if one.ops and ops[one.ops[0]].rank == rank),
        measurements=tuple(one for one in ledger.measurements if one.ops and ops[one.ops[0]].rank == rank),
    )


def _phases(ledger: Ledger, places: Places) -> list[LaneSlice]:
    found = [LaneSlice(PHASES, one.name, one.start_ns, one.end_ns, phase=one.name) for one in phases(ledger, places)]
    return found[:100]


def _modules(ledger: Ledger, places: Places) -> list[LaneSlice]:
    """The outermost modules that tell more than that it is the model."""
    depth = _depth(ledger.ops)

    def path(op: Op) -> str:
        return ".".join(op.module.split(".")[:depth]) or ledger.header.model

    rows = (((((path(op)), {"phase": op.phase}),), place) for op, place in in_turn(ledger, places))
    slices = [
        LaneSlice(
            MODULES,
            one.name,
            one.start_ns,
            one.end_ns,
            module=one.name,
            phase=one.args["phase"],
            busy_ns=one.end_ns - one.start_ns,
        )
        for one in stacks(rows)
    ]
    return slices if len(slices) <= _MOST_MODULES else []


def _depth(ops: Sequence[Op]) -> int:
    """How many parts of a path to show: until no module holds nearly everything."""
    paths = [op.module for op in ops if op.module not in (LOSS, OPTIMIZER) and op.kind != "view"]
    for depth in range(1, _DEEPEST):
        held = Counter(".".join(path.split(".")[:depth]) for path in paths)
        if not paths or max(held.values()) <= 0.7 * len(paths):
            return depth
    return _DEEPEST


def _launches(ledger: Ledger) -> list[LaneSlice]:
    """The host's calls, where the recording holds them. One call may launch several kernels, as of a CUDA graph."""
    found: dict[tuple[int, int], LaneSlice] = {}
    for kernel in ledger.kernels:
        if kernel.launch_s is None:
            continue
        start = nanoseconds(kernel.launch_s)
        end = start + nanoseconds(kernel.launch_time_s or 0.0)
        found.setdefault((start, end), _slice(ledger, kernel, LAUNCHES, TimelinePlace(start, end)))
    return sorted(found.values(), key=lambda one: one.start_ns)


def _kernels(ledger: Ledger, streams: Streams) -> dict[str, list[LaneSlice]]:
    order = sorted(streams, key=lambda stream: -1 if stream is None else stream)
    return {
        name: [_slice(ledger, kernel, name, place) for kernel, place in streams[stream]]
        for stream in order
        for name in ["GPU" if stream is None else f"stream {stream}"]
    }


def _slice(ledger: Ledger, kernel: Kernel, lane: str, place: TimelinePlace) -> LaneSlice:
    ops = [ledger.ops[index] for index in kernel.ops]
    more = f" + {len(ops) - 1} more" if len(ops) > 1 else ""
    return LaneSlice(
        lane,
        kernel_name(kernel.name).shown,
        place.start_ns,
        place.end_ns,
        family=family_of_all(ops),
        op=f"{ops[0].packet.removeprefix('aten::')}{more}" if ops else "",
        module=ops[0].module if ops else "",
        phase=ops[0].phase if ops else "",
        busy_ns=place.end_ns - place.start_ns,
    )


def _ops(ledger: Ledger, places: Places) -> list[LaneSlice]:
    """Of a step on a CPU."""
    return [
        LaneSlice(
            OPS,
            op.packet.removeprefix("aten::"),
            place.start_ns,
            place.end_ns,
            family=family_of(op),
            op=op.packet.removeprefix("aten::"),
            module=op.module,
            phase=op.phase,
            busy_ns=place.end_ns - place.start_ns,
        )
        for op, place in in_turn(ledger, places)
    ]


# --- so few that they can be drawn ---


def thinned(slices: Sequence[LaneSlice], most: int, least_ns: int) -> list[LaneSlice]:
    """At most so many: neighbours thinner than `least_ns`, of one module and family, become one; then any, then
    wider ones."""
    kept = list(slices)
    while len(kept) > most:
        kept = _joined(kept, least_ns, alike=True)
        if len(kept) > most:
            kept = _joined(kept, least_ns, alike=False)
        least_ns *= 2
    return kept


def _joined(slices: Iterable[LaneSlice], least_ns: int, *, alike: bool) -> list[LaneSlice]:
    found: list[LaneSlice] = []
    for one in slices:
        last = found[-1] if found else None
        if (
            last is not None
            and one.start_ns - last.end_ns < least_ns
            and one.end_ns - one.start_ns < least_ns
            and (last.end_ns - last.start_ns < least_ns or last.count > 1)
            and (not alike or (one.family, one.module) == (last.family, last.module))
            and one.end_ns - last.start_ns < 4 * least_ns
        ):
            found[-1] = _both(last, one)
        else:
            found.append(one)
    return found


def _both(a: LaneSlice, b: LaneSlice) -> LaneSlice:
    """One slice for two; the longer names the family."""
    main = a if a.busy_ns >= b.busy_ns else b
    return LaneSlice(
        a.lane,
        main.name,
        a.start_ns,
        max(a.end_ns, b.end_ns),
        family=main.family,
        op=main.op,
        module=main.module,
        phase=a.phase,
        count=a.count + b.count,
        busy_ns=a.busy_ns + b.busy_ns,
    )


def _shifted(one: LaneSlice, begin: int) -> LaneSlice:
    return LaneSlice(
        one.lane,
        one.name,
        one.start_ns - begin,
        one.end_ns - begin,
        one.family,
        one.op,
        one.module,
        one.phase,
        one.count,
        one.busy_ns,
    )


def _union(slices: Iterable[LaneSlice]) -> list[tuple[int, int]]:
    """Stretches in which something runs, apart from one another."""
    found: list[tuple[int, int]] = []
    for start, end in sorted((one.start_ns, one.end_ns) for one in slices):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def _busy(union: Sequence[tuple[int, int]], span_ns: int, stretches: int) -> tuple[float, ...]:
    width = span_ns / stretches
    inside = [0.0] * stretches
    for start, end in union:
        for place in range(int(start / width), min(stretches - 1, int(end / width)) + 1):
            inside[place] += max(0.0, min(end, (place + 1) * width) - max(start, place * width))
    return tuple(value / width for value in inside)
