"""The quantities that a table may claim something of: the metrics that have spellings (`rooflight.metrics`), and what
only tables of people have."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from rooflight.analysis.finding import Finding
from rooflight.hardware.counter_names import meant_counter
from rooflight.measurement.cupti.cupti import Host
from rooflight.metrics import METRICS
from rooflight.units import table_unit

KindName = Literal["measured", "estimated"]
"""Whether a run gave a number, or mathematics."""


@dataclass(frozen=True)
class ClaimQuantity:
    """One that can be claimed: a metric that has spellings, or what only tables of people have."""

    name: str
    unit: str
    """The base unit it is counted in, as `rooflight.units` has it; or `counter`, `shape`, `word`."""
    about: str
    spelled: tuple[str, ...] = ()
    metric: str = ""
    """Its name in `rooflight.metrics`."""


_RENAMED = {
    "wall_time_s": "wall_time", "gpu_busy_s": "gpu_busy", "kernel_time_s": "kernel_time", "flops_per_s": "performance",
    "dram_bytes_per_s": "traffic", "device_bytes": "gpu_memory_bytes", "percent_of_roof": "roof_share",
}  # fmt: skip
"""Metrics that tables know by another name."""
_UNITS = {"macs": "mac", "percent_of_roof": "part"}
"""Metrics that are stated in another unit than they are told in."""
_ONLY_IN_TABLES: dict[str, tuple[str, str, str]] = {
    # What a layer costs, and what it is.
    "ops": ("flop", "matrix FLOPs, or the other ones of a layer that has none", "operations; total ops; op count"),
    "share": ("part", "part of the model's matrix FLOPs",
              "share of flops; flop share; flops share; fraction; flops fraction; percent of flops; fraction of flops"),
    "trainable_params": ("count", "parameters that are trained", "trainable params; trainable parameters"),
    "param_bytes": ("byte", "bytes of the parameters",
                    "parameter bytes; param bytes; params size; parameter size; param size; parameter memory; "
                    "theoretical memory"),
    "model_bytes": ("byte", "bytes of parameters and buffers", "model bytes; model size"),
    "output_shape": ("shape", "shape of what it gives", "output shape; shape; output"),
    "output_size": ("count", "height (= width) of what it gives",
                    "output size; output image size; image size; output width; output height; output features"),
    "output_elements": ("count", "elements of what it gives", "output elements; outputs; neurons"),
    "output_bytes": ("byte", "bytes of what it gives",
                     "output bytes; output tensor; output memory; activation size; size increase"),
    "input_features": ("count", "last size of what it gets", "input features; in features; in_features; input width"),
    "input_bytes": ("byte", "bytes of what it gets", "input bytes; input tensor"),
    "weight_output_bytes": ("byte", "bytes of its parameters and of what it gives",
                            "weight + output bytes; weights + output bytes; output + parameter bytes; "
                            "parameter + output bytes; output + weight bytes; weight+output bytes"),
    "layers": ("count", "how many there are", "layer count; number of layers; conv layers"),
    "batch": ("count", "samples a step works on", "batch size"),
    # The memory lines of a model summary.
    "input_size": ("byte", "bytes of the step's inputs", "input size"),
    "forward_backward_bytes": ("byte", "every output twice, once for its gradient",
                               "forward/backward size; forward/backward pass size; forward/backward pass"),
    "total_size": ("byte", "inputs, parameters, and every output twice",
                   "total size; estimated total size; estimated total; total memory by summary"),
    # Memory of a step.
    "kept_bytes": ("byte", "activations kept for backward", "activations; activation bytes; kept for backward"),
    "activation_gradient_bytes": ("byte", "gradients of the activations, all that backward makes",
                                  "errors; activation gradients; gradients of activations; error bytes"),
    "gradient_bytes": ("byte", "gradients of the parameters", "gradients; gradient bytes"),
    "optimizer_bytes": ("byte", "optimizer state", "optimizer state; momentum; optimizer bytes"),
    "op_allocated_bytes": ("byte", "output and workspace together",
                           "allocation size; allocated by the op; allocation; output + workspace"),
    "self_growth_bytes": ("byte", "output minus the workspace that was given back", "self size increase; self growth"),
    "memory": ("byte", "memory that does not say whose", "mem; memory size; memory usage"),
    # Of a run.
    "cuda_flops": ("flop", "fadd + fmul + 2 x ffma: the CUDA cores alone",
                   "cuda flops; cuda-core flops; cuda core flops; fadd+fmul+2*ffma; fadd + fmul + 2*ffma; "
                   "fadd + fmul + 2 x ffma"),
    "tensor_flops": ("flop", "what the tensor cores executed", "tensor flops; tensor-core flops; tensor core flops"),
    "time": ("second", "a time that does not say whose",
             "runtime; run time; inference time; step time; latency; duration"),
    # Devices.
    "peak": ("flop/second", "most FLOP/s of a unit in a precision",
             "peak flop/s; peak performance; peak flops; roof; roof height"),
    "bandwidth": ("byte/second", "of the device's own memory",
                  "memory bandwidth; peak bandwidth; dram bandwidth; hbm bandwidth"),
    "gpu_link": ("byte/second", "between two GPUs",
                 "nvlink; nvlink bandwidth; gpu-gpu bandwidth; gpu to gpu bandwidth"),
    "host_link": ("byte/second", "between GPU and CPU",
                  "pcie; pcie bandwidth; gpu-cpu bandwidth; gpu to cpu bandwidth; host bandwidth"),
    # Conclusions.
    "bound": ("word", "compute, memory or host; of a layer also why it is far from its roof: cache or latency",
              "bound by; verdict; bottleneck"),
    "side": ("word", "of the ridge: memory (left) or compute (right)", "side of the ridge; ridge side"),
    "preferred": ("word", "the device that is the faster one",
                  "preferred device; faster device; faster; best device; better device"),
    "ratio": ("times", "one quantity by another: `a / b`", ""),
}  # fmt: skip


def _quantities() -> Iterator[ClaimQuantity]:
    for metric in METRICS.values():
        if metric.spelled:
            name, unit = _RENAMED.get(metric.name, metric.name), _UNITS.get(metric.name, metric.unit)
            yield ClaimQuantity(name, unit, metric.about, tuple(metric.spelled.split("; ")), metric.name)
    for name, (unit, about, spelled) in _ONLY_IN_TABLES.items():
        yield ClaimQuantity(name, unit, about, tuple(filter(None, spelled.split("; "))))


QUANTITIES: dict[str, ClaimQuantity] = {quantity.name: quantity for quantity in _quantities()}
METRIC = re.compile(r"[a-z][a-z0-9]*__[a-z0-9_]+(?:\.[a-z0-9_]+)*")
"""How Nsight Compute names its counters."""
COUNTER = ClaimQuantity("counter", "counter", "a hardware counter by its own name")
_BRACKETS = re.compile(r"(?P<name>.+?)\s*[(\[]\s*(?:in\s+)?(?P<unit>[^()\[\]]+?)\s*[)\]]")
_PREFIXED = re.compile(r"(?P<unit>[KMGT])(?P<name>flops?(?:/s)?|macs?|params?|madds?)", re.IGNORECASE)
_PHASED = re.compile(r"(?P<phase>forward|backward|training|inference|optimizer)(?: pass| step)? (?P<name>.+)")
_MEASURED = "measured|actual|observed|profiled|recorded|timed|counted|achieved"
_ESTIMATED = "theoretical|estimated|predicted|calculated|computed|ideal|expected|modelled|analytical|paleo"
_WORD_FIRST = re.compile(rf"(?:(?P<measured>{_MEASURED})|(?P<estimated>{_ESTIMATED}))\s+(?P<name>.+)", re.IGNORECASE)
_WORD_LAST = re.compile(
    rf"(?P<name>.+?),?\s+[(\[]?(?:(?P<measured>{_MEASURED})|"
    rf"(?P<estimated>{_ESTIMATED}|(?:by |= ?|from )?flops? ?/ ?peak))[)\]]?",
    re.IGNORECASE,
)
_BY_PEAK = re.compile(r"theoretical|ideal|/ ?peak|paleo", re.IGNORECASE)
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
    kind: KindName | None = None
    """That its words tell: a `theoretical time` is computed."""

    @property
    def is_by_peak(self) -> bool:
        """Do its words say that it is FLOPs over a peak, and no other model's?"""
        return self.kind == "estimated" and _BY_PEAK.search(self.written) is not None


