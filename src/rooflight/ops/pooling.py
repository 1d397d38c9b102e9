"""Pooling over windows of one, two and three dimensions, and the gradients.

A window of K elements takes K - 1 comparisons, or K - 1 additions and a division. As for convolutions, places in the
padding count. Adaptive windows differ in size: their exact sizes are added up, axis by axis.
"""

from __future__ import annotations

from math import prod

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, precision_of, reduce_task, way_of
from rooflight.ops.registry import Work, aten, formula, task

_AXES = {1: ("W",), 2: ("H", "W"), 3: ("D", "H", "W")}


def _rank(op: Op) -> int:
    return next(rank for rank in _AXES if f"{rank}d" in op.packet)


def _elements(y: Tensor, rank: int) -> tuple[str, dict[str, int]]:
    """The elements of y [N, C, ...] as text, with its symbols; without a batch dimension N is 1."""
    axes = _AXES[rank]
    batch = prod(y.shape[: -rank - 1])
    where = {"N": batch, "C": y.shape[-rank - 1]}
    where |= {f"{axis}o": size for axis, size in zip(axes, y.shape[-rank:], strict=True)}
    return " * ".join(where), where


def _window(op: Op, rank: int) -> tuple[str, dict[str, int]]:
    sizes = op.ints("kernel_size")
    if len(sizes) == 1:
        sizes = sizes * rank
    where = {f"K{axis.lower()}": size for axis, size in zip(_AXES[rank], sizes, strict=True)}
    return " * ".join(where), where


@formula(
    *aten("max_pool2d_with_indices max_pool3d_with_indices max_pool1d max_pool2d max_pool3d mkldnn_max_pool2d"),
    *aten("mkldnn_max_pool3d fractional_max_pool2d fractional_max_pool3d"),
)
def max_pool(op: Op) -> Work:
    rank = _rank(op)
    (count, where), (window, sizes) = _elements(op.outputs[0], rank), _window(op, rank)
    return Work(other=f"{count} * ({window} - 1)", where=where | sizes)


# Every element of dy is added at the place its index names. The forward input is passed for its shape alone.
@formula(
    *aten("max_pool2d_with_indices_backward max_pool3d_with_indices_backward fractional_max_pool2d_backward"),
    *aten("fractional_max_pool3d_backward adaptive_max_pool2d_backward adaptive_max_pool3d_backward"),
)
def max_pool_backward(op: Op) -> Work:
    dy, indices = op.tensor("grad_output"), op.tensor("indices")
    where = {"n": dy.numel, "e": dy.itemsize, "i": indices.itemsize}
    return Work(other="n", reads="n * e + n * i", where=where)


# K - 1 additions and a division.
@formula("aten::avg_pool1d", "aten::avg_pool2d", "aten::avg_pool3d")
def avg_pool(op: Op) -> Work:
    rank = _rank(op)
    (count, where), (window, sizes) = _elements(op.outputs[0], rank), _window(op, rank)
    return Work(other=f"{count} * {window}", where=where | sizes)


# Every element of dy is divided once and added K times.
@formula("aten::avg_pool2d_backward", "aten::avg_pool3d_backward")
def avg_pool_backward(op: Op) -> Work:
    dy, rank = op.tensor("grad_output"), _rank(op)
    (count, where), (window, sizes) = _elements(dy, rank), _window(op, rank)
    where |= sizes | {"e": dy.itemsize}
    return Work(other=f"{count} * ({window} + 1)", reads=f"{count} * e", where=where)


def covered(size_in: int, size_out: int) -> int:
    """The sizes of all adaptive windows of an axis, added up: window i is [floor(i*I/O), ceil((i+1)*I/O))."""
    return sum(-(-(i + 1) * size_in // size_out) - i * size_in // size_out for i in range(size_out))


def _adaptive(x: Tensor, y: Tensor, rank: int) -> tuple[str, dict[str, int]]:
    """All elements of all windows as text: N * C * (heights added up) * (widths added up)."""
    where = {"N": prod(x.shape[: -rank - 1]), "C": x.shape[-rank - 1]}
    for axis, size_in, size_out in zip(_AXES[rank], x.shape[-rank:], y.shape[-rank:], strict=True):
        where[f"S{axis.lower()}"] = covered(size_in, size_out)
    return " * ".join(where), where


_SUMMED = "Sh, Sw...: the sizes of the windows along an axis, added up"
_IDENTITY = "the same size out as in: a copy"


@formula(
    *aten("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d _adaptive_avg_pool2d"),
    *aten("_adaptive_avg_pool3d mkldnn_adaptive_avg_pool2d"),
)
def adaptive_avg_pool(op: Op) -> Work:
    x, y, rank = op.tensor("self"), op.outputs[0], _rank(op)
    if x.shape == y.shape:
        return Work(note=_IDENTITY)
    # Per window K - 1 additions and a division: K.
    count, where = _adaptive(x, y, rank)
    return Work(other=count, where=where, note=_SUMMED)


# One division per element of dy, and it is added at every place of its window.
@formula(*aten("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward mkldnn_adaptive_avg_pool2d_backward"))
def adaptive_avg_pool_backward(op: Op) -> Work:
    dy, x, rank = op.tensor("grad_output"), op.tensor("self"), _rank(op)
    where = {"n": dy.numel, "e": dy.itemsize}
    if x.shape == dy.shape:
        return Work(reads="n * e", where=where, note=_IDENTITY)
    count, sizes = _adaptive(x, dy, rank)
    return Work(other=f"n + {count}", reads="n * e", where=where | sizes, note=_SUMMED)


@formula("aten::adaptive_max_pool1d", "aten::adaptive_max_pool2d", "aten::adaptive_max_pool3d")
def adaptive_max_pool(op: Op) -> Work:
    x, y, rank = op.tensor("self"), op.outputs[0], _rank(op)
    count, where = _adaptive(x, y, rank)
    return Work(other=f"{count} - n", where=where | {"n": y.numel}, note=_SUMMED)


# A scatter into zeros.
@formula("aten::max_unpool2d", "aten::max_unpool3d")
def max_unpool(op: Op) -> Work:
    return Work()


# --- kernel tasks


@task(
    *aten("max_pool2d_with_indices avg_pool2d max_pool2d_with_indices_backward avg_pool2d_backward"),
    *aten("max_pool3d_with_indices avg_pool3d max_pool3d_with_indices_backward avg_pool3d_backward"),
)
def pool_tasks(op: Op) -> list[Task]:
    out = op.outputs[0] if way_of(op) == "forward" else op.tensor("grad_output")
    x = op.tensor("self")
    kernel = max(op.ints("kernel_size", [2]))
    stride = max(op.ints("stride", [kernel]) or [kernel])
    rank = _rank(op)
    *slices, w = x.shape[-rank:]
    pixels = max(1, prod(out.shape[-rank:]))
    kind = "max" if "max" in op.packet else "avg"
    # A volume is one of stacked slices.
    numbers = (prod(x.shape[:-rank]), prod(slices), w, kernel, stride, pixels, int(x.channels_last))
    return [Task(f"{kind}-pool{'3d' if rank == 3 else ''}-{way_of(op)}", precision_of(x.dtype), numbers)]


@task(*aten("_adaptive_avg_pool2d adaptive_max_pool2d _adaptive_avg_pool3d adaptive_max_pool3d"))
def adaptive_pool_tasks(op: Op) -> list[Task]:
    x, kept = op.tensor("self"), max(1, op.outputs[0].numel)
    return [reduce_task(x.dtype, kept=kept, reduced=x.numel // kept, innermost=not x.channels_last)]
