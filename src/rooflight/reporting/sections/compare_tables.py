"""Two ledgers side by side: the page, its tables, and the same as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

import msgspec

from rooflight import formatting
from rooflight.analysis import verdict_text
from rooflight.analysis.comparison.sides import Comparison, Figures, PairRow, TotalLine, attributed
from rooflight.analysis.verdicts import Judge
from rooflight.formatting import quotient
from rooflight.ledger import total
from rooflight.metrics import METRICS, Number, fit_text
from rooflight.reporting.columns import column
from rooflight.reporting.document import DEPTH, Document, table_sections
from rooflight.reporting.sections import (
    bridge_tables,
    compare_memory_tables,
    ledger_documents,
    measure_text,
    verdict_tables,
    why_tables,
)
from rooflight.reporting.sections.layer_rows import NO_LAYERS, fold_measured, layer_label
from rooflight.reporting.sections.measure_tables import total_row
from rooflight.reporting.table import Cells, Column, Label, Table, figure, says_nothing, table_of
from rooflight.summary import By
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import rows

CONVENTIONS = (
    "B/A under 1: B is less. Ops of the two sides are matched by phase, module, call of the module, name and "
    "ordinal. A kernel that fuses several ops counts in the smallest module around all of them, so in a compiled "
    "step outer rows say more than inner ones. Counts of the whole step come from one range around it, where there "
    "is one; those of a row are sums over its ops."
)


def totals_table(comparison: Comparison) -> Table:
    columns: Cells[TotalLine] = [
        (Column("whole step", right=False), lambda line: line.name),
        (Column("A"), lambda line: figure(line.a, why_tables.WRITTEN[line.unit])),
        (Column("B"), lambda line: figure(line.b, why_tables.WRITTEN[line.unit])),
        (Column("B/A", quotient), lambda line: line.ratio),
    ]
    return table_of(columns, comparison.totals())


@dataclass(frozen=True)
class ComparedQuantity:
    """What is compared of every row: A's, B's, and B by A."""

    title: str
    metric: str
    """Whose column it has on a page."""
    pick: Callable[[Figures], Number | None]

    def of(self, side: Literal["a", "b"]) -> Callable[[PairRow], Number | None]:
        def value(row: PairRow) -> Number | None:
            figures = getattr(row, side)
            return None if figures is None else self.pick(figures)

        return value

    def ratio(self, row: PairRow) -> float | None:
        return row.ratio_of(self.pick)


COMPARED = {
    "time": ComparedQuantity("time", "kernel_time_s", lambda side: side.time_s),
    "flops": ComparedQuantity("FLOPs", "flops", lambda side: side.flops),
    "bytes": ComparedQuantity("bytes", "bytes", lambda side: side.bytes),
}


def row_table(comparison: Comparison, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """The same rows of both, and the total."""
    pairs = [row for row in _pairs(comparison, by, folded=folded) if depth is None or row.depth <= depth]
    pairs.append(comparison.total_pair(total_row(comparison.a), total_row(comparison.b)))
    flops, traffic = comparison.flops_basis, comparison.bytes_basis
    # What is left on a narrow terminal: an estimate is judged by its FLOPs, two runs by their bytes.
    first, second = (3, 5) if flops[0] != flops[1] else (5, 3)
    columns: Cells[PairRow] = [
        (Column("layer" if by == "module" else by, right=False), lambda row: _label(row, comparison)),
        (column("type", optional=9), lambda row: row.type),
        *_three(COMPARED["time"], ("", ""), optional=0),
        *_three(COMPARED["flops"], flops, optional=first),
        *_three(COMPARED["bytes"], traffic, optional=second),
    ]
    if not comparison.bridges:  # causes of one side against its formula: from one run to another there are others
        columns += [
            (Column("unexplained FLOPs", signed_share, optional=6), lambda row: why_tables.unexplained(row.why)),
            (Column("mainly because of", right=False, optional=7), lambda row: why_tables.mainly(row.why)),
        ]
    if comparison.only_a or comparison.only_b:
        columns += [
            (Column("only in A", formatting.exact, optional=8), lambda row: row.a.only_here if row.a else None),
            (Column("only in B", formatting.exact, optional=7), lambda row: row.b.only_here if row.b else None),
        ]
    return table_of(columns, pairs, has_total=True, leave_out=says_nothing)


def signed_share(value: float | None) -> str:
    return "–" if value is None else f"{value:+.2%}"


_KINDS = {"matrix executed": "executed, matrix ops"}


def _three(quantity: ComparedQuantity, basis: tuple[str, str], *, optional: int) -> Cells[PairRow]:
    """A, B and their ratio. Columns say of which kind they are where the two are not of one kind."""
    a, b = (f" {_KINDS.get(kind, kind)}" if basis[0] != basis[1] else "" for kind in basis)
    name, write = quantity.title, METRICS[quantity.metric].text
    return [
        (Column(f"{name} A{a}", write, optional=optional), quantity.of("a")),
        (Column(f"{name} B{b}", write, optional=optional), quantity.of("b")),
        (Column(f"{name} B/A", quotient, optional=max(optional - 1, 0)), quantity.ratio),
    ]


def _pairs(comparison: Comparison, by: By, *, folded: bool) -> list[PairRow]:
    """Equal blocks are folded only where both sides fold the same ones."""
    a, b = rows(comparison.a, by), rows(comparison.b, by)
    if by == "module" and folded:
        shorter = fold_measured(comparison.a, a), fold_measured(comparison.b, b)
        names = [[row.name for row in side if row.name not in NO_LAYERS] for side in shorter]
        if names[0] == names[1]:
            a, b = shorter
    return comparison.paired(a, b, by)


def _label(row: PairRow, comparison: Comparison) -> Label:
    return layer_label(row.name, row.depth, comparison.a.ledger.header.model)


def unmatched_table(comparison: Comparison, *, limit: int = 12) -> Table:
    """Ops that only one of the two has."""
    lines = [
        (module or comparison.a.ledger.header.model, sum(a.values()), sum(b.values()), _names(a), _names(b))
        for module, (a, b) in comparison.unmatched().items()
    ]
    lines.sort(key=lambda line: -(line[1] + line[2]))
    if len(lines) > limit:
        rest = lines[limit:]
        more = (f"{len(rest)} more layers", sum(line[1] for line in rest), sum(line[2] for line in rest), "", "")
        lines = [*lines[:limit], more]
    columns: Cells[tuple[str, int, int, str, str]] = [
        (Column("ops that only one side has", right=False), lambda line: line[0]),
        (Column("in A", formatting.exact), lambda line: line[1]),
        (Column("in B", formatting.exact), lambda line: line[2]),
        (Column("A's", right=False, optional=1), lambda line: line[3]),
        (Column("B's", right=False, optional=2), lambda line: line[4]),
    ]
    return table_of(columns, lines)


def _names(ops: Counter[str]) -> str:
    names = [f"{name} ({calls}×)" if calls > 1 else name for name, calls in ops.most_common(3)]
    return ", ".join(names) + (", …" if len(ops) > 3 else "")


def compare_document(
    comparison: Comparison, *, by: By = "module", depth: int | None = None, folded: bool = True
) -> Document:
    """A beside B, row by row, and why they differ."""
    shown = DEPTH if depth is None else depth
    tables = [totals_table(comparison), row_table(comparison, by, depth=shown, folded=folded)]
    tables += bridge_tables.bridge_tables(comparison) or [why_tables.why_table(why) for why in comparison.whys]
    if comparison.judge is not None:
        tables.append(verdict_tables.verdict_table(comparison.judge[1], by, depth=shown, folded=folded))
    tables.append(unmatched_table(comparison))
    memory = comparison.memory.joined
    if memory is not None:
        tables += compare_memory_tables.memory_tables(memory, comparison.a.ledger.header.model)
    small = [f"{name}: {ledger_documents.provenance(side.ledger)}" for name, side in _named(comparison)]
    if comparison.flops_basis[0] != comparison.flops_basis[1]:
        small.append(
            "useful = matrix work by formula; executed, matrix ops = all FLOPs counted in the ops that have matrix "
            "work; what other ops execute is not in it"
        )
    if memory is not None and memory.partings():
        small.append(compare_memory_tables.CONVENTIONS)
    if comparison.bridges:
        small.append(bridge_tables.CONVENTIONS)
    elif comparison.whys:
        small.append(why_tables.CONVENTIONS)
    return Document(
        title="A against B",
        lines=tuple(_summary(comparison)),
        sections=table_sections(tables),
        notes=tuple(_notes(comparison, by, depth=shown, folded=folded)),
        small_print=(*small, CONVENTIONS),
        rows=lambda: row_table(comparison, by, depth=depth, folded=False),
        data=lambda: compare_data(comparison, by),
    )


def _summary(comparison: Comparison) -> Iterator[str]:
    for name, side in _named(comparison):
        yield f"{name}: {ledger_documents.headline(side.ledger)}{_where(name, comparison)}"
        if is_measured(side.ledger):
            yield from (f"   {line}" for line in measure_text.headlines(side))
    if comparison.bridges:
        yield from (f"from A to B: {sentence}" for sentence in bridge_tables.bridge_sentences(comparison))
    elif comparison.whys:
        yield f"{why_title(comparison) or 'why'}: {'; '.join(why_tables.why_lines(comparison))}"
    if comparison.judge is not None:
        name, judge = comparison.judge
        yield f"verdict on {name}: {verdict_text.step_line(judge.step())}"
        if judge.cell is not None:
            yield f"memory of {name}: {fit_text(judge.fit)}"
    differences = [f"{difference.name} {difference.a} | {difference.b}" for difference in comparison.differences()]
    if differences:
        yield f"not the same (A | B): {'; '.join(differences)}"


def why_title(comparison: Comparison) -> str:
    """What the account of a run beside an estimate of another step is of; "" where the estimate is of the same step."""
    runs = [name for name, side in _named(comparison) if is_measured(side.ledger)]
    a, b = (total(side.ledger.ops) for _, side in _named(comparison))
    if len(runs) != 1 or (a.flops, a.bytes) == (b.flops, b.bytes):
        return ""
    other = "A" if runs == ["B"] else "B"
    return f"why {runs[0]} differs from the estimate of its own step, which is not {other}"


def _where(name: str, comparison: Comparison) -> str:
    """Of what nobody ran: where it is predicted to run."""
    judge = comparison.predicted if name == "B" else None
    return f" · predicted on {judge.device_title}" if judge is not None and judge.cell is not None else ""


def _notes(comparison: Comparison, by: By, *, depth: int, folded: bool) -> Iterator[str]:
    matched = sum(op.kind != "view" for op in comparison.a.ledger.ops) - len(comparison.only_a)
    aligned = comparison.alignment.by_family
    others = f" ({len(aligned):,} of them by what they do, under another name)" if aligned else ""
    yield (
        f"{matched:,} ops, views apart, are in both{others}; {len(comparison.only_a):,} only in A, "
        f"{len(comparison.only_b):,} only in B"
    )
    yield from _uncounted(comparison)
    if comparison.judge is not None:
        judge = comparison.judge[1]
        yield from [judge.otherwise] if judge.otherwise else []
        yield from verdict_tables.advice_lines(judge, by, depth=depth, folded=folded)
    executions = comparison.a.ledger.header.execution, comparison.b.ledger.header.execution
    yield from compare_memory_tables.memory_notes(comparison.memory, executions)
    for name, side in _named(comparison):
        if total(side.ledger.ops).uncounted:
            yield f"{name}: {ledger_documents.coverage(side.ledger)}"
    yield from (f"{name}: {line}" for name, side in _named(comparison) if (line := measure_text.attribution(side)))
    yield from (f"{name}: note: {note}" for name, side in _named(comparison) for note in side.ledger.header.notes)


def _uncounted(comparison: Comparison) -> Iterator[str]:
    """What a reader would take for counted, and is not."""
    judge = comparison.predicted
    how = "" if judge is None or judge.predictor is None else f"{judge.step().predictor}, on {judge.device_title}"
    for (name, side), flops in zip(_named(comparison), comparison.flops_basis, strict=True):
        if side.origin == "predicted":
            yield f"{name} is predicted: {how}"
        elif not is_measured(side.ledger):
            yield f"{name} is an estimate: values by formula"
        elif flops == "useful" and side.ledger.ops:
            yield (
                f"{name}: nothing counted FLOPs or bytes there: those of its rows are by formula, as an "
                "estimate's; only times and memory were measured"
            )


def _named(comparison: Comparison) -> tuple[tuple[str, Measured], tuple[str, Measured]]:
    return ("A", comparison.a), ("B", comparison.b)


def compare_data(comparison: Comparison, by: By = "module") -> dict[str, Any]:
    """Raw numbers; unknown is null; ratios are B by A."""
    return {
        **{name.lower(): _side(side) for name, side in _named(comparison)},
        "differences": {line.name: {"a": line.a, "b": line.b} for line in comparison.differences()},
        "totals": [{**asdict(line), "ratio": line.ratio} for line in comparison.totals()],
        "basis": {
            "flops": dict(zip("ab", comparison.flops_basis, strict=True)),
            "bytes": dict(zip("ab", comparison.bytes_basis, strict=True)),
        },
        "rows": [_row(row) for row in comparison.rows(by)],
        "unmatched": {module: {"a": dict(a), "b": dict(b)} for module, (a, b) in comparison.unmatched().items()},
        "memory": compare_memory_tables.memory_data(comparison.memory),
        "from_a_to_b": bridge_tables.bridge_data(comparison.bridges),
        "why": why_tables.why_data(comparison),
        "verdicts": None if comparison.judge is None else _verdicts(*comparison.judge, by),
    }


def _verdicts(name: str, judge: Judge, by: By) -> dict[str, Any]:
    return {"of": name.lower(), "fit": judge.fit, **verdict_tables.verdict_data(judge, by)}


def _side(side: Measured) -> dict[str, Any]:
    return {
        "header": msgspec.to_builtins(msgspec.structs.asdict(side.ledger.header)),
        "attributed_time": attributed(side),
    }


def _row(row: PairRow) -> dict[str, Any]:
    return {
        **{name: msgspec.to_builtins(getattr(row, name)) for name in ("name", "type", "depth", "a", "b")},
        **{f"{name}_ratio": quantity.ratio(row) for name, quantity in COMPARED.items()},
        "unexplained_flops": why_tables.unexplained(row.why),
        "causes": {} if row.why is None else {cause.name: cause.amount for cause in row.why.causes},
    }
