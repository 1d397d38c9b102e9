"""Predicts the measured steps of tests/data/h200_open.jsonl and writes docs/predict-errors.md.

usage: predict.py [--calibration FILE] [--walls FILE] [-o PAGE]     (needs no GPU; about a minute)

Without --calibration it is the H200's that comes with rooflight, whatever this user has calibrated. --walls: what
h200/wall_times.py found. Nothing is fitted to the rows but the one constant that
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import held_out_rows
import numpy as np
from predict_rows import DEVICE, GPU_BOUND, ROOT, Outcome, Spread, measured_rows, outcomes, within, wrong_families
from predict_speed import speed
from time_errors import TimeError, time_figures

from rooflight.hardware.calibration import Calibration, decode
from rooflight.hardware.devices import find
from rooflight.hardware.recorded_tables import FOLDER
from rooflight.prediction.api import predict
from rooflight.prediction.paleo import best_ppp, default_ppp
from rooflight.prediction.result import Prediction

RESULTS = Path(__file__).parent / "h200" / "results"
ESTIMATOR = RESULTS / "runtime_estimator.json"
WALLS, REPLAYED = RESULTS / "wall_times.json", RESULTS / "graph_times.json"
PAGE = ROOT / "docs" / "predict-errors.md"
LARGE = 0.2
"""An error above this is told by name."""
WORST = 10
HOST_GOAL = 0.15
NOT_JUDGED = (
    "Host-bound wall times differ by 21% in the mean (14% in the median, up to 2 times) between two runs of the very "
    "same script on two such machines: how long a host takes for a launch belongs to the machine and the day. These "
    "rows were timed on another machine than the one that was calibrated, so their errors are shown, and not judged. All "
    "but the first of them were also timed in a process in which a profiler had run, which slows every launch after it: "
    "MNIST's inference took 0.256 ms of wall at batch 1, before that, and 0.384 ms at batch 16, after it, with the GPU "
    "busy for 0.05 ms at most."
)
ESTIMATORS = {
    ("operator-level-cost-model", "as_shipped_s"): "RuntimeEstimator, cost model, as shipped",
    ("operator-level-cost-model", "name_mended_s"): "the same, with the H200 in its table (its H100 figures)",
    ("operator-level-cost-model", "mended_s"): "the same, with units, FLOPs and peaks mended too",
    ("operator-level-benchmark", "as_shipped_s"): "RuntimeEstimator, benchmark: runs every op on an H200",
}


# --- models of time, and groups of rows ---


@dataclass(frozen=True)
class Model:
    """A model of time: seconds of the GPU for a row, `None` where it has no answer."""

    title: str
    seconds: Callable[[Outcome], float | None]

    def errors(self, rows: Iterable[Outcome], measured: Callable[[Outcome], float]) -> list[float]:
        found = ((self.seconds(row), measured(row)) for row in rows)
        return [time_s / truth - 1 for time_s, truth in found if time_s is not None]


def models(rows: Sequence[Outcome], estimator: dict[str, Any] | None) -> list[Model]:
    """Rooflight first, then what it is compared with."""
    ppp = default_ppp(find(DEVICE)).value
    best = best_ppp([row.peak_s for row in rows], [row.gpu_s for row in rows])
    found = [
        Model("**rooflight, calibrated**", lambda row: row.prediction.gpu_time_s),
        Model(f"PALEO, PPP {ppp:g} (its default)", lambda row: row.peak_s / ppp),
        Model(f"PALEO, PPP {best:.3f}, fitted on these very rows", lambda row: row.peak_s / best),
        Model("plain roofline, datasheet peaks", lambda row: row.roofline_s),
    ]
    return found + [_estimator(estimator, *column, title) for column, title in ESTIMATORS.items() if estimator]


def _estimator(results: dict[str, Any], how: str, column: str, title: str) -> Model:
    known = {
        (row["model"], row["mode"], row["dtype"], row["batch"]): row.get(column)
        for row in results["rows"] if row["estimator"] == how
    }  # fmt: skip
    return Model(title, lambda row: known.get(row.key))


def groups(rows: Sequence[Outcome]) -> dict[str, list[Outcome]]:
    found = {"all rows": list(rows)}
    for mode in ("infer", "train"):
        found[mode] = [row for row in rows if row.row["mode"] == mode]
    for dtype in ("fp32", "bf16"):
        found[dtype] = [row for row in rows if row.row["dtype"] == dtype]
    for mode in ("infer", "train"):
        for dtype in ("fp32", "bf16"):
            found[f"{mode} {dtype}"] = [row for row in found[mode] if row.row["dtype"] == dtype]
    return found


# --- tables ---


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """In Markdown; the first `words` columns are text, the others numbers."""
    rule = ["---" if place < words else "---:" for place in range(len(heads))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (heads, rule, *rows))


def errors_by_group(rows: Sequence[Outcome], error: Callable[[Outcome], float],
                    covered: Callable[[Outcome], bool]) -> str:  # fmt: skip
    lines = []
    for name, some in groups(rows).items():
        spread = Spread.of(map(error, some))
        if spread is not None:
            signed_mean = sum(map(error, some)) / len(some)
            inside = sum(map(covered, some)) / len(some)
            lines.append([name, str(spread.count), *_cells(spread), signed(signed_mean), f"{inside:.0%}"])
    return table(("rows", "n", "mean", "median", "p90", "max", "signed mean", "in the 90% interval"), lines)


def errors_by_model(rows: Sequence[Outcome], compared: Sequence[Model], measured: Callable[[Outcome], float]) -> str:
    """Every model of time on the same rows, and the mean of each group."""
    parts = ("infer", "train", "fp32", "bf16")
    known = groups(rows)
    lines = []
    for model in compared:
        spread = Spread.of(model.errors(rows, measured))
        if spread is None:
            lines.append([model.title, "0", *["-"] * (4 + len(parts))])
            continue
        means = (Spread.of(model.errors(known[part], measured)) for part in parts)
        lines.append([model.title, str(spread.count), *_cells(spread),
                      *(percent(mean.mean) if mean else "-" for mean in means)])  # fmt: skip
    return table(("model of time", "n", "mean", "median", "p90", "max", *(f"{part}: mean" for part in parts)), lines)


def _cells(spread: Spread) -> list[str]:
    return [percent(value) for value in (spread.mean, spread.median, spread.p90, spread.greatest)]


def every_row(rows: Sequence[Outcome]) -> str:
    lines = []
    for row in rows:
        wall = f"{signed(row.wall_error)}" + ("" if row.gpu_bound else " (host-bound)")
        lines.append([row.name, ms(row.gpu_s), ms(row.prediction.gpu_time_s), signed(row.gpu_error),
                      yes(row.gpu_in_interval), ms(row.wall_s), ms(row.prediction.time_s), wall,
                      yes(row.wall_in_interval)])  # fmt: skip
    heads = ("row", "GPU-busy", "predicted", "error", "in interval", "wall", "predicted", "error", "in interval")
    return table(heads, lines)


def large_errors(rows: Sequence[Outcome], calibration: Calibration | None) -> str:
    found = [row for row in worst(rows) if abs(row.gpu_error) > LARGE]
    if not found:
        return f"No row is off by more than {LARGE:.0%}."
    lines = []
    for row in found:
        where, families = wrong_families(row.row, calibration)
        wrong = ", ".join(f"{family} {signed(part)}" for family, part in families[:3])
        lines.append([row.name, ms(row.gpu_s), ms(row.prediction.gpu_time_s), signed(row.gpu_error),
                      yes(row.gpu_in_interval), _largest(row), f"{wrong} of the step ({where})" if wrong else "-"])  # fmt: skip
    heads = ("row", "GPU-busy", "predicted", "error", "in interval", "families with most of the predicted time",
             "most wrong in a recording of the same model")  # fmt: skip
    return table(heads, lines)


def _largest(row: Outcome) -> str:
    whole = sum(row.families.values()) or 1.0
    ordered = sorted(row.families.items(), key=lambda one: -one[1])[:3]
    return ", ".join(f"{family} {time_s / whole:.0%}" for family, time_s in ordered)


def worst(rows: Sequence[Outcome]) -> list[Outcome]:
    return sorted(rows, key=lambda row: -abs(row.gpu_error))


# --- own wall times ---


@dataclass(frozen=True)
class Wall:
    """A step that was timed beside the networks that say what the host costs, or as a graph."""

    row: dict[str, Any]
    prediction: Prediction
    graphs: bool = False

    @property
    def wall_s(self) -> float:
        return float(self.row.get("wall_s") or self.row["wall_time_s"])

    @property
    def error(self) -> float:
        return self.prediction.time_s / self.wall_s - 1

    @property
    def spread(self) -> float:
        """From the 10th to the 90th percentile of its runs."""
        low, high = np.quantile(self.row.get("runs_s") or [self.wall_s], (0.1, 0.9))
        return float(high - low) / self.wall_s

    @property
    def gpu_s(self) -> float:
        return float(self.row.get("gpu_s") or self.row["gpu_busy_s"])

    @property
    def host_bound(self) -> bool:
        return self.gpu_s < GPU_BOUND * self.wall_s

    @property
    def same(self) -> tuple[Any, ...]:
        """What steps have in common that are compared with one another."""
        case = self.row["case"]
        return case["model"], case["seq"], case["step"]


LLAMA = {"hidden_size": "1024", "intermediate_size": "2816", "num_hidden_layers": "10", "num_attention_heads": "16",
         "num_key_value_heads": "4", "vocab_size": "32000"}  # fmt: skip


def own_walls(results: dict[str, Any], calibration: Calibration, *, graphs: bool = False) -> list[Wall]:
    found = []
    for row in results["rows"]:
        if "error" in row:
            continue
        case = row["case"]
        decoding, overrides = case["step"] == "decode", LLAMA if case["model"] == "hf:llama" else {}
        found.append(Wall(row, predict(
            case["model"], on=DEVICE, batch=case["batch"], seq=None if decoding else case["seq"],
            past=case["seq"] if decoding else None, dtype=case["dtype"], step=case["step"], overrides=overrides,
            loss="mse" if case["step"] == "train" else None, graphs=graphs, advice=False, calibration=calibration)[0],
            graphs))  # fmt: skip
    return found


def pairs(walls: Sequence[Wall]) -> tuple[int, list[str]]:
    """How many pairs of a model's steps that differ in one thing are more than a tenth apart, and those that are
    predicted the other way round."""
    count, wrong = 0, []
    for place, one in enumerate(walls):
        for other in walls[:place]:
            here, there = one.row["case"], other.row["case"]
            apart = max(one.wall_s / other.wall_s, other.wall_s / one.wall_s)
            differs = (
                (here["batch"] != there["batch"]) + (here["dtype"] != there["dtype"]) + (one.graphs != other.graphs)
            )
            if one.same != other.same or differs != 1 or apart < APART:
                continue
            count += 1
            if (one.wall_s > other.wall_s) != (one.prediction.time_s > other.prediction.time_s):
                wrong.append(f"{_name(one)} and {_name(other)}")
    return count, wrong


APART = 1.1


def wall_figures() -> dict[str, float]:
    """Return the figures of steps that were timed in the run that timed the host, and of the order of their pairs."""
    calibration = calibrated(None)[0]
    walls = own_walls(json.loads(WALLS.read_text()), calibration)
    replayed = own_walls(json.loads(REPLAYED.read_text()), calibration, graphs=True)
    count, wrong = pairs([*walls, *replayed])
    sets = {
        "host_bound": [wall for wall in walls if wall.host_bound],
        "gpu_bound": [wall for wall in walls if not wall.host_bound],
        "graphs": replayed,
    }
    found: dict[str, float] = {"pairs": count, "pairs_in_order": count - len(wrong)}
    for name, some in sets.items():
        intervals = ((wall, wall.prediction.time_interval_s) for wall in some)
        errors = [TimeError.of(wall.wall_s, wall.prediction.time_s, one.low, one.high) for wall, one in intervals]
        found |= {f"{name}_steps": len(some), **time_figures(name, errors)}
    return found


def wall_sections(results: dict[str, Any] | None, graphs: dict[str, Any] | None, calibration: Calibration) -> list[str]:
    if results is None or graphs is None:
        return ["Not measured yet: run `benchmarks/h200/wall_times.py` and `graph_times.py`."]
    walls, replayed = own_walls(results, calibration), own_walls(graphs, calibration, graphs=True)
    waiting = [wall for wall in walls if wall.host_bound]
    groups = (("eager, all", walls), ("host-bound", waiting),
              ("of these: inference", [w for w in waiting if w.row["case"]["step"] != "train"]),
              ("of these: training", [w for w in waiting if w.row["case"]["step"] == "train"]),
              ("of these: fp32", [w for w in waiting if w.row["case"]["dtype"] == "fp32"]),
              ("of these: bf16", [w for w in waiting if w.row["case"]["dtype"] == "bf16"]),
              ("GPU-bound", [w for w in walls if not w.host_bound]), ("CUDA graphs", replayed),
              ("eager and graphs", [*walls, *replayed]))  # fmt: skip
    lines = []
    for title, some in groups:
        spread, repeats = Spread.of(wall.error for wall in some), Spread.of(wall.spread for wall in some)
        if spread is not None and repeats is not None:
            inside = sum(within(wall.prediction.time_interval_s, wall.wall_s) for wall in some) / len(some)
            lines.append([title, str(spread.count), *_cells(spread), percent(repeats.mean), percent(repeats.greatest),
                          f"{inside:.0%}"])  # fmt: skip
    heads = ("rows", "n", "mean", "median", "p90", "max", "runs apart: mean", "max", "in the 90% interval")
    fewest = min(len(row["runs_s"]) for row in results["rows"])
    count, wrong = pairs(walls)
    return [
        f"{len(walls)} steps, timed by `benchmarks/h200/wall_times.py` on {results['made']} ({results['device']}, torch "
        f"{results['torch']}, driver {results['driver']}), and between them the small networks that say what ops, launches "
        f"and calls cost the host: the calibration's host costs are fitted to those. No cost is fitted to these steps; but "
        "which classes are told apart, that mixtures count, and how far a cost may be from the usual was chosen while their "
        "errors and their order were looked at, several times. All took turns, "
        f"{fewest} runs each; the median is compared. *Runs apart*: from the 10th to the 90th percentile of a step's runs, "
        "over the median: this host was up to twice as slow from one moment to the next. Steps as CUDA graphs are of "
        "`graph_times.py`, in other processes on that machine; what a graph costs for a kernel and a replay was read off 16 of them, "
        "of ResNet-18, VGG-11 and GoogLeNet. Its training with AdamW is that of a capturable optimizer, which launches more "
        "than the one that is predicted.",
        _goal(Spread.of(wall.error for wall in waiting)),
        f"Of {count} pairs of steps of a model that differ in batch or precision alone and by more than a tenth in time, "
        + (f"{len(wrong)} are predicted the other way round: {'; '.join(wrong)}." if wrong else "all are ordered right."),
        table(heads, lines),
        table(("step", "wall", "runs apart", "predicted", "error", "in interval", "GPU-busy"), map(_wall_cells, walls)),
        table(("step as a CUDA graph", "wall", "predicted", "error", "in interval", "GPU-busy"),
              ([cell for place, cell in enumerate(_wall_cells(wall)) if place != 2] for wall in replayed)),
    ]  # fmt: skip


def _goal(found: Spread | None) -> str:
    if found is None:
        return "No step waited for the host."
    verdict = "is met" if found.mean < HOST_GOAL else "is missed"
    return f"The goal for host-bound steps, a mean under {HOST_GOAL:.0%}, {verdict}: {percent(found.mean)}."


def _name(wall: Wall) -> str:
    case = wall.row["case"]
    length = f" s{case['seq']}" if case["seq"] else ""
    return f"{case['model']}{length} {case['step']} {case['dtype']} b{case['batch']}"


def _wall_cells(wall: Wall) -> list[str]:
    busy = f"{ms(wall.gpu_s)} ({wall.gpu_s / wall.wall_s:.0%})"
    return [_name(wall), ms(wall.wall_s), percent(wall.spread), ms(wall.prediction.time_s), signed(wall.error),
            yes(within(wall.prediction.time_interval_s, wall.wall_s)), busy]  # fmt: skip


# --- the page ---


def page(rows: Sequence[Outcome], made: str, *, estimator: dict[str, Any] | None, calibration: Calibration | None,
         walls: list[str], speed: str) -> str:  # fmt: skip
    compared = models(rows, estimator)
    bound, waiting = [row for row in rows if row.gpu_bound], [row for row in rows if not row.gpu_bound]
    tiers = sorted({row.prediction.tier for row in rows})
    sections = [
        "<!-- Made by `python benchmarks/predict.py`. Do not edit: run it again. -->\n"
        "# How far predictions are off on an H200",
        f"{len(rows)} steps of 12 models, measured on an NVIDIA H200 (`tests/data/h200_open.jsonl`): fp32 (TF32 "
        "convolutions) and bf16, inference at batches 1, 16 and 64, training at 8 and 32 (mean-square loss, SGD with "
        "momentum for vision, AdamW for transformers), eager. "
        f"Predicted by tier: {', '.join(tiers)}. {made}",
        "No constant was fitted to these rows: a calibration holds micro-benchmarks only, and `tests/prediction/test_h200.py` "
        "fails where one of its points is an op, shape, dtype and layout of a built-in model. Errors are relative, predicted over "
        "measured less 1; mean, median, 90th percentile and maximum are of their absolute values. GPU-busy time "
        "repeats within 0.6%, so errors of it are the model's own.",
        "## GPU-busy time",
        errors_by_group(rows, lambda row: row.gpu_error, lambda row: row.gpu_in_interval),
        "## Beside other models of time",
        "GPU-busy time, on the same rows. A PPP that has seen the answers predicts nothing: it is the bound of what "
        "PALEO can do with one constant. " + _estimator_words(estimator),
        errors_by_model(rows, compared, lambda row: row.gpu_s),
        f"## Wall time where the GPU is busy at least {GPU_BOUND:.0%} of it",
        errors_by_group(bound, lambda row: row.wall_error, lambda row: row.wall_in_interval),
        "The other models know no host: their GPU time is taken for the wall time here.",
        errors_by_model(bound, [Model(compared[0].title, lambda row: row.prediction.time_s), *compared[1:]],
                        lambda row: row.wall_s),
        "## Wall time of host-bound rows",
        NOT_JUDGED,
        errors_by_group(waiting, lambda row: row.wall_error, lambda row: row.wall_in_interval),
        "### In the run that timed the host for the calibration",
        *walls,
        "## Models held out",
        *held_out_rows.section(calibration),
        f"## Rows off by more than {LARGE:.0%}",
        "GPU-busy time. Which ops are wrong is not known from a row; where a recording of the same model, kind of step "
        "and precision comes with rooflight, its families of ops are compared, as parts of the recorded GPU time.",
        large_errors(rows, calibration),
        "## The worst rows",
        every_row(worst(rows)[:WORST]),
        "## Every row",
        every_row(rows),
        "## How long predicting takes",
        speed,
    ]  # fmt: skip
    return "\n\n".join(sections) + "\n"


def _estimator_words(results: dict[str, Any] | None) -> str:
    """What must be known of torch's own estimator."""
    if results is None:
        return "torch's RuntimeEstimator: not run yet (`benchmarks/h200/runtime_estimator.py`)."
    header = results["header"]
    costs = [row for row in results["rows"] if row["estimator"] == "operator-level-cost-model"]
    failed = [row for row in costs if row.get("as_shipped_s") is None]
    reasons = sorted({row.get("error", "no answer").splitlines()[0][:120] for row in failed})
    words = (
        f"RuntimeEstimator is torch {header['torch']}'s (`benchmarks/h200/runtime_estimator.py`). It does not know "
        f"the H200 by name; its cost model takes 75% of {_peaks(header)} for multiply-adds and "
        f"{header.get('bandwidth_it_takes', 0):,.0f} GB/s. With the H200 entered in its table its peaks are a thousand "
        "times too high, so only bytes count. Rows that it has no answer for are left out of its figures"
    )
    if failed:
        words += f" ({len(failed)} of {len(costs)} as shipped: " + "; ".join(f"`{text}`" for text in reasons) + ")"
    ended = [row for row in results["rows"] if row["estimator"] == "operator-level-benchmark" and "error" in row]
    if ended:
        words += (
            f". Its benchmark runs ops on numbers of its own making, and ended at {ended[0]['model']}, where they are no "
            "indices of an embedding (a CUDA assertion)"
        )
    stopped = "; ".join(f"{how} stopped {when}" for how, when in header.get("stopped", {}).items())
    return words + "." + (f" {stopped}." if stopped else "")


