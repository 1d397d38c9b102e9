"""Everything that a run of a step allocates: as a script by op, with its sizes, and as events for the allocator."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rooflight.ledger import Ledger, Op
from rooflight.memory.context_memory import first_uses, kept_workspaces
from rooflight.memory.cudnn_workspaces import ConvolutionWorkspaces
from rooflight.memory.storage_lifetimes import StorageLifetimes, lifetimes_of
from rooflight.ops.kernel_task import Task, convolves
from rooflight.ops.op_tasks import tasks_of
from rooflight.ops.registry import result_bytes_of, workspace_of
from rooflight.ops.workspace_phases import Chip, WorkspacePhase, WorkspacePhases
from rooflight.step.costed_step import Step


@dataclass(frozen=True)
class AllocationScript:
    """Everything that a run allocates, with sizes in bytes."""

    lives: StorageLifetimes
    nbytes: Sequence[int]
    """Of every storage."""
    moments: Sequence[WorkspacePhases]
    """Of every op."""
    kept: dict[int, tuple[int, ...]]
    """What libraries take at an op, the first time, and never give back."""
    cast_from: Sequence[int] | None = None
    """Bytes of parameters and buffers before the model was cast on the device; `None`: it is built as it is."""


@dataclass(frozen=True)
class StepEvents:
    """The events of a step, as `CachingAllocator.play` takes them."""

    events: list[int]
    ends: list[int]
    """Of every op: the place behind its last event."""

    def op_at(self, place: int) -> int:
        """The op that an event belongs to; the first for -1, which is none."""
        return bisect_right(self.ends, place) if place >= 0 else 0


@dataclass(frozen=True)
class RunEvents:
    """Numbers are those of storages; behind them come what ops borrow and what libraries keep."""

    sizes: list[int]
    first: StepEvents
    """With what libraries take at their first use, and the optimizer's state where it is not there before."""
    later: StepEvents


def events_of(script: AllocationScript, *, with_state: bool) -> RunEvents:
    """Of a first step and of every other. `with_state`: the first makes the optimizer's state."""
    lives, sizes = script.lives, list(script.nbytes)
    events: list[int] = []
    ends: list[int] = []
    only_first: list[_Insertion] = []
    start = lives.first_optimizer_op if with_state else None
    for op, (freed, results, moments) in enumerate(zip(lives.freed, lives.results, script.moments, strict=False)):
        if freed:
            events += [~number for number in freed]
        if op == start or op in script.kept:
            state = lives.optimizer_state if op == start else ()
            only_first.append((op, len(events), [*state, *_numbered(script.kept.get(op, ()), sizes)]))
        if moments:
            events += _inside(results, moments, sizes)
        elif results:
            events += results
        ends.append(len(events))
    later = StepEvents(events, ends)
    return RunEvents(sizes, _with(later, only_first), later)


_Insertion = tuple[int, int, list[int]]
"""The op, the place before which they come, and the events."""


def _with(tape: StepEvents, insertions: Sequence[_Insertion]) -> StepEvents:
    events: list[int] = []
    ends, begun = list(tape.ends), 0
    for op, place, added in insertions:
        events += tape.events[begun:place]
        events += added
        ends[op:] = [end + len(added) for end in ends[op:]]
        begun = place
    events += tape.events[begun:]
    return StepEvents(events, ends)


def _inside(results: Sequence[int], moments: WorkspacePhases, sizes: list[int]) -> list[int]:
    """Results are made one after the other, and between them things are borrowed and given back."""
    events: list[int] = []
    done = 0
    for moment in moments:
        count = min(moment.results, len(results))
        events += results[done:count]
        done = max(done, count)
        borrowed = _numbered(moment.temporaries, sizes)
        events += borrowed
        events += [~number for number in borrowed]
    events += results[done:]
    return events


def _numbered(nbytes: Sequence[int], sizes: list[int]) -> list[int]:
    """New numbers for things of these sizes."""
    start = len(sizes)
    sizes += nbytes
    return list(range(start, len(sizes)))


def is_convolution(op: Op) -> bool:
    """One that runs, forward or backward."""
    return op.kind == "compute" and "convolution" in op.packet


class OpWorkspaces:
    """What the ops of a step borrow on one device: torch's own kernels by formula, cuDNN's convolutions by what was
    seen of the like. These are looked up together, which is faster than one by one."""

    def __init__(self, chip: Chip, workspaces: ConvolutionWorkspaces | None) -> None:
        self._chip = chip
        self._workspaces = workspaces

    def of(self, ops: Sequence[Op]) -> list[WorkspacePhases]:
        phases: list[WorkspacePhases] = []
        asked: list[tuple[int, list[Task]]] = []
        for place, op in enumerate(ops):
            if op.kind != "compute":
                phases.append(())
            elif is_convolution(op):
                phases.append(())
                # Workspaces of volumes were not recorded: they are taken to be those of one large image.
                tasks = [task for task in tasks_of(op) if convolves(task.family)]
                asked.append((place, [task._replace(family=task.family.replace("3d", "")) for task in tasks]))
            else:
                phases.append(workspace_of(op, self._chip))
        if self._workspaces is not None:
            sizes = iter(self._workspaces.bytes_of_many([task for _, tasks in asked for task in tasks]))
            for place, tasks in asked:
                # Each gradient is made, then its workspace is borrowed and given back.
                phases[place] = tuple(WorkspacePhase(number + 1, (next(sizes),)) for number in range(len(tasks)))
        return phases


_CAST = ("bf16", "fp16")


def _storage_bytes(ledger: Ledger) -> npt.NDArray[np.int64]:
    return np.array([storage.nbytes for storage in ledger.storages], dtype=np.int64)


def sizes_of(step: Step, chip: Chip) -> list[int]:
    """Bytes of every storage at the step's batch."""
    nbytes: list[int] = step.scaling.sizes(step.once(_storage_bytes)).tolist()
    unlike = {kind: sized for kind, op in enumerate(step.kinds) if (sized := result_bytes_of(op, chip))}
    if unlike:
        place = {storage.id: number for number, storage in enumerate(step.ledger.storages)}
        for op, kind in zip(step.ledger.ops, step.kind_of.tolist(), strict=True):
            for position, of_result in unlike.get(kind, {}).items():
                number = place.get(op.outputs[position].storage) if position < len(op.outputs) else None
                if number is not None:
                    nbytes[number] = of_result
    return nbytes


def in_half_precision(step: Step) -> bool:
    """All of the model, not only what autocast makes of it."""
    header = step.ledger.header
    return header.dtype in _CAST and not header.autocast


def script_of(step: Step, insides: OpWorkspaces, chip: Chip, capability: int | None) -> AllocationScript:
    """As a GPU would run it. A model in half precision is built in fp32 and cast on the device, as `.cuda().bfloat16()`
    does it."""
    lives, nbytes = step.once(lifetimes_of), sizes_of(step, chip)
    of_kind = insides.of(step.kinds)
    cast = [2 * nbytes[number] for number in lives.model] if in_half_precision(step) else None
    return AllocationScript(
        lives=lives,
        nbytes=nbytes,
        moments=[of_kind[kind] for kind in step.kind_of.tolist()],
        kept=kept_workspaces(step.once(first_uses), capability),
        cast_from=cast,
    )
