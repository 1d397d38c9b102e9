"""What all collectors are given, and those of any device: the step's time by the host's clock, with nothing watching,
and its ops by themselves.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from dataclasses import dataclass

from rooflight.measurement.execution.eager import EagerStep
from rooflight.measurement.findings import Findings, Progress, median
from rooflight.measurement.options import MeasureOptions
from rooflight.trace.stage import Recording, StagedStep, WatchedAnotherWay

_WARM_UP = 3


@dataclass(frozen=True)
class CollectorContext:
    """The step that is measured, how it is run, and where collectors leave what they find."""

    stage: StagedStep
    options: MeasureOptions
    execution: EagerStep
    findings: Findings
    progress: Progress


def synchronise(stage: StagedStep) -> None:
    """Wait until the device has done all that was asked of it."""
    if stage.options.on == "cuda":
        import torch

        torch.cuda.synchronize()


def _barrier() -> None:
    """Wait for the other ranks: who is ready first would else count the time in which it waits for them."""
    import torch.distributed as dist

    dist.barrier()


def wall_time(context: CollectorContext) -> None:
    """Seconds of one step, from a still device to a still device. Whatever ends it early, the runs so far count."""
    stage, runs = context.stage, _WARM_UP + context.options.repeat
    times: list[float] = []
    gc.collect()
    try:
        for number in range(runs):
            context.progress("time", number, runs)
            stage.put_choices_back()
            arguments = stage.fresh_arguments()
            if context.options.together:
                _barrier()
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
            how = f"median of {len(times)} plain steps" if len(times) > 1 else "one plain step"
            origin = f"host clock, synchronised before and after: {how}"
            context.findings.step["wall_time_s"] = median(times, origin)


def record_ops(context: CollectorContext, with_memory: Callable[[CollectorContext], Recording]) -> Recording | None:
    """The ops of the step: those that run eagerly with their memory, if that can be; `None` where they cannot be had.

    Whoever makes the ledger says why, if it still fails.
    """
    stage, findings = context.stage, context.findings
    with findings.collecting("memory of every op"):
        context.progress("memory of every op", 1, 2)
        stage.put_back()
        if not context.execution.eager:
            findings.recording = stage.record()
        else:
            try:
                findings.recording = with_memory(context)
            except WatchedAnotherWay:
                findings.recording = with_memory(context)
    with findings.collecting("ops"):
        if findings.recording is None:
            stage.put_back()
            findings.recording = stage.record()
    return findings.recording
