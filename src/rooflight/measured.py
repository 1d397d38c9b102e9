"""What was measured of a step, indexed by op, and its sums with what they do not cover.

A measured value may belong to one op, to several that ran as one fused kernel, or to none that is known: it is a fact
over a set of ops, and is counted once. `measured_rows` sorts facts into rows, `measured_step` judges the whole step.

Pure functions from a ledger to numbers; nothing here needs torch. `None` is unknown, `0` is counted zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from rooflight.ledger import Ledger, Measurement, Op, Value
from rooflight.quantities import CPU_FLOPS, CUDA_FLOPS, DRAM_BYTES, EXECUTED_FLOPS, QUANTITIES, TENSOR_FLOPS

Number = int | float

_MOST = frozenset({"workspace_bytes"})
"""Of these the largest counts: an op gives its workspace back before the next one takes its own."""


@dataclass(frozen=True)
class Fact:
    """Values over a set of ops: one, several that were fused, or none that is known."""

    ops: tuple[int, ...]
    values: Mapping[str, Number]


@dataclass(frozen=True)
class Group:
    """The ops of one row, views left out, and the facts that lie wholly inside it."""

    ops: tuple[int, ...]
    facts: tuple[Fact, ...]


@dataclass(frozen=True)
class Sums:
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

    def get(self, name: str) -> Number | None:
        return self.values.get(name)

    def of(self, names: Iterable[str]) -> Number | None:
        """The sum of several quantities; `None` when none of them is known."""
        known = [self.values[name] for name in names if name in self.values]
        return sum(known) if known else None

    @property
    def time_s(self) -> Number | None:
        """Kernel time, or time on the CPU for a step that runs there."""
        time = self.get("gpu_time_s")
        return self.get("host_time_s") if time is None else time

    @property
    def tensor_flops(self) -> Number | None:
        return self.of(TENSOR_FLOPS)

    @property
    def cuda_flops(self) -> Number | None:
        return self.of(CUDA_FLOPS)

    @property
    def cpu_flops(self) -> Number | None:
        return self.of(CPU_FLOPS)

    @property
    def executed_flops(self) -> Number | None:
        return self.of(EXECUTED_FLOPS)

    @property
    def dram_bytes(self) -> Number | None:
        return self.of(DRAM_BYTES)

    @property
    def executed_per_useful(self) -> float | None:
        """Over the ops with matrix work; the instructions of all others are in no ratio."""
        return ratio(self.matrix_executed, self.matrix_useful)

    @property
    def dram_per_compulsory(self) -> float | None:
        return ratio(self.dram_bytes, self.compulsory_bytes)

    @property
    def executed_flops_per_s(self) -> float | None:
        return ratio(self.executed_flops, self.time_s)

    @property
    def dram_bytes_per_s(self) -> float | None:
        return ratio(self.dram_bytes, self.time_s)


def ratio(part: Number | None, whole: Number | None) -> float | None:
    return part / whole if part is not None and whole else None


def is_measured(ledger: Ledger) -> bool:
    return bool(ledger.measurements or ledger.kernels)


def adds_up(name: str) -> bool:
    """Is the value of several ops the sum of theirs? A counter under its own name is, when it is a plain sum."""
    known = QUANTITIES.get(name)
    return known.additive if known is not None else name.endswith(".sum")


def step_values(ledger: Ledger) -> dict[str, Value]:
    """What was measured over the whole step at once. Of several ranks, counts are summed, and the slowest or largest of
    them stands for time and memory.
    """
    parts: dict[str, list[Value]] = defaultdict(list)
    for row in ledger.measurements:
        if row.scope == "step":
            for name, value in row.quantities.items():
                parts[name].append(value)
    return {name: values[0] if len(values) == 1 else _of_ranks(name, values) for name, values in parts.items()}


def _of_ranks(name: str, values: Sequence[Value]) -> Value:
    if adds_up(name) and not name.endswith("_s"):
        return Value(sum(value.value for value in values), f"{values[0].origin}; sum over {len(values)} ranks")
    most = max(values, key=lambda value: value.value)
    return Value(most.value, f"{most.origin}; most of {len(values)} ranks", most.low, most.high)


def graphs(ledger: Ledger) -> list[Measurement]:
    """What was measured over compiled or captured graphs."""
    return [row for row in ledger.measurements if row.scope == "graph"]


def op_values(ledger: Ledger) -> list[dict[str, Value]]:
    """For every op, what was measured of it alone."""
    found: list[dict[str, Value]] = [{} for _ in ledger.ops]
    for row in ledger.measurements:
        if row.scope == "op" and len(row.ops) == 1:
            found[row.ops[0]].update(row.quantities)
    return found


def facts(ledger: Ledger) -> list[Fact]:
    """Every value once: what was measured of ops, then what only their kernels tell."""
    found = []
    told: dict[frozenset[int], set[str]] = defaultdict(set)
    for row in ledger.measurements:
        if row.scope == "op" and not _is_idle_view(ledger, row):
            found.append(Fact(row.ops, {name: value.value for name, value in row.quantities.items()}))
            told[frozenset(row.ops)].update(row.quantities)
    for kernel in ledger.kernels:
        if kernel.kind == "primitive":
            continue  # a CPU library's work: its time is part of the op's
        values: dict[str, Number] = {name: value.value for name, value in kernel.quantities.items()}
        values["kernels"] = 1
        if kernel.time_s is not None:
            values["gpu_time_s"] = kernel.time_s
        known = told.get(frozenset(kernel.ops), set())
        if left := {name: value for name, value in values.items() if name not in known}:
            found.append(Fact(kernel.ops, left))
    return found


def _is_idle_view(ledger: Ledger, row: Measurement) -> bool:
    """A view took no time and launched nothing: that the allocator was asked around it makes no row."""
    if any(name in row.quantities for name in ("gpu_time_s", "host_time_s", "kernels")):
        return False
    return bool(row.ops) and all(ledger.ops[index].kind == "view" for index in row.ops)


class Measured:
    """A ledger whose measurements are indexed once, for many questions."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.facts = facts(ledger)
        self.step = step_values(ledger)
        self.known = frozenset(name for fact in self.facts for name in fact.values)
        """Every quantity that some op has."""
        with_facts = {index for fact in self.facts for index in fact.ops}
        self.counted_ops = tuple(op.index for op in ledger.ops if op.kind != "view" or op.index in with_facts)
        """All ops but the views of which nothing was measured."""

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

    def sums(self, group: Group) -> Sums:
        """Add up the facts of a row."""
        values: dict[str, Number] = {}
        holders: dict[str, set[int]] = defaultdict(set)
        executed = [name for name in EXECUTED_FLOPS if name in self.known]
        dram = [name for name in DRAM_BYTES if name in self.known]
        counted: set[int] = set()
        moved: set[int] = set()
        matrix: Number = 0
        ops = self.ledger.ops
        for fact in group.facts:
            for name, value in fact.values.items():
                holders[name].update(fact.ops)
                if name in _MOST:
                    values[name] = max(values.get(name, value), value)
                elif adds_up(name):
                    values[name] = values.get(name, 0) + value
            if any(name in fact.values for name in executed) and any(_flops(ops[index]) for index in fact.ops):
                counted.update(fact.ops)
                matrix += sum(fact.values.get(name, 0) for name in executed)
            if any(name in fact.values for name in dram):
                moved.update(fact.ops)
        ran = self.launched.intersection(group.ops)
        return Sums(
            values=values,
            ran=len(ran),
            missing={name: gone for name in sorted(self.known) if (gone := len(ran - holders[name]))},
            matrix_executed=matrix if counted else None,
            matrix_useful=sum(_flops(ops[index]) for index in counted) if counted else None,
            compulsory_bytes=sum(_bytes(ops[index]) for index in moved) if moved else None,
        )

    @property
    def whole(self) -> Group:
        return Group(self.counted_ops, tuple(self.facts))

    @cached_property
    def total(self) -> Sums:
        """All ops, and what belongs to none. What is only known of the whole step or of graphs is taken from there."""
        sums = self.sums(self.whole)
        whole: dict[str, Number] = {}
        for row in graphs(self.ledger):
            for name, value in row.quantities.items():
                whole[name] = whole.get(name, 0) + value.value
        whole.update((name, value.value) for name, value in self.step.items())
        only = {name: value for name, value in whole.items() if name not in self.known and adds_up(name)}
        return Sums(
            {**only, **sums.values}, sums.ran, sums.missing, sums.matrix_executed, sums.matrix_useful,
            sums.compulsory_bytes,
        )  # fmt: skip

    @cached_property
    def attributed(self) -> dict[int, Number]:
        """Kernel time by how many ops it belongs to: 0, 1 or 2 (which is several)."""
        found: dict[int, Number] = {0: 0.0, 1: 0.0, 2: 0.0}
        for fact in self.facts:
            found[min(len(fact.ops), 2)] += fact.values.get("gpu_time_s", 0)
        return found


def _flops(op: Op) -> int:
    return (op.cost.flops or 0) if op.cost is not None else 0


def _bytes(op: Op) -> int:
    cost = op.cost
    return 0 if cost is None else (cost.bytes_read or 0) + (cost.bytes_written or 0)
