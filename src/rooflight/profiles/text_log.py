"""From the tables of a profiler's log to launches with their metrics."""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from rooflight.ledger import KernelKind, Note
from rooflight.profiles.log import (
    COPIED,
    LoggedLaunch,
    LogText,
    MetricReading,
    ProfilerLog,
    check_launches,
    exact,
    in_blocks,
    several_gpus,
    shown,
)
from rooflight.profiles.metrics import (
    TIME,
    PrintedMetric,
    is_measured,
    is_rollup,
    locale_of,
    not_of_a_launch,
    readings,
)
from rooflight.profiles.ncu_messages import notes_of
from rooflight.profiles.table import LogRow, LogTable

_CUT = re.compile(r"(…|\.\.\.)$")
_RANGE = re.compile(r'"([^"]*)"')
_OF_API = re.compile(r"(__)?hip[A-Z]\w*|hsa_\w+|roctx\w*|hipblas\w*")


@dataclass(frozen=True)
class _Logged:
    """A launch: the first of its rows, how many launches it stands for, and its metrics as printed."""

    row: LogRow
    calls: int
    metrics: list[PrintedMetric] = field(default_factory=list)


def read(source: LogText, tables: Sequence[LogTable]) -> ProfilerLog | None:
    """Return the log; `None` if its tables hold no launches."""
    form = tables[0].format
    logged = list(_launches(tables).values())
    if not logged:
        return None
    if form.row != "kernel":
        check_launches(source, [each.calls for each in logged])
    printed = [each.metrics for each in logged]
    style = locale_of(source, printed) if form.numbers else tables[0].style
    metrics, notes = readings(source, printed, style, add=form.repeated == "sum")
    first = min((start for each in logged if (start := each.row.number("start")) is not None), default=Decimal(0))
    launches = [_launch(each, values, first) for each, values in zip(logged, metrics, strict=True)]
    if form.row == "kernel" and all(_OF_API.fullmatch(launch.name) for launch in launches):
        raise source.bad(tables[0].line, "these are calls of the host, no kernels: give kernel_stats.csv")
    if form.row != "kernel":
        launches = [
            replace(launch, calls=1) if launch.calls > 1 else launch for launch in launches for _ in range(launch.calls)
        ]
    averages = form.tool == "nvprof" or any(each.calls > 1 for each in logged)
    notes += _notes(source, tables, launches, averages=averages)
    devices = dict.fromkeys(re.sub(r" \(\d+\)$", "", each.row["device"] or each.row["gpu"]) for each in logged)
    devices.pop("", None)
    return ProfilerLog(
        tool=form.tool,
        about=f"{form.about}, summary" if averages and form.tool == "ncu" else form.about,
        launches=tuple(launches),
        time_origin=form.time,
        device=next(iter(devices), None) if "gpu" not in form.columns else None,
        capability=next((text for each in logged if (text := _capability(each.row))), None),
        notes=(*notes, *(several_gpus(sorted(devices)))),
        is_summary=form.row == "kernel" or averages,
    )


def _launches(tables: Sequence[LogTable]) -> dict[Hashable, _Logged]:
    """The launches by what tells them apart: the row, or cells in which their rows agree."""
    launches: dict[Hashable, _Logged] = {}
    for table in tables:
        form, rows, units = table.format, table.rows, [""] * len(table.header)
        if form.begins and form.metrics and rows:
            units, rows = rows[0].cells, rows[1:]
            if units[0]:
                raise table.rows[0].bad("the row of units is missing under the header: export it again with --page raw")
        columns = _kept(table)
        where = 0 if form.context else table.line
        for row in rows:
            if not row["kernel"]:
                raise row.bad("a row without a kernel's name")
            for role in {"id", "process"} & table.places.keys():
                if not re.fullmatch(r"\d{1,18}", row[role]):
                    raise row.bad(f"{role} is {shown(row[role])}, no number")
            key = (where, *(row[role] for role in form.key)) if form.row == "metric" else (where, row.line)
            logged = launches.setdefault(key, _Logged(row, row.calls()))
            if form.row == "metric" and row["metric"]:
                unit, value, low, high = (row[role] for role in ("unit", "value", "low", "high"))
                logged.metrics.append(PrintedMetric(row["metric"], unit, value, row.line, low, high))
            logged.metrics.extend(
                PrintedMetric(name, units[place], row.cells[place], row.line) for place, name in columns
            )
    return launches


