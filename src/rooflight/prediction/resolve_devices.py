"""What the user asked for: devices by name, file or `here`, and calibrations from a file. Each with what must be said
about it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from rooflight.errors import BadInput
from rooflight.hardware.calibration import FROM_FILES, Calibration, calibration_for, read
from rooflight.hardware.described import ASSUMED, is_described
from rooflight.hardware.device import Device, Figure, figures
from rooflight.hardware.devices import find, names, recognise_name, several
from rooflight.hardware.roofs import Ceilings
from rooflight.hardware.workspaces import WorkspacePoints
from rooflight.ledger import Note
from rooflight.machine import installed_gpus
from rooflight.machine.recognise import CpuOutline, Recognised, this_device
from rooflight.prediction.calibrated.model import CalibratedModel
from rooflight.prediction.host_speed import GIVEN_HOST
from rooflight.prediction.least_times import DEFAULT_CACHE_BYTES
from rooflight.prediction.tiers import Predictor, corrected, predictor, speed_of

if TYPE_CHECKING:
    from rooflight.memory.predict import MemoryPredictor

_WAITED = 10.0
"""Percent of the time that threads wait for a core, beyond which times mean little."""
DOES_NOT_FIT = "does-not-fit"
"""The code of the note that says more than all the others: it stands at the top of a page."""
HERE = ("here", "cpu")
"""The device of this machine, and its processor where it has a GPU too."""


def read_calibration(given: str | Path | Calibration | None) -> Calibration | None:
    if given is None or isinstance(given, Calibration):
        return given
    if not isinstance(given, (str, Path)):
        raise BadInput(
            "bad-option-type", f"--calibration is a file of `rooflight calibrate`, not of type {type(given).__name__}"
        )
    return read(Path(given))


def devices_of(on: str | Device | Sequence[str | Device], calibration: Calibration | None = None) -> list[Device]:
    """Every device, once. A text may name several, with commas between them, or describe some; those of a list name one
    each."""
    given: Sequence[str | Device] = several(on) if isinstance(on, str) else [on] if isinstance(on, Device) else on
    devices: dict[str, Device] = {}
    for name in given:
        device = name if isinstance(name, Device) else device_of(name, calibration)
        if devices.setdefault(device.name, device) != device:
            raise BadInput(
                "device-name-taken",
                f"two devices are called {device.name}: give one of them another name, in its file or with name=",
            )
    return list(devices.values())


def device_of(text: str, calibration: Calibration | None = None) -> Device:
    """The one device that a text names, wherever one is asked for: a name, a file, `here`, `cpu`, or what `rooflight
    calibrate` calls this processor."""
    text = text.strip()
    if not text:
        raise BadInput("no-device", "an empty device name: `rooflight list devices` shows all")
    if text.casefold() in HERE:
        return _here(text.casefold(), calibration)
    try:
        return find(text)
    except BadInput:
        processor = this_device(kind="cpu") if text.startswith("cpu-") else None
        if processor is None or processor.outline is None or processor.outline.name != text:
            raise
        return _measured(processor.outline, calibration)


def is_here(device: Device) -> bool:
    """Is this a device of this machine?"""
    here = _recognised("cpu" if device.kind == "cpu" else "here")
    return here is not None and any(
        described is not None and described.name == device.name for described in (here.device, here.outline)
    )


def _recognised(text: str) -> Recognised | None:
    if text == "cpu":
        return this_device(kind="cpu")
    import torch

    return this_device(torch.cuda.get_device_name() if torch.cuda.is_available() else None)


def _here(text: str, calibration: Calibration | None) -> Device:
    here = _recognised(text)
    if here is None:
        raise BadInput(
            "unknown-processor",
            "no device of this machine is recognised: `rooflight list devices` shows those that are known",
        )
    if here.device is not None:
        return here.device
    if here.outline is None and here.kind == "gpu" and (told := _told_by_torch(here.reported)):
        raise BadInput(
            "device-not-in-database",
            f"{here.reported}, the device of this machine, is not in the database: give what torch tells of it, "
            f"corrected where you know better: --on '{told}'",
        )
    if here.outline is None:
        raise BadInput("incomplete-device", f"{here.reported}, the device of this machine: {here.lacks}")
    return _measured(here.outline, calibration)


def _told_by_torch(reported: str) -> str:
    """A GPU of NVIDIA in a few numbers; empty: torch does not see it, or only a slice of it."""
    import torch

    if not torch.cuda.is_available() or torch.version.hip is not None or "MIG" in reported:
        return ""
    about = torch.cuda.get_device_properties(torch.cuda.current_device())
    # Both edges of the memory's clock carry data; clocks are in kHz, the bus in bits.
    bandwidth = 2 * getattr(about, "memory_clock_rate", 0) * 1e3 * getattr(about, "memory_bus_width", 0) / 8
    clock_mhz = getattr(about, "clock_rate", 0) // 1000
    numbers = {
        "name": re.sub(r"[^a-z0-9]+", "-", reported.casefold()).strip("-"),
        "memory": f"{about.total_memory / 2**30:.2f}GB",
        "bandwidth": f"{bandwidth / 1e9:.0f}GB/s" if bandwidth else "?",
        "sms": str(about.multi_processor_count),
        "clock": f"{clock_mhz}MHz" if clock_mhz else "?",
        "cache": f"{about.L2_cache_size / 2**20:g}MB",
        "capability": f"{about.major}{about.minor}",
    }
    return ",".join(f"{key}={value}" for key, value in numbers.items())


def _measured(outline: CpuOutline, calibration: Calibration | None) -> Device:
    """A processor of which Linux tells everything but how fast its memory is: calibration measured that."""
    if calibration is None:
        calibration, _ = calibration_for(outline.name) or (None, "")
    copy = None if calibration is None else calibration.ceilings.get("copy")
    if calibration is None or copy is None:
        raise BadInput(
            "not-calibrated",
            f"{outline.title} is not calibrated, and no file tells how fast its memory is: run `rooflight "
            "calibrate --on cpu` first, it takes about 3 minutes",
        )
    day = calibration.made or date.today().isoformat()
    return outline.with_bandwidth(Figure(float(copy.value), f"measured by rooflight calibrate: {copy.origin}", day))


def has_spec_only(device: Device, given: Calibration | None) -> bool:
    """A processor that nobody calibrated, or Apple's GPU: no other GPU's times can be carried over to it."""
    if device.is_cuda or (given is not None and device.kind == "cpu"):
        return False
    changed = device.name in names() and device != find(device.name)
    return changed or calibration_for(device.name) is None


def spec_only_note(device: Device) -> Note:
    if device.kind == "gpu":
        return Note(
            "spec-tier-only",
            f"{device.name}: {device.vendor}'s GPUs run other kernels than CUDA's, so no measured times can be "
            "transferred: this is the spec tier, from its data sheet",
        )
    return Note(
        "spec-tier-only",
        f"{device.name} is not calibrated, and no GPU's times can be transferred to a CPU: this is the spec tier, "
        "from its data sheet; for better times run there: rooflight calibrate --on cpu",
    )


def predictor_of(device: Device, tier: str | None, given: Calibration | None) -> tuple[Predictor, tuple[Note, ...]]:
    """How this device's times are found, and what must be said of it."""
    if given is not None:
        return _with_given(device, tier, given)
    in_database = device.name in names()
    if in_database and device != find(device.name):
        # A file that describes something else under a known name: the known one's calibration is not its own.
        return predictor(device, "transferred" if tier is None else tier), (
            Note(
                "differs-from-database",
                f"{device.name}: the file differs from the device of that name that comes with rooflight",
            ),
        )
    stored = calibration_for(device.name) if tier in (None, "calibrated") else None
    if stored is not None and stored[0].partial:
        return corrected(device, stored[0], stored[1]), _doubts(device, stored[0])
    if stored is None or in_database:
        return predictor(device, tier), ()
    return Predictor(device, "calibrated", CalibratedModel(stored[0], speed_of(device)), stored[1]), ()


