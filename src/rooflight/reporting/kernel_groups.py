"""Launches put together into the rows of a table, and what they sum to. Pure: a ledger in, groups out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rooflight.ledger import Kernel, Ledger
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS

By = Literal["kernel", "launch", "range"]
Number = int | float
SEVERAL = "several"
COPIED = "copied_bytes"
"""Of copies and fills; the others are quantities of kernels."""


@dataclass(frozen=True)
class Group:
    """Launches that share a row. A sum is unknown (`None`) when one of its launches has no value."""

    name: str
    kernels: Sequence[Kernel]
    gathered: bool = False
    """A total, or the rest of a table: its launches have nothing else in common."""

    def sum(self, name: str) -> Number | None:
        counted = [kernel for kernel in self.kernels if (kernel.kind in ("copy", "set")) == (name == COPIED)]
        values = [kernel.quantities[name].value for kernel in counted if name in kernel.quantities]
        return sum(values) if values and len(values) == len(counted) else None

    def sum_known(self, names: Sequence[str]) -> Number | None:
        """The sum of those quantities that were counted; unknown when one of them misses a launch."""
        sums = [self.sum(name) for name in names if any(name in kernel.quantities for kernel in self.kernels)]
        known = [value for value in sums if value is not None]
        return sum(known) if known and len(known) == len(sums) else None

    @property
    def time_s(self) -> float | None:
        times = [kernel.time_s for kernel in self.kernels if kernel.time_s is not None]
        return math.fsum(times) if times and len(times) == len(self.kernels) else None

    @property
    def tensor_flops(self) -> Number | None:
        return self.sum_known(TENSOR_FLOPS)

    @property
    def cuda_flops(self) -> Number | None:
        return self.sum_known(CUDA_FLOPS)

    @property
    def flops(self) -> Number | None:
        """By tensor and CUDA cores together; unknown when one of the two was not counted."""
        tensor, cuda = self.tensor_flops, self.cuda_flops
        return None if tensor is None or cuda is None else tensor + cuda

    @property
    def flops_per_s(self) -> float | None:
        flops, time = self.flops, self.time_s
        return flops / time if flops is not None and time else None

    @property
    def dram_bytes(self) -> Number | None:
        read, written = (self.sum(name) for name in DRAM_BYTES)
        return None if read is None or written is None else read + written

    @property
    def intensity(self) -> float | None:
        """Executed FLOPs for every byte of DRAM traffic."""
        flops, size = self.flops, self.dram_bytes
        return flops / size if flops is not None and size else None

    def shared(self, pick: Callable[[Kernel], Any]) -> Any:
        """What all of its launches have in common; `several` if they differ."""
        if self.gathered:
            return ""
        kinds = {pick(kernel) for kernel in self.kernels}
        return kinds.pop() if len(kinds) == 1 else SEVERAL


def groups(ledger: Ledger, by: By = "kernel") -> list[Group]:
    """Launches in the order of the log, or groups of them: those that took longest first, else those that did most."""
    if by == "launch":
        return [Group(kernel.name, [kernel]) for kernel in ledger.kernels]
    members: dict[str, list[Kernel]] = {}
    for kernel in ledger.kernels:
        members.setdefault(kernel.name if by == "kernel" else kernel.label, []).append(kernel)
    found = [Group(name, kernels) for name, kernels in members.items()]
    if all(group.time_s is not None for group in found):
        return sorted(found, key=lambda group: -(group.time_s or 0.0))
    return sorted(
        found, key=lambda group: -(group.flops or group.tensor_flops or group.cuda_flops or group.dram_bytes or 0)
    )
