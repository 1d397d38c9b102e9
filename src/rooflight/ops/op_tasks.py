"""From an op of the ledger to the tasks that calibration has timed the like of."""

from __future__ import annotations

from rooflight.ledger import Op
from rooflight.ops.kernel_task import Task
from rooflight.ops.matmul import any_matrix_work
from rooflight.ops.optimizers import is_over_lists, list_tasks
from rooflight.ops.pointwise import elementwise_tasks
from rooflight.ops.recurrent import is_projected
from rooflight.ops.registry import NEVER_TIMED, TASKS, applied


def tasks_of(op: Op) -> list[Task]:
    """What the device has to do for an op: nothing for a view."""
    if op.kind != "compute":
        return []
    return applied("task", TASKS.find(op) or _usual_tasks, op)


def _usual_tasks(op: Op) -> list[Task]:
    """Of an op that has none of its own."""
    if is_over_lists(op):
        return list_tasks(op)
    return any_matrix_work(op) or elementwise_tasks(op)


def is_guess(op: Op) -> bool:
    """Are the op's tasks those of something simpler, because nothing like it is calibrated? A sort is one pass over
    its bytes then: the least it can take, and often far too little."""
    if op.kind != "compute":
        return False
    if TASKS.find(op) is not None:
        return "_rnn" in op.packet and is_projected(op)
    return op.cost is None or op.packet in NEVER_TIMED
