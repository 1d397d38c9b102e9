"""Fits polynomials to the sums of the traces, verifies them at other points, and finds out where they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rooflight.estimate.symbolic_polynomial import Grid, Point, Polynomial, through
from rooflight.estimate.symbolic_samples import TOTAL, Key, Samples
from rooflight.ledger import Op


@dataclass(frozen=True)
class Fit:
    """One quantity of one row: its polynomial, verified; or `None` and the reason."""

    polynomial: Polynomial | None
    reason: str = ""
    holds: tuple[str, ...] = ()
    """The conditions it was found to need, such as "S a multiple of 16"; empty: it held at every point tried."""

    def __str__(self) -> str:
        return self.reason if self.polynomial is None else str(self.polynomial)


@dataclass(frozen=True)
class Fits:
    """Every fit by its key, and the points at which all of them were verified."""

    fits: dict[Key, Fit]
    verified: tuple[Point, ...]


def point_text(point: Point) -> str:
    return f"B = {point[0]}" + (f", S = {point[1]}" if point[1] is not None else "")


def fit_all(samples: Samples, also: Sequence[Point]) -> Fits:
    """Fit every sum that is not zero everywhere."""
    grid, check = samples.grid, samples.check
    keys = dict.fromkeys(key for point in (*grid.points, check) for key in samples.sums(point))
    fitted: dict[Key, tuple[Grid, Polynomial]] = {}
    for key in keys:
        polynomial = through(grid, [samples.sums(point)[key] for point in grid.points])
        if polynomial.at(*check) == samples.sums(check)[key]:
            fitted[key] = grid, polynomial
    missed = [key for key in keys if key not in fitted]
    fits = {key: Fit(polynomial) for key, (_, polynomial) in fitted.items()}
    if missed:
        fits |= _second_attempt(samples, missed, fitted)
    verified = [check]
    for point in _probes(samples, also):
        wrong = [key for key in fitted if not _holds(samples, fitted[key][1], key, point)]
        if not wrong:
            verified.append(point)
            continue
        conditions = _Conditions(samples, point)
        for key in wrong:
            fits[key] = _narrowed(fits[key], conditions.of(key, *fitted[key]), point)
    return Fits({key: fits[key] for key in keys}, tuple(dict.fromkeys(verified)))


def _second_attempt(
    samples: Samples, missed: Iterable[Key], fitted: dict[Key, tuple[Grid, Polynomial]]
) -> dict[Key, Fit]:
    """Higher powers, for the sums that B¹ and S² could not make. What fits is added to `fitted`."""
    grid, check = samples.wide_grid, samples.wide_check
    found: dict[Key, Fit] = {}
    possible = all(samples.has(point) for point in (check, *grid.points))
    if not possible:
        grid, check = samples.grid, samples.check
    for key in missed:
        polynomial = through(grid, [samples.sums(point)[key] for point in grid.points])
        traced = samples.sums(check)[key]
        if polynomial.at(*check) == traced:
            fitted[key] = grid, polynomial
            found[key] = Fit(polynomial)
        else:
            found[key] = Fit(None, _reason(samples, key, grid, check))
    return found


def _reason(samples: Samples, key: Key, grid: Grid, check: Point) -> str:
    highest = f"B^{len(grid.batches) - 1}" + (f" and S^{len(grid.sequences) - 1}" if grid.sequences else "")
    names = responsible(samples, key, grid, check)
    cause = f": {', '.join(names)}" if names else ""
    return f"no polynomial up to {highest}, it misses the trace at {point_text(check)}{cause}"


def _probes(samples: Samples, also: Sequence[Point]) -> list[Point]:
    """A batch of 1 with an odd sequence, both at once since mostly both are well; then what the user asks for."""
    odd: Point = (1, samples.off_step())
    wanted = [(batch, sequence if samples.step is not None else None) for batch, sequence in also]
    return [point for point in dict.fromkeys([odd, *wanted]) if samples.has(point)]


def _holds(samples: Samples, polynomial: Polynomial, key: Key, point: Point) -> bool:
    return polynomial.at(*point) == samples.sums(point)[key]


def _narrowed(fit: Fit, conditions: tuple[str, ...], point: Point) -> Fit:
    """A fit with the conditions that explain why it misses a point; what earlier ones explain is not said again."""
    batch, sequence = point
    known = any(text.startswith("B ≥ 2") for text in fit.holds) and batch == 1
    known = known or any(_excludes(text, sequence) for text in fit.holds)
    return fit if known else replace(fit, holds=tuple(dict.fromkeys((*fit.holds, *conditions))))


def _excludes(condition: str, sequence: int | None) -> bool:
    words = condition.split()
    return condition.startswith("S a multiple of") and sequence is not None and sequence % int(words[4].rstrip(":")) != 0


class _Conditions:
    """Finds out under which conditions a polynomial that misses a point still holds."""

    def __init__(self, samples: Samples, point: Point) -> None:
        self._samples = samples
        self._point = point

    def of(self, key: Key, grid: Grid, polynomial: Polynomial) -> tuple[str, ...]:
        samples, (batch, sequence) = self._samples, self._point
        found = []
        single: Point = (1, None if samples.step is None else samples.step)
        if batch == 1 and not _holds(samples, polynomial, key, single):
            found.append("B ≥ 2" + self._cause(key, grid, single))
        if samples.step is not None and sequence is not None and sequence % samples.step:
            odd: Point = (grid.batches[-1], samples.off_step())
            if not _holds(samples, polynomial, key, odd):
                multiple = self._multiple(key, polynomial, samples.step)
                found.append(f"S a multiple of {multiple}" + self._cause(key, grid, odd))
        return tuple(found) or (f"not at {point_text(self._point)}" + self._cause(key, grid, self._point),)

    def _multiple(self, key: Key, polynomial: Polynomial, step: int) -> int:
        """The smallest power of two whose multiples will do."""
        divisor = step
        while divisor > 2:
            # step + divisor/2 is a multiple of divisor/2 and of nothing larger.
            point: Point = (self._samples.grid.batches[-1], step + divisor // 2)
            if not _holds(self._samples, polynomial, key, point):
                break
            divisor //= 2
        return divisor

    def _cause(self, key: Key, grid: Grid, point: Point) -> str:
        names = responsible(self._samples, key, grid, point)
        return f": {', '.join(names)}" if names else ""


def responsible(samples: Samples, key: Key, grid: Grid, point: Point, *, limit: int = 3) -> list[str]:
    """The ops of a row whose own polynomial misses a point, or that run only at some of the points."""
    path, phase, quantity = key
    if phase == "model":
        return []
    tables = [samples.ops(place) for place in (*grid.points, point)]
    names: dict[str, None] = {}
    for op_key in dict.fromkeys(op_key for table in tables for op_key in table):
        ops = [table.get(op_key) for table in tables]
        sample = next(op for op in ops if op is not None)
        if sample.name in names or sample.phase != phase or path not in (sample.module, TOTAL):
            continue
        values = [_value(op, quantity) for op in ops]
        if through(grid, values[:-1]).at(*point) != values[-1]:
            names[sample.name] = None
    found = list(names)
    return found if len(found) <= limit else [*found[:limit], f"{len(found) - limit} more"]


def _value(op: Op | None, quantity: str) -> int:
    if op is None or op.cost is None:
        return 0
    if quantity == "bytes":
        return (op.cost.bytes_read or 0) + (op.cost.bytes_written or 0)
    return getattr(op.cost, quantity) or 0
