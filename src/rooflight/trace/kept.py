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
    """Copies of tensors' memory on the host. `put_back` writes into what has changed since.

    `tracked` tensors are looked at only if torch counted a change; the others may be changed without (batch norm's
    statistics are). The copies are no tensors: on the CPU they would count as the model's memory.
    """

    def __init__(self, tracked: Iterable[torch.Tensor], others: Iterable[torch.Tensor] = ()) -> None:
        self._blocks: list[_Block] = []
        seen: set[tuple[torch.device, int, int]] = set()
        for tensors, is_tracked in ((others, False), (tracked, True)):
            for tensor in tensors:
                if tensor.is_inference() or tensor.layout is not torch.strided or not tensor.data_ptr():
                    continue  # nothing there, or nothing that could be written
                block = _Block(tensor, is_tracked=is_tracked)
                if block.place not in seen:
                    seen.add(block.place)
                    block.take()
                    self._blocks.append(block)

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self._blocks)

    def put_back(self, *, everything: bool = False) -> None:
        """`everything`: also what torch did not see change; a replayed CUDA graph writes behind its back."""
        with torch.no_grad():
            for block in self._blocks:
                block.put_back(everything=everything)


class _Block:
    """The bytes from a tensor's first element to its last: elements may share memory, or leave gaps in it."""

    def __init__(self, tensor: torch.Tensor, *, is_tracked: bool) -> None:
        self._tensor = tensor
        self._is_tracked = is_tracked
        self._version = tensor._version
        elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.nbytes = elements * tensor.element_size()
        self.place = (tensor.device, tensor.data_ptr(), self.nbytes)

    def take(self) -> None:
        self._copy = bytearray(self.nbytes)
        torch.frombuffer(self._copy, dtype=torch.uint8).copy_(self._memory())

    def _memory(self) -> torch.Tensor:
        memory = torch.empty(0, dtype=torch.uint8, device=self._tensor.device)
        start = self._tensor.storage_offset() * self._tensor.element_size()
        return memory.set_(self._tensor.untyped_storage(), start, (self.nbytes,), (1,))

    def put_back(self, *, everything: bool) -> None:
        if everything or not self._is_tracked or self._tensor._version != self._version:
            self._memory().copy_(torch.frombuffer(self._copy, dtype=torch.uint8))
            self._version = self._tensor._version


class KeptRandomness:
    """The state of every random generator a step may draw from."""

    def __init__(self, *, cuda: bool) -> None:
        self._python, self._torch = random.getstate(), _as_bytes(torch.get_rng_state())
        self._cuda = [_as_bytes(state) for state in torch.cuda.get_rng_state_all()] if cuda else []
        self._numpy_module: Any = sys.modules.get("numpy")
        self._numpy = self._numpy_module.random.get_state() if self._numpy_module is not None else None

    def put_back(self) -> None:
        random.setstate(self._python)
        torch.set_rng_state(_as_tensor(self._torch))
        if self._cuda:
            torch.cuda.set_rng_state_all([_as_tensor(state) for state in self._cuda])
        if self._numpy_module is not None:
            self._numpy_module.random.set_state(self._numpy)


def _as_bytes(state: torch.Tensor) -> bytearray:
    """A tensor would count as memory of the step."""
    kept = bytearray(state.numel())
    _as_tensor(kept).copy_(state)
    return kept


def _as_tensor(state: bytearray) -> torch.Tensor:
    return torch.frombuffer(state, dtype=torch.uint8)


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Every tensor of an optimizer's state."""
    if optimizer is None:
        return []
    return [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
