"""A trace of PyTorch's profiler as a log: kernels, or on a CPU ops, with times; and the op that each belongs to.

A kernel carries the number of the runtime call that launched it; that call lies inside the ops and ranges that were
open on its thread. The path of those is the kernel's label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from rooflight.errors import BadFile
from rooflight.ledger import Note, Value
from rooflight.profiles.host_calls import host_calls
from rooflight.profiles.kineto import (
    MODULE,
    MOST_NESTED,
    DeviceWork,
    KinetoTrace,
    LaunchKey,
    ProfilerStep,
    RuntimeCall,
    decode,
    launch_stacks,
    stack_of,
)
from rooflight.profiles.log import COPIED, LoggedLaunch, LogText, MetricReading, ProfilerLog, several_gpus

if TYPE_CHECKING:
    from rooflight.profiles.called_ops import CalledOps

MOST_TOLD = 50_000
"""Kernels of a trace whose ops are made again, a fraction of a millisecond each."""


def read(source: LogText) -> ProfilerLog:
    trace = decode(source.text.encode(), name=source.name)
    return of_trace(trace, name=source.name)


def of_trace(trace: KinetoTrace, *, name: str) -> ProfilerLog:
    """`name` is that of the file, for messages."""
    return _of_gpu(trace) if trace.work else _of_cpu(trace, name)


def _of_gpu(trace: KinetoTrace) -> ProfilerLog:
    names = [host_range.name.removeprefix(MODULE) for host_range in trace.ranges]
    stacks = launch_stacks(trace)
    first = min(work.ts for work in trace.work)
    calls = {call.args.correlation: call for call in reversed(trace.calls)}
    calls.pop(None, None)
    called = _called(trace, stacks)
    launches = []
    for place, work in enumerate(trace.work):
        label = "/".join(names[position] for position in stack_of(work, stacks)[:MOST_NESTED])
        ops = (called.owners[place],) if called is not None and place in called.owners else ()
        launches.append(_launch(work, first, label, calls.get(work.args.correlation), ops))
    used = sorted({work.args.device for work in trace.work if isinstance(work.args.device, int)})
    notes = several_gpus([str(number) for number in used])
    if unknown := sum(launch.kind == "kernel" and not launch.label for launch in launches):
        reason = "a CUDA graph launched them, or the trace lacks the call that did"
        notes.insert(0, Note("kernels-without-op", f"{unknown:,} kernels belong to no op: {reason}"))
    device, capability = _device(trace, used)
    totals, steps = _wall(trace.steps, ", which does not wait for the GPU")
    return ProfilerLog(
        tool="torch profiler",
        about="Chrome trace of PyTorch's profiler",
        launches=tuple(launches),
        time_origin="torch profiler",
        device=device,
        capability=capability,
        cuda=version_of(trace.runtime),
        ops=() if called is None else called.ledger.ops,
        storages=() if called is None else called.ledger.storages,
        totals=totals,
        host_calls=host_calls(trace),
        notes=(*notes, *steps),
    )


def _of_cpu(trace: KinetoTrace, name: str) -> ProfilerLog:
    """A row is an op as a ledger has it, with all that it does; what lies around has only its own time."""
    from rooflight.profiles.called_ops import ops_of_rows, timed_ranges  # torch, which tells what ops are made of

    rows = timed_ranges(trace)
    if not rows:
        raise BadFile(
            "empty-trace",
            f"{name} is a trace without GPU kernels and without ops: nothing ran while torch's profiler did",
        )
    called = ops_of_rows(rows)
    first = min(row.item.ts for row in rows)
    launches = tuple(
        LoggedLaunch(
            name=row.item.name,
            kind="op",
            start_s=(row.item.ts - first) * 1e-6,
            time_s=row.own_ns * 1e-9,
            label="/".join(row.around),
            ops=(called.owners[place],) if place in called.owners else (),
        )
        for place, row in enumerate(rows)
    )
    totals, steps = _wall(trace.steps, "")
    return ProfilerLog(
        tool="torch profiler",
        about="Chrome trace of PyTorch's profiler, of the CPU alone",
        launches=launches,
        time_origin="torch profiler: time on the CPU",
        target="cpu",
        ops=called.ledger.ops,
        storages=called.ledger.storages,
        totals=totals,
        notes=(*_cpu_notes(called), *steps),
    )


def _cpu_notes(called: CalledOps) -> Iterator[Note]:
    times = (
        "an op's time is that of its call with all that it calls; compositions of ops and functions of autograd "
        "have only their own: no time counts twice"
    )
    yield Note("times-of-calls", times)
    if not called.ledger.ops and any("record_shapes" in reason for reason in called.left_out):
        remedy = "profile with record_shapes=True"
        yield Note("no-shapes", f"the trace has no shapes, so nothing can be estimated beside the times: {remedy}")
        return
    estimated = "FLOPs and bytes are estimated from the shapes that the trace notes; what was executed was not counted"
    yield Note("estimated-work", estimated)
    for reason, (count, _) in called.left_out.items():
        yield Note("rows-without-estimate", f"{count:,} rows have no estimate: {reason}")


def _called(trace: KinetoTrace, stacks: Mapping[LaunchKey, list[int]]) -> CalledOps | None:
    """The ops of a trace that notes what they were called with; `None` of one that does not, or is very long."""
    noted = any(len(item.args.dims) > len(b"null") for item in trace.ranges)
    if not noted or len(trace.work) > MOST_TOLD:
        return None
    from rooflight.profiles.called_ops import called_ops  # torch, which makes the calls again

    return called_ops(trace, stacks)


def _launch(work: DeviceWork, first: float, label: str, call: RuntimeCall | None, ops: tuple[int, ...]) -> LoggedLaunch:
    args = work.args
    return LoggedLaunch(
        name=work.name,
        kind=work.kind,
        ops=ops,
        grid=args.grid,
        block=args.block,
        stream=args.stream if isinstance(args.stream, int) else None,
        start_s=(work.ts - first) * 1e-6,
        time_s=work.dur * 1e-6,
        launch_s=None if call is None else (call.ts - first) * 1e-6,
        launch_time_s=None if call is None else call.dur * 1e-6,
        label=label,
        metrics={COPIED: MetricReading(args.bytes, "byte")} if args.bytes is not None else {},
    )


def _device(trace: KinetoTrace, used: list[int]) -> tuple[str | None, str | None]:
    """Name and capability of the GPU that worked, the first of several."""
    devices = {device.id: device for device in trace.devices}
    device = devices.get(used[0] if used else 0)
    if device is None and len({known.name for known in trace.devices}) == 1:
        device = trace.devices[0]  # numbered otherwise than the kernels are, as by ROCm
    if device is None:
        return None, None
    capable = device.major is not None and device.minor is not None and not device.is_amd
    return device.name, f"{device.major}.{device.minor}" if capable else None


def _wall(steps: list[ProfilerStep], waits: str) -> tuple[dict[str, Value], list[Note]]:
    """The host's time for the profiler's steps."""
    times_us: dict[int, float] = {}
    for step in steps:
        times_us.setdefault(step.number, step.dur)
    if not times_us:
        return {}, []
    names = ", ".join(f"ProfilerStep#{number}" for number in sorted(times_us)[:4])
    names += ", ..." if len(times_us) > 4 else ""
    text = f"the trace holds {len(times_us)} steps ({names}): the totals cover all of them"
    origin = f"torch profiler: duration of {names} on the host{waits}"
    notes = [Note("several-steps", text)] if len(times_us) > 1 else []
    return {"wall_time_s": Value(sum(times_us.values()) * 1e-6, origin)}, notes


def version_of(value: int | str | None) -> str | None:
    """12040 is 12.4."""
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value >= 1000 else None
