"""Layers and ops of a step as one tree of rows, column by column; and behind each row how its estimate is derived, its
kernels, and why it took what it took.

Every module is a row with all that runs inside it, and so is every function that a module with modules inside calls
itself; below a row stand the ops that it runs. What a compiler fused is a row of its own, in the smallest module around
it. A column that nothing fills is left out. Ops that are alike share
one text of details, so that eighty equal layers take the room of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

from msgspec.structs import replace

from rooflight import formatting
from rooflight.analysis.cause import Explained
from rooflight.analysis.comparison.why import Reasons
from rooflight.analysis.verdicts import Judge, Verdict
from rooflight.estimation.derivation import derive_each
from rooflight.ledger import Kernel, Ledger
from rooflight.reporting.columns import column
from rooflight.reporting.sections.derivation import op_text
from rooflight.reporting.sections.layer_columns import ESTIMATED, OF_MODULES, Side, measured_columns
from rooflight.reporting.sections.layer_rows import NO_LAYERS
from rooflight.reporting.sections.why_tables import Unit, amount_writer, mainly
from rooflight.reporting.table import Column, kernel_name
from rooflight.summary.functions import FUSED, below, row_names
from rooflight.summary.measured_rows import MeasuredRow, innermost, op_rows


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
    kernels: dict[int, list[int]] = {}
    for kernel in sorted(ledger.kernels, key=lambda kernel: -(kernel.time_s or 0)):
        for index in kernel.ops[:1]:
            kernels.setdefault(index, []).append(lines.number(_kernel(kernel)))
    causes: dict[int, list[tuple[int, ...]]] = {}
    if reasons is not None and reasons.is_measured:
        accounts: Sequence[tuple[str, Unit, Sequence[Explained]]] = (
            ("FLOPs", "flop", reasons.flops),
            ("DRAM bytes", "byte", reasons.traffic),
            ("time", "second", reasons.time),
        )
        for name, unit, rows in accounts:
            write = amount_writer(unit)
            for row in rows:
                account = tuple(map(lines.number, _account(name, row, write)))
                causes.setdefault(row.op.index, []).append(account)
    numbered = tuple(tuple(map(texts.number, cells)) for cells in lines.all())
    return Details(
        derivations=tuple(map(op_text, derived)),
        derivation_of=derivation_of,
        texts=texts.all(),
        lines=numbered,
        kernels_of={index: tuple(lines_of) for index, lines_of in kernels.items()},
        causes_of={index: tuple(accounts) for index, accounts in causes.items()},
    )


def _kernel(kernel: Kernel) -> tuple[str, ...]:
    blocks, threads = (None if dims is None else math.prod(dims) for dims in (kernel.grid, kernel.block))
    tile = "" if kernel.tile is None else formatting.shape(kernel.tile)
    name, time = kernel_name(kernel.name, 90).shown, formatting.seconds(kernel.time_s)
    return name, time, formatting.exact(blocks), formatting.exact(threads), tile


def _account(name: str, row: Explained, write: Callable[[float], str]) -> Iterator[tuple[str, ...]]:
    yield name, "", "evidence"
    yield "asked for", write(row.asked)
    for cause in row.causes:
        yield cause.name, write(cause.amount), cause.evidence
    yield "unexplained", write(row.unexplained)
    yield "measured", write(row.measured)


RowKind = Literal["module", "op", "fused"]


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
    """Indices of the ops of a row; of a module those that are in no other row below it."""
    columns: tuple[TreeColumn, ...]
    """Each with a value for every row."""

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class _TreeRow:
    """One row while the tree is built."""

    measured: MeasuredRow
    verdict: Verdict
    kind: RowKind
    parent: int | None
    name: str
    path: str


def tree_of(judge: Judge, reasons: Reasons | None) -> Tree:
    """All rows of a step. `reasons` gives the causes of what was executed beyond the useful."""
    rows = _rows(judge, judge.measured.ledger)
    return Tree(
        tuple(row.name for row in rows),
        tuple(row.path for row in rows),
        tuple(row.kind for row in rows),
        tuple(row.parent for row in rows),
        tuple(own_ops([row.measured for row in rows])),
        tuple(_columns(judge, reasons, rows)),
    )


def _rows(judge: Judge, ledger: Ledger) -> list[_TreeRow]:
    modules, ops = judge.rows(), op_rows(judge.measured)
    verdicts = judge.of(modules, advised=False)
    names, there = row_names(ledger), {row.name for row in modules}
    ops_below: dict[str, list[tuple[MeasuredRow, Verdict]]] = {}
    for row, verdict in zip(ops, judge.of(ops, advised=False), strict=True):
        inside = innermost({names[index] for index in row.group.ops})
        inside = below(inside, FUSED) if below(inside, FUSED) in there else inside
        ops_below.setdefault(inside, []).append((row, verdict))
    rows: list[_TreeRow] = []
    place: dict[str, int] = {}
    for row, verdict in zip(modules, verdicts, strict=True):
        place[row.name] = here = len(rows)
        name, parent = node_of(row.name, ledger.header.model, place)
        rows.append(_TreeRow(row, verdict, "module", parent, name, row.name))
        rows.extend(_op(ledger, *inside, here) for inside in ops_below.get(row.name, ()))
    return rows


def _op(ledger: Ledger, row: MeasuredRow, verdict: Verdict, parent: int) -> _TreeRow:
    """Where a module has its class, an op has its phase; one alone has its first output."""
    ops = [ledger.ops[index] for index in row.group.ops]
    phase = " + ".join(dict.fromkeys(op.phase for op in ops))
    if len(ops) > 1:
        name = f"fused: {row.name.replace('aten::', '')}"
        return _TreeRow(_as_estimated(row, phase, None), verdict, "fused", parent, name, name)
    name = row.name.removeprefix("aten::")
    output = ops[0].outputs[0].shape if ops[0].outputs else None
    path = f"{ops[0].module} {name}".strip()
    return _TreeRow(_as_estimated(row, phase, output), verdict, "op", parent, name, path)


def _as_estimated(row: MeasuredRow, phase: str, output: tuple[int, ...] | None) -> MeasuredRow:
    return replace(row, estimate=replace(row.estimate, type=phase, output=output))


def own_ops(rows: Sequence[MeasuredRow]) -> Iterator[tuple[int, ...]]:
    """Of rows of any kind, the ops of each that no row of a function has too."""
    of_functions = {index for row in rows if row.estimate.kind == "function" for index in row.own.ops}
    for row in rows:
        is_module = row.estimate.kind == "module"
        yield tuple(index for index in row.own.ops if not (is_module and index in of_functions))


def node_of(path: str, model: str, place: Mapping[str, int]) -> tuple[str, int | None]:
    """What a row is called in a tree, and the row that holds it."""
    if path == "":
        return model, None
    if path in NO_LAYERS:
        return path, None
    around, _, name = path.rpartition(".")
    return name, place.get(around)


def _columns(judge: Judge, reasons: Reasons | None, rows: Sequence[_TreeRow]) -> Iterator[TreeColumn]:
    """Those of every layer, and what only a page says: the largest cause, and the verdict."""
    timed: Side = "prediction" if judge.times == "predicted" else "measurement"
    times = f", predicted for {judge.device_title}" if timed == "prediction" else ""
    measured = [row.measured for row in rows]
    estimates = [row.estimate for row in measured]
    verdicts = [row.verdict for row in rows]

    def cause(row: MeasuredRow) -> str | None:
        return mainly(reasons.flops_of(row.group.ops) if reasons is not None else None) or None

    roof, bound = column("percent_of_roof"), column("bound")
    columns = [
        (40, TreeColumn(roof, timed, tuple(verdict.percent_of_roof for verdict in verdicts))),
        (41, TreeColumn(bound, timed, tuple(verdict.bound for verdict in verdicts))),
    ]
    if judge.measured.total.executed_flops is not None:
        about = "the largest cause of what was executed beyond the useful"
        because = Column("mainly because of", right=False, about=about)
        columns.append((32, TreeColumn(because, "both", tuple(map(cause, measured)))))
    columns += [
        (entry.place, TreeColumn(entry.page, entry.side or timed, tuple(map(entry.on_page, estimates))))
        for entry in (*OF_MODULES, *ESTIMATED)
        if entry.page is not None
    ]
    columns += [
        (entry.place, TreeColumn(entry.page, entry.side or timed, tuple(map(entry.on_page, measured))))
        for entry in measured_columns(judge.measured, times)
        if entry.page is not None
    ]
    for _, shown in sorted(columns, key=itemgetter(0)):
        if any(shown.values) or any(cell == 0 for cell in shown.values):
            yield shown
