"""The memory of a step on a device: built, run twice through the allocator's model, taken apart at its highest."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from rooflight.hardware.device import Device
from rooflight.ledger import Ledger, Note
from rooflight.memory.allocation_script import (
    AllocationScript,
    OpWorkspaces,
    in_half_precision,
    is_convolution,
    script_of,
    sizes_of,
)
from rooflight.memory.allocator import AllocatorFull, CachingAllocator, PlainAllocator
from rooflight.memory.context_memory import ContextMemory, code_bytes, context_memory, cublas_bytes, usable_bytes
from rooflight.memory.cudnn_workspaces import TAKEN_OVER, DeviceWorkspaces
from rooflight.memory.largest import SizeFit
from rooflight.memory.peak import peak_of, timeline_of
from rooflight.memory.replay import AllocatorRun, StepPeaks
from rooflight.memory.result import Memory, Peak, Timeline
from rooflight.memory.settings import AllocatorSettings
from rooflight.memory.storage_lifetimes import lifetimes_of
from rooflight.ops.workspace_phases import Chip
from rooflight.step.costed_step import Step

_THREADS = {75: 1024, 86: 1536, 87: 1536, 89: 1536, 120: 1536}
"""Threads that a multiprocessor holds where it is not 2,048, by compute capability (CUDA C++ Programming Guide)."""
ScriptChange = Callable[[AllocationScript], Mapping[int, AllocationScript]]
"""Makes of a step's script those of the ranks that share it, by stage: all of which one may be the fullest."""


@dataclass(frozen=True, eq=False)
class _PlayedScript:
    """A script that was run with no end to the memory."""

    stage: int
    script: AllocationScript
    first: StepPeaks
    later: StepPeaks
    allocated_after: list[int]

    @property
    def is_first(self) -> bool:
        """Is the first step the highest?"""
        return self.first.allocated > self.later.allocated

    @property
    def highest(self) -> StepPeaks:
        return self.first if self.is_first else self.later

    @property
    def reserved(self) -> int:
        return max(self.first.reserved, self.later.reserved)


