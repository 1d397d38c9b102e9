"""Save the values of tensors on the host, their gradients, and the random state; restore them in place.

A copy on the GPU would count in what is measured there. The copies are bytes and no tensors: on the CPU tensors would
count as memory of the model.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch

from rooflight.trace.restoring import Restorer, restore
from rooflight.trace.storages import span


def host_copy(tensor: torch.Tensor) -> bytearray:
    """Copy a tensor of bytes to the host."""
    copy = bytearray(tensor.numel())
    if copy:
        as_tensor(copy).copy_(tensor)
    return copy


def as_tensor(copy: bytearray) -> torch.Tensor:
    return torch.frombuffer(copy, dtype=torch.uint8)


class SavedValues:
    """Copies of tensors' memory, and restorers that write into what has changed since.

    `tracked` tensors are restored only if torch counted a change; the others may change without (batch norm's
    statistics do).
    """

    def __init__(
        self, tracked: Iterable[torch.Tensor], others: Iterable[torch.Tensor] = (), *, most_bytes: float = float("inf")
    ) -> None:
        """Beyond `most_bytes` nothing is copied, and a tensor that changes is named in the error."""
        self.nbytes = 0
        self.everything = False
        """Whether to restore also what torch did not see change, as the replay of a CUDA graph."""
        self.restorers: list[Restorer] = []
        seen: set[tuple[torch.device, int, int]] = set()
        for tensors, is_tracked in ((others, False), (tracked, True)):
            for tensor in tensors:
                if not has_memory(tensor):
                    if _is_plain(tensor) and not tensor.numel():
                        resize = partial(_resize, tensor, tensor.detach())  # a statistic of the first batch's size
                        self.restorers.append(("a tensor without elements", resize))
                    continue
                block = _Block(tensor, is_tracked=is_tracked)
                if block.place not in seen:
                    seen.add(block.place)
                    if self.nbytes + block.nbytes <= most_bytes:
                        block.copy = host_copy(block.memory())
                        self.nbytes += block.nbytes
                    self.restorers.append((block.name, partial(self._restore, block)))

    def _restore(self, block: _Block) -> None:
        block.restore(everything=self.everything)

    def restore(self, *, everything: bool = False) -> None:
        self.everything = everything
        restore(self.restorers)


def _resize(tensor: torch.Tensor, before: torch.Tensor) -> None:
    if tensor.shape != before.shape:
        tensor.data = before


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor has memory that can be copied and written."""
    try:
        return _is_plain(tensor) and tensor.data_ptr() != 0
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    """Subclasses with a dispatch of their own may hide their memory; some kinds raise for every question."""
    kind = type(tensor)
    function = getattr(kind.__torch_function__, "__func__", kind.__torch_function__)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or function not in _PLAIN:
        return False
    try:
        return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_inference()
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False


_PLAIN = tuple(
    getattr(kind.__torch_function__, "__func__", kind.__torch_function__) for kind in (torch.Tensor, torch.nn.Parameter)
)


class _Block:
    """The bytes from a tensor's first element to its last: elements may share memory, or leave gaps in it."""

    def __init__(self, tensor: torch.Tensor, *, is_tracked: bool) -> None:
        self._tensor = tensor
        self._home = tensor.detach()
        """The memory that the tensor has now: a model may give it another (`weight.data = ...`)."""
        self._is_tracked = is_tracked
        self._version = tensor._version
        self.copy = bytearray()
        self.name = f"the values of a tensor of {tuple(tensor.shape)}"
        self.nbytes = span(tensor) * tensor.element_size()
        self.place = (tensor.device, tensor.data_ptr(), self.nbytes)

    def memory(self) -> torch.Tensor:
        memory = torch.empty(0, dtype=torch.uint8, device=self._home.device)
        start = self._home.storage_offset() * self._home.element_size()
        return memory.set_(self._home.untyped_storage(), start, (self.nbytes,), (1,))

    def restore(self, *, everything: bool) -> None:
        now, home = self._tensor, self._home
        if _place(now) != _place(home):
            now.data = home
        if not self.copy:
            if now._version != self._version:
                raise RuntimeError("changed in place, and too large to have been kept")
        elif everything or not self._is_tracked or now._version != self._version:
            self.memory().copy_(as_tensor(self.copy))


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class RandomState:
    """The state of every global generator that a step may draw from."""

    def __init__(self, *, cuda: bool) -> None:
        self._python, self._torch = random.getstate(), host_copy(torch.get_rng_state())
        self._cuda = [host_copy(state) for state in torch.cuda.get_rng_state_all()] if cuda else []
        numpy: Any = sys.modules.get("numpy")
        self._numpy = None if numpy is None else numpy.random
        self._of_numpy = None if numpy is None else numpy.random.get_state()

    def seed(self) -> None:
        """Seed the host's generators: what a model draws there may decide which ops it runs."""
        random.seed(0)
        torch.default_generator.manual_seed(0)
        if self._numpy is not None:
            self._numpy.seed(0)

    def restore(self) -> None:
        random.setstate(self._python)
        torch.set_rng_state(as_tensor(self._torch))
        if self._numpy is not None:
            self._numpy.set_state(self._of_numpy)
        if self._cuda:
            torch.cuda.set_rng_state_all([as_tensor(state) for state in self._cuda])
