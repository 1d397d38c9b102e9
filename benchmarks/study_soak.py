"""A study that is killed 100 times at random moments: nothing may be lost, nothing done twice.

usage: study_soak.py [KILLS [SEED]] [--write]     (needs no GPU; about half an hour)

The same as the test with 10 kills (tests/study/test_faults.py), longer: the coordinator, a worker, or all processes at
once get SIGKILL; studies are gone on with until so many kills have hit them, and compared with one that nobody
disturbed. A study that ends before it was killed often enough is followed by another one. `--write` keeps the result
in results/study_soak.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.fixtures.study_kills import Soak, check_nothing_lost_nothing_doubled, killed_study

from rooflight.study.plan import plan_of
from rooflight.study.store import begin
from rooflight.study.work import run_side

RESULT = Path(__file__).parent / "results" / "study_soak.json"
KILLS_A_STUDY = 10
AXES = {"batch": ["1", "2", "3", "5", "8", "13"], "step": ["infer", "train"], "on": ["v100", "a100", "h200"]}
MODELS = ("mnist-cnn", "mnist-cnn-5x5")


def undisturbed(folder: Path) -> list:
    """The same study in this process, side by side and cell by cell."""
    axes = {**AXES, "batch": [int(one) for one in AXES["batch"]]}
    store = begin(folder, plan_of({"grid": {"model": list(MODELS), **axes}}, "the soak"))
    for cell in store.cells:
        for side in store.sides(cell):
            run_side(store, [cell], side)
    return store.rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kills", nargs="?", type=int, default=100)
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="keep the result in results/study_soak.json")
    asked = parser.parse_args()
    line = [",".join(MODELS), *(word for name, values in AXES.items() for word in (f"--{name}", ",".join(values)))]
    began, soak, chance = time.monotonic(), Soak(), random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        rows = undisturbed(Path(folder) / "undisturbed")
        while soak.count < asked.kills:
            place = Path(folder) / f"study-{soak.studies}"
            killed_study(place, line, soak, kills=min(KILLS_A_STUDY, asked.kills - soak.count), chance=chance)
            check_nothing_lost_nothing_doubled(place, rows)
            print(f"{soak.count} kills ({dict(soak.kills)}), {soak.starts} starts, {soak.studies} studies of {len(rows)} cells: "
                  "nothing lost, nothing doubled", flush=True)  # fmt: skip
    if asked.write:
        result = {"made": date.today().isoformat(), "kills": soak.count, "by_victim": dict(soak.kills), "starts": soak.starts,
                  "studies": soak.studies, "cells_a_study": len(rows), "seed": asked.seed,
                  "seconds": round(time.monotonic() - began), "lost": 0, "doubled": 0}  # fmt: skip
        RESULT.parent.mkdir(exist_ok=True)
        RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
