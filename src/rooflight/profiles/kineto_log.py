"""A trace of PyTorch's profiler as a log: kernels with times, and the op each belongs to.

A kernel carries the number of the runtime call that launched it; that call lies inside the ops and ranges that were
open on its thread. The path of those is the kernel's label.
"""

from __future__ import annotations

from collections.abc import Iterator

from rooflight.errors import BadFile
from rooflight.ledger import Value
from rooflight.profiles.kineto import MODULE, DeviceWork, Id, KinetoTrace, ProfilerStep, Thread, decode, open_ranges
from rooflight.profiles.log import LoggedLaunch, LogText, MetricReading, ProfilerLog

_Key = tuple[str, Id | None]
"""What a kernel asks its path by: `call` and a correlation, or `op` and an external id."""


def read(source: LogText) -> ProfilerLog:
    trace = decode(source.text.encode(), name=source.name)
    if not trace.work:
        raise BadFile(
            f"{source.name} is a trace without GPU kernels: profile with ProfilerActivity.CUDA on a machine with a GPU"
        )
    names = [host_range.name.removeprefix(MODULE) for host_range in trace.ranges]
    paths = {
        key: "/".join(names[position] for position in stack)
        for key, stack in open_ranges(trace.ranges, _launch_moments(trace))
    }
    first = min(work.ts for work in trace.work)
    launches = tuple(_launch(work, first, paths) for work in trace.work)
    notes = []
    if unknown := sum(launch.kind == "kernel" and not launch.label for launch in launches):
        notes.append(
            f"{unknown:,} kernels belong to no op: a CUDA graph launched them, or the trace lacks the call that did"
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
        totals=totals,
        notes=(*notes, *more, *steps),
    )


def _launch(work: DeviceWork, first: float, paths: dict[_Key, str]) -> LoggedLaunch:
    args = work.args
    return LoggedLaunch(
        name=work.name,
        kind=work.kind,
        grid=args.grid,
        block=args.block,
        stream=args.stream if isinstance(args.stream, int) else None,
        start_s=(work.ts - first) * 1e-6,
        time_s=work.dur * 1e-6,
        label=paths.get(("call", args.correlation)) or paths.get(("op", work.args.external)) or "",
        metrics={"copied_bytes": MetricReading(args.bytes, "byte")} if args.bytes is not None else {},
    )


def _launch_moments(trace: KinetoTrace) -> Iterator[tuple[Thread, int, _Key]]:
    """When each call was made, by its number, and when each op began, by its own."""
    for call in trace.calls:
        if call.args.correlation is not None:
            yield call.thread, call.start_ns, ("call", call.args.correlation)
    for host_range in trace.ranges:
        if host_range.args.external is not None and host_range.cat.lower() != "user_annotation":
            yield host_range.thread, host_range.start_ns, ("op", host_range.args.external)


def _device(trace: KinetoTrace) -> tuple[str | None, str | None, list[str]]:
    used = sorted({work.args.device for work in trace.work if isinstance(work.args.device, int)})
    devices = {device.id: device for device in trace.devices}
    device = devices.get(used[0] if used else 0)
    notes = [f"the trace covers {len(used)} GPUs, all of them in the totals"] if len(used) > 1 else []
    if device is None:
        return None, None, notes
    capable = device.major is not None and device.minor is not None
    return device.name, f"{device.major}.{device.minor}" if capable else None, notes


def _wall(steps: list[ProfilerStep]) -> tuple[dict[str, Value], list[str]]:
    """The host's time for the profiler's steps."""
    times_us: dict[int, float] = {}
    for step in steps:
        times_us.setdefault(step.number, step.dur)
    if not times_us:
        return {}, []
    names = ", ".join(f"ProfilerStep#{number}" for number in sorted(times_us)[:4])
    names += ", ..." if len(times_us) > 4 else ""
    notes = [f"the trace holds {len(times_us)} steps ({names}): the totals cover all of them"]
    origin = f"torch profiler: duration of {names} on the host, which does not wait for the GPU"
    return {"wall_time_s": Value(sum(times_us.values()) * 1e-6, origin)}, notes if len(times_us) > 1 else []


def version_of(value: int | str | None) -> str | None:
    """12040 is 12.4."""
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value >= 1000 else None
