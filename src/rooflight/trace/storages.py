"""Which storage a tensor lies in, and when each storage is born and dies, counted in ops.

Python keeps one wrapper for a storage as long as the storage lives, so a weak reference to the wrapper tells the
moment at which the memory would be freed. The wrapper is a reference to the storage, though, and autograd's engine
adds gradients in place only where it holds the last one: storages that backward makes get no wrapper. Their tensors
are followed instead, which are results of ops. (In forward that would not do: autograd saves tensors that no op has
given. In backward only what somebody keeps by `.data`, or as a storage without a tensor, is missed.)
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rooflight.errors import TraceFailed
from rooflight.ledger import Category, Storage, Tensor
from rooflight.models.dtypes import DTYPE_NAMES, dtype_name
from rooflight.trace.interception import below_autograd, nothing_handed_over
from rooflight.trace.sparse_tensors import is_sparse, parts_of


@dataclass(slots=True)
class _StorageLife:
    nbytes: int
    category: Category
    born: int | None
    name: str
    host: bool
    dies: int | None = None


class Storages:
    """The register of storages of one trace. `clock` gives the index of the next op."""

    def __init__(self, clock: Callable[[], int], device: str) -> None:
        self._clock = clock
        self._device = device
        self._lives: list[_StorageLife] = []
        self._ids: dict[int, int] = {}
        self._forgotten: set[int] = set()
        self._refs: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self._tensors: dict[int, dict[int, weakref.ref[torch.Tensor]]] = {}
        self._detach_is_copied = detach_is_copied()  # asked outside of what is recorded
        self.saved_by_autograd = True
        """Can autograd keep what is made now? Not in backward, unless that is to be differentiated again."""

    def id_of(
        self,
        tensor: torch.Tensor,
        category: Category | None = None,
        name: str = "",
        *,
        host: bool = False,
        is_part: bool = False,
    ) -> int:
        """The number of the tensor's storage, of a sparse tensor that of its values. A new one is born now, or was
        there before the step if filed. `host`: it stands for one on the host, whatever device it says it is on.
        `is_part`: of a sparse tensor, which torch gives a new view of each time it is asked."""
        if is_sparse(tensor):
            return [self.id_of(part, category, name, host=host, is_part=True) for part in parts_of(tensor)][-1]
        if tensor.layout is not torch.strided or tensor.is_nested:
            what = "the step makes" if category is None else " ".join(("the", category, *name.split(), "is"))
            raise TraceFailed(
                "unsupported-tensor", f"{what} a {_kind(tensor)} tensor, which cannot be followed: use dense ones"
            )
        address = storage_address(tensor)
        number = self._ids.get(address)
        if number is None:
            number = self._ids[address] = len(self._lives)
            born = None if category is not None else self._clock()
            # A program on a CPU may move its tensors to the GPU itself: those are not the host's.
            host = host or (tensor.device.type == "cpu" and self._device != "cpu")
            life = _StorageLife(0, category or "temporary", born, name, host)
            self._lives.append(life)
            if self.saved_by_autograd or is_part or not _can_peek():
                self._wrap(tensor, address, number)
            else:
                self._tensors[address] = {}
        if address in self._tensors:
            self._follow(tensor, address, number)
        return number

    def _wrap(self, tensor: torch.Tensor, address: int, number: int) -> None:
        storage = tensor.untyped_storage()
        self._lives[number].nbytes = storage.nbytes()
        self._refs[address] = weakref.ref(storage, partial(self._freed, address, number))

    def detached(self, tensor: torch.Tensor) -> None:
        """A result of detach: a gradient, which nothing is added to by the engine any more."""
        address = storage_address(tensor)
        if self._detach_is_copied and self._tensors.pop(address, None) is not None:
            self._wrap(tensor, address, self._ids[address])

    def _follow(self, tensor: torch.Tensor, address: int, number: int) -> None:
        """One more tensor of a storage that has no wrapper: the storage dies with the last of them."""
        tensors = self._tensors[address]
        which: int = tensor._cdata
        if which not in tensors:
            life = self._lives[number]
            life.nbytes = max(life.nbytes, _extent(tensor))
            tensors[which] = weakref.ref(tensor, partial(self._left, which, address, number))

    def _left(self, which: int, address: int, number: int, _: object) -> None:
        tensors = self._tensors[address]
        del tensors[which]
        if not tensors:
            del self._tensors[address]
            self._freed(address, number, None)

    def _freed(self, address: int, number: int, _: object) -> None:
        self._lives[number].dies = self._clock()
        self._ids.pop(address, None)
        self._refs.pop(address, None)

    def is_host(self, number: int) -> bool:
        return self._lives[number].host

    def filed_as(self, number: int) -> tuple[Category, str]:
        life = self._lives[number]
        return life.category, life.name

    def nbytes_of(self, number: int) -> int:
        return self._lives[number].nbytes

    def parts(self, tensor: torch.Tensor, category: Category | None = None) -> list[Tensor]:
        """What the ledger keeps of a sparse tensor: each of its parts. Of a dense one that alone."""
        if is_sparse(tensor):
            self.id_of(tensor, category)
        return [self.describe(part, category) for part in parts_of(tensor)]

    def describe(self, tensor: torch.Tensor, category: Category | None = None) -> Tensor:
        """What the ledger keeps of a tensor; one that was not seen before is filed under the category, if any."""
        strides = None if tensor.is_contiguous() else tuple(tensor.stride())
        dtype = DTYPE_NAMES.get(tensor.dtype) or dtype_name(tensor.dtype)
        return Tensor(self.id_of(tensor, category), tuple(tensor.shape), dtype, strides, int(tensor.storage_offset()))

    def mark_alive(self, category: Category) -> None:
        """File what was made in the step and lives now under a category, e.g. as kept for backward."""
        for number in self._ids.values():
            life = self._lives[number]
            if life.category == "temporary" and life.born is not None:
                life.category = category

    def number_of(self, tensor: torch.Tensor) -> int | None:
        """Of the tensor's storage, if it has one."""
        return self._ids.get(storage_address(tensor))

    def mark(self, tensor: torch.Tensor, category: Category, name: str = "") -> None:
        life = self._lives[self.id_of(tensor)]
        if life.category in ("temporary", "activation"):
            life.category, life.name = category, name or life.name

    def forget(self, tensor: torch.Tensor) -> None:
        """Leave a storage out of the register: the step turned out not to have it."""
        self._forgotten.add(self.id_of(tensor))

    def close(self) -> tuple[Storage, ...]:
        """The finished register. What lives on outlives the step."""
        self._refs.clear()
        self._tensors.clear()
        return tuple(
            Storage(number, life.nbytes, life.category, life.born, life.dies, life.name, life.host)
            for number, life in enumerate(self._lives)
            if number not in self._forgotten
        )


