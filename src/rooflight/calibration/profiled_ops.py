"""A trace of PyTorch's profiler as a ledger of ops: what `record_shapes=True` notes of every call is enough to run it
again on tensors without data, and the call so made is the op that a trace of rooflight would hold.

A kernel belongs to the outermost op around its launch that is no composition of others (`aten::convolution`, not
`aten::conv2d` around it nor `aten::cudnn_convolution` inside it): the level at which a ledger sees ops.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rooflight._version import __version__
from rooflight.calibration.operator_calls import CallNotKnown, NotedCall, OperatorCalls
from rooflight.calibration.recorded_points import LeftOut
from rooflight.errors import BadFile
from rooflight.estimation.costs import fill_costs
from rooflight.files import read_bytes
from rooflight.ledger import FORMAT_VERSION, Header, Kernel, Ledger, MathModes, Phase
from rooflight.ops.kernel_names import role_of
from rooflight.profiles.kineto import DeviceWork, HostRange, Id, KinetoTrace, Thread, decode, open_ranges
from rooflight.profiles.kineto_log import version_of

NO_OP = "kernels that no op of torch launched: of a CUDA graph, of compiled or of custom code"
_Key = tuple[str, Id | None]


@dataclass(frozen=True)
class ProfiledStep:
    """What a trace tells: a ledger of the ops that could be made again, and the seconds of the others, by reason."""

    ledger: Ledger
    left_out: LeftOut


def read_trace(path: Path) -> ProfiledStep:
    """The ops of a trace with their kernels; what is wrong with the file is said in one line."""
    trace = decode(read_bytes(path, what="trace"), name=str(path))
    if not trace.work:
        raise BadFile(
            f"{path} is a trace without GPU kernels: profile with ProfilerActivity.CUDA on a machine with a GPU"
        )
    return profiled_step(trace, name=str(path))


def profiled_step(trace: KinetoTrace, *, name: str) -> ProfiledStep:
    """`name` is that of the file, for messages."""
    device = _device(trace, name)
    stacks = dict(open_ranges(trace.ranges, _launch_moments(trace)))
    calls = OperatorCalls()
    launches: dict[int, list[DeviceWork]] = defaultdict(list)
    known: dict[int, NotedCall] = {}
    left_out = LeftOut()
    for work in sorted(trace.work, key=lambda work: work.ts):
        try:
            position, call = _owner(trace.ranges, _stack_of(work, stacks), calls)
        except CallNotKnown as reason:
            left_out.add(str(reason), work.time_ns * 1e-9)
            continue
        known[position] = call
        launches[position].append(work)
    modes = _math_modes((known[position], works) for position, works in launches.items())
    recorder = calls.recorder(modes)
    kernels = []
    for position, works in launches.items():
        try:
            recorder.phase = _phase(trace.ranges, _stack_of(works[0], stacks))
            index = calls.record(recorder, known[position], [work.name for work in works])
        except CallNotKnown as reason:
            left_out.add(str(reason), sum(work.time_ns for work in works) * 1e-9)
            continue
        kernels += [_kernel(work, index) for work in works]
    ledger = Ledger(
        format_version=FORMAT_VERSION,
        header=Header(
            rooflight=__version__,
            torch=None,
            model=Path(name).name.partition(".")[0],
            step=None,
            target="cuda",
            batch=None,
            dtype=None,
            math=modes,
            traced_on="meta",
            device=device,
            cuda=version_of(trace.runtime),
            conditions={"log": "Chrome trace of PyTorch's profiler"},
        ),
        storages=recorder.storages.close(),
        ops=tuple(recorder.ops),
        kernels=tuple(kernels),
    )
    return ProfiledStep(fill_costs(ledger), left_out)


def _device(trace: KinetoTrace, name: str) -> str | None:
    """Of the GPUs that worked; several of one kind are one, of two kinds no calibration can be made."""
    used = {work.device for work in trace.work if work.device is not None}
    names = sorted({device.name for device in trace.devices if device.name and (device.id in used or not used)})
    if len(names) > 1:
        raise BadFile(f"{name} is of several devices ({', '.join(names)}): give a trace of one of them")
    return names[0] if names else None


def _launch_moments(trace: KinetoTrace) -> Iterator[tuple[Thread, int, _Key]]:
    """When each call of the runtime was made, by its number, and when each op began, by its own."""
    for call in trace.calls:
        if call.args.correlation is not None:
            yield call.thread, call.start_ns, ("call", call.args.correlation)
    for host_range in trace.ranges:
        if host_range.args.external is not None and host_range.cat.lower() != "user_annotation":
            yield host_range.thread, host_range.start_ns, ("op", host_range.args.external)


def _stack_of(work: DeviceWork, stacks: dict[_Key, list[int]]) -> list[int]:
    """The ranges around a launch, outermost first."""
    return stacks.get(("call", work.args.correlation)) or stacks.get(("op", work.args.external)) or []


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


def _phase(ranges: Sequence[HostRange], stack: Sequence[int]) -> Phase:
    names = [ranges[position].name for position in stack]
    if any(name.startswith("Optimizer.step") for name in names):
        return "optimizer"
    return "backward" if any(name.startswith("autograd::engine") for name in names) else "forward"


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


def _kernel(work: DeviceWork, index: int) -> Kernel:
    return Kernel(
        name=work.name,
        ops=(index,),
        kind=work.kind,
        grid=work.args.grid,
        block=work.args.block,
        start_s=work.ts * 1e-6,
        time_s=work.time_ns * 1e-9,
    )
