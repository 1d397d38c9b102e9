"""The collectors of a step on an NVIDIA GPU, one after the other.

Each disturbs those after it and none before it: memory and time of the plain step come first, then the profiler, and
counters, which serialise everything, last.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import msgspec
import torch

from rooflight.ledger import Kernel, Note, Op, Value
from rooflight.measurement import timeline
from rooflight.measurement.collectors import gpu_memory
from rooflight.measurement.collectors.plain_step import CollectorContext, record_ops, wall_time
from rooflight.measurement.cupti.op_counters import OpCounters, StepCounterPlan, check_repeated
from rooflight.measurement.execution.eager import EagerStep
from rooflight.measurement.findings import Findings
from rooflight.measurement.profiler_trace import RangeMarker, StepTrace, profiled
from rooflight.measurement.ranks import refuse_collectives
from rooflight.trace.program_stage import ProgramStage
from rooflight.trace.stage import Recording, StagedStep


def collect(context: CollectorContext) -> None:
    """Everything that is asked for and can be measured."""
    stage, findings = context.stage, context.findings
    with findings.collecting("memory of the step"):
        context.progress("memory", 0, 2)
        stage.put_back()
        memory, notes = context.execution.memory()
        findings.step.update(memory)
        findings.notes += notes
    with findings.collecting("time"):
        wall_time(context)
    recording = record_ops(context, _with_memory)
    if recording is None:
        return
    with findings.collecting("kernels"):
        _kernels(context, recording)
    if context.options.counters in ("auto", "cupti"):
        with findings.collecting("counters"):
            if not isinstance(stage, ProgramStage):  # whose processes take every step together
                refuse_collectives(recording.ops)
            _counters(context, recording)


def _with_memory(context: CollectorContext) -> Recording:
    """The ops of the step, with the allocator asked around each."""
    findings, observer = context.findings, gpu_memory.OpMemoryObserver()
    recording = context.stage.record(observer)
    for index, quantities in observer.quantities.items():
        if recording.ops[index].kind != "host":
            findings.add(index, quantities)
    for index, value in gpu_memory.output_bytes(recording.storages).items():
        if index in findings.ops:
            findings.add(index, {"output_bytes": value})
    return recording


def _kernels(context: CollectorContext, recording: Recording) -> None:
    """Which kernels each op launches, and how long they take in the plain step."""
    execution, findings = context.execution, context.findings
    runs = context.options.profiled_runs
    context.progress("kernels", 0, runs + 1)
    profiled(_wake_up, cuda=True)
    traces = []
    for number in range(runs):
        context.progress("kernels", number + 1, runs + 1)
        traces.append(execution.profiled())
    execution.uses_graphs = execution.uses_graphs or any(trace.graph_launches for trace in traces)

    def marked() -> list[timeline.KernelLaunch]:
        return timeline.launches(_marked(context.stage, recording.ops))

    plain = [timeline.launches(trace) for trace in traces]
    kernels, times = _merged(execution.attributed(marked, traces, plain, recording.ops), plain, findings)
    findings.kernels = kernels
    if plain and "marked" not in times.gpu_busy_s.origin:  # else starts are those of the marked run
        findings.host_calls = traces[timeline.shown_run(plain)].host_calls
    findings.step.update(times.quantities())
    if not execution.eager:
        findings.notes += execution.attribution_notes(kernels)
    for index, value in timeline.per_op_time(kernels).items():
        findings.add(index, {"kernel_time_s": value})
    for index, count in Counter(kernel.ops[0] for kernel in kernels if len(kernel.ops) == 1).items():
        findings.add(index, {"kernels": Value(count, "kineto: launches")})
    if times.outside_ops_s.value and execution.eager:
        findings.notes.append(
            Note(
                "time-outside-ops",
                f"{times.outside_ops_s.value * 1e6:.1f} µs of kernel time are no op's: copies and library calls "
                "between ops",
            )
        )


def _merged(
    attributed: list[timeline.KernelLaunch], plain: list[list[timeline.KernelLaunch]], findings: Findings
) -> tuple[tuple[Kernel, ...], timeline.DeviceTimes]:
    """Durations of the plain runs; of the attributed one alone where the step does not repeat its kernels."""
    try:
        return timeline.merge(attributed, plain)
    except timeline.SequenceDiffers as difference:
        findings.notes.append(Note("single-run", f"times of kernels are those of a single run: {difference}"))
        return timeline.merge(attributed, [])


def _marked(stage: StagedStep, ops: Sequence[Op]) -> StepTrace:
    """One recorded run under the profiler, with a mark around every op."""
    marker = RangeMarker()
    again: list[Recording] = []

    def run() -> None:
        again.append(stage.record(marker))

    stage.put_back()
    trace = profiled(run, cuda=True)
    check_repeated(ops, again[-1].ops)
    return trace


def _wake_up() -> None:
    torch.zeros(1, device="cuda")


def _counters(context: CollectorContext, recording: Recording) -> None:
    options, execution, findings = context.options, context.execution, context.findings
    start = time.perf_counter()
    counting = OpCounters(context.stage, recording.ops, options, context.progress)
    if counting.cold_cache.filler is None:
        findings.notes.append(
            Note(
                "cache-not-emptied",
                "no memory is left to empty the L2 cache with: what lay in it before is in the bytes too",
            )
        )
    plan, of_the_step = counting.whole_step()
    findings.step.update(of_the_step)
    parts = [f"{counting.passes} for the whole step"]
    if execution.uses_graphs:
        _cuda_cores_of_the_eager_step(counting, execution, findings)
    if execution.eager:
        busy = {index for index, row in findings.ops.items() if "kernels" in row}
        wanted = busy or {op.index for op in recording.ops if op.kind == "compute"}
        before = counting.passes
        for index, quantities in counting.per_op(plan, recording.ops, wanted):
            findings.add(index, quantities)
        parts.append(f"{counting.passes - before} for its ops")
    if options.per_kernel and execution.uses_graphs:
        findings.notes.append(
            Note(
                "no-counters-by-kernel",
                "counters by kernel left out: a CUDA graph is one launch, and is counted as a whole",
            )
        )
    if (options.per_kernel or not execution.eager) and not execution.uses_graphs:
        before = counting.passes
        _kernel_counters(counting, plan, findings)
        parts.append(f"{counting.passes - before} for its kernels")
    findings.notes.append(
        Note(
            "counter-passes",
            f"counters took {counting.passes} passes in {time.perf_counter() - start:.1f} s, each one run of the step: "
            f"{', '.join(parts)}",
        )
    )


def _cuda_cores_of_the_eager_step(counting: OpCounters, execution: EagerStep, findings: Findings) -> None:
    """Instructions of CUDA cores are not counted inside a CUDA graph: they read 0 there, which is not true."""
    for name in [name for name in findings.step if name.startswith(("cuda_flops_", "smsp__sass_"))]:
        del findings.step[name]
    with execution.eagerly() as same_kernels:
        if same_kernels:
            findings.step.update(counting.cuda_cores("the same kernels, run outside the graph"))
    how = "counted by running the same kernels outside the graph" if same_kernels else "unknown"
    findings.notes.append(
        Note("cuda-cores-not-counted", f"inside a CUDA graph the FLOPs of CUDA cores cannot be counted; they are {how}")
    )


def _kernel_counters(counting: OpCounters, plan: StepCounterPlan, findings: Findings) -> None:
    """Counters for each kernel, joined to the timeline by the order of launch."""
    positions = [number for number, kernel in enumerate(findings.kernels) if kernel.kind == "kernel"]
    if len({findings.kernels[number].stream for number in positions}) > 1:
        # The counters come in the order of launching, the timeline in that of starting.
        findings.notes.append(
            Note(
                "no-counters-by-kernel",
                "counters by kernel left out: kernels run on several streams, so their order is not fixed",
            )
        )
        return
    counted = counting.per_kernel(plan, len(positions))
    if len(counted) != len(positions):
        findings.notes.append(
            Note(
                "no-counters-by-kernel",
                f"counters by kernel left out: {len(counted):,} kernels were counted, {len(positions):,} profiled",
            )
        )
        return
    kernels: list[Kernel] = list(findings.kernels)
    for position, quantities in zip(positions, counted, strict=True):
        kernel = kernels[position]
        kernels[position] = msgspec.structs.replace(kernel, quantities={**kernel.quantities, **quantities})
    findings.kernels = tuple(kernels)
