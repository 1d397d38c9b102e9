"""Whether there is room for a step that is really run."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy

from rooflight import formatting
from rooflight.errors import CannotMeasure
from rooflight.machine import memory_use
from rooflight.models.workload import Workload
from rooflight.spec import StepSpec
from rooflight.trace.optimizers import chosen_optimizer, make_state
from rooflight.trace.saved_state import optimizer_tensors
from rooflight.trace.step import TrainingChoices


def refuse_what_cannot_fit(
    where: torch.device, spec: StepSpec, workload: Workload, *, instead: str = "`rooflight estimate` it instead"
) -> None:
    """Before memory for the weights is taken: a machine that runs out of it kills without a word."""
    weights = sum(
        tensor.numel() * tensor.element_size() for tensor in workload.model.parameters() if not is_lazy(tensor)
    )
    training = spec.step == "train"
    states = state_bytes(spec, workload, lists=where.type == "cuda") if training else 0
    needed = {where: 2 * weights + states if training else weights}
    # The copy to restore from lies on the host, whatever the device; and a replica of all of it for every process.
    host = torch.device("cpu")
    needed[host] = spec.gpus * (needed.get(host, 0) + weights + states)
    what = "weights, gradients and optimizer state" if training else "weights"
    for device, nbytes in needed.items():
        free = free_bytes(device)
        if free is not None and nbytes > free:
            copy = "" if device != host else " and a copy of them" if where == host else " (a copy to restore from)"
            times = f" in each of {spec.gpus} processes" if spec.gpus > 1 and device == host else ""
            raise CannotMeasure(
                "step-too-large",
                f"{workload.name} needs {formatting.bytes_(nbytes)} for its {what}{copy}{times}, and {device} has "
                f"{formatting.bytes_(free)} free: {instead}, or use a smaller model or dtype",
            )


def state_bytes(spec: StepSpec, workload: Workload, *, lists: bool) -> int:
    """Of the optimizer, which makes it of parameters without data."""
    if any(map(is_lazy, workload.model.parameters())):
        return 0
    choices = TrainingChoices(
        optimizer=workload.optimizer if spec.optimizer is None else spec.optimizer,
        foreach=spec.foreach,
        takes_lists=lists,
        fused=spec.fused,
    )
    optimizer = chosen_optimizer(workload.model, choices)
    if optimizer is not None:
        make_state(optimizer, workload.model, choices)
    return sum(tensor.nbytes for tensor in optimizer_tensors(optimizer))


def free_bytes(where: torch.device) -> int | None:
    if where.type == "cuda":
        return torch.cuda.mem_get_info(where)[0]
    memory = memory_use.ram()
    return None if memory is None else memory.free_bytes if memory.free_bytes is not None else memory.total_bytes
