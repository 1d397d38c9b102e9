"""Every quantity that rooflight tells, once: its name, its unit, what it is in one sentence, and how it is written.

What is derived from others is computed here and nowhere else: terminal, page, JSON, CSV, studies, claims and verdicts
take it from these functions. A `Measurement` may also hold counters under their own names (`dram__bytes_read.sum`).
Units stand in the names; `None` is unknown.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from rooflight import formatting

if TYPE_CHECKING:
    from rooflight.ledger import Totals

Number = int | float
Unit = Literal[
    "flop",
    "byte",
    "second",
    "count",
    "flop/byte",
    "flop/second",
    "byte/second",
    "1/second",
    "part",
    "percent",
    "times",
    "word",
]
"""`part`: of a whole, 0.38; `percent`: the same times 100; `times`: how many times another."""
Group = Literal[
    "by formula", "counted", "inferred", "time", "speed", "under the roofs", "advice", "memory", "many GPUs"
]
Bound = Literal["compute", "memory", "host"]
Side = Literal["compute", "memory"]
Fit = Literal["fits", "barely", "does not fit"]
Origin = Literal["measured", "predicted", "recorded"]
"""Where a step's times are from: a clock here, a prediction, or a recording that comes with rooflight."""

HOST_BOUND = 0.8
"""A GPU that is busy for less of the wall time than this waits for the host."""
WORTH = 0.01
"""A gain below this is not worth a sentence."""
FAR_PERCENT = 25.0
"""Under this percent of its roof, work waits for neither: kernels that share their time evenly between two roofs, and
reach both, are still at half of each."""


# How they are computed.


def ratio(part: Number | None, whole: Number | None) -> float | None:
    return part / whole if part is not None and whole else None


def intensity(flops: Number | None, nbytes: Number | None) -> float | None:
    """FLOPs that are computed for every byte that is moved."""
    return ratio(flops, nbytes)


def busy_share(gpu_busy_s: Number | None, wall_time_s: Number | None) -> float | None:
    """GPU-busy of wall. Above 1 when the two runs they come from differed by that much."""
    return ratio(gpu_busy_s, wall_time_s)


def is_host_bound(gpu_busy_s: Number | None, wall_time_s: Number | None) -> bool | None:
    share = busy_share(gpu_busy_s, wall_time_s)
    return None if share is None else share < HOST_BOUND


def side(compute_s: float, memory_s: float) -> Side:
    """The roof that work lies under: the one that asks for more time."""
    return "memory" if memory_s > compute_s else "compute"


def bound(compute_time_s: float, memory_time_s: float, *, host_bound: bool | None = None) -> Bound:
    """Of a step: the host where the GPU waits for it, else the side on which more of the kernels' time is."""
    return "host" if host_bound else "memory" if memory_time_s > compute_time_s else "compute"


def percent_of_roof(roof_time_s: float | None, time_s: float | None) -> float | None:
    """Above 100 where a cache gave the bytes, or fused ops did not move theirs."""
    found = ratio(roof_time_s, time_s)
    return None if found is None else 100 * found


def utilisation(peak_time_s: float | None, wall_time_s: Number | None) -> float | None:
    """MFU and HFU: the time that the FLOPs would take at the peaks of the units they run on, of the time they took."""
    return ratio(peak_time_s, wall_time_s)


def throughput(samples: Number | None, wall_time_s: Number | None) -> float | None:
    return ratio(samples, wall_time_s)


def distinct_experts(tokens: int, *, choices: int, experts: int) -> int:
    """Return how many experts `tokens` reach in the mean, where each takes `choices` different ones at random."""
    return round(experts * (1 - (1 - choices / experts) ** tokens))


def gain(wall_time_s: float, changed_s: float, *, samples: float = 1.0) -> float:
    """Throughput with a change over throughput without, less 1; `samples`: how many times more are in the step then."""
    return wall_time_s / changed_s * samples - 1 if changed_s else 0.0


