"""From a log to a ledger: kernels, one measurement over all of them, and a header that says what is not known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from rooflight._version import __version__
from rooflight.formatting import count, seconds, whole_bytes
from rooflight.ledger import FORMAT_VERSION, Header, Kernel, Ledger, Measurement, Note, Value
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, QUANTITIES, TENSOR_FLOPS
from rooflight.ops.kernel_names import tile
from rooflight.profiles.log import COPIED, LoggedLaunch, ProfilerLog
from rooflight.profiles.log_quantities import missing, quantities

_ENDINGS = (".gz", ".csv", ".json", ".txt", ".log", ".ncu-rep", ".sqlite", ".out", ".trace", ".pt")
_SUMMED = ("flop_count_sp", "flop_count_dp", "flop_count_hp", "dram_read_bytes", "dram_write_bytes", COPIED)
"""Sums over launches that are neither ours nor named as sums."""


def ledger_of(log: ProfilerLog, path: Path) -> Ledger:
    """The ledger of an imported log. Few tell what ops were called with, and none which model ran."""
    launches = _in_time(log.launches)
    source = f"{log.tool} ({log.file})" if log.times_of else log.tool
    kernels = tuple(_kernel(source, launch) for launch in launches)
    totals, incomplete = _totals(kernels)
    capability = (log.capability or "").replace(".", "")
    header = Header(
        rooflight=__version__,
        torch=None,
        model=_stem(path),
        step=None,
        target=f"{log.target}:{capability}" if capability else log.target,
        batch=None,
        dtype=None,
        math=None,
        traced_on="import",
        device=log.device,
        cuda=log.cuda,
        conditions={"log": log.about},
        notes=(*log.unmatched, *missing(log), *incomplete, *_points(log, kernels), *log.notes),
    )
    quantities = {**totals, **_times(log, launches), **log.totals}
    step = Measurement(scope="step", quantities=quantities)
    return Ledger(
        format_version=FORMAT_VERSION,
        header=header,
        storages=log.storages,
        ops=log.ops,
        kernels=kernels,
        measurements=(step,),
        host_calls=log.host_calls,
    )


def _points(log: ProfilerLog, kernels: Sequence[Kernel]) -> list[Note]:
    """Where the times are of another log that lacks some kernels: what is known of those that have one."""
    timed = [kernel for kernel in kernels if kernel.time_s is not None]
    if not log.times_of or len(timed) == len(kernels):
        return []
    flops, moved = (
        [kernel.quantities[name].value for kernel in timed for name in names if name in kernel.quantities]
        for names in ((*TENSOR_FLOPS, *CUDA_FLOPS), DRAM_BYTES)
    )
    took = math.fsum(kernel.time_s or 0.0 for kernel in timed)
    # What no kernel has is unknown, and not 0.
    parts = [f"{count(sum(flops))} FLOPs"] if flops else []
    parts += [f"{whole_bytes(sum(moved))} of DRAM traffic"] if moved else []
    parts += [seconds(took)] + ([f"{count(sum(flops) / took)}FLOP/s"] if flops and took else [])
    which = f"the {len(timed):,} kernel{'s' if len(timed) != 1 else ''} with a time"
    return [Note("kernels-with-a-time", f"{which}: {', '.join(parts)}")]


def _stem(path: Path) -> str:
    name = path.name
    while (shorter := next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)) not in ("", name):
        name = shorter
    return name


def _in_time(launches: Sequence[LoggedLaunch]) -> list[LoggedLaunch]:
    """In the order they ran, where the log tells when that was."""
    if any(launch.start_s is None for launch in launches):
        return list(launches)
    return sorted(launches, key=lambda launch: launch.start_s or 0.0)


def _kernel(source: str, launch: LoggedLaunch) -> Kernel:
    fields = {name: value for name, value in vars(launch).items() if name != "metrics"}
    shape = tile(launch.name) if launch.kind == "kernel" else None
    return Kernel(**fields, tile=shape, quantities=quantities(source, launch.metrics))


def _totals(kernels: Sequence[Kernel]) -> tuple[dict[str, Value], list[Note]]:
    """Sums over the kernels that have a value, and notes on those that have none."""
    having: dict[str, list[Value]] = {}
    for kernel in kernels:
        for name, value in kernel.quantities.items():
            if _adds_up(name):
                having.setdefault(name, []).append(value)
    computing = sum(kernel.kind == "kernel" for kernel in kernels)
    totals = {}
    notes = []
    for name, values in having.items():
        lacking = 0 if name == COPIED else computing - len(values)
        every = f"{computing:,} kernel{'' if computing == 1 else 's'}"
        which = f"{len(values):,} of {every}" if lacking else every
        which = f"{len(values):,} copies and fills" if name == COPIED else which
        total = sum(value.value for value in values)
        totals[name] = Value(total, f"{values[0].origin}, sum over {which}")
        if lacking and name in QUANTITIES:
            text = f"{name} has no value for {lacking:,} of {computing:,} kernels: its total lacks them"
            notes.append(Note("incomplete-total", text))
    return totals, notes


def _adds_up(name: str) -> bool:
    quantity = QUANTITIES.get(name)
    return quantity.additive if quantity is not None else name.endswith(".sum") or name in _SUMMED


def _times(log: ProfilerLog, launches: Sequence[LoggedLaunch]) -> dict[str, Value]:
    if log.target == "cpu":
        took = math.fsum(launch.time_s or 0.0 for launch in launches)
        return {"host_time_s": Value(took, f"{log.time_origin}, sum over {len(launches):,} calls on all threads")}
    kernels = sum(launch.calls for launch in launches if launch.kind == "kernel")
    totals = {"kernels": Value(kernels, f"launches in the {log.tool} log")}
    times = [launch.time_s for launch in launches if launch.time_s is not None]
    if len(times) == len(launches):
        launched = sum(launch.calls for launch in launches)
        totals["kernel_time_s"] = Value(math.fsum(times), f"{log.time_origin}, sum over {launched:,} launches")
    spans = [
        (launch.start_s, launch.start_s + launch.time_s)
        for launch in launches
        if launch.start_s is not None and launch.time_s is not None
    ]
    if len(spans) == len(launches):
        totals["gpu_busy_s"] = Value(covered_s(spans), f"{log.time_origin}, union of the launches' intervals")
    return totals


def covered_s(spans: Iterable[tuple[float, float]]) -> float:
    """Seconds in which at least one of the intervals (start, end) ran."""
    covered, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
