"""Nsight Compute's logs: what its CSV, its console output and its report files have in common.

Metrics as it prints them become readings in base units (names, units, separators), kernels become launches, and the
lines between `==` marks say what went wrong.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from rooflight.errors import BadFile
from rooflight.ledger import Note
from rooflight.profiles import dropped_metrics
from rooflight.profiles.log import (
    Dim3,
    LoggedLaunch,
    LogRow,
    LogText,
    MetricReading,
    NotCounted,
    ProfilerLog,
    check_launches,
    counted,
    shown,
)
from rooflight.profiles.numbers import Ambiguous, NumberStyle, PrintedNumber, decide, is_missing, looks_numeric
from rooflight.units import Unit, printed_unit

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
class PrintedMetric:
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


def readings(
    source: LogText, launches: Sequence[Sequence[PrintedMetric]]
) -> tuple[list[dict[str, MetricReading]], list[Note]]:
    """The metrics of every launch in base units, and what to know about them."""
    try:
        style = decide(
            PrintedNumber(text, printed.line, printed.low is None and _is_whole(printed))
            for metrics in launches
            for printed in metrics
            for text in printed.texts
        )
    except Ambiguous as problem:
        remedy = "profile again with LC_ALL=C set and --print-units base, which prints plain numbers"
        raise source.bad(problem.line, f"{problem}: {remedy}") from None
    rounded: set[str] = set()
    result = []
    printed_in, empty, words = Counter[str](), Counter[str](), dict[str, str]()
    for metrics in launches:
        read: dict[str, MetricReading] = {}
        for printed in metrics:
            name = name_of(printed.metric)
            printed_in[printed.metric] += 1
            if name in read:
                continue
            if (reading := _reading(source, printed, style)) is None:
                if is_missing(printed.text):
                    empty[printed.metric] += 1
                else:
                    words.setdefault(printed.metric, printed.text.strip())
                continue
            read[name] = reading
            unit = printed_unit(printed.unit)
            if unit is not None and unit.rounds and unit.base in ("byte", "inst"):
                rounded.add(printed.unit)
        result.append(without_rollups(read))
    notes = []
    if rounded:
        notes.append(
            Note(
                "rounded-counts",
                f"bytes and counts were printed rounded (in {', '.join(sorted(rounded))}): --print-units base "
                "keeps all",
            )
        )
    return result, [*notes, *dropped_metrics.without_value(printed_in, empty), *dropped_metrics.words(words)]


def _is_whole(printed: PrintedMetric) -> bool:
    return printed.metric.endswith(".sum") and printed.unit.strip() in _COUNTED_ONE_BY_ONE


def _reading(source: LogText, printed: PrintedMetric, style: NumberStyle) -> MetricReading | None:
    if is_missing(printed.text):
        return None
    value = style.parse(printed.text)
    if value is None:
        if not printed.unit.strip() and not printed.metric.endswith(".sum") and not looks_numeric(printed.text):
            return None  # a metric whose value is a word
        raise source.bad(printed.line, f"{printed.metric} is {shown(printed.text)}, which is no number of a counter")
    unit = _unit(name_of(printed.metric), printed.unit)
    if unit is None:
        raise source.bad(printed.line, f"{printed.metric} is in {printed.unit!r}, a unit that rooflight does not know")
    signed = not name_of(printed.metric).endswith(".sum")
    ends = [None if text is None or is_missing(text) else style.parse(text) for text in (printed.low, printed.high)]
    in_base = [None if end is None else unit.in_base(end) for end in ends]
    try:
        return counted(unit.in_base(value), unit.base, in_base, may_be_negative=signed)
    except NotCounted as problem:
        texts = ", ".join(map(shown, printed.texts))
        raise source.bad(printed.line, f"{printed.metric} is {texts}: {problem}") from None


@lru_cache(maxsize=4096)
def _unit(name: str, text: str) -> Unit | None:
    """What a metric is in; an unknown unit stands for itself, but not where we know what it must be."""
    unit = printed_unit(text) or Unit(text.strip(), text.strip())
    unexpected = any(pattern.match(name) and unit.base not in bases for pattern, bases in _EXPECTED)
    return None if unexpected else unit


def is_rollup(name: str, names: Container[str]) -> bool:
    """Is it the average, the least or the greatest of a counter whose sum is there too?"""
    rollup = _ROLLUP.match(name)
    return rollup is not None and f"{rollup['counter']}.sum" in names


def without_rollups(read: dict[str, MetricReading]) -> dict[str, MetricReading]:
    """Average, least and greatest over the chip's units say nothing about a launch that the sum does not."""
    return {name: reading for name, reading in read.items() if not is_rollup(name, read)}


# --- kernels ---


@dataclass(frozen=True)
class ProfiledKernel:
    """A launch and its metrics as printed; `times`: how many launches it is the average of."""

    launch: LoggedLaunch
    device: str
    capability: str
    times: int
    metrics: list[PrintedMetric] = field(default_factory=list)


def kernel_of(row: LogRow, *, label: str = "") -> ProfiledKernel:
    """A kernel, without metrics yet, from a row that names it."""
    launch = LoggedLaunch(
        name=row["Kernel Name"],
        grid=_grid_or_block(row, row["Grid Size"]),
        block=_grid_or_block(row, row["Block Size"]),
        stream=int(row["Stream"]) if re.fullmatch(r"\d{1,18}", row["Stream"]) else None,
        label=label,
    )
    capability = row["CC"]
    if capability and not re.fullmatch(r"\d{1,2}\.\d{1,2}", capability):
        raise row.torn(f"{shown(capability)} is no compute capability")
    times = invocations(row.source, row.line, row["Invocations"])
    return ProfiledKernel(launch, row["device__attribute_display_name"], capability, times)


