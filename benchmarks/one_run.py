"""How far one run of somebody's own model carries: a calibration made from it predicts other models.

usage: one_run.py [--published FOLDER]      (needs no GPU; prints Markdown, which docs/calibrating.md quotes)

Two experiments, both with times that were really measured:

1. Steps recorded on an H200 (`recorded:h200/...`). Of the H200 there is a full calibration, so it is set aside: the
   times to correct are those of the baseline, which knows the data sheet, tiles and waves and nothing that was timed.
   One recorded step then corrects them, and every recorded step of another model in the same precision is predicted:
   like steps are of networks of the same kind (convolutions, or attention).
2. With FOLDER (NeuSight's public single ops, as for published_calibrations.py): of each GPU, the single ops nearest to
   those of one model's step stand for a profile of it, written as a table and read by `calibrate --from`; the published
   steps of all other models are predicted. The steps only judge (benchmarks/held_out.toml): none of their times is in a
   calibration.
"""

from __future__ import annotations

import argparse
import csv
import json
import statistics
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from judged_steps import NEUSIGHT, device_named
from predict_published import SHORT
from published_calibrations import Timed, neusight
from published_steps import traced

from rooflight import recordings
from rooflight.calibration.recorded_points import timed_tasks
from rooflight.files import load
from rooflight.hardware.calibration import Calibration
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find
from rooflight.ledger import Ledger
from rooflight.ops.kernel_task import FAMILIES, Task, rows_of
from rooflight.prediction.calibrated.baseline import baseline_seconds
from rooflight.prediction.calibrated.corrections import Corrections, PointsOf
from rooflight.prediction.calibrated.features import features
from rooflight.prediction.device_run import device_runs, gap_of
from rooflight.prediction.recorded_calibration import calibration_from
from rooflight.prediction.tiers import Predictor, corrected, predictor, speed_of
from rooflight.step.cache_reuse import Array
from rooflight.step.costed_step import PreparedTrace

MICRO = {
    "Tesla V100-PCIE-32GB": "v100-pcie-32", "NVIDIA A100-PCIE-40GB": "a100-pcie-40", "Tesla T4": "t4",
    "Tesla P100-PCIE-16GB": "p100-pcie-16", "Tesla P4": "p4",
}  # fmt: skip
_NEAR = 2.0
"""Doublings of sizes between an op of a step and the single op that stands for it, at most."""


# --- recordings of the H200 ---


def baseline_of(tasks: Sequence[Task], device: Device) -> Array:
    """Seconds by data sheet, tiles and waves alone."""
    seconds = np.zeros(len(tasks))
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for place, task in enumerate(tasks):
        groups[task.family, task.precision].append(place)
    for (family, precision), places in groups.items():
        numbers = rows_of([tasks[place] for place in places], np.float64)
        seconds[places] = baseline_seconds(family, precision, numbers, speed_of(device))
    return seconds


@cache
def recorded_works(name: str) -> tuple[list[Task], Array]:
    works, _ = timed_tasks(load(f"recorded:{name}"), name=name)
    return [work.task for work in works], np.array([work.seconds for work in works])


def model_of(name: str) -> str:
    return name.removeprefix("h200/").partition("-infer")[0].partition("-train")[0]


def h200_recordings() -> list[str]:
    eager = [name for name in recordings.names() if not name.endswith(("-compiled", "-graph"))]
    return [name for name in eager if model_of(name) != "mnist-cnn"]  # whose kernels are all at the floor


def kind_of(name: str) -> str:
    return "convolutions" if model_of(name) in ("resnet50", "vgg19") else "attention"


def warm_and_cold(tasks: Sequence[Task], device: Device) -> tuple[Array, Array]:
    """The data sheet does not tell them apart."""
    seconds = baseline_of(tasks, device)
    return seconds, seconds


def runs_of(names: Sequence[str]) -> Iterable[tuple[str, ...]]:
    """Each alone, and training steps of one network of each kind together."""
    yield from ((name,) for name in names)
    for precision in ("fp32", "bf16"):
        for pair in (("resnet50", "gpt2"), ("vgg19", "transformer")):
            yield tuple(f"h200/{model}-train-{precision}" for model in pair)


HOWS = ("sheet", "run", "full", "both")


def recorded_experiment() -> Iterable[str]:
    device, names = find("h200"), h200_recordings()
    full = predictor(device)
    yield f"{len(names)} recorded steps of {len({model_of(name) for name in names})} models; GPU time, all ops summed."
    yield ""
    each = "data sheet | with the run | full calibration | full, with the run"
    yield f"| one run of | points | like steps | {each} | other steps | {each} |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|"
    sums: dict[bool, dict[tuple[bool, str], list[float]]] = {True: defaultdict(list), False: defaultdict(list)}
    for runs in runs_of(names):
        calibration = calibration_from([f"recorded:{run}" for run in runs]).calibration
        corrections = Corrections((PointsOf(calibration, device),), warm_and_cold)
        both = corrected(device, calibration, "one run", published=False)
        kinds, models = {kind_of(run) for run in runs}, {model_of(run) for run in runs}
        errors: dict[tuple[bool, str], list[float]] = defaultdict(list)
        for other in names:
            if model_of(other) in models or other.rpartition("-")[2] != runs[0].rpartition("-")[2]:
                continue
            tasks, seconds = recorded_works(other)
            base = baseline_of(tasks, device)
            predicted = (
                base, base * corrections.of(tasks).ratio, full.task_times(tasks).warm_s, both.task_times(tasks).warm_s,
            )  # fmt: skip
            for how, taken in zip(HOWS, predicted, strict=True):
                errors[kind_of(other) in kinds, how].append(float(taken.sum() / seconds.sum()) - 1)
        for key, values in errors.items():
            sums[len(runs) == 1][key] += values
        count = sum(len(group.rows) for group in calibration.points)
        yield f"| {' and '.join(run.removeprefix('h200/') for run in runs)} | {count} | {_both(errors)} |"
    yield f"| **all single runs** | | {_both(sums[True])} |"
    yield f"| **all pairs** | | {_both(sums[False])} |"


