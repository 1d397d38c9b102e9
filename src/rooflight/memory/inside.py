"""What the ops of a step borrow: torch's own kernels by formula, cuDNN's convolutions by what was seen of the like."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight.hardware.tasks import Task
from rooflight.ledger import Op
from rooflight.memory.convolutions import ConvolutionWorkspaces
from rooflight.memory.moments import Chip, Moment, Moments
from rooflight.memory.temporaries import moments
from rooflight.prediction.tasks import tasks_of


def is_convolution(op: Op) -> bool:
    """One that runs, forward or backward."""
    return op.kind == "compute" and "convolution" in op.packet


class Insides:
    """One device's. Convolutions are looked up together, which is faster than one by one."""

    def __init__(self, chip: Chip, workspaces: ConvolutionWorkspaces | None) -> None:
        self._chip = chip
        self._workspaces = workspaces

    def of(self, ops: Sequence[Op]) -> list[Moments]:
        found: list[Moments] = []
        asked: list[tuple[int, list[Task]]] = []
        for place, op in enumerate(ops):
            if op.kind != "compute":
                found.append(())
            elif is_convolution(op):
                found.append(())
                asked.append((place, [task for task in tasks_of(op) if task.family.startswith("conv-")]))
            else:
                found.append(moments(op, self._chip))
        if self._workspaces is not None:
            sizes = iter(self._workspaces.bytes_of_many([task for _, tasks in asked for task in tasks]))
            for place, tasks in asked:
                # Each gradient is made, then its workspace is borrowed and given back.
                found[place] = tuple(Moment(number + 1, (next(sizes),)) for number in range(len(tasks)))
        return found
