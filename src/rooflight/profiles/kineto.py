"""Traces of PyTorch's profiler (Kineto, `prof.export_chrome_trace`): device work, calls that launch it, host ranges.

The one reader of that format: for a trace that a user imports and for the runs that rooflight profiles itself. A trace
may hold events of other makers, of any shape: they are passed over, not decoded. What has a category of PyTorch's
profiler is decoded strictly: a kernel left out, or a time that is none, would make a wrong sum.

`kernel`, `gpu_memcpy` and `gpu_memset` are device work (`gpu_user_annotation` is only a bracket around it);
`cuda_runtime` and `cuda_driver` are the launching calls, joined to device work by `correlation`; `cpu_op` and
`user_annotation` are host ranges, joined to what was launched inside them by `External id`. Times in the file are
microseconds with three decimals.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Annotated, Any, TypeVar

import msgspec

from rooflight.errors import BadFile
from rooflight.files import UNDECODABLE
from rooflight.ledger import KernelKind
from rooflight.spec import shell

KINDS: dict[str, KernelKind] = {
    "kernel": "kernel",
    "gpu_memcpy": "copy",
    "memcpy": "copy",
    "gpu_memset": "set",
    "memset": "set",
}
MODULE = "nn.Module: "
_MODULE = f'"{MODULE}'.encode()
OPS = ("cpu_op", "operator")
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_RANGES = frozenset({*OPS, "user_annotation"})

Id = int | str
"""Versions and backends write processes, threads and correlations as either."""
Thread = tuple[Id | None, Id | None]
"""Process and thread as the trace names them."""
Sizes = tuple[int, int, int]
# Since 1970 it is 2e15 us now; and nothing that is profiled runs for eleven days.
_Moment = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Duration = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
_Generation = Annotated[int, msgspec.Meta(ge=0, le=99)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)] | Annotated[float, msgspec.Meta(ge=0, le=2.0**62)]


class HostRangeArgs(msgspec.Struct, frozen=True, gc=False):
    """The other arguments of a range are its maker's own, of any type."""

    external_now: Id | None = msgspec.field(name="External id", default=None)
    external_before: Id | None = msgspec.field(name="external id", default=None)
    """As older versions wrote it."""

    @property
    def external(self) -> Id | None:
        return self.external_now if self.external_now is not None else self.external_before


class OpCallArgs(HostRangeArgs, frozen=True, gc=False):
    """What an op was called with, as `record_shapes=True` notes it: undecoded, for most readers do not ask."""

    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=msgspec.Raw(b"null"))
    types: msgspec.Raw = msgspec.field(name="Input type", default=msgspec.Raw(b"null"))
    strides: msgspec.Raw = msgspec.field(name="Input Strides", default=msgspec.Raw(b"null"))
    """Of newer versions."""
    concrete: msgspec.Raw = msgspec.field(name="Concrete Inputs", default=msgspec.Raw(b"null"))
    """Numbers and lists of them as text; empty for tensors and what was not given."""


