"""From an op of the ledger to the tasks that calibration has timed the like of."""

from __future__ import annotations

from rooflight.hardware.tasks import Task
from rooflight.ledger import Op
from rooflight.prediction.tasks import elements, matrix
from rooflight.prediction.tasks.registry import find

__all__ = ["Task", "tasks_of"]


def tasks_of(op: Op) -> list[Task]:
    """What the device has to do for an op: nothing for a view."""
    if op.kind != "compute":
        return []
    name = op.packet.partition("::")[2]
    if name in elements.NOTHING:
        return []
    describe = find(op.packet)
    if describe is not None:
        return describe(op)
    if name.startswith(("_foreach_", "_fused_")) and any(isinstance(value, list) for value in op.args.values()):
        return elements.foreach(op)
    return matrix.unknown(op) or elements.elementwise(op)
