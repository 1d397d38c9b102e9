"""From a name to a model with the inputs of one step.

Importing this package does not import torch: names and descriptions are known without it, and `build` fetches only
the source that a name belongs to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from rooflight.errors import BadInput, UnknownModel
from rooflight.models import registry
from rooflight.models.released import RELEASED, ReleasedModel
from rooflight.models.workload import DTYPES, STEPS, InputShape, ModelRequest, Workload, parse_input

__all__ = ["InputShape", "Workload", "build", "builtin_names", "describe", "model_names", "parse_input"]

FORMS = "a built-in name, torchvision:NAME, timm:NAME, hf:NAME-or-folder, package.module:factory or file.py:factory"


def builtin_names() -> list[str]:
    """The names of the built-in models, in the order of the registry."""
    return list(registry.BUILTINS)


def model_names() -> dict[str, list[str]]:
    """All names that need no prefix, by family: the built-in models, and the released ones that transformers builds."""
    families = {"built in": builtin_names()}
    for name, entry in RELEASED.items():
        families.setdefault(entry.family, []).append(name)
    return families


def describe(name: str) -> str:
    """One line on a model by name: what it is, with the input it takes unless told otherwise, or its size."""
    return registry.find(name).about


def build(
    spec: str,
    *,
    batch: int = 1,
    seq: int | None = None,
    past: int | None = None,
    dtype: str = "fp32",
    step: str = "infer",
    overrides: Mapping[str, str] = MappingProxyType({}),
    input_shape: Sequence[int] | InputShape | str | None = None,
    download: bool = False,
    device: str = "meta",
) -> Workload:
    """Build the model that `spec` names, on `device`, with the inputs of one step.

    `past` is the number of tokens already in the cache (decode only; `seq` is taken where it is not given).
    `overrides` are constructor arguments as text. On "meta" nothing is allocated, whatever the size of the model.

    >>> build("resnet50", batch=8).args[0].shape
    torch.Size([8, 3, 224, 224])
    """
    for option, number in (("--batch", batch), ("--seq", seq), ("--past", past)):
        if number is not None and number > 10**9:
            raise BadInput(
                "out-of-range",
                f"{option}={number} is more than torch can count the elements of: give at most 1000000000",
            )
        if number is not None and number < 1:
            raise BadInput("out-of-range", f"{option} must be at least 1, got {number}")
    if dtype not in DTYPES:
        raise BadInput("unknown-choice", f"unknown --dtype={dtype!r}; choose one of {', '.join(DTYPES)}")
    known_step = next((known for known in STEPS if known == step), None)
    if known_step is None:
        raise BadInput("unknown-choice", f"unknown --step={step!r}; choose one of {', '.join(STEPS)}")
    if past is not None and step != "decode":
        raise BadInput(
            "option-needs-another",
            f"--past={past} is for --step=decode; this step is {step!r}: add --step=decode, or leave --past out",
        )
    shape = _checked_shape(input_shape)
    if seq is not None and shape is not None and shape.kind == "int" and shape.dims != (seq,):
        raise BadInput("two-lengths", f"--seq={seq} and --input={shape} name two lengths: give one of them")
    return _load(
        ModelRequest(
            spec=spec,
            batch=batch,
            seq=seq,
            past=past,
            dtype=dtype,
            step=known_step,
            overrides=dict(overrides),
            input_shape=shape,
            download=download,
            device=device,
        )
    )


def _checked_shape(shape: Sequence[int] | InputShape | str | None) -> InputShape | None:
    if shape is None or isinstance(shape, InputShape):
        return shape
    if isinstance(shape, str):
        return parse_input(shape)
    dims = tuple(shape)
    if not dims or any(size < 1 for size in dims):
        raise BadInput("out-of-range", f"--input={'x'.join(map(str, dims))}: give at least one size, each at least 1")
    return InputShape(dims)


def _load(request: ModelRequest) -> Workload:
    """Split the spec, and let the source it names build the workload."""
    source, colon, name = request.spec.partition(":")
    if not request.spec.strip() or (colon and not (source and name)) or ":" in name:
        raise UnknownModel("unknown-model", f"{request.spec!r} names no model; give {FORMS}")
    if not colon:
        entry = registry.find(request.spec)
        if isinstance(entry, ReleasedModel):
            from rooflight.models import huggingface

            return huggingface.load_released(entry, request)
        from rooflight.models import builtin

        return builtin.load(entry, request)
    zoo = next((known for known in registry.ZOOS if known == source), None)
    if zoo is not None:
        from rooflight.models import image_zoo

        return image_zoo.load(zoo, name, request=request)
    if source == "hf":
        from rooflight.models import huggingface

        return huggingface.load(name, request)
    from rooflight.models import factory

    return factory.load(source, name, request=request)
