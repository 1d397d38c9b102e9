"""Launches of an imported log that share a row, and their sums.

What is estimated belongs to an op, and most ops launch several kernels: a copy into another layout, the product, a sum
of its parts. Their names tell which of them computes; where they do not, it may be any of them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from rooflight.ledger import Kernel, Ledger, Op, Totals, total
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, TENSOR_FLOPS, Number, ratio
from rooflight.ops.kernel_names import role_of

By = Literal["kernel", "launch", "range"]
SEVERAL = "several"
COPIED = "copied_bytes"
"""Of copies and fills; the others are quantities of kernels."""


_COMPUTING = ("matrix", "attention")
_HELPING = ("layout", "cast", "sum of parts", "bookkeeping")


@dataclass(frozen=True)
class LaunchedOps:
    """The ops of a log, and which of its launches each one's work is shared by."""

    ops: Sequence[Op]
    most: Mapping[int, int]
    """The highest standing that a kernel of the op has: those below it only prepare or gather for those with it."""
    launches: Mapping[int, int]
    """How many have it."""

    @classmethod
    def of(cls, ledger: Ledger) -> LaunchedOps:
        most: dict[int, int] = {}
        for kernel in ledger.kernels:
            most.update((index, max(_standing(kernel), most.get(index, 0))) for index in kernel.ops)
        return cls(ledger.ops, most, Counter(_worked_on(ledger.kernels, most)))

    def wholly_in(self, kernels: Iterable[Kernel]) -> tuple[list[Op], bool]:
        """The ops whose work is done by these kernels alone; and whether there are others, shared with more kernels."""
        seen = Counter(_worked_on(kernels, self.most))
        whole = [self.ops[index] for index, launches in seen.items() if launches == self.launches[index]]
        return whole, len(whole) < len(seen)


def _standing(kernel: Kernel) -> int:
    """How surely a kernel computes what its op is for."""
    role = role_of(kernel.name)
    if kernel.kind in ("copy", "set") or (role is not None and role.role in _HELPING):
        return 0
    return 2 if role is not None and role.role in _COMPUTING else 1


def _worked_on(kernels: Iterable[Kernel], most: Mapping[int, int]) -> Iterator[int]:
    for kernel in kernels:
        yield from (index for index in kernel.ops if _standing(kernel) == most[index])


@dataclass(frozen=True)
class KernelGroup:
    """Launches that share a row. A sum is unknown (`None`) when one of its launches has no value."""

    name: str
    kernels: Sequence[Kernel]
    gathered: bool = False
    """A total, or the rest of a table: its launches have nothing else in common."""
    launched: LaunchedOps | None = None
    """Of the ledger, where the log told what they were called with."""

    def sum(self, name: str) -> Number | None:
        counted = [kernel for kernel in self.kernels if (kernel.kind in ("copy", "set")) == (name == COPIED)]
        values = [kernel.quantities[name].value for kernel in counted if name in kernel.quantities]
        return sum(values) if values and len(values) == len(counted) else None

    def sum_known(self, names: Sequence[str]) -> Number | None:
        """The sum of those quantities that were counted; unknown when one of them misses a launch."""
        sums = [self.sum(name) for name in names if any(name in kernel.quantities for kernel in self.kernels)]
        counted = [value for value in sums if value is not None]
        return sum(counted) if counted and len(counted) == len(sums) else None

    @property
    def time_s(self) -> float | None:
        times = [kernel.time_s for kernel in self.kernels if kernel.time_s is not None]
        return math.fsum(times) if times and len(times) == len(self.kernels) else None

    @property
    def calls(self) -> int:
        return sum(kernel.calls for kernel in self.kernels)

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
        return ratio(self.flops, self.time_s)

    @property
    def dram_bytes(self) -> Number | None:
        read, written = (self.sum(name) for name in DRAM_BYTES)
        return None if read is None or written is None else read + written

    @property
    def intensity(self) -> float | None:
        """Executed FLOPs for every byte of DRAM traffic."""
        return ratio(self.flops, self.dram_bytes)

    @property
    def estimate(self) -> Totals | None:
        """What mathematics says that its ops cost, each once; unknown where none was told, where one has no formula,
        and where other kernels did a part of one that nothing tells."""
        if self.launched is None:
            return None
        ops, shared = self.launched.wholly_in(self.kernels)
        sums = total(ops)
        return sums if ops and (self.gathered or not (sums.uncounted or shared)) else None

    @property
    def precisions(self) -> set[str]:
        """Those that its ops compute in."""
        ops = self.launched.wholly_in(self.kernels)[0] if self.launched is not None else ()
        return {op.precision for op in ops}

    def shared(self, pick: Callable[[Kernel], Any]) -> Any:
        """What all of its launches have in common; `several` if they differ."""
        if self.gathered:
            return ""
        kinds = {pick(kernel) for kernel in self.kernels}
        return kinds.pop() if len(kinds) == 1 else SEVERAL


def groups(ledger: Ledger, by: By = "kernel") -> list[KernelGroup]:
    """Launches in the order of the log, or groups of them: those that took longest first, else those that did most."""
    launched = LaunchedOps.of(ledger)
    if by == "launch":
        return [KernelGroup(kernel.name, [kernel], launched=launched) for kernel in ledger.kernels]
    members: dict[str, list[Kernel]] = {}
    for kernel in ledger.kernels:
        members.setdefault(kernel.name if by == "kernel" else kernel.label, []).append(kernel)
    kinds = [KernelGroup(name, kernels, launched=launched) for name, kernels in members.items()]
    if any(group.time_s is not None for group in kinds):  # of two logs that were joined, some may have none
        return sorted(kinds, key=lambda group: -(group.time_s or 0.0))
    return sorted(
        kinds, key=lambda group: -(group.flops or group.tensor_flops or group.cuda_flops or group.dram_bytes or 0)
    )
