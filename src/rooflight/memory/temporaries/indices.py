"""Additions at given places: gradients of embeddings, and of indexing with tensors."""

from __future__ import annotations

import math

from rooflight.ledger import Op, Tensor
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries.arithmetic import packed
from rooflight.memory.temporaries.radix import bits_of, radix_sort
from rooflight.memory.temporaries.registry import borrows

_FEW_INDICES = 3072
_ROWS_A_PART = 10
_SHARED_BY = 32
"""From so many indices a row of the table on, partial sums are added where they belong at once."""
_SCAN = 1279
"""Bytes of CUB's scan over a few thousand elements; a little more for many."""


@borrows("embedding_dense_backward")
def embedding_backward(op: Op, chip: Chip) -> Moments:
    """Sorts the indices, cuts them into runs of the same index and those into parts, and adds part by part.

    How many runs there are depends on the data; torch sizes its buffers for the most there can be, and so does this.
    """
    gradient, indices = op.tensor("grad_output"), op.tensor("indices")
    width = op.outputs[0].shape[-1]
    n = indices.numel
    counted = op.args.get("scale_grad_by_freq") is True
    copied = packed(gradient)
    if n <= _FEW_INDICES and not counted:
        return (Moment(1, copied),) if copied else ()
    index = n * indices.itemsize
    held = (*copied, index, index)  # sorted, and where they came from
    sorting = Moment(0, (*held, index, radix_sort(n, indices.itemsize, 8)))
    if counted:
        held = (*held, index)
    runs = min(n, op.ints("num_weights")[0])
    parts = n // _ROWS_A_PART + runs
    offsets = Moment(1, (*held, index, 8, index, _SCAN))
    if n > _SHARED_BY * runs:
        rows = (parts * 8,) if gradient.itemsize >= 4 else (parts * 8, runs * width * 4)
    else:
        rows = (parts * width * max(gradient.itemsize, 4),)
    return sorting, offsets, Moment(1, (*held, index, 8, runs * 8, runs * 8, 8, parts * 8, *rows))


@borrows("index_put", "index_put_", "_index_put_impl_")
def index_put(op: Op, chip: Chip) -> Moments:
    """Adding: every place as one number, sorted with where it came from. How many a mask picks is not known here."""
    places = [item for item in _indices(op) if isinstance(item, Tensor)]
    if op.args.get("accumulate") is not True or not places or any(place.dtype == "bool" for place in places):
        return ()
    n = math.prod(_broadcast([place.shape for place in places]))
    target = op.tensor("self")
    after = math.prod(
        target.shape[len(_indices(op)) :]
    )  # whole slices are added: they are numbered, not their elements
    workspace = radix_sort(n, 8, 8, bits_of(target.numel // max(after, 1) - 1))
    results = 0 if op.packet.endswith("_") else len(op.outputs)
    return (Moment(results, (*4 * (n * 8,), *packed(op.tensor("values")), workspace)),)


def _indices(op: Op) -> list[object]:
    value = op.args.get("indices")
    return list(value) if isinstance(value, list) else []


def _broadcast(shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(max(sizes) for sizes in zip(*padded, strict=True))


@borrows("masked_scatter", "masked_scatter_")
def masked_scatter(op: Op, chip: Chip) -> Moments:
    """The running count of the mask, as int64."""
    results = 0 if op.packet.endswith("_") else 1
    return (Moment(results, (op.outputs[0].numel * 8,)),)
