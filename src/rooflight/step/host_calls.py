"""Seconds that the host spends on every op, from what calibration found: for classes of ops, for every kernel that is
launched, for every call of a module.

An op costs what its class does (dispatcher, autograd, the library's own way to a kernel), and something more for every
kernel: a convolution that changes layouts before and after costs three launches more than one that does not. What
Python does between ops is told by the calls of modules. A calibration of before launches were told apart has costs of
classes only, by precision, and a factor for mixtures of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from rooflight.ledger import PHASES, Ledger, Op, Value
from rooflight.ops.kernel_task import Task
from rooflight.ops.op_tasks import tasks_of
from rooflight.step.cache_reuse import Array

_CLASSES = (
    ("gemm", "gemm"), ("conv", "conv"), ("attention-cudnn", "attention-cudnn"), ("attention-flash", "attention-flash"),
    ("attention-", "attention-efficient"), ("batch-norm-native", "batch-norm-native"), ("batch-norm", "batch-norm"),
    ("layer-norm", "layer-norm"), ("group-norm", "layer-norm"), ("plain", "plain"), ("copy", "plain"),
    ("cast", "plain"), ("mixed", "broadcast"), ("math", "math"), ("broadcast", "broadcast"), ("strided", "strided"),
    ("dropout", "dropout"), ("cat", "cat"), ("reduce", "reduce"), ("scan", "reduce"), ("softmax", "softmax"),
    ("embedding", "embedding"), ("index", "embedding"), ("gather", "embedding"), ("scatter-add", "embedding"),
    ("recurrent", "gemm"), ("max-pool", "pool"), ("avg-pool", "pool"),
)  # fmt: skip
_INSTEAD = {
    "batch-norm-native": "batch-norm", "embedding": "broadcast", "attention-cudnn": "attention",
    "attention-flash": "attention", "attention-efficient": "attention",
}  # fmt: skip
"""Classes that older calibrations did not tell apart."""
_NO_LAUNCH = 0.5
"""An op that launches nothing costs about half of a plain one: the dispatcher, not the driver."""
_INSIDE = 0.5
"""What an op calls inside itself costs about half as much as called from Python: the driver, not the interpreter."""
_MANY, _IN_A_LOOP = 8, 0.7
"""From so many kernels of one op on, a library launches them in a loop of its own, as cuDNN does the steps of a
recurrent layer: in six steps of recurrent networks of our own on an H200 (4 to 18 us a kernel, 8.5 in the median) each
costs this much of one that torch launches."""
LAYERS = ("MultiheadAttention", "TransformerEncoderLayer")
"""torch's own modules with much Python of their own, whose calls are costed beside those of all modules."""


HostParts = tuple[tuple[tuple[str, str], float], ...]
"""What an op costs the host: classes of ops with their precision, and how often each."""
_AS_TRACED: Mapping[str, str] = {}


def host_class(task: Task) -> str:
    """The class of ops that calibration timed the like of."""
    return next((name for start, name in _CLASSES if task.family.startswith(start)), "plain")


def host_seconds(
    ledger: Ledger,
    costs: Mapping[str, Value],
    runs_in: Mapping[str, str] = _AS_TRACED,
    alike: tuple[Sequence[HostParts], npt.NDArray[np.intp]] | None = None,
    *,
    kernels: Array | None = None,
    called: Sequence[tuple[str, ...]] | None = None,
) -> Array:
    """One number an op. The optimizer's own work is spread over its ops. `runs_in`: precisions that stand for those of
    the trace. `alike`: what every kind of op costs the host, and of which kind each op is, where that is known.
    `kernels`: launched by every op; else one for each that computes. `called`: `module_entries`, if known already."""
    kinds, kind_of = alike or ([parts_of(op) for op in ledger.ops], np.arange(len(ledger.ops)))
    training = ledger.header.step == "train"
    times_s: dict[tuple[str, HostParts], float] = {}

    def seconds_of(parts: HostParts, phase: str) -> float:
        if (phase, parts) not in times_s:
            run = (((name, runs_in.get(precision, precision)), weight) for (name, precision), weight in parts)
            mixed = _value(costs, f"mixed.{phase}") or 1.0
            times_s[phase, parts] = mixed * sum(weight * cost_of(*part, phase, costs) for part, weight in run)
        return times_s[phase, parts]

    # What is done beside the model's passes is done without autograd.
    named = [phase if training and phase != "other" else "infer" for phase in PHASES]
    by_kind = np.array([[seconds_of(parts, phase) for phase in named] for parts in kinds])
    phase_of = phases_of(ledger)
    seconds: Array = by_kind[kind_of, phase_of] if len(phase_of) else np.zeros(0)
    if len(seconds):
        launched = launched_once(ledger) if kernels is None else kernels
        launched = np.minimum(launched, _MANY) + _IN_A_LOOP * np.maximum(launched - _MANY, 0.0)
        seconds = seconds + launched * np.array([_value(costs, f"launch.{phase}") for phase in named])[phase_of]
        seconds += _called(ledger, costs, "forward" if training else "infer", called)
    optimizing = phase_of == PHASES.index("optimizer")
    if optimizing.any():
        seconds[optimizing] = _optimizer_seconds(ledger, costs) / int(optimizing.sum())
    if training and len(seconds):
        seconds[0] += _value(costs, "step.train")
    return seconds


