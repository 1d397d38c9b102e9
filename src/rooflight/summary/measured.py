"""What was measured of a step, indexed by op, and its sums with what they do not cover.

`facts` tells the values, `measured_rows` sorts them into rows, `measured_step` judges the whole step. Pure
functions from a ledger to numbers; nothing here needs torch. `None` is unknown, `0` is counted zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import replace
from functools import cached_property

from rooflight.ledger import Ledger, Op
from rooflight.metrics import DRAM_BYTES, EXECUTED_FLOPS, cuda_is_known, executed_is_known
from rooflight.summary import measured_rows
from rooflight.summary.facts import (
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
        self.known = frozenset(name for fact in self.facts for name in fact.values)
        """Every quantity that some op has."""
        with_facts = {index for fact in self.facts for index in fact.ops}
        self.counted_ops = tuple(op.index for op in ledger.ops if op.kind != "view" or op.index in with_facts)
        """All ops but the views of which nothing was measured."""

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
            for fact in self.facts
            if any(name in fact.values for name in names)
            for index in fact.ops
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
            lacking |= self.launched - {index for fact in self.facts if name in fact.values for index in fact.ops}
        return [self.ledger.ops[index] for index in sorted(lacking)]

    def sums(self, group: OpGroup) -> Sums:
        """Add up the facts of a row."""
        values: dict[str, Number] = {}
        ops_with: dict[frozenset[str], set[int]] = defaultdict(set)
        additive = self._additive
        executed = [name for name in EXECUTED_FLOPS if name in self.known] if self.of_ops.executed else []
        dram = [name for name in DRAM_BYTES if name in self.known]
        counted: set[int] = set()
        moved: set[int] = set()
        matrix: Number = 0
        ops = self.ledger.ops
        for fact in group.facts:
            ops_with[fact.names].update(fact.ops)
            for name, value in fact.values.items():
                if name in additive:
                    values[name] = values.get(name, 0) + value
                elif name in _MOST:
                    values[name] = max(values.get(name, value), value)
            if (
                executed
                and all(name in fact.values for name in executed)
                and any(useful_flops_of(ops[index]) for index in fact.ops)
            ):
                counted.update(fact.ops)
                matrix += sum(fact.values[name] for name in executed)
            if any(name in fact.values for name in dram):
                moved.update(fact.ops)
        # What belongs to several rows or to none has no ops of its own, and grew by nobody knows how much.
        if group.ops or not group.facts:
            grown = self.timeline.growth_bytes(frozenset(group.ops))
            if grown is not None:
                values["growth_bytes"] = grown
        ran = self.launched.intersection(group.ops)
        return Sums(
            values=values,
            ran=len(ran),
            missing={name: gone for name, gone in self._missing(ran, ops_with).items() if gone},
            matrix_executed=matrix if counted else None,
            matrix_useful=sum(useful_flops_of(ops[index]) for index in counted) if counted else None,
            compulsory_bytes=sum(compulsory_bytes_of(ops[index]) for index in moved) if moved else None,
            whole=self.of_ops,
            flops_time_s=self._time_on(self._flops_ranks, group),
            dram_time_s=self._time_on(self._dram_ranks, group),
        )

    @cached_property
    def _additive(self) -> frozenset[str]:
        """Quantities that are added up over ops."""
        return frozenset(name for name in self.known if adds_up(name) and name not in _MOST)

    def _missing(self, ran: frozenset[int], ops_with: Mapping[frozenset[str], set[int]]) -> dict[str, int]:
        """By quantity: how many of the ops that ran have no value of it. Facts share few sets of names."""
        counts: dict[tuple[frozenset[str], ...], int] = {}
        missing = {}
        for name in self._known_in_order:
            holding = tuple(names for names in ops_with if name in names)
            if holding not in counts:
                counts[holding] = len(ran.difference(*(ops_with[names] for names in holding)))
            missing[name] = counts[holding]
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

    def _time_on(self, ranks: frozenset[int], group: OpGroup) -> Number | None:
        """Time of a row on some of the ranks. What nothing tells the op of has no rank either, unless there is one."""
        several = len(self.ranks) > 1
        for name in ("kernel_time_s", "host_time_s"):
            times = [
                fact.values[name]
                for fact in group.facts
                if name in fact.values
                if not several or (fact.ops and self.ledger.ops[fact.ops[0]].rank in ranks)
            ]
            if times:
                return sum(times)
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

    @cached_property
    def module_rows(self) -> tuple[MeasuredRow, ...]:
        """The summary by module: most of what is shown of a step asks for it."""
        return tuple(measured_rows.module_rows(self))

    @cached_property
    def attributed(self) -> dict[int, Number]:
        """Kernel time by how many ops it belongs to: 0, 1 or 2 (which is several)."""
        times: dict[int, Number] = {0: 0.0, 1: 0.0, 2: 0.0}
        for fact in self.facts:
            times[min(len(fact.ops), 2)] += fact.values.get("kernel_time_s", 0)
        return times
