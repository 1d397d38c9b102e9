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
# rocprof's: what was fetched and written comes in KiB, and matrix operations in units of 512 FLOPs.
_ROCPROF: dict[str, tuple[str, int]] = {
    "FETCH_SIZE": ("dram_bytes_read", 1024),
    "FetchSize": ("dram_bytes_read", 1024),
    "WRITE_SIZE": ("dram_bytes_written", 1024),
    "WriteSize": ("dram_bytes_written", 1024),
    "SQ_INSTS_VALU_MFMA_MOPS_F16": ("tensor_flops_fp16", 512),
    "SQ_INSTS_VALU_MFMA_MOPS_BF16": ("tensor_flops_bf16", 512),
    "SQ_INSTS_VALU_MFMA_MOPS_F64": ("tensor_flops_fp64", 512),
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
    for name, (quantity, factor) in _ROCPROF.items():
        if name in metrics and quantity not in result:
            result[quantity] = Value(metrics[name].value * factor, f"{source}: {name} x {factor:,}")
    if FLOP_COUNT_SP not in metrics and (count := flop_count_sp(values)) is not None:
        result[FLOP_COUNT_SP] = Value(count, f"{source}: fadd + fmul + 2 x ffma, as nvprof's metric of this name")
    for name, reading in metrics.items():
        result[name] = _value(reading, f"{source}, in {reading.unit}" if reading.unit else source)
    return result


def missing(log: ProfilerLog) -> list[Note]:
    """What a reader of the sums must know was never counted."""
    seen = {name for launch in log.launches for name in _by_known_names(launch.metrics)}
    if log.target == "cpu":
        return []
    if log.tool == "rocprof":
        return _missing_of_amd(log.counts)
    if log.tool == "nvprof":
        return [
            Note(
                "tensor-cores-not-counted",
                "nvprof does not count the tensor cores: what ran there is missing from every FLOP count",
            )
        ]
    if not log.counts and log.tool != "ncu":
        return [Note("no-counters", "the log has times and no counters: FLOPs and bytes are unknown (ncu counts them)")]
    return [
        *_no_table(log.capability),
        *_missing_tensor(seen, log.capability),
        *_missing_cuda(seen, log.capability),
        *_missing_bytes(seen, own_times=not log.times_of),
    ]


def _missing_of_amd(counts: bool) -> list[Note]:
    if not counts:
        return [
            Note(
                "no-counters",
                "the log has times and no counters: FLOPs and bytes are unknown (rocprofv3 --pmc counts them)",
            )
        ]
    return [
        Note(
            "counters-of-amd",
            "of AMD's counters FETCH_SIZE, WRITE_SIZE and SQ_INSTS_VALU_MFMA_MOPS_F16, _BF16 and _F64 are read as "
            "bytes and matrix FLOPs, all others stay under their own names; what the vector units computed is in no "
            "FLOP count",
        )
    ]


def _no_table(capability: str | None) -> list[Note]:
    if capability is None or capability in CHIPS_BY_CAPABILITY or _has_no_tensor_cores(capability):
        return []
    return [Note("unknown-chip", f"{no_table(capability)}: which tensor counters the log leaves out is not known")]


def _has_no_tensor_cores(capability: str | None) -> bool:
    """Pascal and older."""
    return re.fullmatch(r"[1-6]\.\d", capability or "") is not None


def _missing_tensor(seen: Collection[str], capability: str | None) -> list[Note]:
    counted = {name for name in seen if _TENSOR.fullmatch(name)}
    chip = CHIPS_BY_CAPABILITY.get(capability or "")
    families = tensor_counters(chip) if chip is not None else ()
    if _has_no_tensor_cores(capability):
        return []
    if not counted:
        return [
            Note(
                "tensor-cores-not-counted",
                "the tensor cores were not counted: what ran there is missing from every FLOP count; "
                "profile again with sm__ops_path_tensor_src_* metrics (ncu --query-metrics lists them)",
            )
        ]
    left = [counter.metric for counter in families if counter.metric not in counted]
    if not left:
        return []
    names = ", ".join(re.sub(r"sm__ops_path_tensor_src_(\w+)\.sum", r"\1", name) for name in left)
    return [
        Note(
            "tensor-cores-not-counted",
            f"the log counts no tensor-core work on {names}: what ran there is missing from every FLOP count",
        )
    ]


def _missing_cuda(seen: Collection[str], capability: str | None) -> list[Note]:
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
            notes.append(Note("incomplete-total", f"{quantity} is incomplete: {', '.join(left)} not in the log"))
    if never:
        counters = "smsp__sass_thread_inst_executed_op_{f,h,d}{add,mul,fma}_pred_on.sum"
        notes.append(
            Note("cuda-cores-not-counted", f"the CUDA cores' work in {', '.join(never)} was not counted ({counters})")
        )
    return notes


def _missing_bytes(seen: Collection[str], *, own_times: bool) -> list[Note]:
    if {"dram__bytes_read.sum", "dram__bytes_write.sum"} <= set(seen):
        what = "DRAM bytes and times" if own_times else "DRAM bytes"
        return [
            Note(
                "kernels-run-alone",
                f"kernels were run one by one, again and again: {what} are not those of a running model",
            )
        ]
    return [
        Note("incomplete-bytes", "DRAM bytes were not counted both ways (dram__bytes_read.sum, dram__bytes_write.sum)")
    ]


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
