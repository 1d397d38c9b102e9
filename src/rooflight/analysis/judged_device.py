"""On which device a step is judged, with which times, and which device is the better one for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rooflight.errors import BadInput
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger, Value
from rooflight.prediction.device_run import DeviceRun, device_runs
from rooflight.prediction.rebuilt import as_run_on, on_other_kind, traces_of
from rooflight.prediction.resolve_devices import predictor_of
from rooflight.step.costed_step import own_step
from rooflight.summary.facts import MeasuredFact, MeasuredTimes
from rooflight.summary.measured import is_measured


def judged_on(ledger: Ledger, on: Device | None) -> tuple[Device | None, str]:
    """Whose roofs a step is judged under, or why there are none."""
    header = ledger.header
    ranks = {op.rank for op in ledger.ops}
    if len(ranks) > 1:
        return None, f"this ledger holds {len(ranks)} ranks, and a verdict is of one device: give one's"
    if is_measured(ledger):
        known = recognise_name(header.device)
        if header.target == "cpu" or (known is not None and known.kind == "cpu"):
            return (
                None,
                "it ran on a CPU, whose name does not tell how many of its cores did: it has no roof here",
            )
        if known is not None and on is not None and on.name != known.name:
            raise BadInput(
                "measured-elsewhere",
                f"this step was measured on {header.device}: leave {on.name} out, or predict it there",
            )
        if known is None and on is None:
            return None, (
                f"{header.device or 'the device'} is not in the database, so its roofs are not known: "
                "describe it in a .toml file and name that"
            )
        device = known or on
    else:
        if on is None:
            return None, "this step was not measured: name a device to have its times predicted there"
        device = on
    assert device is not None
    if not device.is_cuda:
        what = "is a CPU" if device.kind == "cpu" else "runs no CUDA kernels"
        return None, f"{device.title} {what}: verdicts are for GPUs of NVIDIA and AMD"
    return device, ""


def predicted_times(cell: DeviceRun) -> MeasuredTimes:
    """The times that the ops of a step will take."""
    how = f"{cell.predictor.tier} on {cell.predictor.device.name}"
    origin, times = f"predicted, {how}", cell.times
    names = frozenset({"kernel_time_s", "kernels"})
    ops = tuple(
        MeasuredFact((place,), {"kernel_time_s": time_s, "kernels": round(kernels)}, names)
        for place, (time_s, kernels) in enumerate(zip(times.seconds.tolist(), times.kernels.tolist(), strict=True))
        if time_s
    )
    step = {"wall_time_s": Value(cell.wall_s, origin), "gpu_busy_s": Value(cell.gpu_s, origin)}
    return MeasuredTimes("predicted", how, ops, {cell.step.ledger.header.rank: step})


@dataclass(frozen=True)
class DeviceTime:
    """How long the step takes on a device."""

    device: str
    time_s: float
    gpu_time_s: float
    tier: str


def by_time(ledger: Ledger, devices: Sequence[Device]) -> list[DeviceTime]:
    """Devices by the predicted time of this step, the fastest first. How near to its ridge a step lies says nothing of
    which device is the better one."""
    cells, traces = [], traces_of(ledger)
    for device in devices:
        there = on_other_kind(as_run_on(ledger, device, traces)[0], cpu=device.kind == "cpu")
        cells += device_runs(own_step(there), [predictor_of(device, None, None)[0]])
    times = [DeviceTime(cell.predictor.device.name, cell.wall_s, cell.gpu_s, cell.predictor.tier) for cell in cells]
    return sorted(times, key=lambda row: row.time_s)
