"""The collectors of a step on the CPU: time, host time of every op, memory, oneDNN's primitives, FLOP counters."""

from __future__ import annotations

import time
from typing import Any

from rooflight import units
from rooflight.errors import CannotMeasure
from rooflight.ledger import Value
from rooflight.measurement.counters.op_counters import check_repeated
from rooflight.measurement.cpu import memory, onednn, perf_events
from rooflight.measurement.execution.eager import EagerStep
from rooflight.measurement.findings import Findings, Progress, median
from rooflight.measurement.gpu import memory as gpu_memory
from rooflight.measurement.options import MeasureOptions
from rooflight.measurement.plain import only_ops, wall_time
from rooflight.measurement.ranks import refuse_collectives
from rooflight.trace.stage import Recording, Stage, WatchedAnotherWay

_ALLOCATIONS = "torch's profiler: CPU allocations"


def collect(stage: Stage, options: MeasureOptions, execution: EagerStep, findings: Findings,
            progress: Progress) -> None:  # fmt: skip
    with findings.collecting("memory of the process"):
        progress("memory", 0, 2)
        findings.step.update(_resident(stage))
    with findings.collecting("time"):
        wall_time(stage, options.repeat, findings, progress)
    with findings.collecting("memory of every op"):
        progress("memory of every op", 1, 2)
        findings.recording = _record(stage, execution, findings)
    with findings.collecting("ops"):
        findings.recording = findings.recording or only_ops(stage)
    recording = findings.recording
    if recording is None:
        return  # whoever makes the ledger says why, if it still fails
    if not execution.eager:
        findings.notes.append("a compiled step on the CPU has no rows for its ops: only the whole step is measured")
        return
    with findings.collecting("time of every op"):
        _host_times(stage, recording, options, findings, progress)
    with findings.collecting("oneDNN primitives"):
        _primitives(stage, recording, findings, progress)
    if options.counters != "none":
        with findings.collecting("FLOP counters"):
            refuse_collectives(recording.ops)
            _flops(stage, recording, findings, progress)


def _resident(stage: Stage) -> dict[str, Value]:
    since = "during the step" if memory.reset_peak() else "since the process began"
    output = stage.run()
    now = memory.resident()
    del output
    less = f", less the {units.bytes_(stage.kept_bytes)} that rooflight keeps to restore the model from"
    found = {}
    if now.resident_bytes is not None:
        found["resident_bytes"] = Value(
            now.resident_bytes - stage.kept_bytes, f"the kernel: resident memory after a plain step{less}"
        )
    if now.peak_resident_bytes is not None:
        found["peak_resident_bytes"] = Value(
            now.peak_resident_bytes - stage.kept_bytes, f"the kernel: most resident memory {since}{less}"
        )
    return found


def _record(stage: Stage, execution: EagerStep, findings: Findings) -> Recording:
    stage.put_back()
    if not execution.eager:
        return stage.record()
    try:
        recording, allocations = _with_allocations(stage)
    except WatchedAnotherWay:
        recording, allocations = _with_allocations(stage)
    findings.step["allocated_before_bytes"] = Value(allocations.allocated_before_bytes, f"{_ALLOCATIONS}, before")
    findings.step["peak_allocated_bytes"] = Value(allocations.peak_allocated_bytes, f"{_ALLOCATIONS}, most at one time")
    made = gpu_memory.output_bytes(recording.storages, block=1)
    for index, found in allocations.per_op().items():
        quantities = {
            "growth_bytes": Value(found.growth_bytes, f"{_ALLOCATIONS}, after minus before"),
            "allocations": Value(found.allocations, f"{_ALLOCATIONS}, calls"),
            "workspace_bytes": Value(
                found.peak_growth_bytes - max(found.growth_bytes, 0),
                f"{_ALLOCATIONS}, most inside the op minus what stays",
            ),
            "allocated_bytes": Value(found.allocated_bytes, f"{_ALLOCATIONS}, after"),
        }
        if index in made:
            quantities["output_bytes"] = made[index]
        findings.add(index, quantities)
    return recording


