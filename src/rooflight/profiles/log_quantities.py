"""FLOPs and bytes of a launch, out of a profiler's own metrics; and what was never counted."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import cache

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
from rooflight.ledger import Note, Value
from rooflight.profiles.log import MetricReading, ProfilerLog

_BYTES = byte_counters(("dram", "l2", "l1"))
_TENSOR = re.compile(r"sm__ops_path_tensor_src_\w+\.sum")
_SPARSITY = re.compile(r"(?P<family>sm__ops_path_tensor_src_\w+)_sparsity_on\.sum")
# Counted per SM or per quarter of one, the sum is the same; newer chips spell the direction differently.
_SAME = (
    (re.compile(r"sm__(sass_thread_inst_executed_op_\w+_pred_on\.sum)"), r"smsp__\1"),
    (re.compile(r"dram__bytes_op_(read|write)\.sum"), r"dram__bytes_\1.sum"),
)
_OTHER_TOOLS: dict[str, tuple[str, int]] = {
    # nvprof's flop counts are add + multiply + 2 x multiply-add, as ours are.
    "flop_count_sp": ("cuda_flops_fp32", 1),
    "flop_count_dp": ("cuda_flops_fp64", 1),
    "flop_count_hp": ("cuda_flops_fp16", 1),
    "dram_read_bytes": ("dram_bytes_read", 1),
    "dram_write_bytes": ("dram_bytes_written", 1),
    # rocprof has bytes in KiB, and matrix operations in units of 512 FLOPs.
    "FETCH_SIZE": ("dram_bytes_read", 1024),
    "FetchSize": ("dram_bytes_read", 1024),
    "WRITE_SIZE": ("dram_bytes_written", 1024),
    "WriteSize": ("dram_bytes_written", 1024),
    "SQ_INSTS_VALU_MFMA_MOPS_F16": ("tensor_flops_fp16", 512),
    "SQ_INSTS_VALU_MFMA_MOPS_BF16": ("tensor_flops_bf16", 512),
    "SQ_INSTS_VALU_MFMA_MOPS_F64": ("tensor_flops_fp64", 512),
}
"""Our quantity, and how many one of the profiler's are."""
FLOP_COUNT_SP = "flop_count_sp"


def quantities(source: str, metrics: Mapping[str, MetricReading]) -> dict[str, Value]:
    """Return what one launch did, under the names of `rooflight.metrics`; every metric also stays under its own name.

    `source`: the profiler, and the file where several were joined."""
    counted = _by_known_names(metrics)
    values = {name: reading.value for name, reading in counted.items()}
    flops = to_quantities(values, _flop_counters(frozenset(values)), source=source)
    result = {name: value for name, value in flops.items() if name not in counted}
    for counter in _BYTES:  # not by `to_quantities`: the floor of a range does not hold for a kernel on its own
        if counter.metric in counted:
            origin = f"{source}: {counter.metric.removesuffix('.sum')}"
            result[counter.quantity] = _value(counted[counter.metric], origin)
    for name, (quantity, factor) in _OTHER_TOOLS.items():
        if name in metrics and quantity not in result and factor == 1:
            result[quantity] = _value(metrics[name], f"{source}: {name}")
        elif name in metrics and quantity not in result:
            result[quantity] = Value(metrics[name].value * factor, f"{source}: {name} x {factor:,}")
    if FLOP_COUNT_SP not in metrics and (count := flop_count_sp(values)) is not None:
        result[FLOP_COUNT_SP] = Value(count, f"{source}: fadd + fmul + 2 x ffma, as nvprof's metric of this name")
    for name, reading in metrics.items():
        result[name] = _value(reading, f"{source}, in {reading.unit}" if reading.unit else source)
    return result


def _value(reading: MetricReading, origin: str) -> Value:
    return Value(reading.value, origin, reading.low, reading.high)


@cache
def _flop_counters(names: frozenset[str]) -> tuple[Counter, ...]:
    """The FLOP counters among these names. What every chip calls alike is worth alike."""
    tensor = {counter.metric: counter for chip in CHIPS_BY_CAPABILITY.values() for counter in tensor_counters(chip)}
    cuda = {counter.metric: counter for chip in CHIPS_BY_CAPABILITY.values() for counter in cuda_core_counters(chip)}
    # The paired instructions of some chips are added where they were counted; the others are needed all three.
    paired = re.compile(r"(add|mul|fma)2_pred")
    needed = [counter for name, counter in cuda.items() if name in names or not paired.search(name)]
    return (*(counter for metric, counter in tensor.items() if metric in names), *needed)