def _both(errors: dict[tuple[bool, str], list[float]]) -> str:
    """Steps of models of the same kind, then of the other."""
    cells = []
    for like in (True, False):
        cells += [str(len(errors[like, "run"])), *(_mean(errors[like, how]) for how in HOWS)]
    return " | ".join(cells)


# --- NeuSight's single ops and steps ---


def nearest(tasks: Iterable[Task], rows: Sequence[Timed]) -> list[Timed]:
    """The single ops that were timed nearest to these."""
    by_family: dict[tuple[str, str], list[Timed]] = defaultdict(list)
    for row in rows:
        by_family[row.task.family, row.task.precision].append(row)
    places = {
        kind: features(*kind, rows_of([row.task for row in some], np.float64)) for kind, some in by_family.items()
    }
    chosen: dict[int, Timed] = {}
    for task in dict.fromkeys(tasks):
        kind = task.family, task.precision
        if kind not in places:
            continue
        away = np.abs(places[kind] - features(*kind, rows_of([task], np.float64))).sum(axis=1)
        best = int(away.argmin())
        if away[best] <= _NEAR:
            chosen[id(by_family[kind][best])] = by_family[kind][best]
    return list(chosen.values())


def as_table(rows: Sequence[Timed], path: Path) -> None:
    """As somebody would write it who has the times: families by their numbers."""
    columns = sorted({name for row in rows for name in FAMILIES[row.task.family]})
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["op", "dtype", *columns, "time_us"])
        for row in rows:
            numbers = dict(zip(FAMILIES[row.task.family], row.task.numbers, strict=True))
            cells = [numbers.get(name, "") for name in columns]
            writer.writerow([row.task.family, row.task.precision, *cells, f"{row.seconds * 1e6:.6g}"])


def calibration_of(rows: Sequence[Timed], device: Device) -> Calibration:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.csv"
        as_table(rows, path)
        made = calibration_from(path, on=device).calibration
    # They were timed one by one, over and over, which a power limit may hold back.
    alone = tuple(msgspec.structs.replace(group, in_steps=False) for group in made.points)
    return msgspec.structs.replace(made, points=alone)


def step_seconds(ledger: Ledger, by: Predictor) -> float:
    (run,) = device_runs(PreparedTrace(ledger, None).at(None), [by])
    return run.gpu_s + gap_of(run.predictor, graphs=False) * float(run.times.kernels.sum())


def published_experiment(folder: Path) -> Iterable[str]:
    data = json.loads(NEUSIGHT.read_text())
    yield "| GPU | one run of | points | steps of other models | transferred | with the run | all single ops |"
    yield "|---|---|---|---|---|---|---|"
    for name, file in MICRO.items():
        device = device_named(name)
        steps = list(_steps(data, name))
        single = list(neusight(file)(folder))
        without, everything = predictor(device, "transferred"), predictor(device, "published")
        off = {
            how: [step_seconds(ledger, by) / row["time_s"] - 1 for row, ledger in steps]
            for how, by in (("transferred", without), ("all", everything))
        }
        sums: dict[str, list[float]] = defaultdict(list)
        for model in dict.fromkeys(row["model"] for row, _ in steps):
            runs = [ledger for row, ledger in steps if row["model"] == model]
            rows = nearest(PreparedTrace(runs[0], None).at(None).tasks, single)
            by = corrected(device, calibration_of(rows, device), "one run", published=False)
            others = [place for place, (row, _) in enumerate(steps) if row["model"] != model]
            errors = {how: [values[place] for place in others] for how, values in off.items()}
            errors["run"] = [step_seconds(steps[place][1], by) / steps[place][0]["time_s"] - 1 for place in others]
            for how, values in errors.items():
                sums[how] += values
            shown = [_mean(errors[how]) for how in ("transferred", "run", "all")]
            yield f"| {device.name} | {SHORT[model]} | {len(rows)} | {len(others)} | {' | '.join(shown)} |"
        shown = [f"**{_mean(sums[how])}**" for how in ("transferred", "run", "all")]
        yield f"| **{device.name}** | | | {len(sums['run'])} | {' | '.join(shown)} |"


def _steps(data: dict[str, object], device: str) -> Iterable[tuple[dict[str, object], Ledger]]:
    for row in data["rows"]:
        known = data["models"][row["model"]]
        known = known.get(row["step"], known)
        if row["device"] == device and row["timed"] in ("infer", "train") and "why_not" not in known:
            yield row, traced(known["spec"], tuple(known["set"].items()), row["batch"], row["seq"], row["step"])


def _mean(errors: Sequence[float]) -> str:
    """Of the absolute errors, and in brackets with their signs."""
    return f"{statistics.fmean(map(abs, errors)):.1%} ({statistics.fmean(errors):+.1%})" if errors else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--published", type=Path, help="folder of the public tables")
    given = parser.parse_args()
    experiments: list[Callable[[], Iterable[str]]] = [recorded_experiment]
    if given.published is not None:
        experiments.append(lambda: published_experiment(given.published))
    for experiment in experiments:
        for line in experiment():
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
