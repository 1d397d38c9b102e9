"""Two ledgers side by side: the page, its tables, and the same as one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from rooflight import formatting
from rooflight.analysis import verdict_text
from rooflight.analysis.comparison.sides import Comparison, Figures, PairRow, attributed
from rooflight.analysis.verdicts import Judge
from rooflight.formatting import quotient, seconds, whole_bytes, whole_count
from rooflight.ledger import LOSS, OPTIMIZER, total
from rooflight.metrics import fit_text
from rooflight.reporting.columns import column
from rooflight.reporting.document import DEPTH, Document, table_sections
from rooflight.reporting.sections import (
    compare_memory_tables,
    ledger_documents,
    measure_text,
    verdict_tables,
    why_tables,
)
from rooflight.reporting.sections.layer_rows import fold_measured, layer_label
from rooflight.reporting.sections.measure_tables import total_row
from rooflight.reporting.table import Column, Label, Table, figure, says_nothing, table_of
from rooflight.summary import By
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import NO_OP, SEVERAL, MeasuredRow, rows

_WRITTEN: dict[str, Callable[[Any], str]] = {
    "flop": whole_count,
    "byte": whole_bytes,
    "second": seconds,
    "count": whole_count,
}
CONVENTIONS = (
    "B/A under 1: B is less. Ops of the two sides are matched by phase, module, call of the module, name and "
    "ordinal. A kernel that fuses several ops counts in the smallest module around all of them, so in a compiled "
    "step outer rows say more than inner ones. Counts of the whole step come from one range around it, where there "
    "is one; those of a row are sums over its ops."
)


def totals_table(comparison: Comparison) -> Table:
    columns = (Column("whole step", right=False), Column("A"), Column("B"), Column("B/A", quotient))
    lines = tuple(
        (line.name, figure(line.a, _WRITTEN[line.unit]), figure(line.b, _WRITTEN[line.unit]), line.ratio)
        for line in comparison.totals()
    )
    return Table("", columns, lines)


_Columns = list[tuple[Column, Callable[[PairRow], object]]]


def row_table(comparison: Comparison, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """The same rows of both, and the total."""
    pairs = [row for row in _pairs(comparison, by, folded=folded) if depth is None or row.depth <= depth]
    pairs.append(comparison.total_pair(total_row(comparison.a), total_row(comparison.b)))
    flops, traffic = comparison.flops_basis, comparison.bytes_basis
    # What is left on a narrow terminal: an estimate is judged by its FLOPs, two runs by their bytes.
    first, second = (3, 5) if flops[0] != flops[1] else (5, 3)
    columns: _Columns = [
        (Column("layer" if by == "module" else by, right=False), lambda row: _label(row, comparison)),
        (column("type", optional=9), lambda row: row.type),
        *_three("time", ("", ""), lambda side: side.time_s, seconds, optional=0),
        *_three("FLOPs", flops, lambda side: side.flops, whole_count, optional=first),
        *_three("bytes", traffic, lambda side: side.bytes, whole_bytes, optional=second),
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


def _three(
    name: str, basis: tuple[str, str], pick: Callable[[Figures], Any], write: Callable[[Any], str], *, optional: int
) -> _Columns:
    """A, B and their ratio. Columns say of which kind they are where the two are not of one kind."""
    kinds = [f" {kind.removeprefix('matrix ')}" if basis[0] != basis[1] else "" for kind in basis]
    named = [f"{name} {side}{kind}" for side, kind in zip("AB", kinds, strict=True)]
    return [
        (Column(named[0], write, optional=optional), lambda row: pick(row.a) if row.a else None),
        (Column(named[1], write, optional=optional), lambda row: pick(row.b) if row.b else None),
        (Column(f"{name} B/A", quotient, optional=max(optional - 1, 0)), lambda row: row.ratio_of(pick)),
    ]


def _pairs(comparison: Comparison, by: By, *, folded: bool) -> list[PairRow]:
    """Equal blocks are folded only where both sides fold the same ones."""
    found: list[list[MeasuredRow]] = [rows(side, by) for side in (comparison.a, comparison.b)]
    if by == "module" and folded:
        shorter = [fold_measured(side, own) for side, own in zip((comparison.a, comparison.b), found, strict=True)]
        special = {SEVERAL, NO_OP, LOSS, OPTIMIZER}
        if [row.name for row in shorter[0] if row.name not in special] == [
            row.name for row in shorter[1] if row.name not in special
        ]:
            found = shorter
    return comparison.paired(found[0], found[1], by)


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
    columns = (
        Column("ops that only one side has", right=False),
        Column("in A", formatting.exact),
        Column("in B", formatting.exact),
        Column("A's", right=False, optional=1),
        Column("B's", right=False, optional=2),
    )
    return Table("", columns, tuple(lines))


def _names(found: Counter[str]) -> str:
    names = [f"{name} ({calls}×)" if calls > 1 else name for name, calls in found.most_common(3)]
    return ", ".join(names) + (", …" if len(found) > 3 else "")


def compare_document(
    comparison: Comparison, *, by: By = "module", depth: int | None = None, folded: bool = True
) -> Document:
    """A beside B, row by row, and why they differ."""
    shown = DEPTH if depth is None else depth
    summary = []
    for name, side in (("A", comparison.a), ("B", comparison.b)):
        summary.append(f"{name}: {ledger_documents.headline(side.ledger)}")
        summary += [f"   {line}" for line in measure_text.headlines(side)] if is_measured(side.ledger) else []
    tables = [totals_table(comparison), row_table(comparison, by, depth=shown, folded=folded)]
    tables += [why_tables.why_table(one) for one in comparison.whys]
    judged = comparison.judge
    if judged is not None:
        tables.append(verdict_tables.verdict_table(judged[1], by, depth=shown, folded=folded))
    tables.append(unmatched_table(comparison))
    memory = comparison.memory.joined
    if memory is not None:
        tables += compare_memory_tables.memory_tables(memory, comparison.a.ledger.header.model)
    matched = sum(op.kind != "view" for op in comparison.a.ledger.ops) - len(comparison.only_a)
    if comparison.whys:
        summary.append(f"why: {'; '.join(why_tables.why_lines(comparison))}")
    if judged is not None:
        summary.append(f"verdict on {judged[0]}: {verdict_text.step_line(judged[1].step())}")
        if judged[1].cell is not None:
            summary.append(f"memory of {judged[0]}: {fit_text(judged[1].fit)}")
    differences = [f"{found.name} {found.a} | {found.b}" for found in comparison.differences()]
    if differences:
        summary.append(f"not the same (A | B): {'; '.join(differences)}")
    aligned = comparison.alignment.by_family
    others = f" ({len(aligned):,} of them by what they do, under another name)" if aligned else ""
    notes = [
        f"{matched:,} ops, views apart, are in both{others}; {len(comparison.only_a):,} only in A, "
        f"{len(comparison.only_b):,} only in B"
    ]
    executions = comparison.a.ledger.header.execution, comparison.b.ledger.header.execution
    notes += _uncounted(comparison)
    notes += [judged[1].otherwise] if judged is not None and judged[1].otherwise else []
    notes += verdict_tables.advice_lines(judged[1], by, depth=shown, folded=folded) if judged is not None else []
    notes += compare_memory_tables.memory_notes(comparison.memory, executions)
    notes += [
        f"{name}: {ledger_documents.coverage(side.ledger)}"
        for name, side in _named(comparison)
        if total(side.ledger.ops).uncounted
    ]
    notes += [f"{name}: {line}" for name, side in _named(comparison) if (line := measure_text.attribution(side))]
    notes += [f"{name}: note: {note}" for name, side in _named(comparison) for note in side.ledger.header.notes]
    small = [f"{name}: {ledger_documents.provenance(side.ledger)}" for name, side in _named(comparison)]
    if comparison.flops_basis[0] != comparison.flops_basis[1]:
        small.append("useful = matrix work by formula; executed = all FLOPs counted in the ops that have matrix work")
    if memory is not None and memory.partings():
        small.append(compare_memory_tables.CONVENTIONS)
    if comparison.whys:
        small.append(why_tables.CONVENTIONS)
    return Document(
        title="A against B",
        lines=tuple(summary),
        sections=table_sections(tables),
        notes=tuple(notes),
        small_print=(*small, CONVENTIONS),
        rows=lambda: row_table(comparison, by, depth=depth, folded=False),
        data=lambda: compare_data(comparison, by),
    )


def _how(comparison: Comparison) -> str:
    judge = None if comparison.judge is None else comparison.judge[1]
    return "" if judge is None or judge.predictor is None else f"{judge.step().predictor}, on {judge.device_title}"


def _uncounted(comparison: Comparison) -> list[str]:
    """What a reader would take for counted, and is not."""
    found = []
    for name, side, flops in zip("AB", (comparison.a, comparison.b), comparison.flops_basis, strict=True):
        if side.origin == "predicted":
            found.append(f"{name} is predicted: {_how(comparison)}")
        elif not is_measured(side.ledger):
            found.append(f"{name} is an estimate: values by formula")
        elif flops == "useful" and side.ledger.ops:
            found.append(
                f"{name}: nothing counted FLOPs or bytes there: those of its rows are by formula, as an "
                "estimate's; only times and memory were measured"
            )
    return found


def _named(comparison: Comparison) -> tuple[tuple[str, Measured], tuple[str, Measured]]:
    return ("A", comparison.a), ("B", comparison.b)


def compare_data(comparison: Comparison, by: By = "module") -> dict[str, Any]:
    """Raw numbers; unknown is null; ratios are B by A."""
    judged = comparison.judge
    return {
        **{name.lower(): _side(side) for name, side in _named(comparison)},
        "differences": {found.name: {"a": found.a, "b": found.b} for found in comparison.differences()},
        "totals": [
            {"name": line.name, "unit": line.unit, "a": line.a, "b": line.b, "ratio": line.ratio}
            for line in comparison.totals()
        ],
        "basis": {
            "flops": dict(zip("ab", comparison.flops_basis, strict=True)),
            "bytes": dict(zip("ab", comparison.bytes_basis, strict=True)),
        },
        "rows": [_row(row) for row in comparison.rows(by)],
        "unmatched": {module: {"a": dict(a), "b": dict(b)} for module, (a, b) in comparison.unmatched().items()},
        "memory": compare_memory_tables.memory_data(comparison.memory),
        "why": why_tables.why_data(comparison),
        "verdicts": None if judged is None else _verdicts(*judged, by),
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
        "name": row.name,
        "type": row.type,
        "depth": row.depth,
        "a": None if row.a is None else msgspec.to_builtins(row.a),
        "b": None if row.b is None else msgspec.to_builtins(row.b),
        "time_ratio": row.ratio_of(lambda side: side.time_s),
        "flops_ratio": row.ratio_of(lambda side: side.flops),
        "bytes_ratio": row.ratio_of(lambda side: side.bytes),
        "unexplained_flops": why_tables.unexplained(row.why),
        "causes": {} if row.why is None else {cause.name: cause.amount for cause in row.why.causes},
    }
