"""The step that a caller means: a model by name, built here, or a live module with the inputs it is called with."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from rooflight.errors import BadInput
from rooflight.ledger import StepKind
from rooflight.models import build
from rooflight.models.dtypes import DTYPE_NAMES
from rooflight.models.workload import STEPS, Task, Workload, loss_for, optimizer_for
from rooflight.spec import StepSpec


def workload_of(
    spec: StepSpec,
    model: str | nn.Module | StepSpec,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    *,
    device: str,
    labels: Any = None,
) -> Workload:
    """The workload of a described step: built by its name, or the live module that it describes."""
    if len(spec.batches) > 1:
        raise BadInput("several-batches", f"--batch must be one size here, got {', '.join(map(str, spec.batches))}")
    batch = spec.batches[0] if spec.batches else None
    live = model if isinstance(model, nn.Module) else spec.model
    if not isinstance(model, (str, nn.Module, StepSpec)):
        raise BadInput(
            "not-a-model", f"expected the name of a model, an nn.Module or a step to call, got {type(model).__name__}"
        )
    workload = given_workload(live, inputs, kwargs, batch=batch, device=device, **spec.build)
    return replace(workload, labels=labels)


_ONLY_BY_NAME = {"past": "--past", "dtype": "--dtype", "overrides": "--set", "input_shape": "--input"}


def given_workload(
    model: str | nn.Module,
    inputs: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None,
    *,
    step: StepKind,
    batch: int | None,
    seq: int | None,
    device: str,
    **building: Any,
) -> Workload:
    """Check that the arguments go together, and make the workload. `building`: what else `build` takes; `None`: as it
    has it."""
    if step not in STEPS:
        raise BadInput("unknown-choice", f"unknown step {step!r}; known: {', '.join(STEPS)}")
    given = {name: value for name, value in building.items() if value is not None}
    if isinstance(model, str):
        return build(model, step=step, batch=1 if batch is None else batch, seq=seq, device=device, **given)
    if not isinstance(model, nn.Module):
        raise BadInput(
            "not-a-model", f"expected the name of a model, an nn.Module or a step to call, got {type(model).__name__}"
        )
    if wrong := [option for name, option in _ONLY_BY_NAME.items() if name in given]:
        raise BadInput(
            "needs-a-model-name",
            f"{', '.join(wrong)}: only for a model by name; a live module is traced with the inputs you pass",
        )
    return live_workload(model, inputs, dict(kwargs or {}), step=step, batch=batch, seq=seq)


def live_workload(
    model: nn.Module,
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    step: StepKind,
    batch: int | None = None,
    seq: int | None = None,
) -> Workload:
    """A live module with the inputs it will be called with. Batch and sequence are read off them where not given."""
    tensors = [leaf for leaf in tree_leaves((inputs, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    if any(tensor.is_nested for tensor in tensors):
        raise BadInput("nested-tensor", "an input is a nested tensor, whose rows cannot be followed: pass a padded one")
    first = tensors[0] if tensors else None
    is_tokens = first is not None and first.dim() == 2 and not first.is_floating_point()
    for name, given in (("batch", batch), ("seq", seq if is_tokens else None)):
        if given and tensors and all(size % given for tensor in tensors for size in tensor.shape[:2]):
            sizes = ", ".join("x".join(map(str, tensor.shape)) for tensor in tensors)
            raise BadInput(
                "not-the-inputs", f"{name}={given} does not fit the inputs, which are {sizes}: pass inputs of that size"
            )
    task: Task = "language-model" if is_tokens else "features"
    if first is not None and first.dim() == 4:
        task = "classification"  # an image, most likely
    parameter = next((p for p in model.parameters() if p.is_floating_point()), None)
    return Workload(
        name=type(getattr(model, "_orig_mod", model)).__name__,
        model=model,
        args=inputs,
        kwargs=kwargs,
        batch=_batch(model, tensors) if batch is None else batch,
        sequence=first.shape[1] if seq is None and first is not None and is_tokens else seq,
        past=None,
        step=step,
        dtype=DTYPE_NAMES.get(parameter.dtype, "fp32") if parameter is not None else "fp32",
        task=task,
        loss=loss_for(task),
        optimizer=optimizer_for(task),
        seq=seq,
        live=True,
    )


def is_time_first(model: nn.Module) -> bool:
    return isinstance(model, nn.RNNBase) and not model.batch_first


def batch_of(tensors: Iterable[torch.Tensor]) -> int | None:
    """The first dimension of the inputs, if they agree on it; `None` if they do not say."""
    sizes = {tensor.shape[0] for tensor in tensors if tensor.dim()}
    return sizes.pop() if len(sizes) == 1 else None


def _batch(model: nn.Module, tensors: list[torch.Tensor]) -> int | None:
    if is_time_first(model) and tensors and tensors[0].dim() == 3:
        return tensors[0].shape[1]
    return batch_of(tensors)