class DeviceWorkArgs(HostRangeArgs, frozen=True, gc=False):
    """Any of them may be missing: copies have no grid, and those between GPUs name no `device` but the one they ran
    in. `external` is the host range it was launched in."""

    correlation: Id | None = None
    grid: tuple[_Size, _Size, _Size] | None = None
    block: tuple[_Size, _Size, _Size] | None = None
    stream: _Number | str | None = None
    device: _Number | str | None = None
    in_device: _Number | str | None = msgspec.field(name="inDevice", default=None)
    bytes: _Bytes | None = None
    graph_node: int | None = msgspec.field(name="graph node id", default=None)
    collective: Any = msgspec.field(name="Collective name", default=None)
    """Of kernels of NCCL, as newer versions note them; other makers may mean anything by these."""
    elements: Any = msgspec.field(name="In msg nelems", default=None)
    element_type: Any = msgspec.field(name="dtype", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    group_ranks: Any = msgspec.field(name="Process Group Ranks", default=None)
    sequence: Any = msgspec.field(name="Seq", default=None)


class _Timed(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    ts: _Moment
    dur: _Moment = 0.0

    @property
    def start_ns(self) -> int:
        return _ns(self.ts)

    @property
    def time_ns(self) -> int:
        return _ns(self.dur)

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.time_ns


class DeviceWork(_Timed, frozen=True, gc=False, kw_only=True):
    """One kernel, copy or fill as the device ran it."""

    name: str
    cat: str
    dur: _Duration
    args: DeviceWorkArgs = DeviceWorkArgs()

    @property
    def kind(self) -> KernelKind:
        return KINDS[self.cat.lower()]

    @property
    def device(self) -> int | None:
        numbers = (device for device in (self.args.device, self.args.in_device) if isinstance(device, int))
        return next(numbers, None)


class _HostEvent(_Timed, frozen=True, gc=False, kw_only=True):
    """Something on a thread of the host."""

    pid: Id | None = None
    tid: Id | None = None

    @property
    def thread(self) -> Thread:
        return self.pid, self.tid


class RuntimeCallArgs(msgspec.Struct, frozen=True, gc=False):
    correlation: Id | None = None


class RuntimeCall(_HostEvent, frozen=True, gc=False, kw_only=True):
    """A call of the runtime or the driver."""

    name: str = ""
    args: RuntimeCallArgs = RuntimeCallArgs()


class HostRange(_HostEvent, frozen=True, gc=False, kw_only=True):
    """An op, a module or an annotation on the host. One that was open when the profiler stopped may end before it
    began: such a range was never around anything."""

    name: str
    cat: str
    args: OpCallArgs = OpCallArgs()


class ProfilerStep(_Timed, frozen=True, gc=False, kw_only=True):
    """A step of the profiler's schedule, on the host's clock."""

    name: str
    dur: _Duration
    ts: _Moment = 0.0

    @property
    def number(self) -> int:
        return int(self.name.removeprefix("ProfilerStep#"))


class TracedDevice(msgspec.Struct, frozen=True):
    """A GPU as the head of the trace describes it."""

    id: Id | None = None
    name: str | None = None
    major: _Generation | None = msgspec.field(name="computeMajor", default=None)
    minor: _Generation | None = msgspec.field(name="computeMinor", default=None)
    warp: Any = msgspec.field(name="warpSize", default=None)

    @property
    def is_amd(self) -> bool:
        """Its generation is none of NVIDIA's: gfx90a calls itself 9.0, as Hopper does."""
        return self.warp == 64 or (self.name or "").startswith("AMD")


class _TraceDocument(msgspec.Struct, frozen=True):
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")
    devices: list[TracedDevice] | None = msgspec.field(name="deviceProperties", default=None)
    runtime: _Number | str | None = msgspec.field(name="cuda_runtime_version", default=None)
    distributed: Any = msgspec.field(name="distributedInfo", default=None)
    host: Any = msgspec.field(name="host_name", default=None)
    base_ns: Any = msgspec.field(name="baseTimeNanoseconds", default=None)


class _EventHead(msgspec.Struct, frozen=True, gc=False):
    """What shows whether an event is one of ours; others may use the same fields for anything."""

    ph: Any = None
    cat: Any = None
    name: msgspec.Raw = msgspec.Raw(b'""')


@dataclass(frozen=True)
class KinetoTrace:
    """What is read of a trace, each in the order of the file."""

    devices: list[TracedDevice]
    runtime: int | str | None
    work: list[DeviceWork] = field(default_factory=list)
    calls: list[RuntimeCall] = field(default_factory=list)
    ranges: list[HostRange] = field(default_factory=list)
    steps: list[ProfilerStep] = field(default_factory=list)
    rank: int | None = None
    """Of the process, where it knew; and how many there were."""
    world: int | None = None
    host: str = ""
    base_ns: int = 0
    """What times in the file are counted from: two traces of one machine may differ in it."""


_HEAD = msgspec.json.Decoder(_EventHead)
_WORK = msgspec.json.Decoder(DeviceWork)
_CALL = msgspec.json.Decoder(RuntimeCall)
_RANGE = msgspec.json.Decoder(HostRange)
_PROFILER_STEP = msgspec.json.Decoder(ProfilerStep)


def decode(content: bytes, *, name: str) -> KinetoTrace:
    """The events of a trace; what is wrong with it is a `BadFile` of one line, in which `name` says of which file."""
    document = _document(content, name)
    distributed = document.distributed if isinstance(document.distributed, dict) else {}
    trace = KinetoTrace(
        document.devices or [],
        document.runtime,
        rank=_count(distributed.get("rank")),
        world=_count(distributed.get("world_size")),
        host=document.host if isinstance(document.host, str) else "",
        base_ns=_count(document.base_ns, 2**62) or 0,
    )
    for number, raw in enumerate(document.events, start=1):
        try:
            _add(trace, raw)
        except UNDECODABLE as error:
            what = f"event {number} of the trace is not as PyTorch's profiler writes it ({error}): export it again"
            raise BadFile("damaged-file", f"{name}: {what}") from None
    return trace


def _count(value: Any, most: int = 10**7) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < most else None


def _add(trace: KinetoTrace, raw: msgspec.Raw) -> None:
    try:
        head = _HEAD.decode(raw)
    except msgspec.ValidationError:
        return  # no object, or a category that is none
    if head.ph != "X" or not isinstance(head.cat, str):
        return
    category = head.cat.lower()
    if category in KINDS:
        trace.work.append(_WORK.decode(raw))
    elif category in _CALLS:
        trace.calls.append(_CALL.decode(raw))
    elif category in _RANGES:
        host_range = _RANGE.decode(raw)
        if _STEP.fullmatch(host_range.name):
            trace.steps.append(_PROFILER_STEP.decode(raw))
        else:
            trace.ranges.append(host_range)
    elif category == "python_function" and bytes(head.name).startswith(_MODULE):
        # Every other Python function is one of these too, many to each op.
        trace.ranges.append(_RANGE.decode(raw))


def _document(content: bytes, name: str) -> _TraceDocument:
    if content.lstrip()[:1] == b"[":
        content = b'{"traceEvents":' + content + b"}"
    try:
        return msgspec.json.decode(content, type=_TraceDocument)
    except msgspec.ValidationError as error:
        if b'"format_version"' in content[:300]:
            known = f"{name} is a file of rooflight's own, no log: show it with: {shell('report', name)}"
            raise BadFile("not-a-trace", known) from None
        raise BadFile("not-a-trace", f"{name} is JSON, but no Chrome trace of PyTorch's profiler: {error}") from None
    except UNDECODABLE as error:
        place = re.search(r"byte (\d+)", str(error))
        # Where the text ends too early, that is the last line.
        line = content[: int(place[1]) if place is not None else None].count(b"\n") + 1
        raise BadFile(
            "damaged-file", f"{name}, line {line}: the trace breaks off or is no JSON ({error}): export it again"
        ) from None


def _ns(time_us: float) -> int:
    return round(time_us * 1000)


_Key = TypeVar("_Key")
LaunchKey = tuple[str, Id | None]
"""What device work is found by on the host: `call` and a correlation, or `op` and an external id."""
MOST_NESTED = 100
"""Ranges that a path names, the outermost: no model nests so deep, and a damaged file may nest without end."""


def launch_stacks(trace: KinetoTrace) -> dict[LaunchKey, list[int]]:
    """For each call that launched device work, and for each op that did, the ranges around it, as positions."""
    keys = {key for work in trace.work for key in _keys(work)}
    return dict(open_ranges(trace.ranges, (moment for moment in _launch_moments(trace) if moment[2] in keys)))


def stack_of(work: DeviceWork, stacks: Mapping[LaunchKey, list[int]]) -> list[int]:
    """The ranges around a launch, outermost first."""
    call, op = _keys(work)
    return stacks.get(call) or stacks.get(op) or []


def _keys(work: DeviceWork) -> tuple[LaunchKey, LaunchKey]:
    return ("call", work.args.correlation), ("op", work.args.external)


def _launch_moments(trace: KinetoTrace) -> Iterator[tuple[Thread, int, LaunchKey]]:
    """When each call of the runtime was made, by its number, and when each op began, by its own."""
    for call in trace.calls:
        if call.args.correlation is not None:
            yield call.thread, call.start_ns, ("call", call.args.correlation)
    for host_range in trace.ranges:
        if host_range.args.external is not None and host_range.cat.lower() != "user_annotation":
            yield host_range.thread, host_range.start_ns, ("op", host_range.args.external)


def open_ranges(
    ranges: Sequence[HostRange], moments: Iterable[tuple[Thread, int, _Key]]
) -> Iterator[tuple[_Key, list[int]]]:
    """For each moment (thread, nanoseconds, and a key to know it by) the ranges that were open then.

    Gives positions in `ranges`, outermost first; moments come thread by thread, in the order of time.
    """
    by_thread: dict[Thread, list[tuple[int, _Key]]] = {}
    for thread, time_ns, key in moments:
        by_thread.setdefault(thread, []).append((time_ns, key))
    coming: dict[Thread, list[tuple[int, int, int]]] = {thread: [] for thread in by_thread}
    for position, host_range in enumerate(ranges):
        rows = coming.get((host_range.pid, host_range.tid))
        if rows is not None:
            start_ns = _ns(host_range.ts)
            rows.append((start_ns, -start_ns - _ns(host_range.dur), position))
    for thread, times in by_thread.items():
        rows = coming[thread]
        rows.sort()
        following = 0
        stack: list[tuple[int, int, int]] = []
        for time_ns, key in sorted(times, key=itemgetter(0)):
            while following < len(rows) and rows[following][0] <= time_ns:
                stack.append(rows[following])
                following += 1
            stack = [row for row in stack if row[1] <= -time_ns]
            yield key, [position for _, _, position in stack]