def fit(*, runs: bool, retries: int) -> Fit:
    """`barely`: only because cached blocks are given back, which each time waits for the device."""
    return "does not fit" if not runs else "barely" if retries else "fits"


# How they are written.


def fit_text(value: Fit | None) -> str:
    return "–" if value is None else "fits, barely" if value == "barely" else value


FIT_WORDS: dict[Fit, str] = {"fits": "yes", "barely": "barely", "does not fit": "no"}
"""In a column that is headed `fits`, and in a study."""
ONCE_IT_FITS = ", once it fits in memory"
"""After words of advice for a step that does not: none of it can be had before."""


def fits_word(value: Fit | None) -> str:
    return "–" if value is None else FIT_WORDS[value]


def percent_text(value: float | None) -> str:
    """Of a roof: `28%`, `7.6%`."""
    if value is None:
        return "–"
    return f"{value:.0f}%" if value >= 9.95 else f"{value:.1f}%" if value >= 0.05 or not value else "<0.1%"


def gain_text(value: float | None) -> str:
    """`+84%`: so much more throughput. What rounds to nothing has no sign: a last digit must not turn it."""
    if value is None:
        return "–"
    text = f"{value:+.0%}" if abs(value) >= 0.095 else f"{value:+.1%}"
    return "0.0%" if text in ("+0.0%", "-0.0%") else text


def _word(value: str | None) -> str:
    return value or "–"


_WRITE: dict[Unit, Callable[[Any], str]] = {
    "flop": formatting.whole_count,
    "byte": formatting.whole_bytes,
    "second": formatting.seconds,
    "count": formatting.whole_count,
    "flop/byte": formatting.ratio,
    "flop/second": lambda value: f"{formatting.whole_count(value)}FLOP/s",
    "byte/second": lambda value: f"{formatting.whole_count(value)}B/s",
    "1/second": formatting.per_second,
    "part": formatting.percent,
    "percent": percent_text,
    "times": formatting.quotient,
    "word": _word,
}


@dataclass(frozen=True)
class Metric:
    """`additive`: the value of several ops is the sum of theirs."""

    name: str
    unit: Unit
    title: str
    """As a column is headed."""
    about: str
    """What it is, in one sentence."""
    group: Group
    additive: bool = False
    write: Callable[[Any], str] | None = None
    spelled: str = ""
    """How people write it in tables of their own, `; ` between: what has a spelling can be claimed there."""
    of: Callable[[Totals], Number | None] | None = None
    """Made of the sums of some ops, which do not hold it by its name."""

    def text(self, value: Any) -> str:
        return (self.write or _WRITE[self.unit])(value)


TENSOR_PRECISIONS = ("tf32", "bf16", "fp16", "fp8", "fp4", "fp64", "int8", "int4", "int1")
CUDA_PRECISIONS = ("fp32", "fp16", "fp64")


def _named(metrics: Iterable[Metric]) -> dict[str, Metric]:
    return {metric.name: metric for metric in metrics}


def _formula(
    name: str,
    unit: Unit,
    title: str,
    about: str,
    *,
    additive: bool = True,
    spelled: str = "",
    of: Callable[[Totals], Number | None] | None = None,
) -> Metric:
    return Metric(name, unit, title, about, "by formula", additive, spelled=spelled, of=of)


