"""Layers and ops of a step as one tree of rows, column by column; and behind each row how its estimate is derived, its
kernels, and why it took what it took.

Every module is a row with all that runs inside it; below it stand the ops that it runs itself. What a compiler fused is
a row of its own, in the smallest module around it. A column that nothing fills is left out. Ops that are alike share
one text of details, so that eighty equal layers take the room of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rooflight import formatting
from rooflight.analysis.cause import Explained
from rooflight.analysis.comparison.why import Reasons
from rooflight.analysis.verdicts import Judge, Verdict
from rooflight.estimation.derivation import derive_each
from rooflight.ledger import LOSS, OPTIMIZER, Kernel, Ledger
from rooflight.reporting.columns import column
from rooflight.reporting.sections.derivation import op_text
from rooflight.reporting.sections.why_tables import Unit, amount_writer, mainly
from rooflight.reporting.table import Column, kernel_name
from rooflight.summary.measured_rows import NO_OP, SEVERAL, MeasuredRow, innermost, op_rows


@dataclass(frozen=True)
class Details:
    """By op, in tables of what is distinct."""

    derivations: tuple[str, ...]
    """By pen and paper, as text."""
    derivation_of: dict[int, int]
    """By op: which of `derivations`."""
    texts: tuple[str, ...]
    """Of cells."""
    lines: tuple[tuple[int, ...], ...]
    """Of tables: for each cell, which of `texts`. Kernels first, the longest before all others: name, time, blocks in
    the grid, threads in a block, tile."""
    kernels_of: dict[int, tuple[int, ...]]
    """By op: which of `lines`."""
    causes_of: dict[int, tuple[tuple[int, ...], ...]]
    """By op, a table for each quantity, of `lines`: head, asked for, causes with evidence, unexplained, measured."""


class _Distinct:
    """Values by number, each kept once."""

    def __init__(self) -> None:
        self._numbers: dict[Hashable, int] = {}

    def number(self, value: Hashable) -> int:
        return self._numbers.setdefault(value, len(self._numbers))

    def all(self) -> tuple[Any, ...]:
        return tuple(self._numbers)


def details_of(ledger: Ledger, reasons: Reasons | None) -> Details:
    derived, derivation_of = derive_each(ledger)
    texts, lines = _Distinct(), _Distinct()

    def line(*cells: str) -> int:
        return lines.number(tuple(map(texts.number, cells)))

    kernels: dict[int, list[int]] = {}
    for kernel in sorted(ledger.kernels, key=lambda kernel: -(kernel.time_s or 0)):
        for index in kernel.ops[:1]:
            kernels.setdefault(index, []).append(line(*_kernel(kernel)))
    causes: dict[int, list[tuple[int, ...]]] = {}
    if reasons is not None and reasons.is_measured:
        accounts: Sequence[tuple[str, Unit, Sequence[Explained]]] = (
            ("FLOPs", "flop", reasons.flops),
            ("DRAM bytes", "byte", reasons.traffic),
            ("time", "second", reasons.time),
        )
        for name, unit, rows in accounts:
            for row in rows:
                found = tuple(line(*cells) for cells in _account(name, row, amount_writer(unit)))
                causes.setdefault(row.op.index, []).append(found)
    return Details(
        derivations=tuple(map(op_text, derived)),
        derivation_of=derivation_of,
        texts=texts.all(),
        lines=lines.all(),
        kernels_of={index: tuple(found) for index, found in kernels.items()},
        causes_of={index: tuple(found) for index, found in causes.items()},
    )


def _kernel(kernel: Kernel) -> tuple[str, ...]:
    blocks, threads = (None if dims is None else math.prod(dims) for dims in (kernel.grid, kernel.block))
    tile = "" if kernel.tile is None else formatting.shape(kernel.tile)
    name, time = kernel_name(kernel.name, 90).shown, formatting.seconds(kernel.time_s)
    return name, time, formatting.exact(blocks), formatting.exact(threads), tile


def _account(name: str, row: Explained, write: Callable[[float], str]) -> Iterator[tuple[str, ...]]:
    yield name, "", "evidence"
    yield "asked for", write(row.asked)
    for one in row.causes:
        yield one.name, write(one.amount), one.evidence
    yield "unexplained", write(row.unexplained)
    yield "measured", write(row.measured)


RowKind = Literal["module", "op", "fused"]
Side = Literal["estimate", "measurement", "prediction", "both"]


@dataclass(frozen=True)
class TreeColumn:
    """A column of the tree, with its values."""

    column: Column
    """Its heading, what it means, and how its values are written."""
    side: Side
    """Whose value it is: that of the formulas, of the hardware, of a prediction, or of two of them."""
    values: tuple[Any, ...]
    """One for every row; `None` is unknown."""


@dataclass(frozen=True)
class Tree:
    """Rows in the order of the model, parents before what they hold."""

    names: tuple[str, ...]
    """As they are shown."""
    paths: tuple[str, ...]
    """In full: of a module its path, of an op the module it runs in and its name."""
    kinds: tuple[RowKind, ...]
    """What each row is."""
    parents: tuple[int | None, ...]
    """Row that holds it; `None`: the outermost."""
    ops: tuple[tuple[int, ...], ...]
    """Indices of the ops of a row; of a module those of its own only."""
    columns: tuple[TreeColumn, ...]
    """Each with a value for every row."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class _TreeRow:
    """One row while the tree is built."""

    row: MeasuredRow
    verdict: Verdict
    kind: RowKind
    parent: int | None
    name: str
    path: str
    phase: str = ""


