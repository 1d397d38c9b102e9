"""What would help, and by how much: each change is predicted like the step itself, not recited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from rooflight.errors import RooflightError
from rooflight.hardware.tasks import CONVOLUTION, FAMILIES, OUTPUT, Task
from rooflight.prediction.cells import Cell, cells_of, rates
from rooflight.prediction.prepared import Step
from rooflight.prediction.result import Advice
from rooflight.prediction.tiers import Predictor

_WORTH = 0.03
"""Gains below this are not worth a line."""
_HALVED = ("bytes_read", "bytes_written")


def advise(step: Step, predictor: Predictor, cell: Cell, *, graphs: bool,
           fits: Callable[[Step], bool] = lambda _: True) -> tuple[Advice, ...]:  # fmt: skip
    """The changes that gain something, best first. A larger batch is only advised where it fits."""
    found = []
    for change, made in _changes(step, predictor, graphs=graphs, fits=fits):
        other, with_graphs = made
        time_s = cells_of(other, [predictor], graphs=with_graphs)[0].wall_s
        gain = _gain(step, cell.wall_s, other, time_s)
        if gain >= _WORTH:
            found.append(Advice(change=change, time_s=time_s, throughput=rates(other, time_s)[0], gain=gain))
    return tuple(sorted(found, key=lambda one: -one.gain))


def _gain(step: Step, wall_s: float, other: Step, other_s: float) -> float:
    if not other_s:
        return 0.0
    more = other.batch / step.batch if step.batch and other.batch else 1.0
    return wall_s / other_s * more - 1


def _changes(step: Step, predictor: Predictor, *, graphs: bool,
             fits: Callable[[Step], bool]) -> list[tuple[str, tuple[Step, bool]]]:  # fmt: skip
    families = {task.family for task in step.tasks}
    precisions = {task.precision for task in step.tasks}
    found: list[tuple[str, tuple[Step, bool]]] = []
    larger = _larger(step)
    if larger is not None and fits(larger):
        found.append((f"batch {larger.batch} instead of {step.batch}", (larger, graphs)))
    if precisions & {"fp32", "tf32"} and timed_in_bf16(predictor):
        found.append(("bf16 for the whole model (--dtype bf16)", (in_bf16(step), graphs)))
    if "fp32" in precisions and "tf32" in predictor.device.tensor_flops_per_s and has_fp32_gemm(step):
        found.append(("TF32 in matmuls (--tf32)", (in_tf32(step), graphs)))
    if not graphs and predictor.device.kind == "gpu":
        found.append(("one CUDA graph for the step (--graphs)", (step, True)))
    if any(family.startswith("conv-") for family in families) and not is_channels_last(step):
        found.append(("channels_last for model and images", (changed(step, in_channels_last), graphs)))
    if "foreach" in families and predictor.device.kind == "gpu":
        found.append(("a fused optimizer (fused=True)", (fused(step), graphs)))
    return found


def _larger(step: Step) -> Step | None:
    """The step at four times its batch; `None` where there is no such step: advice never spoils what was asked."""
    if step.larger is None or step.batch is None:
        return None
    try:
        return step.larger(4 * step.batch)
    except RooflightError:
        return None


def timed_in_bf16(predictor: Predictor) -> bool:
    """Has the device bf16, and the calibration products in it? A CPU's was made in fp32 only."""
    timed = any(points.family == "gemm" and points.precision == "bf16" for points in predictor.calibration.points)
    return timed and "bf16" in predictor.device.tensor_flops_per_s


def has_fp32_gemm(step: Step) -> bool:
    return any(task.family == "gemm" and task.precision == "fp32" for task in step.tasks)


def is_channels_last(step: Step) -> bool:
    layout = CONVOLUTION.index("channels_last")
    return any(task.family.startswith("conv-") and task.numbers[layout] for task in step.tasks)


def changed(step: Step, change: Callable[[Task], Task]) -> Step:
    return replace(step, tasks=tuple(map(change, step.tasks)))


def in_bf16(step: Step) -> Step:
    return replace(changed(step, _in_bf16), runs_in={"fp32": "bf16", "tf32": "bf16"})


def in_tf32(step: Step) -> Step:
    """In products: nothing else changes, but a floor may be too low for what does not."""
    return replace(changed(step, _in_tf32), runs_in={"fp32": "tf32"})


def _in_bf16(task: Task) -> Task:
    """Half the bytes, on tensor cores; fused attention in the kernel that bf16 has."""
    if task.precision not in ("fp32", "tf32"):
        return task
    family = task.family.replace("-efficient-", "-cudnn-")
    named = zip((*FAMILIES[family], *OUTPUT), task.numbers, strict=False)
    numbers = tuple(value // 2 if name in _HALVED else value for name, value in named)
    return Task(family.replace("batch-norm-cudnn", "batch-norm-native"), "bf16", numbers)


def _in_tf32(task: Task) -> Task:
    return Task(task.family, "tf32", task.numbers) if task.family == "gemm" and task.precision == "fp32" else task


def in_channels_last(task: Task) -> Task:
    """Convolutions need no change of layout any more; norms and pools follow theirs."""
    names = FAMILIES[task.family]
    if "channels_last" not in names:
        return task
    place = names.index("channels_last")
    family = task.family.replace("batch-norm-cudnn", "batch-norm-native") if task.precision != "fp32" else task.family
    return Task(family, task.precision, (*task.numbers[:place], 1, *task.numbers[place + 1 :]))


def fused(step: Step) -> Step:
    """All ops of the optimizer in one kernel: parameters, gradients and states read and written once."""
    lists = [task for task in step.tasks if task.family == "foreach"]
    widest = max(lists, key=lambda task: task.numbers[1])
    tensors, elements = widest.numbers[:2]
    size = 2 if widest.precision == "bf16" else 4
    adam = "adam" in (step.ledger.header.optimizer or "")
    reads, writes = (4, 3) if adam else (3, 2)
    task = Task("fused-adam" if adam else "fused-sgd", widest.precision,
                (tensors, elements, reads * elements * size, writes * elements * size))  # fmt: skip
    optimizer_kinds = {kind for op, kind in zip(step.ledger.ops, step.kind_of.tolist(), strict=True)
                       if op.phase == "optimizer"}  # fmt: skip
    kept = [(task, kind) for task, kind in zip(step.tasks, step.task_kind.tolist(), strict=True)
            if kind not in optimizer_kinds]  # fmt: skip
    first = min(optimizer_kinds)
    repeats = int((step.kind_of == first).sum())
    if repeats != 1:
        first = next((kind for kind in sorted(optimizer_kinds) if int((step.kind_of == kind).sum()) == 1), first)
    kept.append((task, first))
    return replace(step, tasks=tuple(task for task, _ in kept), task_kind=np.array([kind for _, kind in kept]))
