"""`rooflight.estimate`: what a model costs, by name or as a live module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from rooflight.errors import BadInput
from rooflight.estimation.costs import fill_costs
from rooflight.ledger import Ledger, StepKind
from rooflight.models import build
from rooflight.models.workload import STEPS, Task, Workload, loss_for
from rooflight.trace import TraceOptions, trace
from rooflight.trace.arguments import TensorKind
from rooflight.trace.precision import DTYPE_NAMES


def estimate(
    model: str | nn.Module,
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    step: StepKind = "infer",
    batch: int | None = None,
    seq: int | None = None,
    past: int | None = None,
    dtype: str | None = None,
    autocast: str | None = None,
    target: str = "cuda",
    loss: str | None = None,
    optimizer: str | None = None,
    foreach: bool | None = None,
    accumulate: int = 1,
    overrides: Mapping[str, str] | None = None,
    input_shape: Sequence[int] | None = None,
    download: bool = False,
    on: TensorKind = "meta",
    command: str = "",
) -> Ledger:
    """The cost of one step, one row for every aten op, without a GPU and without memory for weights.

    `model` is a name (`"resnet50"`, `"hf:gpt2"`, ...), built here with `batch`, `seq`, `dtype` and `overrides`; or a
    live module, called with `inputs` and `kwargs` (say `batch` and `seq` if they are not the inputs' first dimensions)
    and left exactly as it was: device, mode, hooks, state, gradients
    and random state. A training step runs it in train mode, the others in eval mode.

        >>> import rooflight
        >>> rooflight.estimate("resnet50", batch=16, step="train")
        >>> rooflight.estimate(my_model, torch.randn(8, 3, 224, 224)).to_pandas()
    """
    if step not in STEPS:
        raise BadInput(f"unknown step {step!r}; known: {', '.join(STEPS)}")
    if isinstance(model, str):
        if inputs or kwargs:
            raise BadInput(
                "inputs go with a live module; a model by name gets its own (use batch=, seq=, input_shape=)"
            )
        workload = build(
            model, batch=1 if batch is None else batch, seq=seq, past=past, dtype=dtype or "fp32", step=step,
            overrides=overrides or {}, input_shape=input_shape, download=download,
            device=on if on in ("cpu", "cuda") else "meta",
        )  # fmt: skip
    else:
        if not isinstance(model, nn.Module):
            raise BadInput(f"expected the name of a model or an nn.Module, got {type(model).__name__}")
        given = {
            "past": past,
            "dtype": dtype,
            "overrides": overrides,
            "input_shape": input_shape,
        }
        if wrong := [name for name, value in given.items() if value is not None]:
            raise BadInput(
                f"{', '.join(wrong)}: only for a model by name; a live module is traced with the inputs you pass"
            )
        workload = live_workload(model, inputs, dict(kwargs or {}), step=step, batch=batch, seq=seq)
    options = TraceOptions(
        target=target, autocast=autocast, loss=loss, optimizer=optimizer, foreach=foreach, accumulate=accumulate, on=on,
        command=command,
    )  # fmt: skip
    return fill_costs(trace(workload, options))


def live_workload(model: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], *, step: StepKind,
                  batch: int | None = None, seq: int | None = None) -> Workload:  # fmt: skip
    """A live module with the inputs it will be called with. Batch and sequence are read off them where not given."""
    tensors = [leaf for leaf in tree_leaves((inputs, kwargs)) if isinstance(leaf, torch.Tensor) and leaf.dim()]
    first = tensors[0] if tensors else None
    is_tokens = first is not None and first.dim() == 2 and not first.is_floating_point()
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
        optimizer="momentum" if task == "classification" else "adamw",
    )


def _batch(model: nn.Module, tensors: list[torch.Tensor]) -> int | None:
    """The first dimension of the inputs, if they agree on it; `None` if they do not say."""
    if isinstance(model, nn.RNNBase) and not model.batch_first and tensors and tensors[0].dim() == 3:
        return tensors[0].shape[1]
    sizes = {tensor.shape[0] for tensor in tensors}
    return sizes.pop() if len(sizes) == 1 else None
