"""A Chrome trace of PyTorch's profiler (`prof.export_chrome_trace`): kernels with times, and the op each belongs to.

A kernel carries the number of the runtime call that launched it; that call lies inside the ops and ranges that were
open on its thread. The path of those is the kernel's label. Times in the file are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rooflight.errors import BadFile
from rooflight.importing.chrome_events import MODULE, Id, RangeArgs, Step, Trace, Work, WorkArgs, decode
from rooflight.importing.log import Launch, Log, Reading
from rooflight.importing.source import Source
from rooflight.ledger import Value

_Thread = tuple[Id | None, Id | None]
_Key = tuple[str, Id | None]
"""What a kernel asks its path by: `call` and a correlation, or `op` and an external id."""


@dataclass(frozen=True)
class _Span:
    start_us: float
    end_us: float
    name: str


def read(source: Source) -> Log:
    trace = decode(source)
    if not trace.work:
        raise BadFile(
            f"{source.name} is a trace without GPU kernels: profile with ProfilerActivity.CUDA on a machine with a GPU"
        )
    paths = _paths(trace)
    first = min(work.ts for work in trace.work)
    launches = tuple(_launch(work, first, paths) for work in trace.work)
    notes = []
    if unknown := sum(launch.kind == "kernel" and not launch.label for launch in launches):
        notes.append(
            f"{unknown:,} kernels belong to no op: a CUDA graph launched them, or the trace lacks the call that did"
        )
    device, capability, more = _device(trace)
    totals, steps = _wall(trace.steps)
    return Log(
        tool="torch profiler",
        about="Chrome trace of PyTorch's profiler",
        launches=launches,
        time_origin="torch profiler",
        device=device,
        capability=capability,
        cuda=_version(trace.runtime),
        totals=totals,
        notes=(*notes, *more, *steps),
    )


def _launch(work: Work, first: float, paths: dict[_Key, str]) -> Launch:
    args = work.args or WorkArgs()
    metrics = {"copied_bytes": Reading(args.bytes, "byte")} if args.bytes is not None else {}
    return Launch(
        name=work.name,
        kind=work.kind,
        grid=args.grid,
        block=args.block,
        stream=args.stream if isinstance(args.stream, int) else None,
        start_s=(work.ts - first) * 1e-6,
        time_s=work.dur * 1e-6,
        label=paths.get(("call", args.correlation)) or paths.get(("op", _external(args))) or "",
        metrics=metrics,
    )


def _external(args: WorkArgs | RangeArgs) -> Id | None:
    return args.external if args.external is not None else args.external_before


def _paths(trace: Trace) -> dict[_Key, str]:
    """The ranges that were open when a call was made, outermost first, by the call's number and by the op's."""
    spans: dict[_Thread, list[_Span]] = {}
    asked: dict[_Thread, list[tuple[float, _Key]]] = {}
    for call in trace.calls:
        if call.args is not None and call.args.correlation is not None:
            asked.setdefault((call.pid, call.tid), []).append((call.ts, ("call", call.args.correlation)))
    for found in trace.ranges:
        thread = (found.pid, found.tid)
        spans.setdefault(thread, []).append(_Span(found.ts, found.ts + found.dur, found.name))
        number = _external(found.args) if found.args is not None else None
        if number is not None and found.cat.lower() != "user_annotation":
            asked.setdefault(thread, []).append((found.ts, ("op", number)))
    return {key: path for thread, times in asked.items() for key, path in _open(spans.get(thread, []), times)}


def _open(spans: list[_Span], times: list[tuple[float, _Key]]) -> Iterator[tuple[_Key, str]]:
    """Go through one thread's time with the stack of open ranges."""
    coming = sorted(spans, key=lambda span: (span.start_us, -span.end_us))
    stack: list[_Span] = []
    place = 0
    for time, key in sorted(times, key=lambda entry: entry[0]):
        while place < len(coming) and coming[place].start_us <= time:
            stack.append(coming[place])
            place += 1
        stack = [span for span in stack if span.end_us >= time]
        yield key, "/".join(span.name.removeprefix(MODULE) for span in stack)


def _device(trace: Trace) -> tuple[str | None, str | None, list[str]]:
    used = sorted({work.args.device for work in trace.work if work.args and isinstance(work.args.device, int)})
    known = {device.id: device for device in trace.devices}
    device = known.get(used[0] if used else 0)
    notes = [f"the trace covers {len(used)} GPUs, all of them in the totals"] if len(used) > 1 else []
    if device is None:
        return None, None, notes
    capable = device.major is not None and device.minor is not None
    return device.name, f"{device.major}.{device.minor}" if capable else None, notes


def _wall(found: list[Step]) -> tuple[dict[str, Value], list[str]]:
    """The host's time for the profiler's steps."""
    steps: dict[int, float] = {}
    for step in found:
        steps.setdefault(int(step.name.removeprefix("ProfilerStep#")), step.dur)
    if not steps:
        return {}, []
    names = ", ".join(f"ProfilerStep#{number}" for number in sorted(steps)[:4]) + (", ..." if len(steps) > 4 else "")
    notes = [f"the trace holds {len(steps)} steps ({names}): the totals cover all of them"] if len(steps) > 1 else []
    origin = f"torch profiler: duration of {names} on the host, which does not wait for the GPU"
    return {"wall_time_s": Value(sum(steps.values()) * 1e-6, origin)}, notes


def _version(value: int | str | None) -> str | None:
    """12040 is 12.4."""
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value >= 1000 else None
