"""Cells beside one another: devices, precisions, one GPU and many, time against space. Never two sides in one ratio."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rooflight.study.cell import SIDES, Row, Side
from rooflight.study.series import At, grouped, shown, value, varying

_COMPARED = ("time", "memory")


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True):
    at: At
    time_per_sample_s: float
    memory_bytes: float
    best: bool
    """No other point is better in one of the two and not worse in the other."""


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a sample against memory of one device, of one model and step: what can be traded for what."""

    at: At
    side: Side
    points: tuple[FrontPoint, ...]


class ScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    gpus: int
    parallel: str
    batch: int
    throughput: float
    speedup: float
    efficiency: float


class Scaling(msgspec.Struct, frozen=True, kw_only=True):
    """The same step on more devices, each with its batch."""

    at: At
    side: Side
    points: tuple[ScalingPoint, ...]
    """The first is what the others are compared with."""


class Ratios(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity at the values of one axis, everything else being equal."""

    axis: str
    at: At
    quantity: str
    side: Side
    values: dict[str, float]
    ratios: dict[str, float]
    """To the first."""


def fronts(rows: Sequence[Row]) -> list[Front]:
    """Of every model, step and device with more than one cell that has time and memory, and fits."""
    axes = varying(rows)
    kept = ("model", "step", "seq", "past", "on", "gpus", "parallel")
    choices = [axis for axis in axes if axis not in kept]
    without = {axis for row in rows for axis in row.cell.coordinates if axis not in kept}
    found = []
    for side in SIDES:
        for where, group in grouped(rows, without=without).items():
            points = []
            for row in group:
                if side == "predicted" and value(row, "time", "measured") is not None:
                    continue  # what was measured is told by the measurement
                time, memory = value(row, "time", side), value(row, "memory", side)
                fits = side != "predicted" or row.facts.get("fits") != "no"
                if time is not None and memory is not None and time > 0 and fits:
                    at = {axis: row.cell.coordinates[axis] for axis in choices if axis in row.cell.coordinates}
                    points.append((at, time / (row.cell.batch * row.cell.gpus), float(memory)))
            if len(points) > 1:
                found.append(Front(at=shown(where, axes), side=side, points=_front(points)))
    return found


def _front(points: Sequence[tuple[At, float, float]]) -> tuple[FrontPoint, ...]:
    made = []
    least = float("inf")
    for at, time, memory in sorted(points, key=lambda point: (point[2], point[1])):
        made.append(FrontPoint(at=at, time_per_sample_s=time, memory_bytes=memory, best=time < least))
        least = min(least, time)
    return tuple(made)


def scaling(rows: Sequence[Row]) -> list[Scaling]:
    """Every step that the study has on more than one number of devices."""
    if len({row.cell.gpus for row in rows}) < 2:
        return []
    axes = varying(rows)
    found = []
    for side in SIDES:
        for where, group in grouped(rows, without=("gpus", "parallel")).items():
            rated = [(row, rate) for row in sorted(group, key=lambda row: row.cell.gpus)
                     if (rate := value(row, "throughput", side)) is not None and rate > 0]  # fmt: skip
            if len({row.cell.gpus for row, _ in rated}) > 1:
                found.append(Scaling(at=shown(where, axes), side=side, points=_scaled(rated)))
    return found


def _scaled(rated: Sequence[tuple[Row, float]]) -> tuple[ScalingPoint, ...]:
    base, base_rate = rated[0]
    return tuple(
        ScalingPoint(gpus=row.cell.gpus, parallel=row.cell.parallel or "", batch=row.cell.batch, throughput=rate,
                     speedup=rate / base_rate, efficiency=rate / base_rate * base.cell.gpus / row.cell.gpus)
        for row, rate in rated
    )  # fmt: skip


def ratios(rows: Sequence[Row], axis: str) -> list[Ratios]:
    """Along an axis of several values: each over the first, of one side."""
    axes = varying(rows)
    if axis not in axes:
        return []
    found = []
    for quantity in _COMPARED:
        for side in SIDES:
            for where, group in grouped(rows, without=(axis,)).items():
                values: dict[str, float] = {}
                for row in group:
                    one = value(row, quantity, side)
                    if one is not None and one > 0:
                        values.setdefault(str(row.cell.coordinates.get(axis, "none")), one)
                if len(values) > 1:
                    first = next(iter(values.values()))
                    found.append(Ratios(axis=axis, at=shown(where, axes), quantity=quantity, side=side, values=values,
                                        ratios={name: one / first for name, one in values.items()}))  # fmt: skip
    return found
