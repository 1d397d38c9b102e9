"""The memory of a step on a device: built, run twice through the allocator's model, taken apart at its highest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rooflight.hardware.device import Device
from rooflight.memory.allocator import CachingAllocator, OutOfMemory
from rooflight.memory.convolutions.known import TAKEN_OVER, DeviceWorkspaces
from rooflight.memory.inside import Insides, is_convolution
from rooflight.memory.libraries import cublas_bytes
from rooflight.memory.limits import Fit
from rooflight.memory.moments import Chip
from rooflight.memory.outside import Outside, outside, usable_bytes
from rooflight.memory.peak import peak_of, timeline_of
from rooflight.memory.plain import PlainAllocator
from rooflight.memory.replay import Peaks, Run
from rooflight.memory.result import Memory, Peak, Timeline
from rooflight.memory.scripts import in_half_precision, lives_in, script_of, sizes_of
from rooflight.memory.settings import Settings
from rooflight.memory.tape import Script
from rooflight.prediction.prepared import Step

_THREADS = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536}
"""Threads that a multiprocessor holds where it is not 2,048, by compute capability (CUDA C++ Programming Guide)."""
Change = Callable[[Script], Mapping[int, Script]]
"""Makes of a step's script those of the ranks that share it, by stage: all of which one may be the fullest."""


@dataclass(frozen=True)
class _Played:
    """A script that was run with no end to the memory."""

    stage: int
    script: Script
    first: Peaks
    later: Peaks
    allocated_after: list[int]

    @property
    def is_first(self) -> bool:
        """Is the first step the highest?"""
        return self.first.allocated > self.later.allocated

    @property
    def highest(self) -> Peaks:
        return self.first if self.is_first else self.later

    @property
    def reserved(self) -> int:
        return max(self.first.reserved, self.later.reserved)


