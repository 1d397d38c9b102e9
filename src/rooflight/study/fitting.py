"""The form of a curve against the batch: a few forms, least squares of relative errors, and how well they hold.

Relative errors, because a step of 0.2 ms and one of 200 ms are measured equally well in percent. A form is kept only
where the data tells it from a simpler one; how far the points lie off it is always part of the result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Literal

import msgspec
from msgspec.structs import replace

Form = Literal["constant", "proportional", "linear", "flat, then proportional", "power"]
Points = Sequence[tuple[int, int | float]]
LEAST_POINTS = 3
"""Two points lie on any line: they say nothing of its form."""
_STUDENT = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""Of Student's t, 95% on both sides, for 1, 2, 3, ... degrees of freedom; beyond ten the last is near enough."""
_FINEST = 1e-6
"""Relative errors under this are the rounding of the numbers, not knowledge."""
_DECIDEDLY = 0.5
"""Another form must be twice as near to replace a line, ..."""
_OFF = 0.01
"""... and the line must be off by so much."""
_LEAST_POWER = 0.25
"""A curve that grows more slowly is nearly flat, and points are rarely good enough to say more of it."""
_WELL = 0.15
"""With errors above this no form describes the points."""
_SURE = 4.0
"""A knee that is known to less than this factor either way is not told."""


class CurveFit(msgspec.Struct, frozen=True, kw_only=True):
    """`a + b x`, with `power` `b x^power`, or flat at `a` and then `b x`."""

    form: Form
    a: float
    b: float
    power: float = 1.0
    exact: bool = False
    """Every point lies on it, in whole numbers."""
    error: float
    """Relative, root mean square over the points, corrected for what was fitted."""
    worst: float
    """The largest relative distance of a point."""
    points: int
    ratio_deviation: float | None = None
    """Standard deviation of ln(a/b)."""

    def at(self, x: float) -> float:
        if self.form == "power":
            return float(self.b * x**self.power)
        if self.form == "flat, then proportional":
            return max(self.a, self.b * x)
        return self.a + self.b * x

    @property
    def holds(self) -> bool:
        return self.error <= _WELL


class Knee(msgspec.Struct, frozen=True, kw_only=True):
    """Where what grows with the batch becomes as large as what does not."""

    batch: float
    low: float
    high: float
    """Between these in 95 of 100 cases, if the form is right."""


def fit(points: Points) -> CurveFit | str:
    """The form of a curve, or why none is told."""
    ordered = sorted(dict(points).items())
    if len(ordered) < LEAST_POINTS:
        return f"{len(ordered)} batch size{'s' if len(ordered) != 1 else ''}: a form needs {LEAST_POINTS}"
    if any(y <= 0 or not math.isfinite(y) or x <= 0 for x, y in ordered):
        return "values that are not above 0"
    exact = _exact(ordered)
    if exact is not None:
        return exact
    best = _simplest(ordered)
    others = [candidate for candidate in (_flat_then_proportional(ordered), _power(ordered)) if candidate is not None]
    for other in sorted(others, key=lambda candidate: candidate.error):
        if best.error > _OFF and other.error < _DECIDEDLY * best.error:
            return other
    return best


def knee(curve: CurveFit, points: Points) -> Knee | str:
    """Where a curve leaves its flat part, or why that is not told."""
    batches = [x for x, _ in points]
    smallest, largest = min(batches), max(batches)
    if not curve.holds:
        return f"no form fits well enough: points lie up to {curve.worst:.0%} off"
    if curve.form == "constant":
        return f"flat up to batch {largest}: the knee lies beyond"
    if curve.form == "power":
        return "no flat part: it grows as a power of the batch"
    if curve.form == "proportional" or curve.a <= 0:
        return f"no flat part: it grows with the batch from batch {smallest} on"
    if curve.b <= 0:
        return "it does not grow with the batch"
    at = curve.a / curve.b
    if at > largest:
        return f"flat part up to batch {largest}: the knee lies beyond"
    if at < smallest:
        return f"the knee lies below batch {smallest}"
    spread = _student(curve.points - 2) * (curve.ratio_deviation or 0.0)
    if spread > math.log(_SURE):
        return f"not certain: near batch {at:.0f}, but the points allow others"
    return Knee(batch=at, low=at * math.exp(-spread), high=at * math.exp(spread))


def _exact(points: Points) -> CurveFit | None:
    """A line on which every point lies, in whole numbers."""
    if not all(isinstance(y, int) for _, y in points):
        return None
    (x0, y0), (x1, y1) = points[0], points[-1]
    slope = Fraction(int(y1) - int(y0), x1 - x0)
    start = y0 - slope * x0
    if any(start + slope * x != y for x, y in points):
        return None
    form: Form = "constant" if slope == 0 else "proportional" if start == 0 else "linear"
    line = CurveFit(form=form, a=float(start), b=float(slope), error=0.0, worst=0.0, points=len(points))
    return replace(line, exact=True, ratio_deviation=0.0)


