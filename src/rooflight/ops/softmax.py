"""Softmax and log-softmax over R rows, n elements in all, and their gradients."""

from __future__ import annotations

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, precision_of
from rooflight.ops.reduction_buffers import ReductionKernel, reduction_buffers
from rooflight.ops.registry import Work, formula, task, workspace
from rooflight.ops.tensor_layout import bytes_of_elements, contiguous_copies
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases


def _rows(op: Op, x: Tensor) -> dict[str, int]:
    dim = op.ints("dim", [-1])[0]
    length = x.shape[dim] if x.shape else 1
    return {"n": x.numel, "R": x.numel // max(length, 1)}


# The maximum n - R, subtract n, exp n, sum n - R, divide n. A mask only chooses elements.
@formula("aten::_softmax", "aten::softmax", "aten::_masked_softmax")
def softmax(op: Op) -> Work:
    return Work(other="5 * n - 2 * R", where=_rows(op, op.tensor("self")))


# Also asks whether a whole row is -inf: n comparisons, n - R conjunctions.
@formula("aten::_safe_softmax")
def safe_softmax(op: Op) -> Work:
    return Work(other="7 * n - 3 * R", where=_rows(op, op.tensor("self")))


# The maximum n - R, subtract n, exp n, sum n - R, log R, subtract n.
@formula("aten::_log_softmax", "aten::log_softmax")
def log_softmax(op: Op) -> Work:
    return Work(other="5 * n - R", where=_rows(op, op.tensor("self")))


# dx = y * (dy - sum(dy * y)): multiply n, sum n - R, subtract n, multiply n.
@formula("aten::_softmax_backward_data", "aten::_masked_softmax_backward")
def softmax_backward(op: Op) -> Work:
    return Work(other="4 * n - R", where=_rows(op, op.tensor("output")))


# dx = dy - exp(y) * sum(dy): sum n - R, exp n, multiply n, subtract n.
@formula("aten::_log_softmax_backward_data")
def log_softmax_backward(op: Op) -> Work:
    return Work(other="4 * n - R", where=_rows(op, op.tensor("output")))


# --- kernel tasks


def _task(op: Op, x: Tensor, way: str) -> Task:
    axis = op.ints("dim", [-1])[0]
    columns = x.shape[axis] if x.shape else 1
    return Task(f"softmax-{way}", precision_of(x.dtype), (max(1, x.numel // max(1, columns)), max(1, columns)))


@task("aten::_softmax", "aten::_log_softmax")
def softmax_tasks(op: Op) -> list[Task]:
    return [_task(op, op.tensor("self"), "forward")]


@task("aten::_safe_softmax")
def safe_softmax_tasks(op: Op) -> list[Task]:
    """Softmax, and rows that are all masked set to zero: compared, looked through, replaced."""
    x = op.tensor("self")
    rows = _task(op, x, "forward")
    return [
        rows,
        Task("cast", "bf16", (max(1, x.numel), x.nbytes, x.numel)),
        Task("reduce", "bf16", (rows.numbers[0], rows.numbers[1], 1)),
        Task("broadcast", precision_of(x.dtype), (max(1, x.numel), x.nbytes, x.nbytes)),
    ]


@task("aten::_softmax_backward_data", "aten::_log_softmax_backward_data")
def softmax_backward_tasks(op: Op) -> list[Task]:
    return [_task(op, op.tensor("grad_output"), "backward")]


# --- workspaces


@workspace("aten::_softmax", "aten::_log_softmax")
def row_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The kernels want rows one after the other."""
    copied = contiguous_copies(op.tensor("input" if op.has("input") else "self"))
    return (WorkspacePhase(len(op.outputs), copied),) if copied else ()


@workspace("aten::_softmax_backward_data")
def softmax_backward_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The output times its gradient; one kernel does the rest."""
    return (WorkspacePhase(1, (bytes_of_elements(op.tensor("grad_output")),)),)


@workspace("aten::_safe_softmax")
def safe_softmax_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """Which elements are minus infinity, and for which rows all of them are."""
    masked = Tensor(storage=0, shape=op.tensor("self").shape, dtype="bool")
    dims = op.ints("dim")
    rows = masked.numel // max(masked.shape[dims[0]], 1) if masked.shape else 1
    searched = reduction_buffers(masked, dims, ReductionKernel(1), chip, "bool")
    return (WorkspacePhase(1, (masked.numel, rows, *searched, 4)),)
