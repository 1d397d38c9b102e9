"""Errors of predicted times and of their intervals, as the figures that benchmarks/ratchet.toml holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

PROMISED = 0.9
"""The share of measured times that an interval should hold."""
MISS = 2 / (1 - PROMISED)
"""What the interval score adds for every second outside of a 90% interval (Gneiting and Raftery 2007)."""


@dataclass(frozen=True)
class TimeError:
    """A predicted time and its 90% interval against the measured time; all are shares of the measured time."""

    error: float
    """Above 0: the prediction is too long."""
    half_width: float
    outside: float
    """The distance from the measured time to the interval; 0 inside of it."""

    @classmethod
    def of(cls, measured_s: float, predicted_s: float, low_s: float, high_s: float) -> TimeError:
        outside_s = max(0.0, measured_s - high_s, low_s - measured_s)
        return cls(predicted_s / measured_s - 1, (high_s - low_s) / 2 / measured_s, outside_s / measured_s)

    @property
    def inside(self) -> bool:
        return not self.outside

    @property
    def score(self) -> float:
        """The interval score: the width of the interval, and 20 times the distance outside of it."""
        return 2 * self.half_width + MISS * self.outside


STATISTICS: dict[str, Callable[[np.ndarray], float]] = {
    "mean": np.mean, "median": np.median, "p90": lambda sizes: np.quantile(sizes, 0.9), "worst": np.max,
}  # fmt: skip


def error_figures(name: str, errors: Iterable[float], *statistics: str) -> dict[str, float]:
    """Return statistics of the absolute errors, such as `gpu_mean`."""
    sizes = np.abs(list(errors))
    return {f"{name}_{statistic}": float(STATISTICS[statistic](sizes)) for statistic in statistics}


def time_figures(name: str, rows: Sequence[TimeError]) -> dict[str, float]:
    """Return the errors' figures, and of the intervals: coverage, median half-width and mean interval score."""
    return error_figures(name, [row.error for row in rows], "mean", "p90") | {
        f"{name}_coverage": fmean(row.inside for row in rows),
        f"{name}_half_width": median(row.half_width for row in rows),
        f"{name}_score": fmean(row.score for row in rows),
    }
