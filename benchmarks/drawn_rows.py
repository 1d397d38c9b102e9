"""Predictions beside the steps that were drawn at random and measured (draw.py, h200/drawn_steps.py)."""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rooflight
from rooflight.errors import RooflightError

RESULTS = Path(__file__).parent / "h200" / "results"
OPEN = RESULTS / "draw_open.json"
MISS = 2 / 0.1
"""What the score of a 90% interval adds for every second outside (Gneiting and Raftery 2007)."""


@dataclass(frozen=True)
class Judged:
    """One measured step beside its prediction; errors and widths are shares of what was measured."""

    name: str
    gpu: float
    """Signed error of the time of the kernels."""
    half_width: float
    inside: bool
    score: float
    """Of the 90% interval: its width, and 20 times what the truth lies outside of it."""
    wall: float
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
        truth, interval = row["kernel_time_s"], prediction.gpu_time_interval_s
        outside = max(0.0, interval.low - truth, truth - interval.high)
        yield Judged(
            name=f"{row['model']} {row['step']} {row['dtype']} b{row['batch']}",
            gpu=prediction.gpu_time_s / truth - 1,
            half_width=(interval.high - interval.low) / 2 / truth,
            inside=not outside,
            score=(interval.high - interval.low + MISS * outside) / truth,
            wall=prediction.time_s / row["wall_time_s"] - 1,
            host_bound=row["gpu_busy_s"] < 0.8 * row["wall_time_s"],
            allocated=prediction.memory.peak_allocated_bytes / row["peak_allocated_bytes"] - 1,
            reserved=prediction.memory.peak_reserved_bytes / row["peak_reserved_bytes"] - 1,
        )


def figures(outcomes: Sequence[Judged | str]) -> dict[str, float]:
    """What the summary of a half says: shares as fractions."""
    done = [outcome for outcome in outcomes if isinstance(outcome, Judged)]
    result: dict[str, float] = {"steps": len(outcomes), "predicted": len(done)}
    errors = {
        "gpu": [row.gpu for row in done],
        "wall": [row.wall for row in done if not row.host_bound],
        "wall_host_bound": [row.wall for row in done if row.host_bound],
        "allocated": [row.allocated for row in done],
        "reserved": [row.reserved for row in done],
    }
    for name, signed in errors.items():
        sizes = np.abs(signed)
        result |= {
            f"{name}_mean": float(sizes.mean()),
            f"{name}_median": float(np.median(sizes)),
            f"{name}_p90": float(np.quantile(sizes, 0.9)),
            f"{name}_worst": float(sizes.max()),
        }
    result["gpu_coverage"] = statistics.mean(row.inside for row in done)
    result["gpu_half_width"] = statistics.median(row.half_width for row in done)
    result["gpu_score"] = statistics.mean(row.score for row in done)
    return result


def main() -> None:
    """Print every open row, the worst first, and the summary."""
    outcomes = list(judged(rows()))
    for row in sorted(outcomes, key=lambda row: -abs(row.gpu) if isinstance(row, Judged) else 0):
        print(
            row
            if isinstance(row, str)
            else f"{row.gpu:+7.1%} ±{row.half_width:5.1%} {'' if row.inside else 'outside':8}{row.name}"
        )
    for name, value in figures(outcomes).items():
        print(f"{name:22} {value:.4g}")


if __name__ == "__main__":
    main()
