"""The values of a model and its optimizer, kept on the host and put back in place.

A step that is run again and again must begin the same way each time, and a borrowed model must go back as it came:
`put_back_all` stops halfway for nothing.
The copy is on the host: one on the GPU would count in what is measured there.
"""

from __future__ import annotations

import math
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from rooflight.errors import NotPutBack
from rooflight.trace.storages import span

Restoring = tuple[str, Callable[[], object]]
"""What is put back, in words, and how. It may be done again after it was broken off."""


def put_back_all(steps: Sequence[Restoring]) -> None:
    """Put everything back, whatever becomes of single things; what failed twice is said in the end.

    Ctrl-C and whatever else ends a program have to wait: what they break off is done again, and they are raised when
    all is done.
    """
    failed: list[str] = []
    stop: BaseException | None = None
    with _signals_later():
        for what, step in steps:
            for last in (False, True):
                try:
                    step()
                    break
                except NotPutBack as error:  # of a step that is made of steps: each was tried twice
                    failed += error.what
                    break
                except BaseException as error:
                    stop = stop or (None if isinstance(error, Exception) else error)
                    if last:
                        failed.append(f"{what} ({' '.join(str(error).split()) or type(error).__name__})")
    if failed:
        raise NotPutBack(failed) from stop
    if stop is not None:
        raise stop


_SIGNALS = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2")
"""Those whose handlers may raise something in the middle of anything."""


@contextmanager
def _signals_later() -> Iterator[None]:
    """Signals are heard when it is over. Only the main thread hears them at all."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    heard: list[tuple[int, FrameType | None]] = []
    handlers = {}
    try:
        for name in _SIGNALS:
            number = getattr(signal, name, None)
            if number is not None and callable(handler := signal.getsignal(number)):
                handlers[number] = handler
                signal.signal(number, lambda *signal_: heard.append(signal_))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number, frame in heard:
            handlers[number](number, frame)


class KeptValues:
    """Copies of tensors' memory on the host. `put_back` writes into what has changed since.

    `tracked` tensors are looked at only if torch counted a change; the others may be changed without (batch norm's
    statistics are). The copies are no tensors: on the CPU they would count as the model's memory.
    """

    def __init__(
        self, tracked: Iterable[torch.Tensor], others: Iterable[torch.Tensor] = (), *, most_bytes: float = math.inf
    ) -> None:
        """Beyond `most_bytes` nothing is copied: a tensor that changes cannot be put back then, and is named."""
        self._blocks: list[_TensorMemory] = []
        self._empty: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Tensors that hold nothing yet, and how they were: a statistic gets its size from the first batch."""
        seen: set[tuple[torch.device, int, int]] = set()
        for tensors, is_tracked in ((others, False), (tracked, True)):
            for tensor in tensors:
                if not has_memory(tensor):
                    if _is_plain(tensor) and not tensor.numel():
                        self._empty.append((tensor, tensor.detach()))
                    continue
                block = _TensorMemory(tensor, is_tracked=is_tracked)
                if block.place not in seen:
                    seen.add(block.place)
                    if self.nbytes + block.nbytes <= most_bytes:
                        block.take()
                    self._blocks.append(block)

    @property
    def nbytes(self) -> int:
        return sum(len(block.copy) for block in self._blocks)

    def put_back(self, *, everything: bool = False) -> None:
        """`everything`: also what torch did not see change; a replayed CUDA graph writes behind its back."""
        put_back_all(
            [
                *((block.name, partial(block.put_back, everything=everything)) for block in self._blocks),
                *(("a tensor that held nothing", partial(_emptied, *pair)) for pair in self._empty),
            ]
        )


def _emptied(tensor: torch.Tensor, before: torch.Tensor) -> None:
    if tensor.shape != before.shape:
        tensor.data = before


def has_memory(tensor: torch.Tensor) -> bool:
    """Is anything there that could be written?"""
    try:
        return _is_plain(tensor) and tensor.data_ptr() != 0
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False


