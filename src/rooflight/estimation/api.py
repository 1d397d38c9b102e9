"""`rooflight.estimate`: what a model costs, by name or as a live module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from rooflight.estimation.costs import fill_costs
from rooflight.ledger import Ledger, StepKind
from rooflight.trace import TraceOptions, trace
from rooflight.trace.arguments import TensorKind
from rooflight.trace.checkpointed import as_written
from rooflight.trace.given import given_workload


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
    tf32: bool | None = None,
    target: str = "cuda",
    loss: str | None = None,
    optimizer: str | None = None,
    foreach: bool | None = None,
    accumulate: int = 1,
    checkpoint: str | Sequence[str] | None = None,
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
    and random state. A training step runs it in train mode, the others in eval mode. `checkpoint`: modules that it runs
    again in backward instead of keeping what they make (`"h.*"`, or `"blocks"` for the repeated ones).

        >>> import rooflight
        >>> rooflight.estimate("resnet50", batch=16, step="train")
        >>> rooflight.estimate(my_model, torch.randn(8, 3, 224, 224)).to_pandas()
    """
    workload = given_workload(
        model, inputs, kwargs, step=step, batch=batch, seq=seq, past=past, dtype=dtype, overrides=overrides,
        input_shape=input_shape, download=download, device=on if on in ("cpu", "cuda") else "meta",
    )  # fmt: skip
    options = TraceOptions(
        target=target, autocast=autocast, tf32=tf32, loss=loss, optimizer=optimizer, foreach=foreach,
        accumulate=accumulate, checkpoint=as_written(checkpoint), on=on, command=command,
    )  # fmt: skip
    return fill_costs(trace(workload, options))
