"""A Chrome trace of PyTorch's profiler (`prof.export_chrome_trace`): kernels with times, and the op each belongs to.

A kernel carries the number of the runtime call that launched it; that call lies inside the ops and ranges that were
open on its thread. The path of those is the kernel's label. Times in the file are microseconds.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from rooflight.errors import BadFile
from rooflight.importing.log import Dim3, Launch, Log, Reading
from rooflight.importing.source import Source
from rooflight.ledger import KernelKind, Value

_KINDS: dict[str, KernelKind] = {
    "kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "set", "memset": "set",
}  # fmt: skip
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_RANGES = frozenset({"cpu_op", "operator", "user_annotation"})
_MODULE = "nn.Module: "
_STEP = re.compile(r"ProfilerStep#(\d+)")


class _Args(msgspec.Struct):
    """Other events use the same names for other things, so nothing is typed until it is used."""

    correlation: Any = None
    external: Any = msgspec.field(name="External id", default=None)
    external_before: Any = msgspec.field(name="external id", default=None)
    grid: Any = None
    block: Any = None
    stream: Any = None
    device: Any = None
    bytes: Any = None


class _Event(msgspec.Struct):
    ph: str = ""
    name: Any = ""
    cat: Any = ""
    ts: Any = None
    dur: Any = None
    pid: Any = None
    tid: Any = None
    args: _Args | None = None


class _Trace(msgspec.Struct):
    events: list[_Event] = msgspec.field(name="traceEvents")
    devices: Any = msgspec.field(name="deviceProperties", default=None)
    runtime: Any = msgspec.field(name="cuda_runtime_version", default=None)


@dataclass(frozen=True)
class _Span:
    start_us: float
    end_us: float
    name: str


def read(source: Source) -> Log:
    trace = _decoded(source)
    events = [event for event in trace.events if event.ph == "X" and _is_number(event.ts) and _is_number(event.dur)]
    gpu = [event for event in events if _category(event) in _KINDS]
    if not gpu:
        raise BadFile(
            f"{source.name} is a trace without GPU kernels: profile with ProfilerActivity.CUDA on a machine with a GPU"
        )
    paths = _paths(events)
    first = min(event.ts for event in gpu)
    launches = tuple(_launch(event, first, paths) for event in gpu)
    notes = []
    if unknown := sum(launch.kind == "kernel" and not launch.label for launch in launches):
        notes.append(
            f"{unknown:,} kernels belong to no op: a CUDA graph launched them, or the trace lacks the call that did"
        )
    device, capability, more = _device(trace, gpu)
    totals, steps = _wall(events)
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


def _decoded(source: Source) -> _Trace:
    content = source.text.encode()
    if content.lstrip()[:1] == b"[":
        content = b'{"traceEvents":' + content + b"}"
    try:
        return msgspec.json.decode(content, type=_Trace)
    except msgspec.ValidationError as error:
        if '"format_version"' in source.text[:200]:
            raise BadFile(f"{source.name} is a ledger already: show it with: rooflight report {source.name}") from None
        raise BadFile(f"{source.name} is JSON, but no Chrome trace of PyTorch's profiler: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        place = re.search(r"byte (\d+)", str(error))
        # Where the text ends too early, that is the last line.
        line = content[: int(place[1])].count(b"\n") + 1 if place is not None else len(source.lines)
        raise source.bad(line, f"the trace breaks off or is no JSON ({error}): export it again") from None


def _category(event: _Event) -> str:
    return event.cat.lower() if isinstance(event.cat, str) else ""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _launch(event: _Event, first: float, paths: dict[Any, str]) -> Launch:
    args = event.args or _Args()
    metrics = {"copied_bytes": Reading(args.bytes, "byte")} if _is_number(args.bytes) else {}
    return Launch(
        name=str(event.name),
        kind=_KINDS[_category(event)],
        grid=_dim3(args.grid),
        block=_dim3(args.block),
        stream=args.stream if isinstance(args.stream, int) else None,
        start_s=(event.ts - first) * 1e-6,
        time_s=event.dur * 1e-6,
        label=paths.get(("call", args.correlation)) or paths.get(("op", _external(args))) or "",
        metrics=metrics,
    )


def _dim3(value: Any) -> Dim3 | None:
    if isinstance(value, list) and len(value) == 3 and all(isinstance(size, int) for size in value):
        return (value[0], value[1], value[2])
    return None


def _external(args: _Args) -> Any:
    return args.external if args.external is not None else args.external_before


def _paths(events: Iterable[_Event]) -> dict[Any, str]:
    """The ranges that were open when a call was made, outermost first, by the call's number and by the op's."""
    spans: dict[Any, list[_Span]] = {}
    asked: dict[Any, list[tuple[float, Any]]] = {}
    for event in events:
        thread, args, category = (event.pid, event.tid), event.args, _category(event)
        if category in _CALLS and args is not None and args.correlation is not None:
            asked.setdefault(thread, []).append((event.ts, ("call", args.correlation)))
        elif _is_range(event, category):
            spans.setdefault(thread, []).append(_Span(event.ts, event.ts + event.dur, str(event.name)))
            if args is not None and (number := _external(args)) is not None and category != "user_annotation":
                asked.setdefault(thread, []).append((event.ts, ("op", number)))
    return {key: path for thread, times in asked.items() for key, path in _open(spans.get(thread, []), times)}


def _is_range(event: _Event, category: str) -> bool:
    if category == "python_function":
        return str(event.name).startswith(_MODULE)
    return category in _RANGES and not _STEP.fullmatch(str(event.name))


def _open(spans: list[_Span], times: list[tuple[float, Any]]) -> Iterator[tuple[Any, str]]:
    """Go through one thread's time with the stack of open ranges."""
    coming = sorted(spans, key=lambda span: (span.start_us, -span.end_us))
    stack: list[_Span] = []
    place = 0
    for time, key in sorted(times, key=lambda entry: entry[0]):
        while place < len(coming) and coming[place].start_us <= time:
            stack.append(coming[place])
            place += 1
        stack = [span for span in stack if span.end_us >= time]
        yield key, "/".join(span.name.removeprefix(_MODULE) for span in stack)