def launched_once(ledger: Ledger) -> Array:
    """A kernel for each op that computes: what is taken where nobody knows better."""
    return np.array([op.kind == "compute" for op in ledger.ops], dtype=np.float64)


def phases_of(ledger: Ledger) -> npt.NDArray[np.intp]:
    """Of every op, as a place in `PHASES`."""
    return np.array([PHASES.index(op.phase) for op in ledger.ops], dtype=np.intp)


def _value(costs: Mapping[str, Value], key: str) -> float:
    return float(costs[key].value) if key in costs else 0.0


def parts_of(op: Op) -> HostParts:
    if op.kind == "view":
        return ((("view", ""), 1.0),)
    tasks = tasks_of(op) if op.kind == "compute" else []
    if not tasks:
        return ((("plain", ""), _NO_LAUNCH),)
    first, *others = ((host_class(task), task.precision) for task in tasks)
    if first[0] == "conv":
        others = [other for other in others if other[0] != "conv"]  # its gradients were timed as one op
    return ((first, 1.0), *((other, _INSIDE) for other in others[:_MANY]))  # of a library's loop, the rest is launches


def module_entries(ledger: Ledger) -> list[tuple[str, ...]]:
    """For every op: the modules that were called since the op before, by their types, outermost first. Backward calls
    none."""
    types = {module.path: module.type for module in ledger.modules if module.type not in _NEVER_CALLED}
    paths = {module.path for module in ledger.modules}
    entries: list[tuple[str, ...]] = []
    before: list[str] = []
    call = 0
    for op in ledger.ops:
        if op.phase != "forward" or op.module not in paths:
            entries.append(())
            continue
        path = op.module.split(".") if op.module else []
        shared = 0
        while shared < min(len(path), len(before)) and path[shared] == before[shared]:
            shared += 1
        if path == before and op.call != call and path:
            shared -= 1  # the same module, once more
        inside = [".".join(path[: length + 1]) for length in range(shared, len(path))]
        entries.append(tuple(types[module] for module in inside if module in types))
        before, call = path, op.call
    return entries


def _called(ledger: Ledger, costs: Mapping[str, Value], phase: str, called: Sequence[tuple[str, ...]] | None) -> Array:
    each, more = (_value(costs, f"module.{phase}"), {layer: _value(costs, f"{layer}.{phase}") for layer in LAYERS})
    if not each and not any(more.values()):
        return np.zeros(len(ledger.ops))
    entered = module_entries(ledger) if called is None else called
    return np.array([sum(each + more.get(kind, 0.0) for kind in some) for some in entered], dtype=np.float64)


_NEVER_CALLED = ("ModuleList", "ModuleDict")


def is_narrow(precision: str) -> bool:
    """Sixteen bits have kernels of their own, and more of them; TF32 is fp32 to the host."""
    return precision in ("bf16", "fp16")


def cost_of(name: str, precision: str, phase: str, costs: Mapping[str, Value]) -> float:
    """Seconds of a class of ops; a class that was not timed costs what a plain one does."""
    if name == "view" and phase == "backward":
        return 0.0  # most are made inside another op's node there
    for instead in (name, _INSTEAD.get(name, name)):
        key = f"{instead}.{phase}"
        if is_narrow(precision) and f"{key}.bf16" in costs:
            return _value(costs, f"{key}.bf16")
        if key in costs:
            return _value(costs, key)
    return _value(costs, f"plain.{phase}")


def _optimizer_seconds(ledger: Ledger, costs: Mapping[str, Value]) -> float:
    count = Counter(storage.category for storage in ledger.storages if not storage.host)
    # Timed are one that keeps two numbers for every weight and one that keeps none.
    kind = "adamw" if count["optimizer-state"] > count["gradient"] else "sgd"
    tensors = sum(1 for storage in ledger.storages if storage.category == "parameter")
    return _value(costs, f"optimizer.{kind}.step") + tensors * _value(costs, f"optimizer.{kind}.tensor")
