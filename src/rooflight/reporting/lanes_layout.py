"""Where everything of a measured step lies in time: kernels by stream, ops, and slices that span their neighbours.

Kernels lie where they ran; an op lies from the start of its first kernel to the end of its last. A step on the CPU has
no kernels: its ops are laid end to end. Whole nanoseconds, so that ends and starts can be compared; the slices of a
lane are apart or nested. What draws lanes (a trace for a viewer, a chart) reads this.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from rooflight.ledger import Kernel, Ledger, Op, Value


@dataclass(frozen=True)
class Slice:
    """A stretch of a lane, and what is known of it."""

    name: str
    start_ns: int
    end_ns: int
    args: dict[str, Any]


@dataclass(frozen=True)
class Place:
    """When an op ran. Without kernels of its own it has no duration: it lies where the ops before it ended."""

    start_ns: int
    end_ns: int


Places = dict[int, Place]
"""By op."""
Streams = dict[int | None, list[tuple[Kernel, Place]]]
Measured = dict[int, dict[str, Value]]
"""Quantities by op."""
Level = tuple[str, dict[str, Any]]
"""Name and arguments of a slice that has others inside it."""


def measured_alone(ledger: Ledger) -> Measured:
    """Quantities of single ops."""
    found: Measured = defaultdict(dict)
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
        streams.setdefault(kernel.stream, []).append((kernel, Place(start, end)))
    return streams


def places_by_kernels(ledger: Ledger, streams: Streams) -> Places:
    """A kernel of several ops (fused, or a graph's) lies with the first of them."""
    found: Places = {}
    for kernel, place in (row for rows in streams.values() for row in rows):
        if kernel.ops:
            known = found.get(kernel.ops[0], place)
            found[kernel.ops[0]] = Place(min(known.start_ns, place.start_ns), max(known.end_ns, place.end_ns))
    now = 0
    for op in range(len(ledger.ops)):
        if op not in found:
            found[op] = Place(now, now)
        now = max(now, found[op].end_ns)
    return found


def places_by_host_time(ledger: Ledger, measured: Measured) -> Places:
    found: Places = {}
    now = 0
    for op in ledger.ops:
        time = measured.get(op.index, {}).get("host_time_s")
        end = now + (nanoseconds(time.value) if time is not None else 0)
        found[op.index] = Place(now, end)
        now = end
    return found if now else {}


def in_turn(ledger: Ledger, places: Places) -> Iterator[tuple[Op, Place]]:
    """Ops that took time, by start; where two run at once, the earlier one is cut when the later begins."""
    ran = sorted(
        (op for op in ledger.ops if places[op.index].end_ns > places[op.index].start_ns),
        key=lambda op: (places[op.index].start_ns, op.index),
    )
    for op, following in itertools.zip_longest(ran, ran[1:]):
        place = places[op.index]
        end = place.end_ns if following is None else min(place.end_ns, places[following.index].start_ns)
        yield op, Place(place.start_ns, end)


def phases(ledger: Ledger, places: Places) -> list[Slice]:
    """One slice for each stretch of forward, backward or optimizer."""
    return stacks((((op.phase, {"phase": op.phase}),), place) for op, place in in_turn(ledger, places))


def stacks(rows: Iterable[tuple[tuple[Level, ...], Place]]) -> list[Slice]:
    """Slices that span neighbours as long as they have the same things around them; the outer ones come first."""
    found: list[Slice] = []
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
            found.append(Slice(name, place.start_ns, place.end_ns, args))
    return found


def _goes_on(row: Slice, level: Level) -> bool:
    """Is it the same thing, as far as both tell? Which call of a module it is, is only known for the op's own."""
    name, args = level
    return row.name == name and all(row.args.get(key, value) == value for key, value in args.items())


def nanoseconds(time_s: float) -> int:
    return round(time_s * 1e9)
