"""The recorded layers of one precision, and what the nearest of them say of others.

Layers of another kind are hardly ever among the nearest, so that each kind is made ready and searched by itself; all of
them only where the own kind has too few, or none that is nearer than another kind could be.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from rooflight.hardware.workspaces import FAMILIES
from rooflight.memory.cudnn_workspaces.closed_forms import closed_forms, decode
from rooflight.memory.cudnn_workspaces.layers import (
    OTHER_KIND,
    Column,
    ConvolutionLayers,
    Floats,
    Traits,
    kinds_of,
    likeness,
    traits_of,
)
from rooflight.ops.kernel_task import CONVOLUTION

NEIGHBOURS = 9
_FLOOR = 0.3
"""Distances count from here: among recorded layers that are almost the asked one, none has all the say."""
_AT_ONCE = 256
"""Layers asked for in one go: their distances to all recorded ones are in memory together."""
_ANY = -1
"""Stands for all kinds together."""


class _DescribedLayers:
    """Layers, and what all families need to know of them."""

    def __init__(self, numbers: Column, size: int) -> None:
        self.layers = ConvolutionLayers.of(numbers, size)

    @cached_property
    def kinds(self) -> Column:
        return kinds_of(self.layers)

    @cached_property
    def forms(self) -> Floats:
        return closed_forms(self.layers)

    @cached_property
    def traits(self) -> Traits:
        return traits_of(self.layers)


class _LayersOfKind(_DescribedLayers):
    """Recorded ones, whose rows have their workspaces after the numbers, a column for each family."""

    def __init__(self, rows: Column, size: int) -> None:
        super().__init__(rows[:, : len(CONVOLUTION)], size)
        self.rows = rows


class RecordedLayers:
    """Rows of one precision, whose elements have `size` bytes. What is made of them is made when it is asked for."""

    def __init__(self, rows: Column, size: int) -> None:
        self._size = size
        self._alike = {_ANY: _LayersOfKind(rows, size)}
        self._points: dict[tuple[str, int], _FamilyPoints | None] = {}

    def bytes_of(self, numbers: Column, ways: Mapping[str, Sequence[int]]) -> dict[str, Floats]:
        """`ways`: by family, which of these layers are asked for. Nought where nothing was recorded for a family."""
        asked = _DescribedLayers(numbers, self._size)
        return {family: self._one_way(family, asked, np.array(places)) for family, places in ways.items()}

    def _one_way(self, family: str, asked: _DescribedLayers, places: Column) -> Floats:
        traits, kinds = likeness(asked.traits, family)[places], asked.kinds[places]
        nbytes, farthest = np.zeros(len(places)), np.full(len(places), np.inf)

        def ask(kind: int, whom: Column) -> None:
            points = self._of(family, kind) if len(whom) else None
            if points is not None:
                for start in range(0, len(whom), _AT_ONCE):
                    some = whom[start : start + _AT_ONCE]
                    nbytes[some], farthest[some] = points.bytes_of(traits[some], asked.forms[:, places[some]])

        for kind in np.unique(kinds).tolist():
            ask(kind, np.flatnonzero(kinds == kind))
        ask(_ANY, np.flatnonzero(farthest > OTHER_KIND))
        return nbytes

    def _of(self, family: str, kind: int) -> _FamilyPoints | None:
        key = family, kind
        if key not in self._points:
            alike = self._of_kind(kind)
            workspaces = alike.rows[:, len(CONVOLUTION) + FAMILIES.index(family)]
            has = workspaces >= 0
            enough = has.sum() >= (1 if kind == _ANY else NEIGHBOURS)
            self._points[key] = _FamilyPoints(alike, workspaces, has, family) if enough else None
        return self._points[key]

    def _of_kind(self, kind: int) -> _LayersOfKind:
        if kind not in self._alike:
            recorded = self._alike[_ANY]
            self._alike[kind] = _LayersOfKind(recorded.rows[recorded.kinds == kind], self._size)
        return self._alike[kind]


class _FamilyPoints:
    """Layers recorded for one family, as patterns and rests."""

    def __init__(self, layers: _DescribedLayers, workspaces: Column, has: NDArray[np.bool_], family: str) -> None:
        forms, traits, groups = layers.forms, likeness(layers.traits, family), layers.layers.groups
        if not has.all():
            forms, traits, groups, workspaces = forms[:, has], traits[has], groups[has], workspaces[has]
        self._patterns, self._rests = decode(forms, workspaces, groups)
        self._squares = (traits**2).sum(axis=1)
        self._traits = -2 * traits.T

    def bytes_of(self, traits: Floats, forms: Floats) -> tuple[Floats, Floats]:
        """Of layers with these traits and bytes by every pattern; and how far away the last is that was asked."""
        squared = traits @ self._traits  # of the distances, but for what all points have in common
        squared += self._squares
        count = min(NEIGHBOURS, len(self._rests))
        nearest = np.argpartition(squared, count - 1, axis=1)[:, :count]
        squared = np.take_along_axis(squared, nearest, axis=1) + (traits**2).sum(axis=1)[:, None]
        distance = np.sqrt(np.maximum(squared, 0))
        proposals = forms[self._patterns[nearest], np.arange(len(traits))[:, None]]
        nbytes = _weighted_median(proposals + self._rests[nearest], (distance + _FLOOR) ** -2)
        return nbytes, distance.max(axis=1)


def _weighted_median(values: Floats, weights: Floats) -> Floats:
    """Of each row: the least value that half of the weight lies at or below."""
    order = values.argsort(axis=1)
    below = np.take_along_axis(weights, order, axis=1).cumsum(axis=1)
    chosen = (below < below[:, -1:] / 2).sum(axis=1)
    return np.asarray(values[np.arange(len(values)), order[np.arange(len(values)), chosen]], dtype=np.float64)