def _with_given(device: Device, tier: str | None, given: Calibration) -> tuple[Predictor, tuple[Note, ...]]:
    made_on_gpu = given.cuda is not None
    if device.kind == "gpu" and not device.is_cuda:
        raise BadInput(
            "calibration-of-another-device",
            f"--calibration was made on {given.device}, whose kernels {device.name} does not run: leave "
            "--calibration out",
        )
    if made_on_gpu != (device.kind == "gpu"):
        raise BadInput(
            "calibration-of-another-device",
            f"--calibration was made on a {'GPU' if made_on_gpu else 'CPU'} ({given.device}), and "
            f"{device.name} is none: give one made on a {device.kind.upper()}",
        )
    origin = recognise_name(given.device)
    if given.partial:
        if origin is not None and origin.name != device.name:
            raise BadInput(
                "calibration-of-another-device",
                f"--calibration holds some works of {given.device} only, and they say nothing of {device.name}: give "
                f"one made there, or predict --on {origin.name}",
            )
        if origin is None and given.device not in (device.name, device.title, device.title.partition(",")[0]):
            raise BadInput(
                "calibration-of-another-device",
                f"--calibration holds some works of {given.device!r}, and whether that is {device.name} nobody knows: "
                f"give one made with `rooflight calibrate --from ... --on {device.name}`",
            )
        return corrected(device, given, f"given, made on {given.device}"), _doubts(device, given)
    if origin is None or origin.name == device.name:
        same = origin is not None or given.device in (*device.recognised_as, device.title.partition(",")[0])
        notes = (
            ()
            if same
            else (
                Note(
                    "assumed-device",
                    f"the calibration was made on {given.device!r}, which is taken to be {device.name}",
                ),
            )
        )
        model = CalibratedModel(given, speed_of(device))
        return Predictor(device, "calibrated", model, f"given, made on {given.device}"), notes
    if tier == "calibrated":
        raise BadInput(
            "calibration-of-another-device",
            f"--calibration was made on {given.device}, not on {device.name}: leave --tier out to transfer it",
        )
    model = CalibratedModel(given, speed_of(origin))
    note = Note(
        "transferred-calibration",
        f"the calibration was made on {given.device}: its times are transferred to {device.name}",
    )
    words = f"transferred from {origin.name} (given), its host too"
    return Predictor(device, "transferred", model, words, host_speed=GIVEN_HOST), (note,)


