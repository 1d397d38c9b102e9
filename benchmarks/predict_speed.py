"""How long many predictions take beside one trace: gpt2 training on 8 devices at 16 batches.

usage: predict_speed.py [--profile]     (needs no GPU; half a minute)

Both run in one process, once to warm up and then by turns, three times each; the best of each counts. A trace is
`rooflight.estimate` of the same step.
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Callable

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


def measured() -> tuple[float, float]:
    """Best seconds of a trace and of all predictions."""
    traced(), predicted()
    rounds = [(seconds(traced), seconds(predicted)) for _ in range(ROUNDS)]
    return min(one for one, _ in rounds), min(many for _, many in rounds)


def speed() -> str:
    """The result in a sentence."""
    trace_s, predict_s = measured()
    return (
        f"{MODEL} training, one trace (`rooflight.estimate`) {trace_s:.2f} s; {len(DEVICES)} devices at {len(BATCHES)} "
        f"batches, {len(DEVICES) * len(BATCHES)} predictions, {predict_s:.2f} s: {predict_s / trace_s:.1f} times one "
        f"trace (the goal is under {LIMIT:g}). Best of {ROUNDS}, in one process (`benchmarks/predict_speed.py`)."
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
