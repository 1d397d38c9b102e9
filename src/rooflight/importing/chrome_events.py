"""The events of a Chrome trace that tell about kernels: device work, the calls that launch it, and host ranges.

A trace may hold events of other makers, of any shape: they are passed over, not decoded. What has a category of
PyTorch's profiler is decoded strictly: a kernel left out, or a time that is none, would make a wrong sum. Times are
microseconds.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec

from rooflight.errors import BadFile
from rooflight.importing.source import Source
from rooflight.ledger import KernelKind
from rooflight.spec import shell

KINDS: dict[str, KernelKind] = {
    "kernel": "kernel", "gpu_memcpy": "copy", "memcpy": "copy", "gpu_memset": "set", "memset": "set",
}  # fmt: skip
MODULE = "nn.Module: "
STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_CALLS = frozenset({"cuda_runtime", "cuda_driver", "runtime", "hip_runtime"})
_RANGES = frozenset({"cpu_op", "operator", "user_annotation"})

Id = int | str
"""Versions and backends write processes, threads and correlations as either."""
# Since 1970 it is 2e15 us now; and nothing that is profiled runs for eleven days.
_Moment = Annotated[float, msgspec.Meta(ge=-1e18, le=1e18)]
_Duration = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Number = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
_Size = Annotated[int, msgspec.Meta(ge=0, le=2**32)]
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**62)] | Annotated[float, msgspec.Meta(ge=0, le=2.0**62)]


class WorkArgs(msgspec.Struct, frozen=True):
    """Any of them may be missing: a graph's kernels have no correlation, copies have no grid."""

    correlation: Id | None = None
    external: Id | None = msgspec.field(name="External id", default=None)
    external_before: Id | None = msgspec.field(name="external id", default=None)
    grid: tuple[_Size, _Size, _Size] | None = None
    block: tuple[_Size, _Size, _Size] | None = None
    stream: _Number | str | None = None
    device: _Number | str | None = None
    bytes: _Bytes | None = None


class Work(msgspec.Struct, frozen=True):
    """One kernel, copy or fill on the device."""

    name: str
    cat: str
    ts: _Moment
    dur: _Duration
    args: WorkArgs | None = None

    @property
    def kind(self) -> KernelKind:
        return KINDS[self.cat.lower()]


class CallArgs(msgspec.Struct, frozen=True):
    correlation: Id | None = None


class Call(msgspec.Struct, frozen=True):
    """A call of the runtime or the driver."""

    ts: _Moment
    pid: Id | None = None
    tid: Id | None = None
    args: CallArgs | None = None


class RangeArgs(msgspec.Struct, frozen=True):
    """The other arguments of a range are its maker's own."""

    external: Id | None = msgspec.field(name="External id", default=None)
    external_before: Id | None = msgspec.field(name="external id", default=None)


class Range(msgspec.Struct, frozen=True):
    """An op, a module or an annotation on the host. One that was open when the profiler stopped may end before it
    began: such a range was never around anything."""

    name: str
    cat: str
    ts: _Moment
    dur: _Moment = 0.0
    pid: Id | None = None
    tid: Id | None = None
    args: RangeArgs | None = None


class Step(msgspec.Struct, frozen=True):
    """A step of the profiler's schedule."""

    name: str
    dur: _Duration


class Device(msgspec.Struct, frozen=True):
    id: Id | None = None
    name: str | None = None
    major: _Number | None = msgspec.field(name="computeMajor", default=None)
    minor: _Number | None = msgspec.field(name="computeMinor", default=None)


class _Document(msgspec.Struct, frozen=True):
    events: list[msgspec.Raw] = msgspec.field(name="traceEvents")
    devices: list[Device] | None = msgspec.field(name="deviceProperties", default=None)
    runtime: _Number | str | None = msgspec.field(name="cuda_runtime_version", default=None)


class _Head(msgspec.Struct, frozen=True):
    """What shows whether an event is one of ours; others may use the same fields for anything."""

    ph: Any = None
    cat: Any = None
    name: msgspec.Raw = msgspec.Raw(b'""')


@dataclass(frozen=True)
class Trace:
    """What is read of a trace, each in the order of the file."""

    devices: list[Device]
    runtime: int | str | None
    work: list[Work] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    ranges: list[Range] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)


_HEAD = msgspec.json.Decoder(_Head)
_WORK = msgspec.json.Decoder(Work)
_CALL = msgspec.json.Decoder(Call)
_RANGE = msgspec.json.Decoder(Range)
_STEP = msgspec.json.Decoder(Step)


def decode(source: Source) -> Trace:
    document = _document(source)
    trace = Trace(document.devices or [], document.runtime)
    for number, raw in enumerate(document.events, start=1):
        try:
            head = _HEAD.decode(raw)
        except msgspec.ValidationError:
            continue  # no object, or a category that is none
        if head.ph != "X" or not isinstance(head.cat, str):
            continue
        try:
            _sort(trace, head.cat.lower(), head.name, raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFile(
                f"{source.name}: event {number} of the trace, {_named(head)}, is not as PyTorch's profiler writes it "
                f"({error}): export it again"
            ) from None
    return trace


def _sort(trace: Trace, category: str, name: msgspec.Raw, raw: msgspec.Raw) -> None:
    if category in KINDS:
        trace.work.append(_WORK.decode(raw))
    elif category in _CALLS:
        trace.calls.append(_CALL.decode(raw))
    elif category in _RANGES:
        found = _RANGE.decode(raw)
        if STEP.fullmatch(found.name):
            trace.steps.append(_STEP.decode(raw))
        else:
            trace.ranges.append(found)
    elif category == "python_function" and bytes(name).startswith(f'"{MODULE}'.encode()):
        # Every other Python function is one of these too, many to each op.
        trace.ranges.append(_RANGE.decode(raw))


def _named(head: _Head) -> str:
    """Category and name as they stand in the file, on one line."""
    name = " ".join(bytes(head.name).decode(errors="replace").split())
    return f"{head.cat[:40]!r} {name if len(name) <= 60 else f'{name[:57]}...'}"


def _document(source: Source) -> _Document:
    content = source.text.encode()
    if content.lstrip()[:1] == b"[":
        content = b'{"traceEvents":' + content + b"}"
    try:
        return msgspec.json.decode(content, type=_Document)
    except msgspec.ValidationError as error:
        if '"format_version"' in source.text[:200]:
            raise BadFile(f"{source.name} is a ledger already: show it with: {shell('report', source.name)}") from None
        raise BadFile(f"{source.name} is JSON, but no Chrome trace of PyTorch's profiler: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        place = re.search(r"byte (\d+)", str(error))
        # Where the text ends too early, that is the last line.
        line = content[: int(place[1])].count(b"\n") + 1 if place is not None else len(source.lines)
        raise source.bad(line, f"the trace breaks off or is no JSON ({error}): export it again") from None
