"""Save all that a step may change, and lend it to the step: a live model runs on meta, and is afterwards as before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils._pytree import tree_leaves

from rooflight.errors import TraceFailed
from rooflight.trace.gradients import CopiedGradient, LentGradient
from rooflight.trace.options import TensorKind
from rooflight.trace.restoring import Restorer, restore
from rooflight.trace.snapshot import Snapshot
from rooflight.trace.sparse_tensors import is_sparse, without_data
from rooflight.trace.tensor_values import RandomState, SavedValues

_MOST_BYTES = 2**28
"""A model's own tensors outside of parameters and buffers are real on meta too, and are copied up to here."""


class SavedState:
    """Python's state, values, gradients, versions and random state, as they are now."""

    def __init__(self, reached: Snapshot, *, on: TensorKind, again: bool = False, most_bytes: int = 0) -> None:
        """`on`: where the step runs. `again`: every run starts from here, and finds copies of the gradients.

        `most_bytes`: of tensors outside of parameters and buffers, which a step without data may write into.
        """
        self.notes = reached.notes
        self.runs = on in ("cpu", "cuda")
        models = reached.modules.values()
        parameters = [tensor for model in models for tensor in model.parameters()]
        parameters += [tensor for one in reached.optimizers for group in one.param_groups for tensor in group["params"]]
        parameters = [tensor for tensor in parameters if not is_lazy(tensor)]
        buffers = [tensor for model in models for tensor in model.buffers() if not is_lazy(tensor)]
        states = [tensor for optimizer in reached.optimizers for tensor in optimizer_tensors(optimizer)]
        others = [tensor for tensor in reached.tensors if not is_lazy(tensor)]
        tensors = _once([*parameters, *buffers, *states, *others])
        kind = CopiedGradient if again else LentGradient
        self._gradients = [kind(tensor) for tensor in tensors if tensor.is_leaf]
        gradients = [one.gradient for one in self._gradients if one.gradient is not None]
        if self.runs:
            self.values = SavedValues(parameters, [*buffers, *states, *gradients, *others])
        else:  # parameters and buffers are exchanged, and optimizers work on twins
            exchanged = {id(tensor) for tensor in (*parameters, *buffers, *states)}
            real = [tensor for tensor in others if id(tensor) not in exchanged] if most_bytes else []
            self.values = SavedValues(real, most_bytes=most_bytes)
        self.random = RandomState(cuda=on == "cuda")
        # A graph of before, which goes backward later, must not see that values were changed meanwhile.
        unchanged = torch.autograd._unsafe_preserve_version_counter(
            tuple(tensor for tensor in _once([*tensors, *gradients]) if not tensor.is_inference())
        )

        def restore_versions() -> None:
            with unchanged:
                pass

        leaves = [(tensor, tensor.requires_grad) for tensor in tensors if tensor.is_leaf]
        # Made before anything changes: an interruption must not end the restoration before it begins.
        self._choices: list[Restorer] = [*reached.restorers, ("a random state", self.random.restore)]
        self._all: list[Restorer] = [
            *self._choices,
            *(("the memory of a gradient", one.restore_memory) for one in self._gradients),
            *self.values.restorers,
            *(("whether a tensor wants a gradient", partial(want_gradient, *leaf)) for leaf in leaves),
            *(("a gradient", one.restore) for one in self._gradients),
            ("a version", restore_versions),
        ]

    def lend(self) -> None:
        """Give the step copies of the gradients: memory that it frees is free then."""
        for gradient in self._gradients:
            gradient.lend()

    def restore_choices(self) -> None:
        """What decides which ops run; values stay."""
        restore(self._choices)

    def restore(self, *, everything: bool = False) -> None:
        self.values.everything = everything
        restore(self._all)


def _once(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())


def want_gradient(tensor: torch.Tensor, requires_grad: bool) -> None:
    if tensor.requires_grad != requires_grad:
        tensor.requires_grad_(requires_grad)


def refuse_lazy(models: Iterable[nn.Module]) -> None:
    """Raise if a tensor has no shape before its module runs for the first time."""
    if any(is_lazy(tensor) for model in models for tensor in (*model.parameters(), *model.buffers())):
        raise TraceFailed(
            "lazy-parameters", "the model has lazy parameters without a shape: run it once on a real input first"
        )


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Return every tensor of an optimizer's state."""
    if optimizer is None:
        return []
    return [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]


@contextmanager
def borrowed(
    *models: nn.Module, optimizer: Any = None, training: bool, on: TensorKind = "meta"
) -> Iterator[SavedState]:
    """Put models into train or eval mode, and on meta exchange their tensors. Restore everything afterwards.

    A step without data leaves tensors of no use wherever it writes. What a real one logs outside of the models stays.
    """
    modules = [module for model in models for module in model.modules()]
    if any(isinstance(module, torch.jit.ScriptModule) for module in modules):
        raise TraceFailed(
            "scripted-model", "the model is scripted, so its calls cannot be followed: pass the module it was made from"
        )
    refuse_lazy(models)
    roots = [*(("", model) for model in models), ("", optimizer)]
    reached = Snapshot(*roots, on_data=on in ("cpu", "cuda"), modules_only=on in ("cpu", "cuda"))
    state = SavedState(reached, on=on, most_bytes=_MOST_BYTES)
    try:
        for model in models:
            # A model may know better than to put all of itself into train mode (a frozen batch norm).
            if model.training != training:
                with suppress(NotImplementedError):  # an exported model keeps its mode
                    model.train(training)
        if not state.runs:
            state.random.seed()
        if on == "meta":
            swap_state(modules, to_meta)
        yield state
    finally:
        state.restore(everything=True)


def to_meta(tensor: torch.Tensor) -> torch.Tensor:
    if is_sparse(tensor):
        return without_data(tensor, to_meta)
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
