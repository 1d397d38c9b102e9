"""Seconds that the host spends on every op, from what calibration found for classes of ops."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from rooflight.hardware.tasks import Task
from rooflight.ledger import Ledger, Op, Value
from rooflight.prediction.cache import Array
from rooflight.prediction.tasks import tasks_of

_CLASSES = (
    ("gemm", "gemm"), ("conv-", "conv"), ("attention-", "attention"), ("batch-norm", "batch-norm"),
    ("layer-norm", "layer-norm"), ("group-norm", "layer-norm"), ("plain", "plain"), ("cast", "plain"),
    ("math", "math"), ("broadcast", "broadcast"), ("strided", "strided"), ("dropout", "dropout"), ("cat", "cat"),
    ("reduce", "reduce"), ("softmax", "softmax"), ("embedding", "broadcast"), ("max-pool", "pool"),
    ("avg-pool", "pool"),
)  # fmt: skip
_NO_LAUNCH = 0.5
"""An op that launches nothing costs about half of a plain one: the dispatcher, not the driver."""
_INSIDE = 0.5
"""What an op calls inside itself costs about half as much as called from Python: the driver, not the interpreter."""


def host_class(task: Task) -> str:
    """The class of ops that calibration timed the like of."""
    return next((name for start, name in _CLASSES if task.family.startswith(start)), "plain")


def host_seconds(ledger: Ledger, costs: Mapping[str, Value]) -> Array:
    """One number an op. The optimizer's own work is spread over its ops."""
    training = ledger.header.step == "train"
    known: dict[tuple[str, str, str | None, int], float] = {}
    seconds = np.zeros(len(ledger.ops))
    optimizing: list[int] = []
    for place, op in enumerate(ledger.ops):
        if op.phase == "optimizer":
            optimizing.append(place)
            continue
        phase = op.phase if training else "infer"
        key = (op.name, phase, op.precision, sum(1 for _ in op.inputs))
        found = known.get(key)
        if found is None:
            found = known[key] = _of_op(op, phase, costs) * (_value(costs, f"mixed.{phase}") or 1.0)
        seconds[place] = found
    if optimizing:
        seconds[optimizing] = _optimizer_seconds(ledger, costs) / len(optimizing)
    if training and len(seconds):
        seconds[0] += _value(costs, "step.train")
    return seconds


def _value(costs: Mapping[str, Value], key: str) -> float:
    found = costs.get(key)
    return 0.0 if found is None else float(found.value)


def _of_op(op: Op, phase: str, costs: Mapping[str, Value]) -> float:
    if op.kind == "view":
        return 0.0 if phase == "backward" else _value(costs, f"view.{phase}")
    tasks = tasks_of(op) if op.kind == "compute" else []
    if not tasks:
        return _NO_LAUNCH * _value(costs, f"plain.{phase}")
    first, *others = tasks
    if host_class(first) == "conv":
        others = [task for task in others if host_class(task) != "conv"]  # its gradients were timed as one op
    return _of_task(first, phase, costs) + _INSIDE * sum(_of_task(task, phase, costs) for task in others)


def _of_task(task: Task, phase: str, costs: Mapping[str, Value]) -> float:
    key = f"{host_class(task)}.{phase}"
    narrow = _value(costs, f"{key}.bf16") if task.precision in ("bf16", "fp16") else 0.0
    return narrow or _value(costs, key) or _value(costs, f"plain.{phase}")


def _optimizer_seconds(ledger: Ledger, costs: Mapping[str, Value]) -> float:
    kind = "adamw" if "adam" in (ledger.header.optimizer or "") else "sgd"
    tensors = sum(1 for storage in ledger.storages if storage.category == "parameter")
    return _value(costs, f"optimizer.{kind}.step") + tensors * _value(costs, f"optimizer.{kind}.tensor")