def _peaks(header: dict[str, Any]) -> str:
    peaks = header.get("peaks_it_takes", {})
    known = [f"{1e3 * peaks[dtype]:.0f} TFLOP/s ({dtype.removeprefix('torch.')})"
             for dtype in ("torch.float32", "torch.bfloat16") if dtype in peaks]  # fmt: skip
    return " and ".join(known) or "peaks that it could not say"


def percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def signed(value: float) -> str:
    return f"{100 * value:+.1f}%".replace("-", "−")


def ms(time_s: float) -> str:
    return f"{1e3 * time_s:,.3f} ms" if time_s < 1e-2 else f"{1e3 * time_s:,.1f} ms"


def yes(value: bool) -> str:
    return "yes" if value else "no"


def calibrated(path: Path | None) -> tuple[Calibration, str]:
    """The calibration, and a line on where it is from."""
    if path is None:
        file: Any = resources.files("rooflight.hardware") / FOLDER / f"{DEVICE}.json.gz"
        content, origin = file.read_bytes(), "the one that comes with rooflight"
    else:
        content, origin = path.read_bytes(), f"`{path.name}`"
    found = decode(content, origin)
    made = (
        f"Calibration: {origin}, made {found.made} in {found.seconds:.0f} s ({found.device}, torch {found.torch}, "
        f"cuDNN {found.cudnn}, driver {found.driver})."
    )
    return found, made


def _read(path: Path) -> dict[str, Any] | None:
    found: dict[str, Any] | None = json.loads(path.read_text()) if path.exists() else None
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibration", type=Path, help="instead of the one that comes with rooflight")
    parser.add_argument("--walls", type=Path, default=WALLS)
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    given = parser.parse_args()
    # A calibration that this user made would be taken before the one that comes along.
    os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()
    found, made = calibrated(given.calibration)
    calibration = None if given.calibration is None else found
    rows = outcomes(measured_rows(), calibration)
    estimator = _read(ESTIMATOR)
    walls = wall_sections(_read(given.walls), _read(REPLAYED), found)
    given.output.write_text(page(rows, made, estimator=estimator, calibration=calibration, walls=walls, speed=speed()))
    print(errors_by_model(rows, models(rows, estimator), lambda row: row.gpu_s))


if __name__ == "__main__":
    main()