def _doubts(device: Device, partial: Calibration) -> tuple[Note, ...]:
    """What is hard to believe of the times that it was made from."""
    return tuple(
        Note("calibration-doubt", f"calibration of {device.name}: {note}")
        for note in partial.notes
        if note != FROM_FILES
    )


def own_workspaces(predictors: Iterable[Predictor]) -> dict[str, tuple[WorkspacePoints, ...]]:
    """By device: what was recorded of cuDNN on it, not on one that times are carried over from."""
    return {row.device.name: row.calibration.workspaces for row in predictors if row.looks_up}


def memories_on(*devices: Device) -> MemoryPredictor:
    """What plays the memory of a step as `predict` does, where nothing else is asked of it."""
    # Two measured runs are compared without the model of the allocator, and sooner.
    from rooflight.memory.cudnn_workspaces import DeviceWorkspaces
    from rooflight.memory.predict import MemoryPredictor

    predictors = [predictor_of(device, None, None)[0] for device in devices if device.is_cuda]
    return MemoryPredictor(workspaces=DeviceWorkspaces(own_workspaces(predictors)))


def waited_much(text: str) -> bool:
    """Did other programs keep the cores busy? `text` is as conditions have it, `48% of the time`."""
    share = text.partition("%")[0]
    return share.replace(".", "", 1).isdigit() and float(share) >= _WAITED


