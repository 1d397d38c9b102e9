"""Borrow a live module for a trace and give it back exactly as it was.

Parameters and buffers are replaced by tensors without data while the trace runs, so a model of any size on any device
costs no memory and does no work. Everything is put back in the end: attributes, modes, gradients, random state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from rooflight.errors import TraceFailed
from rooflight.trace.kept import KeptRandomness, KeptValues


@contextmanager
def borrowed(model: nn.Module, *, training: bool, on: str = "meta") -> Iterator[KeptValues | None]:
    """The model in train or eval mode, on meta or where it is; as it was afterwards.

    A model that is really run (on "cpu" or "cuda") changes in place, so its values are kept and copied back.
    """
    modules = list(model.modules())
    state = [*model.parameters(), *model.buffers()]
    if any(is_lazy(tensor) for tensor in state):
        raise TraceFailed("the model has lazy parameters without a shape: run it once on a real input first")
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise TraceFailed("the model is scripted, so its calls cannot be followed: pass the module it was made from")
    values = None
    unchanged: AbstractContextManager[Any] = nullcontext()
    if on in ("cpu", "cuda"):
        values = KeptValues(model.parameters(), [*model.buffers(), *_remembered(modules)])
        # A graph that was made before, and goes backward later, must not see that values were away in between.
        unchanged = torch.autograd._unsafe_preserve_version_counter(tuple(t for t in state if not t.is_inference()))
    attributes = KeptAttributes(modules)
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    randomness = KeptRandomness(cuda=on == "cuda")
    try:
        # A model may know better than to put all of itself into train mode (a frozen batch norm).
        if model.training != training:
            model.train(training)
        if on == "meta":
            swap_state(modules, to_meta)
        yield values
    finally:
        attributes.put_back()
        if values is not None:
            with unchanged:
                values.put_back(everything=True)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        randomness.put_back()


class KeptAttributes:
    """The attributes of modules, and what is in those that are containers: parameters, hooks, lists of their own.

    `but_tensors`: tensors outside of parameters and buffers are left as they are. Keeping them would keep the memory
    of a result alive that the model only remembers until the next one.
    """

    def __init__(self, modules: Iterable[nn.Module], *, but_tensors: bool = False) -> None:
        self._but_tensors = but_tensors
        self._kept = []
        for module in modules:
            own, contents = dict(module.__dict__), _contents(module)
            if but_tensors:
                own = {name: value for name, value in own.items() if not _remembers(name, value)}
                contents = [
                    (value, content) for value, content in contents if any(value is kept for kept in own.values())
                ]
            self._kept.append((module, own, contents))

    def put_back(self) -> None:
        for module, own, contents in self._kept:
            remembered = module.__dict__.items() if self._but_tensors else ()
            left = {name: value for name, value in remembered if _remembers(name, value)}
            module.__dict__.clear()
            module.__dict__.update(own)
            module.__dict__.update(left)
            for container, content in contents:
                container.clear()
                (container.update if isinstance(container, (dict, set)) else container.extend)(content)


def _remembered(modules: Iterable[nn.Module]) -> list[torch.Tensor]:
    """Tensors that modules keep outside of parameters and buffers."""
    values = [
        value
        for module in modules
        for name, value in module.__dict__.items()
        if name not in ("_parameters", "_buffers", "_modules")
    ]
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _remembers(name: str, value: Any) -> bool:
    """Is it a tensor, or a container of some, that is no parameter and no buffer?"""
    if name in ("_parameters", "_buffers"):
        return False
    return any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(value))


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
