"""Fits polynomials to the sums of the traces, verifies them at other points, and finds out where they hold."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from rooflight.estimation.symbolic.polynomial import Point, Polynomial, SamplingGrid, through
from rooflight.estimation.symbolic.samples import Key, Samples
from rooflight.ledger import Op

_NAMED = 3
"""Ops that are named as the cause of something."""


@dataclass(frozen=True)
class FitCondition:
    """Where a polynomial holds, in words and as a test. The ops that set the condition are its cause."""

    text: str
    cause: str = ""
    least_batch: int = 1
    divisor: int = 1
    """Sequences must be a multiple of it."""
    room: Polynomial | None = None
    """Must not be negative."""
    excluded: Point | None = None

    def admits(self, point: Point) -> bool:
        batch, sequence = point
        return (
            batch >= self.least_batch
            and (sequence or 0) % self.divisor == 0
            and (self.room is None or self.room.at(*point) >= 0)
            and point != self.excluded
        )

    def __str__(self) -> str:
        return self.text + (f" ({self.cause})" if self.cause else "")


@dataclass(frozen=True)
class PolynomialFit:
    """One quantity of one row: its polynomial, verified; or `None` and the reason."""

    polynomial: Polynomial | None
    reason: str = ""
    holds: tuple[FitCondition, ...] = ()
    """The conditions it was found to need, such as "S a multiple of 16"; empty: it held at every point tried."""

    def admits(self, point: Point) -> bool:
        """May the polynomial be evaluated there? A sequence of 1 is never claimed: it folds dimensions away."""
        longer = point[1] is None or point[1] > 1
        return self.polynomial is not None and longer and all(condition.admits(point) for condition in self.holds)

    def __str__(self) -> str:
        return self.reason if self.polynomial is None else str(self.polynomial)


@dataclass(frozen=True)
class PolynomialFits:
    """Every fit by its key, the points at which all of them were verified, and the widest grid they needed."""

    fits: dict[Key, PolynomialFit]
    verified: tuple[Point, ...]
    grid: SamplingGrid
    check: Point


def point_text(point: Point) -> str:
    return f"B = {point[0]}" + (f", S = {point[1]}" if point[1] is not None else "")


def fit_all(samples: Samples, also: Sequence[Point]) -> PolynomialFits:
    """PolynomialFit every sum that is not zero everywhere."""
    grid, check = samples.grid, samples.check
    keys = dict.fromkeys(key for point in (*grid.points, check) for key in samples.sums(point))
    fitted = _fitted(samples, keys, grid, check)
    fits: dict[Key, PolynomialFit] = {}
    if missed := [key for key in keys if key not in fitted]:
        # Higher powers, for the sums that B¹ and S² could not make.
        if all(samples.has(point) for point in (samples.wide_check, *samples.wide_grid.points)):
            grid, check = samples.wide_grid, samples.wide_check
        fitted |= _fitted(samples, missed, grid, check)
        reasons = {key: _reason(samples, key, grid, check) for key in missed if key not in fitted}
        fits |= {key: PolynomialFit(None, reason) for key, reason in reasons.items()}
    fits |= {key: PolynomialFit(polynomial) for key, (_, polynomial) in fitted.items()}
    verified = []
    for point in dict.fromkeys([check, *_probes(samples, also)]):
        wrong = [key for key in fitted if not _holds(samples, fitted[key][1], key, point)]
        if not wrong:
            verified.append(point)
            continue
        for key in wrong:
            # What an earlier condition explains is not said again.
            if fits[key].admits(point):
                conditions = _conditions(samples, key, *fitted[key], point)
                fits[key] = replace(fits[key], holds=(*fits[key].holds, *conditions))
    return PolynomialFits({key: fits[key] for key in keys}, tuple(verified), grid, check)


def _fitted(
    samples: Samples, keys: Iterable[Key], grid: SamplingGrid, check: Point
) -> dict[Key, tuple[SamplingGrid, Polynomial]]:
    """Polynomials through the grid, of the sums whose polynomial meets the check as well."""
    polynomials = {key: through(grid, [samples.sums(point)[key] for point in grid.points]) for key in keys}
    return {
        key: (grid, polynomial) for key, polynomial in polynomials.items() if _holds(samples, polynomial, key, check)
    }


def _reason(samples: Samples, key: Key, grid: SamplingGrid, check: Point) -> str:
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


def _conditions(
    samples: Samples, key: Key, grid: SamplingGrid, polynomial: Polynomial, point: Point
) -> list[FitCondition]:
    """Under which conditions a polynomial that misses a point still holds."""

    def cause(place: Point) -> str:
        return ", ".join(responsible(samples, key, grid, place))

    batch, sequence = point
    conditions = []
    single: Point = (1, samples.step)
    if batch == 1 and not _holds(samples, polynomial, key, single):
        conditions.append(FitCondition("B ≥ 2", cause(single), least_batch=2))
    if samples.step is not None and sequence is not None and sequence % samples.step:
        odd: Point = (samples.grid.batches[-1], samples.off_step())
        if not _holds(samples, polynomial, key, odd):
            divisor = _divisor(samples, key, polynomial, samples.step)
            conditions.append(FitCondition(f"S a multiple of {divisor}", cause(odd), divisor=divisor))
    return conditions or [FitCondition(f"not at {point_text(point)}", cause(point), excluded=point)]


def _divisor(samples: Samples, key: Key, polynomial: Polynomial, step: int) -> int:
    """The smallest power of two whose multiples will do."""
    divisor = step
    while divisor > 2:
        # step + divisor/2 is a multiple of divisor/2 and of no larger power of two.
        point: Point = (samples.grid.batches[-1], step + divisor // 2)
        if not _holds(samples, polynomial, key, point):
            break
        divisor //= 2
    return divisor


def responsible(samples: Samples, key: Key, grid: SamplingGrid, point: Point) -> list[str]:
    """The ops of a row whose own polynomial misses a point, or that run only at some of the points."""
    path, phase, quantity = key
    if phase == "model":
        return []
    tables = [samples.ops(place, path, phase) for place in (*grid.points, point)]
    names: dict[str, None] = {}
    for op_key in dict.fromkeys(op_key for table in tables for op_key in table):
        ops = [table.get(op_key) for table in tables]
        sample = next(op for op in ops if op is not None)
        if sample.name in names:
            continue
        values = [_value(op, quantity) for op in ops]
        if through(grid, values[:-1]).at(*point) != values[-1]:
            names[sample.name] = None
    first, rest = list(names)[:_NAMED], len(names) - _NAMED
    return first if rest <= 0 else [*first, f"{rest} more"]


def _value(op: Op | None, quantity: str) -> int:
    if op is None or op.cost is None:
        return 0
    if quantity == "bytes":
        return (op.cost.bytes_read or 0) + (op.cost.bytes_written or 0)
    return getattr(op.cost, quantity) or 0