class Memories:
    """Answers for any step and device. What devices have in common is played once: most chips give a step the same
    script, and those that differ in what a kernel borrows have one each, however many are asked for.

    `named`: say what is alive at the peak, which takes longer than the rest.
    """

    def __init__(self, settings: Settings | None = None, workspaces: DeviceWorkspaces | None = None, *,
                 named: bool = True) -> None:  # fmt: skip
        self.settings = settings or Settings()
        self.workspaces = workspaces or DeviceWorkspaces()
        self.named = named
        self._known: dict[tuple[object, ...], tuple[_Played, ...]] = {}
        self._shown: dict[tuple[int, bool], tuple[Peak, Timeline | None]] = {}
        self._kept: list[object] = []

    def of(self, step: Step, device: Device, *, timeline: bool = False, change: Change | None = None) -> Memory:
        """`change`: of what is allocated, as when the step is one rank's part of a larger one."""
        every, around = self._ranks(step, device, watched=timeline, change=change), self._around(step, device)
        room, on_gpu = _room(around), device.kind == "gpu"
        runs = {one.stage: self._within(one, device, room) for one in every}
        failing = [one for one in every if runs[one.stage] is None]
        if failing:
            shown = max(failing, key=lambda one: one.highest.allocated)
        else:
            shown = max(every, key=lambda one: (one.reserved, one.highest.allocated))
        held, retries = runs[shown.stage] or (shown.reserved, 0)
        peak, course = self._taken_apart(step, shown, timeline=timeline)
        return Memory(
            peak_allocated_bytes=shown.highest.allocated, peak_reserved_bytes=held if on_gpu else None,
            outside_bytes=around.outside_bytes if on_gpu else None, usable_bytes=around.usable_bytes,
            fits=not failing, retries=retries,
            before_bytes=shown.later.before, first_step_bytes=shown.first.allocated, peak=peak, timeline=course,
            stage=None if change is None else shown.stage,
            notes=(*around.notes, *self._workspace_notes(step, device)),
        )  # fmt: skip

    def fits(self, step: Step, device: Device, *, change: Change | None = None) -> Fit:
        """As `of`, without taking anything apart."""
        room = _room(self._around(step, device))
        every = self._play(self._whole(step, device), step, device, change)
        fits = all(self._within(one, device, room) is not None for one in every)
        return fits, max(one.reserved for one in every), room

    def _within(self, played: _Played, device: Device, room: int) -> tuple[int, int] | None:
        """What the allocator holds at most with so many bytes, and how often it must give back what it caches; `None`:
        it does not get through."""
        if played.reserved <= room:
            return played.reserved, 0
        if played.highest.allocated > room:
            return None
        allocator = self._allocator(device, room)
        try:
            first, later, _ = _run(played.script, allocator)
        except OutOfMemory:
            return None
        return max(first.reserved, later.reserved), allocator.retries

    def _taken_apart(self, step: Step, played: _Played, *, timeline: bool) -> tuple[Peak, Timeline | None]:
        key = id(played), timeline  # all that is played is kept
        if key not in self._shown:
            self._shown[key] = (
                peak_of(step, played.script, played.highest, first=played.is_first, tenants=self.named),
                timeline_of(step, played.script, played.allocated_after) if timeline else None,
            )
        return self._shown[key]

    def _ranks(self, step: Step, device: Device, *, watched: bool, change: Change | None) -> tuple[_Played, ...]:
        """All of which one may be the fullest; those of several devices where nothing tells these apart."""
        room = _room(self._around(step, device))
        # Whether half-precision weights are cast depends on the room there is; of ranks, it is decided for each.
        cast = _is_cast(step, room) if change is None else room if in_half_precision(step) else None
        alike = (id(step), id(change), watched, device.kind, cast,
                 self._fraction_bytes(device) if self.settings.garbage_collection_threshold else None)  # fmt: skip
        key = (*alike, chip_of(device), cublas_bytes(device.capability), self.workspaces.origin(device.name))
        if key not in self._known:
            script = self._whole(step, device)
            same = (*alike, tuple(script.nbytes), tuple(script.moments), tuple(script.kept.items()))
            if same not in self._known:
                self._known[same] = self._play(script, step, device, change, watched=watched)
                self._kept.append((step, change))  # so that nothing else gets their ids
            self._known[key] = self._known[same]
        return self._known[key]

    def _play(self, script: Script, step: Step, device: Device, change: Change | None, *,
              watched: bool = False) -> tuple[_Played, ...]:  # fmt: skip
        room = _room(self._around(step, device))
        if change is None:
            scripts: Mapping[int, Script] = {0: script if _is_cast(step, room) else replace(script, cast_from=None)}
        else:
            scripts = {stage: _as_loaded(one, room) for stage, one in change(script).items()}
        return tuple(
            _Played(stage, one, *_run(one, self._allocator(device, None), watched=watched))
            for stage, one in scripts.items()
        )

    def script(self, step: Step, device: Device) -> Script:
        """Everything that a run of the step allocates on the device."""
        script = self._whole(step, device)
        return script if _is_cast(step, _room(self._around(step, device))) else replace(script, cast_from=None)

    def _whole(self, step: Step, device: Device) -> Script:
        chip = chip_of(device)
        if device.kind == "cpu":
            return Script(lives_in(step), sizes_of(step, chip), [()] * len(step.ledger.ops), {})
        workspaces = self.workspaces.of(device.name) if _has_convolutions(step) else None
        return script_of(step, Insides(chip, workspaces), chip, device.capability)

    def _workspace_notes(self, step: Step, device: Device) -> tuple[str, ...]:
        taken_over = device.kind == "gpu" and self.workspaces.origin(device.name) != device.name
        return (TAKEN_OVER,) if taken_over and _has_convolutions(step) else ()

    def _allocator(self, device: Device, capacity: int | None) -> CachingAllocator:
        if device.kind == "cpu":
            return PlainAllocator(self.settings, capacity)
        return CachingAllocator(self.settings, capacity, self._fraction_bytes(device))

    def _fraction_bytes(self, device: Device) -> int | None:
        """What a memory fraction leaves to torch's allocator; the context is not in it."""
        part = self.settings.memory_fraction
        return None if part is None or device.kind == "cpu" else int(part * usable_bytes(device)[0])

    def _around(self, step: Step, device: Device) -> Outside:
        """What a process has around the allocator; a memory fraction leaves it less than there is."""
        found, allowed = _outside_of(step, device), self._fraction_bytes(device)
        if allowed is None:
            return found
        return replace(found, usable_bytes=min(found.usable_bytes, allowed + found.outside_bytes))


def chip_of(device: Device) -> Chip:
    return Chip(int(device.sms.value), _THREADS.get(device.capability or 0, 2048))


def _is_cast(step: Step, room: int) -> bool:
    """What does not fit in fp32, and a weight of it besides, is loaded as it is: nobody casts it on the device."""
    needed: int | None = step.shared.get("cast bytes")
    if needed is None:
        weights = [one.nbytes for one in step.ledger.storages if one.category in ("parameter", "buffer")]
        needed = step.shared["cast bytes"] = 2 * sum(weights) + max(weights, default=0)
    return needed <= room


def _as_loaded(script: Script, room: int) -> Script:
    """The same of one rank's part."""
    if script.cast_from is None:
        return script
    largest = max((script.nbytes[one] for one in script.lives.model), default=0)
    return script if sum(script.cast_from) + largest <= room else replace(script, cast_from=None)


def _has_convolutions(step: Step) -> bool:
    return any(is_convolution(op) for op in step.kinds)


def _outside_of(step: Step, device: Device) -> Outside:
    key = "outside", device.name
    found: Outside | None = step.shared.get(key)
    if found is None:
        found = step.shared[key] = outside(device, step.ledger.ops)
    return found


def _room(around: Outside) -> int:
    return around.usable_bytes - around.outside_bytes


def _run(script: Script, allocator: CachingAllocator, *, watched: bool = False) -> tuple[Peaks, Peaks, list[int]]:
    run = Run(script, allocator)
    run.build()
    first, later = run.step(), run.step(watched=watched)
    return first, later, run.allocated_after
