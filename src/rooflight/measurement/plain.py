"""The step by itself: its time by the host's clock, with nothing watching, and its ops."""

from __future__ import annotations

import gc
import time

from rooflight.measurement.findings import Findings, Progress, median
from rooflight.trace.stage import Recording, Stage

_WARM_UP = 3


def synchronise(stage: Stage) -> None:
    """Wait until the device has done all that was asked of it."""
    if stage.options.on == "cuda":
        import torch

        torch.cuda.synchronize()


def wall_time(stage: Stage, repeat: int, findings: Findings, progress: Progress) -> None:
    """Seconds of one step, from a still device to a still device. Whatever ends it early, the runs so far count."""
    times: list[float] = []
    gc.collect()
    try:
        for number in range(_WARM_UP + repeat):
            progress("time", number, _WARM_UP + repeat)
            stage.put_choices_back()
            arguments = stage.fresh_arguments()
            synchronise(stage)
            start = time.perf_counter()
            output = stage.run(arguments)
            synchronise(stage)
            end = time.perf_counter()
            del output, arguments
            if number >= _WARM_UP:
                times.append(end - start)
    finally:
        if times:
            runs = f"median of {len(times)} plain steps" if len(times) > 1 else "one plain step"
            findings.step["wall_time_s"] = median(times, f"host clock, synchronised before and after: {runs}")


def only_ops(stage: Stage) -> Recording:
    """The ops by themselves, where nothing could be said of their memory."""
    stage.put_back()
    return stage.record()