ESTIMATED: dict[str, Metric] = _named((
    _formula("macs", "count", "MACs", "multiply-adds of matrix work (convolution, product, attention)",
             spelled="mac; mult-adds; mult adds; multadds; total mult-adds; multiply-adds; madds; total macs; "
                     "computational complexity"),
    _formula("flops", "flop", "FLOPs", "useful FLOPs of matrix work, a multiply-add as 2; attention in full",
             spelled="flop; theoretical flops; theoretical flop; total flops; total flop; floating point operations; "
                     "flop count; useful flops; matrix flops"),
    _formula("flops_causal", "flop", "FLOPs, causal", "the same without the half that a causal mask leaves out"),
    _formula("recompute_flops", "flop", "recomputed", "recomputed matrix FLOPs: activation checkpointing, and the "
                                                      "backward of fused attention"),
    _formula("other_flops", "flop", "other FLOPs", "arithmetic outside matrix work, 1 for each result",
             spelled="other flops; other flop; other operations"),
    _formula("bytes_read", "byte", "read", "compulsory bytes: every distinct input read once", spelled="bytes read"),
    _formula("bytes_written", "byte", "written", "compulsory bytes: every output written once",
             spelled="bytes written"),
    _formula("bytes", "byte", "bytes", "compulsory bytes, read and written, op by op, without reuse between ops",
             spelled="compulsory bytes; bytes moved; memory traffic; traffic by formula"),
    _formula("bytes_step_min", "byte", "least bytes", "outputs, and what is read of parameters and inputs, once",
             additive=False),
    _formula("params", "count", "params", "parameters, each once",
             spelled="parameters; param; parameter count; total parameters; total params; number of parameters; "
                     "#params; # params; weights; param #; params #; #param; num params; number of params"),
    _formula("param_bytes", "byte", "parameters", "bytes of the parameters, each once", additive=False),
    _formula("intensity", "flop/byte", "FLOP/B", "FLOPs that must be computed (causal matrix work, recomputation "
                                                 "and other arithmetic) per compulsory byte", additive=False,
             spelled="arithmetic intensity; ai; operational intensity; flop/b; flop/byte; flops/byte; flops per byte"),
))  # fmt: skip
"""What the mathematics says of an op, a layer or a step."""


def _counted(name: str, unit: Unit, about: str, *, additive: bool = True, spelled: str = "") -> Metric:
    return Metric(name, unit, name.replace("_", " "), about, "counted", additive, spelled=spelled)


def _memory(
    name: str, title: str, about: str, *, unit: Unit = "byte", additive: bool = False, spelled: str = ""
) -> Metric:
    return Metric(name, unit, title, about, "memory", additive, spelled=spelled)


def _time(name: str, title: str, about: str, *, additive: bool = False, spelled: str = "") -> Metric:
    return Metric(name, "second", title, about, "time", additive, spelled=spelled)


