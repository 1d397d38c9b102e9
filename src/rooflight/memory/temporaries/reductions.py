"""Reductions over any dimensions: a copy where the elements must be of another dtype, and the two-stage buffer."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rooflight.ledger import DTYPE_BYTES, Op, Tensor
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries.arithmetic import contiguous_strides, largest
from rooflight.memory.temporaries.loops import reduction_loops, within_32_bits
from rooflight.memory.temporaries.registry import borrows
from rooflight.memory.temporaries.staging import Kernel, staging

_LOW = ("bf16", "fp16")
_INDEXED = 16
"""Bytes of a value with its index, padded."""
_WELFORD = {"fp64": 32}
"""Bytes of a running mean and variance with their counts; 16 unless told."""


def accumulator(dtype: str) -> int:
    """Bytes of a sum of such elements: low precisions add up in fp32."""
    return max(DTYPE_BYTES[dtype], 4)


def buffers(tensor: Tensor, dims: Sequence[int], kernel: Kernel, chip: Chip, result: str) -> tuple[int, ...]:
    """What a reduction kernel asks for, into results of dtype `result`."""
    if not tensor.numel:
        return ()
    loops = reduction_loops(tensor, dims)
    parts = within_32_bits(loops, tensor.itemsize, DTYPE_BYTES[result])
    found = [Moment(0, staging(part, tensor.offset, kernel, chip)) for part in parts]
    needed = largest(found)
    held: tuple[int, ...] = ()
    if len(parts) > 1 and tensor.dtype in _LOW and result == tensor.dtype:
        # Between its parts a low-precision reduction keeps its results in full precision.
        kept = max((loop.size * loop.written for loop in loops), default=0)
        held = (max(kept, 1) * kernel.accumulator,)
    return (*held, *(needed[0].temporaries if needed else ()))


def _dims(op: Op) -> list[int]:
    return op.ints("dim")


def _single(op: Op, chip: Chip, kernel: Kernel, tensor: Tensor | None = None, before: tuple[int, ...] = ()) -> Moments:
    tensor = tensor or op.tensor("self")
    found = (*before, *buffers(tensor, _dims(op), kernel, chip, op.outputs[0].dtype))
    return (Moment(len(op.outputs), found),) if found else ()


@borrows("sum", "mean", "prod", "nansum", "linalg_vector_norm", "norm")
def total(op: Op, chip: Chip) -> Moments:
    tensor, result = op.tensor("self"), op.outputs[0].dtype
    if tensor.dtype == result or (tensor.dtype in _LOW and result == "fp32"):
        return _single(op, chip, Kernel(accumulator(tensor.dtype)))
    # Other changes of dtype (bool to int64 above all) are a copy first.
    copy = msgspec.structs.replace(tensor, dtype=result, offset=0, strides=_dense(tensor))
    return _single(op, chip, Kernel(accumulator(result)), copy, (tensor.numel * copy.itemsize,))


def _dense(tensor: Tensor) -> tuple[int, ...] | None:
    """The strides of a copy: in the order of the original's, without gaps."""
    if tensor.strides is None:
        return None
    order = sorted(range(len(tensor.shape)), key=lambda dim: -tensor.strides[dim])  # type: ignore[index]
    packed = contiguous_strides(tuple(tensor.shape[dim] for dim in order))
    return tuple(packed[order.index(dim)] for dim in range(len(order)))


@borrows("amax", "amin", "any", "all")
def extreme(op: Op, chip: Chip) -> Moments:
    return _single(op, chip, Kernel(op.tensor("self").itemsize))


@borrows("max", "min")
def extreme_with_index(op: Op, chip: Chip) -> Moments:
    if op.has("other"):  # of two tensors: no reduction
        return ()
    return _single(op, chip, Kernel(_INDEXED if op.has("dim") else op.tensor("self").itemsize))


@borrows("argmax", "argmin")
def index_of_extreme(op: Op, chip: Chip) -> Moments:
    return _single(op, chip, Kernel(_INDEXED))


@borrows("aminmax")
def both_extremes(op: Op, chip: Chip) -> Moments:
    return _single(op, chip, Kernel(2 * op.tensor("self").itemsize))


@borrows("var", "var_mean", "std", "std_mean")
def variance(op: Op, chip: Chip) -> Moments:
    return _single(op, chip, Kernel(_WELFORD.get(op.tensor("self").dtype, 16), vector=2))


@borrows("count_nonzero")
def count(op: Op, chip: Chip) -> Moments:
    tensor = op.tensor("self")
    asked = msgspec.structs.replace(tensor, dtype="int64", offset=0, strides=_dense(tensor))
    return _single(op, chip, Kernel(8), asked, (tensor.numel, tensor.numel * 8))


@borrows("logsumexp")
def logsumexp(op: Op, chip: Chip) -> Moments:
    """The maxima, with what they need; then the exponentials, and what their sum needs."""
    tensor, result = op.tensor("self"), op.outputs[0]
    plain = msgspec.structs.replace(tensor, offset=0, strides=_dense(tensor))
    maxima = result.numel * result.itemsize
    most = buffers(tensor, _dims(op), Kernel(tensor.itemsize), chip, result.dtype)
    summed = buffers(plain, _dims(op), Kernel(accumulator(tensor.dtype)), chip, result.dtype)
    return Moment(0, (maxima, *most)), Moment(1, (maxima, tensor.numel * tensor.itemsize, *summed))
