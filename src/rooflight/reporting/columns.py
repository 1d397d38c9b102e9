"""The columns of all tables, by name: what the same thing is called, and how it is written, wherever it stands.

A quantity's column is made from `rooflight.metrics`; here are the words and counts that stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.metrics import METRICS, Metric
from rooflight.reporting.table import Column


def _of(metric: Metric) -> Column:
    word = metric.unit == "word"
    return Column(metric.title, metric.text, right=not word, whole=word, raw=metric.name, about=metric.about)


def _predicted(metric: str, heading: str, raw: str) -> Column:
    """A metric under the name that programs know a prediction's by."""
    return replace(_of(METRICS[metric]), name=heading, raw=raw)


_WORDS = ("device", "tier", "layer", "type", "phase", "op", "what", "evidence", "series")
_COUNTS = {
    "batch": "batch",
    "batch_each": "batch each",
    "global_batch": "global batch",
    "total_batch": "total batch",
    "gpus": "GPUs",
    "nodes": "nodes",
    "calls": "calls",
    "ops": "ops",
    "exactly": "exactly",
    "steps": "steps",
}
CATALOGUE: dict[str, Column] = {
    **{name: _of(metric) for name, metric in METRICS.items()},
    **{name: Column(name, right=False) for name in _WORDS},
    **{name: Column(heading, formatting.exact) for name, heading in _COUNTS.items()},
    "output": Column("output", formatting.shape, about="shape of the first output"),
    "time_s": _predicted("wall_time_s", "time/step", "time_s"),
    "gpu_time_s": _predicted("gpu_busy_s", "GPU-busy", "gpu_time_s"),
    "samples_per_s": _predicted("throughput", "samples/s", "samples_per_s"),
}


def column(
    name: str,
    *,
    heading: str = "",
    optional: int = 0,
    raw: str = "",
    about: str = "",
    write: Callable[[Any], str] | None = None,
) -> Column:
    """A column of the catalogue; `heading` where a table says it shorter, `raw` where files always called it so,
    `write` where the heading has the unit (TFLOP/s), or a sum may be negative."""
    metric = CATALOGUE[name]
    return replace(
        metric,
        name=heading or metric.name,
        optional=optional,
        raw=raw or metric.raw,
        about=about or metric.about,
        write=write or metric.write,
    )
