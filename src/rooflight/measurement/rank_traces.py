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
from rooflight.measurement.ranks import join
from rooflight.profiles import collectives, kineto, kineto_log, read
from rooflight.profiles.kineto import KinetoTrace
from rooflight.profiles.log_ledger import covered_s, ledger_of

_NAMED = re.compile(r"rank[-_.]?(\d{1,6})", re.IGNORECASE)
_TRACES = (".json", ".json.gz")
_SHOWN = 8
"""As many ranks, or groups of them, does a note name."""
Spans = list[tuple[float, float]]


def read_logs(paths: Sequence[Path], *, device: str | None = None) -> Ledger:
    """Logs as a ledger. A folder stands for the traces in it, one a rank; several traces with ranks are joined."""
    files = [file for path in paths for file in _files(path)]
    if len(files) > 1:
        traces = _traces(files)
        if traces is not None and device is not None:
            raise BadInput(
                "option-not-applicable",
                f"--device {device}: traces of several ranks name their GPUs themselves: leave --device out",
            )
        if traces is not None:
            return _joined(files, traces)
    return read(*files, device=device)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    found = [file for file in path.iterdir() if file.is_file() and file.name.endswith(_TRACES)]
    if not found:
        raise BadFile(
            "no-traces",
            f"{path} is a folder without traces (.json or .json.gz): give a file, or the folder that "
            "the ranks wrote to",
        )
    return sorted(found, key=lambda file: (_rank_in(file) is None, _rank_in(file) or 0, file.name))


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
            raise BadInput(
                "duplicate-rank", f"{file} is of rank {rank}, as another of the traces: give one trace of each rank"
            )
        else:
            traces[rank] = trace
    if unknown and traces:
        raise BadInput(
            "unknown-rank",
            f"{unknown[0]} does not tell its rank, as the others do: name it rankN.json, or leave it out",
        )
    return traces or None


def _rank_in(file: Path) -> int | None:
    found = _NAMED.search(file.name)
    return int(found[1]) if found is not None else None


def _joined(files: Sequence[Path], traces: dict[int, KinetoTrace]) -> Ledger:
    found, alone = collectives.matched({rank: collectives.calls_of(trace) for rank, trace in traces.items()})
    hosts = {trace.host for trace in traces.values()}
    one_clock = len(hosts) == 1 and "" not in hosts
    joint = _on_one_clock(sorted(traces), found, one_clock=one_clock)
    alone += joint.torn
    shifts = _shifts_s(traces, joint.alignment)
    world = max(max(traces) + 1, *(trace.world or 0 for trace in traces.values()))
    name = files[0].parent.name if len({file.parent for file in files}) == 1 else "ranks"
    ledgers = []
    for rank, trace in sorted(traces.items()):
        own = ledger_of(kineto_log.of_trace(trace, name=f"the trace of rank {rank}"), Path(name or "ranks"))
        ledgers.append(_of_rank(own, rank, world, shifts[rank], trace, joint.placed))
    joined = join(ledgers)
    notes = (*_notes(joint, alone, one_clock), *joined.header.notes)
    return msgspec.structs.replace(
        joined,
        header=msgspec.structs.replace(joined.header, notes=notes, rank=min(traces)),
        measurements=(*joined.measurements, *map(_measured, joint.placed)),
    )


@dataclass(frozen=True)
class _Joint:
    """The collectives of all ranks on one clock, and how many could not be put there."""

    alignment: collectives.ClockAlignment
    placed: Sequence[collectives.Collective]
    torn: int
    """Calls that were no part of one collective, as one rank had ended before another came."""
    apart: int
    """Collectives between ranks whose clocks are not aligned."""


def _on_one_clock(ranks: Sequence[int], found: Sequence[collectives.Collective], *, one_clock: bool) -> _Joint:
    """Twice: what turns out to be no one collective has no say in the clocks."""
    alignment = collectives.aligned(ranks, found, one_clock=one_clock)
    whole = [
        item
        for item, moved in zip(found, alignment.applied(found), strict=True)
        if moved.can_be_one or not alignment.holds(item)
    ]
    torn = sum(len(item.parts) for item in found) - sum(len(item.parts) for item in whole)
    alignment = collectives.aligned(ranks, whole, one_clock=one_clock)
    kept = [item for item in whole if alignment.holds(item)]
    return _Joint(alignment, alignment.applied(kept), torn, len(whole) - len(kept))


def _shifts_s(traces: dict[int, KinetoTrace], alignment: collectives.ClockAlignment) -> dict[int, float]:
    """How much later each rank began than the first of those whose clocks are aligned with its own."""
    begins = {rank: _first_ns(trace) - alignment.offsets_ns[rank] for rank, trace in traces.items()}
    firsts = {rank: min(begins[other] for other in group) for group in alignment.groups for rank in group}
    return {rank: (begin - firsts[rank]) / 1e9 for rank, begin in begins.items()}


def _first_ns(trace: KinetoTrace) -> int:
    """When the first thing that is a row began."""
    ops = (item.start_ns for item in trace.ranges if item.cat.lower() in ("cpu_op", "operator") and item.dur >= 0)
    return trace.base_ns + min((work.start_ns for work in trace.work) if trace.work else ops, default=0)


