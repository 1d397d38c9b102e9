"""Which way a library takes for a convolution with groups: decision trees over its sizes.

cuDNN runs all groups at once or one after the other, with or without copies before and after, and chooses by sizes: on
the other side of a threshold the same work takes ten times as long. Interpolation between points on both sides tells
something in between, which never happens. So the way is decided first, and points that went that way tell the time. A
point's way is told by its kernels: so many in all, or so many for each group.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from rooflight.ops.kernel_task import convolves
from rooflight.prediction.calibrated.baseline import columns
from rooflight.step.cache_reuse import Array

_FEWEST = 200
"""Points with groups, for a tree to be grown."""
_AT_ONCE = 8
"""Kernels of a convolution that is not run group by group, at most."""
_TREES = 8
_SURER = 2
"""Trees that each see half of the sizes agree less than they are right: their shares of the vote to this power, made
one again, are about how often left-out points went each way, over all families."""
_HARDLY = 0.02
"""Of the likeliest way's chance: a way below it is not looked at."""
_SEEN = 500
"""Points that a threshold is chosen by, at most."""
_AROUND = 1.0
"""How many points of a leaf weigh as much as those around it: few that agree leave a doubt."""


class Ways:
    """Of a family's points. `taken`: by each of them, a column a way, 1 or 0; none by those without groups."""

    def __init__(self, family: str, rows: Array) -> None:
        """`rows`: the numbers of the points, and as their last column how many kernels each is."""
        self._family = family
        self._grouped = _grouped(family, rows[:, :-3]) if convolves(family) else np.zeros(len(rows), dtype=np.bool_)
        self._rows = rows[self._grouped]
        self.taken = np.zeros((len(rows), 0))
        if len(self._rows) < _FEWEST:
            return
        self._windows = _window(family, self._rows[:, :-3])
        kernels, groups = self._rows[:, -1], columns(family, self._rows[:, :-3])["groups"]
        one_by_one = (kernels >= groups) & (kernels > _AT_ONCE)
        ways = np.where(one_by_one, -np.round(kernels / groups), np.minimum(kernels, _AT_ONCE))
        kinds, numbered = np.unique(ways, return_inverse=True)
        self.taken = np.zeros((len(rows), len(kinds)))
        self.taken[self._grouped, numbered] = 1.0

    def likely(self, numbers: Array) -> Array:
        """How likely each way is, one row a task; 0 for all where there are no groups, or no point has its window."""
        found = np.zeros((len(numbers), self.taken.shape[1]))
        if self.taken.shape[1]:
            grouped = _grouped(self._family, numbers) & np.isin(_window(self._family, numbers), self._windows)
            if grouped.any():
                sizes = _sizes(self._family, numbers[grouped])
                chances = np.mean([tree.at(sizes) for tree in self._trees], axis=0) ** _SURER
                chances[chances < _HARDLY * chances.max(1, keepdims=True)] = 0.0
                found[grouped] = chances / chances.sum(1, keepdims=True)
        return found

    @cached_property
    def _trees(self) -> list[_Node]:
        ways = self.taken[self._grouped].argmax(1)
        points = _Sorted(_sizes(self._family, self._rows[:, :-3]), ways)
        return [
            _Node(points, np.arange(len(ways)), self.taken[self._grouped].mean(0), (tree,)) for tree in range(_TREES)
        ]


def _grouped(family: str, numbers: Array) -> npt.NDArray[np.bool_]:
    """Every channel on its own (depthwise) has kernels of its own."""
    c = columns(family, numbers)
    grouped: npt.NDArray[np.bool_] = (c["groups"] > 1) & (c["groups"] < c["c"])
    return grouped


def _window(family: str, numbers: Array) -> Array:
    """One number for its sides, stride and dilation."""
    c = columns(family, numbers)
    window: Array = ((c["r"] * 1000 + c["s"]) * 1000 + c["stride"]) * 1000 + c["dilation"]
    return window


def _sizes(family: str, numbers: Array) -> Array:
    """What a library may ask about, one row a task."""
    c = columns(family, numbers)
    inputs, outputs, window = c["c"] / c["groups"], c["k"] / c["groups"], c["r"] * c["s"]
    pixels, out_pixels = c["h"] * c["w"], c["p"] * c["q"]
    plain = [c[name] for name in ("n", "c", "h", "k", "r", "stride", "dilation", "groups", "channels_last", "p")]
    made = [
        inputs, outputs, c["n"] * out_pixels, c["n"] * c["c"] * pixels, c["n"] * c["k"] * out_pixels,
        c["c"] * outputs * window, c["n"] * out_pixels * c["k"] * inputs * window,
    ]  # fmt: skip
    halved = [_halvings(size) for size in (c["n"], c["c"], c["k"], c["groups"], inputs, outputs, pixels, out_pixels)]
    return np.stack([*plain, *made, *halved], axis=1)


