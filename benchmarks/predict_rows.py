"""The 120 measured steps of tests/data/h200_open.jsonl, predicted: what benchmarks/predict.py and the tests judge.

Every row gets rooflight's prediction and, from the same traced step, what PALEO and the plain roofline say.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from time_errors import TimeError, time_figures

import rooflight
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.devices import find
from rooflight.ledger import Ledger
from rooflight.prediction.api import predict
from rooflight.prediction.device_run import device_runs
from rooflight.prediction.paleo import spec_time
from rooflight.prediction.result import Interval, Prediction
from rooflight.prediction.roofline import RooflineTimes, plain_roofline_s
from rooflight.prediction.tiers import predictor
from rooflight.prediction.traces import Traces
from rooflight.step.costed_step import PreparedTrace, Step
from rooflight.trace import TraceOptions

ROOT = Path(__file__).parents[1]
ROWS = ROOT / "tests" / "data" / "h200_open.jsonl"
DEVICE = "h200"
GPU_BOUND = 0.8
"""A row whose GPU is busy for at least this part of the wall time."""
NAMES = {
    "mnist_cnn": ("mnist-cnn", None), "transformer_s128": ("transformer", 128), "gpt2_s128": ("gpt2", 128),
    "gpt2_s1024": ("gpt2", 1024), "distilbert_s128": ("distilbert-mlm", 128),
}  # fmt: skip
"""Name in the rows -> built-in model and its sequence; the others have the same name."""
OPTIMIZERS = {"SGD": "momentum", "AdamW": "adamw", None: None}


def measured_rows(path: Path = ROWS) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines()]
    return [row for row in found if "gpu_seconds" in row]


@dataclass(frozen=True)
class Outcome:
    """One measured step beside what each model of time says. Seconds."""

    row: dict[str, Any]
    prediction: Prediction
    peak_s: float
    """PALEO's time at a PPP of 1."""
    roofline_s: float
    families: dict[str, float]
    """The predicted GPU time by family of tasks."""

    @property
    def name(self) -> str:
        return "{model} {mode} {dtype} b{batch}".format(**self.row)

    @property
    def key(self) -> tuple[Any, ...]:
        return tuple(self.row[name] for name in ("model", "mode", "dtype", "batch"))

    @property
    def gpu_s(self) -> float:
        return float(self.row["gpu_seconds"])

    @property
    def wall_s(self) -> float:
        return float(self.row["seconds"])

    @property
    def gpu_error(self) -> float:
        return self.prediction.gpu_time_s / self.gpu_s - 1

    @property
    def wall_error(self) -> float:
        return self.prediction.time_s / self.wall_s - 1

    @property
    def gpu_bound(self) -> bool:
        return self.gpu_s >= GPU_BOUND * self.wall_s

    @property
    def gpu_in_interval(self) -> bool:
        return within(self.prediction.gpu_time_interval_s, self.gpu_s)

    @property
    def wall_in_interval(self) -> bool:
        return within(self.prediction.time_interval_s, self.wall_s)


def figures() -> dict[str, float]:
    """Return the figures of GPU time, and of wall time where the GPU bounds the step (why not elsewhere: predict.py)."""
    found = outcomes(measured_rows())
    bound = [row for row in found if row.gpu_bound]
    return {
        "predicted": len(found),
        **time_figures(
            "gpu", [_error(row.gpu_s, row.prediction.gpu_time_s, row.prediction.gpu_time_interval_s) for row in found]
        ),
        **time_figures(
            "wall", [_error(row.wall_s, row.prediction.time_s, row.prediction.time_interval_s) for row in bound]
        ),
    }


def _error(measured_s: float, predicted_s: float, interval: Interval) -> TimeError:
    return TimeError.of(measured_s, predicted_s, interval.low, interval.high)


def within(interval: Interval, value: float) -> bool:
    return interval.low <= value <= interval.high


