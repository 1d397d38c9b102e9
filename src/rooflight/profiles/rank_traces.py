"""Traces of PyTorch's profiler of several ranks, as one ledger: each rank's work, and the collectives between them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rooflight.errors import BadFile, BadInput
from rooflight.files import read_bytes
from rooflight.formatting import seconds
from rooflight.ledger import Ledger, Measurement, Note, Value
from rooflight.profiles import collectives, kineto, kineto_log, read
from rooflight.profiles.collectives import ClockAlignment, Collective, CollectiveCall
from rooflight.profiles.joined_ranks import join
from rooflight.profiles.kineto import OPS, DeviceWork, HostRange, KinetoTrace
from rooflight.profiles.log_ledger import covered_s, ledger_of

_NAMED = re.compile(r"rank[-_.]?(\d{1,6})", re.IGNORECASE)
_SHOWN = 8
"""As many ranks, or groups of them, does a note name."""


def read_logs(paths: Sequence[Path], *, device: str | None = None) -> Ledger:
    """Return logs as a ledger. A folder stands for the traces in it, one a rank; traces with ranks are joined."""
    files = [file for path in paths for file in _files(path)]
    traces = _traces(files) if len(files) > 1 else None
    if traces is None:
        return read(*files, device=device)
    if device is not None:
        why = "traces of several ranks name their GPUs themselves: leave --device out"
        raise BadInput("option-not-applicable", f"--device {device}: {why}")
    return _joined(files, traces)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    traces = [file for file in path.iterdir() if file.is_file() and file.name.endswith((".json", ".json.gz"))]
    if not traces:
        remedy = "give a file, or the folder that the ranks wrote to"
        raise BadFile("no-traces", f"{path} is a folder without traces (.json or .json.gz): {remedy}")
    return sorted(traces, key=lambda file: (_rank_in(file) is None, _rank_in(file) or 0, file.name))


def _rank_in(file: Path) -> int | None:
    match = _NAMED.search(file.name)
    return int(match[1]) if match is not None else None


def _traces(files: Sequence[Path]) -> dict[int, KinetoTrace] | None:
    """By rank; `None` where some file is no trace, or none knows its rank: then they are logs of one program."""
    traces: dict[int, KinetoTrace] = {}
    unknown: list[Path] = []
    for file in files:
        content = read_bytes(file, what="trace")
        if content.lstrip()[:1] not in (b"{", b"["):
            return None
        trace = kineto.decode(content, name=str(file))
        rank = trace.rank if trace.rank is not None else _rank_in(file)
        if rank is None:
            unknown.append(file)
        elif rank in traces:
            twice = f"{file} is of rank {rank}, as another of the traces: give one trace of each rank"
            raise BadInput("duplicate-rank", twice)
        else:
            traces[rank] = trace
    if unknown and traces:
        remedy = "name it rankN.json, or leave it out"
        raise BadInput("unknown-rank", f"{unknown[0]} does not tell its rank, as the others do: {remedy}")
    return traces or None


@dataclass(frozen=True)
class _Joint:
    """The collectives of all ranks on one clock, and how many could not be put there."""

    alignment: ClockAlignment
    placed: Sequence[Collective]
    alone: int
    """Calls that were no part of one collective, as one rank had ended before another came, or had no partner."""
    apart: int
    """Collectives between ranks whose clocks are not aligned."""
    one_clock: bool


def _joint(traces: dict[int, KinetoTrace], calls: dict[int, list[CollectiveCall]]) -> _Joint:
    """Clocks are aligned twice: what turns out to be no one collective has no say in them."""
    pairs, alone = collectives.matched(calls)
    hosts = {trace.host for trace in traces.values()}
    one_clock = len(hosts) == 1 and "" not in hosts
    ranks = sorted(traces)
    alignment = collectives.aligned(ranks, pairs, one_clock=one_clock)
    single = [item for item in pairs if alignment.applied(item).can_be_one or not alignment.holds(item)]
    alone += sum(len(item.parts) for item in pairs) - sum(len(item.parts) for item in single)
    alignment = collectives.aligned(ranks, single, one_clock=one_clock)
    placed = [alignment.applied(item) for item in single if alignment.holds(item)]
    return _Joint(alignment, placed, alone, len(single) - len(placed), one_clock)


def _joined(files: Sequence[Path], traces: dict[int, KinetoTrace]) -> Ledger:
    calls = {rank: collectives.calls_of(trace) for rank, trace in traces.items()}
    joint = _joint(traces, calls)
    # How much later each rank began than the first of those whose clocks are aligned with its own.
    begins = {rank: _first_ns(trace) - joint.alignment.offsets_ns[rank] for rank, trace in traces.items()}
    firsts = {rank: min(begins[other] for other in group) for group in joint.alignment.groups for rank in group}
    world = max(max(traces) + 1, *(trace.world or 0 for trace in traces.values()))
    name = files[0].parent.name if len({file.parent for file in files}) == 1 else "ranks"
    ledgers = []
    for rank, trace in sorted(traces.items()):
        own = ledger_of(kineto_log.of_trace(trace, name=f"the trace of rank {rank}"), Path(name or "ranks"))
        shares = _shares(rank, trace, calls[rank], joint.placed)
        ledgers.append(_of_rank(own, rank, world, (begins[rank] - firsts[rank]) / 1e9, shares))
    joined = join(ledgers)
    notes = (*_notes(joint), *joined.header.notes)
    return msgspec.structs.replace(
        joined,
        header=msgspec.structs.replace(joined.header, notes=notes, rank=min(traces)),
        measurements=(*joined.measurements, *map(_measured, joint.placed)),
    )


def _first_ns(trace: KinetoTrace) -> int:
    """When the first thing that is a row began."""
    ops = (item.start_ns for item in trace.ranges if item.cat.lower() in OPS and item.dur >= 0)
    return trace.base_ns + min((work.start_ns for work in trace.work) if trace.work else ops, default=0)


def _of_rank(ledger: Ledger, rank: int, world: int, shift_s: float, shares: dict[str, Value]) -> Ledger:
    """The ledger of a rank on the clock of all, with what it did for itself and with others."""

    def moved(moment_s: float | None) -> float | None:
        return None if moment_s is None else moment_s + shift_s

    (step,) = ledger.measurements
    return msgspec.structs.replace(
        ledger,
        header=msgspec.structs.replace(ledger.header, rank=rank, world=world),
        kernels=tuple(
            msgspec.structs.replace(kernel, start_s=moved(kernel.start_s), launch_s=moved(kernel.launch_s))
            for kernel in ledger.kernels
        ),
        measurements=(msgspec.structs.replace(step, quantities=step.quantities | shares),),
    )


def _shares(
    rank: int, trace: KinetoTrace, calls: Sequence[CollectiveCall], placed: Sequence[Collective]
) -> dict[str, Value]:
    if not calls:
        return {}
    talking = [((call.start_ns - trace.base_ns) / 1e9, (call.end_ns - trace.base_ns) / 1e9) for call in calls]
    working: list[DeviceWork | HostRange] = [work for work in trace.work if not collectives.is_collective(work)]
    if not working:
        rows = (item for item in trace.ranges if item.cat.lower() in OPS and item.dur >= 0)
        working = [item for item in rows if not item.name.startswith("c10d::")]
    own = [(item.start_ns / 1e9, (item.start_ns + item.time_ns) / 1e9) for item in working]
    # In any collective: those of two groups may run side by side.
    waits = [item.waiting(rank) for item in placed if rank in item.parts]
    first = min((start for start, _ in waits), default=0)  # since 1970 a float has no nanoseconds
    waiting = covered_s([((start - first) / 1e9, (end - first) / 1e9) for start, end in waits])
    computing, communicating = covered_s(own), covered_s(talking)
    origin = "torch profiler, union of intervals"
    return {
        "computing_s": Value(computing, origin),
        "communicating_s": Value(communicating, origin),
        "hidden_s": Value(max(0.0, computing + communicating - covered_s([*own, *talking])), origin),
        "rank_wait_s": Value(waiting, "until the last rank's arrival, union of intervals"),
    }


def _measured(item: Collective) -> Measurement:
    waiting = sum(end - start for start, end in map(item.waiting, item.parts)) / 1e9
    values = {
        "skew_s": item.skew_ns / 1e9,
        "rank_wait_s": waiting,
        "transfer_s": item.transfer_ns / 1e9,
        "last_rank": item.last_rank,
    }
    origin = f"torch profiler, {len(item.parts)} ranks on one clock"
    quantities = {name: Value(value, origin) for name, value in values.items()}
    return Measurement(scope="collective", name=item.name, quantities=quantities)


def _notes(joint: _Joint) -> list[Note]:
    calls = f"{joint.apart:,} collective{'s' if joint.apart > 1 else ''}"
    left_out = f"{calls} between ranks whose clocks are not aligned: left out of the skew"
    apart = [Note("clocks-not-aligned", left_out)] if joint.apart else []
    if not joint.placed:
        why = "none that all ranks end together" if apart else "no collective in common"
        text = f"the traces have {why}: their clocks could not be aligned, nor anything said of skew"
        return [Note("clocks-not-aligned", text), *apart]
    alignment = joint.alignment
    spread = f"the ends of {alignment.used:,} collectives differ by {seconds(alignment.spread_ns / 1e9)} in the median"
    how = (
        "all ranks ran on one machine and have one clock"
        if joint.one_clock
        else "ranks' clocks were aligned by the ends of collectives"
    )
    notes = [Note("clocks-aligned", f"{how}: {spread}; a skew below that says nothing")]
    if len(alignment.groups) > 1:
        groups = [f"rank{'s' if len(own) > 1 else ''} {_some(sorted(own), ', ')}" for own in alignment.groups]
        meaning = "each of these has a clock of its own, which begins with its first kernel"
        text = f"{_some(groups, ' and ')} have no collective with each other: {meaning}"
        notes.append(Note("several-clocks", text))
    if joint.alone:
        text = f"{joint.alone:,} calls of collectives have no partner in another trace, and are left out of the skew"
        apart.append(Note("unmatched-collectives", text))
    return [*notes, *apart]


def _some(items: Sequence[object], between: str) -> str:
    shown = items if len(items) <= _SHOWN else [*items[: _SHOWN - 1], f"{len(items) - _SHOWN + 1:,} more"]
    return between.join(map(str, shown))
