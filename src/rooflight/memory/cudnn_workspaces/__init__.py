"""How many bytes of workspace cuDNN takes for a convolution, for layers that were never run.

Each recorded layer is read as a pattern of `closed_forms` and a rest. A new layer asks the recorded ones most like it:
each proposes its pattern on the new shape plus its rest, and the weighted median of the proposals is the answer (of
all answers the one with the least expected error in bytes).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.workspaces import WorkspacePoints, by_precision, shipped
from rooflight.ledger import Note
from rooflight.memory.cudnn_workspaces.recorded import RecordedLayers
from rooflight.ops.kernel_task import Task, rows_of

_STANDS_FOR = {"fp16": "bf16", "fp64": "fp32"}
_BYTES = {"bf16": 2}

Rows = Sequence[Sequence[int]] | NDArray[np.int64]


class ConvolutionWorkspaces:
    """Built from recorded rows by precision: a layer's numbers, then its workspace each way, -1 where it has none."""

    def __init__(self, points: Mapping[str, Rows]) -> None:
        self._points = points
        self._recorded: dict[str, RecordedLayers | None] = {}
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

    def _in(self, precision: str) -> RecordedLayers | None:
        if precision not in self._recorded:
            rows = np.array(self._points.get(precision, ()), dtype=np.int64)
            self._recorded[precision] = RecordedLayers(rows, _BYTES.get(precision, 4)) if len(rows) else None
        return self._recorded[precision]


def _found(recorded: RecordedLayers, tasks: Sequence[Task]) -> dict[Task, int]:
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


ORIGIN = "h200"
_ENOUGH = 1000
"""Layers in a precision: fewer say less of a GPU than all those of the H200."""
TAKEN_OVER = Note("workspaces-of-another-gpu", "cuDNN's workspaces are taken to be the H200's")


class DeviceWorkspaces:
    """Whose workspaces are taken for a GPU: its own where `rooflight calibrate` recorded them there, else the H200's.
    `own`: what was recorded, by the device's name."""

    def __init__(self, own: Mapping[str, Sequence[WorkspacePoints]] | None = None) -> None:
        self._own: dict[str, list[WorkspacePoints]] = {}
        for device, points in (own or {}).items():
            enough = [some for some in points if len(some.rows) >= _ENOUGH]
            if enough:
                self._own[device] = enough
        self._made: dict[str, ConvolutionWorkspaces] = {}

    def origin(self, device: str) -> str:
        """The name of the device whose workspaces they are."""
        return device if device in self._own else ORIGIN

    def of(self, device: str) -> ConvolutionWorkspaces:
        if device not in self._own:
            return _shipped()
        if device not in self._made:
            self._made[device] = ConvolutionWorkspaces(self._rows(device))
        return self._made[device]

    def _rows(self, device: str) -> dict[str, list[list[int]]]:
        """A precision in which too little was recorded there is the H200's; an H200's own are added to those."""
        own, known = by_precision(self._own[device]), _shipped_rows()
        if device == ORIGIN:
            own = {precision: [*rows, *known.get(precision, [])] for precision, rows in own.items()}
        return known | own


@lru_cache(maxsize=1)
def _shipped_rows() -> dict[str, list[list[int]]]:
    table = shipped(ORIGIN)
    return {} if table is None else table.by_precision()


@lru_cache(maxsize=1)
def _shipped() -> ConvolutionWorkspaces:
    return ConvolutionWorkspaces(_shipped_rows())
