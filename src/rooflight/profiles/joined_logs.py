"""Two logs of one program as one: what ncu or nvprof counted, and the times that nsys or a profiler's trace has.

A profiler that counts runs every kernel alone and again, so its times are not the program's; one that only looks on has
times and no counts. Launches are joined in order where both logs have one row a launch and the kernels follow each
other alike; else by name, and by grid and block where both logs have them. A note counts what has no partner.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from rooflight.errors import BadFile, BadInput
from rooflight.formatting import percent, seconds
from rooflight.ledger import Note
from rooflight.ops.kernel_names import short_name
from rooflight.profiles.kernel_signature import SIGNATURES, base, brief, is_bare
from rooflight.profiles.log import LoggedLaunch, ProfilerLog

_LEAST_MATCHED = 0.5
"""Below this share of the counted kernels two logs are not of the same program."""
_NAMED = 3


def joined(logs: Sequence[ProfilerLog]) -> ProfilerLog:
    """Return all of them as one log; a single one as it is."""
    if len(logs) == 1:
        return logs[0]
    counting = [log for log in logs if log.counts]
    timing = [log for log in logs if not log.counts]
    if not counting:
        files = " and ".join(log.file for log in logs)
        remedy = "one of the files must be of ncu or nvprof, which count FLOPs and bytes"
        raise BadInput("no-counters", f"{files} have times and no counters: {remedy}")
    if len(timing) > 1:
        files = " and ".join(log.file for log in timing)
        remedy = "give one of them, and the log of ncu that belongs to it"
        raise BadInput("duplicate-log", f"{files} both have times of kernels: {remedy}")
    result, *others = counting
    for other in others:
        result = _with_counters(result, other)
    return _with_times(result, timing[0]) if timing else result


def _with_counters(log: ProfilerLog, other: ProfilerLog) -> ProfilerLog:
    """What `other` counted as well, launch by launch: of the same launches, or it is refused."""
    _same_device(log, other)
    if [base(launch.name) for launch in log.launches] != [base(launch.name) for launch in other.launches]:
        raise BadFile(
            "different-kernels",
            f"{log.file} ({len(log.launches):,} kernels) and {other.file} ({len(other.launches):,}) have not the same "
            "kernels in the same order: record all metrics in one run of ncu, or give one of the two",
        )
    launches = tuple(
        replace(
            mine,
            metrics=theirs.metrics | mine.metrics,
            time_s=theirs.time_s if mine.time_s is None else mine.time_s,
        )
        for mine, theirs in zip(log.launches, other.launches, strict=True)
    )
    text = f"counters of {other.file} stand beside those of {log.file}, kernel by kernel, in order"
    notes = tuple(dict.fromkeys((*log.notes, *other.notes, Note("joined-counters", text))))
    return replace(log, launches=launches, about=f"{log.about} + {other.about}", notes=notes)


@dataclass(frozen=True)
class _Matching:
    """For every counted launch its time and, launch by launch, its start; `None`: it has no partner."""

    times_s: Sequence[float | None]
    how: str
    used: frozenset[int]
    """Timed launches that are partners."""
    starts_s: Sequence[float | None] | None = None


def _with_times(log: ProfilerLog, timed: ProfilerLog) -> ProfilerLog:
    _same_device(log, timed)
    times = [launch for launch in timed.launches if launch.kind == "kernel"]
    if any(launch.start_s is not None for launch in times):
        times.sort(key=lambda launch: launch.start_s or 0.0)
    if any(launch.time_s is None for launch in times) or not times:
        remedy = "export `nsys stats --report cuda_gpu_trace --format csv`"
        raise BadFile("no-kernel-times", f"{timed.file} has no times of kernels: {remedy}")
    sized = all(launch.grid and launch.block for launch in (*log.launches, *times))
    matching = None if log.is_summary or timed.is_summary else _in_order(log.launches, times, sized)
    matching = matching or _by_name(log.launches, times, sized)
    if sum(time is not None for time in matching.times_s) < _LEAST_MATCHED * len(log.launches):
        raise _strangers(log, timed, times, matching)
    starts = matching.starts_s or [None] * len(log.launches)
    launches = tuple(
        replace(launch, time_s=time, start_s=start)
        for launch, time, start in zip(log.launches, matching.times_s, starts, strict=True)
    )
    how = Note("joined-times", f"times are of {timed.file} ({timed.about}), {matching.how}")
    of_files = (note.of(each.file) for each in (log, timed) for note in each.notes)
    return replace(
        log,
        launches=launches,
        about=f"{log.about}, times of {timed.about}",
        time_origin=f"{timed.time_origin} in {timed.file}",
        device=log.device or timed.device,
        times_of=timed.file,
        unmatched=tuple(_without_partner(log, timed, times, matching)),
        notes=tuple(dict.fromkeys((how, *_unused(log, timed, matching), *of_files))),
    )


def _same_device(log: ProfilerLog, other: ProfilerLog) -> None:
    if log.device and other.device and log.device != other.device:
        raise BadFile(
            "device-mismatch",
            f"{log.file} is of a {log.device}, {other.file} of a {other.device}: counts of one GPU and times of "
            "another make no point; record both on the same",
        )


def _in_order(counted: Sequence[LoggedLaunch], timed: Sequence[LoggedLaunch], sized: bool) -> _Matching | None:
    """The counted kernels, one after the other, somewhere among the timed ones; perhaps again and again."""
    count = len(counted)
    runs, at = [], 0
    while at + count <= len(timed):
        # One by one: a part of a long log at every place would be a copy at every place.
        alike = all(_alike(mine, timed[at + place], sized) for place, mine in enumerate(counted))
        runs += [at] if alike else []
        at += count if alike else 1
    if not runs:
        return None
    times = [median(timed[start + place].time_s or 0.0 for start in runs) for place in range(count)]
    used = frozenset(start + place for start in runs for place in range(count))
    if len(runs) == 1:
        starts = [timed[runs[0] + place].start_s for place in range(count)]
        return _Matching(times, f"launch by launch: {count:,} kernels in the same order", used, starts)
    often = f"the {count:,} kernels are there {len(runs):,} times in the same order"
    return _Matching(times, f"launch by launch: {often}, and each has the median of its {len(runs):,} times", used)


def _alike(mine: LoggedLaunch, theirs: LoggedLaunch, sized: bool) -> bool:
    """Can they be the same launch? A name without template arguments leaves them open."""
    if sized and (mine.grid, mine.block) != (theirs.grid, theirs.block):
        return False
    if brief(mine.name) == brief(theirs.name):
        return True
    return base(mine.name) == base(theirs.name) and (is_bare(mine.name) or is_bare(theirs.name))


def _by_name(counted: Sequence[LoggedLaunch], timed: Sequence[LoggedLaunch], sized: bool) -> _Matching:
    """Every counted launch has the mean time of the timed ones of its name: by the finest spelling that finds some.

    Without template arguments only where one of the two has none at all: a sum and a product are both an
    `elementwise_kernel`."""
    times: list[float | None] = [None] * len(counted)
    used: set[int] = set()
    by: dict[str, None] = {}
    for what, signature in SIGNATURES:
        places: dict[Hashable, list[int]] = {}
        for place, launch in enumerate(timed):
            if place not in used:
                size = (launch.grid, launch.block) if sized else None
                places.setdefault((signature(launch.name), size), []).append(place)
        for place, launch in enumerate(counted):
            size = (launch.grid, launch.block) if sized else None
            partners = places.get((signature(launch.name), size), []) if times[place] is None else []
            if signature is base and not is_bare(launch.name):
                partners = [partner for partner in partners if is_bare(timed[partner].name)]
            if partners:
                whole = math.fsum(timed[partner].time_s or 0.0 for partner in partners)
                times[place] = whole / sum(timed[partner].calls for partner in partners)
                used.update(partners)
                by[what] = None
    how = f"by {' or '.join(by) or 'name'}{', grid and block' if sized else ''}: a launch has the mean of those alike"
    return _Matching(times, how, frozenset(used))


def _strangers(log: ProfilerLog, timed: ProfilerLog, times: Sequence[LoggedLaunch], matching: _Matching) -> BadFile:
    """The two logs are of different things: say how they differ, and what to do."""
    matched = sum(time is not None for time in matching.times_s)
    names = {base(launch.name) for launch in log.launches} & {base(launch.name) for launch in times}
    if names:
        why = f"{len(names):,} kernels have the same name and another grid or other template arguments"
        remedy = "record both with the same model, batch and precision"
    else:
        why = f"{log.file} begins with {_names(log.launches[:1])}, {timed.file} with {_names(times[:1])}"
        remedy = "record the same program with both, and export kernels' names alike (no :mangled, no :base)"
    few = f"only {matched:,} of {len(log.launches):,} kernels of {log.file} are in {timed.file}, too few to join them"
    return BadFile("different-kernels", f"{few}: {why}; {remedy}")


# --- notes ---


def _unused(log: ProfilerLog, timed: ProfilerLog, matching: _Matching) -> list[Note]:
    """Notes on times of the counting log, and on copies of the timing one."""
    notes = []
    pairs = [
        (launch.time_s, time)
        for launch, time in zip(log.launches, matching.times_s, strict=True)
        if launch.time_s is not None and time is not None
    ]
    if pairs:
        own, theirs = (seconds(math.fsum(column)) for column in zip(*pairs, strict=True))
        sums = f"the times that {log.tool} itself took add up to {own} where {timed.file} has {theirs}"
        notes.append(Note("own-times-unused", f"{sums}: they are those of kernels run alone, and are not used"))
    copies = [launch for launch in timed.launches if launch.kind != "kernel"]
    if copies:
        which = f"{_count(copies):,} copies and fills of {timed.file} ({seconds(_sum_s(copies))})"
        notes.append(Note("copies-left-out", f"{which} are left out: counters are of kernels"))
    return notes


def _without_partner(
    log: ProfilerLog, timed: ProfilerLog, times: Sequence[LoggedLaunch], matching: _Matching
) -> list[Note]:
    notes = []
    alone = [launch for launch, time in zip(log.launches, matching.times_s, strict=True) if time is None]
    if alone:
        share = percent(len(alone) / len(log.launches))
        which = f"{len(alone):,} of {len(log.launches):,} kernels of {log.file} ({share})"
        text = f"{which} are not in {timed.file} and have no time: {_names(alone)}"
        notes.append(Note("kernels-without-time", text))
    unused = [launch for place, launch in enumerate(times) if place not in matching.used]
    if unused:
        share = percent(_sum_s(unused) / (_sum_s(times) or math.inf))
        which = f"{_count(unused):,} of {_count(times):,} kernels of {timed.file} ({share} of its kernel time)"
        text = f"{which} were not counted in {log.file} and are left out: {_names(unused)}"
        notes.append(Note("kernels-not-counted", text))
    return notes


def _sum_s(launches: Sequence[LoggedLaunch]) -> float:
    return math.fsum(launch.time_s or 0.0 for launch in launches)


def _count(launches: Sequence[LoggedLaunch]) -> int:
    return sum(launch.calls for launch in launches)


def _names(launches: Sequence[LoggedLaunch]) -> str:
    """`gemm (12), relu (3) and 2 others`."""
    calls: Counter[str] = Counter()
    for launch in launches:
        calls[short_name(launch.name, 60)] += launch.calls
    listed = ", ".join(f"{name} ({count:,})" for name, count in calls.most_common(_NAMED))
    more = len(calls) - _NAMED
    return listed if more <= 0 else f"{listed} and {more:,} other{'s' if more > 1 else ''}"
