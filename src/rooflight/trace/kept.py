"""The values of a model and its optimizer, kept on the host and put back in place.

A step that is run again and again must begin the same way each time, and a borrowed model must go back as it came:
`put_back_all` stops halfway for nothing.
The copy is on the host: one on the GPU would count in what is measured there.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from rooflight.errors import NotPutBack

Restoring = tuple[str, Callable[[], object]]
"""What is put back, in words, and how. It may be done again after it was broken off."""


def put_back_all(steps: Sequence[Restoring]) -> None:
    """Put everything back, whatever becomes of single things; what failed twice is said in the end.

    Ctrl-C has to wait: what it breaks off is done again, and it is raised when all is done.
    """
    failed: list[str] = []
    stop: KeyboardInterrupt | None = None
    for what, step in steps:
        for last in (False, True):
            try:
                stop = _uninterrupted(step) or stop
                break
            except NotPutBack as error:  # of a step that is made of steps: each was tried twice
                failed += error.what
                break
            except Exception as error:
                if last:
                    failed.append(f"{what} ({' '.join(str(error).split()) or type(error).__name__})")
    if failed:
        raise NotPutBack(failed) from stop
    if stop is not None:
        raise stop


def _uninterrupted(step: Callable[[], object]) -> KeyboardInterrupt | None:
    """Done to its end, from its beginning if need be; and what came in between."""
    stop = None
    while True:
        try:
            step()
            return stop
        except KeyboardInterrupt as error:
            stop = error


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
                if not _has_memory(tensor):
                    continue
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
        put_back_all([(block.name, partial(block.put_back, everything=everything)) for block in self._blocks])


def _has_memory(tensor: torch.Tensor) -> bool:
    """Is anything there that could be written? Tensors with a dispatch of their own have none, or hide it."""
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    return not (own or tensor.is_inference() or tensor.layout is not torch.strided) and tensor.data_ptr() != 0


class _Block:
    """The bytes from a tensor's first element to its last: elements may share memory, or leave gaps in it."""

    def __init__(self, tensor: torch.Tensor, *, is_tracked: bool) -> None:
        self._tensor = tensor
        self._home = tensor.detach()
        """The memory that it has now: a model may give it another (`weight.data = ...`)."""
        self._is_tracked = is_tracked
        self._version = tensor._version
        elements = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        self.nbytes = elements * tensor.element_size()
        self.place = (tensor.device, tensor.data_ptr(), self.nbytes)

    @property
    def name(self) -> str:
        return f"the values of a tensor of {tuple(self._home.shape)}"

    def take(self) -> None:
        self._copy = bytearray(self.nbytes)
        torch.frombuffer(self._copy, dtype=torch.uint8).copy_(self._memory())

    def _memory(self) -> torch.Tensor:
        memory = torch.empty(0, dtype=torch.uint8, device=self._home.device)
        start = self._home.storage_offset() * self._home.element_size()
        return memory.set_(self._home.untyped_storage(), start, (self.nbytes,), (1,))

    def put_back(self, *, everything: bool) -> None:
        if not _is_at(self._tensor, self._home):
            self._tensor.data = self._home
        if everything or not self._is_tracked or self._tensor._version != self._version:
            self._memory().copy_(torch.frombuffer(self._copy, dtype=torch.uint8))
            self._version = self._tensor._version


def _is_at(tensor: torch.Tensor, home: torch.Tensor) -> bool:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) == (
        home.data_ptr(), home.shape, home.stride(), home.dtype)  # fmt: skip


class KeptRandomness:
    """The state of every random generator a step may draw from."""

    def __init__(self, *, cuda: bool) -> None:
        self._python, self._torch = random.getstate(), _as_bytes(torch.get_rng_state())
        self._cuda = [_as_bytes(state) for state in torch.cuda.get_rng_state_all()] if cuda else []
        self._numpy_module: Any = sys.modules.get("numpy")
        self._numpy = self._numpy_module.random.get_state() if self._numpy_module is not None else None

    def put_back(self) -> None:
        steps: list[Restoring] = [
            ("Python's random state", lambda: random.setstate(self._python)),
            ("torch's random state", lambda: torch.set_rng_state(_as_tensor(self._torch))),
        ]
        if self._cuda:
            states = [_as_tensor(state) for state in self._cuda]
            steps.append(("CUDA's random state", lambda: torch.cuda.set_rng_state_all(states)))
        if self._numpy_module is not None:
            steps.append(("numpy's random state", lambda: self._numpy_module.random.set_state(self._numpy)))
        put_back_all(steps)


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
