"""The quantities that a table may claim something of, and how people spell them."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Literal

from rooflight.claims.units import Dimension, unit_of

Source = Literal["formula", "module", "memory", "counter", "clock", "device", "table"]
"""What answers: formulas over ops, the modules' own figures, the allocator, hardware counters, a clock, a device's
figures; or, for what follows from others, the table's own rows."""


@dataclass(frozen=True)
class Quantity:
    """One that can be claimed."""

    name: str
    dimension: Dimension
    source: Source
    about: str
    spelled: tuple[str, ...] = ()


def _all(*found: tuple[str, Dimension, Source, str, str]) -> dict[str, Quantity]:
    return {
        name: Quantity(name, dimension, source, about, tuple(filter(None, map(str.strip, spelled.split(";")))))
        for name, dimension, source, about, spelled in found
    }


QUANTITIES = _all(
    # What an op or a layer costs.
    ("flops", "flop", "formula", "useful matrix FLOPs; a multiply-add is 2",
     "flop; theoretical flops; theoretical flop; total flops; total flop; floating point operations; flop count"),
    ("macs", "mac", "formula", "multiply-adds",
     "mac; mult-adds; mult adds; multadds; total mult-adds; multiply-adds; madds"),
    ("ops", "flop", "formula", "matrix FLOPs, or the other ones of a layer that has none",
     "operations; total ops; op count"),
    ("other_flops", "flop", "formula", "arithmetic outside matrix work", "other flops; other flop; other operations"),
    ("share", "fraction", "formula", "part of the model's matrix FLOPs",
     "share of flops; flop share; flops share; fraction; flops fraction; percent of flops; fraction of flops"),
    ("bytes", "byte", "formula", "compulsory bytes: every input read once, every output written once",
     "compulsory bytes; bytes moved; memory traffic; traffic by formula"),
    ("bytes_read", "byte", "formula", "compulsory bytes that are read", "bytes read"),
    ("bytes_written", "byte", "formula", "compulsory bytes that are written", "bytes written"),
    ("intensity", "flop/byte", "formula", "FLOPs per byte",
     "arithmetic intensity; ai; operational intensity; flop/b; flop/byte; flops/byte; flops per byte"),
    # What a layer is.
    ("params", "count", "module", "parameters, each once",
     "parameters; param; parameter count; total parameters; total params; number of parameters; #params; "
     "# params; weights"),
    ("trainable_params", "count", "module", "parameters that are trained", "trainable params; trainable parameters"),
    ("param_bytes", "byte", "module", "bytes of the parameters",
     "parameter bytes; param bytes; params size; parameter size; param size; parameter memory; theoretical memory"),
    ("model_bytes", "byte", "module", "bytes of parameters and buffers", "model bytes; model size"),
    ("output_shape", "shape", "module", "shape of what it gives", "output shape; shape; output"),
    ("output_size", "count", "module", "height (= width) of what it gives",
     "output size; output image size; image size; output width; output height; output features"),
    ("output_elements", "count", "module", "elements of what it gives", "output elements; outputs; neurons"),
    ("output_bytes", "byte", "module", "bytes of what it gives",
     "output bytes; output tensor; output memory; activation size; size increase"),
    ("input_features", "count", "module", "last size of what it gets",
     "input features; in features; in_features; input width"),
    ("input_bytes", "byte", "module", "bytes of what it gets", "input bytes; input tensor"),
    ("weight_output_bytes", "byte", "module", "bytes of its parameters and of what it gives",
     "weight + output bytes; weights + output bytes; output + parameter bytes; parameter + output bytes; "
     "output + weight bytes; weight+output bytes"),
    ("layers", "count", "module", "how many there are", "layer count; number of layers; conv layers"),
    # The memory lines of a model summary.
    ("input_size", "byte", "module", "bytes of the step's inputs", "input size"),
    ("forward_backward_bytes", "byte", "module", "every output twice, once for its gradient",
     "forward/backward size; forward/backward pass size; forward/backward pass"),
    ("total_size", "byte", "module", "inputs, parameters, and every output twice",
     "total size; estimated total size; estimated total; total memory by summary"),
    # Memory of a step.
    ("kept_bytes", "byte", "memory", "activations kept for backward",
     "activations; activation bytes; kept for backward"),
    ("gradient_bytes", "byte", "memory", "gradients of the parameters", "gradients; gradient bytes"),
    ("optimizer_bytes", "byte", "memory", "optimizer state", "optimizer state; momentum; optimizer bytes"),
    ("workspace_bytes", "byte", "memory", "taken and given back inside an op",
     "workspace; workspace bytes; temporary memory"),
    ("growth_bytes", "byte", "memory", "allocated after minus before",
     "growth; net growth; memory growth; memory used"),
    ("op_allocated_bytes", "byte", "memory", "output and workspace together",
     "allocation size; allocated by the op; allocation; output + workspace"),
    ("self_growth_bytes", "byte", "memory", "output minus the workspace that was given back",
     "self size increase; self growth"),
    ("peak_allocated_bytes", "byte", "memory", "most bytes in tensors at one time",
     "peak memory; peak allocated; allocated; allocated peak; max memory allocated; allocated memory"),
    ("peak_reserved_bytes", "byte", "memory", "most bytes the allocator held of the device",
     "peak reserved; reserved; reserved peak; max memory reserved; reserved memory"),
    ("outside_bytes", "byte", "memory", "outside the allocator: context and libraries",
     "outside; cuda context; context"),
    ("gpu_memory_bytes", "byte", "memory", "all that the process holds of the device: reserved and outside",
     "gpu memory; total gpu memory; actual gpu memory; nvidia-smi; memory in use; device memory; actual memory"),
    ("memory", "byte", "memory", "memory that does not say whose", "mem; memory size; memory usage"),
    # What was counted.
    ("executed_flops", "flop", "counter", "what all units executed",
     "executed flops; measured flops; measured flop; counted flops; actual flops; actual flop; hardware flops"),
    ("cuda_flops", "flop", "counter", "fadd + fmul + 2 x ffma: the CUDA cores alone",
     "cuda flops; cuda-core flops; cuda core flops; fadd+fmul+2*ffma; fadd + fmul + 2*ffma; fadd + fmul + 2 x ffma"),
    ("tensor_flops", "flop", "counter", "what the tensor cores executed",
     "tensor flops; tensor-core flops; tensor core flops"),
    ("dram_bytes", "byte", "counter", "read from and written to device memory",
     "dram bytes; dram; dram traffic; hbm bytes"),
    ("dram_bytes_read", "byte", "counter", "read from device memory", "dram read; dram bytes read"),
    ("dram_bytes_written", "byte", "counter", "written to device memory",
     "dram written; dram write; dram bytes written"),
    ("kernels", "count", "counter", "kernel launches", "kernel launches; launches"),
    # Time, with its scope, and what is made of it.
    ("wall_time", "second", "clock", "the step by the host's clock", "wall time; wall; wall clock; elapsed"),
    ("gpu_busy", "second", "clock", "union of all kernel intervals",
     "gpu busy; gpu-busy; gpu-busy time; gpu busy time"),
    ("kernel_time", "second", "clock", "sum of the kernels' durations",
     "kernel time; kernel sum; sum of kernels; gpu time; sum of kernel times"),
    ("time", "second", "clock", "a time that does not say whose",
     "runtime; run time; inference time; step time; latency; duration"),
    ("throughput", "rate", "clock", "samples per second", "samples/s; images/s; images per second; samples per second"),
    ("tokens_per_s", "rate", "clock", "tokens a second", "tokens/s; tokens per second"),
    ("performance", "flop/s", "clock", "FLOPs by time",
     "flop/s; flops/s; achieved flop/s; gflop/s; achieved performance"),
    ("traffic", "byte/s", "clock", "DRAM bytes by time",
     "achieved bandwidth; memory throughput; dram throughput; bandwidth used; bytes/s"),
    # Devices.
    ("peak", "flop/s", "device", "most FLOP/s of a unit in a precision",
     "peak flop/s; peak performance; peak flops; roof; roof height"),
    ("bandwidth", "byte/s", "device", "of the device's own memory",
     "memory bandwidth; peak bandwidth; dram bandwidth; hbm bandwidth"),
    ("ridge", "flop/byte", "device", "peak by bandwidth",
     "ridge point; ridge-point; machine balance; peak ai; balance"),
    ("gpu_link", "byte/s", "device", "between two GPUs",
     "nvlink; nvlink bandwidth; gpu-gpu bandwidth; gpu to gpu bandwidth"),
    ("host_link", "byte/s", "device", "between GPU and CPU",
     "pcie; pcie bandwidth; gpu-cpu bandwidth; gpu to cpu bandwidth; host bandwidth"),
    # Conclusions.
    ("roof_share", "fraction", "table", "of what is attainable",
     "percent of roof; percent of attainable; share of the roof; of the roof; % of roof"),
    ("bound", "word", "table", "compute, memory or host; of a layer also why it is far from its roof: cache or latency",
     "bound by; verdict; bottleneck"),
    ("side", "word", "table", "of the ridge: memory (left) or compute (right)", "side of the ridge; ridge side"),
    ("preferred", "word", "table", "the device that is the faster one",
     "preferred device; faster device; faster; best device; better device"),
    ("batch", "count", "module", "samples a step works on", "batch size"),
    ("ratio", "ratio", "table", "one quantity by another: `a / b`", ""),
)  # fmt: skip
METRIC = re.compile(r"[a-z][a-z0-9]*__[a-z0-9_]+(?:\.[a-z0-9_]+)*")
"""How Nsight Compute names its counters."""
COUNTER = Quantity("counter", "counter", "counter", "a hardware counter by its own name")
_BRACKETS = re.compile(r"(?P<name>.+?)\s*[(\[]\s*(?:in\s+)?(?P<unit>[^()\[\]]+?)\s*[)\]]")
_PREFIXED = re.compile(r"(?P<unit>[KMGT])(?P<name>flops?(?:/s)?|macs?|params?|madds?)", re.IGNORECASE)
_PHASED = re.compile(r"(?P<phase>forward|backward|training|inference|optimizer)(?: pass| step)? (?P<name>.+)")
_PER_SAMPLE = re.compile(r"(?:per|/|a|an|each)\s*(?:image|sample|picture|example)")


