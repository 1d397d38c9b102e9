"""One trace for every batch size: traced with a batch that is a prime, its multiples among the sizes are the batch's.

A model is traced on meta tensors, where a large batch costs nothing. With a prime that divides no size of the model
itself, a size of 1619 is the batch, one of 1619 x 128 the tokens of it, and putting another number in the prime's place
gives the step of that batch. What does not fit this picture (a size of the batch and something, a half of the batch) is
looked for, and the batches are then traced one by one. A model that runs other ops from some batch on is not found out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from rooflight.errors import BadInput
from rooflight.ledger import Arg, Ledger, Op, Scalar, Tensor

PRIMES = (1619, 1637, 1693, 1709, 1733)
"""Sizes of models are seldom their multiples."""
_NEAR = 4
"""A size this close to a multiple of the prime is suspected to be the batch and a few more."""
_PARTS = range(2, 9)
"""A prime has no halves: a size this many of which are about a multiple is suspected to be a part of the batch."""


_MOST_BYTES = 2.0**62


class DoesNotScale(Exception):
    """The ledger's sizes are not products with the batch."""


def prime_for(batches: Sequence[int]) -> int:
    """A prime that is none of the batches."""
    return next(prime for prime in PRIMES if prime not in batches)


def check_scales(ledger: Ledger, prime: int, own_sizes: set[int]) -> None:
    """Raise where the batch cannot be told apart: the prime divides a size of the model's own parameters, or some size
    is near a multiple of the prime, or near a half, a third, ... of one, without being one."""
    divided = next((size for size in own_sizes if size and size % prime == 0), None)
    if divided is not None:
        raise DoesNotScale(f"a parameter has a size of {divided}, a multiple of the batch that was traced")
    seen = set(own_sizes)
    for op in ledger.ops:
        for tensor in (*op.inputs, *op.outputs):
            for size in tensor.shape:
                if size in seen:
                    continue
                seen.add(size)
                if size % prime and _is_suspect(size, prime):
                    raise DoesNotScale(f"{op.name} has a size of {size}, which is no multiple of the batch")


def _is_suspect(size: int, prime: int) -> bool:
    # n times the n-th part of the batch, rounded up or down, is at most n - 1 off.
    return _is_near(size, prime, _NEAR) or any(_is_near(n * size, prime, n - 1) for n in _PARTS)


def _is_near(size: int, prime: int, most: int) -> bool:
    rest = size % prime
    return size > prime // 2 and min(rest, prime - rest) <= most


class OtherBatch:
    """A traced step with another batch in the prime's place: sizes, tensors, ops, the whole ledger. Without a prime it
    is the batch that was traced, and nothing changes."""

    def __init__(self, prime: int | None, batch: int) -> None:
        self._prime = prime
        self._batch = batch
        self._known: dict[int, int] = {}
        """Sizes that repeat are computed once."""

    def size(self, value: int) -> int:
        """A size, a stride, a number of bytes: as often the prime divides it, the batch takes its place."""
        if self._prime is None:
            return value
        size = self._known.get(value)
        if size is None:
            rest, times = value, 0
            while rest and rest % self._prime == 0:
                rest, times = rest // self._prime, times + 1
            size = self._known[value] = rest * self._batch**times
        return size

    def sizes(self, values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Of many at once."""
        if self._prime is None:
            return values
        if float(values.max(initial=0)) * (self._batch / self._prime) ** 2 > _MOST_BYTES:
            raise BadInput(
                "batch-too-large",
                f"a batch of {self._batch:,} makes tensors that cannot be addressed: give a smaller one",
            )
        different, places = np.unique(values, return_inverse=True)
        return np.array([self.size(value) for value in different.tolist()], dtype=np.int64)[places]

    def tensor(self, tensor: Tensor) -> Tensor:
        return Tensor(
            storage=tensor.storage,
            shape=tuple(map(self.size, tensor.shape)),
            dtype=tensor.dtype,
            strides=None if tensor.strides is None else tuple(map(self.size, tensor.strides)),
            offset=self.size(tensor.offset),
        )

    def op(self, op: Op) -> Op:
        if self._prime is None:
            return op
        return replace(
            op,
            args={name: self._argument(value) for name, value in op.args.items()},
            outputs=tuple(map(self.tensor, op.outputs)),
            cost=None,
        )

    def _argument(self, value: Arg) -> Arg:
        if isinstance(value, Tensor):
            return self.tensor(value)
        if isinstance(value, list):
            return [self.tensor(item) if isinstance(item, Tensor) else self._scalar(item) for item in value]
        return self._scalar(value)

    def _scalar(self, value: Scalar) -> Scalar:
        return self.size(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def ledger(self, ledger: Ledger) -> Ledger:
        """The whole of it; ops have no costs yet."""
        if self._prime is None:
            return ledger
        header = replace(
            ledger.header,
            batch=self._batch,
            inputs=tuple((name, self.tensor(tensor)) for name, tensor in ledger.header.inputs),
            outputs=tuple(map(self.tensor, ledger.header.outputs)),
        )
        modules = tuple(
            replace(
                module,
                inputs=tuple(tuple(map(self.size, shape)) for shape in module.inputs),
                outputs=tuple(tuple(map(self.size, shape)) for shape in module.outputs),
            )
            for module in ledger.modules
        )
        storages = tuple(replace(storage, nbytes=self.size(storage.nbytes)) for storage in ledger.storages)
        return replace(ledger, header=header, modules=modules, storages=storages, ops=tuple(map(self.op, ledger.ops)))
