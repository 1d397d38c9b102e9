"""Softmax and log-softmax over R rows, n elements in all, and their gradients."""

from __future__ import annotations

from rooflight.ledger import Op, Tensor
from rooflight.ops.kernel_task import Task, broadcast_task, precision_of, way_of
from rooflight.ops.reduction_buffers import ReductionKernel, reduction_buffers
from rooflight.ops.registry import aten, counted, formula, task, workspace
from rooflight.ops.tensor_layout import bytes_of_elements, contiguous_copies
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases, beside_results


def _rows(op: Op) -> dict[str, int]:
    x = op.tensor("output" if op.has("output") else "self")
    length = x.shape[op.ints("dim", [-1])[0]] if x.shape else 1
    return {"n": x.numel, "R": x.numel // max(length, 1)}


formula("aten::_softmax", "aten::softmax", "aten::_masked_softmax")(
    counted(
        "5 * n - 2 * R",
        _rows,
        why="The maximum n - R, subtract n, exp n, sum n - R, divide n. A mask only chooses elements.",
    )
)
formula("aten::_safe_softmax")(
    counted("7 * n - 3 * R", _rows, why="Also asks whether a whole row is -inf: n comparisons, n - R conjunctions.")
)
formula("aten::_log_softmax", "aten::log_softmax")(
    counted("5 * n - R", _rows, why="The maximum n - R, subtract n, exp n, sum n - R, log R, subtract n.")
)
formula("aten::_softmax_backward_data", "aten::_masked_softmax_backward")(
    counted("4 * n - R", _rows, why="dx = y * (dy - sum(dy * y)): multiply n, sum n - R, subtract n, multiply n.")
)
formula("aten::_log_softmax_backward_data")(
    counted("4 * n - R", _rows, why="dx = dy - exp(y) * sum(dy): sum n - R, exp n, multiply n, subtract n.")
)


# --- kernel tasks


@task(*aten("_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data"))
def softmax_tasks(op: Op) -> list[Task]:
    x = op.tensor("grad_output" if op.has("grad_output") else "self")
    columns = max(1, x.shape[op.ints("dim", [-1])[0]] if x.shape else 1)
    return [Task(f"softmax-{way_of(op)}", precision_of(x.dtype), (max(1, x.numel // columns), columns))]


@task("aten::_safe_softmax")
def safe_softmax_tasks(op: Op) -> list[Task]:
    """Softmax, and rows that are all masked set to zero: compared, looked through, replaced."""
    x, (rows,) = op.tensor("self"), softmax_tasks(op)
    return [
        rows,
        Task("cast", "bf16", (max(1, x.numel), x.nbytes, x.numel)),
        Task("reduce", "bf16", (*rows.numbers, 1)),
        broadcast_task(x),
    ]


# --- workspaces


@workspace("aten::_softmax", "aten::_log_softmax")
def row_workspace(op: Op, chip: Chip) -> WorkspacePhases:
    """The kernels want rows one after the other."""
    return beside_results(op, *contiguous_copies(op.tensor("input" if op.has("input") else "self")))


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
