"""What charts share: axes that are labelled as people write quantities (`20 ms`, `1.5 GB`), the round numbers of
logarithmic ones, and lines that are told apart by colour and shape at once, with one legend that filters by a click."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import COLOURS, WIDTH

_PREFIX_APART = r"regexp('([a-zA-Zµ]?)$')"
_MOST_TICKS = 7
PLACE_WIDTH = f"(containerSize()[0] || {WIDTH})"
"""The expression for the width of a chart's place in its page, in pixels; in a picture that of all pictures."""
_NARROW = 560
"""A phone's page is narrower than that."""


def on_phone(narrow: float, wide: float) -> vl.Spec:
    """One number for a phone, another for everything else."""
    return vl.expr(f"{PLACE_WIDTH} < {_NARROW} ? {narrow} : {wide}")


def si_axis(
    title: str | None, unit: str, *, values: Iterable[float] | None = None, ticks: int | None = None, grid: bool = True
) -> vl.Spec:
    """An axis of SI values: the prefix goes to the unit. `values`: where its labels stand, else where Vega likes."""
    given: dict[str, Any] = {} if values is None else {"values": list(values)}
    if ticks is not None:
        given["tickCount"] = ticks
    value = f"replace(format(datum.value, '~s'), {_PREFIX_APART}, ' $1{unit}')"
    return dict(title=title, labelExpr=f"datum.value ? {value} : '0 {unit}'", labelOverlap=True, grid=grid, **given)


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two: 1, 2 and 5 of every power of ten, or fewer where they would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    found: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [_rounded(step, power) for power in powers for step in steps]
        found = [value for value in found if low <= value <= high]
        if len(found) <= _MOST_TICKS:
            break
    return found[:: math.ceil(len(found) / _MOST_TICKS)] if found else []


def _rounded(step: int, power: int) -> float:
    """Without the error of 10 to a negative power."""
    return step * 10.0**power if power >= 0 else step / 10.0**-power


def log_scale(values: Iterable[float]) -> tuple[vl.Spec, list[float]]:
    """A logarithmic scale with a little room around the values, and its ticks: at least two of them."""
    known = [value for value in values if value > 0]
    low, high = min(known) / 1.25, max(known) * 1.25
    while len(log_ticks(low, high)) < 2:
        low, high = low / 1.3, high * 1.3
    return dict(type="log", domain=[low, high], nice=False), log_ticks(low, high)


MOST = len(COLOURS)
"""More lines than that cannot be told apart."""
_PANEL = 720
"""Pixels that a chart, or one of two side by side, has in a wide page."""
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


@dataclass(frozen=True)
class Series:
    """What the encodings of all panels of a chart share. `field` holds the names of its lines."""

    field: str
    names: tuple[str, ...]
    picked: vl.Param
    has_legend: bool = True

    @property
    def color(self) -> vl.Spec:
        scale = dict(domain=list(self.names), range=list(COLOURS[: len(self.names)]))
        return vl.field(f"{self.field}:N", title=None, scale=scale, legend=self._legend)

    @property
    def shape(self) -> vl.Spec:
        scale = dict(domain=list(self.names), range=list(_SHAPES[: len(self.names)]))
        return vl.field(f"{self.field}:N", title=None, scale=scale, legend=self._legend)

    @property
    def _legend(self) -> vl.Spec | None:
        if not self.has_legend:
            return None
        wide = 5.6 * max(map(len, self.names), default=0) + 30
        room = f"floor((min({PLACE_WIDTH}, {_PANEL}) - 70) / {wide:.0f})"
        columns = vl.expr(f"max(1, min({len(self.names)}, {room}))")
        return dict(orient="top", columns=columns, symbolSize=90, symbolOpacity=1)

    @property
    def unnamed(self) -> Series:
        """For the other panels of a chart: the legend stands in the panel that has the selection, or it hears no
        clicks."""
        return replace(self, has_legend=False)

    def faint(self, opacity: float = 1.0) -> vl.Spec:
        """Lines that were not picked in the legend step back."""
        return vl.either(self.picked, opacity, opacity * 0.1)


def series(field: str, names: Sequence[str], *, chart: str) -> Series:
    """`chart`: its name, so that the selections of a page are apart."""
    picked = vl.picked(f"{chart}_{field}", fields=[field], bind="legend")
    return Series(field, tuple(names[:MOST]), picked)
