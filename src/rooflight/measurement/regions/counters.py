"""Hardware counters of a region: one pass an execution, until all that are needed have been counted.

A region cannot be run again at will, so its counters are asked in small groups, each of as few passes as the hardware
allows (mostly one): what an execution has counted is safe, whatever becomes of the next. The first group tells which
tensor pipes are in use, and only their counters are asked after that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from rooflight.hardware import counter_tables
from rooflight.ledger import Value
from rooflight.measurement.cupti import cupti, gpu, ranges
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS, TENSOR_FLOPS

_SOURCE = "cupti"
_RANGE = "region"
_HALF_FLOPS = "cuda_flops_fp16"
_HALF_TENSOR_WORK = ("tensor_flops_fp16", "tensor_flops_bf16")
_UPPER_BOUND = "upper bound: compilers also load constants by HFMA2"


@dataclass(frozen=True)
class CounterGroup:
    """Counters that are counted together, and the executions that takes."""

    metrics: tuple[str, ...]
    passes: int


class CounterPlan:
    """What is still to be counted for one region on one GPU: `begin()`, the work, then `end()` or `abort()`."""

    def __init__(self, device: int, *, levels: Collection[counter_tables.Level]) -> None:
        self.device = device
        self._on = gpu.device(device)
        self._bytes = counter_tables.byte_counters(levels, chip=self._on.chip)
        scout = counter_tables.scout_metrics(self._on.chip)
        self._groups = self._grouped([*scout, *(counter.metric for counter in self._bytes)])
        self._work: tuple[counter_tables.Counter, ...] | None = None
        """Counters of FLOPs; `None` until the scout has told which."""
        self._in_use: tuple[counter_tables.Counter, ...] = ()
        self._values: dict[str, float] = {}
        self._profiler: ranges.RangeProfiler | None = None
        self._in_pass = False
        self._passes_done = 0
        self._autocast = False
        """It was on at the beginning of a pass."""

    def _grouped(self, names: Sequence[str]) -> list[CounterGroup]:
        with cupti.Host(self._on.chip, availability=self._on.availability) as host:
            return group_by_pass(names, host.passes)

    @property
    def complete(self) -> bool:
        return self._work is not None and not self._groups

    @property
    def missing(self) -> str | None:
        """What it still lacks; `None` when nothing."""
        if self._work is None:
            return f"FLOPs and DRAM bytes: at least {self._passes_left() + 1} more executions"
        if self._groups:
            left = self._passes_left()
            return f"FLOPs: {left} more execution{'' if left == 1 else 's'}"
        return self._unknown()

    def _unknown(self) -> str | None:
        """What was counted and still tells nothing."""
        quantities = self.quantities()
        if not any(counter.quantity in DRAM_BYTES for counter in self._bytes):
            return f"DRAM bytes: {self._on.chip} does not count them"
        if lost := sorted({counter.quantity for counter in self._work or ()} - quantities.keys()):
            return f"{', '.join(lost)}: the counters gave no value"
        if not self._tensor_work_is_known(quantities):
            return f"FLOPs: {self._on.chip} does not count what its matrix instructions do"
        if lost := sorted({counter.quantity for counter in self._bytes} - quantities.keys()):
            return f"{', '.join(lost)}: no more than a range with nothing in it shows"
        return None

    def _tensor_work_is_known(self, quantities: Mapping[str, Value]) -> bool:
        counted = all(counter.quantity in quantities for counter in self._work or ())
        return counted and any(name in quantities for name in TENSOR_FLOPS)

    def _passes_left(self) -> int:
        return sum(group.passes for group in self._groups) - self._passes_done

    def quantities(self) -> dict[str, Value]:
        """What has been counted so far, as the ledger calls it; proven zeros too."""
        counters = (*self._bytes, *(self._work or ()))
        quantities = counter_tables.to_quantities(dict(self._values), counters, source=_SOURCE)
        if self._work is not None:
            quantities.update(
                counter_tables.idle_quantities(self._on.chip, self._in_use, source=_SOURCE, scouted=self._values)
            )
        if self.complete and self._tensor_work_is_known(quantities):
            quantities["executed_flops"] = self._executed(quantities)
        if (half := quantities.get(_HALF_FLOPS)) is not None:
            quantities[_HALF_FLOPS] = Value(half.value, f"{half.origin}; {_UPPER_BOUND}")
        return quantities

    def _executed(self, quantities: Mapping[str, Value]) -> Value:
        """All units together; fp16 of the CUDA cores only where 16-bit work is sure, since it may be constants.

        `rooflight.measure` knows the types of all tensors; a region sees none, and looking would slow it down.
        """
        sure = self._autocast or any(name in quantities and quantities[name].value for name in _HALF_TENSOR_WORK)
        total = sum(quantities[name].value for name in EXECUTED_FLOPS if name in quantities)
        half = quantities[_HALF_FLOPS].value if _HALF_FLOPS in quantities else 0
        if sure or not half:
            return Value(total, f"{_SOURCE}: all units together")
        return Value(total - half, f"{_SOURCE}: all units but fp16 of the CUDA cores (no other sign of 16 bits)")

    # One pass.

    def begin(self, *, autocast: bool = False) -> None:
        """`autocast`: torch makes 16-bit tensors of others in what is to be counted."""
        self._autocast |= autocast
        if self._profiler is None:
            profiler = ranges.RangeProfiler(self._groups[0].metrics, max_ranges=1, device=self.device, interleaved=True)
            self._profiler = profiler.__enter__()
            self._passes_done = 0
        self._profiler.start()
        self._in_pass = True
        self._profiler.push(_RANGE)

    def end(self) -> None:
        """The caller has waited for the GPU. Closes the pass and keeps what it brought."""
        profiler = self._profiler
        assert profiler is not None
        profiler.pop()
        self._in_pass = False
        last = profiler.stop()
        self._passes_done += 1
        if not last:
            return  # it rests until the next execution
        for counted in profiler.results():
            self._values.update(counted.values)
        self.close()
        left = self._groups[1:]
        if not left and self._work is None:
            # Finding groups takes a while, and Ctrl-C may come: until they are there, the scout is not done.
            chip = self._on.chip
            in_use = counter_tables.tensor_counters_in_use(chip, self._values)
            work = (*in_use, *counter_tables.cuda_core_counters(chip))
            left = self._grouped([counter.metric for counter in work])
            self._in_use, self._work, self._groups = in_use, work, left
        else:
            self._groups = left

    def abort(self) -> None:
        """Forget the pass that was begun; the next execution does it again, and passes before it are kept.

        Where no pass is open (Ctrl-C while one was being prepared or read out), the group is counted anew.
        """
        if self._profiler is not None and self._in_pass:
            self._in_pass = False
            self._profiler.abort()
        else:
            self.close()

    def close(self) -> None:
        """Let the GPU's counters go."""
        held, self._profiler = self._profiler, None
        self._in_pass, self._passes_done = False, 0
        if held is not None:
            held.close()


def group_by_pass(names: Sequence[str], passes: Callable[[Sequence[str]], int]) -> list[CounterGroup]:
    """Put each counter to the first others that it can be counted with at no further pass.

    Those that need several passes come first, since others may ride along with them.
    """
    groups: list[list[str]] = []
    for name in sorted(dict.fromkeys(names), key=lambda name: -passes([name])):
        for group in groups:
            if passes([*group, name]) == passes(group):
                group.append(name)
                break
        else:
            groups.append([name])
    return [CounterGroup(tuple(group), passes(group)) for group in groups]