def _device(trace: _Trace, gpu: list[_Event]) -> tuple[str | None, str | None, list[str]]:
    used = sorted({event.args.device for event in gpu if event.args is not None and isinstance(event.args.device, int)})
    listed = trace.devices if isinstance(trace.devices, list) else []
    known = {entry.get("id"): entry for entry in listed if isinstance(entry, dict)}
    entry = known.get(used[0] if used else 0, {})
    name = entry.get("name")
    major, minor = entry.get("computeMajor"), entry.get("computeMinor")
    notes = [f"the trace covers {len(used)} GPUs, all of them in the totals"] if len(used) > 1 else []
    capability = f"{major}.{minor}" if isinstance(major, int) and isinstance(minor, int) else None
    return (name if isinstance(name, str) else None), capability, notes


def _wall(events: Iterable[_Event]) -> tuple[dict[str, Value], list[str]]:
    """The host's time for the profiler's steps."""
    steps: dict[int, float] = {}
    for event in events:
        found = _STEP.fullmatch(str(event.name))
        if found is not None and not _category(event).startswith("gpu"):
            steps.setdefault(int(found[1]), event.dur)
    if not steps:
        return {}, []
    names = ", ".join(f"ProfilerStep#{number}" for number in sorted(steps)[:4]) + (", ..." if len(steps) > 4 else "")
    notes = [f"the trace holds {len(steps)} steps ({names}): the totals cover all of them"] if len(steps) > 1 else []
    origin = f"torch profiler: duration of {names} on the host, which does not wait for the GPU"
    return {"wall_time_s": Value(sum(steps.values()) * 1e-6, origin)}, notes


def _version(value: Any) -> str | None:
    """12040 is 12.4."""
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value >= 1000 else None
