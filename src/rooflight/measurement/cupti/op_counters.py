"""Counters for every op of a step, by repeating the step: once for each group of counters the hardware can count
together, with values and random state put back in between.

First one range around the whole step, with everything that may be at work; it tells which tensor cores are, and is
what the sum over ops is checked against. Then a range around every op that does something on the device, with only the
counters that moved. Counters cost about 1.5 ms for each range and pass, whatever is inside.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rooflight.errors import BadInput, CannotMeasure
from rooflight.hardware import counter_tables
from rooflight.hardware.counter_tables import Counter
from rooflight.ledger import Op, Value
from rooflight.measurement.cupti.cupti import Host
from rooflight.measurement.cupti.ranges import RangeProfiler, probe
from rooflight.measurement.findings import Progress, median
from rooflight.measurement.options import MeasureOptions
from rooflight.trace.stage import StagedStep

WINDOW = 2048
"""Ranges counted in one go. More ops than that are counted window by window, each in its own repeats of the step."""
_EMPTY = 8
_AGAIN = 2
"""How often the whole step is counted once more, to know by how much the counts of the same step differ."""
_CACHE_SIZES = 4
"""Reading as much as the cache holds would do, if it forgot the oldest first; it does so only about."""
_SOURCE = "cupti"

Counts = dict[str, float]


@dataclass(frozen=True)
class StepCounterPlan:
    """Which counters are asked for, after the whole step has shown which are at work."""

    counters: tuple[Counter, ...]
    extra: tuple[str, ...]
    idle: Mapping[str, Value]
    """Quantities that are zero in the whole step, so in each of its ops."""
    types: frozenset[str] = frozenset()
    """Types of the step's tensors."""

    @property
    def metrics(self) -> tuple[str, ...]:
        return (*(counter.metric for counter in self.counters), *self.extra)

    def quantities(self, counts: Mapping[str, float], floor: Mapping[str, float] | None = None) -> dict[str, Value]:
        """What was counted in one range; bytes that an empty range shows as well are unknown."""
        quantities = {**self.idle, **counter_tables.to_quantities(counts, self.counters, source=_SOURCE)}
        quantities = counter_tables.no_half_arithmetic(quantities, self.types)
        for counter in self.counters:
            below = floor is not None and counts.get(counter.metric, 0.0) <= floor.get(counter.metric, -1.0)
            if below and counter.quantity.endswith(("_bytes", "_read", "_written")):
                quantities.pop(counter.quantity, None)
        return quantities


