"""`rooflight.estimate`: what a model costs, by name or as a live module."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Unpack, cast

from msgspec.structs import replace
from torch import nn

from rooflight.estimation.costs import fill_costs
from rooflight.estimation.fused_optimizer import with_fused_optimizer
from rooflight.ledger import Ledger, Note
from rooflight.models.resolve import workload_of
from rooflight.spec import FIELDS, StepKeywords, StepSpec, is_program, program_name, takes_step
from rooflight.trace import TraceOptions, trace
from rooflight.trace.dynamo import outside_compiled_code
from rooflight.trace.options import TensorKind
from rooflight.trace.program_stage import Program, trace_program


@outside_compiled_code
@takes_step("estimate")
def estimate(
    model: str | nn.Module | StepSpec | Callable[..., Any],
    *inputs: Any,
    kwargs: Mapping[str, Any] | None = None,
    target: str = "cuda",
    on: TensorKind = "meta",
    labels: Any = None,
    real_data: bool = False,
    command: str = "",
    **step: Unpack[StepKeywords],
) -> Ledger:
    """The cost of one step, one row per aten op; needs no GPU and no memory for weights.

    `model` is a name (`"resnet50"`, `"hf:gpt2"`, ...), built here with `batch`, `seq`, `dtype` and `overrides`; or a
    live module, called with `inputs` and `kwargs` (say `batch` and `seq` if they are not the inputs' first dimensions)
    and left exactly as it was: device, mode, hooks, state, gradients and random state. A training step runs it in train
    mode, the others in eval mode. `checkpoint`: activation checkpointing, the modules to recompute in backward
    (`"h.*"`, or `"blocks"` for the repeated ones). `fused`: the optimizer is one op. `channels_last`, `compile` and
    `graphs` say how the step is run; the ops of the estimate are still those of the plain eager step. `real_data`: the
    step is really run once, on the CPU, for models whose data decides what runs; the same as `on="cpu"`.

    Or `model` is any step of your own: a callable, called with `inputs` and `kwargs`, that works on live modules and
    optimizers. They are found, not declared; nothing is computed, and all that it can reach is left as it was.

    `loss` is a name, or any function or module of the model's output; one that takes a second value gets `labels`,
    which are class numbers unless you give yours (a tuple where it takes more). `optimizer` is a name of torch.optim, a
    class, a function that makes one of parameters, or your own with its groups and its state, left as it was.

        >>> import rooflight
        >>> rooflight.estimate("resnet50", batch=16, step="train")
        >>> rooflight.estimate(my_model, torch.randn(8, 3, 224, 224)).to_pandas()
        >>> rooflight.estimate(train_step, images, labels)
    """
    spec = StepSpec.given(model, step, verb="estimate", inputs=inputs, kwargs=kwargs, labels=labels)
    options = TraceOptions.of(spec, on="cpu" if real_data else on, target=target, command=command)
    if is_program(model):
        return fill_costs(trace_program(cast(Program, model), inputs, kwargs or {}, program_name(model), options))
    model = cast("str | nn.Module | StepSpec", model)
    device = options.on if options.runs else "meta"
    workload = workload_of(spec, model, inputs, kwargs, device=device, labels=labels)
    ledger = _with_note(fill_costs(trace(workload, options)), spec)
    return with_fused_optimizer(ledger) if ledger.header.fused and not options.runs else ledger


def _with_note(ledger: Ledger, spec: StepSpec) -> Ledger:
    """The ledger with a note on the options that change kernels, of which an estimate has none."""
    if not (given := [FIELDS[name].option for name in _OF_KERNELS if getattr(spec, name)]):
        return ledger
    text = (
        f"{', '.join(given)}: its ops, FLOPs and bytes are those of the plain eager step; `rooflight predict` times it"
    )
    header = replace(ledger.header, notes=(*ledger.header.notes, Note("eager-ops", text)))
    return replace(ledger, header=header)


_OF_KERNELS = ("channels_last", "compile", "graphs")