def _with_allocations(stage: Stage) -> tuple[Recording, memory.CpuAllocations]:
    with memory.CpuAllocations() as allocations:
        return stage.record(allocations), allocations


def _host_times(stage: Stage, recording: Recording, options: MeasureOptions, findings: Findings,
                progress: Progress) -> None:  # fmt: skip
    """Each op by the clock. The first two runs only warm up: the watched step takes other paths than the plain one."""
    runs: list[dict[int, float]] = []
    for number in range(-2, options.profiled_runs):
        progress("time of every op", number + 2, options.profiled_runs + 2)
        stage.put_back()
        clock = _Clock()
        again = stage.record(clock)
        check_repeated(recording.ops, again.ops)
        if number >= 0:
            runs.append(clock.times_s)
    origin = f"host clock around the op, median of {len(runs)} watched steps"
    for index in runs[0]:
        findings.add(index, {"host_time_s": median([run[index] for run in runs], origin)})


class _Clock:
    """Reads the clock right before and right after every op."""

    def __init__(self) -> None:
        self.times_s: dict[int, float] = {}
        self._start = 0.0

    def before(self, index: int) -> None:
        self._start = time.perf_counter()

    def after(self, index: int) -> None:
        self.times_s[index] = time.perf_counter() - self._start


def _primitives(stage: Stage, recording: Recording, findings: Findings, progress: Progress) -> None:
    progress("oneDNN primitives", 0, 1)
    stage.put_back()
    with onednn.Primitives() as primitives:
        again = stage.record(_Marks(primitives))
    check_repeated(recording.ops, again.ops)
    if primitives.reason is not None:
        raise CannotMeasure(primitives.reason)
    findings.kernels = tuple(primitives.kernels())


class _Marks:
    """Tells oneDNN's list which op runs."""

    def __init__(self, primitives: onednn.Primitives) -> None:
        self._primitives = primitives

    def before(self, index: int) -> None:
        self._primitives.mark(index)

    def after(self, index: int) -> None:
        self._primitives.mark(None)


def _flops(stage: Stage, recording: Recording, findings: Findings, progress: Progress) -> None:
    """One quantity at a time, so that its events need not take turns; for the whole step and for every op."""
    reason = perf_events.available()
    if reason is not None:
        raise CannotMeasure(reason)
    wanted = perf_events.quantities()
    for number, quantity in enumerate(wanted):
        progress("FLOP counters", number, len(wanted))
        stage.put_back()
        arguments = stage.fresh_arguments()
        with perf_events.FlopCounters([quantity]) as counters:
            before = counters.read().get(quantity)
            stage.run(arguments)
            after = counters.read().get(quantity)
            scaled = ", scaled: it took turns with others" if counters.multiplexed else ""
            origin = f"perf events: {counters.origins.get(quantity, 'floating-point instructions')}{scaled}"
        if before is None or after is None:
            continue  # its counter never got its turn
        findings.step[quantity] = Value(after - before, origin)
        stage.put_back()
        with perf_events.FlopCounters([quantity]) as counters:
            observer = _FlopsOfOps(counters, quantity)
            again = stage.record(observer)
        check_repeated(recording.ops, again.ops)
        for index, count in observer.found.items():
            findings.add(index, {quantity: Value(count, origin)})


class _FlopsOfOps:
    def __init__(self, counters: Any, quantity: str) -> None:
        self.found: dict[int, int] = {}
        self._counters = counters
        self._quantity = quantity
        self._before: int | None = None

    def before(self, index: int) -> None:
        self._before = self._counters.read().get(self._quantity)

    def after(self, index: int) -> None:
        now = self._counters.read().get(self._quantity)
        if now is not None and self._before is not None:
            self.found[index] = now - self._before
