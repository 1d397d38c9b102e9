"""The quantities that a table may claim something of, and how people spell them: the metrics that rooflight tells, and
what only tables have."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from rooflight.analysis.finding import Finding
from rooflight.hardware import counter_tables
from rooflight.measurement.cupti.cupti import Host
from rooflight.metrics import METRICS
from rooflight.units import table_unit

Source = Literal["formula", "module", "memory", "counter", "clock", "device", "table"]
"""What answers: formulas over ops, the modules' own figures, the allocator, hardware counters, a clock, a device's
figures; or, for what follows from others, the table's own rows."""


@dataclass(frozen=True)
class ClaimQuantity:
    """One that can be claimed: a metric that rooflight tells, or what only tables of people have."""

    name: str
    unit: str
    """The base unit it is counted in, as `rooflight.units` has it; or `counter`, `shape`, `word`."""
    source: Source
    about: str
    spelled: tuple[str, ...] = ()
    metric: str = ""
    """Its name in `rooflight.metrics`."""


def _own(name: str, unit: str, source: Source, about: str, spelled: str, *, metric: str = "") -> ClaimQuantity:
    return ClaimQuantity(name, unit, source, about, tuple(filter(None, spelled.split("; "))), metric)


def _metric(name: str, source: Source, spelled: str, *, metric: str = "", unit: str = "") -> ClaimQuantity:
    """A metric under its own name, or under the one that tables know it by."""
    known = METRICS[metric or name]
    return _own(name, unit or known.unit, source, known.about, spelled, metric=known.name)


