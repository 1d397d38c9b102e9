"""What a prediction says of memory. Bytes; three numbers, never one: allocated, reserved, and taken of the device."""

from __future__ import annotations

import msgspec

from rooflight import metrics
from rooflight.ledger import Note
from rooflight.metrics import Fit


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """A storage, or several that are alike, alive at the peak."""

    bytes: int
    """Of all of them."""
    count: int = 1
    """How many storages."""
    category: str
    """As `activation` or `parameter`."""
    name: str = ""
    """Of a parameter, buffer or input; of anything else the op that made it."""
    module: str = ""
    """That it was made in."""
    shape: tuple[int, ...] = ()
    """Of one of them."""
    dtype: str = ""
    """Of its elements."""


class Peak(msgspec.Struct, frozen=True, kw_only=True):
    """The moment at which most is allocated."""

    op: int
    """Index of the op."""
    name: str
    """Of the op, as `aten::convolution`."""
    module: str
    """That the op runs in."""
    phase: str
    """Of the step."""
    split: dict[str, int]
    """By category, as asked for; with `rounding`, what blocks have beyond that, it adds up to the allocated peak."""
    tenants: tuple[Tenant, ...] = ()
    """The largest."""


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes after every op of the step; workspace is what the op itself borrows at most."""

    categories: dict[str, tuple[int, ...]]
    """By category, as asked for."""
    allocated: tuple[int, ...]
    """What the allocator has given out, rounding and all."""
    phases: tuple[tuple[str, int], ...] = ()
    """Each stretch of forward, backward or optimizer, and its first op."""


class Memory(msgspec.Struct, frozen=True, kw_only=True):
    """Of one device in one step among many."""

    peak_allocated_bytes: int
    """Most that torch's allocator has given out at one time, in the first step or any later one."""
    peak_reserved_bytes: int | None
    """Most that the allocator holds of the device; `None`: a CPU, where nothing is held back."""
    outside_bytes: int | None
    """The driver's context and what libraries load, past the allocator."""
    usable_bytes: int
    """What the driver lets a process have."""
    fits: bool
    """Would it run? Cached blocks are given back before that fails."""
    retries: int = 0
    """How often cached blocks have to be given back in the first two steps, which each time waits for the device."""
    before_bytes: int
    """Allocated when a step begins: the gradients of the last one are still there."""
    first_step_bytes: int
    """The allocated peak of the first step, in which the optimizer's state is made."""
    peak: Peak
    """The moment at which most is allocated, and what is there then."""
    timeline: Timeline | None = None
    """Of the whole step, where it was asked for."""
    stage: int | None = None
    """Of many GPUs, the stage of the pipeline whose ranks are the fullest, counted from nought."""
    notes: tuple[Note, ...] = ()
    """What a reader should know of it."""

    @property
    def fit(self) -> Fit:
        """`fits`, `barely` or `does not fit`: the one answer, wherever it is said."""
        return metrics.fit(runs=self.fits, retries=self.retries)

    @property
    def device_bytes(self) -> int:
        """What a tool outside the process sees in use."""
        return (self.peak_reserved_bytes or self.peak_allocated_bytes) + (self.outside_bytes or 0)

    @property
    def cached_bytes(self) -> int | None:
        """Reserved and not allocated: kept for what comes next, or in fragments."""
        return None if self.peak_reserved_bytes is None else self.peak_reserved_bytes - self.peak_allocated_bytes

    @property
    def fragmentation(self) -> float | None:
        """The part of what is reserved that is not allocated at the peak."""
        if not self.peak_reserved_bytes:
            return None
        return 1 - self.peak_allocated_bytes / self.peak_reserved_bytes
