"""Sums over the ops of a row, and which of them can be made."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, EXECUTED_FLOPS, TENSOR_FLOPS, ratio
from rooflight.summary.facts import MeasuredFact, Number


class OpGroup(msgspec.Struct, frozen=True):
    """The ops of one row, views left out, and the facts that lie wholly inside it."""

    ops: tuple[int, ...]
    facts: tuple[MeasuredFact, ...]


@dataclass(frozen=True)
class Whole:
    """Which sums over several quantities can be made: those all of whose parts were counted."""

    executed: bool
    cuda: bool
    dram: bool


class Sums(msgspec.Struct, frozen=True):
    """What a row measured. A quantity that no op of the row has is not in `values`."""

    values: Mapping[str, Number]
    ran: int
    """Ops of the row that launched a kernel (on a CPU: that compute)."""
    missing: Mapping[str, int]
    """By quantity: how many of those have no value of it, where some op of the step has one."""
    matrix_executed: Number | None = None
    """Executed FLOPs of the ops that have matrix work by formula, where they were counted ..."""
    matrix_useful: int | None = None
    """... and the useful FLOPs of the same ops."""
    compulsory_bytes: int | None = None
    """Compulsory bytes of the ops whose DRAM bytes were counted."""
    whole: Whole = Whole(executed=True, cuda=True, dram=True)
    flops_time_s: Number | None = None
    """Time of the ops on the ranks that have counters of FLOPs, and of bytes; all ops where there is one rank."""
    dram_time_s: Number | None = None

    def get(self, name: str) -> Number | None:
        return self.values.get(name)

    def of(self, names: Iterable[str]) -> Number | None:
        """The sum of several quantities; `None` when none of them is known."""
        known = [self.values[name] for name in names if name in self.values]
        return sum(known) if known else None

    @property
    def time_s(self) -> Number | None:
        """Kernel time, or time on the CPU for a step that runs there."""
        time = self.get("kernel_time_s")
        return self.get("host_time_s") if time is None else time

    @property
    def tensor_flops(self) -> Number | None:
        return self.of(TENSOR_FLOPS)

    @property
    def cuda_flops(self) -> Number | None:
        return self.of(CUDA_FLOPS) if self.whole.cuda else None

    @property
    def executed_flops(self) -> Number | None:
        """By all units; `None` where one of them was not counted: what is left out would look like 0."""
        return self.of(EXECUTED_FLOPS) if self.whole.executed else None

    @property
    def dram_bytes(self) -> Number | None:
        return self.of(DRAM_BYTES) if self.whole.dram else None

    @property
    def executed_per_useful(self) -> float | None:
        """Over the ops with matrix work; the instructions of all others are in no ratio."""
        return ratio(self.matrix_executed, self.matrix_useful)

    @property
    def dram_per_compulsory(self) -> float | None:
        return ratio(self.dram_bytes, self.compulsory_bytes)

    @property
    def executed_flops_per_s(self) -> float | None:
        return ratio(self.executed_flops, self.flops_time_s)

    @property
    def dram_bytes_per_s(self) -> float | None:
        return ratio(self.dram_bytes, self.dram_time_s)