_ALL = (
    # What an op or a layer costs.
    _metric("flops", "formula",
         "flop; theoretical flops; theoretical flop; total flops; total flop; floating point operations; "
         "flop count"),
    _metric("macs", "formula",
         "mac; mult-adds; mult adds; multadds; total mult-adds; multiply-adds; madds", unit="mac"),
    _own("ops", "flop", "formula", "matrix FLOPs, or the other ones of a layer that has none",
         "operations; total ops; op count"),
    _metric("other_flops", "formula", "other flops; other flop; other operations"),
    _own("share", "part", "formula", "part of the model's matrix FLOPs",
         "share of flops; flop share; flops share; fraction; flops fraction; percent of flops; "
         "fraction of flops"),
    _metric("bytes", "formula", "compulsory bytes; bytes moved; memory traffic; traffic by formula"),
    _metric("bytes_read", "formula", "bytes read"),
    _metric("bytes_written", "formula", "bytes written"),
    _metric("intensity", "formula",
         "arithmetic intensity; ai; operational intensity; flop/b; flop/byte; flops/byte; flops per byte"),
    # What a layer is.
    _metric("params", "module",
         "parameters; param; parameter count; total parameters; total params; number of parameters; #params; "
         "# params; weights"),
    _own("trainable_params", "count", "module", "parameters that are trained",
         "trainable params; trainable parameters"),
    _own("param_bytes", "byte", "module", "bytes of the parameters",
         "parameter bytes; param bytes; params size; parameter size; param size; parameter memory; "
         "theoretical memory"),
    _own("model_bytes", "byte", "module", "bytes of parameters and buffers", "model bytes; model size"),
    _own("output_shape", "shape", "module", "shape of what it gives", "output shape; shape; output"),
    _own("output_size", "count", "module", "height (= width) of what it gives",
         "output size; output image size; image size; output width; output height; output features"),
    _own("output_elements", "count", "module", "elements of what it gives", "output elements; outputs; neurons"),
    _own("output_bytes", "byte", "module", "bytes of what it gives",
         "output bytes; output tensor; output memory; activation size; size increase"),
    _own("input_features", "count", "module", "last size of what it gets",
         "input features; in features; in_features; input width"),
    _own("input_bytes", "byte", "module", "bytes of what it gets", "input bytes; input tensor"),
    _own("weight_output_bytes", "byte", "module", "bytes of its parameters and of what it gives",
         "weight + output bytes; weights + output bytes; output + parameter bytes; parameter + output bytes; "
         "output + weight bytes; weight+output bytes"),
    _own("layers", "count", "module", "how many there are", "layer count; number of layers; conv layers"),
    # The memory lines of a model summary.
    _own("input_size", "byte", "module", "bytes of the step's inputs", "input size"),
    _own("forward_backward_bytes", "byte", "module", "every output twice, once for its gradient",
         "forward/backward size; forward/backward pass size; forward/backward pass"),
    _own("total_size", "byte", "module", "inputs, parameters, and every output twice",
         "total size; estimated total size; estimated total; total memory by summary"),
    # Memory of a step.
    _own("kept_bytes", "byte", "memory", "activations kept for backward",
         "activations; activation bytes; kept for backward"),
    _own("gradient_bytes", "byte", "memory", "gradients of the parameters", "gradients; gradient bytes"),
    _own("optimizer_bytes", "byte", "memory", "optimizer state", "optimizer state; momentum; optimizer bytes"),
    _metric("workspace_bytes", "memory", "workspace; workspace bytes; temporary memory"),
    _metric("growth_bytes", "memory", "growth; net growth; memory growth; memory used"),
    _own("op_allocated_bytes", "byte", "memory", "output and workspace together",
         "allocation size; allocated by the op; allocation; output + workspace"),
    _own("self_growth_bytes", "byte", "memory", "output minus the workspace that was given back",
         "self size increase; self growth"),
    _metric("peak_allocated_bytes", "memory",
         "peak memory; peak allocated; allocated; allocated peak; max memory allocated; allocated memory"),
    _metric("peak_reserved_bytes", "memory",
         "peak reserved; reserved; reserved peak; max memory reserved; reserved memory"),
    _metric("outside_bytes", "memory", "outside; cuda context; context"),
    _metric("gpu_memory_bytes", "memory",
         "gpu memory; total gpu memory; actual gpu memory; nvidia-smi; memory in use; device memory; "
         "actual memory", metric="device_bytes"),
    _own("memory", "byte", "memory", "memory that does not say whose", "mem; memory size; memory usage"),
    # What was counted.
    _metric("executed_flops", "counter",
         "executed flops; measured flops; measured flop; counted flops; actual flops; actual flop; "
         "hardware flops"),
    _own("cuda_flops", "flop", "counter", "fadd + fmul + 2 x ffma: the CUDA cores alone",
         "cuda flops; cuda-core flops; cuda core flops; fadd+fmul+2*ffma; fadd + fmul + 2*ffma; "
         "fadd + fmul + 2 x ffma"),
    _own("tensor_flops", "flop", "counter", "what the tensor cores executed",
         "tensor flops; tensor-core flops; tensor core flops"),
    _metric("dram_bytes", "counter", "dram bytes; dram; dram traffic; hbm bytes"),
    _metric("dram_bytes_read", "counter", "dram read; dram bytes read"),
    _metric("dram_bytes_written", "counter", "dram written; dram write; dram bytes written"),
    _metric("kernels", "counter", "kernel launches; launches"),
    # Time, with its scope, and what is made of it.
    _metric("wall_time", "clock", "wall time; wall; wall clock; elapsed", metric="wall_time_s"),
    _metric("gpu_busy", "clock", "gpu busy; gpu-busy; gpu-busy time; gpu busy time", metric="gpu_busy_s"),
    _metric("kernel_time", "clock",
         "kernel time; kernel sum; sum of kernels; gpu time; sum of kernel times", metric="kernel_time_s"),
    _own("time", "second", "clock", "a time that does not say whose",
         "runtime; run time; inference time; step time; latency; duration"),
    _metric("throughput", "clock", "samples/s; images/s; images per second; samples per second"),
    _metric("tokens_per_s", "clock", "tokens/s; tokens per second"),
    _metric("performance", "clock",
         "flop/s; flops/s; achieved flop/s; gflop/s; achieved performance", metric="flops_per_s"),
    _metric("traffic", "clock",
         "achieved bandwidth; memory throughput; dram throughput; bandwidth used; bytes/s", metric="dram_bytes_per_s"),
    # Devices.
    _own("peak", "flop/second", "device", "most FLOP/s of a unit in a precision",
         "peak flop/s; peak performance; peak flops; roof; roof height"),
    _own("bandwidth", "byte/second", "device", "of the device's own memory",
         "memory bandwidth; peak bandwidth; dram bandwidth; hbm bandwidth"),
    _metric("ridge", "device", "ridge point; ridge-point; machine balance; peak ai; balance"),
    _own("gpu_link", "byte/second", "device", "between two GPUs",
         "nvlink; nvlink bandwidth; gpu-gpu bandwidth; gpu to gpu bandwidth"),
    _own("host_link", "byte/second", "device", "between GPU and CPU",
         "pcie; pcie bandwidth; gpu-cpu bandwidth; gpu to cpu bandwidth; host bandwidth"),
    # Conclusions.
    _metric("roof_share", "table",
         "percent of roof; percent of attainable; share of the roof; of the roof; % of roof",
         metric="percent_of_roof", unit="part"),
    _own("bound", "word", "table",
         "compute, memory or host; of a layer also why it is far from its roof: cache or latency",
         "bound by; verdict; bottleneck"),
    _own("side", "word", "table", "of the ridge: memory (left) or compute (right)", "side of the ridge; ridge side"),
    _own("preferred", "word", "table", "the device that is the faster one",
         "preferred device; faster device; faster; best device; better device"),
    _own("batch", "count", "module", "samples a step works on", "batch size"),
    _own("ratio", "times", "table", "one quantity by another: `a / b`", ""),
)  # fmt: skip
QUANTITIES: dict[str, ClaimQuantity] = {quantity.name: quantity for quantity in _ALL}
METRIC = re.compile(r"[a-z][a-z0-9]*__[a-z0-9_]+(?:\.[a-z0-9_]+)*")
"""How Nsight Compute names its counters."""
COUNTER = ClaimQuantity("counter", "counter", "counter", "a hardware counter by its own name")
_BRACKETS = re.compile(r"(?P<name>.+?)\s*[(\[]\s*(?:in\s+)?(?P<unit>[^()\[\]]+?)\s*[)\]]")
_PREFIXED = re.compile(r"(?P<unit>[KMGT])(?P<name>flops?(?:/s)?|macs?|params?|madds?)", re.IGNORECASE)
_PHASED = re.compile(r"(?P<phase>forward|backward|training|inference|optimizer)(?: pass| step)? (?P<name>.+)")
_PER_SAMPLE = re.compile(r"(?:per|/|a|an|each)\s*(?:image|sample|picture|example)")


