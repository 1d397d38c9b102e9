"""Reductions: n elements into m results take n - m operations, plus what happens to each element and each result."""

from __future__ import annotations

import msgspec

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, plain_task, precision_of, reduce_task
from rooflight.ops.pointwise import elementwise_tasks
from rooflight.ops.reduction_buffers import LOW_PRECISIONS, ReductionKernel, accumulator, reduction_buffers
from rooflight.ops.registry import Work, aten, counted, formula, task, workspace
from rooflight.ops.rounding import ceil_div
from rooflight.ops.tensor_layout import bytes_of_elements, dense_strides, memory_order
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases, beside_results


def _sizes(op: Op) -> dict[str, int]:
    """Of a tensor, or of a list of which each gives one result."""
    if op.packet.startswith("aten::_foreach"):
        tensors = op.tensors("self")
        return {"n": sum(tensor.numel for tensor in tensors), "m": len(tensors)}
    return {"n": op.tensor("self").numel, "m": op.outputs[0].numel}


# sum: n - m additions; the others likewise, with products, comparisons or logic.
@formula(*aten("sum prod amax amin argmax argmin all any _is_all_true _is_any_true max min"))
def combine(op: Op) -> Work:
    if op.has("other"):  # max.other: pairs, not a reduction
        return Work(other="n", where={"n": op.outputs[0].numel})
    where = _sizes(op)
    return Work(other="n - m" if where["n"] > where["m"] else 0, where=where)


# Each row of the mask is added up, and as many leading places are compared with it; the tensor itself is not read.
@formula("aten::_nested_tensor_from_mask_left_aligned")
def left_aligned(op: Op) -> Work:
    mask = op.tensor("mask")
    return Work(other="2 * n", reads=mask.nbytes, where={"n": mask.numel})


formula("aten::_foreach_max")(counted("n - m", _sizes))
formula("aten::aminmax")(counted("2 * (n - m)", _sizes))
formula("aten::mean")(
    counted("n", _sizes, why="n - m additions and m divisions.", note="(n - m) additions, m divisions")
)
formula("aten::nansum", "aten::count_nonzero")(
    counted("2 * n - m", _sizes, why="Is it NaN (or not zero), then the sum.")
)
formula("aten::var", "aten::var_mean")(
    counted("4 * n", _sizes, why="The mean: n. The difference: n. Its square: n. Their sum divided: n.")
)
formula("aten::std", "aten::std_mean")(counted("4 * n + m", _sizes))
formula("aten::logsumexp")(
    counted("4 * n", _sizes, why="The maximum: n - m. Subtract and exp: 2n. Their sum: n - m. log and add: 2m.")
)


def norm_operations(order: object) -> str:
    """Operations of an m-fold norm of n elements."""
    # Is it zero, then the sum; or absolute values, then the sum or the maximum. Ledgers write infinity as text.
    if order in (0, 1, "inf", "-inf"):
        return "2 * n - m"
    if order in (None, 2):
        return "2 * n"  # squares n, sum n - m, root m
    return "3 * n"  # absolute value and power 2n, sum n - m, root m


@formula("aten::linalg_vector_norm", "aten::norm", "aten::_foreach_norm")
def norm(op: Op) -> Work:
    order = op.args.get("p" if op.packet == "aten::norm" else "ord")
    return Work(other=norm_operations(order), where=_sizes(op))


def _powsum_operations(order: object) -> str:
    """The norm without its root: |x|^p added up. A square needs no absolute value."""
    return "2 * n - m" if order in (None, 0, 1, 2) else "3 * n - m"


@formula("aten::linalg__powsum", "aten::_foreach_powsum")
def powsum(op: Op) -> Work:
    return Work(other=_powsum_operations(op.args.get("ord")), where=_sizes(op))


@formula("aten::dist")
def dist(op: Op) -> Work:
    n = max(op.tensor("self").numel, op.tensor("other").numel)
    return Work(other=f"n + {norm_operations(op.args.get('p'))}", where={"n": n, "m": 1})