def _by_known_names(metrics: Mapping[str, MetricReading]) -> dict[str, MetricReading]:
    """Add the name we know to counters that have another, and to tensor work of which only the two parts, with and
    without sparsity, were counted."""
    result = dict(metrics)
    for name, reading in metrics.items():
        for pattern, usual_name in _SAME:
            if pattern.fullmatch(name):
                result.setdefault(pattern.sub(usual_name, name), reading)
        if (sparse := _SPARSITY.fullmatch(name)) is not None:
            other = metrics.get(f"{sparse['family']}_sparsity_off.sum")
            if other is not None:
                result.setdefault(f"{sparse['family']}.sum", MetricReading(reading.value + other.value, reading.unit))
    return result


# --- what was not counted ---

_TENSOR_CORES = "tensor-cores-not-counted"
_NO_COUNTERS = "the log has times and no counters: FLOPs and bytes are unknown"


def missing(log: ProfilerLog) -> list[Note]:
    """Return notes on what was never counted, which every reader of the sums must know."""
    if log.target == "cpu":
        return []
    if not log.counts and log.tool != "ncu":
        remedy = "rocprofv3 --pmc counts them" if log.tool == "rocprof" else "ncu counts them"
        return [Note("no-counters", f"{_NO_COUNTERS} ({remedy})")] if log.tool != "nvprof" else []
    if log.tool == "rocprof":
        text = (
            "of AMD's counters FETCH_SIZE, WRITE_SIZE and SQ_INSTS_VALU_MFMA_MOPS_F16, _BF16 and _F64 are read as "
            "bytes and matrix FLOPs, all others stay under their own names; what the vector units computed is in no "
            "FLOP count"
        )
        return [Note("counters-of-amd", text)]
    if log.tool == "nvprof":
        text = "nvprof does not count the tensor cores: what ran there is missing from every FLOP count"
        return [Note(_TENSOR_CORES, text)]
    seen = {name for launch in log.launches for name in _by_known_names(launch.metrics)}
    return [
        *_missing_tensor(seen, log.capability),
        *_missing_cuda(seen, log.capability),
        _of_bytes(seen, "DRAM bytes" if log.times_of else "DRAM bytes and times"),
    ]


def _missing_tensor(seen: Collection[str], capability: str | None) -> list[Note]:
    if re.fullmatch(r"[1-6]\.\d", capability or ""):  # Pascal and older have none
        return []
    notes = []
    if capability is not None and capability not in CHIPS_BY_CAPABILITY:
        text = f"{no_table(capability)}: which tensor counters the log leaves out is not known"
        notes.append(Note("unknown-chip", text))
    counted = {name for name in seen if _TENSOR.fullmatch(name)}
    chip = CHIPS_BY_CAPABILITY.get(capability or "")
    families = [counter.metric for counter in tensor_counters(chip)] if chip is not None else []
    uncounted = [re.sub(r"sm__ops_path_tensor_src_(\w+)\.sum", r"\1", name) for name in families if name not in counted]
    lack = "what ran there is missing from every FLOP count"
    if not counted:
        remedy = "profile again with sm__ops_path_tensor_src_* metrics (ncu --query-metrics lists them)"
        notes.append(Note(_TENSOR_CORES, f"the tensor cores were not counted: {lack}; {remedy}"))
    elif uncounted:
        notes.append(Note(_TENSOR_CORES, f"the log counts no tensor-core work on {', '.join(uncounted)}: {lack}"))
    return notes


def _missing_cuda(seen: Collection[str], capability: str | None) -> list[Note]:
    notes = []
    kinds: dict[str, list[str]] = {}
    for counter in cuda_core_counters(CHIPS_BY_CAPABILITY.get(capability or "", "GH100")):
        kinds.setdefault(counter.quantity, []).append(counter.metric)
    never = []
    for quantity, members in kinds.items():
        uncounted = [metric for metric in members if metric not in seen]
        if len(uncounted) == len(members):
            never.append(quantity.removeprefix("cuda_flops_"))
        elif uncounted:
            notes.append(Note("incomplete-total", f"{quantity} is incomplete: {', '.join(uncounted)} not in the log"))
    if never:
        counters = "smsp__sass_thread_inst_executed_op_{f,h,d}{add,mul,fma}_pred_on.sum"
        text = f"the CUDA cores' work in {', '.join(never)} was not counted ({counters})"
        notes.append(Note("cuda-cores-not-counted", text))
    return notes


def _of_bytes(seen: Collection[str], what: str) -> Note:
    if {"dram__bytes_read.sum", "dram__bytes_write.sum"} <= set(seen):
        text = f"kernels were run one by one, again and again: {what} are not those of a running model"
        return Note("kernels-run-alone", text)
    text = "DRAM bytes were not counted both ways (dram__bytes_read.sum, dram__bytes_write.sum)"
    return Note("incomplete-bytes", text)
