"""How a study's cells change with the batch: the form of time, memory and FLOPs, the knee, and when more gains nothing.

What cannot be told (too few points, a knee outside them) is `None`, and beside it stands why.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rooflight.study.cell import SIDES, Row, Side
from rooflight.study.fitting import Fit, Knee, fit, knee
from rooflight.study.series import OF_THE_DEVICE, At, grouped, shown, value, varying
from rooflight.study.side_by_side import Front, Ratios, Scaling, fronts, ratios, scaling

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
    points: tuple[tuple[int, int | float], ...]
    fit: Fit | None
    no_fit: str = ""
    knee: Knee | None = None
    """Of times only."""
    no_knee: str = ""


class Gain(msgspec.Struct, frozen=True, kw_only=True):
    """Samples a second against the batch."""

    at: At
    side: Side
    points: tuple[tuple[int, int | float], ...]
    best: int
    """The batch with most samples per second."""
    enough: int | None
    """The smallest batch within 5% of the best; larger ones gain nothing."""
    no_enough: str = ""
    fits: int | None = None
    """The largest batch of the study that is predicted to fit the device."""
    fits_not: int | None = None
    """The smallest that is predicted not to."""


class Trends(msgspec.Struct, frozen=True, kw_only=True):
    against_batch: tuple[Trend, ...] = ()
    throughput: tuple[Gain, ...] = ()
    fronts: tuple[Front, ...] = ()
    scaling: tuple[Scaling, ...] = ()
    ratios: tuple[Ratios, ...] = ()


def trends(rows: Sequence[Row]) -> Trends:
    """All that a study shows when one thing changes and the rest does not."""
    return Trends(
        against_batch=tuple(against_batch(rows)),
        throughput=tuple(gains(rows)),
        fronts=tuple(fronts(rows)),
        scaling=tuple(scaling(rows)),
        ratios=tuple(one for axis in _ALONGSIDE for one in ratios(rows, axis)),
    )


def against_batch(rows: Sequence[Row]) -> list[Trend]:
    """Every curve of more than one batch."""
    axes = varying(rows)
    found = []
    for quantity in _FITTED:
        for side in SIDES:
            without = ("batch", *OF_THE_DEVICE) if side == "estimated" else ("batch",)
            for where, group in grouped(rows, without=without).items():
                points = _points(group, quantity, side)
                if len(points) > 1:
                    found.append(_trend(shown(where, axes), quantity, side, points))
    return found


def gains(rows: Sequence[Row]) -> list[Gain]:
    """Throughput of every series that has some."""
    axes = varying(rows)
    found = []
    for side in SIDES:
        for where, group in grouped(rows, without=("batch",)).items():
            points = _points(group, "throughput", side)
            if len(points) > 1:
                found.append(_gain(shown(where, axes), side, points, group))
    return found


def _points(rows: Sequence[Row], quantity: str, side: Side) -> tuple[tuple[int, int | float], ...]:
    found = {row.cell.batch: one for row in rows if (one := value(row, quantity, side)) is not None}
    return tuple(sorted(found.items()))


def _trend(at: At, quantity: str, side: Side, points: tuple[tuple[int, int | float], ...]) -> Trend:
    made = fit(points)
    if isinstance(made, str):
        return Trend(at=at, quantity=quantity, side=side, points=points, fit=None, no_fit=made)
    bend = knee(made, points) if quantity in ("time", "gpu_busy") else ""
    told = (bend, "") if isinstance(bend, Knee) else (None, bend)
    return Trend(at=at, quantity=quantity, side=side, points=points, fit=made, knee=told[0], no_knee=told[1])


def _gain(at: At, side: Side, points: tuple[tuple[int, int | float], ...], rows: Sequence[Row]) -> Gain:
    told = {row.cell.batch: row.facts["fits"] for row in rows if "fits" in row.facts}
    # What is predicted for a step that does not fit is no gain.
    real = [point for point in points if side != "predicted" or told.get(point[0]) != "no"] or points
    best, most = max(real, key=lambda point: point[1])
    enough = next(batch for batch, rate in real if rate >= ENOUGH * most)
    open_end = enough == real[-1][0]
    return Gain(
        at=at,
        side=side,
        points=points,
        best=best,
        enough=None if open_end else enough,
        no_enough=f"still gaining at {enough}" if open_end else "",
        fits=max((batch for batch, fits in told.items() if fits == "yes"), default=None),
        fits_not=min((batch for batch, fits in told.items() if fits == "no"), default=None),
    )
