"""Lines against a logarithmic axis as one SVG picture: no scripts, colours by class, values where a pointer rests."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

WIDTH, HEIGHT = 480, 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 66, 14, 12, 44
COLOURS = 8
"""Classes c0 to c7: the style sheet of the page gives them their colours."""


@dataclass(frozen=True)
class Line:
    name: str
    points: tuple[tuple[float, float], ...]
    """All above 0."""
    dashed: bool = False
    """Drawn so is what nobody measured."""
    colour: int | None = None
    """Which of them; else by its place."""


@dataclass(frozen=True)
class Chart:
    title: str
    x_name: str
    y_name: str
    lines: tuple[Line, ...]
    write: Callable[[float], str]
    """How values of y are written."""


def drawn(chart: Chart) -> str:
    """The picture and the names of its lines, as a figure."""
    title = html.escape(chart.title)
    keys = "".join(
        f'<li class="{_colour(line, i)}"><svg viewBox="0 0 26 10" aria-hidden="true"><path class="{_style(line)}" '
        f'd="M1 5H25"/></svg>{html.escape(line.name)}</li>'
        for i, line in enumerate(chart.lines)
    )
    picture = (f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}">'
               f"{_axes(chart)}{_lines(chart)}</svg>")  # fmt: skip
    return f'<figure><figcaption>{title}</figcaption>{picture}<ul class="keys">{keys}</ul></figure>'


@dataclass(frozen=True)
class _Scale:
    """From a value to a place, logarithmically."""

    low: float
    high: float
    start: float
    end: float

    def at(self, value: float) -> float:
        part = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return round(self.start + part * (self.end - self.start), 1)


def _scales(chart: Chart) -> tuple[_Scale, _Scale]:
    xs = [x for line in chart.lines for x, _ in line.points]
    ys = [y for line in chart.lines for _, y in line.points]
    # A little room around the lines, and never a scale without extent.
    x_low, x_high = min(xs) / 1.12, max(xs) * 1.12
    y_low, y_high = min(ys) / 1.25, max(ys) * 1.25
    return _Scale(x_low, x_high, _LEFT, WIDTH - _RIGHT), _Scale(y_low, y_high, HEIGHT - _BOTTOM, _TOP)


def _axes(chart: Chart) -> str:
    x_scale, y_scale = _scales(chart)
    left, right, bottom = _LEFT, WIDTH - _RIGHT, HEIGHT - _BOTTOM
    parts = []
    for value in ticks(y_scale.low, y_scale.high):
        y = y_scale.at(value)
        written = html.escape(re.sub(r"\.0+(?=\s|$)", "", chart.write(value)))
        parts.append(f'<path class="grid" d="M{left} {y}H{right}"/>'
                     f'<text class="y" x="{left - 6}" y="{y + 4}">{written}</text>')  # fmt: skip
    for value in _spread(sorted({x for line in chart.lines for x, _ in line.points}), x_scale):
        x = x_scale.at(value)
        parts.append(f'<path class="tick" d="M{x} {bottom}V{bottom + 4}"/>'
                     f'<text class="x" x="{x}" y="{bottom + 17}">{value:,.6g}</text>')  # fmt: skip
    middle = (left + right) / 2
    parts.append(f'<path class="axis" d="M{left} {_TOP}V{bottom}H{right}"/>'
                 f'<text class="x name" x="{middle}" y="{HEIGHT - 8}">{html.escape(chart.x_name)}</text>')  # fmt: skip
    return "".join(parts)


def _lines(chart: Chart) -> str:
    x_scale, y_scale = _scales(chart)
    parts = []
    for i, line in enumerate(chart.lines):
        places = [(x_scale.at(x), y_scale.at(y), x, y) for x, y in sorted(line.points)]
        path = "L".join(f"{x} {y}" for x, y, _, _ in places)
        dots = "".join(
            f'<circle cx="{x}" cy="{y}" r="3"><title>{html.escape(line.name)}, {html.escape(chart.x_name)} {of:,.6g}: '
            f"{html.escape(chart.write(value))}</title></circle>"
            for x, y, of, value in places
        )
        parts.append(f'<g class="{_colour(line, i)}"><path class="{_style(line)}" d="M{path}"/>{dots}</g>')
    return "".join(parts)


def _colour(line: Line, place: int) -> str:
    return f"c{(place if line.colour is None else line.colour) % COLOURS}"


def _style(line: Line) -> str:
    return "line dashed" if line.dashed else "line"


def ticks(low: float, high: float) -> list[float]:
    """Round numbers between two: 1, 2 and 5 of every power of ten, or fewer where they would be too many."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        found = [step * 10.0**power for power in powers for step in steps if low <= step * 10.0**power <= high]
        if len(found) <= 8:
            break
    if len(found) > 8:
        found = found[:: math.ceil(len(found) / 8)]
    inside = (high / low) ** 0.1
    return found if len(found) > 1 else [low * inside, math.sqrt(low * high), high / inside]


def _spread(values: Sequence[float], scale: _Scale) -> list[float]:
    """Those whose labels do not run into each other."""
    kept: list[float] = []
    for value in values:
        if not kept or scale.at(value) - scale.at(kept[-1]) >= 8 * len(f"{value:,.6g}") + 8:
            kept.append(value)
    return kept