class OpCounters:
    """Counts one staged step. `passes` grows with every repeat of it."""

    def __init__(self, stage: StagedStep, ops: Sequence[Op], options: MeasureOptions, progress: Progress) -> None:
        device = torch.cuda.current_device()
        self.chip = probe(device)
        self.passes = 0
        self.cold_cache = ColdCache(device)
        self._stage = stage
        self._types = tensor_types(ops)
        self._options = options
        self._progress = progress

    def whole_step(self) -> tuple[StepCounterPlan, dict[str, Value]]:
        """One range around the plain step (several times over for its spread), and the plan for what comes after."""
        scout = counter_tables.scout_metrics(self.chip)
        scouted = self._count(scout, self._step_in_a_range, 1, "counters: scouting")["step"]
        tensor = counter_tables.tensor_counters_in_use(self.chip, scouted)
        everything = (
            *counter_tables.byte_counters(self._options.levels, chip=self.chip),
            *tensor,
            *counter_tables.cuda_core_counters(self.chip),
        )
        names = [*(counter.metric for counter in everything), *self._options.metrics]
        counts = self._count(names, self._step_in_a_range, 1, "counters: whole step")["step"]
        in_use = counter_tables.tensor_counters_in_use(self.chip, {**scouted, **counts})
        chosen = tuple(counter for counter in everything if counter not in tensor or counter in in_use)
        idle = counter_tables.idle_quantities(self.chip, in_use, source=_SOURCE, scouted=scouted)
        plan = StepCounterPlan(chosen, self._options.metrics, idle, self._types)
        if not self._options.spread:
            return plan, plan.quantities(counts)
        again = self._count(plan.metrics, self._steps_in_ranges, _AGAIN, "counters: whole step again")
        return plan, _with_spread([plan.quantities(repeat) for repeat in (counts, *again.values())])

    def per_op(
        self, plan: StepCounterPlan, ops: Sequence[Op], wanted: Collection[int]
    ) -> Iterator[tuple[int, dict[str, Value]]]:
        """A range around every op of `wanted`; the step must repeat `ops` each time. Window by window, as they come."""
        indices = sorted(wanted)
        windows = [indices[start : start + WINDOW] for start in range(0, len(indices), WINDOW)]
        for number, window in enumerate(windows, 1):
            part = f" {number} of {len(windows)}" if len(windows) > 1 else ""
            doing = f"counters: {len(window):,} ops{part}"
            counts = self._count(plan.metrics, _OpRanges(self._stage, ops, window), len(window) + _EMPTY, doing)
            empty = [counts.pop(_empty(i)) for i in range(_EMPTY)]
            # The first empty range still sees what was written before it.
            floor = {metric: max(row.get(metric, 0.0) for row in empty[1:]) for metric in plan.metrics}
            for name, values in counts.items():
                yield int(name), plan.quantities(values, floor)

    def per_kernel(self, plan: StepCounterPlan, kernels: int) -> list[dict[str, Value]]:
        """Counters of every kernel of the plain step, in the order of launch."""
        on = torch.cuda.current_device()
        with RangeProfiler(plan.metrics, max_ranges=kernels + 16, per_kernel=True, device=on) as profiler:
            self._passes(profiler, lambda _, arguments: self._stage.run(arguments), f"counters: {kernels:,} kernels")
            ranges = sorted(profiler.results(), key=lambda counted: int(counted.name))
        of_the_cache = self.cold_cache.kernels if self.cold_cache.filler is not None else 0
        return [plan.quantities(counted.values) for counted in ranges[of_the_cache:]]

    def cuda_cores(self, where: str) -> dict[str, Value]:
        """Only the CUDA cores, over the whole step; `where` says how it was run."""
        counters = counter_tables.cuda_core_counters(self.chip)
        names = [counter.metric for counter in counters]
        counts = self._count(names, self._step_in_a_range, 1, "counters: CUDA cores")["step"]
        quantities = counter_tables.to_quantities(counts, counters, source=f"{_SOURCE} ({where})")
        return counter_tables.no_half_arithmetic(quantities, self._types)

    def _step_in_a_range(self, profiler: RangeProfiler, arguments: Any, name: str = "step") -> None:
        profiler.push(name)
        output = self._stage.run(arguments)
        torch.cuda.synchronize()
        profiler.pop()
        del output  # only now: what the step gives is alive until its end

    def _steps_in_ranges(self, profiler: RangeProfiler, arguments: Any) -> None:
        """Several in one pass: to start and end one costs more than most steps."""
        self._step_in_a_range(profiler, arguments, "step 1")
        for number in range(2, _AGAIN + 1):
            arguments = self._begin()
            self.cold_cache()
            torch.cuda.synchronize()
            self._step_in_a_range(profiler, arguments, f"step {number}")

    def _count(
        self, names: Sequence[str], run: Callable[[RangeProfiler, Any], Any], ranges: int, doing: str
    ) -> dict[str, Counts]:
        with RangeProfiler(names, max_ranges=ranges, device=torch.cuda.current_device()) as profiler:
            self._passes(profiler, run, doing)
            return {counted.name: counted.values for counted in profiler.results()}

    def _begin(self) -> Any:
        """Everything as it was before the step; its inputs."""
        self._stage.put_back()
        return self._stage.fresh_arguments()

    def _passes(self, profiler: RangeProfiler, run: Callable[[RangeProfiler, Any], Any], doing: str) -> None:
        done, number = False, 0
        while not done:
            self._progress(doing, number, profiler.passes)
            arguments = self._begin()
            torch.cuda.synchronize()
            profiler.start()
            try:
                self.cold_cache()  # after the start, which itself leaves something in the cache
                torch.cuda.synchronize()
                run(profiler, arguments)
                torch.cuda.synchronize()
            except BaseException:
                profiler.abort()
                raise
            done = profiler.stop()
            number += 1
            if number > 4 * profiler.passes:
                raise CannotMeasure(
                    "too-many-passes", f"CUPTI asks for more than {number} passes where it planned {profiler.passes}"
                )
        self.passes += number


