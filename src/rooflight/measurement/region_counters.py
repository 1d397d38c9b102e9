"""Hardware counters of a region: one pass an execution, until all that are needed have been counted.

A region cannot be run again at will, so its counters are asked in small groups, each of as few passes as the hardware
allows (mostly one): what an execution has counted is safe, whatever becomes of the next. The first group tells which
tensor pipes are in use, and only their counters are asked after that.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from rooflight.ledger import Value
from rooflight.measurement.counters import cupti, gpu, metrics, ranges
from rooflight.quantities import DRAM_BYTES, EXECUTED_FLOPS

_SOURCE = "cupti"
_RANGE = "region"


@dataclass(frozen=True)
class Group:
    """Counters that are counted together, and the executions that takes."""

    metrics: tuple[str, ...]
    passes: int


class CounterPlan:
    """What is still to be counted for one region on one GPU: `begin()`, the work, then `end()` or `abort()`."""

    def __init__(self, device: int, *, levels: Collection[metrics.Level]) -> None:
        self.device = device
        self._on = gpu.device(device)
        self._bytes = metrics.byte_counters(levels, chip=self._on.chip)
        scout = metrics.scout_metrics(self._on.chip)
        self._groups = self._grouped([*scout, *(counter.metric for counter in self._bytes)])
        self._work: tuple[metrics.Counter, ...] | None = None
        """Counters of FLOPs; `None` until the scout has told which."""
        self._in_use: tuple[metrics.Counter, ...] = ()
        self._values: dict[str, float] = {}
        self._profiler: ranges.RangeProfiler | None = None
        self._passes_done = 0

    def _grouped(self, names: Sequence[str]) -> list[Group]:
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
        found = self.quantities()
        if not any(counter.quantity in DRAM_BYTES for counter in self._bytes):
            return f"DRAM bytes: {self._on.chip} does not count them"
        if lost := sorted({counter.quantity for counter in self._work or ()} - found.keys()):
            return f"{', '.join(lost)}: the counters gave no value"
        if lost := sorted({counter.quantity for counter in self._bytes} - found.keys()):
            return f"{', '.join(lost)}: no more than a range with nothing in it shows"
        return None

    def _passes_left(self) -> int:
        return sum(group.passes for group in self._groups) - self._passes_done

    def quantities(self) -> dict[str, Value]:
        """What has been counted so far, as the ledger calls it; proven zeros too."""
        counters = (*self._bytes, *(self._work or ()))
        found = metrics.to_quantities(dict(self._values), counters, source=_SOURCE)
        if self._work is not None:
            found.update(metrics.idle_quantities(self._on.chip, self._in_use, source=_SOURCE))
        if self.complete and all(counter.quantity in found for counter in self._work or ()):
            units = [found[name].value for name in EXECUTED_FLOPS if name in found]
            found["executed_flops"] = Value(sum(units), f"{_SOURCE}: all units together")
        return found

    # One pass.

    def begin(self) -> None:
        if self._profiler is None:
            profiler = ranges.RangeProfiler(self._groups[0].metrics, max_ranges=1, device=self.device, interleaved=True)
            self._profiler = profiler.__enter__()
            self._passes_done = 0
        self._profiler.start()
        self._profiler.push(_RANGE)

    def end(self) -> None:
        """The caller has waited for the GPU. Closes the pass and keeps what it brought."""
        profiler = self._profiler
        assert profiler is not None
        profiler.pop()
        self._passes_done += 1
        if not profiler.stop():
            return  # it rests until the next execution
        for found in profiler.results():
            self._values.update(found.values)
        self.close()
        self._groups.pop(0)
        if not self._groups and self._work is None:
            chip = self._on.chip
            self._in_use = metrics.tensor_counters_in_use(chip, self._values)
            self._work = (*self._in_use, *metrics.cuda_core_counters(chip))
            self._groups = self._grouped([counter.metric for counter in self._work])

    def abort(self) -> None:
        """Forget the pass that was begun; the next execution does it again."""
        if self._profiler is not None:
            self._profiler.abort()

    def close(self) -> None:
        """Let the GPU's counters go."""
        held, self._profiler, self._passes_done = self._profiler, None, 0
        if held is not None:
            held.close()


def group_by_pass(names: Sequence[str], passes: Callable[[Sequence[str]], int]) -> list[Group]:
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
    return [Group(tuple(group), passes(group)) for group in groups]
