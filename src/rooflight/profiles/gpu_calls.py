"""The ops behind the kernels of a trace: what `record_shapes=True` notes of every call is enough to run it again on
tensors without data, and the call so made is the op that a trace of rooflight would hold.

A kernel belongs to the outermost op around its launch that is no composition of others (`aten::convolution`, not
`aten::conv2d` around it nor `aten::cudnn_convolution` inside it): the level at which a ledger sees ops.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rooflight._version import __version__
from rooflight.estimation.costs import fill_costs
from rooflight.ledger import FORMAT_VERSION, Header, Ledger, MathModes
from rooflight.ops.kernel_names import role_of
from rooflight.profiles.kineto import DeviceWork, HostRange, KinetoTrace, LaunchKey, launch_stacks, stack_of
from rooflight.profiles.operator_calls import CallNotKnown, NotedCall, OperatorCalls, phase_of, undisturbed

NO_OP = "kernels that no op of torch launched: of a CUDA graph, of compiled or of custom code"


@dataclass(frozen=True)
class CalledOps:
    """Ops that could be made again, in the order of their first kernels."""

    ledger: Ledger
    """Of the ops alone, with their costs."""
    owners: Mapping[int, int]
    """By the place of a kernel in the trace, the op that launched it."""
    modes: MathModes
    left_out: Mapping[str, tuple[int, float]]
    """How many kernels and ops cannot be told, and their seconds, by reason."""


def called_ops(trace: KinetoTrace, stacks: Mapping[LaunchKey, list[int]] | None = None) -> CalledOps:
    """Of a trace with kernels of a GPU. `stacks` are its own, where they are known already."""
    stacks = launch_stacks(trace) if stacks is None else stacks
    calls = OperatorCalls()
    launches: dict[int, list[int]] = defaultdict(list)
    known: dict[int, NotedCall] = {}
    left_out: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
    for place, work in sorted(enumerate(trace.work), key=lambda one: one[1].ts):
        try:
            position, call = _owner(trace.ranges, stack_of(work, stacks), calls)
        except CallNotKnown as reason:
            _leave_out(left_out, reason, work)
            continue
        known[position] = call
        launches[position].append(place)
    works = {position: [trace.work[place] for place in places] for position, places in launches.items()}
    modes = _math_modes((known[position], of_op) for position, of_op in works.items())
    recorder = calls.recorder(modes)
    owners: dict[int, int] = {}
    for position, places in launches.items():
        of_op = works[position]
        try:
            recorder.phase = phase_of(trace.ranges[place].name for place in stack_of(of_op[0], stacks))
            with undisturbed():
                index = calls.record(recorder, known[position], [work.name for work in of_op])
        except CallNotKnown as reason:
            _leave_out(left_out, reason, *of_op)
            continue
        owners.update(dict.fromkeys(places, index))
    header = Header(
        rooflight=__version__, torch=None, model="", step=None, target="cuda", batch=None, dtype=None, math=modes
    )
    storages = recorder.storages.close()
    ledger = Ledger(format_version=FORMAT_VERSION, header=header, storages=storages, ops=tuple(recorder.ops))
    return CalledOps(fill_costs(ledger), owners, modes, left_out)


def _leave_out(left_out: dict[str, tuple[int, float]], reason: CallNotKnown, *works: DeviceWork) -> None:
    count, seconds = left_out[str(reason)]
    left_out[str(reason)] = (count + 1, seconds + sum(work.time_ns for work in works) * 1e-9)


def _owner(ranges: Sequence[HostRange], stack: Sequence[int], calls: OperatorCalls) -> tuple[int, NotedCall]:
    """The outermost op of a stack that is no composition of others."""
    reason = CallNotKnown(NO_OP)
    for position in stack:
        host_range = ranges[position]
        if host_range.cat.lower() == "user_annotation" or not calls.is_operator(host_range.name):
            continue
        try:
            call = calls.noted(host_range)
        except CallNotKnown as unknown:
            reason = unknown  # it may be a composition: what is inside it may tell more
            continue
        if not calls.is_composed(call):
            return position, call
    raise reason


_TF32 = re.compile(r"tf32|s1688|1688gemm", re.IGNORECASE)


def _math_modes(calls: Iterator[tuple[NotedCall, list[DeviceWork]]]) -> MathModes:
    """The switches as they must have stood: fp32 work was seen on tensor cores, or never was."""
    seen = {"convolution": False, "product": False}
    for call, works in calls:
        if not call.is_fp32:
            continue
        kind = "convolution" if "convolution" in call.packet else "product"
        seen[kind] |= any(_is_tf32(work.name) for work in works)
    return MathModes(tf32_conv=seen["convolution"], tf32_matmul=seen["product"])


def _is_tf32(kernel: str) -> bool:
    role = role_of(kernel)
    if role is not None and role.role == "attention":
        return False
    return _TF32.search(kernel) is not None or (role is not None and role.role == "matrix" and role.unit == "tensor")