class ColdCache:
    """Begins every counted run with the same L2 cache: nothing of the step in it, and nothing yet to be written.

    What ran before a range leaves lines in the cache that are written to memory while the range is open, and are
    counted there: 10 to 30 MB on an H200, put there by copying values back and by CUPTI's own start.

    `filler`, memory to read instead of the step's, is `None` where the step may need all that is left.
    """

    kernels = 1
    """What one call launches."""

    def __init__(self, device: int) -> None:
        size = _CACHE_SIZES * torch.cuda.get_device_properties(device).L2_cache_size
        free, _ = torch.cuda.mem_get_info(device)
        self.filler = torch.zeros(size // 4, device=f"cuda:{device}") if free > 2 * size else None

    def __call__(self) -> None:
        if self.filler is not None:
            self.filler.sum()


def _with_spread(repeats: Sequence[Mapping[str, Value]]) -> dict[str, Value]:
    """The median of each quantity that all repeats know, with its least and greatest."""
    return {
        name: median([repeat[name].value for repeat in repeats], first.origin)
        for name, first in repeats[0].items()
        if all(name in repeat for repeat in repeats)
    }


def tensor_types(ops: Sequence[Op]) -> frozenset[str]:
    """Every type that a tensor of the step has."""
    return frozenset(tensor.dtype for op in ops for tensor in (*op.inputs, *op.outputs))


def check_names(chip: str, names: Sequence[str]) -> None:
    """Say it before the step is run if the chip has no such counter."""
    with Host(chip) as host:
        for name in names:
            if not host.is_known(name):
                base = name.partition(".")[0]
                near = difflib.get_close_matches(base, host.base_metrics(), n=3)
                hint = f"did you mean {', '.join(near)}?" if near else "`ncu --query-metrics` lists them"
                raise BadInput(
                    "unknown-counter", f"{chip} has no counter {name!r}: {hint} (add .sum, .avg, .max or .min)"
                )


def _empty(number: int) -> str:
    return f"empty {number}"


class _OpRanges:
    """Runs the recorded step with a range around each op of a window, and checks that it repeats itself."""

    def __init__(self, stage: StagedStep, ops: Sequence[Op], window: Sequence[int]) -> None:
        self._stage = stage
        self._ops = ops
        self._window = set(window)
        self._profiler: RangeProfiler

    def __call__(self, profiler: RangeProfiler, arguments: Any) -> None:
        self._profiler = profiler
        for number in range(_EMPTY):
            profiler.push(_empty(number))
            profiler.pop()
        again = self._stage.record(self, arguments).ops
        check_repeated(self._ops, again)

    def before(self, index: int) -> None:
        if index in self._window:
            self._profiler.push(str(index))

    def after(self, index: int) -> None:
        if index in self._window:
            # As at the end of the step's range. Else the bytes of the ops fall shorter of the step's (range_ends.py).
            torch.cuda.synchronize()
            self._profiler.pop()


def check_repeated(first: Sequence[Op], again: Sequence[Op]) -> None:
    """Counters of several runs belong together only if each run was the same step."""
    for op, other in zip(first, again, strict=False):
        if op.key != other.key or [t.shape for t in op.outputs] != [t.shape for t in other.outputs]:
            raise CannotMeasure(
                "step-not-repeatable",
                f"the step does not repeat itself: op {op.index} was {_described(op)} and is {_described(other)} in "
                "another run; take what changes (data-dependent branches, counters, growing caches) out of the step",
            )
    if len(first) != len(again):
        raise CannotMeasure(
            "step-not-repeatable",
            f"the step does not repeat itself: it had {len(first):,} ops and then {len(again):,}; take what changes "
            "out of the step",
        )


def _described(op: Op) -> str:
    shapes = ", ".join("x".join(map(str, tensor.shape)) for tensor in op.outputs) or "nothing"
    return f"{op.name} in {op.module or 'the model'} giving {shapes}"
