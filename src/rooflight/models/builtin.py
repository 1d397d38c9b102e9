"""Built-in models: constructor arguments from the registry and the user, parameters on the device, inputs to match."""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from rooflight.errors import BadInput, one_line
from rooflight.models import arguments, inputs
from rooflight.models.registry import BUILTINS, BuiltinModel
from rooflight.models.workload import ModelRequest, Workload


def load(entry: BuiltinModel, request: ModelRequest) -> Workload:
    """Build one built-in model and the inputs of the step."""
    if request.step == "decode" and not entry.decodes:
        able = ", ".join(known.name for known in BUILTINS.values() if known.decodes)
        raise BadInput("cannot-decode", f"{entry.name} cannot decode; these can: {able}, and causal models from hf:")
    device = inputs.device_of(request)
    network = _network_class(entry)
    values = _arguments(entry, network, request=request)
    try:
        model = inputs.constructed(lambda: network(**values), device)
    except (ValueError, RuntimeError, TypeError, ZeroDivisionError) as error:
        raise BadInput("model-not-built", f"{entry.name} cannot be built so: {one_line(error)}; check --set") from error
    model = inputs.make_ready(model, request)
    sequence, past = _lengths(entry, request, limit=_limit(entry, network, values=values))
    args, kwargs = _step_inputs(entry, model, request=request, sequence=sequence, past=past, device=device)
    return request.workload(
        model,
        args=args,
        kwargs=kwargs,
        sequence=sequence,
        past=past,
        task=entry.task,
        optimizer=entry.optimizer,
        notes=tuple(getattr(model, "notes", ())),
    )


def _network_class(entry: BuiltinModel) -> type[nn.Module]:
    module, _, name = entry.architecture.partition(":")
    network = getattr(importlib.import_module(f"rooflight.models.architectures.{module}"), name)
    assert isinstance(network, type) and issubclass(network, nn.Module)
    return network


def _arguments(entry: BuiltinModel, network: type[nn.Module], *, request: ModelRequest) -> dict[str, Any]:
    given = arguments.parse(request.overrides, arguments.settable(network), owner=entry.name)
    for name, value in given.items():
        sizes = value if isinstance(value, tuple) else (value,)
        if any(type(size) is int and size < 1 for size in sizes):
            raise BadInput(
                "out-of-range", f"--set={name}={request.overrides[name]}: {entry.name} wants {name} of at least 1"
            )
    return {**entry.arguments, **given}


def _limit(entry: BuiltinModel, network: type[nn.Module], *, values: dict[str, Any]) -> int | None:
    """The longest sequence that the position table holds, where the model has one."""
    if entry.positions is None:
        return None
    default = inspect.signature(network).parameters[entry.positions].default
    return int(values.get(entry.positions, default))


def _lengths(entry: BuiltinModel, request: ModelRequest, *, limit: int | None) -> tuple[int | None, int | None]:
    """Tokens of a sequence in this step, and tokens in the cache; None where the model or step has no such thing."""
    if entry.inputs == "image":
        if request.seq is not None:
            raise BadInput(
                "not-a-sequence-model",
                f"{entry.name} takes images, not sequences; drop --seq, or give --input=3x224x224",
            )
        return None, None
    of_shape = _sequence_from_shape(entry, request)
    seq = request.seq if request.seq is not None else of_shape
    wanted = seq or min(entry.shape[0], limit or entry.shape[0])
    if request.step == "decode":
        past = request.past or seq or min(wanted, (limit or wanted + 1) - 1)
        _check_positions(entry, past + 1, limit=limit, option=f"--past={past} and the new token")
        return 1, past
    _check_positions(entry, wanted, limit=limit, option=f"--seq={wanted}")
    return wanted, None


def _sequence_from_shape(entry: BuiltinModel, request: ModelRequest) -> int | None:
    shape = request.input_shape
    if shape is None:
        return None
    if len(shape.dims) != len(entry.shape) or (shape.kind == "int") > (entry.inputs != "features"):
        raise BadInput(
            "wrong-input-kind", f"--input={shape}: {entry.name} takes {entry.default_input}; set the length with --seq"
        )
    return shape.dims[0]


def _check_positions(entry: BuiltinModel, wanted: int, *, limit: int | None, option: str) -> None:
    if limit is not None and wanted > limit:
        raise BadInput(
            "sequence-too-long",
            f"{entry.name} has {limit} positions, {option} needs {wanted}; "
            f"shorten it or add --set={entry.positions}={wanted}",
        )


def _step_inputs(
    entry: BuiltinModel,
    model: nn.Module,
    *,
    request: ModelRequest,
    sequence: int | None,
    past: int | None,
    device: torch.device,
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    # A model whose input follows its arguments (--set image_size=384) says so itself.
    default: tuple[int, ...] = getattr(model, "sample_shape", entry.shape)
    shape = request.input_shape.dims if request.input_shape is not None else default
    if entry.inputs == "image":
        if len(shape) != 3 or (request.input_shape is not None and request.input_shape.kind == "int"):
            raise BadInput(
                "wrong-input-kind", f"--input={request.input_shape}: {entry.name} takes images, as in --input=3x224x224"
            )
        return (inputs.floats(shape, request, device=device),), {}
    assert sequence is not None
    if entry.inputs == "features":
        return (inputs.floats((sequence, *shape[1:]), request, device=device),), {}
    sizes = (sequence, request.batch) if entry.inputs == "tokens-seq-first" else (request.batch, sequence)
    numbers = inputs.tokens(sizes, model, device=device)
    return (numbers,), {} if past is None else {"cache": _cache(model, past, request=request, device=device)}


def _cache(
    model: nn.Module, past: int, *, request: ModelRequest, device: torch.device
) -> tuple[tuple[Tensor, Tensor], ...]:
    """Keys and values of `past` tokens for every layer, as after a prefill."""
    shape: tuple[int, int, int] = model.cache_shape  # type: ignore[assignment]
    layers, heads, size = shape
    sizes = (heads, past, size)
    return tuple(
        (inputs.floats(sizes, request, device=device), inputs.floats(sizes, request, device=device))
        for _ in range(layers)
    )
