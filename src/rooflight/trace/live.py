"""Borrow a live module for a trace and give it back exactly as it was.

Parameters and buffers are replaced by tensors without data while the trace runs, so a model of any size on any device
costs no memory and does no work. Everything is put back in the end: attributes, modes, gradients, random state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from copy import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rooflight.errors import TraceFailed
from rooflight.trace.kept import KeptRandomness, KeptValues


@contextmanager
def borrowed(model: nn.Module, *, training: bool, on: str = "meta") -> Iterator[None]:
    """The model in train or eval mode, on meta or where it is; as it was afterwards.

    A model that is really run (on "cpu" or "cuda") changes in place, so its values are kept and copied back.
    """
    modules = list(model.modules())
    state = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) for tensor in state):
        raise TraceFailed("the model has lazy parameters without a shape: run it once on a real input first")
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise TraceFailed("the model is scripted, so its calls cannot be followed: pass the module it was made from")
    values = KeptValues(state) if on in ("cpu", "cuda") else None
    attributes = KeptAttributes(modules)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    randomness = KeptRandomness(cuda=on == "cuda")
    try:
        # A model may know better than to put all of itself into train mode (a frozen batch norm).
        if model.training != training:
            model.train(training)
        if on == "meta":
            swap_state(modules, to_meta)
        yield
    finally:
        attributes.put_back()
        if values is not None:
            values.put_back(everything=True)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        randomness.put_back()


class KeptAttributes:
    """The attributes of modules, and what is in those that are containers: parameters, hooks, lists of their own."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._kept = [(module, dict(module.__dict__), _contents(module)) for module in modules]

    def put_back(self) -> None:
        for module, own, contents in self._kept:
            module.__dict__.clear()
            module.__dict__.update(own)
            for container, content in contents:
                container.clear()
                (container.update if isinstance(container, (dict, set)) else container.extend)(content)


def _contents(module: nn.Module) -> list[tuple[Any, Any]]:
    containers = (value for value in module.__dict__.values() if isinstance(value, (dict, list, set, deque)))
    return [(value, copy(value)) for value in containers]


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta")


def swap_state(modules: list[nn.Module], convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put a converted tensor in the place of every parameter and buffer; what was shared stays shared."""
    replaced: dict[int, torch.Tensor] = {}
    for module in modules:
        for container in (module._parameters, module._buffers):
            for name, tensor in container.items():
                if tensor is None:
                    continue
                if id(tensor) not in replaced:
                    other = convert(tensor)
                    is_parameter = isinstance(tensor, nn.Parameter)
                    replaced[id(tensor)] = nn.Parameter(other, tensor.requires_grad) if is_parameter else other
                    replaced[id(tensor)].__dict__.update(tensor.__dict__)  # marks that the model left on it
                container[name] = replaced[id(tensor)]  # type: ignore[assignment]
