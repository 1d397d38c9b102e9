"""Decode steps and their attention layers, measured on an H200 (h200/decode.py), beside their predictions."""

from __future__ import annotations

import json
from pathlib import Path

from time_errors import error_figures

import rooflight
from rooflight.hardware.devices import find
from rooflight.ops.kernel_task import attention_task
from rooflight.prediction.tiers import predictor

RESULTS = Path(__file__).parent / "h200" / "results" / "decode.json"
DEVICE = "h200"
KERNELS = {"bf16": "cudnn", "fp32": "efficient"}


def figures() -> dict[str, float]:
    """Return the errors of attention to a cache: single layers of one query, and the attention of whole steps."""
    measured = json.loads(RESULTS.read_text())
    layers = []
    for row in measured["layers"]:
        batch, heads, heads_kv, queries, keys, size, precision = row["case"]
        if queries != 1:
            continue
        task = attention_task(
            KERNELS[precision], precision, "forward", (batch, heads, heads_kv, queries, keys, size, 0, 0)
        )
        layers.append(float(predictor(find(DEVICE)).task_seconds([task])[0]) / row["gpu_time_s"] - 1)
    steps = []
    for row in measured["steps"]:
        model, batch, past, dtype = row["case"]
        longer = {"max_position_embeddings": str(past + 1)} if past > 8191 else None  # than Llama 3 was trained for
        (prediction,) = rooflight.predict(model, batch=batch, past=past, dtype=dtype, step="decode", on=DEVICE,
                                          overrides=longer, advice=False, find_savings=False).predictions  # fmt: skip
        predicted_s = next(op.time_s for op in prediction.ops if "attention" in op.name)
        measured_s = next(seconds for name, seconds in row["by_op"].items() if "attention" in name)
        steps.append(predicted_s / measured_s - 1)
    counts = {"layers": len(layers), "steps": len(steps)}
    return counts | error_figures("layer", layers, "mean", "p90") | error_figures("step", steps, "mean", "p90")


if __name__ == "__main__":
    for name, value in figures().items():
        print(f"{name:16} {value:.4g}")
