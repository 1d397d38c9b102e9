"""What a study costs: 16 batch sizes beside one, and 1,000 estimated and predicted cells.

usage: study.py [--write]     (needs no GPU; about five minutes on two cores)

Every study is a `rooflight study` of its own, started from nothing into an empty folder, with all that it writes. The
ratio is also given for the work alone, in a process that has imported everything and estimated the step before: by
turns, and the best of each counts. `--write` keeps the numbers in results/study.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROUNDS = 5
SIXTEEN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
ONE = (64,)
STEPS = (("resnet50", "infer"), ("resnet50", "train"), ("gpt2", "infer"), ("gpt2", "train"), ("mnist-cnn", "train"))
MODELS = (
    "mnist-cnn",
    "alexnet",
    "vgg16",
    "resnet18",
    "resnet50",
    "googlenet",
    "vit-b-16",
    "distilbert",
    "gpt2",
    "transformer",
)
BATCHES = (1, 2, 4, 8, 16, 32, 48, 64, 96, 128)
DEVICES = ("k80", "p100-sxm2", "v100", "t4", "a100", "a10", "l4", "h100", "h200", "b200")
RESULT = Path(__file__).parent / "results" / "study.json"


def whole_study(*arguments: str) -> tuple[float, int]:
    """Seconds of `rooflight study`, and how many cells are done."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "s"
        line = [sys.executable, "-m", "rooflight", "study", *arguments, "-o", str(place), "--quiet", "--no-measure"]
        start = time.perf_counter()
        subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - start
        rows = json.loads((place / "index.json").read_bytes())["rows"]
        return seconds, sum(row["state"] == "done" for row in rows)


def estimated(model: str, step: str, batches: tuple[int, ...]) -> float:
    """Seconds of the work alone: tracing, filling in, writing ledgers and journal."""
    from rooflight.study.plan import plan_of
    from rooflight.study.store import begin
    from rooflight.study.work import run_side

    with tempfile.TemporaryDirectory() as folder:
        plan = plan_of({"grid": {"model": model, "step": step, "batch": list(batches)}}, "benchmark")
        store = begin(Path(folder) / "s", plan)
        start = time.perf_counter()
        run_side(store, store.cells, "estimated")
        seconds = time.perf_counter() - start
        assert all(row.state == "done" for row in store.rows)
        store.close()
        return seconds


def joined(values: tuple[int, ...]) -> str:
    return ",".join(map(str, values))


def ratios() -> list[dict[str, object]]:
    import torch

    torch.set_num_threads(1)
    found = []
    for model, step in STEPS:
        estimated(model, step, ONE)
        rounds = [(estimated(model, step, ONE), estimated(model, step, SIXTEEN)) for _ in range(ROUNDS)]
        whole = [(whole_study(model, "--step", step, "--batch", joined(ONE))[0],
                  whole_study(model, "--step", step, "--batch", joined(SIXTEEN))[0]) for _ in range(ROUNDS)]  # fmt: skip
        row = {"model": model, "step": step, "one_s": min(one for one, _ in whole), "sixteen_s": min(many for _, many in whole),
               "one_work_s": min(one for one, _ in rounds), "sixteen_work_s": min(many for _, many in rounds)}  # fmt: skip
        found.append(row)
        print(f"{model} {step}: a study of 1 batch {row['one_s']:.2f} s, of 16 {row['sixteen_s']:.2f} s, "
              f"{row['sixteen_s'] / row['one_s']:.2f} times; work alone {row['one_work_s']:.3f} s, "
              f"{row['sixteen_work_s']:.3f} s, {row['sixteen_work_s'] / row['one_work_s']:.2f} times")  # fmt: skip
    return found


def thousand() -> list[dict[str, object]]:
    found = []
    for step in ("infer", "train"):
        seconds, done = whole_study(
            ",".join(MODELS), "--step", step, "--batch", joined(BATCHES), "--on", ",".join(DEVICES)
        )
        found.append({"step": step, "cells": done, "seconds": seconds})
        print(
            f"{done:,} cells of {len(MODELS)} models, {len(BATCHES)} batches, {len(DEVICES)} devices, {step}: {seconds:.1f} s"
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the numbers in results/study.json")
    asked = parser.parse_args()
    cores = len(os.sched_getaffinity(0))
    load = os.getloadavg()[0]
    print(f"{cores} cores, load {load:.1f} before")
    result = {
        "made": date.today().isoformat(),
        "cores": cores,
        "load_before": load,
        "thousand": thousand(),
        "ratios": ratios(),
    }
    if asked.write:
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
