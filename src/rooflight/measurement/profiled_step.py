"""A step for another profiler to look at: warmed up, then run once with the profiler switched on by cudaProfilerStart.

Nsight Compute is told to wait for that switch (`--profile-from-start off`), and finds each op in an NVTX range of its
own, `rooflight:INDEX`, on the thread that launches its kernels.
"""

from __future__ import annotations

import torch

from rooflight.errors import CannotMeasure
from rooflight.models.workload import Workload
from rooflight.trace.options import TraceOptions
from rooflight.trace.stage import staged

RANGE = "rooflight:"


def run_profiled_step(workload: Workload, options: TraceOptions, *, only: str | None) -> None:
    """Run the step with every op in its range, or with the profiler on for the op `only` alone."""
    if options.on != "cuda":
        raise CannotMeasure("an outer profiler is for a step on a GPU: there is none here")
    from rooflight.measurement.counters.ncu import find_op

    with staged(workload, options) as stage:
        stage.keep()
        stage.run()
        stage.put_back()
        ops = stage.record().ops  # also shows how this model can be watched, before the profiler sees anything
        stage.put_back()
        observer = _Switch(find_op(ops, only).index) if only is not None else _Ranges()
        torch.cuda.synchronize()
        if only is None:
            torch.cuda.profiler.start()
        try:
            stage.record(observer)
            torch.cuda.synchronize()
        finally:
            torch.cuda.profiler.stop()


class _Ranges:
    def before(self, index: int) -> None:
        torch.cuda.nvtx.range_push(f"{RANGE}{index}")

    def after(self, index: int) -> None:
        torch.cuda.nvtx.range_pop()


class _Switch:
    def __init__(self, only: int) -> None:
        self._only = only

    def before(self, index: int) -> None:
        if index == self._only:
            torch.cuda.synchronize()
            torch.cuda.profiler.start()

    def after(self, index: int) -> None:
        if index == self._only:
            torch.cuda.synchronize()
            torch.cuda.profiler.stop()
