"""A trace of PyTorch's profiler as a log: kernels with times, and the op each belongs to.

A kernel carries the number of the runtime call that launched it; that call lies inside the ops and ranges that were
open on its thread. The path of those is the kernel's label.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from rooflight.ledger import Note, Value
from rooflight.profiles.host_calls import host_calls
from rooflight.profiles.kineto import (
    MODULE,
    DeviceWork,
    KinetoTrace,
    LaunchKey,
    ProfilerStep,
    RuntimeCall,
    Sizes,
    decode,
    launch_stacks,
    path_of,
    stack_of,
)
from rooflight.profiles.log import LoggedLaunch, LogText, MetricReading, ProfilerLog, dim3, in_blocks

if TYPE_CHECKING:
    from rooflight.profiles.gpu_calls import CalledOps

MOST_TOLD = 50_000
"""Kernels of a trace whose ops are made again, a fraction of a millisecond each."""
_IN_THREADS = ("hipExtModuleLaunchKernel", "hipHccModuleLaunchKernel")


def read(source: LogText) -> ProfilerLog:
    trace = decode(source.text.encode(), name=source.name)
    return of_trace(trace, name=source.name)


def of_trace(trace: KinetoTrace, *, name: str) -> ProfilerLog:
    """`name` is that of the file, for messages."""
    if not trace.work:
        from rooflight.profiles import cpu_trace  # torch, which tells what ops are made of

        log = cpu_trace.read(trace, name=name)
        totals, steps = _wall(trace.steps, on_gpu=False)
        return replace(log, totals=totals, notes=(*log.notes, *steps))
    names = [host_range.name.removeprefix(MODULE) for host_range in trace.ranges]
    stacks = launch_stacks(trace)
    first = min(work.ts for work in trace.work)
    calls = {call.args.correlation: call for call in reversed(trace.calls)}
    calls.pop(None, None)
    called = _called(trace, stacks)
    owners = {} if called is None else called.owners
    launches = tuple(
        _launch(
            work,
            first,
            path_of(names[position] for position in stack_of(work, stacks)),
            calls.get(work.args.correlation),
            (owners[place],) if place in owners else (),
        )
        for place, work in enumerate(trace.work)
    )
    notes = []
    if unknown := sum(launch.kind == "kernel" and not launch.label for launch in launches):
        notes.append(
            Note(
                "kernels-without-op",
                f"{unknown:,} kernels belong to no op: a CUDA graph launched them, or the trace lacks the call "
                "that did",
            )
        )
    device, capability, more = _device(trace)
    totals, steps = _wall(trace.steps)
    return ProfilerLog(
        tool="torch profiler",
        about="Chrome trace of PyTorch's profiler",
        launches=launches,
        time_origin="torch profiler",
        device=device,
        capability=capability,
        cuda=version_of(trace.runtime),
        ops=() if called is None else called.ledger.ops,
        storages=() if called is None else called.ledger.storages,
        totals=totals,
        host_calls=host_calls(trace),
        notes=(*notes, *more, *steps),
    )


def _launched_sizes(call: RuntimeCall | None) -> tuple[Sizes | None, Sizes | None]:
    """Grid and block as ROCm notes them with the call. Calls of modules give the grid in threads."""
    grid, block = (None, None) if call is None else (_sizes(call.args.grid), _sizes(call.args.block))
    in_threads = call is not None and call.name in _IN_THREADS
    return in_blocks(grid, block) if in_threads else grid, block


def _sizes(value: Any) -> Sizes | None:
    if not isinstance(value, list) or len(value) != 3:
        return None
    x, y, z = (size if type(size) is int and 0 <= size < 2**32 else None for size in value)
    return dim3(x, y, z)


def _called(trace: KinetoTrace, stacks: Mapping[LaunchKey, list[int]]) -> CalledOps | None:
    """The ops of a trace that notes what they were called with; `None` of one that does not, or is very long."""
    noted = any(len(item.args.dims) > len(b"null") for item in trace.ranges)
    if not noted or len(trace.work) > MOST_TOLD:
        return None
    from rooflight.profiles.gpu_calls import called_ops  # torch, which makes the calls again

    return called_ops(trace, stacks)


def _launch(work: DeviceWork, first: float, label: str, call: RuntimeCall | None, ops: tuple[int, ...]) -> LoggedLaunch:
    args = work.args
    of_kernel = work.kind == "kernel" and args.grid is None
    grid, block = _launched_sizes(call) if of_kernel else (args.grid, args.block)
    return LoggedLaunch(
        name=work.name,
        kind=work.kind,
        ops=ops,
        grid=grid,
        block=block,
        stream=args.stream if isinstance(args.stream, int) else None,
        start_s=(work.ts - first) * 1e-6,
        time_s=work.dur * 1e-6,
        launch_s=None if call is None else (call.ts - first) * 1e-6,
        launch_time_s=None if call is None else call.dur * 1e-6,
        label=label,
        metrics={"copied_bytes": MetricReading(args.bytes, "byte")} if args.bytes is not None else {},
    )


def _device(trace: KinetoTrace) -> tuple[str | None, str | None, list[Note]]:
    used = sorted({work.args.device for work in trace.work if isinstance(work.args.device, int)})
    devices = {device.id: device for device in trace.devices}
    device = devices.get(used[0] if used else 0)
    if device is None and len({known.name for known in trace.devices}) == 1:
        device = trace.devices[0]  # numbered otherwise than the kernels are, as by ROCm
    notes = (
        [Note("several-gpus", f"the trace covers {len(used)} GPUs, all of them in the totals")] if len(used) > 1 else []
    )
    if device is None:
        return None, None, notes
    capable = device.major is not None and device.minor is not None and not device.is_amd
    return device.name, f"{device.major}.{device.minor}" if capable else None, notes


def _wall(steps: list[ProfilerStep], *, on_gpu: bool = True) -> tuple[dict[str, Value], list[Note]]:
    """The host's time for the profiler's steps."""
    times_us: dict[int, float] = {}
    for step in steps:
        times_us.setdefault(step.number, step.dur)
    if not times_us:
        return {}, []
    names = ", ".join(f"ProfilerStep#{number}" for number in sorted(times_us)[:4])
    names += ", ..." if len(times_us) > 4 else ""
    notes = [Note("several-steps", f"the trace holds {len(times_us)} steps ({names}): the totals cover all of them")]
    waits = ", which does not wait for the GPU" if on_gpu else ""
    origin = f"torch profiler: duration of {names} on the host{waits}"
    return {"wall_time_s": Value(sum(times_us.values()) * 1e-6, origin)}, notes if len(times_us) > 1 else []


def version_of(value: int | str | None) -> str | None:
    """12040 is 12.4."""
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value >= 1000 else None
