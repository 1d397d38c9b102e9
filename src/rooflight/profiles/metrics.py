"""Metrics as profilers print them, as readings in base units; and those that are left out, each by name with the
reason."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache

from rooflight.hardware.counter_names import known_counters, meant_counter
from rooflight.ledger import Note
from rooflight.profiles.log import LogText, MetricReading, NotCounted, exact, shown
from rooflight.profiles.numbers import PLAIN, Ambiguous, NumberStyle, PrintedNumber, decide, is_missing, looks_numeric
from rooflight.units import Unit, printed_unit

TIME = "gpu__time_duration.sum"
NVPROF_COUNTS = ("flop_count_sp", "flop_count_dp", "flop_count_hp", "dram_read_bytes", "dram_write_bytes")
_ABOUT_THE_DEVICE = re.compile(
    r"(device__attribute|launch|numa|nvlink|c2clink|profiler|sm(sp)?__maximum|breakdown:|group:)"
)
_ROLLUP = re.compile(r"(?P<counter>.+)\.(avg|min|max)")
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
_WITH_UNIT = re.compile(r"([+-]?[0-9][0-9.eE+-]*)(%|[KMGT]?B(?:/s)?)")


@dataclass(frozen=True)
class PrintedMetric:
    """One metric of one launch, as it stands in the log."""

    metric: str
    unit: str
    text: str
    line: int
    low: str = ""
    high: str = ""

    @property
    def is_whole(self) -> bool:
        """Does it count things one by one?"""
        return not self.low and self.metric.endswith(".sum") and self.unit.strip() in _COUNTED_ONE_BY_ONE


@lru_cache(maxsize=4096)
def is_measured(metric: str) -> bool:
    """Is it something that was counted, and not an attribute of the device, the launch or the profiler?"""
    return _ABOUT_THE_DEVICE.match(metric) is None


@lru_cache(maxsize=4096)
def name_of(metric: str) -> str:
    """Return a metric's name; the time has several."""
    return TIME if _TIME.fullmatch(metric) else metric


def is_rollup(name: str, names: Container[str]) -> bool:
    """Is it the average, the least or the greatest of a counter whose sum is there too?"""
    rollup = _ROLLUP.fullmatch(name)
    return rollup is not None and f"{rollup['counter']}.sum" in names


def without_rollups(read: dict[str, MetricReading]) -> dict[str, MetricReading]:
    return {name: reading for name, reading in read.items() if not is_rollup(name, read)}


def locale_of(source: LogText, launches: Iterable[Sequence[PrintedMetric]]) -> NumberStyle:
    """Return how a log that prints numbers as its terminal does writes them."""
    try:
        return decide(
            PrintedNumber(text, printed.line, printed.is_whole)
            for metrics in launches
            for printed in metrics
            for text in (printed.text, printed.low, printed.high)
        )
    except Ambiguous as problem:
        remedy = "profile again with LC_ALL=C set and --print-units base, which prints plain numbers"
        raise source.bad(problem.line, f"{problem}: {remedy}") from None


def readings(
    source: LogText, launches: Sequence[Sequence[PrintedMetric]], style: NumberStyle, *, add: bool = False
) -> tuple[list[dict[str, MetricReading]], list[Note]]:
    """Return the metrics of every launch in base units, and notes. What is printed twice counts once, unless `add`."""
    printed_in, empty, words = Counter[str](), Counter[str](), dict[str, str]()
    rounded: set[str] = set()
    result = []
    for metrics in launches:
        read: dict[str, MetricReading] = {}
        for printed in metrics:
            name = name_of(printed.metric)
            printed_in[printed.metric] += 1
            if name in read and not add:
                continue
            if is_missing(printed.text):
                empty[printed.metric] += 1
            elif (reading := _reading(source, printed, style)) is None:
                words.setdefault(printed.metric, printed.text.strip())
            else:
                before = read[name].value if name in read else 0
                read[name] = reading if not before else MetricReading(before + reading.value, reading.unit)
                if (unit := printed_unit(printed.unit)) is not None and unit.rounds and unit.base in ("byte", "inst"):
                    rounded.add(printed.unit)
                elif "e+" in printed.text:
                    rounded.add("powers of ten")
        result.append(without_rollups(read))
    notes = without_value(printed_in, empty) + not_numeric(words)
    if rounded:
        text = f"bytes and counts were printed rounded (in {', '.join(sorted(rounded))}): --print-units base keeps all"
        notes.insert(0, Note("rounded-counts", text))
    return result, notes