def _is_plain(tensor: torch.Tensor) -> bool:
    """Tensors with ways of their own have no memory, or hide it; some kinds do not even say what they are."""
    kind = type(tensor)
    if kind.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ or _function_of(kind) not in _PLAIN:
        return False
    try:
        return tensor.layout is torch.strided and not tensor.is_nested and not tensor.is_inference()
    except (RuntimeError, ValueError, TypeError, NotImplementedError):
        return False


def _function_of(kind: type[torch.Tensor]) -> object:
    """The function itself, not bound to the class it was asked of."""
    return getattr(kind.__torch_function__, "__func__", kind.__torch_function__)


_PLAIN = (_function_of(torch.Tensor), _function_of(torch.nn.Parameter))
"""What tensors and parameters do with functions, and subclasses that change nothing."""


class _TensorMemory:
    """The bytes from a tensor's first element to its last: elements may share memory, or leave gaps in it."""

    def __init__(self, tensor: torch.Tensor, *, is_tracked: bool) -> None:
        self._tensor = tensor
        self._home = tensor.detach()
        """The memory that it has now: a model may give it another (`weight.data = ...`)."""
        self._is_tracked = is_tracked
        self._version = tensor._version
        self.copy = bytearray()
        self.nbytes = span(tensor) * tensor.element_size()
        self.place = (tensor.device, tensor.data_ptr(), self.nbytes)

    @property
    def name(self) -> str:
        return f"the values of a tensor of {tuple(self._home.shape)}"

    def take(self) -> None:
        self.copy = bytearray(self.nbytes)
        torch.frombuffer(self.copy, dtype=torch.uint8).copy_(self._memory())

    def _memory(self) -> torch.Tensor:
        memory = torch.empty(0, dtype=torch.uint8, device=self._home.device)
        start = self._home.storage_offset() * self._home.element_size()
        return memory.set_(self._home.untyped_storage(), start, (self.nbytes,), (1,))

    def put_back(self, *, everything: bool) -> None:
        if not _is_at(self._tensor, self._home):
            self._tensor.data = self._home
        if not self.copy:
            if self._tensor._version != self._version:
                raise RuntimeError("changed in place, and too large to have been kept")
        elif everything or not self._is_tracked or self._tensor._version != self._version:
            self._memory().copy_(torch.frombuffer(self.copy, dtype=torch.uint8))
            self._version = self._tensor._version


def _is_at(tensor: torch.Tensor, home: torch.Tensor) -> bool:
    return (tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype) == (
        home.data_ptr(),
        home.shape,
        home.stride(),
        home.dtype,
    )


class KeptRandomness:
    """The state of every random generator a step may draw from."""

    def __init__(self, *, cuda: bool) -> None:
        self._python, self._torch = random.getstate(), _as_bytes(torch.get_rng_state())
        self._cuda = [_as_bytes(state) for state in torch.cuda.get_rng_state_all()] if cuda else []
        self._numpy_module: Any = sys.modules.get("numpy")
        self._numpy = self._numpy_module.random.get_state() if self._numpy_module is not None else None

    def begin_alike(self) -> None:
        """The host's generators as every trace begins: what a model draws there may decide which ops it runs."""
        random.seed(0)
        torch.default_generator.manual_seed(0)
        if self._numpy_module is not None:
            self._numpy_module.random.seed(0)

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
    content = bytearray(state.numel())
    _as_tensor(content).copy_(state)
    return content


def _as_tensor(state: bytearray) -> torch.Tensor:
    return torch.frombuffer(state, dtype=torch.uint8)


def optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> list[torch.Tensor]:
    """Every tensor of an optimizer's state."""
    if optimizer is None:
        return []
    return [leaf for leaf in tree_leaves(list(optimizer.state.values())) if isinstance(leaf, torch.Tensor)]
