"""From a log to a ledger: kernels, one measurement over all of them, and a header that says what is not known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rooflight._version import __version__
from rooflight.counting.tiles import tile
from rooflight.importing.counted import missing, quantities
from rooflight.importing.log import Launch, Log
from rooflight.ledger import FORMAT_VERSION, Header, Kernel, Ledger, Measurement, Value
from rooflight.metrics import QUANTITIES

_ENDINGS = (".gz", ".csv", ".json", ".txt", ".log", ".ncu-rep", ".out", ".trace", ".pt")
_COPIED = "copied_bytes"
_COUNTS = ("flop_count_sp", "flop_count_dp", "flop_count_hp", "dram_read_bytes", "dram_write_bytes", _COPIED)
"""Sums over launches that are neither ours nor named as sums."""


def ledger_of(log: Log, path: Path) -> Ledger:
    """The ledger of an imported log. No op is in it: a log from elsewhere does not tell which model ran."""
    launches = _in_time(log.launches)
    kernels = tuple(_kernel(log.tool, launch) for launch in launches)
    totals, incomplete = _totals(kernels)
    capability = (log.capability or "").replace(".", "")
    header = Header(
        rooflight=__version__,
        torch=log.torch,
        model=_stem(path),
        step=None,
        target=f"cuda:{capability}" if capability else "cuda",
        batch=None,
        dtype=None,
        math=None,
        traced_on="import",
        device=log.device,
        cuda=log.cuda,
        driver=log.driver,
        conditions={"log": log.about},
        notes=(*missing(log), *incomplete, *log.notes),
    )
    whole = {**totals, **_times(log, launches), **log.totals}
    step = Measurement(scope="step", quantities=whole)
    return Ledger(format_version=FORMAT_VERSION, header=header, kernels=kernels, measurements=(step,))


def _stem(path: Path) -> str:
    name = path.name
    while (shorter := next((name.removesuffix(end) for end in _ENDINGS if name.endswith(end)), name)) not in ("", name):
        name = shorter
    return name


def _in_time(launches: Sequence[Launch]) -> list[Launch]:
    """In the order they ran, where the log tells when that was."""
    if any(launch.start_s is None for launch in launches):
        return list(launches)
    return sorted(launches, key=lambda launch: launch.start_s or 0.0)


def _kernel(tool: str, launch: Launch) -> Kernel:
    return Kernel(
        name=launch.name,
        kind=launch.kind,
        grid=launch.grid,
        block=launch.block,
        tile=tile(launch.name) if launch.kind == "kernel" else None,
        stream=launch.stream,
        start_s=launch.start_s,
        time_s=launch.time_s,
        label=launch.label,
        quantities=quantities(tool, launch.metrics),
    )


def _totals(kernels: Sequence[Kernel]) -> tuple[dict[str, Value], list[str]]:
    """Sums over the kernels that have a value, and notes on those that have none."""
    sums: dict[str, int | float] = {}
    having: dict[str, int] = {}
    origins: dict[str, str] = {}
    for kernel in kernels:
        for name, value in kernel.quantities.items():
            if _adds_up(name):
                sums[name] = sums.get(name, 0) + value.value
                having[name] = having.get(name, 0) + 1
                origins.setdefault(name, value.origin)
    computing = sum(kernel.kind == "kernel" for kernel in kernels)
    totals = {}
    notes = []
    for name, total in sums.items():
        count = having[name]
        missing_from = 0 if name == _COPIED else computing - count
        totals[name] = Value(total, f"{origins[name]}, sum over {_how_many(name, count, computing)}")
        if missing_from and name in QUANTITIES:
            notes.append(f"{name} has no value for {missing_from:,} of {computing:,} kernels: its total lacks them")
    return totals, notes


def _how_many(name: str, count: int, computing: int) -> str:
    if name == _COPIED:
        return f"{count:,} copies and fills"
    return (
        f"{count:,} kernel{'s' if count != 1 else ''}" if count == computing else f"{count:,} of {computing:,} kernels"
    )


def _adds_up(name: str) -> bool:
    known = QUANTITIES.get(name)
    return known.additive if known is not None else name.endswith(".sum") or name in _COUNTS


def _times(log: Log, launches: Sequence[Launch]) -> dict[str, Value]:
    found = {"kernels": Value(sum(launch.kind == "kernel" for launch in launches), f"launches in the {log.tool} log")}
    times = [launch.time_s for launch in launches if launch.time_s is not None]
    if len(times) == len(launches):
        found["kernel_time_s"] = Value(math.fsum(times), f"{log.time_origin}, sum over {len(times):,} launches")
    spans = [
        (launch.start_s, launch.start_s + launch.time_s)
        for launch in launches
        if launch.start_s is not None and launch.time_s is not None
    ]
    if len(spans) == len(launches):
        found["gpu_busy_s"] = Value(_union(spans), f"{log.time_origin}, union of the launches' intervals")
    return found


def _union(spans: Sequence[tuple[float, float]]) -> float:
    """Time covered by at least one of the intervals."""
    covered, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        covered += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return covered
