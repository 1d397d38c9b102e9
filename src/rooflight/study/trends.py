"""What a study's cells show when one thing changes and the rest does not: how time, memory and FLOPs grow with the
batch, the knee, when more gains nothing; devices, precisions, one GPU and many side by side, time against memory.

Two sides never stand in one ratio. What cannot be told (too few points, a knee outside them) is `None`, and beside it
stands why.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec.structs import replace

from rooflight.study.cell import SIDES, Side, StudyRow
from rooflight.study.fitting import CurveFit, Knee, fit, knee
from rooflight.study.time_doubts import recorded_time_s, time_doubt

Place = tuple[tuple[str, str | int | bool], ...]
"""Coordinates that can be a key."""
At = dict[str, str | int | bool]
BatchPoints = tuple[tuple[int, int | float], ...]
OF_THE_DEVICE = ("on", "gpus", "nodes", "parallel", "micro_batches", "pad", "total_batch")
"""What an estimate does not depend on."""
OF_THE_BATCH = ("batch", "total_batch")
"""What changes along a curve against the batch."""


def place(row: StudyRow, *, without: Collection[str] = ()) -> Place:
    return tuple(sorted((axis, value) for axis, value in row.cell.coordinates.items() if axis not in without))


def grouped(rows: Sequence[StudyRow], *, without: Collection[str]) -> dict[Place, list[StudyRow]]:
    """Rows that are equal but for these axes."""
    groups: dict[Place, list[StudyRow]] = {}
    for row in rows:
        groups.setdefault(place(row, without=without), []).append(row)
    return groups


def _series(
    rows: Sequence[StudyRow], *, without: Collection[str], sides: Sequence[Side] = SIDES
) -> Iterator[tuple[Side, At, list[StudyRow]]]:
    """Rows that are equal but for these axes, once for every side, and where they are."""
    axes = varying(rows)
    for side in sides:
        for where, group in grouped(rows, without=without).items():
            yield side, shown(where, axes), group


def value(row: StudyRow, quantity: str, side: Side) -> int | float | None:
    return row.values.get(f"{quantity}.{side}")


def varying(rows: Sequence[StudyRow]) -> tuple[str, ...]:
    """The axes in which these rows differ; one that some of them do not have is one, too."""
    places = [row.cell.coordinates for row in rows]
    axes = dict.fromkeys(axis for place in places for axis in place)
    return tuple(axis for axis in axes if len({place.get(axis) for place in places}) > 1)


def shown(where: Place, axes: Collection[str]) -> At:
    """What of a place must be said to tell it from the others."""
    coordinates = dict(where)
    return {axis: coordinates[axis] for axis in axes if axis in coordinates}


# --- against the batch ---

_FITTED = ("time", "gpu_busy", "memory", "flops", "bytes")
ENOUGH = 0.95
"""Of the best throughput: beyond the batch that has so much nothing is gained."""
_ALONGSIDE = ("on", "dtype", "autocast", "tf32")


class Trend(msgspec.Struct, frozen=True, kw_only=True):
    """One quantity of one side against the batch, everything else being equal."""

    at: At
    """Where, as far as the study has several such curves."""
    quantity: str
    side: Side
    points: BatchPoints
    fit: CurveFit | None
    no_fit: str = ""
    knee: Knee | None = None
    """Of times only."""
    no_knee: str = ""


class ThroughputGain(msgspec.Struct, frozen=True, kw_only=True):
    """Samples a second against the batch."""

    at: At
    side: Side
    points: BatchPoints
    best: int
    """The batch with most samples per second."""
    enough: int | None
    """The smallest batch within 5% of the best; larger ones gain nothing."""
    no_enough: str = ""
    fits: int | None = None
    """The largest batch of the study that is predicted to fit the device."""
    fits_not: int | None = None
    """The smallest that is predicted not to."""


def against_batch(rows: Sequence[StudyRow]) -> list[Trend]:
    """Every curve of more than one batch."""
    series = [
        *_series(rows, without=("batch", *OF_THE_DEVICE), sides=("estimated",)),
        *_series(rows, without=OF_THE_BATCH, sides=("predicted", "measured")),
    ]
    return [
        _trend(at, quantity, side, points)
        for quantity in _FITTED
        for side, at, group in series
        if len(points := _points(group, quantity, side)) > 1
    ]


def gains(rows: Sequence[StudyRow]) -> list[ThroughputGain]:
    """Throughput of every series that has some."""
    return [
        _gain(at, side, points, group)
        for side, at, group in _series(rows, without=OF_THE_BATCH)
        if len(points := _points(group, "throughput", side)) > 1
    ]


def _points(rows: Sequence[StudyRow], quantity: str, side: Side) -> BatchPoints:
    by_batch = {row.cell.batch: number for row in rows if (number := value(row, quantity, side)) is not None}
    return tuple(sorted(by_batch.items()))


def _trend(at: At, quantity: str, side: Side, points: BatchPoints) -> Trend:
    curve = fit(points)
    if isinstance(curve, str):
        return Trend(at=at, quantity=quantity, side=side, points=points, fit=None, no_fit=curve)
    bend = knee(curve, points) if quantity in ("time", "gpu_busy") else ""
    trend = Trend(at=at, quantity=quantity, side=side, points=points, fit=curve)
    return replace(trend, knee=bend) if isinstance(bend, Knee) else replace(trend, no_knee=bend)


def _gain(at: At, side: Side, points: BatchPoints, rows: Sequence[StudyRow]) -> ThroughputGain:
    fits_at = {row.cell.batch: row.facts["fits"] for row in rows if "fits" in row.facts}
    # What is predicted for a step that does not fit is no gain.
    real = [point for point in points if side != "predicted" or fits_at.get(point[0]) != "no"] or points
    best, most = max(real, key=lambda point: point[1])
    enough = next(batch for batch, rate in real if rate >= ENOUGH * most)
    open_end = enough == real[-1][0]
    return ThroughputGain(
        at=at,
        side=side,
        points=points,
        best=best,
        enough=None if open_end else enough,
        no_enough=f"still gaining at {enough}" if open_end else "",
        fits=max((batch for batch, fits in fits_at.items() if fits == "yes"), default=None),
        fits_not=min((batch for batch, fits in fits_at.items() if fits == "no"), default=None),
    )


# --- beside one another ---

_COMPARED = ("time", "memory")


class FrontPoint(msgspec.Struct, frozen=True, kw_only=True):
    at: At
    time_per_sample_s: float
    memory_bytes: float
    best: bool
    """No other point is better in one of the two and not worse in the other."""
    doubt: str = ""
    """Why its time should not be relied on; empty where it may."""
    recorded_per_sample_s: float | None = None
    """Of a time in doubt: what a recording of the same step on the same device says."""


class Front(msgspec.Struct, frozen=True, kw_only=True):
    """Time of a sample against memory of one device, of one model and step: what can be traded for what."""

    at: At
    side: Side
    points: tuple[FrontPoint, ...]


class StudyScalingPoint(msgspec.Struct, frozen=True, kw_only=True):
    gpus: int
    parallel: str
    batch: int
    """Of each replica."""
    time_s: float | None
    throughput: float
    speedup: float
    efficiency: float


class StudyScaling(msgspec.Struct, frozen=True, kw_only=True):
    """The same step on more devices: each with its batch (weak), or with its part of one batch (strong)."""

    kind: Literal["weak", "strong"]
    at: At
    side: Side
    total_batch: int | None = None
    """Of all GPUs together; of strong scaling alone."""
    points: tuple[StudyScalingPoint, ...]
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


def fronts(rows: Sequence[StudyRow]) -> list[Front]:
    """Of every model, step and device with more than one cell that has time and memory, and fits."""
    fixed = ("model", "step", "seq", "past", "on", "gpus", "parallel")
    choices = [axis for axis in varying(rows) if axis not in fixed]
    without = {axis for row in rows for axis in row.cell.coordinates if axis not in fixed}
    traded = []
    for side, at, group in _series(rows, without=without):
        points = []
        for row in group:
            if side == "predicted" and value(row, "time", "measured") is not None:
                continue  # what was measured is told by the measurement
            time, memory = value(row, "time", side), value(row, "memory", side)
            fits = side != "predicted" or row.facts.get("fits") != "no"
            if time is not None and memory is not None and time > 0 and fits:
                points.append(_front_point(row, side, shown(place(row), choices), time, memory))
        if len(points) > 1:
            traded.append(Front(at=at, side=side, points=_front(points)))
    return traded


def _front_point(row: StudyRow, side: Side, at: At, time: float, memory: float) -> FrontPoint:
    samples = row.cell.batch * row.cell.gpus
    doubt = time_doubt(row, side)
    recorded = recorded_time_s(row.cell) if doubt else None
    return FrontPoint(
        at=at,
        time_per_sample_s=time / samples,
        memory_bytes=float(memory),
        best=False,
        doubt=doubt,
        recorded_per_sample_s=None if recorded is None else recorded / samples,
    )


def _front(points: Sequence[FrontPoint]) -> tuple[FrontPoint, ...]:
    front = []
    least = float("inf")
    for point in sorted(points, key=lambda point: (point.memory_bytes, point.time_per_sample_s)):
        front.append(replace(point, best=point.time_per_sample_s < least))
        least = min(least, point.time_per_sample_s)
    return tuple(front)


def scaling(rows: Sequence[StudyRow]) -> list[StudyScaling]:
    """Every step that the study has on more than one number of devices; a batch that they share is strong scaling."""
    if len({row.cell.gpus * row.cell.nodes for row in rows}) < 2:
        return []
    shared = [row for row in rows if row.cell.total_batch is not None]
    own = [row for row in rows if row.cell.total_batch is None]
    return [
        *_scalings(own, "weak", without=("gpus", "nodes", "parallel")),
        *_scalings(shared, "strong", without=("gpus", "nodes", "parallel", "batch")),
    ]


def _scalings(
    rows: Sequence[StudyRow], kind: Literal["weak", "strong"], *, without: Sequence[str]
) -> Iterator[StudyScaling]:
    for side, at, group in _series(rows, without=without):
        rated = [
            (row, rate)
            for row in sorted(group, key=lambda row: row.cell.gpus * row.cell.nodes)
            if (rate := value(row, "throughput", side)) is not None and rate > 0
        ]
        if len({row.cell.gpus * row.cell.nodes for row, _ in rated}) > 1:
            total = rated[0][0].cell.total_batch
            yield StudyScaling(kind=kind, at=at, side=side, total_batch=total, points=_scaled(rated, side))


def _scaled(rated: Sequence[tuple[StudyRow, float]], side: Side) -> tuple[StudyScalingPoint, ...]:
    base, base_rate = rated[0]
    one = base.cell.gpus * base.cell.nodes
    return tuple(
        StudyScalingPoint(
            gpus=row.cell.gpus * row.cell.nodes,
            parallel=row.cell.parallel or "",
            batch=row.cell.batch,
            time_s=value(row, "time", side),
            throughput=rate,
            speedup=rate / base_rate,
            efficiency=rate / base_rate * one / (row.cell.gpus * row.cell.nodes),
        )
        for row, rate in rated
    )


def ratios(rows: Sequence[StudyRow], axis: str) -> list[Ratios]:
    """Along an axis of several values: each over the first, of one side."""
    if axis not in varying(rows):
        return []
    compared = []
    for quantity in _COMPARED:
        for side, at, group in _series(rows, without=(axis,)):
            values: dict[str, float] = {}
            for row in group:
                number = value(row, quantity, side)
                if number is not None and number > 0:
                    values.setdefault(str(row.cell.coordinates.get(axis, "none")), number)
            if len(values) > 1:
                first = next(iter(values.values()))
                ratios = {name: number / first for name, number in values.items()}
                compared.append(Ratios(axis=axis, at=at, quantity=quantity, side=side, values=values, ratios=ratios))
    return compared


# --- all of it ---


class Trends(msgspec.Struct, frozen=True, kw_only=True):
    against_batch: tuple[Trend, ...] = ()
    throughput: tuple[ThroughputGain, ...] = ()
    fronts: tuple[Front, ...] = ()
    scaling: tuple[StudyScaling, ...] = ()
    ratios: tuple[Ratios, ...] = ()


def trends(rows: Sequence[StudyRow]) -> Trends:
    """All that a study shows when one thing changes and the rest does not."""
    return Trends(
        against_batch=tuple(against_batch(rows)),
        throughput=tuple(gains(rows)),
        fronts=tuple(fronts(rows)),
        scaling=tuple(scaling(rows)),
        ratios=tuple(beside for axis in _ALONGSIDE for beside in ratios(rows, axis)),
    )