def outcomes(rows: Iterable[dict[str, Any]], calibration: Calibration | None = None) -> list[Outcome]:
    """All rows; batches of the same step are predicted together, as `rooflight predict --batch 1,16,64` does."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        groups[row["model"], row["dtype"], row["mode"], row["optimizer"]].append(row)
    return [outcome for group in groups.values() for outcome in _group(group, calibration)]


def _group(rows: list[dict[str, Any]], calibration: Calibration | None) -> Iterable[Outcome]:
    first = rows[0]
    model, seq = NAMES.get(first["model"], (first["model"], None))
    batches = [row["batch"] for row in rows]
    loss, optimizer = "mse" if first["mode"] == "train" else None, OPTIMIZERS[first["optimizer"]]
    found = predict(model, on=DEVICE, batch=batches, seq=seq, dtype=first["dtype"], step=first["mode"], loss=loss,
                    optimizer=optimizer, advice=False, calibration=calibration)  # fmt: skip
    traces = Traces(model, step=first["mode"], seq=seq, past=None, dtype=first["dtype"], overrides=None,
                    input_shape=None, download=False)  # fmt: skip
    steps, _ = traces.steps(batches, TraceOptions(target="cuda", loss=loss, optimizer=optimizer, on="meta"))
    device = find(DEVICE)
    for row, step in zip(rows, steps, strict=True):
        prediction = found.at(DEVICE, row["batch"])
        ledger = _ledger(step)
        yield Outcome(row, prediction, spec_time(ledger, device, ppp=1.0).peak_time_s, plain_roofline_s(ledger, device),
                      by_family(step, prediction.op_times_s))  # fmt: skip


def _ledger(step: Step) -> Ledger:
    return replace(step.ledger, header=replace(step.ledger.header, batch=step.batch), ops=step.ops_with_cost)


def by_family(step: Step, op_times_s: Sequence[float]) -> dict[str, float]:
    """Seconds of the step's ops by the family of each op's first task."""
    families = family_of_ops(step)
    found: dict[str, float] = defaultdict(float)
    for family, time_s in zip(families, op_times_s, strict=True):
        if family is not None:
            found[family] += time_s
    return dict(found)


def family_of_ops(step: Step) -> list[str | None]:
    first: dict[int, str] = {}
    for task, kind in zip(step.tasks, step.task_kind.tolist(), strict=True):
        first.setdefault(kind, task.family)
    return [first.get(kind) for kind in step.kind_of.tolist()]


def wrong_families(row: dict[str, Any], calibration: Calibration | None = None) -> tuple[str, list[tuple[str, float]]]:
    """Where a recording of the same model, kind of step and precision comes along: its name, and by how much of the
    step's GPU time each family of ops is mispredicted there, the greatest first. Its batch and loss may be others."""
    model, _ = NAMES.get(row["model"], (row["model"], None))
    precision = {"mnist-cnn": {"fp32": "tf32"}}.get(model, {}).get(row["dtype"], row["dtype"])
    name = f"h200/{model}-{row['mode']}-{precision}"
    try:
        ledger = rooflight.load(f"recorded:{name}")
    except rooflight.RooflightError:
        return "", []
    step = PreparedTrace(ledger, None).at(None)
    predicted = device_runs(step, [predictor(find(DEVICE), None, calibration)])[0].times.seconds.tolist()
    times = RooflineTimes.of_measured(ledger)
    families, apart = family_of_ops(step), defaultdict(float)
    for ops, measured_s in times.ops.items():
        family = next((families[op] for op in ops if families[op] is not None), "other")
        apart[family] += sum(predicted[op] for op in ops) - measured_s
    whole = times.gpu_busy_s or sum(times.ops.values())
    found = [(family, difference / whole) for family, difference in apart.items()]
    return f"{name}, batch {ledger.header.batch}", sorted(found, key=lambda one: -abs(one[1]))


@dataclass(frozen=True)
class Spread:
    """Of absolute relative errors."""

    count: int
    mean: float
    median: float
    p90: float
    greatest: float

    @classmethod
    def of(cls, errors: Iterable[float]) -> Spread | None:
        sizes = sorted(abs(error) for error in errors)
        if not sizes:
            return None
        p90 = sizes[math.ceil(0.9 * len(sizes)) - 1]
        return cls(len(sizes), statistics.fmean(sizes), statistics.median(sizes), p90, sizes[-1])