def assumed_notes(devices: Iterable[Device]) -> tuple[Note, ...]:
    """What a device's description leaves open, and what is taken instead."""
    return tuple(
        Note(
            "assumed-cache",
            f"{device.name}: nothing tells its cache (l2_bytes), so one of {DEFAULT_CACHE_BYTES / 1e6:g} MB is assumed",
        )
        for device in devices
        if device.l2_bytes is None
    )


def guess_notes(devices: Iterable[Device]) -> tuple[Note, ...]:
    """Of devices that a few numbers describe: what nobody gave, and what was taken for it."""
    notes = []
    for device in filter(is_described, devices):
        guesses = [
            f"{key.rpartition('.')[2]} {_short(figure.value)} ({figure.source.removeprefix(ASSUMED)})"
            for key, figure in figures(device)
            if figure.source.startswith(ASSUMED)
        ]
        guesses += ["the kernels of capability 90"] if device.capability is None else []
        if guesses:
            notes.append(Note("assumed-figures", f"{device.name}: not given, so assumed: {', '.join(guesses)}"))
    return tuple(notes)


def _short(value: float) -> str:
    """`35.5e12` as `35.5T`, as descriptions have it."""
    for power, prefix in ((1e12, "T"), (1e9, "G")):
        if value >= power:
            return f"{value / power:.3g}{prefix}"
    return f"{value:g}"


def vendor_notes(predictors: Iterable[Predictor]) -> tuple[Note, ...]:
    """Tiles, waves and bandwidth say nothing of kernels that another vendor wrote."""
    notes = []
    for source in predictors:
        origin, vendor = recognise_name(source.calibration.device), source.device.vendor
        if source.tier == "transferred" and origin is not None and origin.vendor.casefold() != vendor.casefold():
            notes.append(
                Note(
                    "other-vendor",
                    f"{source.device.name}: transferred from {origin.title}, while {vendor}'s libraries have other "
                    "kernels: its times are a guess",
                )
            )
    return tuple(notes)


def versions_notes(predictors: Iterable[Predictor]) -> tuple[Note, ...]:
    """What must be said of calibrations that were made with another torch, or another driver than this machine's."""
    from importlib.metadata import version

    notes = []
    by_calibration = {(row.calibration.device, row.calibration.made, row.calibration.torch): row for row in predictors}
    for source in by_calibration.values():
        calibration, device = source.calibration, source.device
        then, here = calibration.torch.split("+")[0], version("torch").split("+")[0]
        differ = [f"torch {then}, here is {here}"] if then and then != here else []
        running = installed_gpus.driver_version() if calibration.driver is not None else None
        if running not in (None, calibration.driver) and is_here(device):  # asked last: it needs torch
            differ.append(f"driver {calibration.driver}, here is {running}")
        waited = calibration.conditions.get("waited_for_a_core", "")
        if device.kind == "cpu" and waited_much(waited):
            notes.append(
                Note(
                    "calibration-unreliable",
                    f"its threads waited {waited} for a core while it was calibrated: times are too long",
                )
            )
        if differ:
            notes.append(
                Note("other-versions", f"calibrated with {'; '.join(differ)}: other versions may choose other kernels")
            )
    return tuple(notes)


def ceilings_of(device: Device, used: Predictor | None) -> Ceilings | None:
    """What the device was measured to sustain; `None` where nobody calibrated it."""
    if used is not None and not used.looks_up:
        used = None
    stored = calibration_for(device.name) if used is None else (used.calibration, used.source)
    if stored is None or stored[0].partial:
        return None
    calibration, source = stored
    rates = {key: float(value.value) for key, value in calibration.ceilings.items()}
    copy, cache = rates.get("copy"), rates.get("copy.cache")
    return Ceilings(
        source=f"rooflight calibrate on {calibration.device}, {calibration.made} ({source})",
        flops_per_s={
            key.split(".")[1]: value for key, value in rates.items() if key.startswith("gemm.") and key.count(".") == 1
        },
        dram_bytes_per_s=copy,
        # A cache that is slower than the memory was not what was timed: so small a copy is over before it began.
        l2_bytes_per_s=cache if cache is not None and copy is not None and cache > copy else None,
    )
