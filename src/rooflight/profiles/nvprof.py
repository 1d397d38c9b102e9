"""nvprof's tables of metrics, as text and as CSV: the least, the greatest and the average launch of every kernel.

    ==558094== Metric result:
    Invocations           Metric Name                      Metric Description         Min         Max         Avg
    Device "Quadro GP100 (0)"
        Kernel: GPU_track(of_photon*, double*, int)
              4         flop_count_sp   Floating Point Operations(Single Prec...   455917968  2.4855e+10  7066167016

nvprof read no tensor cores, and knows no GPU after Volta. Its text rounds from 10**10 on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal

from rooflight.ledger import Note
from rooflight.profiles import dropped_metrics
from rooflight.profiles.log import (
    LoggedLaunch,
    LogText,
    MetricReading,
    NotCounted,
    ProfilerLog,
    cells_of,
    check_launches,
    counted,
    several_gpus,
    shown,
)
from rooflight.profiles.ncu_log import invocations, refuse_empty
from rooflight.profiles.numbers import PLAIN
from rooflight.units import printed_unit

RESULT = re.compile(r"==\d+== Metric result:")
_HEADER = re.compile(r"Invocations\s+Metric Name\s+Metric Description\s+Min\s+Max\s+Avg\s*")
_CSV_HEADER = ["Device", "Kernel", "Invocations", "Metric Name", "Metric Description", "Min", "Max", "Avg"]
_COUNTS = ("flop_count_sp", "flop_count_dp", "flop_count_hp", "dram_read_bytes", "dram_write_bytes")
_DEVICE = re.compile(r'Device "(?P<name>.*) \(\d+\)"\s*')
_KERNEL = re.compile(r"\s+Kernel: (?P<name>.+)")
_VALUE = r"(\S+(?: \(\d+\))?)"
_ROW = re.compile(rf"\s+(?P<times>\d+)\s+(?P<metric>\w+)\s+(?P<about>\S.*?)\s{{2,}}{_VALUE}\s+{_VALUE}\s+{_VALUE}\s*")
_TORN = re.compile(rf"(?!\s).*\S\s{{2,}}{_VALUE}\s+{_VALUE}\s+{_VALUE}\s*")
"""The end of a row with nothing indented before it: its beginning is lost."""
_NUMBER = re.compile(r"(?P<number>[+-]?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)(?P<unit>%|[KMGT]?B(?:/s)?)?")


@dataclass(frozen=True)
class _NvprofRow:
    line: int
    device: str
    kernel: str
    times: int
    metric: str
    values: tuple[str, str, str]
    """Least, greatest, average."""


def read(source: LogText) -> ProfilerLog:
    rows = list(_rows(source))
    if not rows:
        raise refuse_empty(source, "the log has no table of metrics by kernel")
    metrics: dict[tuple[str, str], dict[str, MetricReading]] = {}
    times: dict[tuple[str, str], int] = {}
    rounded = False
    overflown, words = Counter[str](), dict[str, str]()
    for row in rows:
        kernel = row.device, row.kernel
        times[kernel] = max(times.get(kernel, 0), row.times)
        metrics.setdefault(kernel, {})
        if (reading := _reading(source, row)) is not None:
            metrics[kernel].setdefault(row.metric, reading)
            rounded = rounded or "e+" in row.values[2]
        elif "OVERFLOW" in row.values[2]:
            overflown[row.metric] += 1
        else:
            words.setdefault(row.metric, row.values[2])
    check_launches(source, list(times.values()))
    notes = [
        Note("averages", "nvprof gives the average over the launches of a kernel: every launch stands here with it")
    ]
    if rounded:
        notes.append(Note("rounded-counts", "nvprof rounded counts of 10**10 and more to five digits"))
    notes += [
        Note("dropped-metrics", f"dropped: {name} overflowed in {count:,} kernels, which are without it")
        for name, count in overflown.items()
    ]
    notes += dropped_metrics.words(words)
    launches = tuple(
        LoggedLaunch(name=kernel[1], metrics=metrics[kernel]) for kernel, count in times.items() for _ in range(count)
    )
    devices = list(dict.fromkeys(row.device for row in rows))
    notes += several_gpus(devices)
    return ProfilerLog(
        tool="nvprof",
        about="nvprof metrics",
        launches=launches,
        time_origin="",
        device=devices[0],
        notes=tuple(notes),
        is_summary=True,
    )


def _rows(source: LogText) -> Iterator[_NvprofRow]:
    device, kernel = "", ""
    inside: str | None = None
    for number, line in source.numbered():
        if _HEADER.fullmatch(line):
            inside = "text"
        elif line.startswith('"Device"'):
            inside = "csv" if cells_of(line) == _CSV_HEADER else None
        elif line.startswith("==") or "Event Name" in line:
            inside = None
        elif inside == "csv" and line.startswith('"'):
            yield _csv_row(source, number, line)
        elif (inside == "csv" and '",' in line) or (inside == "text" and _TORN.fullmatch(line)):
            raise source.torn(number, "this row has lost its beginning", again="record")
        elif inside == "text" and (match := _DEVICE.fullmatch(line)):
            device, kernel = match["name"], ""
        elif inside == "text" and (match := _KERNEL.fullmatch(line)):
            kernel = match["name"].strip()
        elif inside == "text" and line.strip() and line[0].isspace():
            match = _ROW.fullmatch(line)
            if match is None or not kernel:
                raise source.torn(number, "this is no row of nvprof's metrics", again="record")
            source.must_end(number)
            values = (match[4], match[5], match[6])
            yield _NvprofRow(
                number, device, kernel, invocations(source, number, match["times"]), match["metric"], values
            )


def _csv_row(source: LogText, number: int, line: str) -> _NvprofRow:
    cells = cells_of(line)
    if cells is None or len(cells) != len(_CSV_HEADER):
        raise source.torn(number, "this row of nvprof's metrics breaks off", again="record")
    source.must_end(number)
    device = re.sub(r" \(\d+\)$", "", cells[0])
    return _NvprofRow(
        number, device, cells[1], invocations(source, number, cells[2]), cells[3], (cells[5], cells[6], cells[7])
    )


def _reading(source: LogText, row: _NvprofRow) -> MetricReading | None:
    if (average := _number(row.values[2])) is None:
        if row.metric in _COUNTS and "OVERFLOW" not in row.values[2]:
            raise source.bad(row.line, f"{row.metric} is {shown(row.values[2])}, which is no number")
        return None  # levels such as `Low (1)`
    ends = [_number(text) for text in row.values[:2]]
    try:
        return counted(*average, [None if end is None else end[0] for end in ends])
    except NotCounted as problem:
        raise source.bad(row.line, f"{row.metric} is {', '.join(map(shown, row.values))}: {problem}") from None


def _number(text: str) -> tuple[Decimal, str] | None:
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        return None
    unit, number = printed_unit(match["unit"] or ""), PLAIN.parse(match["number"])
    return None if unit is None or number is None else (unit.in_base(number), unit.base)