def _kept(table: LogTable) -> list[tuple[int, str]]:
    """The columns of metrics that tell something about a kernel which no other tells."""
    columns = table.metrics if table.format.metrics else []
    names = {name for _, name in columns}
    return [(place, name) for place, name in columns if is_measured(name) and not is_rollup(name, names)]


def _launch(logged: _Logged, metrics: dict[str, MetricReading], first: Decimal) -> LoggedLaunch:
    row, form = logged.row, logged.row.table.format
    name = row["kernel"].removesuffix(" [clone .kd]").removesuffix(".kd")
    grid, block, start, copied = row.sizes("grid"), row.sizes("block"), row.number("start"), row.number("copied")
    took = metrics.pop(TIME).value if TIME in metrics else _time_s(row, start, logged.calls)
    if copied is not None:
        metrics[COPIED] = MetricReading(exact(copied), "byte")
    return LoggedLaunch(
        name=name,
        kind=_kind(name),
        grid=in_blocks(grid, block) if form.grid_in_threads else grid,
        block=block,
        stream=int(row["stream"]) if re.fullmatch(r"\d{1,18}", row["stream"]) else None,
        start_s=None if start is None else float(start - first),
        time_s=None if took is None else float(took),
        calls=logged.calls,
        label=row["label"] or "/".join(label for place in row.table.range_places for label in ranges(row.cells[place])),
        metrics=metrics,
    )


def _time_s(row: LogRow, start: Decimal | None, calls: int) -> Decimal | None:
    took, end, mean = row.number("time"), row.number("end"), row.number("mean")
    if took is None:
        took = row.number("total")
    if took is None and start is not None and end is not None:
        took = end - start
    if took is None and mean is not None:
        took = mean * calls
    if took is not None and took < 0:
        raise row.bad("the kernel ends before it starts: the file is damaged, export it again")
    for role, value in (("start", start), ("end", end), ("time", took), ("total|mean", took), ("total", took)):
        if value is None and role in row.table.format.needs:
            raise row.bad(f"a row needs its {role.replace('|', ' or ')}: the file is not whole")
    return took


def _kind(name: str) -> KernelKind:
    if name.lower().startswith("[cuda memcpy"):
        return "copy"
    return "set" if name.lower().startswith("[cuda memset") else "kernel"


def _capability(row: LogRow) -> str | None:
    capability = row["capability"]
    if capability and not re.fullmatch(r"\d{1,2}\.\d{1,2}", capability):
        raise row.bad(f"{shown(capability)} is no compute capability")
    return capability or None


def ranges(cell: str) -> list[str]:
    """Return the names of NVTX ranges, outermost first, out of `718  "<default domain>:conv2:none:...:none" `.

    Every range is Domain:Name and six fields about its payload, colour and message. A name may hold colons.
    """
    names = []
    for text in _RANGE.findall(cell):
        domain, *rest = text.split(":")
        name = ":".join(rest[:-6] or rest)
        names.append(name if domain == "<default domain>" else f"{domain}:{name}")
    return [name for name in names if name]


def _notes(
    source: LogText, tables: Sequence[LogTable], launches: Sequence[LoggedLaunch], *, averages: bool
) -> list[Note]:
    form = tables[0].format
    notes = []
    if form.row == "kernel":
        text = "the log is a summary: a row is all launches of a kernel, of which no single one is known"
        notes.append(Note("log-is-summary", text))
    elif averages:
        text = "the log is a summary: every launch of a kernel stands here with the average of all"
        notes.append(Note("averages", text))
    if any(_CUT.search(launch.name) for launch in launches):
        text = "nsys cut long names off: kernels that differ only behind the cut are one (--format csv has them whole)"
        notes.append(Note("cut-names", text))
    if form.tool == "ncu":
        notes += notes_of(source, launches=len(launches))
        if skipped := sum(_skipped(table, first=table is tables[0]) for table in tables):
            text = f"the IDs of the kernels skip {skipped:,}: rows were filtered out or lost, and no sum has them"
            notes.append(Note("skipped-kernels", text))
        kept = {name for table in tables for _, name in _kept(table)}
        left = dict.fromkeys(name for table in tables for _, name in table.metrics if name not in kept)
        notes += not_of_a_launch(left if form.metrics else ())
    return notes


def _skipped(table: LogTable, *, first: bool) -> int:
    """How many IDs are missing from row to row of one process; those of the first count from 0."""
    total = 0
    last: dict[str, int] = {}
    for row in table.rows:
        if re.fullmatch(r"\d{1,18}", number := row["id"]):
            before = last.get(row["process"], -1 if first and not last else int(number) - 1)
            total += max(0, int(number) - before - 1)
            last[row["process"]] = int(number)
    return total