def _halvings(sizes: Array) -> Array:
    """How often a size halves evenly, up to 64."""
    halvings: Array = np.sum([sizes % power == 0 for power in (2, 4, 8, 16, 32, 64)], axis=0, dtype=np.float64)
    return halvings


class _Sorted:
    """Points, each size as its place among all that occur."""

    def __init__(self, sizes: Array, ways: npt.NDArray[np.intp]) -> None:
        levels, places = zip(*(np.unique(column, return_inverse=True) for column in sizes.T), strict=True)
        self.levels: tuple[Array, ...] = levels
        # Numbers of 16 bits are sorted by counting, several times as fast.
        self.places = np.stack(places, axis=1).astype(np.uint16 if len(ways) <= 2**16 else np.uint32)
        self.ways, self.count = ways, int(ways.max()) + 1
        counts = np.arange(len(ways) + 1, dtype=np.float64)
        self.mixed = counts * np.log(np.maximum(counts, 1.0))

    def split(self, points: npt.NDArray[np.intp], some: npt.NDArray[np.intp]) -> tuple[int, int, int] | None:
        """The size among `some`, and its places next to the threshold that sorts ways best (by entropy)."""
        places = self.places[points[:, None], some]
        order = np.argsort(places, axis=0, kind="stable")
        places = np.take_along_axis(places, order, axis=0)
        present = np.flatnonzero(np.bincount(self.ways[points]))
        below = np.cumsum(self.ways[points][order][:, :, None] == present, axis=0, dtype=np.int32)
        above = below[-1] - below[:-1]
        count = np.arange(1, len(points))
        sorted_out = self.mixed[below[:-1]].sum(2) + self.mixed[above].sum(2)
        sorted_out -= (self.mixed[count] + self.mixed[len(points) - count])[:, None]
        sorted_out[places[1:] == places[:-1]] = -np.inf
        row, column = np.unravel_index(int(np.argmax(sorted_out)), sorted_out.shape)
        if sorted_out[row, column] == -np.inf:
            return None
        return int(some[column]), int(places[row, column]), int(places[row + 1, column])


@dataclass
class _Node:
    """A part of a tree, which grows where it is asked: a step has a few convolutions, a tree a thousand nodes. At every
    threshold half of the sizes are looked at, others than in the next tree: what one mistakes, others do not."""

    of: _Sorted
    points: npt.NDArray[np.intp]
    around: Array
    path: tuple[int, ...]
    """The tree, then the side at each threshold (1 or 2: zeros at the end of a seed do not count). What is looked at
    here depends on nothing else."""

    @cached_property
    def likely(self) -> Array:
        taken = np.bincount(self.of.ways[self.points], minlength=self.of.count)
        likely: Array = (taken + _AROUND * self.around) / (len(self.points) + _AROUND)
        return likely

    @cached_property
    def split(self) -> tuple[int, float, tuple[_Node, _Node]] | None:
        ways = self.of.ways[self.points]
        if (ways == ways[0]).all():
            return None
        chance = np.random.default_rng(self.path)
        some = chance.permutation(len(self.of.levels))[: len(self.of.levels) // 2]
        seen = self.points if len(ways) <= _SEEN else chance.choice(self.points, _SEEN, replace=False)
        found = self.of.split(seen, some)
        if found is None:
            return None
        column, last, first = found
        low = self.of.places[self.points, column] <= last
        threshold = float((self.of.levels[column][last] + self.of.levels[column][first]) / 2)
        below, above = (
            _Node(self.of, self.points[side], self.likely, (*self.path, number))
            for number, side in enumerate((low, ~low), 1)
        )
        return column, threshold, (below, above)

    def at(self, sizes: Array) -> Array:
        """How likely each way is, one row a task."""
        if not len(sizes) or self.split is None:
            return np.broadcast_to(self.likely, (len(sizes), self.of.count))
        column, threshold, (below, above) = self.split
        low = sizes[:, column] <= threshold
        found = np.empty((len(sizes), self.of.count))
        found[low], found[~low] = below.at(sizes[low]), above.at(sizes[~low])
        return found