QUANTITIES: dict[str, Metric] = _named((
    # Executed work: what the counters saw, an FMA as 2.
    *(_counted(f"tensor_flops_{p}", "flop", f"tensor cores' operations on {p} values") for p in TENSOR_PRECISIONS),
    *(_counted(f"cuda_flops_{p}", "flop", f"{p} add + mul + 2 x fma of the CUDA cores") for p in CUDA_PRECISIONS),
    # Traffic.
    _counted("dram_bytes_read", "byte", "read from device memory", spelled="dram read; dram bytes read"),
    _counted("dram_bytes_written", "byte", "written to device memory",
             spelled="dram written; dram write; dram bytes written"),
    _counted("l2_bytes", "byte", "through the L2 cache"),
    _counted("l1_bytes", "byte", "through the L1 caches"),
    _counted("kernels", "count", "kernel launches", spelled="kernel launches; launches"),
    _counted("executed_flops", "flop", "executed by all units together", additive=False,
             spelled="executed flops; measured flops; measured flop; counted flops; actual flops; actual flop; "
                     "hardware flops"),
    # Three times, with three names: they are never put in one ratio unsaid.
    _time("wall_time_s", "wall", "wall time of a step in a running loop, by the host's clock",
          spelled="wall time; wall; wall clock; elapsed"),
    _time("gpu_busy_s", "GPU-busy", "the time in which the GPU works: the union of all kernel intervals",
          spelled="gpu busy; gpu-busy; gpu-busy time; gpu busy time"),
    _time("kernel_time_s", "kernel time", "sum of the durations of its kernels", additive=True,
          spelled="kernel time; kernel sum; sum of kernels; gpu time; sum of kernel times"),
    _time("host_time_s", "host", "time of the op's call, for a step that runs on the CPU; of a predicted step, that "
                                 "in which its host works", additive=True),
    _time("gpu_span_s", "GPU span", "from the start of a region's first work on the GPU to the end of its last, "
                                    "gaps included"),
    _time("core_wait_s", "waited for a core", "the longest that a thread of an op on a CPU could have run and did not"),
    Metric("page_faults", "count", "page faults", "pages of memory that the kernel handed out while an op ran on a CPU",
           "time", additive=True),
    Metric("executions", "count", "executions", "how many times a region was run", "time"),
    Metric("timed_executions", "count", "timed", "how many of them were timed; the time is their median", "time"),
    # Memory, as torch's allocator sees it.
    _memory("growth_bytes", "growth", "allocated after minus before; rows do not add up",
            spelled="growth; net growth; memory growth; memory used"),
    _memory("allocations", "allocations", "calls of the allocator", unit="count", additive=True),
    _memory("output_bytes", "outputs", "newly allocated storage of the results, as the allocator rounds it",
            additive=True),
    _memory("workspace_bytes", "workspace", "temporary memory of an op, freed before it ends; rows do not add up",
            spelled="workspace; workspace bytes; temporary memory"),
    _memory("allocated_bytes", "allocated", "allocated when the op has ended: memory over the step"),
    _memory("peak_allocated_bytes", "allocated", "most bytes in tensors at one time",
            spelled="peak memory; peak allocated; allocated; allocated peak; max memory allocated; allocated memory; "
                    "peak mem; max memory; max mem; peak mem. alloc"),
    _memory("peak_reserved_bytes", "reserved", "most bytes that the allocator held on the device",
            spelled="peak reserved; reserved; reserved peak; max memory reserved; reserved memory"),
    _memory("allocated_before_bytes", "before", "allocated when the step began"),
    _memory("outside_bytes", "outside", "outside the allocator: CUDA context and libraries",
            spelled="outside; cuda context; context"),
    _memory("resident_bytes", "resident", "memory of the process after the step"),
    _memory("peak_resident_bytes", "peak resident", "most memory of the process; origin: since when"),
    # Between the processes of one step.
    Metric("all_reduced_bytes", "byte", "all-reduced", "gradients that a rank gave to all-reduce", "counted"),
    _time("computing_s", "computing", "the time in which a rank works at anything but collectives"),
    _time("communicating_s", "communicating", "the time in which a collective is under way on a rank that has come"),
    _time("hidden_s", "hidden", "the part of communicating in which the rank computes as well"),
    _time("rank_wait_s", "waiting", "the part of communicating before the last rank has come; of a collective, that of "
                                    "all ranks together"),
    _time("skew_s", "skew", "from the first rank's arrival at a collective to the last one's"),
    _time("transfer_s", "transfer", "from the last rank's arrival at a collective to its end"),
    Metric("last_rank", "count", "last rank", "the rank that came last to a collective: the others waited for it",
           "time"),
))  # fmt: skip
"""What a `Measurement` holds by name."""


def _roofs(name: str, unit: Unit, title: str, about: str, *, spelled: str = "") -> Metric:
    return Metric(name, unit, title, about, "under the roofs", spelled=spelled)


def _speed(name: str, unit: Unit, title: str, about: str, *, spelled: str = "") -> Metric:
    return Metric(name, unit, title, about, "speed", spelled=spelled)


def _many(name: str, unit: Unit, title: str, about: str) -> Metric:
    return Metric(name, unit, title, about, "many GPUs")


