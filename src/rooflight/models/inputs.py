"""The tensors of one step: images, features or tokens, on the model's device; and the model made ready for the step."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rooflight import formatting
from rooflight.errors import BadInput, OutOfMemory
from rooflight.models.workload import InputShape, ModelRequest

T = TypeVar("T")


def device_of(request: ModelRequest) -> torch.device:
    """The device asked for, or one line that says why it cannot be used."""
    try:
        device = torch.device(request.device)
    except RuntimeError:
        raise BadInput("unknown-device", f"unknown device {request.device!r}; use meta, cpu or cuda") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise BadInput("no-gpu", f"device {request.device!r}: torch sees no CUDA device here; use meta or cpu")
    return device


def make_ready(model: nn.Module, request: ModelRequest) -> nn.Module:
    """The model converted to the wanted dtype and set to train or eval as the step needs."""
    state = (*model.parameters(), *model.buffers())
    if any(tensor.is_floating_point() and tensor.dtype != request.torch_dtype for tensor in state):
        model = model.to(request.torch_dtype)
    return model.train(request.step == "train")


def floats(sizes: Sequence[int], request: ModelRequest, *, device: torch.device) -> Tensor:
    """Random numbers of the step's dtype, with the batch in front of `sizes`."""
    try:
        return torch.randn(request.batch, *sizes, device=device, dtype=request.torch_dtype)
    except RuntimeError as error:  # a CPU that runs out of memory raises no OutOfMemoryError
        if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error):
            needed = formatting.bytes_(math.prod((request.batch, *sizes)) * request.torch_dtype.itemsize)
            raise OutOfMemory(
                "out-of-memory", f"the input alone takes {needed}, which {device} has not: use a smaller batch"
            ) from error
        raise


def tokens(sizes: Sequence[int], model: nn.Module, *, device: torch.device) -> Tensor:
    """Random token numbers that the model's first embedding can look up."""
    rows = next((module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)), 2)
    return torch.randint(0, rows, tuple(sizes), device=device)


def from_shape(shape: InputShape, model: nn.Module, *, request: ModelRequest, device: torch.device) -> Tensor:
    """One input as `--input` describes it, the batch in front."""
    if shape.kind == "int":
        return tokens((request.batch, *shape.dims), model, device=device)
    return floats(shape.dims, request, device=device)


def constructed(make: Callable[[], T], device: torch.device) -> T:
    """What `make` returns when its parameters are created on `device` directly."""
    with device, _NoInitialisation() if device.type == "meta" else nullcontext():
        return make()


def lacks_values(error: Exception) -> bool:
    """Did a constructor fail because it computes with tensors, which have no values on meta? It may succeed on the CPU,
    where every other failure would come again, if memory for all the weights does not run out first."""
    return "meta" in str(error).lower()


class _NoInitialisation(TorchFunctionMode):
    """Leaves out what gives parameters their first values: without data there are none, and finding out takes torch
    longer than all else that a constructor does."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        in_init = getattr(func, "__module__", "") == "torch.nn.init" and func.__name__.endswith("_")
        if in_init or func in _FILLS:
            tensor = args[0] if args else given.get("tensor")
            if isinstance(tensor, Tensor) and tensor.is_meta:
                return tensor
        return func(*args, **given)


_FILLS = frozenset({Tensor.normal_, Tensor.uniform_, Tensor.zero_, Tensor.fill_})
