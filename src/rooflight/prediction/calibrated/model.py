"""Seconds of tasks on a calibrated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rooflight.hardware.calibration import Calibration
from rooflight.ops.kernel_task import FAMILIES, Task, decode_rows, itemsize, rows_of, table_of
from rooflight.prediction.calibrated.baseline import (
    LAUNCH_S,
    Speed,
    baseline_seconds,
    is_matrix_work,
    least_seconds,
    usual_kernels,
)
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.calibrated.interpolation import KrigingField, NearestPoints
from rooflight.prediction.calibrated.ways import Ways
from rooflight.step.cache_reuse import Array

_FALLBACKS = {"fp16": "bf16", "bf16": "fp16", "tf32": "fp32", "fp64": "fp32"}
"""The precision that gives its efficiency to one without points; of all others, such as fp8, it is bf16."""
_FAMILY_FALLBACKS = {"flash": ("cudnn", "efficient"), "cudnn": ("flash", "efficient"), "efficient": ("flash", "cudnn")}
_UNLIKE = {
    "reduce-norm": "reduce", "reduce-index": "reduce", "scan": "reduce",
    "index": "embedding-forward", "gather": "embedding-forward",
    "index-put": "embedding-backward", "index-add": "embedding-backward", "scatter-add": "embedding-backward",
    **{f"conv3d-{way}": f"conv-{way}" for way in ("forward", "dgrad", "wgrad")},
    **{f"{kind}-pool3d-{way}": f"{kind}-pool-{way}" for kind in ("max", "avg") for way in ("forward", "backward")},
}  # fmt: skip
"""What says something of families that a calibration has no points of, but not much."""
_BEFORE = {"copy": "plain", "mixed": "broadcast", **_UNLIKE}
"""Among which families the points of others are in calibrations of before these had their own."""
_REACH, _NOISE = 8.0, 0.03
_FULL = ("fused-sgd", "fused-adam")
"""Families whose tasks are cut into launches of so many elements at most: beyond the largest that was timed, more
elements are more full launches."""
_LARGE = 0.5
"""Of the elements of the largest point: from here on points have full launches, if their tensors are few."""
_CODE_S = 0.12e-6
"""A micro-benchmark follows something that filled all caches, and reads its kernel's code and arguments from memory
too; in a step that stays in the cache these are near. In 39 steps of networks that nothing is judged by
(benchmarks/h200/whole_steps.py), 4,000 kernels below 5 µs were shorter than their micro-benchmarks by this much in the
median."""
_AT_LEAST = 0.8
_UNKNOWN = 0.7
"""Deviation of what was not calibrated at all."""
_APART = 2.8
"""How far each way of a library that a convolution did not go moves it away: two ways are 4 doublings apart."""


@dataclass(frozen=True)
class TaskTimes:
    """Seconds of tasks, in their order."""

    warm_s: Array
    cold_s: Array
    deviation: Array
    """Relative, one standard deviation."""
    distance: Array
    """To the nearest calibrated point, in doublings of a size."""
    kernels: Array


class CalibratedModel:
    def __init__(self, calibration: Calibration, speed: Speed) -> None:
        self.calibration = calibration
        self.speed = speed
        self._fields: dict[tuple[str, str], _FamilyModel] = {}
        self._known: dict[Task, tuple[float, ...]] = {}

    @cached_property
    def _rows_of(self) -> dict[tuple[str, str], list[list[int]]]:
        """Points as they are stored, by family and precision."""
        groups: dict[tuple[str, str], list[list[int]]] = {}
        for points in self.calibration.points:
            rows, one_query = decode_rows(points.family, points.rows)
            for family, some in ((points.family, rows), (points.family.replace("forward", "decode"), one_query)):
                if some:
                    groups.setdefault((family, points.precision), []).extend(some)
        return groups

    @cached_property
    def shortest_s(self) -> float:
        """Of all kernels that were timed."""
        times = (row[-3] / max(row[-1], 1) for rows in self._rows_of.values() for row in rows)
        return min(times, default=1e9 * LAUNCH_S) * 1e-9

    def has(self, family: str, precision: str) -> bool:
        """Return whether such work was timed, by these kernels or others; matrix work counts in its own width only."""
        alike = [kind for kind in _similar(family) if kind == family or family not in _UNLIKE]
        size = itemsize(precision) if is_matrix_work(family) else None
        return any(kind in alike and size in (None, itemsize(width)) for kind, width in self._rows_of)

    def times(self, tasks: Sequence[Task]) -> TaskTimes:
        """Each is looked up once, however often it is asked for."""
        groups: dict[tuple[str, str], list[Task]] = {}
        for task in dict.fromkeys(tasks):
            if task not in self._known:
                groups.setdefault((task.family, task.precision), []).append(task)
        for (family, precision), some in groups.items():
            numbers = rows_of(some, np.float64)
            times = self._family(family, precision).times(numbers, precision, self.speed)
            if family in _UNLIKE and not any(kind == family for kind, _ in self._rows_of):
                times[2], times[3] = np.maximum(times[2], _UNKNOWN), np.inf
            self._known.update(zip(some, map(tuple, times.T.tolist()), strict=True))
        return TaskTimes(*np.array([self._known[task] for task in tasks], dtype=np.float64).reshape(-1, 5).T)

    def _family(self, family: str, precision: str) -> _FamilyModel:
        key = family, precision
        if key not in self._fields:
            self._fields[key] = _FamilyModel(*self._rows(family, precision), self.speed)
        return self._fields[key]

    def _rows(self, family: str, precision: str) -> tuple[str, str, Array]:
        for kind in _similar(family):
            for width in (precision, _FALLBACKS.get(precision, "bf16"), "fp32", "bf16"):
                if (rows := self._rows_of.get((kind, width))) is not None:
                    return kind, width, _as_table(rows)
        return family, precision, np.empty((0, len(FAMILIES[family]) + 3))


def _as_table(rows: Sequence[Sequence[int]]) -> Array:
    """Numbers and times. Some convolutions tell the sides of their output."""
    if len({len(row) for row in rows}) == 1:
        return np.array(rows, dtype=np.float64)
    times = np.array([row[-3:] for row in rows], dtype=np.float64)
    return np.hstack([table_of([row[:-3] for row in rows], np.float64), times])


def _similar(family: str) -> list[str]:
    """The family itself, and those that do the same by other kernels."""
    families = [family]
    for kernel, others in _FAMILY_FALLBACKS.items():
        if f"-{kernel}-" in family and family.startswith("attention"):
            families += [family.replace(kernel, other) for other in others]
    if family.startswith("batch-norm-cudnn"):
        families.append(family.replace("cudnn", "native"))
    families += [other for other in (_BEFORE.get(family),) if other is not None]
    return families


class _FamilyModel:
    """What was measured of one family in one precision, as efficiencies."""

    def __init__(self, family: str, precision: str, rows: Array, speed: Speed) -> None:
        self.family = family
        self.rows = rows
        numbers = rows[:, :-3]
        self.precision = precision
        self.ways = Ways(family, rows)
        self.points = features(family, precision, numbers)
        base = baseline_seconds(family, precision, numbers, speed)
        warm, cold = rows[:, -3] * 1e-9, np.maximum(rows[:, -2], rows[:, -3]) * 1e-9
        values = np.stack([np.log(warm / base), np.log(cold / base)], axis=1)
        self.warm, self.cold = (KrigingField(self.points, values[:, n], _REACH, _NOISE) for n in (0, 1))
        self.apart = replace(self.warm, points=np.hstack([self.points, _APART * self.ways.taken]))
        self.launched = KrigingField(self.points, np.log(np.maximum(rows[:, -1], 1.0)), _REACH, _NOISE)

    def times(self, numbers: Array, precision: str, speed: Speed) -> Array:
        """Warm and cold seconds, deviation, distance and kernels: a row each, one column a task."""
        if self.family not in _FULL or not len(self.rows):
            return self._interpolated(numbers, precision, speed)
        columns = [FAMILIES[self.family].index(name) for name in ("elements", "bytes_read", "bytes_written")]
        elements, read, written = (numbers[:, place] for place in columns)
        part = np.minimum(1.0, self.most_elements / np.maximum(elements, 1.0))
        inside = numbers.copy()
        inside[:, columns] *= part[:, None]
        times = self._interpolated(inside, precision, speed)
        times[:2] += (1 - part) * (read + written) / self.sustained
        times[3] -= np.log2(part)
        return times

    @cached_property
    def most_elements(self) -> float:
        return float(self._column("elements").max())

    @cached_property
    def sustained(self) -> float:
        """Bytes a second of full launches: those of the best of the largest points, the others having small tensors."""
        large = self._column("elements") >= _LARGE * self.most_elements
        nbytes = self._column("bytes_read") + self._column("bytes_written")
        return float((nbytes / (self.rows[:, -3] * 1e-9))[large].max())

    def _column(self, name: str) -> Array:
        column: Array = self.rows[:, FAMILIES[self.family].index(name)]
        return column

    def _interpolated(self, numbers: Array, precision: str, speed: Speed) -> Array:
        base = baseline_seconds(self.family, precision, numbers, speed)
        if not len(self.rows):
            # Nobody timed the like of it: the baseline, which is within a factor of two or so, and a word of warning.
            ones = np.ones(len(numbers))
            return np.stack([base, base, _UNKNOWN * ones, np.inf * ones, usual_kernels(self.family, numbers)])
        task, chance, near = self._each_way(numbers)

        def expected(values: Array) -> Array:
            return np.bincount(task, chance * values).astype(np.float64)

        warm, cold = self.warm.said(near), self.cold.said(near)
        warm_of, cold_of = (np.log(expected(np.exp(np.maximum(one.value, warm.value)))) for one in (warm, cold))
        least = least_seconds(self.family, precision, numbers, speed)
        deviation = np.sqrt(expected(warm.deviation**2 + (warm.value - warm_of[task]) ** 2))
        distance = np.full(len(numbers), np.inf)
        np.minimum.at(distance, task, warm.distance)
        if itemsize(precision) != itemsize(self.precision):
            # Timed in another width only: fp64 is not among what was calibrated because fp32 is.
            deviation, distance = np.maximum(deviation, _UNKNOWN), np.full(len(numbers), np.inf)
        kernels = expected(np.exp(np.maximum(0.0, self.launched.said(near, tamed=False).value)))
        warm_s = base * np.exp(warm_of)
        cold_s = base * np.exp(cold_of)
        warm_s = np.maximum(warm_s - _CODE_S * kernels, _AT_LEAST * warm_s)
        return np.stack([np.maximum(warm_s, least), np.maximum(cold_s, least), deviation, distance, kernels])

    def _each_way(self, numbers: Array) -> tuple[npt.NDArray[np.intp], Array, NearestPoints]:
        """Whose it is, how likely, and the points near it: every way that a task may go. Where nothing is known of
        ways, points of all of them are near."""
        placed, likely = features(self.family, self.precision, numbers), self.ways.likely(numbers)
        task, way = np.nonzero(likely)
        near = self.apart.near(np.hstack([placed[task], _APART * np.eye(likely.shape[1])[way]]))
        alone = np.flatnonzero(~likely.any(1))
        chance = np.concatenate([likely[task, way], np.ones(len(alone))])
        return np.concatenate([task, alone]), chance, near.and_then(self.warm.near(placed[alone]))
