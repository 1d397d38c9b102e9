"""From an op of the ledger to the tasks that calibration has timed the like of."""

from __future__ import annotations

from rooflight.hardware.tasks import Task
from rooflight.ledger import Op
from rooflight.prediction.tasks import elements, matrix
from rooflight.prediction.tasks.registry import find

__all__ = ["Task", "is_guess", "tasks_of"]

_NEVER_TIMED = (
    "_cudnn_rnn", "miopen_rnn", "mkldnn_rnn", "linalg_", "_linalg_", "cholesky", "_cholesky", "triangular_solve", "lu_",
    "_fft_", "sort", "msort", "topk", "kthvalue", "median", "nanmedian", "mode", "unique", "_unique", "histc",
    "bincount", "_ctc_loss", "_cdist", "_pdist",
)  # fmt: skip
"""Ops of many dependent steps or passes, by how their names begin."""
_TIMED = ("linalg_vector_norm", "linalg__powsum", "linalg_cross")


def is_guess(op: Op) -> bool:
    """Are the op's tasks those of something simpler, because nothing like it is calibrated? A recurrent layer is one
    large product then, a sort one pass over its bytes: the least it can take, and often far too little."""
    name = op.packet.partition("::")[2]
    if op.kind != "compute" or name in elements.NOTHING or find(op.packet) is not None:
        return False
    return op.cost is None or (name.startswith(_NEVER_TIMED) and not name.startswith(_TIMED))


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
