"""What was measured of a step, indexed by op, and its sums with what they do not cover.

`facts` tells the values, `measured_rows` sorts them into rows, `measured_step` judges the whole step. Pure
functions from a ledger to numbers; nothing here needs torch. `None` is unknown, `0` is counted zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Mapping
from functools import cached_property
from operator import itemgetter
from typing import Any, TypeVar

from msgspec.structs import replace

from rooflight.ledger import Ledger, Op
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS, cuda_is_known, executed_is_known
from rooflight.summary import By, measured_rows
from rooflight.summary.facts import (
    MeasuredFact,
    MeasuredTimes,
    Number,
    adds_up,
    compulsory_bytes_of,
    op_values,
    step_values,
    times_of,
    useful_flops_of,
)
from rooflight.summary.measured_rows import MeasuredRow
from rooflight.summary.memory_growth import MemoryGrowth, timeline
from rooflight.summary.sums import OpGroup, Sums, Whole

Result = TypeVar("Result")
_HALF_TYPES = ("fp16", "bf16")
_MOST = frozenset({"workspace_bytes"})
"""Of these the largest counts: an op gives its workspace back before the next one takes its own."""


def is_measured(ledger: Ledger) -> bool:
    return bool(ledger.measurements or ledger.kernels)


class Measured:
    """A ledger whose measurements are indexed once, for many questions; or a step with times from elsewhere."""

    def __init__(self, ledger: Ledger, times: MeasuredTimes | None = None) -> None:
        self.ledger = ledger
        times = times_of(ledger) if times is None else times
        self.origin = times.origin
        """Where its times are from: never say measured of what was not."""
        self.facts = times.facts
        self.steps = times.step
        self.step = step_values(self.steps)
        self.known = frozenset().union(*{fact.names for fact in self.facts})
        """Every quantity that some op has."""
        with_facts = {index for fact in self.facts for index in fact.ops}
        self.counted_ops = tuple(op.index for op in ledger.ops if op.kind != "view" or op.index in with_facts)
        """All ops but the views of which nothing was measured."""
        self._rows: dict[By, list[MeasuredRow]] = {}
        self._results: dict[Callable[[Ledger], Any], Any] = {}

    def once(self, function: Callable[[Ledger], Result]) -> Result:
        """What a function of the ledger gives, computed once for all who ask."""
        if function not in self._results:
            self._results[function] = function(self.ledger)
        result: Result = self._results[function]
        return result

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """The processes whose steps the ledger holds: more than one when ledgers were joined."""
        return tuple(sorted({op.rank for op in self.ledger.ops})) or (self.ledger.header.rank,)

    @cached_property
    def timeline(self) -> MemoryGrowth:
        return timeline(self.ledger, op_values(self.ledger))

    @cached_property
    def has_half(self) -> bool:
        """Does some op read or write a tensor of 16 bits? Without, fp16 FLOPs of CUDA cores are left out on purpose."""
        tensors = (tensor for op in self.ledger.ops for tensor in (*op.inputs, *op.outputs))
        return any(tensor.dtype in _HALF_TYPES for tensor in tensors)

    def executed_is_known(self, names: Container[str]) -> bool:
        return executed_is_known(names, half=self.has_half)

    def _whole(self, names: Container[str]) -> Whole:
        return Whole(
            executed=self.executed_is_known(names),
            cuda=cuda_is_known(names, half=self.has_half),
            dram=all(name in names for name in DRAM_BYTES),
        )

    def ranks_with(self, names: Collection[str]) -> frozenset[int]:
        """The ranks that have one of these, of ops or of the step."""
        of_ops = {
            self.ledger.ops[index].rank
            for known, ops in self._ops_with.items()
            if not known.isdisjoint(names)
            for index in ops
        }
        of_steps = {rank for rank, values in self.steps.items() if any(name in values for name in names)}
        return frozenset(of_ops or of_steps)

    @cached_property
    def _flops_ranks(self) -> frozenset[int]:
        return self.ranks_with(EXECUTED_FLOPS)

    @cached_property
    def _dram_ranks(self) -> frozenset[int]:
        return self.ranks_with(DRAM_BYTES)

    @cached_property
    def launched(self) -> frozenset[int]:
        """Ops that put something on the device; on a CPU, all that compute."""
        by_kernel = {index for kernel in self.ledger.kernels if kernel.kind != "primitive" for index in kernel.ops}
        by_count = {index for fact in self.facts if fact.values.get("kernels") for index in fact.ops}
        launched = by_kernel | by_count
        return frozenset(launched or (op.index for op in self.ledger.ops if op.kind == "compute"))

    def without(self, names: Iterable[str]) -> list[Op]:
        """Ops that ran and lack one of these."""
        lacking: set[int] = set()
        for name in names:
            lacking |= self.launched.difference(*(ops for known, ops in self._ops_with.items() if name in known))
        return [self.ledger.ops[index] for index in sorted(lacking)]

    @cached_property
    def _ops_with(self) -> dict[frozenset[str], set[int]]:
        """By set of quantities, of which there are few: the ops of the facts that have just these."""
        ops: dict[frozenset[str], set[int]] = defaultdict(set)
        for fact in self.facts:
            ops[fact.names].update(fact.ops)
        return ops

    def sums(self, group: OpGroup) -> Sums:
        """Add up the facts of a row."""
        alike: dict[frozenset[str], list[MeasuredFact]] = defaultdict(list)
        for fact in group.facts:
            alike[fact.names].append(fact)
        ops_with = {names: {index for fact in facts for index in fact.ops} for names, facts in alike.items()}
        values = self._added(group, alike)
        # What belongs to several rows or to none has no ops of its own, and grew by nobody knows how much.
        if group.ops or not group.facts:
            grown = self.timeline.growth_bytes(frozenset(group.ops))
            if grown is not None:
                values["growth_bytes"] = grown
        executed = [name for name in EXECUTED_FLOPS if name in self.known] if self.of_ops.executed else []
        counted: set[int] = set()
        moved: set[int] = set()
        matrix: Number = 0
        for names, facts in alike.items():
            if executed and names.issuperset(executed):
                useful = [fact for fact in facts if any(self._useful_flops[index] for index in fact.ops)]
                counted.update(index for fact in useful for index in fact.ops)
                matrix += sum(fact.values[name] for fact in useful for name in executed)
            if not names.isdisjoint(DRAM_BYTES):
                moved |= ops_with[names]
        ran = self.launched.intersection(group.ops)
        return Sums(
            values=values,
            ran=len(ran),
            missing=self._missing(ran, ops_with) if ran else {},
            matrix_executed=matrix if counted else None,
            matrix_useful=sum(self._useful_flops[index] for index in counted) if counted else None,
            compulsory_bytes=sum(self._compulsory_bytes[index] for index in moved) if moved else None,
            whole=self.of_ops,
            flops_time_s=self._time_on(self._flops_ranks, group, values),
            dram_time_s=self._time_on(self._dram_ranks, group, values),
        )

    def _added(self, group: OpGroup, alike: Mapping[frozenset[str], list[MeasuredFact]]) -> dict[str, Number]:
        """Quantity by quantity, in the order of the facts: the same sum whichever of them have it."""
        of_facts = [fact.values for fact in group.facts]
        if len(of_facts) == 1:
            return {name: value for name, value in of_facts[0].items() if name in self._summed}
        values: dict[str, Number] = {}
        everywhere = frozenset.intersection(*alike) if alike else frozenset()
        for name in dict.fromkeys(name for facts in alike.values() for name in facts[0].values):
            if name in self._summed:
                having = of_facts if name in everywhere else [of_fact for of_fact in of_facts if name in of_fact]
                found = map(itemgetter(name), having)
                values[name] = max(found) if name in _MOST else sum(found)
        return values

    @cached_property
    def _summed(self) -> frozenset[str]:
        """Quantities that are added up over ops, and those of which the largest counts."""
        return frozenset(name for name in self.known if adds_up(name) or name in _MOST)

    @cached_property
    def _useful_flops(self) -> list[int]:
        """Of every op."""
        return [useful_flops_of(op) for op in self.ledger.ops]

    @cached_property
    def _compulsory_bytes(self) -> list[int]:
        return [compulsory_bytes_of(op) for op in self.ledger.ops]

    def _missing(self, ran: frozenset[int], ops_with: Mapping[frozenset[str], set[int]]) -> dict[str, int]:
        """By quantity: how many of the ops that ran have no value of it. Facts share few sets of names."""
        counts: dict[tuple[frozenset[str], ...], int] = {}
        everywhere = frozenset.intersection(*ops_with) if ops_with else frozenset()
        of_all = len(ran.difference(*ops_with.values()))
        missing = {}
        for name in self._known_in_order:
            if name in everywhere:
                gone = of_all
            else:
                holding = tuple(names for names in ops_with if name in names)
                if holding not in counts:
                    counts[holding] = len(ran.difference(*(ops_with[names] for names in holding)))
                gone = counts[holding]
            if gone:
                missing[name] = gone
        return missing

    @cached_property
    def _known_in_order(self) -> tuple[str, ...]:
        return tuple(sorted(self.known))

    @cached_property
    def by_ops(self) -> dict[tuple[int, ...], dict[str, Number]]:
        """By set of ops that kernels belong to: what adds up over its facts."""
        sums: dict[tuple[int, ...], dict[str, Number]] = {}
        for fact in self.facts:
            held = sums.setdefault(fact.ops, {})
            for name, value in fact.values.items():
                if adds_up(name):
                    held[name] = held.get(name, 0) + value
        return sums

    @cached_property
    def of_ops(self) -> Whole:
        """Which sums over ops are of all units."""
        return self._whole(self.known)

    def _time_on(self, ranks: frozenset[int], group: OpGroup, values: Mapping[str, Number]) -> Number | None:
        """Time of a row on some of the ranks. What nothing tells the op of has no rank either, unless there is one."""
        for name in ("kernel_time_s", "host_time_s"):
            if len(self.ranks) > 1:
                times = [
                    fact.values[name]
                    for fact in group.facts
                    if name in fact.values and fact.ops and self.ledger.ops[fact.ops[0]].rank in ranks
                ]
                if times:
                    return sum(times)
            elif name in values:
                return values[name]
        return None

    @property
    def whole(self) -> OpGroup:
        return OpGroup(self.counted_ops, tuple(self.facts))

    @cached_property
    def total(self) -> Sums:
        """All ops, and what belongs to none. What is only known of the whole step is taken from there."""
        sums = self.sums(self.whole)
        only = {name: value.value for name, value in self.step.items() if name not in self.known and adds_up(name)}
        values = {**only, **sums.values}
        return replace(sums, values=values, whole=self._whole(self.known | only.keys()))

    def rows(self, by: By) -> list[MeasuredRow]:
        """The summary, made once: most of what is shown of a step asks for it."""
        if by not in self._rows:
            self._rows[by] = measured_rows.made(self, by)
        return list(self._rows[by])

    @cached_property
    def attributed(self) -> dict[int, Number]:
        """Kernel time by how many ops it belongs to: 0, 1 or 2 (which is several)."""
        times: dict[int, Number] = {0: 0.0, 1: 0.0, 2: 0.0}
        for fact in self.facts:
            times[min(len(fact.ops), 2)] += fact.values.get("kernel_time_s", 0)
        return times