def tree_of(judge: Judge, reasons: Reasons | None) -> Tree:
    """All rows of a step. `reasons` gives the causes of what was executed beyond the useful."""
    ledger = judge.measured.ledger
    found = _rows(judge, ledger)
    columns = [
        TreeColumn(column, side, values)
        for column, side, value in _columns(judge, reasons)
        if any(values := tuple(value(one) for one in found)) or any(cell == 0 for cell in values)
    ]
    return Tree(
        tuple(one.name for one in found),
        tuple(one.path for one in found),
        tuple(one.kind for one in found),
        tuple(one.parent for one in found),
        tuple(one.row.own.ops for one in found),
        tuple(columns),
    )


def _rows(judge: Judge, ledger: Ledger) -> list[_TreeRow]:
    modules, ops = judge.rows(), op_rows(judge.measured)
    of_modules = judge.of(modules, advised=False)
    of_ops = judge.of(ops, advised=False)
    below: dict[str, list[int]] = {}
    for number, row in enumerate(ops):
        below.setdefault(innermost({ledger.ops[index].module for index in row.group.ops}), []).append(number)
    found: list[_TreeRow] = []
    place: dict[str, int] = {}
    for row, verdict in zip(modules, of_modules, strict=True):
        parent = None
        if row.name and row.name not in (LOSS, OPTIMIZER, SEVERAL, NO_OP):
            parent = place.get(row.name.rpartition(".")[0])
        place[row.name] = len(found)
        found.append(_TreeRow(row, verdict, "module", parent, _module_name(ledger, row.name), row.name))
        here = place[row.name]
        found.extend(_op(ledger, ops[number], of_ops[number], here) for number in below.get(row.name, ()))
    return found


def _op(ledger: Ledger, row: MeasuredRow, verdict: Verdict, parent: int) -> _TreeRow:
    ops = [ledger.ops[index] for index in row.group.ops]
    name = row.name.removeprefix("aten::") if len(ops) == 1 else f"fused: {row.name.replace('aten::', '')}"
    phase = " + ".join(dict.fromkeys(op.phase for op in ops))
    path = f"{ops[0].module} {name}".strip() if len(ops) == 1 else name
    return _TreeRow(row, verdict, "op" if len(ops) == 1 else "fused", parent, name, path, phase)


def _module_name(ledger: Ledger, path: str) -> str:
    if path == "":
        return ledger.header.model
    return path if path in (LOSS, OPTIMIZER, SEVERAL, NO_OP) else path.rpartition(".")[2]


_Made = tuple[Column, Side, Callable[[_TreeRow], Any]]


def _columns(judge: Judge, reasons: Reasons | None) -> Sequence[_Made]:
    timed: Side = "prediction" if judge.times == "predicted" else "measurement"
    counted = judge.measured.total.executed_flops is not None
    first, last = _estimated(judge)
    return [*first, *_timed(judge, timed), *(_counted(reasons) if counted else []), *_judged(timed), *last]


def _estimated(judge: Judge) -> tuple[Sequence[_Made], Sequence[_Made]]:
    """What is read beside the measurement, and what may stand behind it."""
    ops = judge.measured.ledger.ops

    def output(one: _TreeRow) -> tuple[int, ...] | None:
        if one.kind != "op":
            return one.row.estimate.output
        outputs = ops[one.row.group.ops[0]].outputs
        return outputs[0].shape if outputs else None

    def kind(one: _TreeRow) -> str | None:
        return (one.row.estimate.type if one.kind == "module" else one.phase) or None

    first: Sequence[_Made] = [
        (column("type", about="the module's class; of an op its phase"), "both", kind),
        (column("flops"), "estimate", lambda one: one.row.estimate.totals.flops),
        (column("bytes"), "estimate", lambda one: one.row.estimate.totals.bytes),
        (column("intensity"), "estimate", lambda one: one.row.estimate.totals.intensity),
    ]
    last: Sequence[_Made] = [
        (replace(column("output"), right=False), "estimate", output),
        (column("params"), "estimate", lambda one: (one.row.estimate.params or None) if one.kind == "module" else None),
        (column("macs"), "estimate", lambda one: one.row.estimate.totals.macs),
        (column("other_flops"), "estimate", lambda one: one.row.estimate.totals.other_flops),
        (column("recompute_flops"), "estimate", lambda one: one.row.estimate.totals.recompute_flops or None),
    ]
    return first, last


def _timed(judge: Judge, side: Side) -> Sequence[_Made]:
    on_cpu = judge.measured.total.get("kernel_time_s") is None and side == "measurement"
    time = column("host_time_s" if on_cpu else "kernel_time_s", heading="time")
    if side == "prediction":
        time = replace(time, about=f"{time.about}, predicted for {judge.device_title}")
    return [
        (time, side, lambda one: one.row.sums.time_s),
        (column("share", about="part of the time of all ops"), side, lambda one: one.row.share),
    ]


def _counted(reasons: Reasons | None) -> Sequence[_Made]:
    def cause(one: _TreeRow) -> str | None:
        account = reasons.flops_of(one.row.group.ops) if reasons is not None else None
        return mainly(account) or None

    return [
        (column("executed_flops", heading="executed"), "measurement", lambda one: one.row.sums.executed_flops),
        (column("executed_per_useful"), "both", lambda one: one.row.sums.executed_per_useful),
        (
            Column("mainly because of", right=False, about="the largest cause of what was executed beyond the useful"),
            "both",
            cause,
        ),
        (column("dram_bytes"), "measurement", lambda one: one.row.sums.dram_bytes),
        (column("dram_per_compulsory"), "both", lambda one: one.row.sums.dram_per_compulsory),
    ]


def _judged(side: Side) -> Sequence[_Made]:
    return [
        (column("percent_of_roof"), side, lambda one: one.verdict.percent_of_roof),
        (column("bound"), side, lambda one: one.verdict.bound),
    ]
