"""A trace of PyTorch's profiler without a GPU: ops of torch with their times on the CPU.

Ops call ops. A row is an op as a ledger has it: the outermost that is no composition of others (`aten::convolution`,
not `aten::conv2d` around it nor `aten::mkldnn_convolution` inside it), with all that it does. What lies around those
(compositions, autograd's functions) is a row with its own time only, so that every moment of a thread counts once.
What `record_shapes=True` notes of a call is enough to make it again on tensors without data, and to estimate it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rooflight._version import __version__
from rooflight.errors import BadFile
from rooflight.estimation.costs import fill_costs
from rooflight.ledger import FORMAT_VERSION, Header, Ledger, MathModes, Note
from rooflight.profiles.kineto import MODULE, MOST_NESTED, HostRange, KinetoTrace, Thread, path_of
from rooflight.profiles.log import LoggedLaunch, ProfilerLog
from rooflight.profiles.operator_calls import NO_SHAPES, CallNotKnown, OperatorCalls, phase_of, undisturbed

_OPS = ("cpu_op", "operator")


@dataclass
class _TimedRange:
    """A range on its thread; `own_ns` is what is left of it by rows inside."""

    position: int
    end_ns: int
    own_ns: int
    path: tuple[str, ...]
    """The ranges around it, outermost first, and no more of them than a label has."""
    whole: bool
    """Does it take all that is inside it?"""


def read(trace: KinetoTrace, *, name: str) -> ProfilerLog:
    """`name` is that of the file, for messages."""
    calls = OperatorCalls()
    times = [time for time in _times(trace, calls) if trace.ranges[time.position].cat.lower() in _OPS]
    if not times:
        raise BadFile(
            "empty-trace",
            f"{name} is a trace without GPU kernels and without ops: nothing ran while torch's profiler did",
        )
    traced, owners, reasons = _traced(trace, times, calls)
    first = min(trace.ranges[time.position].ts for time in times)
    launches = tuple(
        LoggedLaunch(
            name=trace.ranges[time.position].name,
            kind="op",
            start_s=(trace.ranges[time.position].ts - first) * 1e-6,
            time_s=time.own_ns * 1e-9,
            label=path_of(time.path),
            ops=owners.get(place, ()),
        )
        for place, time in enumerate(times)
    )
    return ProfilerLog(
        tool="torch profiler",
        about="Chrome trace of PyTorch's profiler, of the CPU alone",
        launches=launches,
        time_origin="torch profiler: time on the CPU",
        target="cpu",
        ops=traced.ops,
        storages=traced.storages,
        notes=tuple(_notes(traced, reasons)),
    )


def _times(trace: KinetoTrace, calls: OperatorCalls) -> Iterator[_TimedRange]:
    """Every range that is no part of an op, thread by thread, in the order of time."""
    threads: dict[Thread, list[tuple[int, int, int]]] = {}
    for position, item in enumerate(trace.ranges):
        if item.dur >= 0:  # one that was open when the profiler stopped was never around anything
            threads.setdefault(item.thread, []).append((item.start_ns, -item.time_ns, position))
    for rows in threads.values():
        rows.sort()
        stack: list[_TimedRange] = []
        for start_ns, minus_ns, position in rows:
            while stack and stack[-1].end_ns <= start_ns:
                stack.pop()
            outer = stack[-1] if stack else None
            if outer is not None and outer.whole:
                continue
            item = trace.ranges[position]
            end_ns = start_ns - minus_ns
            if outer is not None:
                outer.own_ns -= min(end_ns, outer.end_ns) - start_ns
            own = _TimedRange(position, end_ns, -minus_ns, _path(trace, outer), _is_whole(item, calls))
            stack.append(own)
            yield own


def _path(trace: KinetoTrace, outer: _TimedRange | None) -> tuple[str, ...]:
    if outer is None:
        return ()
    if len(outer.path) >= MOST_NESTED:
        return outer.path  # the same tuple for all below, however deep
    return (*outer.path, _called(trace.ranges[outer.position]))


def _called(item: HostRange) -> str:
    return item.name.removeprefix(MODULE)


def _is_whole(item: HostRange, calls: OperatorCalls) -> bool:
    return item.cat.lower() in _OPS and calls.is_operator(item.name) and not calls.is_composition(item.name)


def _traced(
    trace: KinetoTrace, times: list[_TimedRange], calls: OperatorCalls
) -> tuple[Ledger, dict[int, tuple[int, ...]], dict[str, int]]:
    """The ops that could be made again, which row each is of, and how many could not be, by reason."""
    recorder = calls.recorder(MathModes(tf32_conv=False, tf32_matmul=False))
    owners: dict[int, tuple[int, ...]] = {}
    reasons: dict[str, int] = {}
    for place, time in enumerate(times):
        if not time.whole:
            continue
        try:
            recorder.phase = phase_of(time.path)
            call = calls.noted(trace.ranges[time.position])
            with undisturbed():
                owners[place] = (calls.record(recorder, call, ()),)
        except CallNotKnown as reason:
            reasons[str(reason)] = reasons.get(str(reason), 0) + 1
    header = Header(
        rooflight=__version__, torch=None, model="", step=None, target="cpu", batch=None, dtype=None, math=None
    )
    storages = recorder.storages.close()
    ledger = Ledger(format_version=FORMAT_VERSION, header=header, storages=storages, ops=tuple(recorder.ops))
    return fill_costs(ledger), owners, reasons


def _notes(traced: Ledger, reasons: dict[str, int]) -> Iterator[Note]:
    yield (
        Note(
            "times-of-calls",
            "an op's time is that of its call with all that it calls; compositions of ops and functions of autograd "
            "have only their own: no time counts twice",
        )
    )
    if not traced.ops and NO_SHAPES in reasons:
        yield (
            Note(
                "no-shapes",
                "the trace has no shapes, so that nothing can be estimated beside the times: profile with "
                "record_shapes=True",
            )
        )
        return
    yield Note(
        "estimated-work",
        "FLOPs and bytes are estimated from the shapes that the trace notes; what was executed was not counted",
    )
    for reason, count in reasons.items():
        yield Note("rows-without-estimate", f"{count:,} rows have no estimate: {reason}")
