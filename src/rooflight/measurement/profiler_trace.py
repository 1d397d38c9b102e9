"""What torch's profiler saw of one run: device work, the calls that launched it, CPU ops, and our own marks.

The profiler writes a Chrome trace; only the fields that attribution needs are decoded, strictly. Its categories:
`kernel`, `gpu_memcpy` and `gpu_memset` are device work (`gpu_user_annotation` is only a bracket around it);
`cuda_runtime` and `cuda_driver` are the launching calls, joined to device work by `correlation`; `cpu_op` and
`user_annotation` are host ranges, joined to what was launched inside them by `External id`.
"""

from __future__ import annotations

import bisect
import os
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from rooflight.errors import BadFile, CannotMeasure
from rooflight.ledger import KernelKind

MARK = "rooflight::"
"""Our ranges in a trace are this and the index of an op."""

_DEVICE_WORK: dict[str, KernelKind] = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "set"}
_CALLS = ("cuda_runtime", "cuda_driver")
_HOST_RANGES = ("cpu_op", "user_annotation")

Thread = tuple[int | str, int | str]
"""Process and thread as the trace names them."""
Sizes = tuple[int, int, int]


class Point(NamedTuple):
    """A moment on a host thread, and how long took what began there."""

    thread: Thread
    time_ns: int
    took_ns: int = 0


class Marker:
    """Hooks for the marked run: a profiler range, `rooflight::INDEX`, around each op.

    Ranges go around the dispatcher (`_RecordFunctionFast`: 0.7 µs, where `record_function` takes 7 and dispatches ops).
    """

    def __init__(self) -> None:
        import torch

        profiler: Any = torch._C._profiler
        self._range = getattr(profiler, "_RecordFunctionFast", torch.profiler.record_function)
        # By index, not as a stack: backward runs in a thread of its own.
        self._open: dict[int, Any] = {}

    def before(self, index: int) -> None:
        opened = self._range(f"{MARK}{index}")
        self._open[index] = opened
        opened.__enter__()

    def after(self, index: int) -> None:
        opened = self._open.pop(index, None)
        if opened is not None:
            opened.__exit__(None, None, None)


@dataclass(frozen=True)
class Mark:
    """The range of one op in a marked run."""

    op: int
    thread: Thread
    start_ns: int
    end_ns: int


class Span(NamedTuple):
    """A host range: an op that torch ran, or an annotation."""

    name: str
    thread: Thread
    start_ns: int
    end_ns: int


@dataclass(frozen=True)
class DeviceWork:
    """One kernel, copy or set as the device ran it."""

    name: str
    kind: KernelKind
    start_ns: int
    time_ns: int
    device: int
    stream: int
    correlation: int
    external: int | None = None
    grid: Sizes | None = None
    block: Sizes | None = None
    graph_node: int | None = None


@dataclass(frozen=True)
class Trace:
    """One run. Times are nanoseconds of one clock, the profiler's."""

    marks: tuple[Mark, ...] = ()
    work: tuple[DeviceWork, ...] = ()
    calls: dict[int, Point] = field(default_factory=dict)
    """By correlation: when and where the work was launched."""
    ranges: dict[int, Point] = field(default_factory=dict)
    """By `External id`: where a host range began."""
    spans: tuple[Span, ...] = ()
    """The host ranges themselves: ops and annotations."""
    graph_launches: int = 0
    """How often a CUDA graph was launched."""


class _Event(msgspec.Struct):
    ph: str
    cat: str = ""
    name: str = ""
    pid: int | str = 0
    tid: int | str = 0
    ts: float = 0.0
    dur: float = 0.0
    args: msgspec.Raw = msgspec.Raw(b"{}")


class _Document(msgspec.Struct):
    traceEvents: list[_Event]  # noqa: N815 (the trace's own name)


class _WorkArgs(msgspec.Struct):
    """Peer copies name no `device` but the one they ran in."""

    correlation: int
    stream: int
    device: int | None = None
    in_device: int | None = msgspec.field(default=None, name="inDevice")
    external: int | None = msgspec.field(default=None, name="External id")
    grid: Sizes | None = None
    block: Sizes | None = None
    graph_node: int = msgspec.field(default=0, name="graph node id")


class _CallArgs(msgspec.Struct):
    correlation: int | None = None


class _RangeArgs(msgspec.Struct):
    """Other arguments of a range are its maker's own, of any type: they are not looked at."""

    external: int | None = msgspec.field(default=None, name="External id")