@dataclass(frozen=True)
class Named:
    """A quantity as a row names it: `flops per image`, `wall time of conv2 / wall time`, a counter's own name."""

    quantity: Quantity
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

    named: Named
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


def named(text: str) -> Named:
    """The quantity that a row names."""
    written = " ".join(text.split())
    if METRIC.fullmatch(written.lower()):
        return Named(COUNTER, written, metric=written.lower())
    if (found := _SPELLED.get(_plain(written))) is not None:
        return Named(QUANTITIES[found], written, unit=_own_unit(written, QUANTITIES[found]))
    if " / " in written:
        above, _, below = written.partition(" / ")
        return Named(QUANTITIES["ratio"], written, parts=(_operand(above), _operand(below)))
    shorter = _PER_SAMPLE.sub(" ", written.lower()).strip(" ()")
    if shorter != written.lower() and (found := _SPELLED.get(_plain(shorter))) is not None:
        return Named(QUANTITIES[found], written, per_sample=True)
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


def _own_unit(written: str, quantity: Quantity) -> str:
    """A name that is a unit itself: `GFLOP/s`, `% of roof`."""
    if quantity.dimension == "fraction" and written.startswith("%"):
        return "%"
    unit = unit_of(written, "flop/s") if quantity.dimension == "flop/s" else None
    return written if unit is not None and unit.power else ""


def _with_unit(written: str) -> Named | None:
    """`FLOPs (G)`, `memory [MB]`, and `GFLOPs` with the prefix in front."""
    found = _BRACKETS.fullmatch(written) or _PREFIXED.fullmatch(written)
    if found is None or (name := _SPELLED.get(_plain(found["name"]))) is None:
        return None
    quantity = QUANTITIES[name]
    unit = written if quantity.dimension == "flop/s" and found.re is _PREFIXED else found["unit"]
    return Named(quantity, written, unit=unit) if unit_of(unit, quantity.dimension) else None


def _operand(text: str) -> Operand:
    found = re.fullmatch(r"(?P<name>.+?)(?:\s+of\s+(?P<of>\S+))?(?:\s+on\s+(?P<on>.+))?", text.strip())
    assert found is not None
    return Operand(named(found["name"]), found["of"] or "", found["on"] or "")


def _plain(text: str) -> str:
    """`Wall-Time_s` and `wall time` are one."""
    return " ".join(re.sub(r"[\s_]+", " ", text.lower()).removesuffix(" s").removesuffix("(s)").split())


_SPELLED = spellings()
