"""The ops of a trace: what `record_shapes=True` notes of every call is enough to run it again on tensors without data,
and the call so made is the op that a trace of rooflight would hold.

Kernels, and time on a CPU, belong to the outermost op that is no composition of others (`aten::convolution`, not
`aten::conv2d` around it nor `aten::cudnn_convolution` inside it): the level at which a ledger sees ops.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rooflight._version import __version__
from rooflight.estimation.costs import fill_costs
from rooflight.ledger import FORMAT_VERSION, Header, Ledger, MathModes
from rooflight.ops.kernel_names import role_of
from rooflight.profiles.kineto import (
    MODULE,
    MOST_NESTED,
    OPS,
    DeviceWork,
    HostRange,
    KinetoTrace,
    LaunchKey,
    launch_stacks,
    open_ranges,
    stack_of,
)
from rooflight.profiles.operator_calls import (
    CallNotKnown,
    NotedCall,
    is_composition,
    noted,
    phase_of,
    record,
    recorder,
    schemas,
)

NO_OP = "kernels that no op of torch launched: of a CUDA graph, of compiled or of custom code"


@dataclass(frozen=True)
class CalledOps:
    """Ops that could be made again, in the order of their first kernels, or on a CPU of their calls."""

    ledger: Ledger
    """Of the ops alone, with their costs."""
    owners: Mapping[int, int]
    """By the place of a kernel, or of a row, the op that it belongs to."""
    modes: MathModes
    left_out: Mapping[str, tuple[int, float]]
    """How many ops, or kernels without one, could not be made again, and their seconds, by reason."""


@dataclass
class _Call:
    """A call, the ranges around it, and what belongs to it."""

    noted: NotedCall | CallNotKnown
    around: Sequence[str]
    places: list[int] = field(default_factory=list)
    time_ns: int = 0
    kernels: list[str] = field(default_factory=list)


def _recorded(calls: Iterable[_Call], modes: MathModes, *, target: str) -> CalledOps:
    made = recorder(modes)
    owners: dict[int, int] = {}
    left_out: dict[str, tuple[int, float]] = {}
    for call in calls:
        try:
            if isinstance(call.noted, CallNotKnown):
                raise call.noted
            made.phase = phase_of(call.around)
            owners |= dict.fromkeys(call.places, record(made, call.noted, call.kernels))
        except CallNotKnown as reason:
            count, seconds = left_out.get(str(reason), (0, 0.0))
            left_out[str(reason)] = count + 1, seconds + call.time_ns * 1e-9
    header = Header(
        rooflight=__version__, torch=None, model="", step=None, target=target, batch=None, dtype=None, math=modes
    )
    storages = made.storages.close()
    ledger = Ledger(format_version=FORMAT_VERSION, header=header, storages=storages, ops=tuple(made.ops))
    return CalledOps(fill_costs(ledger), owners, modes, left_out)


# --- on a GPU ---


def called_ops(trace: KinetoTrace, stacks: Mapping[LaunchKey, list[int]] | None = None) -> CalledOps:
    """Return the ops of a trace with kernels of a GPU. `stacks` are its own, where they are known already."""
    stacks = launch_stacks(trace) if stacks is None else stacks
    calls: dict[int, _Call] = {}
    for place, work in sorted(enumerate(trace.work), key=lambda each: each[1].ts):
        stack = stack_of(work, stacks)
        owner, known = _owner(trace.ranges, stack)
        around = [trace.ranges[position].name for position in stack]
        call = calls.setdefault(-1 - place if owner is None else owner, _Call(known, around))
        call.places.append(place)
        call.kernels.append(work.name)
        call.time_ns += work.time_ns
    works = ((call.noted, [trace.work[place] for place in call.places]) for call in calls.values())
    return _recorded(calls.values(), _math_modes(works), target="cuda")


def _owner(ranges: Sequence[HostRange], stack: Sequence[int]) -> tuple[int | None, NotedCall | CallNotKnown]:
    """The outermost op of a stack that is no composition of others, and what was noted of it; or why there is none."""
    reason = CallNotKnown(NO_OP)
    for position in stack:
        if ranges[position].cat.lower() != "user_annotation" and schemas(ranges[position].name):
            call = _noted(ranges[position])
            if isinstance(call, CallNotKnown):
                reason = call  # it may be a composition: what is inside it may tell more
            elif not call.is_composed:
                return position, call
    return None, reason


_TF32 = re.compile(r"tf32|s1688|1688gemm", re.IGNORECASE)


def _math_modes(calls: Iterable[tuple[NotedCall | CallNotKnown, list[DeviceWork]]]) -> MathModes:
    """The switches as they must have stood: fp32 work was seen on tensor cores, or never was."""
    seen = {"convolution": False, "product": False}
    for call, works in calls:
        if isinstance(call, NotedCall) and call.is_fp32:
            kind = "convolution" if "convolution" in call.packet else "product"
            seen[kind] |= any(_is_tf32(work.name) for work in works)
    return MathModes(tf32_conv=seen["convolution"], tf32_matmul=seen["product"])


def _is_tf32(kernel: str) -> bool:
    role = role_of(kernel)
    if role is not None and role.role == "attention":
        return False
    return _TF32.search(kernel) is not None or (role is not None and role.role == "matrix" and role.unit == "tensor")


# --- on a CPU ---


@dataclass
class TimedRange:
    """An op or what lies around ops; `own_ns` is what is left of its time by rows inside."""

    item: HostRange
    own_ns: int
    around: tuple[str, ...]
    """The ranges around it, outermost first, and no more of them than a label has."""
    is_op: bool
    """Is it an op with all that it does?"""


def timed_ranges(trace: KinetoTrace) -> list[TimedRange]:
    """Return the ranges of ops that are no part of another op, thread by thread, in the order of time. What lies around
    ops has its own time only: every moment of a thread counts once."""
    ranges = trace.ranges
    order = sorted((item.start_ns, -item.time_ns, position) for position, item in enumerate(ranges) if item.dur >= 0)
    moments = ((ranges[position].thread, start_ns, position) for start_ns, _, position in order)
    timed: dict[int, TimedRange] = {}
    for position, stack in open_ranges(ranges, moments):
        item = ranges[position]
        around = [place for place in stack[: stack.index(position)] if ranges[place].end_ns > item.start_ns]
        outer = timed.get(around[-1]) if around else None
        if around and (outer is None or outer.is_op):
            continue
        if outer is not None:
            outer.own_ns -= min(item.end_ns, outer.item.end_ns) - item.start_ns
        names = tuple(ranges[place].name.removeprefix(MODULE) for place in around[:MOST_NESTED])
        is_op = item.cat.lower() in OPS and bool(schemas(item.name)) and not is_composition(item.name)
        timed[position] = TimedRange(item, item.time_ns, names, is_op)
    return [each for each in timed.values() if each.item.cat.lower() in OPS]


def ops_of_rows(rows: Sequence[TimedRange]) -> CalledOps:
    """Return the ops of a CPU's rows."""
    ops = [(place, row) for place, row in enumerate(rows) if row.is_op]
    calls = (_Call(_noted(row.item), row.around, [place], row.own_ns) for place, row in ops)
    return _recorded(calls, MathModes(tf32_conv=False, tf32_matmul=False), target="cpu")


def _noted(host_range: HostRange) -> NotedCall | CallNotKnown:
    try:
        return noted(host_range)
    except CallNotKnown as reason:
        return reason
