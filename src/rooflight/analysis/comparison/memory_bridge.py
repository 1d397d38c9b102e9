"""Memory from A to B: tensors by what they hold, workspace, rounding, what fusion never stores, what is reserved and
not allocated, the context.

Ends are what the device had in use: measured, or of a predicted side as predicted. What tensors take on each side at
its peak is worked out by the model of the allocator from the step's storages; never from what was measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rooflight.analysis.comparison import bridge as causes
from rooflight.analysis.comparison.bridge import Bridge, Contribution, bridge
from rooflight.analysis.comparison.factors import effects
from rooflight.analysis.comparison.fusion import kept_inside
from rooflight.analysis.comparison.memory import JoinedMemory, SideMemory
from rooflight.formatting import whole_bytes
from rooflight.hardware.device import Device
from rooflight.ledger import Header, Ledger
from rooflight.memory.result import Memory
from rooflight.prediction.resolve_devices import memories_on
from rooflight.step.costed_step import own_step
from rooflight.summary.measured import Measured

WORKSPACE = "workspace"
ROUNDING = "rounding of blocks"
RESERVED = "reserved, not allocated"
CONTEXT = "CUDA context and libraries"
OTHER_TENSORS = "other tensors kept"
_OF_MODEL = frozenset({"parameter", "buffer", "gradient", "optimizer-state"})
"""What does not grow with the batch."""
_BESIDE = {"workspace": WORKSPACE, "libraries": WORKSPACE, "rounding": ROUNDING}
_PLURALS = {
    "workspace": "workspace of an op",
    "libraries": "workspace of libraries",
    "rounding": "rounding",
    "optimizer-state": "optimizer state",
    "temporary": "temporaries",
}


@dataclass(frozen=True)
class _MemorySide:
    header: Header
    told: SideMemory
    """Measured, or predicted."""
    played: Memory
    """By the model of the allocator."""
    unstored_bytes: int
    """At its peak, of storages that its fused kernels never make."""
    has_kernels: bool
    """Is it told what is fused?"""


def memory_bridge(
    joined: JoinedMemory | None, sides: tuple[Measured, Measured], devices: tuple[Device | None, Device | None]
) -> Bridge | None:
    """`None` where a side's memory is not known or cannot be played."""
    if joined is None:
        return None
    told = joined.a, joined.b
    if not all(side.peak_allocated_bytes is not None and side.peak_reserved_bytes is not None for side in told):
        return None
    placed = []
    for side, of, device in zip(sides, told, devices, strict=True):
        ledger = side.ledger
        if device is None or device.kind != "gpu" or not ledger.ops or not ledger.storages:
            return None
        played = memories_on(device).of(side.once(own_step), device)
        placed.append(_MemorySide(ledger.header, of, played, _unstored(ledger, played.peak.op), bool(ledger.kernels)))
    a, b = placed
    has_outside = all(side.told.outside_bytes is not None for side in placed)
    ends = [
        (side.told.peak_reserved_bytes or 0) + ((side.told.outside_bytes or 0) if has_outside else 0) for side in placed
    ]
    what = "memory in use on the device" if has_outside else "memory reserved on the device"
    return bridge("memory", "byte", what, (ends[0], ends[1]), _parts(a, b, has_outside=has_outside))


def _unstored(ledger: Ledger, at: int) -> int:
    never = kept_inside(ledger).unstored
    return sum(
        storage.nbytes
        for storage in ledger.storages
        if storage.id in never
        and storage.born is not None
        and storage.born <= at
        and (storage.dies is None or storage.dies > at)
    )


def _parts(a: _MemorySide, b: _MemorySide, *, has_outside: bool) -> Iterator[Contribution]:
    for category in dict.fromkeys((*a.played.peak.split, *b.played.peak.split)):
        yield from _category(category, a, b)
    if a.has_kernels and b.has_kernels and (a.unstored_bytes or b.unstored_bytes):
        most = max(a.unstored_bytes, b.unstored_bytes)
        evidence = f"{whole_bytes(most)} of intermediate results at the peak stay inside kernels"
        yield Contribution(causes.FUSION, a.unstored_bytes - b.unstored_bytes, None, evidence)
    slack = [(side.told.peak_reserved_bytes or 0) - (side.told.peak_allocated_bytes or 0) for side in (a, b)]
    evidence = f"held by the allocator beyond tensors: {whole_bytes(slack[0])} → {whole_bytes(slack[1])}"
    if a.header.is_graph != b.header.is_graph:
        evidence += "; a graph has pools of its own"
    yield Contribution(RESERVED, slack[1] - slack[0], None, evidence, "observed")
    if has_outside:
        outside = [side.told.outside_bytes or 0 for side in (a, b)]
        evidence = f"outside the allocator: {whole_bytes(outside[0])} → {whole_bytes(outside[1])}"
        yield Contribution(CONTEXT, outside[1] - outside[0], None, evidence, "observed")


def _category(category: str, a: _MemorySide, b: _MemorySide) -> Iterator[Contribution]:
    before, after = (side.played.peak.split.get(category, 0) for side in (a, b))
    evidence = f"{_PLURALS.get(category, f'{category}s')} at the peak: {whole_bytes(before)} → {whole_bytes(after)}"
    if category in _BESIDE:
        yield Contribution(_BESIDE[category], after - before, None, evidence)
        return
    # What one side does not have at all was not made larger or smaller by types or batches: it is kept, or not.
    on_both = bool(before and after)
    batches = (a.header.batch or 1) * (a.header.sequence or 1), (b.header.batch or 1) * (b.header.sequence or 1)
    sizes = on_both and category not in _OF_MODEL and batches[0] != batches[1]
    precision = on_both and (a.header.dtype, a.header.autocast) != (b.header.dtype, b.header.autocast)
    if not sizes or not precision:
        name = causes.SIZES if sizes else causes.PRECISION if precision else OTHER_TENSORS
        yield Contribution(name, after - before, None, evidence)
        return
    larger = batches[1] / batches[0]
    mixed = {
        (False, False): before,
        (True, False): before * larger,
        (False, True): after / larger,
        (True, True): after,
    }
    of_sizes, of_precision = effects(lambda mixture: mixed[mixture[0], mixture[1]], 2)
    for name, amount in ((causes.SIZES, of_sizes), (causes.PRECISION, of_precision)):
        change = f"{'−' if amount < 0 else '+'}{whole_bytes(abs(round(amount)))}"
        yield Contribution(name, amount, None, f"{evidence}, {change} of it by {name}")