def _of_rank(
    ledger: Ledger, rank: int, world: int, shift_s: float, trace: KinetoTrace, placed: Sequence[collectives.Collective]
) -> Ledger:
    """On the clock of all, with what it did for itself and with others."""
    kernels = tuple(
        kernel
        if kernel.start_s is None
        else msgspec.structs.replace(
            kernel,
            start_s=kernel.start_s + shift_s,
            launch_s=None if kernel.launch_s is None else kernel.launch_s + shift_s,
        )
        for kernel in ledger.kernels
    )
    step = ledger.measurements[0]
    quantities = {**step.quantities, **_shares(rank, trace, placed)}
    return msgspec.structs.replace(
        ledger,
        header=msgspec.structs.replace(ledger.header, rank=rank, world=world),
        kernels=kernels,
        measurements=(msgspec.structs.replace(step, quantities=quantities),),
    )


def _shares(rank: int, trace: KinetoTrace, placed: Sequence[collectives.Collective]) -> dict[str, Value]:
    talking: Spans = [
        ((call.start_ns - trace.base_ns) / 1e9, (call.end_ns - trace.base_ns) / 1e9)
        for call in collectives.calls_of(trace)
    ]
    if not talking:
        return {}
    working: Spans = [
        (work.start_ns / 1e9, (work.start_ns + work.time_ns) / 1e9)
        for work in trace.work
        if not collectives.is_collective(work)
    ] or [
        (item.start_ns / 1e9, (item.start_ns + item.time_ns) / 1e9)
        for item in trace.ranges
        if item.cat.lower() in ("cpu_op", "operator") and item.dur >= 0 and not item.name.startswith("c10d::")
    ]
    computing, communicating = covered_s(working), covered_s(talking)
    origin = "torch profiler, union of intervals"
    return {
        "computing_s": Value(computing, origin),
        "communicating_s": Value(communicating, origin),
        "hidden_s": Value(max(0.0, computing + communicating - covered_s([*working, *talking])), origin),
        "rank_wait_s": Value(_waiting_s(rank, placed), "until the last rank's arrival, union of intervals"),
    }


def _waiting_s(rank: int, placed: Sequence[collectives.Collective]) -> float:
    """In any collective: those of two groups may run side by side."""
    spans = [item.waiting(rank) for item in placed if rank in item.parts]
    first = min((start for start, _ in spans), default=0)  # since 1970 a float has no nanoseconds
    return covered_s([((start - first) / 1e9, (end - first) / 1e9) for start, end in spans])


def _measured(item: collectives.Collective) -> Measurement:
    origin = f"torch profiler, {len(item.parts)} ranks on one clock"
    waiting = sum(item.waiting_ns(rank) for rank in item.parts) / 1e9
    return Measurement(
        scope="collective",
        name=item.name,
        quantities={
            "skew_s": Value(item.skew_ns / 1e9, origin),
            "rank_wait_s": Value(waiting, origin),
            "transfer_s": Value(item.transfer_ns / 1e9, origin),
            "last_rank": Value(item.last_rank, origin),
        },
    )


def _notes(joint: _Joint, alone: int, one_clock: bool) -> list[Note]:
    calls = f"{joint.apart:,} collective{'s' if joint.apart > 1 else ''}"
    apart = (
        [Note("clocks-not-aligned", f"{calls} between ranks whose clocks are not aligned: left out of the skew")]
        if joint.apart
        else []
    )
    if not joint.placed:
        why = "none that all ranks end together" if apart else "no collective in common"
        return [
            Note(
                "clocks-not-aligned",
                f"the traces have {why}: their clocks could not be aligned, nor anything said of skew",
            ),
            *apart,
        ]
    alignment = joint.alignment
    within = f"the ends of {alignment.used:,} collectives differ by {seconds(alignment.spread_ns / 1e9)} in the median"
    how = (
        "all ranks ran on one machine and have one clock"
        if one_clock
        else "ranks' clocks were aligned by the ends of collectives"
    )
    notes = [Note("clocks-aligned", f"{how}: {within}; a skew below that says nothing")]
    if len(alignment.groups) > 1:
        notes.append(
            Note(
                "several-clocks",
                f"{_some([_numbers(group) for group in alignment.groups], ' and ')} have no collective with each "
                "other: each of these has a clock of its own, which begins with its first kernel",
            )
        )
    notes += apart
    if alone:
        notes.append(
            Note(
                "unmatched-collectives",
                f"{alone:,} calls of collectives have no partner in another trace, and are left out of the skew",
            )
        )
    return notes


def _numbers(ranks: frozenset[int]) -> str:
    """`ranks 0, 1`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {_some([str(rank) for rank in sorted(ranks)], ', ')}"


def _some(texts: Sequence[str], between: str) -> str:
    shown = texts if len(texts) <= _SHOWN else [*texts[: _SHOWN - 1], f"{len(texts) - _SHOWN + 1:,} more"]
    return between.join(shown)
