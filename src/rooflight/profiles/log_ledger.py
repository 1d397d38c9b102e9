"""From a log to a ledger: kernels, their FLOPs and bytes out of the profiler's own metrics, one measurement over all
of them, and a header that says what is not known.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path

from rooflight._version import __version__
from rooflight.formatting import count, seconds, whole_bytes
from rooflight.hardware.counter_tables import (
    CHIPS_BY_CAPABILITY,
    Counter,
    byte_counters,
    cuda_core_counters,
    flop_count_sp,
    no_table,
    tensor_counters,
    to_quantities,
)
from rooflight.ledger import FORMAT_VERSION, Header, Kernel, Ledger, Measurement, Value
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, QUANTITIES, TENSOR_FLOPS
from rooflight.ops.kernel_names import tile
from rooflight.profiles.log import COPIED, LoggedLaunch, MetricReading, ProfilerLog

_ENDINGS = (".gz", ".csv", ".json", ".txt", ".log", ".ncu-rep", ".out", ".trace", ".pt")
_SUMMED = ("flop_count_sp", "flop_count_dp", "flop_count_hp", "dram_read_bytes", "dram_write_bytes", COPIED)
"""Sums over launches that are neither ours nor named as sums."""


def ledger_of(log: ProfilerLog, path: Path) -> Ledger:
    """The ledger of an imported log. No op is in it: a log from elsewhere does not tell which model ran."""
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
        target=f"cuda:{capability}" if capability else "cuda",
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
    return Ledger(format_version=FORMAT_VERSION, header=header, kernels=kernels, measurements=(step,))


def _points(log: ProfilerLog, kernels: Sequence[Kernel]) -> list[str]:
    """Where the times are of another log that lacks some kernels: what is known of those that have one."""
    timed = [kernel for kernel in kernels if kernel.time_s is not None]
    if not log.times_of or len(timed) == len(kernels):
        return []
    values = [{name: value.value for name, value in kernel.quantities.items()} for kernel in timed]
    flops, moved = (
        [each[name] for each in values for name in names if name in each]
        for names in ((*TENSOR_FLOPS, *CUDA_FLOPS), DRAM_BYTES)
    )
    took = math.fsum(kernel.time_s or 0.0 for kernel in timed)
    # What no kernel has is unknown, and not 0.
    said = [f"{count(sum(flops))} FLOPs"] if flops else []
    said += [f"{whole_bytes(sum(moved))} of DRAM traffic"] if moved else []
    said += [seconds(took)] + ([f"{count(sum(flops) / took)}FLOP/s"] if flops and took else [])
    return [f"the {len(timed):,} kernel{'s' if len(timed) != 1 else ''} with a time: {', '.join(said)}"]


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
        missing_from = 0 if name == COPIED else computing - having[name]
        totals[name] = Value(total, f"{origins[name]}, sum over {_how_many(name, having[name], computing)}")
        if missing_from and name in QUANTITIES:
            notes.append(f"{name} has no value for {missing_from:,} of {computing:,} kernels: its total lacks them")
    return totals, notes


def _how_many(name: str, having: int, computing: int) -> str:
    if name == COPIED:
        return f"{having:,} copies and fills"
    if having == computing:
        return f"{having:,} kernel{'s' if having != 1 else ''}"
    return f"{having:,} of {computing:,} kernels"


def _adds_up(name: str) -> bool:
    quantity = QUANTITIES.get(name)
    return quantity.additive if quantity is not None else name.endswith(".sum") or name in _SUMMED


def _times(log: ProfilerLog, launches: Sequence[LoggedLaunch]) -> dict[str, Value]:
    totals = {"kernels": Value(sum(launch.kind == "kernel" for launch in launches), f"launches in the {log.tool} log")}
    times = [launch.time_s for launch in launches if launch.time_s is not None]
    if len(times) == len(launches):
        totals["kernel_time_s"] = Value(math.fsum(times), f"{log.time_origin}, sum over {len(times):,} launches")
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


# --- quantities out of a profiler's metrics ---

_BYTES = byte_counters(("dram", "l2", "l1"))
_TENSOR = re.compile(r"sm__ops_path_tensor_src_\w+\.sum")
_SPARSITY = re.compile(r"(?P<family>sm__ops_path_tensor_src_\w+)_sparsity_(on|off)\.sum")
# Counted per SM or per quarter of one, the sum is the same; newer chips spell the direction differently.
_SAME = (
    (re.compile(r"sm__(sass_thread_inst_executed_op_\w+_pred_on\.sum)"), r"smsp__\1"),
    (re.compile(r"dram__bytes_op_(read|write)\.sum"), r"dram__bytes_\1.sum"),
)
# nvprof's own metrics: its flop counts are add + multiply + 2 x multiply-add, as ours are.
_NVPROF = {
    "flop_count_sp": "cuda_flops_fp32",
    "flop_count_dp": "cuda_flops_fp64",
    "flop_count_hp": "cuda_flops_fp16",
    "dram_read_bytes": "dram_bytes_read",
    "dram_write_bytes": "dram_bytes_written",
}
FLOP_COUNT_SP = "flop_count_sp"


def quantities(source: str, metrics: Mapping[str, MetricReading]) -> dict[str, Value]:
    """What one launch did, under the names of `rooflight.metrics`; every metric also stays under its own name.

    `source`: the profiler, and the file where several were joined."""
    counted = _by_known_names(metrics)
    values = {name: reading.value for name, reading in counted.items()}
    result: dict[str, Value] = {}
    flops = to_quantities(values, _flop_counters(frozenset(values)), source=source)
    result.update({name: value for name, value in flops.items() if name not in counted})
    for counter in _BYTES:  # not by `to_quantities`: the floor of a range does not hold for a kernel on its own
        if counter.metric in counted:
            result[counter.quantity] = _value(
                counted[counter.metric], f"{source}: {counter.metric.removesuffix('.sum')}"
            )
    for name, quantity in _NVPROF.items():
        if name in metrics and quantity not in result:
            result[quantity] = _value(metrics[name], f"{source}: {name}")
    if FLOP_COUNT_SP not in metrics and (count := flop_count_sp(values)) is not None:
        result[FLOP_COUNT_SP] = Value(count, f"{source}: fadd + fmul + 2 x ffma, as nvprof's metric of this name")
    for name, reading in metrics.items():
        result[name] = _value(reading, f"{source}, in {reading.unit}" if reading.unit else source)
    return result


def missing(log: ProfilerLog) -> list[str]:
    """What a reader of the sums must know was never counted."""
    seen = {name for launch in log.launches for name in _by_known_names(launch.metrics)}
    if log.tool == "nvprof":
        return ["nvprof does not count the tensor cores: what ran there is missing from every FLOP count"]
    if not log.counts and log.tool != "ncu":
        return ["the log has times and no counters: FLOPs and bytes are unknown (ncu counts them)"]
    return [
        *_no_table(log.capability),
        *_missing_tensor(seen, log.capability),
        *_missing_cuda(seen, log.capability),
        *_missing_bytes(seen, own_times=not log.times_of),
    ]


def _no_table(capability: str | None) -> list[str]:
    if capability is None or capability in CHIPS_BY_CAPABILITY or _has_no_tensor_cores(capability):
        return []
    return [f"{no_table(capability)}: which tensor counters the log leaves out is not known"]


def _has_no_tensor_cores(capability: str | None) -> bool:
    """Pascal and older."""
    return re.fullmatch(r"[1-6]\.\d", capability or "") is not None


def _missing_tensor(seen: Collection[str], capability: str | None) -> list[str]:
    counted = {name for name in seen if _TENSOR.fullmatch(name)}
    chip = CHIPS_BY_CAPABILITY.get(capability or "")
    families = tensor_counters(chip) if chip is not None else ()
    if _has_no_tensor_cores(capability):
        return []
    if not counted:
        return [
            "the tensor cores were not counted: what ran there is missing from every FLOP count; "
            "profile again with sm__ops_path_tensor_src_* metrics (ncu --query-metrics lists them)"
        ]
    left = [counter.metric for counter in families if counter.metric not in counted]
    if not left:
        return []
    names = ", ".join(re.sub(r"sm__ops_path_tensor_src_(\w+)\.sum", r"\1", name) for name in left)
    return [f"the log counts no tensor-core work on {names}: what ran there is missing from every FLOP count"]


def _missing_cuda(seen: Collection[str], capability: str | None) -> list[str]:
    notes = []
    chip = CHIPS_BY_CAPABILITY.get(capability or "", "GH100")
    kinds: dict[str, list[str]] = {}
    for counter in cuda_core_counters(chip):
        kinds.setdefault(counter.quantity, []).append(counter.metric)
    never = []
    for quantity, members in kinds.items():
        left = [metric for metric in members if metric not in seen]
        if len(left) == len(members):
            never.append(quantity.removeprefix("cuda_flops_"))
        elif left:
            notes.append(f"{quantity} is incomplete: {', '.join(left)} not in the log")
    if never:
        counters = "smsp__sass_thread_inst_executed_op_{f,h,d}{add,mul,fma}_pred_on.sum"
        notes.append(f"the CUDA cores' work in {', '.join(never)} was not counted ({counters})")
    return notes


def _missing_bytes(seen: Collection[str], *, own_times: bool) -> list[str]:
    if {"dram__bytes_read.sum", "dram__bytes_write.sum"} <= set(seen):
        what = "DRAM bytes and times" if own_times else "DRAM bytes"
        return [f"kernels were run one by one, again and again: {what} are not those of a running model"]
    return ["DRAM bytes were not counted both ways (dram__bytes_read.sum, dram__bytes_write.sum)"]


@cache
def _flop_counters(names: frozenset[str]) -> tuple[Counter, ...]:
    """The FLOP counters among these names. What every chip calls alike is worth alike."""
    tensor = {counter.metric: counter for chip in CHIPS_BY_CAPABILITY.values() for counter in tensor_counters(chip)}
    cuda = {counter.metric: counter for chip in CHIPS_BY_CAPABILITY.values() for counter in cuda_core_counters(chip)}
    # The paired instructions of some chips are added where they were counted; the others are needed all three.
    needed = [counter for counter in cuda.values() if counter.metric in names or not _is_paired(counter)]
    return (*(counter for metric, counter in tensor.items() if metric in names), *needed)


def _is_paired(counter: Counter) -> bool:
    return re.search(r"(add|mul|fma)2_pred", counter.metric) is not None


def _by_known_names(metrics: Mapping[str, MetricReading]) -> dict[str, MetricReading]:
    """Add the name we know to counters that have another, and to tensor work of which only the two parts, with and
    without sparsity, were counted."""
    result = dict(metrics)
    for name, reading in metrics.items():
        for pattern, usual_name in _SAME:
            if pattern.fullmatch(name):
                result.setdefault(pattern.sub(usual_name, name), reading)
        if (sparse := _SPARSITY.fullmatch(name)) is not None:
            parts = [metrics.get(f"{sparse['family']}_sparsity_{side}.sum") for side in ("on", "off")]
            counts = [part.value for part in parts if part is not None]
            if len(counts) == 2:
                result.setdefault(f"{sparse['family']}.sum", MetricReading(sum(counts), reading.unit))
    return result


def _value(reading: MetricReading, origin: str) -> Value:
    return Value(reading.value, origin, reading.low, reading.high)