@dataclass(frozen=True)
class NamedQuantity:
    """A quantity as a row names it: `flops per image`, `wall time of conv2 / wall time`, a counter's own name."""

    quantity: ClaimQuantity
    written: str
    per_sample: bool = False
    metric: str = ""
    parts: tuple[Operand, Operand] | None = None
    """Of a ratio."""
    unit: str = ""
    """That the name has, for values without one: `GFLOPs`, `memory (MB)`."""


@dataclass(frozen=True)
class Operand:
    """One side of a ratio: `parameters of resnet50`, `measured flops on A100`."""

    named: NamedQuantity
    of: str = ""
    on: str = ""


class UnknownQuantity(ValueError):
    """Nothing by that name; the message says what was meant."""


def spellings() -> dict[str, str]:
    """Every spelling and the quantity it stands for; a ratio is spelled by its two sides."""
    return {
        _plain(word): name
        for name, quantity in QUANTITIES.items()
        if name != "ratio"
        for word in (name, *quantity.spelled)
    }


def named(text: str) -> NamedQuantity:
    """The quantity that a row names."""
    written = " ".join(text.split())
    if METRIC.fullmatch(written.lower()):
        return NamedQuantity(COUNTER, written, metric=written.lower())
    if (name := _SPELLED.get(_plain(written))) is not None:
        return NamedQuantity(QUANTITIES[name], written, unit=_own_unit(written, QUANTITIES[name]))
    if " / " in written:
        above, _, below = written.partition(" / ")
        return NamedQuantity(QUANTITIES["ratio"], written, parts=(_operand(above), _operand(below)))
    shorter = _PER_SAMPLE.sub(" ", written.lower()).strip(" ()")
    if shorter != written.lower() and (name := _SPELLED.get(_plain(shorter))) is not None:
        return NamedQuantity(QUANTITIES[name], written, per_sample=True)
    if (with_unit := _with_unit(written)) is not None:
        return with_unit
    if (phase := _PHASED.fullmatch(_plain(written))) is not None and phase["name"] in _SPELLED:
        raise UnknownQuantity(
            f"{written!r} names a phase: write {phase['name']} as quantity, and {phase['phase']} in the column phase"
        )
    if _plain(written) == "ratio":
        raise UnknownQuantity("a ratio of what? Write it as `wall time / gpu busy`, with spaces around the /")
    near = difflib.get_close_matches(_plain(written), _SPELLED, n=3, cutoff=0.7)
    names = list(dict.fromkeys(_SPELLED[word] for word in near))
    hint = f"did you mean {' or '.join(names)}?" if names else "a ledger knows nothing of it"
    raise UnknownQuantity(f"{written!r} is no quantity that can be checked: {hint}")


