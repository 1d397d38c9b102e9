"""What a ledger says was measured: of ops, of their kernels, of the step of every rank.

A measured value may belong to one op, to several that ran as one fused kernel, or to none that is known: it is a fact
over a set of ops, and is counted once.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from rooflight.ledger import Ledger, Measurement, Op, Value
from rooflight.metrics import COUNTED, QUANTITIES, Origin
from rooflight.metrics import Number as Number

_RANK = re.compile(r"rank (\d+)")


class MeasuredFact(msgspec.Struct, frozen=True):
    """Values over a set of ops: one, several that were fused, or none that is known."""

    ops: tuple[int, ...]
    values: Mapping[str, Number]
    names: frozenset[str]
    """Those of the values. There are few such sets, and many facts: facts share them."""


@dataclass(frozen=True)
class MeasuredTimes:
    """How long a step and its ops take, and where that is known from."""

    origin: Origin
    how: str
    """In words: by which clock, or by which prediction."""
    facts: tuple[MeasuredFact, ...]
    """Of sets of ops: `kernel_time_s` and `kernels`, and what else was found of them."""
    step: Mapping[int, Mapping[str, Value]]
    """Of the whole step, by rank."""


def times_of(ledger: Ledger) -> MeasuredTimes:
    """What a ledger holds: a measurement made somewhere, or a recording that comes with rooflight."""
    recording = ledger.header.recording
    how = f"recorded:{recording}" if recording else f"on {ledger.header.device}" if ledger.header.device else ""
    return MeasuredTimes("recorded" if recording else "measured", how, tuple(facts(ledger)), steps_of_ranks(ledger))


@cache
def adds_up(name: str) -> bool:
    """Is the value of several ops the sum of theirs? A counter under its own name is, when it is a plain sum."""
    quantity = QUANTITIES.get(name)
    return quantity.additive if quantity is not None else name.endswith(".sum")


def steps_of_ranks(ledger: Ledger) -> dict[int, dict[str, Value]]:
    """What was measured over the whole step at once, by rank: one, unless ledgers were joined."""
    steps: dict[int, dict[str, Value]] = {}
    for row in ledger.measurements:
        if row.scope == "step":
            named = _RANK.match(row.name)  # a joined ledger names its step rows so
            steps.setdefault(int(named[1]) if named else ledger.header.rank, {}).update(row.quantities)
    return steps


def step_values(steps: Mapping[int, Mapping[str, Value]]) -> dict[str, Value]:
    """The step of all ranks that have a value: counts are summed, the slowest or largest stands for time and memory."""
    parts: dict[str, list[Value]] = defaultdict(list)
    for quantities in steps.values():
        for name, value in quantities.items():
            parts[name].append(value)
    return {name: values[0] if len(values) == 1 else _of_ranks(name, values) for name, values in parts.items()}


def _of_ranks(name: str, values: Sequence[Value]) -> Value:
    if adds_up(name) and not name.endswith("_s"):
        return Value(sum(value.value for value in values), f"{values[0].origin}; sum over {len(values)} ranks")
    most = max(values, key=lambda value: value.value)
    return Value(most.value, f"{most.origin}; most of {len(values)} ranks", most.low, most.high)


def useful_flops_of(op: Op) -> int:
    return (op.cost.flops or 0) if op.cost is not None else 0


def compulsory_bytes_of(op: Op) -> int:
    return 0 if op.cost is None else (op.cost.bytes_read or 0) + (op.cost.bytes_written or 0)


def op_values(ledger: Ledger) -> list[dict[str, Value]]:
    """For every op, what was measured of it alone."""
    values: list[dict[str, Value]] = [{} for _ in ledger.ops]
    for row in ledger.measurements:
        if row.scope == "op" and len(row.ops) == 1:
            values[row.ops[0]].update(row.quantities)
    return values


def facts(ledger: Ledger) -> list[MeasuredFact]:
    """Every value once: what was measured of ops, then what only their kernels tell."""
    measured = []
    shared: dict[frozenset[str], frozenset[str]] = {}
    covered: dict[frozenset[int], set[str]] = defaultdict(set)
    of_ops = [row for row in ledger.measurements if row.scope == "op" and not _is_idle_view(ledger, row)]
    # An op that had a range of its own and shows no bytes moved too few to tell: its kernels, counted one by one in
    # other runs, may not answer for it.
    in_ranges = {name for row in of_ops for name in row.quantities if _is_counted(name)}
    for row in of_ops:
        of_row = {name: value.value for name, value in row.quantities.items()}
        measured.append(_fact(row.ops, of_row, shared))
        covered[frozenset(row.ops)].update(row.quantities)
        if any(_is_counted(name) for name in row.quantities):
            covered[frozenset(row.ops)].update(in_ranges)
    for kernel in ledger.kernels:
        if kernel.kind == "primitive":
            continue  # a CPU library's work: its time is part of the op's
        values: dict[str, Number] = {name: value.value for name, value in kernel.quantities.items()}
        if kernel.kind != "op":
            values["kernels"] = kernel.calls
        if kernel.time_s is not None:
            values["host_time_s" if kernel.kind == "op" else "kernel_time_s"] = kernel.time_s
        names_of_ops = covered.get(frozenset(kernel.ops), set())
        if left := {name: value for name, value in values.items() if name not in names_of_ops}:
            measured.append(_fact(kernel.ops, left, shared))
    return measured


def _fact(
    ops: tuple[int, ...], values: Mapping[str, Number], shared: dict[frozenset[str], frozenset[str]]
) -> MeasuredFact:
    names = frozenset(values)
    return MeasuredFact(ops, values, shared.setdefault(names, names))


@cache
def _is_counted(name: str) -> bool:
    """By a hardware counter: one of the quantities made of them, or a counter under its own name."""
    return name in COUNTED or "__" in name


def _is_idle_view(ledger: Ledger, row: Measurement) -> bool:
    """A view took no time and launched nothing: that the allocator was asked around it makes no row."""
    if any(name in row.quantities for name in ("kernel_time_s", "host_time_s", "kernels")):
        return False
    return bool(row.ops) and all(ledger.ops[index].kind == "view" for index in row.ops)
