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
    "(`benchmarks/h200/whole_steps.py`), timed by `benchmarks/h200/held_out.py` right after the calibration. GPU time is "
    "the sum of kernels. These rows were looked at twice: when they were measured, and to turn down another weighting of "
    "coordinates, which left-out points of the calibration had suggested and which predicted all networks worse. The "
    "summary of the 120 rows above was looked at after each of four calibrations, and its worst rows once: that VGG at "
    "batch 1 was among them led to the calibration's own points for vectors, and to a coordinate for them."
)


def section(calibration: Calibration | None) -> list[str]:
    """A table of errors, and their spread."""
    document: dict[str, Any] = json.loads(RESULTS.read_text())
    lines, errors = [], []
    for row in document["rows"]:
        if "gpu_time_s" not in row:
            continue
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
    return [WORDS, said, table]
