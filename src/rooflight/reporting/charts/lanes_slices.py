"""The slices of a step's lanes: phases, modules, launches, kernels by stream; so few that a chart can draw them all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from rooflight.ledger import LOSS, OPTIMIZER, Kernel, Ledger, Op
from rooflight.reporting import lanes_layout as layout
from rooflight.reporting.lanes_layout import Place, Places
from rooflight.reporting.op_families import family_of, family_of_all
from rooflight.reporting.written import kernel_name

PHASES, MODULES, LAUNCHES, OPS = "phases", "modules", "launches", "ops"
_MOST_MODULES = 300
_MOST_LAUNCHES = 900
_MOST_KERNELS = 1700
"""Of all streams together: a chart has some 3,000 marks at most."""
_DEEPEST = 4


@dataclass(frozen=True)
class Slice:
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
    slices: tuple[Slice, ...]
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
    streams = layout.laid_out(ledger)
    measured = layout.measured_alone(ledger)
    places = (
        layout.places_by_kernels(ledger, streams) if streams else layout.places_by_host_time(ledger, measured)
    )  # fmt: skip
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
        tuple(_shifted(one, begin) for one in kept), tuple(names), end - begin, bool(streams), placed,
        sum(stop - start for start, stop in union) if placed else None, count, len(thin), len(ranks), bool(launches),
        _busy([(start - begin, stop - begin) for start, stop in union], end - begin, stretches) if placed else (),
    )  # fmt: skip


def _of_rank(ledger: Ledger, rank: int) -> Ledger:
    ops = ledger.ops
    return replace(
        ledger,
        kernels=tuple(one for one in ledger.kernels if one.ops and ops[one.ops[0]].rank == rank),
        measurements=tuple(one for one in ledger.measurements if one.ops and ops[one.ops[0]].rank == rank),
    )


def _phases(ledger: Ledger, places: Places) -> list[Slice]:
    found = [Slice(PHASES, one.name, one.start_ns, one.end_ns, phase=one.name) for one in layout.phases(ledger, places)]
    return found[:100]


def _modules(ledger: Ledger, places: Places) -> list[Slice]:
    """The outermost modules that tell more than that it is the model."""
    depth = _depth(ledger.ops)

    def path(op: Op) -> str:
        return ".".join(op.module.split(".")[:depth]) or ledger.header.model

    rows = (((((path(op)), {"phase": op.phase}),), place) for op, place in layout.in_turn(ledger, places))
    slices = [
        Slice(MODULES, one.name, one.start_ns, one.end_ns, module=one.name, phase=one.args["phase"],
              busy_ns=one.end_ns - one.start_ns)
        for one in layout.stacks(rows)
    ]  # fmt: skip
    return slices if len(slices) <= _MOST_MODULES else []


def _depth(ops: Sequence[Op]) -> int:
    """How many parts of a path to show: until no module holds nearly everything."""
    paths = [op.module for op in ops if op.module not in (LOSS, OPTIMIZER) and op.kind != "view"]
    for depth in range(1, _DEEPEST):
        held = Counter(".".join(path.split(".")[:depth]) for path in paths)
        if not paths or max(held.values()) <= 0.7 * len(paths):
            return depth
    return _DEEPEST


def _launches(ledger: Ledger) -> list[Slice]:
    """The host's calls, where the recording holds them. One call may launch several kernels, as of a CUDA graph."""
    found: dict[tuple[int, int], Slice] = {}
    for kernel in ledger.kernels:
        if kernel.launch_s is None:
            continue
        start = layout.nanoseconds(kernel.launch_s)
        end = start + layout.nanoseconds(kernel.launch_time_s or 0.0)
        found.setdefault((start, end), _slice(ledger, kernel, LAUNCHES, Place(start, end)))
    return sorted(found.values(), key=lambda one: one.start_ns)


def _kernels(ledger: Ledger, streams: layout.Streams) -> dict[str, list[Slice]]:
    order = sorted(streams, key=lambda stream: -1 if stream is None else stream)
    return {
        name: [_slice(ledger, kernel, name, place) for kernel, place in streams[stream]]
        for stream in order
        for name in ["GPU" if stream is None else f"stream {stream}"]
    }


def _slice(ledger: Ledger, kernel: Kernel, lane: str, place: Place) -> Slice:
    ops = [ledger.ops[index] for index in kernel.ops]
    more = f" + {len(ops) - 1} more" if len(ops) > 1 else ""
    return Slice(
        lane, kernel_name(kernel.name).shown, place.start_ns, place.end_ns, family=family_of_all(ops),
        op=f"{ops[0].packet.removeprefix('aten::')}{more}" if ops else "", module=ops[0].module if ops else "",
        phase=ops[0].phase if ops else "", busy_ns=place.end_ns - place.start_ns,
    )  # fmt: skip


def _ops(ledger: Ledger, places: Places) -> list[Slice]:
    """Of a step on a CPU."""
    return [
        Slice(OPS, op.packet.removeprefix("aten::"), place.start_ns, place.end_ns, family=family_of(op),
              op=op.packet.removeprefix("aten::"), module=op.module, phase=op.phase,
              busy_ns=place.end_ns - place.start_ns)
        for op, place in layout.in_turn(ledger, places)
    ]  # fmt: skip


# --- so few that they can be drawn ---


def thinned(slices: Sequence[Slice], most: int, least_ns: int) -> list[Slice]:
    """At most so many: neighbours thinner than `least_ns`, of one module and family, become one; then any, then
    wider ones."""
    kept = list(slices)
    while len(kept) > most:
        kept = _joined(kept, least_ns, alike=True)
        if len(kept) > most:
            kept = _joined(kept, least_ns, alike=False)
        least_ns *= 2
    return kept


def _joined(slices: Iterable[Slice], least_ns: int, *, alike: bool) -> list[Slice]:
    found: list[Slice] = []
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


def _both(a: Slice, b: Slice) -> Slice:
    """One slice for two; the longer names the family."""
    main = a if a.busy_ns >= b.busy_ns else b
    return Slice(
        a.lane, main.name, a.start_ns, max(a.end_ns, b.end_ns), family=main.family, op=main.op,
        module=main.module, phase=a.phase, count=a.count + b.count, busy_ns=a.busy_ns + b.busy_ns,
    )  # fmt: skip


def _shifted(one: Slice, begin: int) -> Slice:
    return Slice(one.lane, one.name, one.start_ns - begin, one.end_ns - begin, one.family, one.op, one.module,
                 one.phase, one.count, one.busy_ns)  # fmt: skip


def _union(slices: Iterable[Slice]) -> list[tuple[int, int]]:
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