def _reading(source: LogText, printed: PrintedMetric, style: NumberStyle) -> MetricReading | None:
    name = name_of(printed.metric)
    is_counter = name.endswith(".sum") or name in NVPROF_COUNTS or (style is PLAIN and not printed.low)
    read = _in_base(name, printed.unit, printed.text, style)
    if read is None:
        is_word = not printed.unit.strip() and not looks_numeric(printed.text)
        if is_word and (not is_counter or "OVERFLOW" in printed.text):
            return None
        what = f"{printed.metric} is {shown(printed.text)}, which is no number of a counter"
        raise source.bad(printed.line, f"{what}, or not in a unit of it ({printed.unit})" if printed.unit else what)
    ends = [_in_base(name, printed.unit, text, style) for text in (printed.low, printed.high)]
    signed = not is_counter and style is not PLAIN
    try:
        low, high = (None if end is None else exact(end[0], may_be_negative=signed) for end in ends)
        return MetricReading(exact(read[0], may_be_negative=signed), read[1], low, high)
    except NotCounted as problem:
        texts = ", ".join(shown(text) for text in (printed.text, printed.low, printed.high) if text)
        raise source.bad(printed.line, f"{printed.metric} is {texts}: {problem}") from None


def _in_base(name: str, unit_text: str, text: str, style: NumberStyle) -> tuple[Decimal, str] | None:
    """Return a number in its base unit, which may stand behind it (`16.2GB/s`)."""
    if not unit_text and (match := _WITH_UNIT.fullmatch(text.strip())) is not None:
        text, unit_text = match.groups()
    value, unit = style.parse(text), _unit(name, unit_text)
    return None if value is None or unit is None else (unit.in_base(value), unit.base)


@lru_cache(maxsize=4096)
def _unit(name: str, text: str) -> Unit | None:
    """What a metric is in; an unknown unit stands for itself, but not where the counter is known."""
    unit = printed_unit(text) or Unit(text.strip(), text.strip())
    unexpected = any(pattern.match(name) and unit.base not in bases for pattern, bases in _EXPECTED)
    return None if unexpected else unit


# --- what is left out ---


def without_value(printed: Mapping[str, int], empty: Mapping[str, int]) -> list[Note]:
    """Notes on metrics printed as `n/a`: in how many launches each was printed, and in how many it had no value."""
    by_reason: dict[str, list[str]] = {}
    for name, count in empty.items():
        by_reason.setdefault(_why_empty(name, count, printed[name]), []).append(name)
    return [Note("dropped-metrics", f"dropped: {', '.join(names)} {reason}") for reason, names in by_reason.items()]


def _why_empty(name: str, count: int, printed: int) -> str:
    if count < printed:
        return f"has no value (n/a) in {count:,} of {printed:,} kernels, which are without it"
    everywhere = f"is n/a in {'all ' if count > 1 else ''}{count:,} kernel{'s' if count > 1 else ''}"
    if (meant := meant_counter(name)) is not None:
        return f"{everywhere}, because there is no counter of that name: it is {meant}; profile again with it"
    if name.partition(".")[0] in known_counters():
        return f"{everywhere}: this chip has no such counter, or ncu could not read it"
    return f"{everywhere}: no counter of this chip has that name (ncu --query-metrics lists them)"


def not_numeric(values: Mapping[str, str]) -> list[Note]:
    """A note on metrics whose value is a word, with one of their values."""
    listed = ", ".join(f"{name} ({value})" for name, value in values.items())
    return [Note("dropped-metrics", f"dropped: {listed}: not numeric")] if listed else []


def not_of_a_launch(names: Collection[str]) -> list[Note]:
    """A note on attributes of the device, the launch and the profiler, and averages of counters whose sum is kept."""
    averages = sum(_ROLLUP.fullmatch(name) is not None for name in names)
    columns = f"{len(names) - averages:,} columns about device, launch and profiler"
    text = f"left out: {columns}, and {averages:,} .avg, .min and .max of counters whose .sum is kept"
    return [Note("left-out-columns", text)] if names else []


def unknown_to_ncu(errors: Sequence[str]) -> list[Note]:
    """Notes with the right names of metrics that ncu's own errors call unknown."""
    names = dict.fromkeys(word.strip("'\".,:") for text in errors for word in re.findall(r"\b\w+__\w+(?:\.\w+)*", text))
    meant = {name: meant_counter(name) for name in names}
    texts = [f"there is no counter {name}: it is {other}" for name, other in meant.items() if other]
    return [Note("unknown-counter", text) for text in texts]