def _scan(op: Op) -> dict[str, int]:
    x = op.tensor("self")
    length = x.shape[op.ints("dim")[0]] if x.shape else 1
    return {"n": x.numel, "R": x.numel // max(length, 1)}


formula("aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::cumprod_", "aten::cummax", "aten::cummin")(
    counted("n - R", _scan, why="The first of every one of R rows is copied, each further one takes one operation.")
)
formula("aten::logcumsumexp")(counted("7 * (n - R)", _scan, why="A scan with logaddexp, which is 7 operations."))


# Sums along the diagonal of the smaller side, and reads no more.
@formula("aten::trace")
def trace(op: Op) -> Work:
    x = op.tensor("self")
    return Work(other="n - 1", reads="n * e", where={"n": min(x.shape), "e": x.itemsize})


# For every slice its norm, the comparison, and the scaled slice.
@formula("aten::renorm", "aten::renorm_")
def renorm(op: Op) -> Work:
    x = op.tensor("self")
    where = {"n": x.numel, "m": x.shape[op.ints("dim")[0]]}
    return Work(other=f"{norm_operations(op.args.get('p'))} + m + n", where=where)


# --- kernel tasks

_TIMED = """
    sum mean amax amin var var_mean std norm linalg_vector_norm logsumexp prod any all max min argmax argmin nansum
    count_nonzero
"""


@task(*aten(_TIMED))
def reduction_tasks(op: Op) -> list[Task]:
    x = op.tensor("self")
    if op.tensors("other"):
        return elementwise_tasks(op)  # max and min of two tensors
    kept = max(1, op.outputs[0].numel)
    axes = [axis % len(x.shape) for axis in op.ints("dim")] if x.shape else []
    order = memory_order(x)
    innermost = not axes or not order or order[-1] in axes
    family = "reduce-norm" if "norm" in op.packet else "reduce-index" if _finds_places(op) else "reduce"
    reduction = reduce_task(x.dtype, kept=kept, reduced=x.numel // kept, innermost=innermost, family=family)
    return [reduction, *_logarithms(x, kept, innermost=innermost)] if op.packet == "aten::logsumexp" else [reduction]


def _finds_places(op: Op) -> bool:
    """Where the largest or smallest is, beside which it is."""
    return "arg" in op.packet or (len(op.outputs) == 2 and op.packet in ("aten::max", "aten::min"))


def _logarithms(x: Tensor, kept: int, *, innermost: bool) -> list[Task]:
    """What logsumexp does beside finding the largest: looks for infinite ones (three kernels), then less the largest,
    exponentials, the sum of those, its logarithm and the largest again, a kernel each."""
    size, few = x.nbytes, kept * x.itemsize
    precision = precision_of(x.dtype)
    return [
        *(plain_task(kept, few, few, x.dtype) for _ in range(3)),
        Task("broadcast", precision, (x.numel, size + few, size)),
        Task("math", precision, (x.numel, size, size)),
        reduce_task(x.dtype, kept=kept, reduced=x.numel // kept, innermost=innermost),
        Task("math", precision, (kept, few, few)),
        plain_task(kept, 2 * few, few, x.dtype),
    ]


@task("aten::cumsum", "aten::cumsum_", "aten::cumprod", "aten::cumprod_", "aten::logcumsumexp")
def scan_tasks(op: Op) -> list[Task]:
    x = op.tensor("self")
    axis = op.ints("dim")[0] % len(x.shape) if x.shape else 0
    length = max(1, x.shape[axis]) if x.shape else 1
    order = memory_order(x)
    innermost = not order or order[-1] == axis
    return [reduce_task(x.dtype, kept=max(1, x.numel // length), reduced=length, innermost=innermost, family="scan")]


# --- workspaces: a copy where the elements must be of another dtype, and the two-stage buffer

_INDEXED = 16
"""Bytes of a value with its index, padded."""
_WELFORD = {"fp64": 32}
"""Bytes of a running mean and variance with their counts; 16 unless told."""


def _reduced(
    op: Op, chip: Chip, kernel: ReductionKernel, tensor: Tensor | None = None, before: tuple[int, ...] = ()
) -> WorkspacePhases:
    tensor = tensor or op.tensor("self")
    temporaries = (*before, *reduction_buffers(tensor, op.ints("dim"), kernel, chip, op.outputs[0].dtype))
    return beside_results(op, *temporaries)


@workspace(*aten("sum mean prod nansum linalg_vector_norm norm"))
def sum_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    tensor, result = op.tensor("self"), op.outputs[0].dtype
    if tensor.dtype == result or (tensor.dtype in LOW_PRECISIONS and result == "fp32"):
        return _reduced(op, chip, ReductionKernel(accumulator(tensor.dtype)))
    # Other changes of dtype (bool to int64 above all) are a copy first.
    copy = msgspec.structs.replace(tensor, dtype=result, offset=0, strides=dense_strides(tensor))
    return _reduced(op, chip, ReductionKernel(accumulator(result)), copy, (tensor.numel * copy.itemsize,))


@workspace(*aten("amax amin any all max min argmax argmin aminmax var var_mean std std_mean"))
def partial_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    if op.has("other"):  # max and min of two tensors: no reduction
        return ()
    tensor, name = op.tensor("self"), op.packet.removeprefix("aten::")
    if name.startswith(("var", "std")):
        return _reduced(op, chip, ReductionKernel(_WELFORD.get(tensor.dtype, 16), vector=2))
    indexed = name.startswith("arg") or (name in ("max", "min") and op.has("dim"))
    parts = 2 if name == "aminmax" else 1
    return _reduced(op, chip, ReductionKernel(_INDEXED if indexed else parts * tensor.itemsize))


@workspace("aten::count_nonzero")
def count_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    tensor = op.tensor("self")
    asked = msgspec.structs.replace(tensor, dtype="int64", offset=0, strides=dense_strides(tensor))
    return _reduced(op, chip, ReductionKernel(8), asked, (tensor.numel, tensor.numel * 8))


@workspace("aten::logsumexp")
def logsumexp_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The maxima, with what they need; then the exponentials, and what their sum needs."""
    tensor, result = op.tensor("self"), op.outputs[0]
    dense = msgspec.structs.replace(tensor, offset=0, strides=dense_strides(tensor))
    maxima = bytes_of_elements(result)
    most = reduction_buffers(tensor, op.ints("dim"), ReductionKernel(tensor.itemsize), chip, result.dtype)
    summed = reduction_buffers(dense, op.ints("dim"), ReductionKernel(accumulator(tensor.dtype)), chip, result.dtype)
    return WorkspacePhase(0, (maxima, *most)), WorkspacePhase(1, (maxima, bytes_of_elements(tensor), *summed))


@workspace("aten::cumsum", "aten::cumprod")
def scan_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Elements of another dtype than the result are copied first; a scan's own few kilobytes are left out."""
    tensor, result = op.tensor("self"), op.outputs[0]
    return () if tensor.dtype == result.dtype else beside_results(op, tensor.numel * result.itemsize)


@workspace("aten::_foreach_norm")
def foreach_norm_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """One partial norm for each chunk of the longest tensor, for every tensor."""
    tensors = op.tensors("self")
    chunks = max((ceil_div(tensor.numel, 65536) for tensor in tensors), default=0)
    wide = max((tensor.itemsize for tensor in tensors), default=4)
    return beside_results(op, chunks * len(tensors) * max(wide, 4))
