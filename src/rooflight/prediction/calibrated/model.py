"""Seconds of tasks on a calibrated device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from rooflight.hardware.calibration import Calibration
from rooflight.hardware.tasks import Task
from rooflight.prediction.calibrated.baseline import Array, Speed, baseline_seconds
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.calibrated.interpolation import Field

_FALLBACKS = {"fp16": "bf16", "bf16": "fp16", "tf32": "fp32", "fp64": "fp32"}
"""Whose efficiency is taken where a precision was not calibrated."""
_FAMILY_FALLBACKS = {"flash": ("cudnn", "efficient"), "cudnn": ("flash", "efficient"), "efficient": ("flash", "cudnn")}
_REACH, _NOISE = 8.0, 0.03


@dataclass(frozen=True)
class Times:
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
        self._fields: dict[tuple[str, str], _Family] = {}

    @cached_property
    def _points(self) -> dict[tuple[str, str], Array]:
        return {
            (points.family, points.precision): np.array(points.rows, dtype=np.float64)
            for points in self.calibration.points
            if points.rows
        }

    @cached_property
    def shortest_s(self) -> float:
        """Of all kernels that were timed."""
        return float(min((rows[:, -3] / np.maximum(rows[:, -1], 1)).min() for rows in self._points.values())) * 1e-9

    def times(self, tasks: Sequence[Task]) -> Times:
        groups: dict[tuple[str, str], list[int]] = {}
        for place, task in enumerate(tasks):
            groups.setdefault((task.family, task.precision), []).append(place)
        found = np.zeros((5, len(tasks)))
        for (family, precision), places in groups.items():
            numbers = np.array([tasks[place].numbers for place in places], dtype=np.float64)
            found[:, places] = self._family(family, precision).times(numbers, precision, self.speed)
        return Times(*found)

    def _family(self, family: str, precision: str) -> _Family:
        known = self._fields.get((family, precision))
        if known is None:
            known = self._fields[family, precision] = _Family(*self._rows(family, precision), self.speed)
        return known

    def _rows(self, family: str, precision: str) -> tuple[str, str, Array]:
        for kind in _similar(family):
            for width in (precision, _FALLBACKS.get(precision, "fp32"), "fp32", "bf16"):
                if (rows := self._points.get((kind, width))) is not None:
                    return kind, width, rows
        return "plain", "fp32", np.empty((0, 6))


def _similar(family: str) -> list[str]:
    """The family itself, and those that do the same by other kernels."""
    found = [family]
    for kernel, others in _FAMILY_FALLBACKS.items():
        if f"-{kernel}-" in family and family.startswith("attention"):
            found += [family.replace(kernel, other) for other in others]
    if family.startswith("batch-norm-cudnn"):
        found.append(family.replace("cudnn", "native"))
    return found


class _Family:
    """What was measured of one family in one precision, as efficiencies."""

    def __init__(self, family: str, precision: str, rows: Array, speed: Speed) -> None:
        self.family = family
        self.rows = rows
        numbers = rows[:, :-3]
        self.precision = precision
        self.points = features(family, precision, numbers)
        base = baseline_seconds(family, precision, numbers, speed)
        warm, cold = rows[:, -3] * 1e-9, np.maximum(rows[:, -2], rows[:, -3]) * 1e-9
        values = np.stack([np.log(warm / base), np.log(cold / base)], axis=1)
        self.warm, self.cold = (Field(self.points, values[:, n], _REACH, _NOISE) for n in (0, 1))
        self.kernels = rows[:, -1]

    def times(self, numbers: Array, precision: str, speed: Speed) -> Array:
        base = baseline_seconds(self.family, precision, numbers, speed)
        queries = features(self.family, self.precision, numbers)
        warm, cold = self.warm.at(queries), self.cold.at(queries)
        nearest = warm.nearest
        return np.stack([
            base * np.exp(warm.value), base * np.exp(np.maximum(cold.value, warm.value)), warm.deviation,
            warm.distance, self.kernels[nearest],
        ])  # fmt: skip
