"""Which bytes stay in registers when a compiler runs chains of ops as one kernel."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from rooflight.ledger import PASSES, Op, Storage
from rooflight.ops.op_tasks import tasks_of

_FUSED = (
    "plain", "copy", "cast", "mixed", "math", "broadcast", "strided", "dropout", "reduce", "softmax-", "layer-norm-",
    "batch-norm-", "group-norm-",
)  # fmt: skip
"""Families of work that torch.compile writes kernels of its own for, several ops in one."""


def fused_away(
    ops: Sequence[Op], storages: Sequence[Storage], fusible: Sequence[bool] | None = None
) -> dict[int, float]:
    """By op: the part of its bytes that stays in registers when the ops before and after it run in the same kernel.

    What a fusible op wrote is not read again by the fusible ones behind it, and not written where nobody else reads it.
    Behind a product or a convolution a new kernel begins, and between forward and backward: there it is read again.
    `fusible`: what `is_fusible` says of each op, where that is known already.
    """
    written = _written(ops, list(map(is_fusible, ops)) if fusible is None else fusible)
    outlives = {storage.id for storage in storages if storage.dies is None}
    spared: dict[int, float] = defaultdict(float)
    for writer in written:
        readers = [
            reader for reader in writer.readers if writer.fusible and _together(writer, reader, len(writer.readers))
        ]
        for reader in readers:
            spared[reader.index] += min(reader.nbytes, writer.nbytes)
        if readers and len(readers) == len(writer.readers) and not (writer.is_last and writer.storage in outlives):
            spared[writer.index] += writer.nbytes
    return {index: min(1.0, nbytes / moved) for index, nbytes in spared.items() if (moved := _bytes(ops[index]))}


@dataclass
class _Touch:
    """A storage as one op wrote or read it. `level`: how many products lie before the op, on the longest way."""

    storage: int
    index: int
    nbytes: int
    phase: str
    fusible: bool
    level: int
    readers: list[_Touch] = field(default_factory=list)
    is_last: bool = True


def _together(writer: _Touch, reader: _Touch, readers: int) -> bool:
    """In one kernel: nothing that must end before the reader begins has begun after the writer. A value that only one
    op reads can be made when that op runs."""
    return reader.fusible and writer.phase == reader.phase and (writer.level == reader.level or readers == 1)


def _written(ops: Sequence[Op], fusible: Sequence[bool]) -> list[_Touch]:
    """Everything that ops wrote, with who read it."""
    touches: list[_Touch] = []
    now: dict[int, _Touch] = {}
    for op, fuses in zip(ops, fusible, strict=True):
        if op.kind != "compute":
            continue
        inputs = {tensor.storage: tensor for tensor in op.inputs}.values()
        level = max(
            (touch.level + (not touch.fusible) for tensor in inputs if (touch := now.get(tensor.storage))), default=0
        )
        for tensor in inputs:
            if tensor.storage in now:
                now[tensor.storage].readers.append(
                    _Touch(tensor.storage, op.index, tensor.nbytes, op.phase, fuses, level)
                )
        for tensor in (*op.outputs, *(tensor for name in op.mutates for tensor in op.tensors(name))):
            if tensor.storage in now:
                now[tensor.storage].is_last = False
            now[tensor.storage] = _Touch(tensor.storage, op.index, tensor.nbytes, op.phase, fuses, level)
            touches.append(now[tensor.storage])
    return touches


def is_fusible(op: Op) -> bool:
    """Would a compiler run it in one kernel with others?"""
    if op.kind != "compute" or op.phase not in PASSES:
        return False
    tasks = tasks_of(op)
    return bool(tasks) and all(task.family.startswith(_FUSED) for task in tasks)


def _bytes(op: Op) -> int:
    return 0 if op.cost is None else (op.cost.bytes_read or 0) + (op.cost.bytes_written or 0)
