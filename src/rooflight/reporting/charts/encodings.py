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


def si_axis(title: str, unit: str, **options: Any) -> vl.Spec:
    """An axis of SI values: the prefix goes to the unit. `options`: Vega's, as `values`, where its labels stand."""
    value = f"replace(format(datum.value, '~s'), {_PREFIX_APART}, ' $1{unit}')"
    label = f"datum.value ? {value} : '0 {unit}'"
    return dict(title=title, labelExpr=label, labelOverlap=True, grid=True, **options)


def count_axis(
    name: str, counts: Sequence[int], *, title: str, ticks: Sequence[int], room: float = 1.1, **scale: Any
) -> vl.Spec:
    """A logarithmic axis of whole numbers, from the first to the last of them with a little room around."""
    axis = dict(title=title, values=list(ticks), format=",d", grid=False, labelOverlap=True)
    domain = [counts[0] / room, counts[-1] * room]
    return vl.field(f"{name}:Q", axis=axis, scale=dict(type="log", **scale, domain=domain, nice=False))


PANEL_HEIGHT = 190


def panel(*layers: vl.Drawing, **properties: Any) -> vl.Drawing:
    """One of two that stand side by side."""
    return vl.layer(*layers).properties(width=WIDTH // 2 - 75, height=PANEL_HEIGHT, **properties)


def named_rows(name: str, *, limit: Any, sort: Sequence[str] | None, scale: vl.Spec, **axis: Any) -> vl.Spec:
    """The axis of a chart whose bars lie: a name before each row, and no line."""
    look = dict(domain=False, ticks=False, grid=False, labelLimit=limit, **axis)
    return vl.field(f"{name}:N", sort=None if sort is None else list(sort), title=None, axis=look, scale=scale)


BAR = 12
"""Height of one of several bars that a row has, in pixels."""


def grouped_rows(name: str, bars: int, *, gap: int, limit: Any, sort: Sequence[str] | None, **axis: Any) -> vl.Spec:
    """The same with so many bars in each row, and `gap` pixels between two rows."""
    scale = dict(paddingInner=gap / (gap + BAR * bars), paddingOuter=0.1)
    return named_rows(name, limit=limit, sort=sort, scale=scale, **axis)


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers between two: 1, 2 and 5 of every power of ten, or fewer where they would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [value for power in powers for step in steps if low <= (value := times_ten(step, power)) <= high]
        if len(ticks) <= _MOST_TICKS:
            break
    return ticks[:: math.ceil(len(ticks) / _MOST_TICKS)] if ticks else []


def times_ten(step: int, power: int) -> float:
    """`step` times a power of ten, without the error of 10 to a negative power."""
    return step * 10.0**power if power >= 0 else step / 10.0**-power


def log_scale(values: Iterable[float]) -> tuple[vl.Spec, list[float]]:
    """A logarithmic scale with a little room around the values, and its ticks: at least two of them."""
    positive = [value for value in values if value > 0]
    low, high = min(positive) / 1.25, max(positive) * 1.25
    while len(log_ticks(low, high)) < 2:
        low, high = low / 1.3, high * 1.3
    return dict(type="log", domain=[low, high], nice=False), log_ticks(low, high)


def colours(count: int) -> list[str]:
    """So many colours that are told apart: those of all charts, then darker ones of them, then lighter ones."""
    shades = [
        *COLOURS,
        *(_mixed(colour, 0, 0.45) for colour in COLOURS),
        *(_mixed(colour, 255, 0.5) for colour in COLOURS),
    ]
    return [shades[place % len(shades)] for place in range(count)]


def _mixed(colour: str, ground: int, share: float) -> str:
    parts = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return "#" + "".join(f"{round(part + (ground - part) * share):02x}" for part in parts)


MOST = len(COLOURS)
"""Lines that are told apart by colours that every reader knows; more have shades of them, and other shapes."""
_PANEL = 720
"""Pixels that a chart, or one of two side by side, has in a wide page."""
_SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left")


def _legend(names: Sequence[str]) -> vl.Spec:
    """As many names in a row as there is room for, none of them cut."""
    wide = 6.2 * max(map(len, names), default=0) + 34
    room = f"floor((min({PLACE_WIDTH}, {_PANEL}) - 70) / {wide:.0f})"
    columns = vl.expr(f"max(1, min({len(names)}, {room}))")
    return dict(columns=columns, symbolSize=90, labelLimit=0)


def legend_below(names: Sequence[str], **look: Any) -> vl.Spec:
    return dict(orient="bottom", **_legend(names), **look)


def legend_on_top(names: Sequence[str], **look: Any) -> vl.Spec:
    return dict(orient="top", **_legend(names), **look)


@dataclass(frozen=True)
class Series:
    """What the encodings of all panels of a chart share. `field` holds the names of its lines."""

    field: str
    names: tuple[str, ...]
    picked: vl.Param
    has_legend: bool = True

    @property
    def color(self) -> vl.Spec:
        return self._by_name(colours(len(self.names)))

    @property
    def shape(self) -> vl.Spec:
        """With each round of colours the shapes begin one later: no two lines have both in common."""
        count = len(_SHAPES)
        return self._by_name([_SHAPES[(place + place // MOST) % count] for place in range(len(self.names))])

    def _by_name(self, looks: Sequence[str]) -> vl.Spec:
        return vl.by_word(f"{self.field}:N", dict(zip(self.names, looks, strict=True)), legend=self._legend)

    @property
    def _legend(self) -> vl.Spec | None:
        return legend_on_top(self.names, symbolOpacity=1) if self.has_legend else None

    @property
    def unnamed(self) -> Series:
        """For the other panels of a chart: the legend stands in the panel that has the selection, or it hears no
        clicks."""
        return replace(self, has_legend=False)

    def faint(self, opacity: float = 1.0) -> vl.Spec:
        """Lines that were not picked in the legend step back."""
        return vl.either(self.picked, opacity, opacity * 0.1)

    def line(self, view: vl.Drawing, **channels: Any) -> vl.Drawing:
        return view.mark("line", strokeWidth=1.8).encode(**channels, color=self.color, opacity=self.faint())

    def points(self, view: vl.Drawing, look: vl.Spec, **channels: Any) -> vl.Drawing:
        points = view.mark("point", **look).encode(**channels, color=self.color, shape=self.shape)
        return points.encode(opacity=self.faint())


def series(field: str, names: Sequence[str], *, chart: str) -> Series:
    """`chart`: its name, so that the selections of a page are apart."""
    picked = vl.picked(f"{chart}_{field}", fields=[field], bind="legend")
    return Series(field, tuple(names), picked)
