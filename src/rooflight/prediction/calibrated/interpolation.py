"""Efficiency between the points that were measured: kriging among the nearest ones.

The points nearest to a task tell its efficiency, each by its distance, and less where several say the same. The method
also tells how far it may be off: more where points are far away or disagree.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from rooflight.step.cache_reuse import Array

_NEIGHBOURS = 24
_FEW = 8
_CLOSEST = 5
_ODD, _OF_NORMAL, _SAME = 3.0, 0.6745, 0.02
"""Beyond three standard deviations, told from the median distance to the middle; values this close are all alike."""


@dataclass(frozen=True)
class Interpolated:
    value: Array
    deviation: Array
    """One standard deviation of the value."""
    distance: Array
    """To the nearest point, in doublings of a size."""
    nearest: npt.NDArray[np.intp]
    """The points that are closest, a few for every query."""


@dataclass(frozen=True)
class NearestPoints:
    """The points nearest to each query, and what each of them has to say of it: the same for all values there."""

    nearest: npt.NDArray[np.intp]
    distance: Array
    along: Array
    ones: Array
    unknown: Array
    """How much of the spread of the values is left open, if their mean is known."""
    unsure_mean: Array
    """And how much more, if it is that of the points."""

    def and_then(self, more: NearestPoints) -> NearestPoints:
        """Of these queries, then of others among as many points."""
        return NearestPoints(
            *(np.concatenate([getattr(one, field.name) for one in (self, more)]) for field in fields(self))
        )


@dataclass(frozen=True)
class KrigingField:
    """Values at points, to be known in between. `reach`: how far a point's word carries; `noise`: how much of what
    two points far apart differ by, they also differ by when they are close."""

    points: Array
    values: Array
    reach: float
    noise: float
    prior: float | None = None
    """What is so where no point is near; `None`: what the nearest points say, however far they are."""

    def at(self, queries: Array) -> Interpolated:
        """The value at every query."""
        return self.said(self.near(queries))

    def near(self, queries: Array) -> NearestPoints:
        """Serves every field that has these points."""
        return self._among(_squares(queries, self.points))

    def said(self, near: NearestPoints, *, tamed: bool = True) -> Interpolated:
        """The value at the queries that these are near to. `tamed`: points that are far off count as less so."""
        values = _tamed(self.values[near.nearest]) if tamed else self.values[near.nearest]
        if self.prior is None:
            mean, unknown = (near.ones * values).sum(1) / near.ones.sum(1), near.unknown + near.unsure_mean
        else:
            mean, unknown = np.full(len(values), self.prior), near.unknown
        value = mean + (near.along * (values - mean[:, None])).sum(1)
        # A few points that happen to agree prove little.
        spread = np.maximum(values.std(1), 0.02 if values.shape[1] >= _FEW else 0.3)
        closest = np.argsort(near.distance, axis=1)[:, :_CLOSEST]
        return Interpolated(
            value,
            spread * np.sqrt(np.clip(unknown, 0.0, None)),
            near.distance.min(1),
            np.take_along_axis(near.nearest, closest, axis=1),
        )

    def _among(self, squares: Array) -> NearestPoints:
        count = min(_NEIGHBOURS, len(self.points))
        nearest = np.argpartition(squares, count - 1, axis=1)[:, :count]
        distance = np.sqrt(np.take_along_axis(squares, nearest, axis=1))
        near = self.points[nearest]
        apart = near[:, :, None, :] - near[:, None, :, :]
        alike = np.exp(-np.sqrt(np.einsum("qijf,qijf->qij", apart, apart)) / self.reach)
        alike[:, np.arange(count), np.arange(count)] += self.noise
        to_query = np.exp(-distance / self.reach)
        solved = np.linalg.solve(alike, np.stack([to_query, np.ones_like(to_query)], axis=2))
        along, ones = solved[:, :, 0], solved[:, :, 1]
        unknown = 1 + self.noise - (along * to_query).sum(1)
        unsure_mean = (1 - along.sum(1)) ** 2 / ones.sum(1)
        return NearestPoints(nearest, distance, along, ones, unknown, unsure_mean)


def _tamed(values: Array) -> Array:
    """Points that lie far from all others around them (a library took its slowest way) count as less odd."""
    middle = np.median(values, axis=1, keepdims=True)
    usual = np.median(np.abs(values - middle), axis=1, keepdims=True) / _OF_NORMAL
    most = _ODD * usual + _SAME
    tamed: Array = np.clip(values, middle - most, middle + most)
    return tamed


def _squares(queries: Array, points: Array) -> Array:
    """Squared distances, one row a query."""
    squares: Array = (queries**2).sum(1)[:, None] + (points**2).sum(1)[None, :]
    squares -= 2 * queries @ points.T
    return np.maximum(squares, 0.0, out=squares)
