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
              "share of flops; flop share; flops share; fraction; flops fraction; percent of flops; fraction of flops; "
              "% of total; % of flops; % flops; flops %; percent of total; % of total flops; share of total; share %"),
    "trainable_params": ("count", "parameters that are trained", "trainable params; trainable parameters"),
    "param_bytes": ("byte", "bytes of the parameters",
                    "parameter bytes; param bytes; params size; parameter size; param size; parameter memory; "
                    "theoretical memory"),
    "model_bytes": ("byte", "bytes of parameters and buffers", "model bytes; model size"),
    "output_shape": ("shape", "shape of what it gives", "output shape; shape; output"),
    "output_size": ("count", "height (= width) of what it gives",
                    "output size; output image size; output width; output height; output features"),
    "output_elements": ("count", "elements of what it gives", "output elements; outputs; neurons"),
    "output_bytes": ("byte", "bytes of what it gives",
                     "output bytes; output tensor; output memory; activation size; size increase"),
    "input_features": ("count", "last size of what it gets", "input features; in features; in_features; input width"),
    "input_bytes": ("byte", "bytes of what it gets", "input bytes; input tensor"),
    "weight_output_bytes": ("byte", "bytes of its parameters and of what it gives",
                            "weight + output bytes; weights + output bytes; output + parameter bytes; "
                            "parameter + output bytes; output + weight bytes; weight+output bytes"),
    "layers": ("count", "how many there are",
               "layer count; number of layers; conv layers; convolutional layers; linear layers; fc layers; depth"),
    "batch": ("count", "samples a step works on", "batch size"),
    # The memory lines of a model summary.
    "input_size": ("byte", "bytes of the step's inputs", "input size"),
    "input_shape": ("shape", "shape of the step's input; of a picture its height (= width) alone too",
                    "input shape; image size; img size; image resolution; input resolution; resolution; "
                    "input image size; infer img size; input dimensions; input dim"),
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
    "memory": ("byte", "memory that does not say whose",
               "mem; memory size; memory usage; vram; vram usage; gpu mem; gpu mem."),
    # Of a run.
    "cuda_flops": ("flop", "fadd + fmul + 2 x ffma: the CUDA cores alone",
                   "cuda flops; cuda-core flops; cuda core flops; fadd+fmul+2*ffma; fadd + fmul + 2*ffma; "
                   "fadd + fmul + 2 x ffma"),
    "tensor_flops": ("flop", "what the tensor cores executed", "tensor flops; tensor-core flops; tensor core flops"),
    "time": ("second", "a time that does not say whose",
             "runtime; run time; inference time; step time; latency; duration"),
    # Devices.
    "peak": ("flop/second", "most FLOP/s of a unit in a precision",
             "peak flop/s; peak performance; peak flops; roof; roof height; peak compute"),
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
_BRACKETS = re.compile(r"(?P<name>.+?),?\s*[(\[]\s*(?:in\s+)?(?P<unit>[^()\[\]]+?)\s*[)\]]")
_BEHIND = re.compile(r"(?P<name>.+?)[\s,_]+(?:in\s+)?(?P<unit>[^\s()\[\]_]+)")
_WORK = re.compile(r"(?:[KMGTP] ?)?FLOPS?", re.IGNORECASE)
"""What may be FLOPs or FLOP/s: people write both so."""
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
_PER_SAMPLE = re.compile(r"(?:/|\b(?:per|a|an|each)\s)\s*(?:image|img|sample|picture|example|frame)\b", re.IGNORECASE)
_PER_TOKEN = re.compile(r"(?:/|\bper\s)\s*(?:token|tok)\b", re.IGNORECASE)
_PRECISION = re.compile(r"(?:fp|bf|tf|int)[0-9]{1,2}|single|double|half", re.IGNORECASE)


_KIND_WORDS = re.compile(rf"\b(?:{_MEASURED}|{_ESTIMATED})\b|[()\[\],]|\s", re.IGNORECASE)


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
    precision: str = ""
    """That its words tell: `peak TFLOPS (fp32)`."""

    @property
    def is_by_peak(self) -> bool:
        """Do its words say that it is FLOPs over a peak, and no other model's?"""
        return self.kind == "estimated" and _BY_PEAK.search(self.written) is not None

    @property
    def may_be_a_speed(self) -> bool:
        """FLOPs whose name is also written for FLOP/s: `TFLOPS`."""
        bare = _KIND_WORDS.sub("", self.written)
        return (
            self.quantity.name in ("flops", "executed_flops")
            and not self.per_sample
            and _WORK.fullmatch(bare) is not None
        )


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
    shorter = " ".join(_PER_SAMPLE.sub(" ", written).split()).strip()
    if shorter != written and shorter:
        return replace(_of_a_sample(shorter, written), written=written, per_sample=True)
    if (with_unit := _with_unit(written)) is not None:
        return with_unit
    raise UnknownQuantity(_unknown(written))


