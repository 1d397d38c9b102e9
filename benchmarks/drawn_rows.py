"""Predictions beside the steps that were drawn at random and measured (draw.py, h200/drawn_steps.py)."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from time_errors import TimeError, error_figures, time_figures

import rooflight
from rooflight.errors import RooflightError

RESULTS = Path(__file__).parent / "h200" / "results"
OPEN = RESULTS / "draw_open.json"


@dataclass(frozen=True)
class Judged:
    """One measured step beside its prediction; errors are shares of what was measured."""

    name: str
    gpu: TimeError
    """Of the time of the kernels."""
    wall: TimeError
    host_bound: bool
    allocated: float
    reserved: float


def rows(path: Path = OPEN) -> list[dict[str, Any]]:
    data = path.read_bytes()
    found: list[dict[str, Any]] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)["rows"]
    return found


def judged(measured: Sequence[dict[str, Any]]) -> Iterator[Judged | str]:
    """Every row judged, or why it has no prediction."""
    for row in measured:
        options = {key: row[key] for key in ("batch", "seq", "step", "dtype")}
        try:
            (prediction,) = rooflight.predict(
                row["model"], on="h200", advice=False, find_savings=False, **options
            ).predictions
        except RooflightError as error:
            yield f"{row['model']}: {error}"
            continue
        gpu, wall = prediction.gpu_time_interval_s, prediction.time_interval_s
        yield Judged(
            name=f"{row['model']} {row['step']} {row['dtype']} b{row['batch']}",
            gpu=TimeError.of(row["kernel_time_s"], prediction.gpu_time_s, gpu.low, gpu.high),
            wall=TimeError.of(row["wall_time_s"], prediction.time_s, wall.low, wall.high),
            host_bound=row["gpu_busy_s"] < 0.8 * row["wall_time_s"],
            allocated=prediction.memory.peak_allocated_bytes / row["peak_allocated_bytes"] - 1,
            reserved=prediction.memory.peak_reserved_bytes / row["peak_reserved_bytes"] - 1,
        )


def figures(outcomes: Sequence[Judged | str]) -> dict[str, float]:
    """Return the summary of a half; errors and widths are shares of what was measured."""
    done = [outcome for outcome in outcomes if isinstance(outcome, Judged)]
    return {
        "predicted": len(done),
        **time_figures("gpu", [row.gpu for row in done]),
        **time_figures("wall", [row.wall for row in done if not row.host_bound]),
        **time_figures("wall_host_bound", [row.wall for row in done if row.host_bound]),
        **error_figures("allocated", [row.allocated for row in done], "median", "p90"),
        **error_figures("reserved", [row.reserved for row in done], "median", "p90"),
    }


def open_figures() -> dict[str, float]:
    """Return the figures of the open half."""
    return figures(list(judged(rows())))


def main() -> None:
    """Print every open row, the worst first, and the summary."""
    outcomes = list(judged(rows()))
    for row in sorted(outcomes, key=lambda row: -abs(row.gpu.error) if isinstance(row, Judged) else 0):
        print(
            row
            if isinstance(row, str)
            else f"{row.gpu.error:+7.1%} ±{row.gpu.half_width:5.1%} {'' if row.gpu.inside else 'outside':8}{row.name}"
        )
    for name, value in figures(outcomes).items():
        print(f"{name:22} {value:.4g}")


if __name__ == "__main__":
    main()
