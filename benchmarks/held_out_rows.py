"""The section of docs/predict-errors.md on models that prediction was not developed on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from predict_rows import Spread

from rooflight.hardware.calibration import Calibration
from rooflight.prediction.api import predict

RESULTS = Path(__file__).parent / "h200" / "results" / "held_out.json"
WORDS = (
    "Models that are neither built in nor among those whose ops were looked at one by one while the model of time was made "
    "(`benchmarks/h200/whole_steps.py`), timed by `benchmarks/h200/held_out.py`. GPU time is the sum of kernels. The "
    "summary of the 120 rows above was looked at after each of six calibrations, and its worst rows once: that VGG at "
    "batch 1 was among them led to the calibration's own points for vectors, and to a coordinate for them; that all came "
    "out 5% too long led to looking for the like among left-out points of the calibration, and to more points of whole "
    "tiles. On 2026-11-17, when points and coordinates were added, the summaries of all these rows were looked at after "
    "each of eight changes; weights of coordinates, and what a kernel's code costs, were chosen by the steps of "
    "whole_steps.py. Later that day four steps of kin of theirs (RegNet, Swin) were looked at op by op, which led to "
    "points of wide groups and of norms; the summary was looked at after each addition of points. Last, ways of grouped "
    "convolutions (decision 36): all about them was chosen by left-out points; the summary was looked at eight times."
)
LATER = (
    "**Never looked at before.** Timed after the last calibration, in the same run. As they came: mean 8.2%, median 4.6%, "
    "largest 42.8%. One mend since is owed to them, and to the transformer's rows above (120 rows: 6.5% before): vit_l_32's "
    "inference in bf16 came out 40% too long, and torch's source says that its fused attention layers read q, k and v as "
    "views of their product, without a copy that was counted."
)
FIRST = (
    "**Looked at before.** The first ten models, timed in an earlier run and looked at twice: when they were measured, "
    "and to turn down a weighting of coordinates that left-out points of the calibration had suggested and that predicted "
    "all networks worse."
)
_FIRST_COUNT = 29
"""Rows of the results that are of the first ten models, in their order."""


def section(calibration: Calibration | None) -> list[str]:
    """Tables of errors, and their spread."""
    rows = [row for row in json.loads(RESULTS.read_text())["rows"] if "gpu_time_s" in row]
    return [WORDS, LATER, *_table(rows[_FIRST_COUNT:], calibration), FIRST, *_table(rows[:_FIRST_COUNT], calibration)]


def _table(rows: list[dict[str, Any]], calibration: Calibration | None) -> list[str]:
    lines, errors = [], []
    for row in rows:
        training = row["step"] == "train"
        found = predict(row["model"], overrides=row["set"], seq=row["seq"], batch=row["batch"], dtype=row["dtype"],
                        step=row["step"], loss="mse" if training else None, advice=False,
                        calibration=calibration)[0]  # fmt: skip
        error = found.gpu_time_s / row["gpu_time_s"] - 1
        errors.append(error)
        lines.append((f"{row['model']} {row['step']} {row['dtype']} b{row['batch']}", f"{1e3 * row['gpu_time_s']:.3f} ms",
                      f"{1e3 * found.gpu_time_s:.3f} ms", f"{error:+.1%}".replace("-", "−")))  # fmt: skip
    spread = Spread.of(errors)
    assert spread is not None
    said = (
        f"{spread.count} steps: mean {spread.mean:.1%}, median {spread.median:.1%}, 90th percentile {spread.p90:.1%}, "
        f"largest {spread.greatest:.1%}."
    )
    table = "\n".join(
        "| " + " | ".join(cells) + " |"
        for cells in (("step", "GPU time", "predicted", "error"), ("---", "---:", "---:", "---:"), *lines)
    )
    return [said, table]