def _of_a_sample(shorter: str, written: str) -> NamedQuantity:
    """`time per image (ms)` and `ms/img` without the sample."""
    try:
        return named(shorter)
    except UnknownQuantity:
        raise UnknownQuantity(_unknown(written)) from None


def _unknown(written: str) -> str:
    """Why a name is no quantity, and what was meant."""
    plain = _plain(written)
    if (phase := _PHASED.fullmatch(plain)) is not None and phase["name"] in _SPELLED:
        return f"{written!r} names a phase: write {phase['name']} as quantity, and {phase['phase']} in the column phase"
    if plain == "ratio":
        return "a ratio of what? Write it as `wall time / gpu busy`, with spaces around the /"
    said = f"{written!r} is no quantity that can be checked"
    if _PER_TOKEN.search(plain):
        return f"{said}: nothing is known for one token, state it for the step or for a sample"
    near = [
        word
        for word in difflib.get_close_matches(plain, _SPELLED, n=3, cutoff=0.8)
        if word.split()[:-1] == plain.split()[:-1] or len(word.split()) == len(plain.split()) == 1
    ]
    names = list(dict.fromkeys(_SPELLED[word] for word in near if len(plain) > 4))
    hint = f"did you mean {' or '.join(names)}?" if names else "a ledger knows nothing of it"
    return f"{said}: {hint}"


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
    if quantity.unit == "part" and ("%" in written or "percent" in written.lower()):
        return "%"
    unit = table_unit(written, quantity.unit) if quantity.unit == "flop/second" else None
    return written if unit is not None and unit.power else ""


_WEIGHED = {"params": "param_bytes", "output_shape": "output_bytes", "input_shape": "input_size"}
"""Quantities that are another one where they are in bytes."""


def _with_unit(written: str) -> NamedQuantity | None:
    """`FLOPs (G)`, `memory [MB]`, `DRAM GB`, `GFLOPs` with the prefix in front, `GB/s` alone; and `peak (fp32)`."""
    for base, name in (("byte/second", "traffic"), ("second", "time")):
        unit = table_unit(written, base)
        if unit is not None and unit.power:
            return NamedQuantity(QUANTITIES[name], written, unit=written)
    prefixed = _PREFIXED.fullmatch(written)
    if prefixed is not None and _plain(prefixed["name"]) in _SPELLED:
        quantity = QUANTITIES[_SPELLED[_plain(prefixed["name"])]]
        return NamedQuantity(quantity, written, unit=written if quantity.unit == "flop/second" else prefixed["unit"])
    match = _BRACKETS.fullmatch(written) or _BEHIND.fullmatch(written)
    if match is None:
        return None
    try:
        inner = named(match["name"])
    except UnknownQuantity:
        return None
    return _in_unit(inner, match["unit"], written)


def _in_unit(inner: NamedQuantity, text: str, written: str) -> NamedQuantity | None:
    """A quantity whose name has this unit, or this precision, behind it; `None` where it cannot have it."""
    if _PRECISION.fullmatch(text):
        return replace(inner, written=written, precision=text.lower())
    base, name = inner.quantity.unit, inner.quantity.name
    if base not in ("shape", "word") and (unit := table_unit(text, base)) is not None:
        is_twice = bool(inner.unit) and table_unit(inner.unit, base) != unit and inner.unit.lower() != text.lower()
        return None if is_twice else replace(inner, written=written, unit=text)
    if name in _WEIGHED and table_unit(text, "byte") is not None:
        return replace(inner, written=written, quantity=QUANTITIES[_WEIGHED[name]], unit=text)
    if name == "dram_bytes" and table_unit(text, "byte/second") is not None:
        return replace(inner, written=written, quantity=QUANTITIES["traffic"], unit=text)
    return None


def _operand(text: str) -> Operand:
    match = re.fullmatch(r"(?P<name>.+?)(?:\s+of\s+(?P<of>\S+))?(?:\s+on\s+(?P<on>.+))?", text.strip())
    assert match is not None
    return Operand(named(match["name"]), match["of"] or "", match["on"] or "")


def _plain(text: str) -> str:
    """`Wall-Time_s` and `wall time` are one."""
    spaced = re.sub(r"[\s_]+", " ", text.lower()).removesuffix(" s").removesuffix("(s)")
    return re.sub(r" ?/ ?sec(?:ond)?$", "/s", " ".join(spaced.split()))


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
