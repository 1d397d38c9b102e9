"""Devices of different generations run the same step in other kernels: each has the trace that is its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from msgspec import structs

from rooflight.hardware.device import Device
from rooflight.ledger import Note
from rooflight.prediction.resolve_devices import DOES_NOT_FIT
from rooflight.prediction.result import Predictions
from rooflight.prediction.traces import StepRequest
from rooflight.step.costed_step import Step
from rooflight.trace.target import HOPPER, generation, needed_for, target_for


@dataclass(frozen=True)
class GenerationTrace:
    """The step as devices of one generation run it."""

    asked: StepRequest
    steps: Sequence[Step]
    notes: tuple[Note, ...]

    def differs_on(self, capability: int) -> list[str]:
        """What of it an older generation runs otherwise; nothing: the trace serves it too."""
        unlike = [op for op in self.steps[0].kinds if capability < needed_for(op.packet, op.precision)]
        return sorted(
            {"matrix work without TF32" if op.precision == "tf32" else "attention in other kernels" for op in unlike}
        )


def by_generation(
    devices: Sequence[Device], traced: Callable[[str], GenerationTrace]
) -> list[tuple[GenerationTrace, Sequence[Device]]]:
    """Devices with the trace for them, the newest first. One serves all of them, unless older ones run some of it in
    other kernels, however many predictions are asked for: what is said of a device does not depend on that."""
    newest = max(devices, key=_capability)
    first = traced(_target(newest))
    groups: dict[int, list[Device]] = {}
    for device in devices:
        served = not first.differs_on(_capability(device))
        groups.setdefault(generation(_capability(newest if served else device)), []).append(device)
    if len(groups) == 1:
        return [(first, devices)]
    traces: list[tuple[GenerationTrace, Sequence[Device]]] = []
    for _, some in sorted(groups.items(), reverse=True):
        if newest in some:
            traces.append((first, some))
            continue
        trace = traced(_target(some[0]))
        names = ", ".join(device.name for device in some)
        if list(trace.steps) == list(first.steps):  # of a ledger, which is not always traced again
            shared, others = traces[0]
            notes = (*shared.notes, *(note.of(names) for note in trace.notes))
            together = [device for device in devices if device in (*others, *some)]
            traces[0] = replace(shared, notes=notes), together
            continue
        why = ", ".join(first.differs_on(_capability(some[0])))
        note = Note("traced-apart", f"{names}: traced apart from {newest.name}: {why}")
        traces.append((replace(trace, notes=(*trace.notes, note)), some))
    return traces


def _capability(device: Device) -> int:
    """Where nobody tells, as another vendor's: as Hopper."""
    return device.capability or HOPPER


def _target(device: Device) -> str:
    return target_for(device.kind, device.capability)


def joined(parts: Sequence[Predictions], devices: Sequence[Device]) -> Predictions:
    """What was found for each generation, in the order in which devices were asked for; the header is the newest's."""
    if len(parts) == 1:
        return parts[0]
    places = {device.name: place for place, device in enumerate(devices)}
    everything = dict.fromkeys(note for part in parts for note in part.notes)
    return structs.replace(
        parts[0],
        devices=tuple(devices),
        predictions=tuple(sorted((row for part in parts for row in part), key=lambda row: places[row.device])),
        limits=tuple(sorted((row for part in parts for row in part.limits), key=lambda row: places[row.device])),
        notes=tuple(sorted(everything, key=lambda note: note.code != DOES_NOT_FIT)),
        calibrations={name: words for part in parts for name, words in part.calibrations.items()},
        precisions=tuple(sorted({name for part in parts for name in part.precisions})),
        traces=len(parts),
    )
