"""The collectors of a step on the CPU: time, memory, and of every op its time, allocations, page faults and waits."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from rooflight import formatting
from rooflight.ledger import Note, Value
from rooflight.machine.recognise import this_device
from rooflight.machine.resident_memory import reset_peak, resident
from rooflight.measurement.collectors import cpu_memory, gpu_memory
from rooflight.measurement.collectors.op_meters import CoreWaits, OpDifferences, page_fault_s, page_faults
from rooflight.measurement.collectors.plain_step import CollectorContext, record_ops, wall_time
from rooflight.measurement.cupti.op_counters import check_repeated
from rooflight.measurement.findings import median
from rooflight.trace.stage import Recording, StagedStep


def collect(context: CollectorContext) -> None:
    """Measure everything that can be measured of the step."""
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
        findings.rates = processor()


def processor() -> dict[str, Value]:
    """Return what causes of time need: threads, cores and peaks by Linux's description, the time of a page fault."""
    values = {"threads": Value(torch.get_num_threads(), "torch.get_num_threads()")}
    here = this_device(kind="cpu")
    known = None if here is None else here.device or here.outline
    if known is not None:
        peaks = {**known.core_flops_per_s, **known.tensor_flops_per_s}
        figures = {f"peak.{precision}": peak for precision, peak in peaks.items()} | {"cores": known.sms}
        values |= {name: Value(figure.value, figure.source) for name, figure in figures.items()}
    with torch.no_grad():
        fault = page_fault_s()
    if fault is not None:
        values["page_fault"] = Value(fault, "memory filled for the first time less the second, the best of some")
    return values


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
    """Return the ops of the step; the findings get what torch allocates in each."""
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
    """Time every op. The first two runs only warm up: the watched step takes other paths than the plain one."""
    stage, runs = context.stage, list[_WatchedRun]()
    for number in range(-2, context.options.profiled_runs):
        context.progress("time of every op", number + 2, context.options.profiled_runs + 2)
        stage.put_back()
        run = _WatchedRun(OpDifferences(time.perf_counter), OpDifferences(page_faults), CoreWaits())
        with run.waits:
            check_repeated(recording.ops, stage.record(run).ops)
        if number >= 0:
            runs.append(run)
    watched = f"median of {len(runs)} watched steps"
    of_it = "in the one that took the median"
    for index in runs[0].timer.by_op:
        # Page faults and waits are those of the run that took the median.
        usual = sorted(runs, key=lambda run: run.timer.by_op[index])[(len(runs) - 1) // 2]
        quantities = {
            "host_time_s": median([run.timer.by_op[index] for run in runs], f"host clock around the op, {watched}"),
        }
        if index in usual.faults.by_op:
            pages = usual.faults.by_op[index]
            quantities["page_faults"] = Value(pages, f"the kernel: pages handed out to the process, {of_it}")
        if index in usual.waits.by_op:
            # A wait longer than the op lay between the two clocks, not in the op.
            waited = usual.waits.by_op[index] if usual.waits.by_op[index] < usual.timer.by_op[index] else 0.0
            quantities["core_wait_s"] = Value(waited, f"the kernel's scheduler: longest of any thread, {of_it}")
        context.findings.add(index, quantities)


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