DERIVED: dict[str, Metric] = _named((
    Metric("matrix_executed_flops", "flop", "executed", "executed by the ops that have matrix work by formula",
           "counted"),
    Metric("executed_per_useful", "times", "exec/useful", "executed over useful FLOPs, of the ops that have matrix "
                                                          "work", "counted"),
    Metric("dram_bytes", "byte", "DRAM", "read from and written to device memory", "counted",
           spelled="dram bytes; dram; dram traffic; hbm bytes; dram memory traffic"),
    Metric("dram_per_compulsory", "times", "DRAM/comp.", "DRAM bytes over compulsory bytes, of the ops whose "
                                                         "traffic was counted", "counted"),
    Metric("dram_intensity", "flop/byte", "FLOP/B, DRAM", "executed FLOPs per byte of DRAM traffic", "counted"),
    Metric("unexplained", "part", "unexplained", "executed FLOPs that no cause explains, sum of the absolute values "
                                                 "of all ops, as part of the useful", "counted"),
    Metric("inferred_flops", "flop", "executed, inferred", "executed FLOPs of a step without counters: the useful "
           "ones, tile padding, fast algorithms and others, by kernel names, grids and shapes", "inferred"),
    Metric("inferred_dram_bytes", "byte", "DRAM, inferred", "DRAM bytes of a step without counters: the compulsory "
           "ones through a played L2 cache", "inferred"),
    Metric("inferred_hfu", "part", "HFU, inferred", "HFU with inferred instead of counted FLOPs", "inferred"),
    Metric("share", "part", "share", "part of the step's useful FLOPs, or of its kernels' time where a table says so",
           "by formula"),
    Metric("busy_share", "part", "busy", "GPU-busy time as part of the wall time", "time"),
    Metric("time_low", "second", "from", "lower end of the 90% interval of the wall time", "time"),
    Metric("time_high", "second", "to", "upper end of the 90% interval of the wall time", "time"),
    Metric("gpu_busy_low", "second", "from", "lower end of the 90% interval of the GPU-busy time", "time"),
    Metric("gpu_busy_high", "second", "to", "upper end of the 90% interval of the GPU-busy time", "time"),
    Metric("host_low", "second", "from", "lower end of the 90% interval of the host's time", "time"),
    Metric("host_high", "second", "to", "upper end of the 90% interval of the host's time", "time"),
    _speed("throughput", "1/second", "samples/s", "samples per second of wall time, of all GPUs and micro-batches",
           spelled="samples/s; images/s; images per second; samples per second; img/s; imgs/s; fps; images per sec; "
                   "samples per sec; frames per second; infer samples per sec; imgs per second; img per second"),
    _speed("tokens_per_s", "1/second", "tokens/s", "tokens per second of wall time; decoding makes one per sample",
           spelled="tokens/s; tokens per second; tokens per sec; tok/s; tps"),
    _speed("flops_per_s", "flop/second", "FLOP/s", "FLOPs over time, of the scope named beside it",
           spelled="flop/s; flops/s; achieved flop/s; gflop/s; achieved performance"),
    _speed("executed_flops_per_s", "flop/second", "executed FLOP/s", "executed FLOPs, of all units, by time"),
    _speed("bytes_per_s", "byte/second", "B/s", "compulsory bytes by time"),
    _speed("dram_bytes_per_s", "byte/second", "DRAM B/s", "DRAM bytes by time",
           spelled="achieved bandwidth; memory throughput; dram throughput; bandwidth used; bytes/s; b/s; "
                   "dram bytes/s; dram b/s"),
    _speed("ppp", "part", "PPP", "PALEO's percent of peak: the time to read, compute and write at full peak, as part "
                                 "of the wall time"),
    _speed("mfu", "part", "MFU", "useful FLOPs, each at the peak of the precision it runs in, as part of the wall "
           "time",
           spelled="% of peak; percent of peak; of the peak; model flops utilization; model flops utilisation"),
    _speed("mfu_causal", "part", "MFU, causal", "the same without the half of attention that a causal mask leaves "
           "out"),
    _speed("hfu", "part", "HFU", "executed FLOPs, each unit's at its own peak, as part of the wall time",
           spelled="hardware flops utilization; hardware flops utilisation; hardware flop utilization"),
    _roofs("roof_time_s", "second", "at the roof", "the least time that the roofs allow: of every op, the longer of "
           "its FLOPs at the peak and its bytes at the bandwidth, added up"),
    _roofs("percent_of_roof", "percent", "% of roof", "the least time that the roofs allow for all ops, over the time "
           "of the kernels; of a step, over its GPU-busy time",
           spelled="percent of roof; percent of attainable; share of the roof; of the roof; % of roof"),
    _roofs("bound", "word", "bound", "the roof that work lies under, compute or memory; of a step the side with more "
           f"of the kernels' time, or host where the GPU is busy for less than {HOST_BOUND:.0%} of the wall time"),
    _roofs("far", "word", "far because", f"why work is far from its roof: short kernels, the L2 cache gives the bytes, "
           f"or under {FAR_PERCENT:.0f}% of it for neither reason"),
    _roofs("ridge", "flop/byte", "ridge", "FLOPs per byte from which on the units and not the memory are the limit",
           spelled="ridge point; ridge-point; machine balance; peak ai; balance"),
    _roofs("attainable_flops_per_s", "flop/second", "roof", "FLOPs over the least time that the roofs allow"),
    Metric("gain", "part", "gain", "throughput with a change over throughput without it, minus 1", "advice",
           write=gain_text),
    Metric("saved_bytes", "byte", "saved", "memory of the device that a change saves", "advice"),
    _memory("footprint_bytes", "footprint", "memory of a layer: its parameters, the outputs of its ops and, where it "
                                            "is known, the largest workspace that one of them borrows"),
    _memory("device_bytes", "memory", "memory in use on the device, as nvidia-smi shows it: reserved, CUDA context "
                                      "and libraries",
            spelled="gpu memory; total gpu memory; actual gpu memory; nvidia-smi; memory in use; device memory; "
                    "actual memory"),
    Metric("fit", "word", "fits", "does a step run in the device's memory: fits, barely (cached blocks are given "
           "back, which waits for the device), or does not fit", "memory", write=fits_word),
    _many("speedup", "times", "speed-up", "throughput over that of the first row of its curve"),
    _many("efficiency", "part", "efficiency", "throughput of one GPU among many over that of one alone"),
    _many("exposed_s", "second", "exposed", "time by which communication lengthens a step"),
))  # fmt: skip
"""What follows from the others."""

