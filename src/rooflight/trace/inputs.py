"""The inputs of a step, as the kind of tensors it is traced on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from copy import deepcopy
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_leaves, tree_map_only

from rooflight.errors import TraceFailed
from rooflight.models.workload import Workload
from rooflight.trace.options import TensorKind
from rooflight.trace.saved_state import swap_state, to_meta
from rooflight.trace.sparse_tensors import is_sparse


def prepare(stage: ExitStack, workload: Workload, on: TensorKind, roots: nn.Module) -> tuple[tuple[Any, Any], Any]:
    """The step's inputs and its labels as the asked kind of tensors; for fake tensors the parameters of `roots` too."""
    model = workload.model
    arguments: tuple[Any, Any] = (workload.args, workload.kwargs)
    if on in ("meta", "fake"):
        arguments = fresh_caches(arguments)  # converting a cache would change the caller's
    if on == "meta":
        # Lengths of packed sequences stay on the host, whatever the device of the data.
        packs = any(isinstance(module, nn.RNNBase) for module in model.modules())
        # Sizes of images that are given on the host beside tensors without data are there to be read.
        without_data = any(tensor.is_meta for tensor in tensor_leaves(workload.kwargs))
        _convert_caches(to_meta, arguments)

        def convert(tensor: torch.Tensor) -> torch.Tensor:
            stays = (without_data and _is_sizes(tensor)) or (packs and _is_lengths(tensor))
            return tensor if stays else to_meta(tensor)

        return _each_once(convert, (arguments, workload.labels))
    if on == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        mode = stage.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        with mode:
            swap_state(list(roots.modules()), fake)
            _convert_caches(fake, arguments)
            return _each_once(fake, (arguments, workload.labels))
    # The caller's own: a copy would count in the memory that is measured. What the step does to them is undone.
    return _each_once(_own, (arguments, workload.labels))


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of what the step cannot use as it is: it would leave a gradient on it, or autograd refuses it."""
    return tensor.detach().clone() if tensor.requires_grad or tensor.is_inference() else tensor


def _each_once(convert: Callable[[torch.Tensor], torch.Tensor], given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Every tensor converted; one that is passed twice stays one tensor, and one that wants a gradient still does."""
    results: dict[int, Any] = {}
    """By the id of the value, which `given` holds."""

    def converted(value: Any) -> Any:
        if id(value) not in results:
            if isinstance(value, PackedSequence):  # sizes and order are looked at on the host
                results[id(value)] = value._replace(data=converted(value.data))
            else:
                results[id(value)] = convert(value).requires_grad_(value.requires_grad)
        return results[id(value)]

    kinds = (torch.Tensor, PackedSequence)
    arguments, labels = tree_map_only(kinds, converted, given, is_leaf=lambda value: isinstance(value, PackedSequence))
    return arguments, labels


def given_numbers(arguments: tuple[Any, Any], given: tuple[Any, Any]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Whole numbers that were given on the host beside tensors without data, as tokens are among which an image has its
    places: they are there to be read. Each as it is in `arguments`, and as it was in `given`."""
    pairs = zip(tree_leaves(arguments[1]), tree_leaves(given[1]), strict=True)
    tensors = [(mine, own) for mine, own in pairs if isinstance(mine, torch.Tensor) and isinstance(own, torch.Tensor)]
    if not any(own.is_meta for _, own in tensors):
        return []
    return [(mine, own) for mine, own in tensors if not own.is_meta and own.dtype is torch.int64]


def _is_lengths(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 1 and tensor.dtype is torch.int64 and tensor.device.type == "cpu"


def _is_sizes(tensor: torch.Tensor) -> bool:
    return tensor.dim() == 2 and tensor.shape[1] <= 3 and tensor.dtype is torch.int64 and tensor.device.type == "cpu"


def fresh_caches(arguments: tuple[Any, Any]) -> tuple[Any, Any]:
    """The inputs with caches of their own: a KV cache object grows while the step runs."""
    args, kwargs = arguments
    fresh = tuple(deepcopy(value) if is_cache(value) else value for value in args)
    return fresh, {name: deepcopy(value) if is_cache(value) else value for name, value in kwargs.items()}


def _convert_caches(convert: Callable[[torch.Tensor], torch.Tensor], arguments: tuple[Any, Any]) -> None:
    """In place: the tensors of a cache object are no leaves of the inputs."""
    args, kwargs = arguments
    for value in (*args, *kwargs.values()):
        for layer in getattr(value, "layers", ()) if is_cache(value) else ():
            for name, tensor in vars(layer).items():
                if isinstance(tensor, torch.Tensor):
                    setattr(layer, name, convert(tensor))


def is_cache(value: Any) -> bool:
    return "cache" in type(value).__name__.lower()


def fake(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor of the same shape, made under fake mode: on the CPU, without memory."""
    if is_sparse(tensor):  # its shape alone would be a dense one
        raise TraceFailed("unsupported-tensor", "a sparse tensor cannot be followed on fake ones: run it on real data")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def tensor_leaves(value: Any) -> list[torch.Tensor]:
    """Tensors anywhere in a value; objects such as caches are opened one level at a time."""
    if isinstance(value, dict):
        value = dict(value)  # outputs of Hugging Face models are dicts that pytree may not know
    tensors = [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    if not tensors and hasattr(value, "layers"):
        for layer in value.layers:
            tensors.extend(v for v in vars(layer).values() if isinstance(v, torch.Tensor))
    return tensors