def storage_address(tensor: torch.Tensor) -> int:
    """What tells storages apart; without making a wrapper for the storage, if possible."""
    if _can_peek():
        return _peeked(tensor)
    address: int = tensor.untyped_storage()._cdata
    return address


def _peeked(tensor: torch.Tensor) -> int:
    """A tensor in C++ begins with its table of methods and its count of references; its storage comes next."""
    return ctypes.c_uint64.from_address(tensor._cdata + 16).value


@functools.cache
def _can_peek() -> bool:
    """Does this torch lay tensors out that way?"""
    tensors = [torch.empty(3), torch.empty((2, 2), device="meta", dtype=torch.int8)]
    return all(_peeked(tensor) == tensor.untyped_storage()._cdata for tensor in tensors)


@functools.cache
def detach_is_copied() -> bool:
    """Does autograd give a copy of what detach gave, which is the result of no op? Before 2.11 it does."""
    detached: list[torch.Tensor] = []

    def run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        detached.append(func(*args, **kwargs))
        return detached[-1]

    with nothing_handed_over(), below_autograd(run):  # a step without data may be in a fake mode
        gradient = torch.empty(0, device="meta").detach()
    return gradient._cdata != detached[-1]._cdata


def span(tensor: torch.Tensor) -> int:
    """Elements from its first to its last in memory, with what lies in between."""
    if not tensor.numel():
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _extent(tensor: torch.Tensor) -> int:
    """The bytes from the beginning of its storage to the tensor's last element."""
    return int(tensor.storage_offset() + span(tensor)) * tensor.element_size() if tensor.numel() else 0


def _kind(tensor: torch.Tensor) -> str:
    return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