GROUPS: tuple[Group, ...] = get_args(Group)
METRICS: dict[str, Metric] = {**ESTIMATED, **QUANTITIES, **DERIVED}


def text(name: str, value: Any) -> str:
    """A value as people read it."""
    return METRICS[name].text(value)


TENSOR_FLOPS = tuple(f"tensor_flops_{p}" for p in TENSOR_PRECISIONS)
CUDA_FLOPS = tuple(f"cuda_flops_{p}" for p in CUDA_PRECISIONS)
EXECUTED_FLOPS = (*TENSOR_FLOPS, *CUDA_FLOPS)
"""Their sum is what was executed. Integer tensor work counts as operations, as peaks do."""
DRAM_BYTES = ("dram_bytes_read", "dram_bytes_written")
COUNTED = frozenset((*EXECUTED_FLOPS, *DRAM_BYTES, "l2_bytes", "l1_bytes"))
"""What only hardware counters tell."""


def cuda_is_known(names: Container[str], *, half: bool) -> bool:
    """Do these tell all FLOPs of the CUDA cores? Those on 16 bits are left out where no tensor has 16 (`half`)."""
    needed = CUDA_FLOPS if half else [name for name in CUDA_FLOPS if name != "cuda_flops_fp16"]
    return all(name in names for name in needed)


def executed_is_known(names: Container[str], *, half: bool) -> bool:
    """Do these tell all that was executed? A tensor pipe that stood still is there as 0, so one name of them is enough;
    without the CUDA cores the sum would be that of a part.
    """
    return any(name in names for name in TENSOR_FLOPS) and cuda_is_known(names, half=half)
