"""What somebody happened to time on a device, and how it corrects the times that are transferred to it.

Points of a partial calibration say how far transferred times are off where they are: between and around them that is
interpolated, far from all of them a transferred time stays what it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from rooflight.hardware.calibration import Calibration
from rooflight.hardware.device import Device
from rooflight.hardware.power import is_held_back
from rooflight.ops.kernel_task import FAMILIES, Task, rows_of
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.calibrated.interpolation import KrigingField
from rooflight.step.cache_reuse import Array

_REACH, _NOISE = 8.0, 0.15
_FEW = 4.0
"""The word of points carries less far where a family has no more than so many: the one product of a ResNet, which is
thin and slow, says little of those of a transformer (benchmarks/one_run.py)."""
_SAME_WIDTH = {"bf16": "fp16", "fp16": "bf16"}
_KERNELS = ("cudnn", "flash", "efficient")
_LIKE = 0.7
"""How much of what is off in the forward pass is taken to be off in its gradients too; in plain elementwise work, in
all that reads its elements and writes them."""
_STREAMED = "plain"


@dataclass(frozen=True)
class PointsOf:
    """A partial calibration, and the device that its points were timed on."""

    calibration: Calibration
    device: Device


@dataclass(frozen=True)
class Corrected:
    """Of tasks, in their order."""

    ratio: Array
    """By which their transferred times are multiplied."""
    deviation: Array
    """Of the logarithm of that; infinite where nothing is known."""
    distance: Array
    """To the nearest point, in doublings of a size."""


class Corrections:
    def __init__(
        self,
        sources: Sequence[PointsOf],
        transferred: Callable[[Sequence[Task], Device], tuple[Array, Array]],
        before: Corrections | None = None,
        *,
        own: bool = True,
    ) -> None:
        """`transferred`: warm and cold seconds of tasks on a device, as they are carried over to it. `before`: what
        others say, and corrects first: where they differ, the word of these sources counts. `own`: are the sources
        of the device's chip? Others correct, but are no reason to be surer."""
        self.sources = tuple(sources)
        self._transferred = transferred
        self._before, self._own = before, own
        self._fields: dict[tuple[str, str], KrigingField | None] = {}
        self._not_said: dict[tuple[str, str], float] = {}

    def of(self, tasks: Sequence[Task]) -> Corrected:
        ratio, deviation, distance = np.ones(len(tasks)), np.full(len(tasks), np.inf), np.full(len(tasks), np.inf)
        groups: dict[tuple[str, str], list[int]] = {}
        for place, task in enumerate(tasks):
            groups.setdefault((task.family, task.precision), []).append(place)
        for (family, precision), places in groups.items():
            for like, width, part in _relatives(family, precision):
                field = self._field(like, width)
                if field is None:
                    continue
                said = field.at(features(like, width, rows_of([tasks[place] for place in places], np.float64)))
                ratio[places] = np.exp(part * said.value)
                if part == 1.0:
                    deviation[places], distance[places] = said.deviation, said.distance
                break
        if self._before is None:
            return Corrected(ratio, deviation, distance)
        first = self._before.of(tasks)
        return Corrected(
            ratio * first.ratio, np.minimum(deviation, first.deviation), np.minimum(distance, first.distance)
        )

    def knows(self, task: Task) -> bool:
        """Did somebody time works of its family in its width?"""
        own = self._own and any(part == 1.0 and self._field(like, width) for like, width, part in _relatives(*task[:2]))
        return own or (self._before is not None and self._before.knows(task))

    def left_open(self, task: Task) -> float:
        """Of the logarithm of its time: what its points have in common and steps may have or not, as they were timed on
        a board that its power holds back."""
        key = task.family, task.precision
        if self._field(*key) is None and self._before is not None:
            return self._before.left_open(task)
        return self._not_said.get(key, 0.0)

    def _field(self, family: str, precision: str) -> KrigingField | None:
        key = family, precision
        if key not in self._fields:
            self._fields[key] = self._made(family, precision)
        return self._fields[key]

    def _made(self, family: str, precision: str) -> KrigingField | None:
        places, values = [], []
        for source, in_steps in product(self.sources, (False, True)):
            kind = family, precision, in_steps
            groups = [row for row in source.calibration.points if (row.family, row.precision, row.in_steps) == kind]
            tasks = [task for group in groups for task in group.tasks()]
            if tasks:
                seconds = np.array([row[-3] for group in groups for row in group.rows]) * 1e-9
                first = 1.0 if self._before is None else self._before.of(tasks).ratio
                warm_s, cold_s = (first * times for times in self._transferred(tasks, source.device))
                # A time between the two tells where its inputs lay, and nothing of the op.
                off = np.log(seconds / np.clip(seconds, warm_s, cold_s))
                if not in_steps and family == "gemm" and is_held_back(source.device, precision):
                    common = float(np.median(off[seconds >= np.median(seconds)]))
                    self._not_said[family, precision] = max(abs(common), self._not_said.get((family, precision), 0.0))
                    off = off - common
                values.append(off)
                places.append(features(family, precision, rows_of(tasks, np.float64)))
        if not places:
            return None
        reach = _REACH * -math.expm1(-sum(map(len, values)) / _FEW)
        return KrigingField(np.concatenate(places), np.concatenate(values), reach, _NOISE, prior=0.0)


def _relatives(family: str, precision: str) -> list[tuple[str, str, float]]:
    """Families and precisions whose points say something of this one, the best first, and how much."""
    widths = [precision, *filter(None, [_SAME_WIDTH.get(precision)])]
    relatives = [(family, width, 1.0) for width in widths]
    kernel = next((name for name in _KERNELS if f"attention-{name}-" in family), None)
    if kernel is not None:
        relatives += [(family.replace(kernel, other), width, 1.0) for other in _KERNELS for width in widths]
    for gradient, forward in (("-dgrad", "-forward"), ("-wgrad", "-forward"), ("-backward", "-forward")):
        like = family.replace(gradient, forward)
        if like != family and FAMILIES.get(like) == FAMILIES[family]:
            relatives += [(like, width, _LIKE) for width in widths]
    if FAMILIES[family] == FAMILIES[_STREAMED]:
        relatives += [(_STREAMED, width, _LIKE) for width in widths]
    return relatives
