"""Gradients that are there before a step, saved without holding their memory.

A program frees the gradients of its last step when the next begins (`zero_grad`). If rooflight held them meanwhile,
the step would seem to take that much more memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from rooflight.trace.tensor_values import as_tensor, has_memory, host_copy


class LentGradient:
    """The gradient of a tensor, restored as the same object."""

    def __init__(self, owner: torch.Tensor) -> None:
        self._owner = owner
        self.gradient = owner.grad
        """Its values are saved apart."""
        self._is_alone = self.gradient is not None and has_memory(self.gradient) and _owns_its_memory(self.gradient)
        """Asked before other code of rooflight refers to its memory."""
        self._nbytes: int | None = None

    def lend(self) -> None:
        """Give the step a copy, and free the memory of the gradient if it is not shared."""
        gradient = self.gradient
        if gradient is None:
            return
        if not has_memory(gradient):
            self._owner.grad = gradient.detach().clone()
        elif self._is_alone:
            with torch.no_grad():
                self._owner.grad = gradient.clone()
            storage = gradient.untyped_storage()
            self._nbytes = storage.nbytes()
            storage.resize_(0)

    def restore_memory(self) -> None:
        """Before the values are restored."""
        if self.gradient is not None and self._nbytes is not None:
            storage = self.gradient.untyped_storage()
            if storage.nbytes() != self._nbytes:
                storage.resize_(self._nbytes)

    def restore(self) -> None:
        self._owner.grad = self.gradient


class CopiedGradient:
    """The same for a step that runs again and again: every run gets a new copy, which is the step's own."""

    gradient = None

    def __init__(self, owner: torch.Tensor) -> None:
        self._owner = owner
        gradient = owner.grad
        if gradient is None:
            self._copy: Callable[[], torch.Tensor | None] = lambda: None
        elif has_memory(gradient):
            values = host_copy(gradient.detach().contiguous().view(-1).view(torch.uint8))
            self._copy = partial(_filled, torch.empty_like(gradient, device="meta"), gradient.device, values)
        else:  # only torch knows where its values are: sparse, or a subclass with a dispatch of its own
            self._copy = gradient.detach().clone().clone

    def lend(self) -> None:
        """Every run has a copy."""

    def restore_memory(self) -> None:
        """The copies keep theirs."""

    def restore(self) -> None:
        self._owner.grad = self._copy()


def _filled(form: torch.Tensor, device: torch.device, values: bytearray) -> torch.Tensor:
    gradient = torch.empty_like(form, device=device)
    if values:
        gradient.copy_(as_tensor(values).view(gradient.dtype).view(gradient.shape))
    return gradient


def _owns_its_memory(tensor: torch.Tensor) -> bool:
    """Whether nothing else lies in its storage, such as the gradients of other parameters in one buffer."""
    storage = tensor.untyped_storage()
    alone = torch.empty(1).untyped_storage()
    count = torch._C._storage_Use_Count
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    return whole and storage.resizable() and count(storage._cdata) <= count(alone._cdata) + 1