@dataclass(frozen=True)
class Operand:
    """One side of a ratio: `parameters of resnet50`, `measured flops on A100`."""

    named: NamedQuantity
    of: str = ""
    on: str = ""


class UnknownQuantity(ValueError):
    """Nothing by that name; the message says what was meant."""


def named(text: str) -> NamedQuantity:
    """The quantity that a row names."""
    written = " ".join(text.split())
    if METRIC.fullmatch(written.lower()):
        return NamedQuantity(COUNTER, written, metric=written.lower())
    if (name := _SPELLED.get(_plain(written))) is not None:
        unit = _own_unit(written, QUANTITIES[name])
        return NamedQuantity(QUANTITIES[name], written, unit=unit, kind=_kind_of(_WORD_FIRST.fullmatch(written)))
    if (without := _without_kind(written)) is not None:
        return without
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


def _kind_of(match: re.Match[str] | None) -> KindName | None:
    if match is None:
        return None
    return "measured" if match["measured"] else "estimated"


def _without_kind(written: str) -> NamedQuantity | None:
    """`measured time (ms)`, `time by FLOPs / peak`: the quantity without the word that tells its kind."""
    match = _WORD_LAST.fullmatch(written) or (None if " / " in written else _WORD_FIRST.fullmatch(written))
    if match is None:
        return None
    try:
        return replace(named(match["name"]), written=written, kind=_kind_of(match))
    except UnknownQuantity:
        return None


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


_SPELLED = {
    _plain(word): name for name, quantity in QUANTITIES.items() if name != "ratio" for word in (name, *quantity.spelled)
}
"""Every spelling and the quantity it stands for; a ratio is spelled by its two sides."""


def misspelt_counter(name: str, measured: frozenset[str]) -> Finding | None:
    """The counter that was meant, where there is none by that name but one with a letter or two less or more."""
    meant = meant_counter(name, measured)
    if meant is None or _exists(name.partition(".")[0]):
        return None
    return Finding("metric-misspelt", f"there is no counter {name}: it is {meant}; Nsight Compute reports n/a", meant)


def _exists(base: str) -> bool:
    """Does NVIDIA's own table have it, where that is installed?"""
    try:
        with Host("GH100") as host:
            return host.is_known(f"{base}.sum")
    except Exception:  # no library, or one that wants a driver: the near names decide
        return False
