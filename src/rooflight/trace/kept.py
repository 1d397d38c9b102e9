"""The values of a model and its optimizer, kept on the host and put back in place.

A step that is run again and again must begin the same way each time, and a borrowed model must go back as it came.
The copy is on the host: one on the GPU would count in what is measured there.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from typing import Any

import torch


class KeptValues:
    """Copies of tensors on the host. `put_back` writes into those that have changed since."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self._tensors: list[torch.Tensor] = []
        seen: set[int] = set()
        for tensor in tensors:
            if id(tensor) not in seen and not tensor.is_inference():  # which cannot be written outside of its mode
                seen.add(id(tensor))
                self._tensors.append(tensor)
        self._values = [tensor.detach().to("cpu", copy=True) for tensor in self._tensors]
        self._versions = [tensor._version for tensor in self._tensors]

    def put_back(self, *, everything: bool = False) -> None:
        """`everything`: also what torch did not see change; a replayed CUDA graph writes behind its back."""
        with torch.no_grad():
            for index, (tensor, value) in enumerate(zip(self._tensors, self._values, strict=True)):
                if everything or tensor._version != self._versions[index]:
                    tensor.copy_(value)
                    self._versions[index] = tensor._version


class KeptRandomness:
    """The state of every random generator a step may draw from."""

    def __init__(self, *, cuda: bool) -> None:
        self._python, self._torch = random.getstate(), torch.get_rng_state()
        self._cuda = torch.cuda.get_rng_state_all() if cuda else []
        self._numpy_module: Any = sys.modules.get("numpy")
        self._numpy = self._numpy_module.random.get_state() if self._numpy_module is not None else None

    def put_back(self) -> None:
        random.setstate(self._python)
        torch.set_rng_state(self._torch)
        if self._cuda:
            torch.cuda.set_rng_state_all(self._cuda)
        if self._numpy_module is not None:
            self._numpy_module.random.set_state(self._numpy)


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Every tensor of an optimizer's state."""
    if optimizer is None:
        return []
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
