"""The collectors of a step on the CPU: time, host time of every op, memory, oneDNN's primitives, FLOP counters."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import partial

from rooflight import formatting
from rooflight.errors import CannotMeasure
from rooflight.ledger import Note, Value
from rooflight.machine.resident_memory import reset_peak, resident
from rooflight.measurement.collectors import cpu_memory, gpu_memory, onednn, perf_events
from rooflight.measurement.collectors.core_waits import CoreWaits
from rooflight.measurement.collectors.cpu_rates import cpu_rates
from rooflight.measurement.collectors.op_differences import OpDifferences
from rooflight.measurement.collectors.page_faults import page_faults
from rooflight.measurement.collectors.plain_step import CollectorContext, record_ops, wall_time
from rooflight.measurement.cupti.op_counters import check_repeated
from rooflight.measurement.findings import median
from rooflight.measurement.ranks import refuse_collectives
from rooflight.trace.program_stage import ProgramStage
from rooflight.trace.recorder import Observer
from rooflight.trace.stage import Recording, StagedStep


def collect(context: CollectorContext) -> None:
    """Everything that is asked for and can be measured."""
    stage, findings = context.stage, context.findings
    with findings.collecting("memory of the process"):
        context.progress("memory", 0, 2)
        findings.step.update(_resident(stage))
    with findings.collecting("time"):
        wall_time(context)
    recording = record_ops(context, _with_memory)
    if recording is None:
        return
    if not context.execution.eager:
        findings.notes.append(
            Note(
                "no-rows-of-ops", "a compiled step on the CPU has no rows for its ops: only the whole step is measured"
            )
        )
        return
    with findings.collecting("time of every op"):
        _host_times(context, recording)
    with findings.collecting("oneDNN primitives"):
        _primitives(context, recording)
    with findings.collecting("what the processor does at best"):
        context.progress("what the processor does at best", 0, 1)
        findings.rates = cpu_rates()
    if context.options.counters != "none":
        with findings.collecting("FLOP counters"):
            if not isinstance(stage, ProgramStage):  # whose processes take every step together
                refuse_collectives(recording.ops)
            _flops(context, recording)


def _resident(stage: StagedStep) -> dict[str, Value]:
    since = "during the step" if reset_peak() else "since the process began"
    output = stage.run()
    now = resident()
    del output
    less = f", less the {formatting.bytes_(stage.kept_bytes)} that rooflight keeps to restore the model from"
    sizes = {
        "resident_bytes": (now.resident_bytes, "resident memory after a plain step"),
        "peak_resident_bytes": (now.peak_resident_bytes, f"most resident memory {since}"),
    }
    return {
        name: Value(size - stage.kept_bytes, f"the kernel: {what}{less}")
        for name, (size, what) in sizes.items()
        if size is not None
    }


def _with_memory(context: CollectorContext) -> Recording:
    """The ops of the step, with what torch allocates in each."""
    findings = context.findings
    with cpu_memory.CpuAllocations() as allocations:
        recording = context.stage.record(allocations)
    findings.step |= cpu_memory.step_quantities(allocations.history)
    output_bytes = gpu_memory.output_bytes(recording.storages, block=1)
    for index, quantities in cpu_memory.op_quantities(allocations.history).items():
        findings.add(index, quantities)
        if index in output_bytes:
            findings.add(index, {"output_bytes": output_bytes[index]})
    return recording


def _host_times(context: CollectorContext, recording: Recording) -> None:
    """Each op by the clock. The first two runs only warm up: the watched step takes other paths than the plain one."""
    runs: list[_WatchedRun] = []
    for number in range(-2, context.options.profiled_runs):
        context.progress("time of every op", number + 2, context.options.profiled_runs + 2)
        context.stage.put_back()
        run = _WatchedRun(OpDifferences(time.perf_counter), OpDifferences(page_faults), CoreWaits())
        with run.waits:
            _record_again(context.stage, recording, run)
        if number >= 0:
            runs.append(run)
    watched = f"median of {len(runs)} watched steps"
    of_it = "in the one that took the median"
    for index in runs[0].timer.by_op:
        # What held an op up is told of the run that stands for it.
        usual = sorted(runs, key=lambda run: run.timer.by_op[index])[(len(runs) - 1) // 2]
        quantities = {
            "host_time_s": median([run.timer.by_op[index] for run in runs], f"host clock around the op, {watched}"),
        }
        if index in usual.faults.by_op:
            pages = usual.faults.by_op[index]
            quantities["page_faults"] = Value(pages, f"the kernel: pages handed out to the process, {of_it}")
        if index in usual.waits.by_op:
            # A wait that was longer than the op was on the way to its clock, not in it.
            waited = usual.waits.by_op[index] if usual.waits.by_op[index] < usual.timer.by_op[index] else 0.0
            quantities["core_wait_s"] = Value(waited, f"the kernel's scheduler: longest of any thread, {of_it}")
        context.findings.add(index, quantities)


def _record_again(stage: StagedStep, recording: Recording, observer: Observer) -> None:
    """One more run with something around every op; it must be the same ops."""
    check_repeated(recording.ops, stage.record(observer).ops)


@dataclass(frozen=True)
class _WatchedRun:
    """Meters around every op of one watched step, the clock next to it."""

    timer: OpDifferences
    faults: OpDifferences
    waits: CoreWaits

    def before(self, index: int) -> None:
        self.waits.before(index)
        self.faults.before(index)
        self.timer.before(index)

    def after(self, index: int) -> None:
        self.timer.after(index)
        self.faults.after(index)
        self.waits.after(index)


def _primitives(context: CollectorContext, recording: Recording) -> None:
    runs = []
    for number in range(context.options.profiled_runs):
        context.progress("oneDNN primitives", number, context.options.profiled_runs)
        context.stage.put_back()
        with onednn.PrimitiveCollector() as primitives:
            _record_again(context.stage, recording, primitives)
        if primitives.reason is not None:
            raise CannotMeasure("no-cpu-counters", primitives.reason)
        runs.append(primitives.kernels())
    context.findings.kernels = tuple(onednn.shortest(runs))


def _flops(context: CollectorContext, recording: Recording) -> None:
    """One quantity at a time, so that its events need not take turns; for the whole step and for every op."""
    stage, findings = context.stage, context.findings
    reason = perf_events.available()
    if reason is not None:
        raise CannotMeasure("no-cpu-counters", reason)
    wanted = perf_events.quantities()
    for number, quantity in enumerate(wanted):
        context.progress("FLOP counters", number, len(wanted))
        stage.put_back()
        arguments = stage.fresh_arguments()
        with perf_events.FlopCounters([quantity]) as counters:
            before = _read(counters, quantity)
            stage.run(arguments)
            after = _read(counters, quantity)
            scaled = ", scaled: it took turns with others" if counters.multiplexed else ""
            origin = f"perf events: {counters.origins.get(quantity, 'floating-point instructions')}{scaled}"
        if before is None or after is None:
            continue  # its counter never got its turn
        findings.step[quantity] = Value(after - before, origin)
        stage.put_back()
        with perf_events.FlopCounters([quantity]) as counters:
            reader = OpDifferences(partial(_read, counters, quantity))
            _record_again(stage, recording, reader)
        for index, count in reader.by_op.items():
            findings.add(index, {quantity: Value(count, origin)})


def _read(counters: perf_events.PerfCounters, quantity: str) -> int | None:
    return counters.read().get(quantity)
