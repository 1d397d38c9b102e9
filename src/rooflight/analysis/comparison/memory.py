"""The memory of two steps side by side: an estimate's as it is predicted, a measured step's as its allocator told it.

Timelines are joined op by op, like everything that is compared. What each process holds before the step (libraries,
what was left by earlier work) is a constant between the two, and is taken off where their timelines are compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from rooflight.hardware.devices import find, recognise_name
from rooflight.ledger import Note, Op
from rooflight.metrics import ratio
from rooflight.prediction.rebuilt import as_run_on, traces_of
from rooflight.prediction.resolve_devices import memories_on
from rooflight.step.costed_step import own_step
from rooflight.summary.facts import Number, op_values
from rooflight.summary.measured import Measured, is_measured

if TYPE_CHECKING:
    from rooflight.hardware.device import Device

Kind = Literal["predicted", "measured"]
MOST_PARTINGS = 8
_UNLESS_NAMED = "h200"
"""For two estimates, of which neither names a device: the one that `rooflight predict` takes too."""


@dataclass(frozen=True)
class Moment:
    """An op, what is allocated after it, and what it borrows inside itself."""

    op: Op
    """Which one."""
    allocated_bytes: Number
    """After it."""
    workspace_bytes: Number
    """Taken and given back inside it, at most."""


@dataclass(frozen=True)
class Highest:
    """The op in which most is allocated."""

    op: Op
    """Which one."""
    allocated_bytes: Number
    """At that moment."""


@dataclass(frozen=True)
class SideMemory:
    """What one side says; `None` where it does not know."""

    kind: Kind
    """An estimate is predicted."""
    before_bytes: Number | None
    """Allocated when the step begins."""
    peak_allocated_bytes: Number | None
    """Most that tensors took."""
    peak_reserved_bytes: Number | None
    """Most that the allocator held of the device."""
    outside_bytes: Number | None
    """Context and libraries."""
    highest: Highest | None
    """Where the peak is."""
    moments: tuple[Moment, ...]
    """After every op that is known."""
    notes: tuple[Note, ...] = ()
    """What a reader should know of it."""

    @property
    def is_known(self) -> bool:
        """Is there a peak to compare?"""
        return self.peak_allocated_bytes is not None


@dataclass(frozen=True)
class Parting:
    """An op at which two timelines part: one grows by more than the other, or borrows more in between."""

    op: Op
    """As A has it."""
    growth_a_bytes: Number
    """Since the op before it that both have: what was freed in between is in it, on both sides."""
    growth_b_bytes: Number
    """The same on B."""
    workspace_a_bytes: Number
    """Borrowed inside the op on A."""
    workspace_b_bytes: Number
    """Borrowed inside the op on B."""

    @property
    def nbytes(self) -> Number:
        """How far: by what stays or by what is borrowed, whichever is more."""
        stays = abs(self.growth_a_bytes - self.growth_b_bytes)
        return max(stays, abs(self.workspace_a_bytes - self.workspace_b_bytes))


@dataclass(frozen=True)
class JoinedMemory:
    """Both sides, and their timelines joined by the keys of the ops."""

    a: SideMemory
    """Side A."""
    b: SideMemory
    """Side B."""
    device: str | None = None
    """For which one predictions were made."""

    @property
    def kinds(self) -> tuple[Kind, Kind]:
        """How A and B are known."""
        return self.a.kind, self.b.kind

    @cached_property
    def joined(self) -> list[tuple[Moment, Moment]]:
        """The ops of both, in A's order. Ranks may differ."""
        there = {moment.op.key[1:]: moment for moment in self.b.moments}
        return [(moment, there[key]) for moment in self.a.moments if (key := moment.op.key[1:]) in there]

    @property
    def offset_bytes(self) -> Number | None:
        """What A has more than B when the step begins: after the first op of both."""
        return _apart(self.joined[0]) if self.joined else None

    @property
    def furthest(self) -> tuple[Op, Number] | None:
        """After which op the timelines are furthest apart, and what A has more there, the offset taken off."""
        offset = self.offset_bytes
        if offset is None:
            return None
        most = max(self.joined, key=lambda pair: abs(_apart(pair) - offset))
        return most[0].op, _apart(most) - offset

    @property
    def furthest_share(self) -> float | None:
        """The same as a part of the peak: the measured one where there is one, else B's."""
        distance, side = self.furthest, self.a if self.kinds == ("measured", "predicted") else self.b
        return None if distance is None else ratio(abs(distance[1]), side.peak_allocated_bytes)

    def partings(self, limit: int = MOST_PARTINGS) -> list[Parting]:
        """Where predictions part the most, the largest first. Two runs are not taken apart: none explains the other."""
        if self.kinds == ("measured", "measured"):
            return []
        apart = []
        before: tuple[Number, Number] | None = None
        for a, b in self.joined:
            # Both timelines begin at the first op: what there was before it is the offset.
            last = before or (a.allocated_bytes, b.allocated_bytes)
            before = a.allocated_bytes, b.allocated_bytes
            grown = a.allocated_bytes - last[0], b.allocated_bytes - last[1]
            apart.append(Parting(a.op, *grown, a.workspace_bytes, b.workspace_bytes))
        apart = [parting for parting in apart if parting.nbytes]
        return sorted(apart, key=lambda parting: parting.nbytes, reverse=True)[:limit]


