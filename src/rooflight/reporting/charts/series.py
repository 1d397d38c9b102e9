"""Lines that are told apart by colour and shape at once, with one legend that filters by a click."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.axes import PLACE_WIDTH
from rooflight.reporting.charts.theme import COLOURS

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