def profiled(run: Callable[[], None], *, cuda: bool) -> Trace:
    """Run once under torch's profiler and read what it saw; with `cuda`, wait for the device before it stops."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if cuda and not torch.cuda.is_available():
        raise CannotMeasure("torch sees no CUDA device, so there is no GPU timeline: `rooflight doctor` says why")
    if torch.autograd._profiler_enabled():
        raise CannotMeasure("torch's profiler is running already, and would be ended: measure outside of it")
    # Else torch 2.13's profiler writes a line to the terminal at every start and stop; it reads the level once.
    os.environ.setdefault("KINETO_LOG_LEVEL", "6")
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    with warnings.catch_warnings():
        # Some versions tell at every profile that it holds one cycle, which is what is wanted.
        warnings.filterwarnings("ignore", message=".*Profiler clears events at the end of each cycle")
        with profile(activities=activities) as profiler:
            run()
            if cuda:
                torch.cuda.synchronize()
    # The file has everything (the in-memory events have no grid in all versions), and is faster to read than they are.
    with tempfile.TemporaryDirectory(prefix="rooflight-") as folder:
        path = Path(folder) / "trace.json"
        try:
            profiler.export_chrome_trace(str(path))
            content = path.read_bytes()
        except (OSError, RuntimeError) as error:
            raise CannotMeasure(
                f"torch's profiler could not write its trace below {tempfile.gettempdir()} ({error}): is the disk "
                "full? TMPDIR names another place"
            ) from error
        trace = decode(content, source="the trace of torch's profiler")
    if cuda and not trace.work:
        raise CannotMeasure(
            "torch's profiler saw no kernel: stop other profilers on this GPU (nsys, ncu, DCGM); "
            "`rooflight doctor` says who holds it"
        )
    return trace


def decode(content: bytes, *, source: str) -> Trace:
    """Read a Chrome trace as torch's profiler writes it; `source` names it in errors."""
    marks: list[Mark] = []
    work: list[DeviceWork] = []
    calls: dict[int, Point] = {}
    ranges: dict[int, Point] = {}
    spans: list[Span] = []
    graph_launches = 0
    try:
        for event in msgspec.json.decode(content, type=_Document).traceEvents:
            if event.ph != "X":
                continue
            if event.cat in _DEVICE_WORK:
                work.append(_work(event))
            elif event.cat in _CALLS:
                graph_launches += "GraphLaunch" in event.name
                correlation = _CALL_ARGS.decode(event.args).correlation
                if correlation is not None:
                    # A runtime call and the driver call inside it share the number: the outer one comes first in time.
                    point = Point((event.pid, event.tid), _ns(event.ts), _ns(event.dur))
                    known = calls.get(correlation)
                    calls[correlation] = point if known is None or point.time_ns < known.time_ns else known
            elif event.cat in _HOST_RANGES:
                start_ns = _ns(event.ts)
                thread = (event.pid, event.tid)
                external = _RANGE_ARGS.decode(event.args).external
                if external is not None:
                    ranges[external] = Point(thread, start_ns)
                index = event.name.removeprefix(MARK)
                if index != event.name and index.isdecimal():
                    marks.append(Mark(int(index), thread, start_ns, start_ns + _ns(event.dur)))
                else:
                    spans.append(Span(event.name, thread, start_ns, start_ns + _ns(event.dur)))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError, ValueError) as error:
        line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise BadFile(f"{source} cannot be read: {line}") from error
    return Trace(tuple(marks), tuple(work), calls, ranges, tuple(spans), graph_launches)


_WORK_ARGS = msgspec.json.Decoder(_WorkArgs)
_CALL_ARGS = msgspec.json.Decoder(_CallArgs)
_RANGE_ARGS = msgspec.json.Decoder(_RangeArgs)


def _work(event: _Event) -> DeviceWork:
    args = _WORK_ARGS.decode(event.args)
    device = args.device if args.device is not None else args.in_device
    return DeviceWork(
        name=event.name,
        kind=_DEVICE_WORK[event.cat],
        start_ns=_ns(event.ts),
        time_ns=_ns(event.dur),
        device=device if device is not None else 0,
        stream=args.stream,
        correlation=args.correlation,
        external=args.external,
        grid=args.grid,
        block=args.block,
        graph_node=args.graph_node or None,
    )


def _ns(time_us: float) -> int:
    """A trace counts microseconds with three decimals."""
    return round(time_us * 1000)


class Marks:
    """Finds the innermost mark around a moment of a thread."""

    def __init__(self, marks: Iterable[Mark]) -> None:
        self._threads: dict[Thread, list[tuple[Mark, int | None]]] = {}
        by_thread: dict[Thread, list[Mark]] = defaultdict(list)
        for mark in marks:
            by_thread[mark.thread].append(mark)
        for thread, own in by_thread.items():
            self._threads[thread] = list(_nested(own))

    def at(self, point: Point | None) -> int | None:
        rows = self._threads.get(point.thread) if point is not None else None
        if point is None or rows is None:
            return None
        position: int | None = bisect.bisect_right(rows, point.time_ns, key=lambda row: row[0].start_ns) - 1
        if position == -1:
            return None
        while position is not None:
            mark, around = rows[position]
            if point.time_ns <= mark.end_ns:
                return mark.op
            position = around
        return None


def _nested(marks: Iterable[Mark]) -> Iterator[tuple[Mark, int | None]]:
    """The marks of one thread in order of start, each with the position of the one around it."""
    around: list[tuple[int, Mark]] = []
    for position, mark in enumerate(sorted(marks, key=lambda mark: (mark.start_ns, -mark.end_ns))):
        while around and around[-1][1].end_ns < mark.end_ns:
            around.pop()
        yield mark, around[-1][0] if around else None
        around.append((position, mark))
