"""Counters for every op of a step that is not ours to repeat: one pass over each of the program's next steps.

The first step has one range around it all, and shows which tensor cores are at work. Then counters are asked in groups
that the hardware counts in one pass, so that what a step has counted is safe, whatever becomes of the next. Ops are
joined by their keys: a step that does something more or less than the others loses those ops only. What the hardware
counts in several passes is put together of several steps, by the places of ops in them: only where these are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import torch
from msgspec.structs import replace

from rooflight.errors import CannotMeasure
from rooflight.hardware import counter_tables
from rooflight.hardware.counter_tables import Counter, Level
from rooflight.ledger import Key, Ledger, Measurement, Note, Op, Value
from rooflight.measurement.cupti import cupti, gpu, ranges
from rooflight.measurement.cupti.op_counters import WINDOW, Counts, StepCounterPlan, tensor_types
from rooflight.measurement.regions.counters import CounterGroup, group_by_pass

_EMPTY = 4
_STEP = "step"
_TRIES = 3
"""At a group of several passes whose steps were not alike."""
_Pass = tuple[CounterGroup, set[int]]
"""Counters, and the ops that they are asked of; of none it is the whole step."""
_SPARE = 64
"""Ranges more than the recorded step had ops: another step may have some more."""


class OpCounterPasses:
    """What is still to be counted of a recorded step: `begin()` before a step, `end(ops)` after it.

    It is the observer of a recorder that watches that step, so that every op is a range.
    """

    def __init__(self, ops: Sequence[Op], wanted: Collection[int], *, levels: Sequence[Level] = ("dram",)) -> None:
        """`ops` as they were recorded; `wanted`: those that do something on the device."""
        self._ops = ops
        on = gpu.device(torch.cuda.current_device())
        self._chip, self._availability = on.chip, on.availability
        self._bytes = counter_tables.byte_counters(levels, chip=self._chip)
        indices = sorted(wanted)
        self._windows = [set(indices[start : start + WINDOW]) for start in range(0, len(indices), WINDOW)]
        self._work: tuple[Counter, ...] | None = None
        self._in_use: tuple[Counter, ...] = ()
        self._scouted: Counts = {}
        """Of the whole step."""
        self._left: list[_Pass] = [(group, set()) for group in self._groups(counter_tables.scout_metrics(self._chip))]
        self._counts: dict[int, Counts] = {}
        self._floor: Counts = {}
        self._profiler: ranges.RangeProfiler | None = None
        self._keys: list[list[Key]] = []
        """Of the ops in the steps that the group under way has counted."""
        self._tries = 0
        self.passes = 0
        self.unmatched = 0
        """Ops of counted steps that the recorded one did not have."""

    def _groups(self, names: Sequence[str]) -> list[CounterGroup]:
        with cupti.Host(self._chip, availability=self._availability) as host:
            return group_by_pass(names, host.passes)

    @property
    def complete(self) -> bool:
        return not self._left

    @property
    def missing(self) -> str | None:
        """What it still lacks, in words."""
        if self.complete:
            return None
        more = sum(group.passes for group, _ in self._left) + (self._work is None)
        return f"counts of every op: {'at least ' * (self._work is None)}{more} more step{'' if more == 1 else 's'}"

    # One step.

    def begin(self) -> None:
        group, window = self._left[0]
        if self._profiler is None:
            room = len(window) + _EMPTY + _SPARE
            device = torch.cuda.current_device()
            profiler = ranges.RangeProfiler(group.metrics, max_ranges=room, device=device, interleaved=True)
            self._profiler = profiler.__enter__()
        torch.cuda.synchronize()
        self._profiler.start()
        if not window:
            self._profiler.push(_STEP)
            return
        for number in range(_EMPTY):
            self._profiler.push(f"empty {number}")
            self._profiler.pop()

    def before(self, index: int) -> None:
        if self._profiler is not None and index in self._left[0][1]:
            self._profiler.push(str(index))

    def after(self, index: int) -> None:
        if self._profiler is not None and index in self._left[0][1]:
            torch.cuda.synchronize()
            self._profiler.pop()

    def end(self, ops: Sequence[Op]) -> None:
        """The step is over; `ops` are those that it had."""
        assert self._profiler is not None
        torch.cuda.synchronize()
        self.passes += 1
        window = self._left[0][1]
        if not window:
            self._profiler.pop()
        self._keys.append([op.key for op in ops])
        if not self._profiler.stop():
            return  # a counter that takes several passes goes on in the next step
        counted, steps = self._profiler.results(), self._keys
        self.close()
        alike = self._keep(counted, steps)
        self._tries += 1
        if alike or self._tries == _TRIES:
            self._tries = 0
            del self._left[0]
        if not self._left and self._work is None:
            self._plan_work()

    def _keep(self, counted: Sequence[ranges.CountedRange], steps: Sequence[Sequence[Key]]) -> bool:
        """Were the steps alike that this was counted in?"""
        places = {op.key: op.index for op in self._ops}
        alike = True
        for one in counted:
            if one.name == _STEP:
                self._scouted |= one.values
                continue
            if one.name.startswith("empty"):
                if one.name != "empty 0":  # which still sees what was written before it
                    self._floor |= {name: max(self._floor.get(name, 0.0), value) for name, value in one.values.items()}
                continue
            index = int(one.name)
            keys = {step[index] if index < len(step) else None for step in steps}
            key = keys.pop()
            home = places.get(key) if key is not None else None
            if keys:
                alike = False
            elif home is None:
                self.unmatched += 1
            else:
                self._counts.setdefault(home, {}).update(one.values)
        return alike

    def _plan_work(self) -> None:
        """It is known which tensor cores are at work."""
        self._in_use = counter_tables.tensor_counters_in_use(self._chip, self._scouted)
        self._work = (*self._bytes, *self._in_use, *counter_tables.cuda_core_counters(self._chip))
        groups = self._groups([counter.metric for counter in self._work])
        self._left = [(group, window) for group in groups for window in self._windows]

    def abort(self) -> None:
        """Forget the pass that was begun: the next step does it again."""
        if self._profiler is not None:
            self._profiler.abort()

    def close(self) -> None:
        """Let the GPU's counters go."""
        held, self._profiler = self._profiler, None
        self._keys = []
        if held is not None:
            held.close()

    # What came of it.

    def quantities(self) -> dict[int, dict[str, Value]]:
        """By the index of the recorded op."""
        idle = (
            counter_tables.idle_quantities(self._chip, self._in_use, source="cupti", scouted=self._scouted)
            if self._work is not None and self.complete
            else {}
        )
        plan = StepCounterPlan(self._work or (), (), idle, tensor_types(self._ops))
        return {index: plan.quantities(counts, self._floor) for index, counts in self._counts.items()}

    def added_to(self, ledger: Ledger) -> Ledger:
        """The ledger of the recorded step with what was counted."""
        ledger = with_quantities(ledger, self.quantities())
        notes = [Note("counter-passes", f"counters took {self.passes} passes, each one of the program's next steps")]
        if self.unmatched:
            notes.append(
                Note(
                    "ops-not-counted",
                    f"{self.unmatched} ops of counted steps are not in the recorded one, and left out",
                )
            )
        if (lacks := self.missing) is not None:
            notes.append(Note("missing-counters", f"missing {lacks}"))
        return replace(ledger, header=replace(ledger.header, notes=(*ledger.header.notes, *notes)))


def with_quantities(ledger: Ledger, counted: Mapping[int, Mapping[str, Value]]) -> Ledger:
    """More of the ops, by their indices, beside what is known of them."""
    left = dict(counted)
    rows: list[Measurement] = []
    for row in ledger.measurements:
        index = row.ops[0] if row.scope == "op" and len(row.ops) == 1 else -1
        rows.append(replace(row, quantities={**row.quantities, **left.pop(index, {})}))
    rows += [Measurement(scope="op", ops=(index,), quantities=dict(left[index])) for index in sorted(left)]
    return replace(ledger, measurements=tuple(rows))


def check_counters() -> None:
    """Raises `CannotMeasure` where there are none."""
    if not torch.cuda.is_available():
        raise CannotMeasure("no-gpu", "there is no GPU here")
    ranges.probe(torch.cuda.current_device(), deep=True)
