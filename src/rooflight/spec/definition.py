"""The fields of a step, each defined once: options, keywords, axes of studies and headers are made from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from rooflight.ledger import StepKind
from rooflight.spec.fields import Field, Kind, Verb

Dtype = Literal["fp32", "bf16", "fp16", "fp64"]
HalfPrecision = Literal["bf16", "fp16"]
Loss = Literal["cross-entropy", "mse", "sum"]
Optimizer = Literal[
    "sgd",
    "momentum",
    "adam",
    "adamw",
    "adadelta",
    "adafactor",
    "adagrad",
    "adamax",
    "asgd",
    "lbfgs",
    "muon",
    "nadam",
    "radam",
    "rmsprop",
    "rprop",
    "sparseadam",
]
"""Those of torch.optim, and momentum: SGD with one."""
_PREDICTED: tuple[Verb, ...] = ("predict", "study")


class StepFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The fields themselves; what is done with them is `StepSpec`'s. What is left out is as usual."""

    model: Annotated[str, Field("Name of the model, as for `rooflight estimate`, or the class of a live module.")]
    batch: Annotated[
        int | tuple[int, ...] | None,
        Field("Samples per step and device (per micro-batch with --accumulate)."),
    ] = 1
    seq: Annotated[int | None, Field("Sequence length, for models that have one.")] = None
    past: Annotated[int | None, Field("Tokens in the KV cache, for --step decode.", step="decode", by_name=True)] = None
    step: Annotated[StepKind, Field("infer (language models: prefill), train, or decode (one token).")] = "infer"
    dtype: Annotated[Dtype, Field("Precision to convert the whole model to.", by_name=True)] = "fp32"
    autocast: Annotated[HalfPrecision | None, Field("Run under autocast instead of converting the model.")] = None
    tf32: Annotated[
        bool | None,
        Field("TF32 for fp32 convolutions and matmuls. Default: as in torch (convolutions yes, matmuls no)."),
    ] = None
    loss: Annotated[
        Loss | None,
        Field(
            "Loss; mse is the mean square of the output, in fp32. Default: by the model's task.",
            step="train",
            own=True,
        ),
    ] = None
    optimizer: Annotated[
        Optimizer | None,
        Field("Optimizer. Default: momentum for vision, adamw for transformers.", step="train", own=True),
    ] = None
    foreach: Annotated[
        bool | None,
        Field(
            "The optimizer's foreach version (all tensors at once) or its loop over tensors. Default: torch's choice.",
            step="train",
        ),
    ] = None
    fused: Annotated[bool, Field("Fused optimizer (torch's fused=True).", step="train")] = False
    accumulate: Annotated[int, Field("Gradient accumulation: micro-batches per optimizer step.", step="train")] = 1
    checkpoint: Annotated[
        tuple[str, ...],
        Field(
            "Activation checkpointing: modules to recompute in backward, such as h.*, or blocks for all repeated ones.",
            metavar="MODULES",
            step="train",
            kind="modules",
        ),
    ] = ()
    channels_last: Annotated[bool, Field("Model and images in channels_last (NHWC).")] = False
    compile: Annotated[bool, Field("The step as torch.compile runs it.")] = False
    graphs: Annotated[bool, Field("The step captured as one CUDA graph, and replayed.")] = False
    pad: Annotated[
        bool,
        Field("Pad matrix dimensions that are not multiples of 8 to multiples of 64.", verbs=_PREDICTED),
    ] = False
    input: Annotated[
        str | None,
        Field(
            "Shape of one sample: 3x224x224, or int:128 for tokens.",
            metavar="SHAPE",
            keyword="input_shape",
            by_name=True,
            kind="shape",
        ),
    ] = None
    settings: Annotated[
        dict[str, str],
        Field(
            "A constructor argument of the model, e.g. channels=20,40. Repeatable.",
            metavar="NAME=VALUE",
            keyword="overrides",
            by_name=True,
        ),
    ] = msgspec.field(default_factory=dict, name="set")
    download: Annotated[
        bool,
        Field("Allow hf: and timm: to download a configuration.", by_name=True),
    ] = False
    gpus: Annotated[
        int,
        Field(
            "Number of GPUs, spread over nodes if one does not hold them. --batch is then per replica.",
            verbs=("measure", *_PREDICTED),
        ),
    ] = 1
    nodes: Annotated[int, Field("Number of nodes, with --gpus GPUs in each.", verbs=_PREDICTED)] = 1
    parallel: Annotated[
        str | None,
        Field(
            "ddp (default), fsdp, zero1, zero2, zero3, tp, pp, or TENSORxPIPELINExDATA, such as 8x4x2.",
            metavar="HOW",
            verbs=_PREDICTED,
        ),
    ] = None
    micro_batches: Annotated[
        int | None,
        Field(
            "Micro-batches that a replica's batch is split into. Default: 4 per pipeline stage, 1 for decode.",
            verbs=_PREDICTED,
        ),
    ] = None
    total_batch: Annotated[
        int | None,
        Field("Samples per step of all GPUs together, in place of --batch: strong scaling.", verbs=_PREDICTED),
    ] = None


def _read_fields() -> dict[str, Field]:
    """The definitions above, each with what the class says of it."""
    hints = get_type_hints(StepFields, include_extras=True)
    fields = {}
    for info in msgspec.structs.fields(StepFields):
        annotated, field = get_args(hints[info.name])
        options = get_args(annotated) if get_origin(annotated) in (Union, UnionType) else (annotated,)
        first = options[0]
        choices = get_args(first) if get_origin(first) is Literal else ()
        default = {} if info.default_factory is dict else None if info.default is msgspec.NODEFAULT else info.default
        kinds: dict[Any, Kind] = {int: "number", bool: "switch" if default is None else "flag", str: "text"}
        kind = "choice" if choices else kinds.get(first, "settings")
        fields[info.name] = replace(
            field,
            name=info.name,
            key=info.encode_name,
            kind=field.kind or kind,
            choices=choices,
            default=default,
            keyword=field.keyword or info.name,
        )
    return fields


FIELDS: Mapping[str, Field] = _read_fields()
"""By name, the model first."""


def fields_for(verb: Verb) -> list[Field]:
    """What the verb takes beside the model."""
    return [field for field in FIELDS.values() if field.name != "model" and verb in field.verbs]


def by_option() -> dict[str, Field]:
    """Of all verbs."""
    return {field.option: field for field in FIELDS.values() if field.name != "model"}
