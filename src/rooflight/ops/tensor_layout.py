"""How a tensor lies in memory: the order of its axes, gaps, and how many elements lie side by side."""

from __future__ import annotations

from rooflight.ledger import Tensor


def memory_order(tensor: Tensor) -> tuple[int, ...]:
    """The axes with more than one element, innermost last."""
    if tensor.strides is None:
        return tuple(axis for axis, size in enumerate(tensor.shape) if size > 1)
    order = sorted(range(len(tensor.shape)), key=lambda axis: -tensor.strides[axis])  # type: ignore[index]
    return tuple(axis for axis in order if tensor.shape[axis] > 1)


def has_gaps(tensor: Tensor) -> bool:
    """Is it a part of something larger, whose other elements lie in between?"""
    if tensor.strides is None:
        return False
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.strides, strict=True))
    return span > tensor.numel


def contiguous_run(tensor: Tensor) -> int:
    """How many elements lie side by side when the tensor is walked in the order of its shape."""
    if tensor.strides is None:
        return max(1, tensor.numel)
    run = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.strides), strict=True):
        if size == 1:
            continue
        if stride != run:
            break
        run *= size
    return run


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def dense_strides(tensor: Tensor) -> tuple[int, ...] | None:
    """The strides of a copy: in the order of the original's, without gaps."""
    if tensor.strides is None:
        return None
    order = sorted(range(len(tensor.shape)), key=lambda dim: -tensor.strides[dim])  # type: ignore[index]
    packed = contiguous_strides(tuple(tensor.shape[dim] for dim in order))
    return tuple(packed[order.index(dim)] for dim in range(len(order)))


def bytes_of_elements(tensor: Tensor) -> int:
    """Bytes of a copy that is contiguous: of every element, also where several lie at the same place."""
    return tensor.numel * tensor.itemsize


def contiguous_copies(*tensors: Tensor) -> tuple[int, ...]:
    """Bytes of the contiguous copies that a kernel makes of tensors that are not."""
    return tuple(bytes_of_elements(tensor) for tensor in tensors if tensor.strides is not None)


def distinct_bytes(tensors: list[Tensor]) -> int:
    """Of tensors of which some may be the same."""
    return sum(tensor.nbytes for tensor in dict.fromkeys(tensors))
