"""Tensors without data that the program hands to numpy, to a list or to a format: what it logs is no op of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from rooflight.trace.replacements import replaced

_Number = bool | int | float | complex


@contextmanager
def values_handed_out(
    known: Callable[[torch.Tensor], torch.Tensor | None], read: Callable[[torch.Tensor], _Number]
) -> Iterator[None]:
    """As copies: what a real tensor holds, values of others that are `known`, else each as a number that is `read`."""
    original, thread = torch.Tensor.numpy, threading.get_ident()

    def values(tensor: torch.Tensor) -> torch.Tensor:
        found = known(tensor) if isinstance(tensor, FakeTensor) else tensor
        number = read(tensor) if found is None else 0
        with _disable_current_modes():
            return (
                torch.full(tensor.shape, number, dtype=tensor.dtype) if found is None else found.detach().cpu().clone()
            )

    def numpy(tensor: torch.Tensor, *, force: bool = False) -> Any:
        if threading.get_ident() != thread:
            return original(tensor, force=force)
        if tensor.device.type != "cpu" and not force:
            raise TypeError(f"can't convert {tensor.device} device type tensor to numpy. Use Tensor.cpu() first.")
        row = tensor.detach()  # torch takes one, too
        if force:
            row.cpu()
        made = values(tensor)
        with _disable_current_modes():  # which says in torch's words where that is not possible
            return original(made.requires_grad_(tensor.requires_grad and not force))

    def tolist(tensor: torch.Tensor) -> Any:
        made = values(tensor.cpu())
        with _disable_current_modes():
            return made.tolist()

    def formatted(tensor: torch.Tensor, form: str) -> str:
        return format(tensor.detach().item(), form) if not tensor.dim() else object.__format__(tensor, form)

    with ExitStack() as stack:
        stack.enter_context(replaced(torch.Tensor, "numpy", numpy))
        stack.enter_context(replaced(FakeTensor, "tolist", tolist))
        stack.enter_context(replaced(FakeTensor, "__format__", formatted))
        stack.enter_context(replaced(FakeTensor, "__dlpack__", lambda tensor, **how: values(tensor).__dlpack__(**how)))
        yield