def _grid_or_block(row: LogRow, text: str) -> Dim3 | None:
    """`(22, 1, 64)`; nothing where there is nothing, as for a range of kernels."""
    if not text:
        return None
    sizes = re.fullmatch(r"\(?(\d{1,10}), ?(\d{1,10}), ?(\d{1,10})\)?", text)
    if sizes is None:
        raise row.torn(f"{shown(text)} is no grid or block size")
    return int(sizes[1]), int(sizes[2]), int(sizes[3])


def invocations(source: LogText, line: int, text: str) -> int:
    """How many launches a row stands for, 1 where it does not say."""
    digits = re.sub(r"[.,\s'’]", "", text or "1")
    if not re.fullmatch(r"\d{1,9}", digits) or not int(digits):
        raise source.bad(line, f"{shown(text)} is no number of invocations that rooflight can import")
    return int(digits)


def log_of(source: LogText, kernels: Sequence[ProfiledKernel], *, about: str) -> ProfilerLog:
    check_launches(source, [kernel.times for kernel in kernels])
    metrics, notes = readings(source, [kernel.metrics for kernel in kernels])
    launches = [
        replace(
            kernel.launch,
            metrics={name: value for name, value in values.items() if name != TIME},
            time_s=float(values[TIME].value) if TIME in values else None,
        )
        for kernel, values in zip(kernels, metrics, strict=True)
        for _ in range(kernel.times)
    ]
    is_summary = any(kernel.times > 1 for kernel in kernels)
    if is_summary:
        about += ", summary"
        notes.append(
            Note("averages", "the log is a summary: every launch of a kernel stands here with the average of all")
        )
    return ProfilerLog(
        tool="ncu",
        about=about,
        launches=tuple(launches),
        time_origin=f"ncu {TIME}",
        device=next((kernel.device for kernel in kernels if kernel.device), None),
        capability=next((kernel.capability for kernel in kernels if kernel.capability), None),
        notes=(*notes, *notes_of(source, launches=len(launches))),
        is_summary=is_summary,
    )


# --- what ncu says of itself ---

_MESSAGE = re.compile(r"==(ERROR|WARNING|PROF)== ?(.*)")
_OF_NVPROF = re.compile(r"==\d+== (Error|Warning): ?(.*)")

PERMISSION_REMEDY = (
    "run the profiler as root, or let an admin set NVreg_RestrictProfilingToAdminUsers=0 for the nvidia driver "
    "(in a container: --cap-add=SYS_ADMIN)"
)


def messages(source: LogText, kind: str) -> list[tuple[int, str]]:
    """The messages of one kind, ERROR, WARNING or PROF, with their lines."""
    marked = []
    for number, line in source.numbered():
        at = line.find("==")
        match = _MESSAGE.match(line, at) if at >= 0 else None
        if match is not None and match[1] == kind:
            marked.append((number, match[2].strip()))
    return marked


def refuse_empty(source: LogText, what: str) -> BadFile:
    """Why a profiler's log holds nothing to import, from its own errors where it has some."""
    if "ERR_NVGPUCTRPERM" in source.text:
        line = next(number for number, text in source.numbered() if "ERR_NVGPUCTRPERM" in text)
        return BadFile(
            "no-permission-to-count",
            f"{source.at(line)}: the log holds no counters, because the user had no permission to read them: "
            f"{PERMISSION_REMEDY}",
        )
    if errors := messages(source, "ERROR"):
        meant = "".join(f"; {note}" for note in dropped_metrics.unknown_to_ncu([text for _, text in errors]))
        line, text = errors[0]
        return BadFile(
            "profiler-failed", f"{source.at(line)}: {what}; ncu failed: {text or 'it does not say why'}{meant}"
        )
    for line, text in messages(source, "WARNING"):
        if text.startswith("No kernels were profiled"):
            return BadFile(
                "nothing-profiled",
                f"{source.at(line)}: ncu profiled no kernels: check its filters, or add --target-processes all",
            )
    for number, line_text in source.numbered():
        if (match := _OF_NVPROF.match(line_text)) is not None:
            return BadFile("profiler-failed", f"{source.at(number)}: {what}; nvprof says: {match[2]}")
    return BadFile(
        "nothing-profiled",
        f"{source.at(len(source.lines))}: {what}: the file is cut off, or nothing was profiled; record it again",
    )


def notes_of(source: LogText, *, launches: int) -> list[Note]:
    """What a reader of the numbers must know: errors, and a log that tells of more kernels than it holds."""
    errors = [(line, text) for line, text in messages(source, "ERROR") if text]
    notes = [Note("profiler-error", f"ncu reported an error on line {line}: {text}") for line, text in errors]
    notes += dropped_metrics.unknown_to_ncu([text for _, text in errors])
    profiled = sum(text.startswith("Profiling ") for _, text in messages(source, "PROF"))
    if profiled > launches:
        notes.append(
            Note(
                "log-cut-off",
                f"ncu says that it profiled {profiled:,} kernels, the log holds {launches:,}: its end may be lost",
            )
        )
    if any("uncontrolled GPU caches" in text for _, text in messages(source, "WARNING")):
        notes.append(Note("warm-caches", "caches were left as they were between kernels (--cache-control none)"))
    elif any(text.startswith("Connected") for _, text in messages(source, "PROF")):
        notes.append(
            Note("cold-caches", "ncu emptied the caches before every kernel, and left a kernel's last writes in L2")
        )
    if any("unmodified GPU clocks" in text for _, text in messages(source, "WARNING")):
        notes.append(
            Note("clocks-not-fixed", "the GPU's clocks were not fixed while it was profiled (--clock-control none)")
        )
    return notes
