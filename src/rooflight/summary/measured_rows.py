"""What was measured, sorted into the rows of a summary: modules, layer types, ops, phases.

A fact lies in the smallest row that holds all of its ops. So rows add up, whatever a compiler did to the step: a kernel
that fuses a convolution with the batch norm behind it counts in the block around both, and in the type of row
`Conv2d + BatchNorm2d`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from rooflight import summary
from rooflight.ledger import OUTSIDE, PHASES, Ledger, Op, Totals, total
from rooflight.metrics import ratio
from rooflight.summary import By, SummaryRow
from rooflight.summary.facts import MeasuredFact
from rooflight.summary.functions import FUSED, below, row_names
from rooflight.summary.sums import OpGroup, Sums

if TYPE_CHECKING:
    from rooflight.summary.measured import Measured

NO_OP = "<no op>"
"""Row of what nothing tells the op of."""
SEVERAL = "<several>"
"""Row of what belongs to the model, the loss and the optimizer together."""


class MeasuredRow(msgspec.Struct, frozen=True):
    """One line of a summary from both sides."""

    estimate: SummaryRow
    group: OpGroup
    own: OpGroup
    """What runs in the module itself, not in its children; elsewhere the same as `group`."""
    sums: Sums
    own_sums: Sums
    share: float | None
    """Of the time of all ops."""

    @property
    def name(self) -> str:
        return self.estimate.name


def rows(measured: Measured, by: By = "module") -> list[MeasuredRow]:
    """The summary's rows: modules in the order of the model, types and ops the slowest first."""
    return measured.rows(by)


def made(measured: Measured, by: By) -> list[MeasuredRow]:
    """Asked for by `Measured.rows`, which keeps them."""
    if by == "module":
        return _module_rows(measured)
    key = summary.type_of(measured.ledger) if by == "type" else summary.name_of
    rows = [_named_row(measured, name, group) for name, group in _fused(measured, key).items()]
    return sorted(rows, key=lambda row: (row.sums.time_s or 0, row.estimate.totals.flops), reverse=True)


def op_rows(measured: Measured) -> list[MeasuredRow]:
    """A row for every op that computes, in order, and one for each set of ops that ran as one."""
    alone: dict[int, list[MeasuredFact]] = defaultdict(list)
    together: dict[tuple[int, ...], list[MeasuredFact]] = defaultdict(list)
    for fact in measured.facts:
        if len(fact.ops) == 1:
            alone[fact.ops[0]].append(fact)
        elif fact.ops:
            together[fact.ops].append(fact)
    groups = [OpGroup((op.index,), tuple(alone[op.index])) for op in _counted(measured)]
    groups += [OpGroup(ops, tuple(facts)) for ops, facts in together.items()]
    names = [op.name for op in measured.ledger.ops]
    return [_named_row(measured, _joined([names[index] for index in group.ops]), group) for group in groups]


def merged(measured: Measured, members: list[MeasuredRow], estimate: SummaryRow) -> MeasuredRow:
    """One row for several, under the estimate's row for them."""
    return _row(measured, estimate, _together([row.group for row in members]), _together([row.own for row in members]))


def phases(measured: Measured) -> list[MeasuredRow]:
    """The phases that the step has."""
    groups = _grouped(measured, lambda op: op.phase)
    order = (*PHASES, SEVERAL, NO_OP)
    return [_named_row(measured, name, groups[name]) for name in order if name in groups]


def _row(measured: Measured, estimate: SummaryRow, group: OpGroup, own: OpGroup | None = None) -> MeasuredRow:
    sums = measured.sums(group)
    own_sums = sums if own is None or own == group else measured.sums(own)
    return MeasuredRow(estimate, group, own or group, sums, own_sums, ratio(sums.time_s, measured.total.time_s))


def _named_row(measured: Measured, name: str, group: OpGroup) -> MeasuredRow:
    return _row(measured, _estimated(measured.ledger, name, group), group)


def _together(groups: list[OpGroup]) -> OpGroup:
    return OpGroup(
        tuple(index for group in groups for index in group.ops), tuple(fact for group in groups for fact in group.facts)
    )


class _GatheredRows:
    """Groups while they grow."""

    def __init__(self) -> None:
        self._ops: dict[str, list[int]] = defaultdict(list)
        self._facts: dict[str, list[MeasuredFact]] = defaultdict(list)

    def add_op(self, name: str, op: Op) -> None:
        self._ops[name].append(op.index)

    def add_fact(self, name: str, fact: MeasuredFact) -> None:
        self._facts[name].append(fact)

    def __contains__(self, name: str) -> bool:
        return name in self._ops or name in self._facts

    def group(self, name: str) -> OpGroup:
        return OpGroup(tuple(self._ops.get(name, ())), tuple(self._facts.get(name, ())))

    def all(self) -> dict[str, OpGroup]:
        return {name: self.group(name) for name in (*self._ops, *(n for n in self._facts if n not in self._ops))}