@dataclass(frozen=True)
class ComparedMemory:
    """The memory of both sides, or why it is left out; neither where there is nothing to be said."""

    joined: JoinedMemory | None = None
    """Both sides."""
    left_out: str = ""
    """One sentence; "" where it is there."""


def compare_memory(a: Measured, b: Measured, *, on: Device | None = None) -> ComparedMemory:
    """Measured on GPUs on both sides, or predicted for the GPU on which the other side was measured; of two estimates,
    for `on`."""
    sides = {"A": a, "B": b}
    estimates = {name: side for name, side in sides.items() if not is_measured(side.ledger)}
    if not estimates:
        return _of_two_runs(a, b)
    for name, side in sides.items():
        if not _is_for_gpu(side):
            return ComparedMemory(left_out=f"memory is left out: {name} is a step on a CPU")
        if name not in estimates and not _measured(side).is_known:
            return ComparedMemory(left_out=f"memory is left out: it was not measured in {name}")
        if name in estimates and not (side.ledger.storages and side.ledger.ops):
            lacking = "storages" if side.ledger.ops else "ops"
            return ComparedMemory(left_out=f"memory is left out: the ledger {name} has no {lacking}")
    device = _device(a, b, on)
    if device is None or device.kind != "gpu":
        named = next((side.ledger.header.device for side in sides.values() if side.ledger.header.device), None)
        return ComparedMemory(left_out=f"memory is left out: {named or 'the device'} is no GPU that rooflight knows")
    of_a, of_b = (_measured(side) if is_measured(side.ledger) else _predicted(side, device) for side in (a, b))
    return ComparedMemory(JoinedMemory(of_a, of_b, device.name))


def _of_two_runs(a: Measured, b: Measured) -> ComparedMemory:
    if not (_is_for_gpu(a) and _is_for_gpu(b)):
        return ComparedMemory()
    joined = JoinedMemory(_measured(a), _measured(b))
    return ComparedMemory(joined if joined.a.is_known or joined.b.is_known else None)


def _is_for_gpu(side: Measured) -> bool:
    return side.ledger.header.target.partition(":")[0] == "cuda"


def _device(a: Measured, b: Measured, on: Device | None) -> Device | None:
    """The one that was asked for; else that which a side names, the measured one, where there is one."""
    if on is not None:
        return on
    sides = sorted((a, b), key=lambda side: not is_measured(side.ledger))
    named = next((side.ledger.header.device for side in sides if side.ledger.header.device), None)
    return recognise_name(named) if named is not None else find(_UNLESS_NAMED)


def _measured(side: Measured) -> SideMemory:
    """Of several ranks the largest figures, and the timeline of the first."""
    ops, values, moments = side.ledger.ops, op_values(side.ledger), side.timeline.moments
    of_rank = [moment for moment in moments if moment.rank == moments[0].rank]
    borrowed = [
        values[moment.index]["workspace_bytes"].value if "workspace_bytes" in values[moment.index] else 0
        for moment in of_rank
    ]
    reached = [
        Highest(ops[moment.index], max(moment.before_bytes, moment.after_bytes) + workspace)
        for moment, workspace in zip(of_rank, borrowed, strict=True)
    ]
    return SideMemory(
        kind="measured",
        before_bytes=_of_step(side, "allocated_before_bytes"),
        peak_allocated_bytes=_of_step(side, "peak_allocated_bytes"),
        peak_reserved_bytes=_of_step(side, "peak_reserved_bytes"),
        outside_bytes=_of_step(side, "outside_bytes"),
        highest=max(reached, key=lambda one: one.allocated_bytes, default=None),
        moments=tuple(
            Moment(ops[moment.index], moment.after_bytes, workspace)
            for moment, workspace in zip(of_rank, borrowed, strict=True)
        ),
    )


def _of_step(side: Measured, name: str) -> Number | None:
    return side.step[name].value if name in side.step else None


def _predicted(side: Measured, device: Device) -> SideMemory:
    """From the estimate's own ops and storages. Views are left out: they take nothing and free nothing."""
    ledger, _ = as_run_on(side.ledger, device, traces_of(side.ledger))
    ops = ledger.ops
    memory = memories_on(device).of(own_step(ledger), device, timeline=True)
    timeline = memory.timeline
    assert timeline is not None
    borrowed: Sequence[int] = timeline.categories.get("workspace", (0,) * len(ops))
    return SideMemory(
        kind="predicted",
        before_bytes=memory.before_bytes,
        peak_allocated_bytes=memory.peak_allocated_bytes,
        peak_reserved_bytes=memory.peak_reserved_bytes,
        outside_bytes=memory.outside_bytes,
        highest=Highest(ops[memory.peak.op], memory.peak_allocated_bytes) if ops else None,
        moments=tuple(
            Moment(op, allocated, workspace)
            for op, allocated, workspace in zip(ops, timeline.allocated, borrowed, strict=True)
            if op.kind != "view"
        ),
        notes=memory.notes,
    )


def _apart(pair: tuple[Moment, Moment]) -> Number:
    return pair[0].allocated_bytes - pair[1].allocated_bytes
