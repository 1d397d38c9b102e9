"""Gradients that are there before a step, kept without holding their memory.

A program lets last step's gradients go when the next begins (`zero_grad`). Whoever holds them to put them back would
have the device hold them too, and the step would seem to take that much more.
"""

from __future__ import annotations

import torch

from rooflight.trace.snapshots import has_memory


class LentGradient:
    """The gradient of a tensor, put back as the object that it was."""

    def __init__(self, owner: torch.Tensor) -> None:
        self._owner = owner
        self.gradient = owner.grad
        """To be kept by value too."""
        self._is_lendable = self.gradient is not None and has_memory(self.gradient) and _owns_its_memory(self.gradient)
        self._nbytes: int | None = None

    def lend(self) -> None:
        """Put a copy in its place, and free its memory, if nobody else has a part in that; its values are kept. One
        whose memory is hidden is copied too: what is added to it could not be taken away."""
        gradient = self.gradient
        if gradient is None:
            return
        if not self._is_lendable:
            if not has_memory(gradient):
                self._owner.grad = gradient.detach().clone()
            return
        with torch.no_grad():
            self._owner.grad = gradient.clone()
        storage = gradient.untyped_storage()
        self._nbytes = storage.nbytes()
        storage.resize_(0)

    def memory_back(self) -> None:
        if self.gradient is not None and self._nbytes is not None:
            storage = self.gradient.untyped_storage()
            if storage.nbytes() != self._nbytes:
                storage.resize_(self._nbytes)

    def put_back(self) -> None:
        self._owner.grad = self.gradient


class CopiedGradient:
    """The same for a step that is run again and again: each time with a new copy, which is the step's own."""

    gradient: torch.Tensor | None = None

    def __init__(self, owner: torch.Tensor) -> None:
        self._owner = owner
        self._copy: bytearray | None = None
        self._hidden: torch.Tensor | None = None
        """One of which only torch knows where its values are: sparse, or of a class with ways of its own."""
        gradient = owner.grad
        if gradient is None:
            return
        if not has_memory(gradient):
            self._hidden = gradient.detach().clone()
            return
        self._form = torch.empty_like(gradient, device="meta")
        self._device = gradient.device
        # No tensor: on the CPU it would count as the step's memory.
        self._copy = bytearray(self._form.numel() * self._form.element_size())
        if self._copy:
            dense = gradient.detach().contiguous()
            torch.frombuffer(self._copy, dtype=torch.uint8).copy_(dense.view(-1).view(torch.uint8))

    def lend(self) -> None:
        """It is lent already."""

    def memory_back(self) -> None:
        """It has none."""

    def put_back(self) -> None:
        if self._copy is None:
            self._owner.grad = None if self._hidden is None else self._hidden.clone()
            return
        gradient = torch.empty_like(self._form, device=self._device)
        if self._copy:
            values = torch.frombuffer(self._copy, dtype=torch.uint8).view(gradient.dtype).view(gradient.shape)
            gradient.copy_(values)
        self._owner.grad = gradient


def _owns_its_memory(tensor: torch.Tensor) -> bool:
    """Does nothing else lie in its storage, such as the gradients of other parameters in one buffer?"""
    storage = tensor.untyped_storage()
    alone = torch.empty(1).untyped_storage()
    count = torch._C._storage_Use_Count
    whole = storage.nbytes() == tensor.numel() * tensor.element_size()
    return whole and storage.resizable() and count(storage._cdata) <= count(alone._cdata) + 1