def _module_rows(measured: Measured) -> list[MeasuredRow]:
    inside, own, names = _GatheredRows(), _GatheredRows(), row_names(measured.ledger)
    estimates = summary.rows(measured.ledger, "module")
    holders = {row.name.rpartition(".")[0] for row in estimates if row.depth}
    for op in _counted(measured):
        for path in {op.module, names[op.index]}:
            own.add_op(path, op)
        for path in _around(names[op.index]):
            inside.add_op(path, op)
    for fact in measured.facts:
        where = innermost({names[index] for index in fact.ops})
        module = innermost({measured.ledger.ops[index].module for index in fact.ops})
        where = below(where, FUSED) if where in holders else where
        for path in {module, where}:
            own.add_fact(path, fact)
        for path in _around(where):
            inside.add_fact(path, fact)
    estimates = _with_fused(measured.ledger, estimates, inside)
    estimates += [
        replace(_estimated(measured.ledger, name, OpGroup((), ())), kind="outside")
        for name in (SEVERAL, NO_OP)
        if name in inside
    ]
    return [_row(measured, row, inside.group(row.name), own.group(row.name)) for row in estimates]


def _with_fused(ledger: Ledger, rows: list[SummaryRow], inside: _GatheredRows) -> list[SummaryRow]:
    """Right below a module, a row for the kernels that span several of the rows below it: then those add up."""
    found: list[SummaryRow] = []
    for row in rows:
        found.append(row)
        name = below(row.name, FUSED)
        if row.kind == "module" and name in inside:
            empty = _estimated(ledger, name, OpGroup((), ()))
            found.append(replace(empty, type="kernels of several rows", depth=row.depth + 1, kind="fused"))
    return found


def _grouped(measured: Measured, key: Callable[[Op], str]) -> dict[str, OpGroup]:
    """Groups of ops; what spans several is a row of its own."""
    gathered = _GatheredRows()
    for op in _counted(measured):
        gathered.add_op(key(op), op)
    for fact in measured.facts:
        names = {key(measured.ledger.ops[index]) for index in fact.ops}
        gathered.add_fact(names.pop() if len(names) == 1 else SEVERAL if names else NO_OP, fact)
    return gathered.all()


def _fused(measured: Measured, key: Callable[[Op], str]) -> dict[str, OpGroup]:
    """Groups of ops, where ops that ran only as part of a kernel with others make a group: `Conv2d + ReLU`."""
    ops, gathered = measured.ledger.ops, _GatheredRows()
    alone = {fact.ops[0] for fact in measured.facts if len(fact.ops) == 1}
    home: dict[int, str] = {}
    for fact in measured.facts:
        name = _joined([key(ops[index]) for index in fact.ops]) if fact.ops else NO_OP
        gathered.add_fact(name, fact)
        for index in fact.ops:
            if index not in alone:
                home.setdefault(index, name)  # an op that ran in two fused kernels is in the row of the first
    for op in _counted(measured):
        gathered.add_op(home.get(op.index, key(op)), op)
    return gathered.all()


def _counted(measured: Measured) -> list[Op]:
    return [measured.ledger.ops[index] for index in measured.counted_ops]


def _estimated(ledger: Ledger, name: str, group: OpGroup) -> SummaryRow:
    """The estimate's side of a group."""
    ops = [ledger.ops[index] for index in group.ops]
    phases: dict[str, list[Op]] = defaultdict(list)
    for op in ops:
        phases[op.phase].append(op)
    sums = {phase: total(found) for phase, found in phases.items()}
    forward, backward = (sums.get(phase, Totals()) for phase in ("forward", "backward"))
    whole = total(ops) if len(sums) > 1 else next(iter(sums.values()), Totals())
    return SummaryRow(name, "", 0, len(ops), None, 0, 0, whole, forward, backward, None)


def innermost(paths: set[str]) -> str:
    """The innermost module that all of them are in."""
    if not paths:
        return NO_OP
    if len(paths) == 1:
        return next(iter(paths))
    if paths.intersection(OUTSIDE):
        return SEVERAL
    shared: list[str] = []
    for level in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(level)) > 1:
            break
        shared.append(level[0])
    return ".".join(shared)


def _around(path: str) -> list[str]:
    return [path] if path in (*OUTSIDE, SEVERAL, NO_OP) else summary.ancestry(path)


def _joined(names: list[str]) -> str:
    """`a + b`, each once, whatever the order; a long list is cut."""
    distinct = sorted(set(names))
    more = f" + {len(distinct) - 3} more" if len(distinct) > 3 else ""
    return " + ".join(distinct[:3]) + more
