"""A trace of PyTorch's profiler as a ledger of ops, for `rooflight calibrate --from`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rooflight._version import __version__
from rooflight.calibration.recorded_points import LeftOut
from rooflight.errors import BadFile
from rooflight.files import read_bytes
from rooflight.ledger import FORMAT_VERSION, Header, Kernel, Ledger
from rooflight.profiles.called_ops import called_ops
from rooflight.profiles.kineto import DeviceWork, KinetoTrace, decode
from rooflight.profiles.kineto_log import version_of


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
            "no-gpu-kernels",
            f"{path} is a trace without GPU kernels: profile with ProfilerActivity.CUDA on a machine with a GPU",
        )
    return profiled_step(trace, name=str(path))


def profiled_step(trace: KinetoTrace, *, name: str) -> ProfiledStep:
    """`name` is that of the file, for messages."""
    device = _device(trace, name)
    called = called_ops(trace)
    left_out = LeftOut()
    for reason, (count, seconds) in called.left_out.items():
        left_out.add(reason, seconds, count)
    kernels = [(work, called.owners[place]) for place, work in enumerate(trace.work) if place in called.owners]
    kernels.sort(key=lambda one: (one[1], one[0].ts))
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
            math=called.modes,
            traced_on="meta",
            device=device,
            cuda=version_of(trace.runtime),
            conditions={"log": "Chrome trace of PyTorch's profiler"},
        ),
        storages=called.ledger.storages,
        ops=called.ledger.ops,
        kernels=tuple(_kernel(work, index) for work, index in kernels),
    )
    return ProfiledStep(ledger, left_out)


def _device(trace: KinetoTrace, name: str) -> str | None:
    """Of the GPUs that worked; several of one kind are one, of two kinds no calibration can be made."""
    used = {work.device for work in trace.work if work.device is not None}
    names = sorted({device.name for device in trace.devices if device.name and (device.id in used or not used)})
    if len(names) > 1:
        raise BadFile(
            "several-devices", f"{name} is of several devices ({', '.join(names)}): give a trace of one of them"
        )
    return names[0] if names else None


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