class MemoryPredictor:
    """Answers for any step and device. What devices have in common is played once: most chips give a step the same
    script, and those that differ in what a kernel borrows have one each, however many are asked for.

    `named`: say what is alive at the peak, which takes longer than the rest.
    """

    def __init__(
        self,
        settings: AllocatorSettings | None = None,
        workspaces: DeviceWorkspaces | None = None,
        *,
        named: bool = True,
    ) -> None:
        self.settings = settings or AllocatorSettings()
        self.workspaces = workspaces or DeviceWorkspaces()
        self.named = named
        self._known: dict[tuple[object, ...], tuple[_PlayedScript, ...]] = {}
        self._shown: dict[tuple[_PlayedScript, bool], tuple[Peak, Timeline | None]] = {}

    def of(self, step: Step, device: Device, *, timeline: bool = False, change: ScriptChange | None = None) -> Memory:
        """`change`: of what is allocated, as when the step is one rank's part of a larger one."""
        ranks, around = self._ranks(step, device, watched=timeline, change=change), self._around(step, device)
        room, on_gpu = _room(around), device.is_cuda
        runs = {rank.stage: self._within(rank, device, room) for rank in ranks}
        failing = [rank for rank in ranks if runs[rank.stage] is None]
        if failing:
            shown = max(failing, key=lambda rank: rank.highest.allocated)
        else:
            shown = max(ranks, key=lambda rank: (rank.reserved, rank.highest.allocated))
        held, retries = runs[shown.stage] or (shown.reserved, 0)
        peak, course = self._taken_apart(step, shown, timeline=timeline)
        return Memory(
            peak_allocated_bytes=shown.highest.allocated,
            peak_reserved_bytes=held if on_gpu else None,
            outside_bytes=around.outside_bytes if on_gpu else None,
            usable_bytes=around.usable_bytes,
            fits=not failing,
            retries=retries,
            before_bytes=shown.later.before,
            first_step_bytes=shown.first.allocated,
            peak=peak,
            timeline=course,
            stage=None if change is None else shown.stage,
            notes=(*around.notes, *self._workspace_notes(step, device)),
        )

    def fits(self, step: Step, device: Device, *, change: ScriptChange | None = None) -> SizeFit:
        """As `of`, without taking anything apart."""
        room = _room(self._around(step, device))
        ranks = self._play(self._whole(step, device), step, device, change)
        fits = all(self._within(rank, device, room) is not None for rank in ranks)
        return fits, max(rank.reserved for rank in ranks), room

    def _within(self, played: _PlayedScript, device: Device, room: int) -> tuple[int, int] | None:
        """What the allocator holds at most with so many bytes, and how often it must give back what it caches; `None`:
        it does not get through."""
        if played.reserved <= room:
            return played.reserved, 0
        if played.highest.allocated > room:
            return None
        allocator = self._allocator(device, room)
        try:
            first, later, _ = _run(played.script, allocator)
        except AllocatorFull:
            return None
        return max(first.reserved, later.reserved), allocator.retries

    def _taken_apart(self, step: Step, played: _PlayedScript, *, timeline: bool) -> tuple[Peak, Timeline | None]:
        key = played, timeline
        if key not in self._shown:
            self._shown[key] = (
                peak_of(step, played.script, played.highest, first=played.is_first, tenants=self.named),
                timeline_of(step, played.script, played.allocated_after) if timeline else None,
            )
        return self._shown[key]

    def _ranks(
        self, step: Step, device: Device, *, watched: bool, change: ScriptChange | None
    ) -> tuple[_PlayedScript, ...]:
        """All of which one may be the fullest; those of several devices where nothing tells these apart."""
        room = _room(self._around(step, device))
        # Whether half-precision weights are cast depends on the room there is; of ranks, it is decided for each.
        cast = _is_cast(step, room) if change is None else room if in_half_precision(step) else None
        alike = (
            step,
            change,
            watched,
            device.is_cuda,
            cast,
            self._fraction_bytes(device) if self.settings.garbage_collection_threshold else None,
        )
        key = (*alike, chip_of(device), cublas_bytes(device.capability), self.workspaces.origin(device.name))
        if key not in self._known:
            script = self._whole(step, device)
            same = (*alike, tuple(script.nbytes), tuple(script.moments), tuple(script.kept.items()))
            if same not in self._known:
                self._known[same] = self._play(script, step, device, change, watched=watched)
            self._known[key] = self._known[same]
        return self._known[key]

    def _play(
        self,
        script: AllocationScript,
        step: Step,
        device: Device,
        change: ScriptChange | None,
        *,
        watched: bool = False,
    ) -> tuple[_PlayedScript, ...]:
        room = _room(self._around(step, device))
        if change is None:
            scripts: Mapping[int, AllocationScript] = {
                0: script if _is_cast(step, room) else replace(script, cast_from=None)
            }
        else:
            scripts = {stage: _as_loaded(one, room) for stage, one in change(script).items()}
        return tuple(
            _PlayedScript(stage, one, *_run(one, self._allocator(device, None), watched=watched))
            for stage, one in scripts.items()
        )

    def script(self, step: Step, device: Device) -> AllocationScript:
        """Everything that a run of the step allocates on the device."""
        script = self._whole(step, device)
        return script if _is_cast(step, _room(self._around(step, device))) else replace(script, cast_from=None)

    def _whole(self, step: Step, device: Device) -> AllocationScript:
        chip = chip_of(device)
        if not device.is_cuda:
            return AllocationScript(step.once(lifetimes_of), sizes_of(step, chip), [()] * len(step.ledger.ops), {})
        workspaces = self.workspaces.of(device.name) if _has_convolutions(step) else None
        return script_of(step, OpWorkspaces(chip, workspaces), chip, device.capability)

    def _workspace_notes(self, step: Step, device: Device) -> tuple[Note, ...]:
        taken_over = device.is_cuda and self.workspaces.origin(device.name) != device.name
        return (TAKEN_OVER,) if taken_over and _has_convolutions(step) else ()

    def _allocator(self, device: Device, capacity: int | None) -> CachingAllocator:
        if not device.is_cuda:
            return PlainAllocator(self.settings, capacity)
        return CachingAllocator(self.settings, capacity, self._fraction_bytes(device))

    def _fraction_bytes(self, device: Device) -> int | None:
        """What a memory fraction leaves to torch's allocator; the context is not in it."""
        part = self.settings.memory_fraction
        return None if part is None or not device.is_cuda else int(part * usable_bytes(device)[0])

    def _around(self, step: Step, device: Device) -> ContextMemory:
        """What a process has around the allocator; a memory fraction leaves it less than there is."""
        context, allowed = context_memory(device, step.once(code_bytes)), self._fraction_bytes(device)
        if allowed is None:
            return context
        return replace(context, usable_bytes=min(context.usable_bytes, allowed + context.outside_bytes))


def chip_of(device: Device) -> Chip:
    return Chip(int(device.sms.value), _THREADS.get(device.capability or 0, 2048))


def _is_cast(step: Step, room: int) -> bool:
    """What does not fit in fp32, and a weight of it besides, is loaded as it is: nobody casts it on the device."""
    return step.once(_cast_bytes) <= room


def _cast_bytes(ledger: Ledger) -> int:
    weights = [storage.nbytes for storage in ledger.storages if storage.category in ("parameter", "buffer")]
    return 2 * sum(weights) + max(weights, default=0)


def _as_loaded(script: AllocationScript, room: int) -> AllocationScript:
    """The same of one rank's part."""
    if script.cast_from is None:
        return script
    largest = max((script.nbytes[number] for number in script.lives.model), default=0)
    return script if sum(script.cast_from) + largest <= room else replace(script, cast_from=None)


def _has_convolutions(step: Step) -> bool:
    return any(is_convolution(op) for op in step.kinds)


def _room(around: ContextMemory) -> int:
    return around.usable_bytes - around.outside_bytes


def _run(
    script: AllocationScript, allocator: CachingAllocator, *, watched: bool = False
) -> tuple[StepPeaks, StepPeaks, list[int]]:
    run = AllocatorRun(script, allocator)
    run.build()
    first, later = run.step(), run.step(watched=watched)
    return first, later, run.allocated_after
