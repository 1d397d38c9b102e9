"""Metrics as Nsight Compute prints them, turned into readings in base units: names, units, separators."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from rooflight.errors import BadFile
from rooflight.importing.log import Reading, exact
from rooflight.importing.metric_units import Unit, unit
from rooflight.importing.numbers import Ambiguous, Cell, NumberStyle, decide, is_missing, looks_numeric
from rooflight.importing.source import Source

TIME = "gpu__time_duration.sum"
_ABOUT_THE_DEVICE = re.compile(
    r"(device__attribute|launch|numa|nvlink|c2clink|profiler|sm(sp)?__maximum|breakdown:|group:)"
)
_ROLLUP = re.compile(r"(?P<counter>.+)\.(avg|min|max)$")
# The details page prints a label instead of the name; over one GPU, sum and average are the same.
_TIME = re.compile(r"Duration|gpu__time_duration(\.(avg|max|min|sum))?")
# What the counters that rooflight knows are counted in.
_EXPECTED = tuple(
    (re.compile(pattern), bases)
    for pattern, bases in (
        (r"(dram__bytes|lts__t_bytes|l1tex__t_bytes)\w*\.sum$", ("byte",)),
        (r"gpu__time_duration\.", ("second",)),
        (r"sm(sp)?__sass_thread_inst_executed_op_\w+\.sum$", ("inst", "")),
        (r"sm__ops_path_tensor_\w+\.sum$", ("", "op", "ops", "inst")),
    )
)
_COUNTED_ONE_BY_ONE = frozenset({"", "byte", "inst", "cycle", "ns", "nsecond", "sector", "request", "warp", "thread"})


@dataclass(frozen=True)
class Printed:
    """One metric of one launch, as it stands in the log."""

    metric: str
    unit: str
    text: str
    line: int
    low: str | None = None
    high: str | None = None

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple(text for text in (self.text, self.low, self.high) if text is not None)


@lru_cache(maxsize=4096)
def is_measured(metric: str) -> bool:
    """Is it something that was counted, and not an attribute of the device, the launch or the profiler?"""
    return _ABOUT_THE_DEVICE.match(metric) is None


@lru_cache(maxsize=4096)
def name_of(metric: str) -> str:
    """A metric's name; the time has several."""
    return TIME if _TIME.fullmatch(metric) else metric


def readings(source: Source, launches: Sequence[Sequence[Printed]]) -> tuple[list[dict[str, Reading]], list[str]]:
    """The metrics of every launch in base units, and what to know about them."""
    try:
        style = decide(
            Cell(text, printed.line, printed.low is None and _is_whole(printed))
            for metrics in launches
            for printed in metrics
            for text in printed.texts
        )
    except Ambiguous as problem:
        raise _ambiguous(source, problem) from None
    rounded: set[str] = set()
    result = []
    for metrics in launches:
        read: dict[str, Reading] = {}
        for printed in metrics:
            name = name_of(printed.metric)
            if name in read or (reading := _reading(source, printed, style)) is None:
                continue
            read[name] = reading
            known = unit(printed.unit)
            if known is not None and known.rounds and known.base in ("byte", "inst"):
                rounded.add(printed.unit)
        result.append(without_rollups(read))
    notes = []
    if rounded:
        notes.append(
            f"bytes and counts were printed rounded (in {', '.join(sorted(rounded))}): --print-units base keeps all"
        )
    return result, notes


def _is_whole(printed: Printed) -> bool:
    return printed.metric.endswith(".sum") and printed.unit.strip() in _COUNTED_ONE_BY_ONE


def _ambiguous(source: Source, problem: Ambiguous) -> BadFile:
    return source.bad(
        problem.line,
        f"{problem}: profile again with LC_ALL=C set and --print-units base, which prints plain numbers",
    )


def _reading(source: Source, printed: Printed, style: NumberStyle) -> Reading | None:
    if is_missing(printed.text):
        return None
    value = style.parse(printed.text)
    if value is None:
        if not printed.unit.strip() and not printed.metric.endswith(".sum") and not looks_numeric(printed.text):
            return None  # a metric whose value is a word
        raise source.bad(printed.line, f"{printed.metric} is {_shown(printed.text)}, which is no number of a counter")
    if value < 0 and name_of(printed.metric).endswith(".sum"):
        raise source.bad(printed.line, f"{printed.metric} is {_shown(printed.text)}: nothing counts below zero")
    known = _unit(name_of(printed.metric), printed.unit)
    if known is None:
        raise source.bad(printed.line, f"{printed.metric} is in {printed.unit!r}, a unit that rooflight does not know")
    ends = [None if text is None or is_missing(text) else style.parse(text) for text in (printed.low, printed.high)]
    low, high = (None if end is None else exact(end * known.factor) for end in ends)
    return Reading(exact(value * known.factor), known.base, low, high)


def _shown(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= 40 else f"{text[:37]}...")


@lru_cache(maxsize=4096)
def _unit(name: str, text: str) -> Unit | None:
    """What a metric is in; an unknown unit stands for itself, but not where we know what it must be."""
    known = unit(text) or Unit(text.strip(), Decimal(1))
    unexpected = any(pattern.match(name) and known.base not in bases for pattern, bases in _EXPECTED)
    return None if unexpected else known


def is_rollup(name: str, names: Container[str]) -> bool:
    """Is it the average, the least or the greatest of a counter whose sum is there too?"""
    found = _ROLLUP.match(name)
    return found is not None and f"{found['counter']}.sum" in names


def without_rollups(read: dict[str, Reading]) -> dict[str, Reading]:
    """Average, least and greatest over the chip's units say nothing about a launch that the sum does not."""
    return {name: reading for name, reading in read.items() if not is_rollup(name, read)}
