"""How long many predictions take beside one trace: gpt2 training on 8 devices at 16 batches, memory included.

usage: predict_speed.py [--profile]     (needs no GPU; a minute)

A trace is `rooflight.estimate` of the same step. Both are timed in processes of their own, as the first thing that is
asked there (importing is not counted: both do it), and once more in one process that has traced the model before and
remembers its shapes; by turns, three times each, and the best of each counts.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import rooflight
from rooflight.prediction.api import predict

MODEL = "gpt2"
DEVICES = ("h200", "h100-sxm", "a100-sxm-80", "v100-sxm2-16", "t4", "l4", "l40s", "rtx-4090")
BATCHES = tuple(range(1, 17))
ROUNDS = 3
LIMIT = 2.0


def traced() -> object:
    return rooflight.estimate(MODEL, batch=BATCHES[-1], step="train")


def predicted() -> object:
    found = predict(MODEL, on=DEVICES, batch=BATCHES, step="train")
    assert len(found) == len(DEVICES) * len(BATCHES)
    return found


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def first_in_a_process(name: str) -> float:
    """Seconds of `traced` or `predicted` where nothing has been asked before."""
    code = f"import predict_speed as asked; print(asked.seconds(asked.{name}))"
    found = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, check=True, capture_output=True)
    return float(found.stdout)


def fresh() -> tuple[float, float]:
    """Best seconds of a trace and of all predictions, each in a process of its own."""
    rounds = [(first_in_a_process("traced"), first_in_a_process("predicted")) for _ in range(ROUNDS)]
    return min(one for one, _ in rounds), min(many for _, many in rounds)


def again() -> tuple[float, float]:
    """The same in this process, where the model has been traced before."""
    traced(), predicted()
    rounds = [(seconds(traced), seconds(predicted)) for _ in range(ROUNDS)]
    return min(one for one, _ in rounds), min(many for _, many in rounds)


def speed() -> str:
    """The result in a few sentences."""
    (trace_s, predict_s), (trace_again_s, predict_again_s) = fresh(), again()
    return (
        f"{MODEL} training, one trace (`rooflight.estimate`) {trace_s:.2f} s; {len(DEVICES)} devices at {len(BATCHES)} "
        f"batches, {len(DEVICES) * len(BATCHES)} predictions with their memory, {predict_s:.2f} s: "
        f"{predict_s / trace_s:.1f} times one trace (the goal is under {LIMIT:g}). Once more in the same process, where "
        f"the model's shapes are remembered: {trace_again_s:.2f} s and {predict_again_s:.2f} s, "
        f"{predict_again_s / trace_again_s:.1f} times. Best of {ROUNDS} (`benchmarks/predict_speed.py`)."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", action="store_true", help="where the time of the predictions goes")
    given = parser.parse_args()
    os.environ["XDG_DATA_HOME"] = tempfile.mkdtemp()  # the calibration that comes along, not this user's
    print(speed())
    if given.profile:
        profiler = cProfile.Profile()
        profiler.runcall(predicted)
        pstats.Stats(profiler).sort_stats("cumulative").print_stats(35)


if __name__ == "__main__":
    main()