def _simplest(points: Points) -> CurveFit:
    """A line, or less where its other part cannot be told from nothing."""
    line, deviation_a, deviation_b = _linear(points)
    allowed = 1.5 * line.error + 0.002
    student = _student(len(points) - 2)
    constant = _curve(points, "constant", _mean([float(y) for _, y in points])[0], 0.0)
    proportional = _curve(points, "proportional", 0.0, _mean([y / x for x, y in points])[0])
    for simpler, value, deviation in ((constant, line.b, deviation_b), (proportional, line.a, deviation_a)):
        if abs(value) <= student * deviation and simpler.error <= allowed:
            return simpler
    return line


def _linear(points: Points) -> tuple[CurveFit, float, float]:
    # Minimise the sum of w (a + b x - y)^2 with w = 1 / y^2, about the weighted middle, which loses no digits.
    # Values and batches are scaled to about 1 first.
    x_scale, y_scale = points[-1][0], math.exp(sum(math.log(y) for _, y in points) / len(points))
    scaled = [(x / x_scale, y / y_scale) for x, y in points]
    weights = [1 / y**2 for _, y in scaled]
    weight = math.fsum(weights)
    x_middle = math.fsum(w * x for w, (x, _) in zip(weights, scaled, strict=True)) / weight
    y_middle = math.fsum(w * y for w, (_, y) in zip(weights, scaled, strict=True)) / weight
    spread = math.fsum(w * (x - x_middle) ** 2 for w, (x, _) in zip(weights, scaled, strict=True))
    b = math.fsum(w * (x - x_middle) * (y - y_middle) for w, (x, y) in zip(weights, scaled, strict=True)) / spread
    a = y_middle - b * x_middle
    line = _curve(points, "linear", a * y_scale, b * y_scale / x_scale)
    noise = max(line.error, _FINEST) ** 2
    var_a, var_b, cov = noise * (1 / weight + x_middle**2 / spread), noise / spread, -noise * x_middle / spread
    if a and b:
        ratio = var_a / a**2 + var_b / b**2 - 2 * cov / (a * b)
        line = replace(line, ratio_deviation=math.sqrt(max(ratio, 0.0)))
    return line, math.sqrt(var_a) * y_scale, math.sqrt(var_b) * y_scale / x_scale


def _mean(values: Sequence[float]) -> tuple[float, float]:
    """The m that minimises the sum of (m / v - 1)^2, and that of the squares of 1 / v."""
    squares = math.fsum(1 / value**2 for value in values)
    return math.fsum(1 / value for value in values) / squares, squares


def _flat_then_proportional(points: Points) -> CurveFit | None:
    """The later of two that run side by side: a host that needs its time whatever the batch, and a device."""
    best: CurveFit | None = None
    for split in range(2, len(points) - 1):
        flat, grown = [float(y) for _, y in points[:split]], [y / x for x, y in points[split:]]
        (a, squares_a), (b, squares_b) = _mean(flat), _mean(grown)
        curve = _curve(points, "flat, then proportional", a, b)
        if best is None or curve.error < best.error:
            noise = max(curve.error, _FINEST) ** 2
            deviation = math.sqrt(noise / (squares_a * a**2) + noise / (squares_b * b**2))
            best = replace(curve, ratio_deviation=deviation)
    return best


def _power(points: Points) -> CurveFit | None:
    """Where there are points enough to tell a bend from a bad point, and more than next to no growth."""
    if len(points) <= LEAST_POINTS:
        return None
    logs = [(math.log(x), math.log(y)) for x, y in points]
    middle_x, middle_y = (math.fsum(point[i] for point in logs) / len(logs) for i in (0, 1))
    spread = math.fsum((x - middle_x) ** 2 for x, _ in logs)
    power = math.fsum((x - middle_x) * (y - middle_y) for x, y in logs) / spread
    if power < _LEAST_POWER:
        return None
    b = math.exp(middle_y - power * middle_x)
    return _curve(points, "power", 0.0, b, power=power)


def _curve(points: Points, form: Form, a: float, b: float, *, power: float = 1.0) -> CurveFit:
    """With how far the points lie off it."""
    curve = CurveFit(form=form, a=a, b=b, power=power, error=0.0, worst=0.0, points=len(points))
    off = [curve.at(x) / y - 1 for x, y in points]
    fitted = 1 if form in ("constant", "proportional") else 2
    error = math.sqrt(math.fsum(distance**2 for distance in off) / (len(off) - fitted))
    return replace(curve, error=error, worst=max(map(abs, off)))


def _student(freedom: int) -> float:
    return _STUDENT[min(max(freedom, 1), len(_STUDENT)) - 1]
