"""How many bytes of workspace cuDNN takes for a convolution, for layers that were never run.

Each recorded layer is read as a pattern of `catalogue` and a rest. A new layer asks the recorded ones most like it:
each proposes its pattern on the new shape plus its rest, and the weighted median of the proposals is the answer (of
all answers the one with the least expected error in bytes).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.tasks import Task, rows_of
from rooflight.memory.convolutions.recorded import Recorded

__all__ = ["ConvolutionWorkspaces"]

_STANDS_FOR = {"fp16": "bf16", "fp64": "fp32"}
_BYTES = {"bf16": 2}

Rows = Sequence[Sequence[int]] | NDArray[np.int64]


class ConvolutionWorkspaces:
    """Built from recorded rows by precision: a layer's numbers, then its workspace each way, -1 where it has none."""

    def __init__(self, points: Mapping[str, Rows]) -> None:
        self._points = points
        self._recorded: dict[str, Recorded | None] = {}
        self._known: dict[Task, int] = {}

    def bytes_of(self, task: Task) -> int:
        return self.bytes_of_many([task])[0]

    def bytes_of_many(self, tasks: Iterable[Task]) -> list[int]:
        """Each task's bytes, in their order; nought where nothing was recorded for a family and precision. A task is
        looked up once, however many devices and batches ask for it."""
        asked = list(tasks)
        by_precision: dict[str, list[Task]] = defaultdict(list)
        for task in dict.fromkeys(asked):
            if task not in self._known:
                by_precision[_STANDS_FOR.get(task.precision, task.precision)].append(task)
        for precision, some in by_precision.items():
            recorded = self._in(precision)
            self._known |= dict.fromkeys(some, 0) if recorded is None else _found(recorded, some)
        return [self._known[task] for task in asked]

    def _in(self, precision: str) -> Recorded | None:
        if precision not in self._recorded:
            rows = np.array(self._points.get(precision, ()), dtype=np.int64)
            self._recorded[precision] = Recorded(rows, _BYTES.get(precision, 4)) if len(rows) else None
        return self._recorded[precision]


def _found(recorded: Recorded, tasks: Sequence[Task]) -> dict[Task, int]:
    """The ways of a layer share most of the work: each layer is described once."""
    layers = list({task.numbers: task for task in tasks}.values())
    place = {task.numbers: number for number, task in enumerate(layers)}
    ways: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        ways[task.family].append(task)
    answers = recorded.bytes_of(
        rows_of(layers, np.int64),
        {family: [place[task.numbers] for task in some] for family, some in ways.items()},
    )
    return {
        task: round(answer)
        for family, some in ways.items()
        for task, answer in zip(some, answers[family].tolist(), strict=True)
    }
