"""All that a step of somebody's own can reach, kept as it is and put back."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from rooflight.trace.borrowing import KeptAttributes, refuse_lazy, want_gradient
from rooflight.trace.kept_gradients import CopiedGradient, LentGradient
from rooflight.trace.kept_state import state_of
from rooflight.trace.reach import Reach
from rooflight.trace.snapshots import KeptRandomness, KeptValues, Restoring, optimizer_tensors, put_back_all


class KeptProgram:
    """All that a step can reach, as it is now."""

    def __init__(self, reach: Reach, *, on: str, again: bool = False) -> None:
        """`on`: where the step really runs, so that values change too; "fake": they do not. `again`: it is put back
        before every run, which then finds copies of the gradients: those that a run lets go are gone."""
        runs = on != "fake"
        modules = [module for model in reach.modules.values() for module in model.modules()]
        self._attributes = KeptAttributes(modules)
        parameters = [tensor for model in reach.modules.values() for tensor in model.parameters()]
        parameters += [tensor for one in reach.optimizers for group in one.param_groups for tensor in group["params"]]
        buffers = [tensor for model in reach.modules.values() for tensor in model.buffers()]
        states = [tensor for optimizer in reach.optimizers for tensor in optimizer_tensors(optimizer)]
        tensors = _each_once([*parameters, *buffers, *self._attributes.tensors, *states, *reach.tensors])
        refuse_lazy(tensors)
        kind = CopiedGradient if again else LentGradient
        self._gradients = [kind(tensor) for tensor in tensors if tensor.is_leaf]
        held = [one.gradient for one in self._gradients if one.gradient is not None]
        self._values = KeptValues(parameters, [*buffers, *states, *held, *reach.tensors]) if runs else None
        self._randomness = KeptRandomness(cuda=on == "cuda")
        unchanged = torch.autograd._unsafe_preserve_version_counter(
            tuple(tensor for tensor in _each_once([*tensors, *held]) if not tensor.is_inference())
        )

        def versions_back() -> None:
            with unchanged:
                pass

        self._choices: list[Restoring] = [
            ("an attribute", self._attributes.put_back),
            ("a random state", self._randomness.put_back),
            *state_of(reach, tensors, on_data=runs),
        ]
        leaves = [(tensor, tensor.requires_grad) for tensor in tensors if tensor.is_leaf]
        self._rest: list[Restoring] = [
            *(("whether a tensor wants a gradient", partial(want_gradient, *leaf)) for leaf in leaves),
            *(("a gradient", one.put_back) for one in self._gradients),
            ("a version", versions_back),
        ]

    def lend(self) -> None:
        """Let the step have copies of the gradients: where it lets them go, as a program's own would, their memory is
        free."""
        for gradient in self._gradients:
            gradient.lend()

    @property
    def nbytes(self) -> int:
        return 0 if self._values is None else self._values.nbytes

    def put_choices_back(self) -> None:
        put_back_all(self._choices)

    def put_back(self, *, everything: bool = False) -> None:
        values = [] if self._values is None else [("a value", partial(self._values.put_back, everything=everything))]
        memory: list[Restoring] = [("the memory of a gradient", one.memory_back) for one in self._gradients]
        put_back_all([*self._choices, *memory, *values, *self._rest])


def _each_once(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    return list({id(tensor): tensor for tensor in tensors}.values())
