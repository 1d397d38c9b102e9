"""Axes that are labelled as people write quantities (`20 ms`, `1.5 GB`), and the round numbers of logarithmic ones."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rooflight.reporting.charts import vega_lite as vl
from rooflight.reporting.charts.chart import WIDTH

_PREFIX_APART = r"regexp('([a-zA-Zµ]?)$')"
_MOST_TICKS = 7
PLACE_WIDTH = f"(containerSize()[0] || {WIDTH})"
"""The expression for the width of a chart's place in its page, in pixels; in a picture that of all pictures."""
_NARROW = 560
"""A phone's page is narrower than that."""


def on_phone(narrow: float, wide: float) -> vl.Spec:
    """One number for a phone, another for everything else."""
    return vl.expr(f"{PLACE_WIDTH} < {_NARROW} ? {narrow} : {wide}")


def si_axis(title: str | None, unit: str, *, values: Iterable[float] | None = None, ticks: int | None = None,
            grid: bool = True) -> vl.Spec:  # fmt: skip
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