def _own_unit(written: str, quantity: ClaimQuantity) -> str:
    """A name that is a unit itself: `GFLOP/s`, `% of roof`."""
    if quantity.unit == "part" and written.startswith("%"):
        return "%"
    unit = table_unit(written, quantity.unit) if quantity.unit == "flop/second" else None
    return written if unit is not None and unit.power else ""


def _with_unit(written: str) -> NamedQuantity | None:
    """`FLOPs (G)`, `memory [MB]`, and `GFLOPs` with the prefix in front."""
    match = _BRACKETS.fullmatch(written) or _PREFIXED.fullmatch(written)
    if match is None or (name := _SPELLED.get(_plain(match["name"]))) is None:
        return None
    quantity = QUANTITIES[name]
    unit = written if quantity.unit == "flop/second" and match.re is _PREFIXED else match["unit"]
    return NamedQuantity(quantity, written, unit=unit) if table_unit(unit, quantity.unit) else None


def _operand(text: str) -> Operand:
    match = re.fullmatch(r"(?P<name>.+?)(?:\s+of\s+(?P<of>\S+))?(?:\s+on\s+(?P<on>.+))?", text.strip())
    assert match is not None
    return Operand(named(match["name"]), match["of"] or "", match["on"] or "")


def _plain(text: str) -> str:
    """`Wall-Time_s` and `wall time` are one."""
    return " ".join(re.sub(r"[\s_]+", " ", text.lower()).removesuffix(" s").removesuffix("(s)").split())


_SPELLED = spellings()


# Names of hardware counters: which exist, and which one a misspelt one was meant to be.


@cache
def _known_counters() -> frozenset[str]:
    """Base names of the counters that rooflight's tables have, of all chips."""
    counters = (
        counter
        for chip in dict.fromkeys(counter_tables.CHIPS_BY_CAPABILITY.values())
        for counter in (
            *counter_tables.cuda_core_counters(chip),
            *counter_tables.tensor_counters(chip),
            *counter_tables.byte_counters(("dram", "l2", "l1"), chip=chip),
        )
    )
    return frozenset(counter.metric.partition(".")[0] for counter in counters)


def misspelt_counter(name: str, own: frozenset[str]) -> Finding | None:
    """The counter that was meant, where there is none by that name but one with a letter or two less or more."""
    base, dot, rest = name.partition(".")
    known = _known_counters() | {metric.partition(".")[0] for metric in own}
    if base in known or _exists(base):
        return None
    near = [other for other in difflib.get_close_matches(base, known, n=3, cutoff=0.9) if _letters(base, other) <= 2]
    if not near:
        return None
    meant = f"{near[0]}{dot}{rest}"
    return Finding("metric-misspelt", f"there is no counter {name}: it is {meant}; Nsight Compute reports n/a", meant)


def _letters(one: str, other: str) -> int:
    """How many letters to put in, leave out or change, by the longest parts that are the same."""
    blocks = difflib.SequenceMatcher(None, one, other, autojunk=False).get_matching_blocks()
    return max(len(one), len(other)) - sum(block.size for block in blocks)


def _exists(base: str) -> bool:
    """Does NVIDIA's own table have it, where that is installed?"""
    try:
        with Host("GH100") as host:
            return host.is_known(f"{base}.sum")
    except Exception:  # no library, or one that wants a driver: the near names decide
        return False
