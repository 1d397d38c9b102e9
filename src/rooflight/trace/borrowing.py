"""Borrow a live module for a trace and give it back exactly as it was.

Parameters and buffers are replaced by tensors without data while the trace runs, so a model of any size on any device
costs no memory and does no work. Everything is put back in the end: attributes, modes, gradients, random state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from rooflight.errors import TraceFailed
from rooflight.trace.containers import Contents, contents, inside, put_back
from rooflight.trace.snapshots import KeptRandomness, KeptValues, Restoring, has_memory, put_back_all

_MOST_KEPT = 2**28
"""Bytes of a model's own tensors, outside of parameters and buffers, that a trace without data copies for safety."""


def refuse_lazy(tensors: Iterable[torch.Tensor]) -> None:
    """Raise if a tensor has no shape before its module runs for the first time."""
    if any(is_lazy(tensor) for tensor in tensors):
        raise TraceFailed(
            "lazy-parameters", "the model has lazy parameters without a shape: run it once on a real input first"
        )


@contextmanager
def borrowed(model: nn.Module, *, training: bool, on: str = "meta") -> Iterator[KeptValues | None]:
    """The model in train or eval mode, on meta or where it is; as it was afterwards.

    A model that is really run (on "cpu" or "cuda") changes in place, so its values are kept and copied back. On meta
    only its own tensors outside of parameters and buffers are real, and may change.
    """
    modules = list(model.modules())
    state = [*model.parameters(), *model.buffers()]
    refuse_lazy(state)
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise TraceFailed(
            "scripted-model", "the model is scripted, so its calls cannot be followed: pass the module it was made from"
        )
    attributes = KeptAttributes(modules)
    others = [tensor for tensor in attributes.tensors if has_memory(tensor)]
    really_run = on in ("cpu", "cuda")
    if really_run:
        values = KeptValues(model.parameters(), [*model.buffers(), *others])
    else:
        values = KeptValues(others, most_bytes=_MOST_KEPT)
    # A graph that was made before, and goes backward later, must not see that values were away in between.
    unchanged = torch.autograd._unsafe_preserve_version_counter(
        tuple(tensor for tensor in (*state, *others) if not tensor.is_inference())
    )
    wanted = [(tensor, tensor.requires_grad) for tensor in (*state, *others)]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    randomness = KeptRandomness(cuda=on == "cuda")

    def values_back() -> None:
        with unchanged:  # so versions tell nothing if this has to be done again
            values.put_back(everything=True)

    # Made before anything changes: what is left to do in the end cannot fail for want of a list.
    restoring: list[Restoring] = [
        ("an attribute", attributes.put_back),
        ("a value", values_back),
        *(("whether a tensor wants a gradient", partial(want_gradient, *one)) for one in wanted),
        *(("a gradient", partial(setattr, parameter, "grad", grad)) for parameter, grad in gradients),
        ("a random state", randomness.put_back),
    ]
    try:
        # A model may know better than to put all of itself into train mode (a frozen batch norm).
        if model.training != training:
            with suppress(NotImplementedError):  # what was exported keeps the mode that it was exported in
                model.train(training)
        if not really_run:
            randomness.begin_alike()
        if on == "meta":
            swap_state(modules, to_meta)
        yield values if really_run else None
    finally:
        put_back_all(restoring)


def want_gradient(tensor: torch.Tensor, requires_grad: bool) -> None:
    if tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)


class KeptAttributes:
    """The attributes of modules, and what is in those that are containers: parameters, hooks, lists of their own.

    `but_tensors`: tensors outside of parameters and buffers are left as they are. Keeping them would keep the memory
    of a result alive that the model only remembers until the next one.
    """

    def __init__(self, modules: Iterable[nn.Module], *, but_tensors: bool = False) -> None:
        self._but_tensors = but_tensors
        self._kept: list[tuple[nn.Module, Contents]] = []
        self._state: list[Restoring] = []
        self._others: list[Restoring] = []
        self._found: dict[int, tuple[Any, list[Any], list[torch.Tensor]]] = {}
        """What is in a value, which modules may share: by its id, and with the value, so that the id stays its own."""
        self._seen: set[int] = set()
        self._tensors: dict[int, torch.Tensor] = {}
        modules = list(modules)
        state = {
            id(tensor)
            for module in modules
            for held in (module._parameters, module._buffers)
            for tensor in held.values()
        }
        for module in modules:
            self._keep(module)
        self.tensors = [tensor for key, tensor in self._tensors.items() if key not in state]
        """Those outside of parameters and buffers."""

    def _inside(self, value: Any) -> tuple[list[Any], list[torch.Tensor]]:
        if id(value) not in self._found:
            self._found[id(value)] = (value, *inside(value))
        return self._found[id(value)][1:]

    def _keep(self, module: nn.Module) -> None:
        attributes = []
        for name, value in contents(module.__dict__):
            containers, tensors = self._inside(value)
            if name not in _STATE and tensors:
                if self._but_tensors:
                    continue
                self._tensors |= {id(tensor): tensor for tensor in tensors}
            attributes.append((name, value))
            steps = self._state if name in _STATE else self._others
            words = f"{type(module).__name__}.{name}"
            new = [held for held in containers if id(held) not in self._seen]
            self._seen |= set(map(id, new))
            steps += [(words, partial(put_back, held, contents(held))) for held in new]
        self._kept.append((module, tuple(attributes)))

    def put_back(self) -> None:
        """Parameters and buffers first: what else is lost can be made again."""
        attributes = [
            (f"the attributes of a {type(module).__name__}", partial(self._put_back, module, kept))
            for module, kept in self._kept
        ]
        put_back_all([*self._state, *attributes, *self._others])

    def _put_back(self, module: nn.Module, content: Contents) -> None:
        attributes = dict(content)
        if self._but_tensors:
            now = contents(module.__dict__)
            attributes |= {name: value for name, value in now if name not in _STATE and inside(value)[1]}
        put_back(module.__dict__, tuple(attributes.items()))


_STATE = ("_parameters", "_buffers")


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().to("meta")


def swap_state(modules: list[nn.Module], convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put a converted tensor in the place of every parameter and buffer; what was shared stays shared."""
    replaced: dict[int, torch.Tensor] = {}
    """By the id of the tensor before: all of them are there when this begins, so no two have the same."""
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
