"""The report of two ledgers side by side: what differs, in which layers, and why."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rooflight.analysis.comparison.sides import Comparison, Figures, PairRow
from rooflight.formatting import quotient, seconds, whole_bytes, whole_count
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import LOSS, OPTIMIZER, Ledger
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.lanes import lanes_chart
from rooflight.reporting.charts.roofline import roofline_chart
from rooflight.reporting.charts.shares import shares_chart
from rooflight.reporting.columns import column
from rooflight.reporting.document import Document, Fact, Section, filled
from rooflight.reporting.report.origins import origins_section
from rooflight.reporting.report.tree import Details, Tree, TreeColumn, details_of
from rooflight.reporting.sections import compare_memory_tables, compare_tables, ledger_documents, why_tables
from rooflight.reporting.sections.why_tables import mainly
from rooflight.reporting.table import Column, Table
from rooflight.spec import shell
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import NO_OP, SEVERAL
from rooflight.summary.measured_rows import rows as summed

_WRITTEN: dict[str, Callable[[Any], str]] = {"second": seconds, "byte": whole_bytes, "flop": whole_count}
_FIRST = ("wall time", "GPU-busy", "useful FLOPs", "allocated at the peak")


def pair_report(a: Ledger, b: Ledger, *, sources: tuple[str, str], devices: Sequence[Device]) -> Document:
    comparison = Comparison(a, b)
    page = compare_tables.compare_document(comparison, depth=1)
    title = a.header.model if a.header.model == b.header.model else f"{a.header.model} and {b.header.model}"
    sections = [
        Section(
            "totals", "The whole step", tables=filled(compare_tables.totals_table(comparison), _differences(comparison))
        ),
        Section(
            "layers",
            "Layers",
            tree=_tree(comparison),
            lines=("B/A under 1: B is less.",),
            plain=compare_tables.row_table(comparison, depth=2),
        ),
        _why(comparison),
        *_drawn(comparison, devices),
        _memory(comparison),
        Section(
            "unmatched",
            "Ops that only one side has",
            lines=page.notes,
            tables=filled(compare_tables.unmatched_table(comparison)),
        ),
        *(
            _origin(name, side.ledger, source)
            for name, side, source in zip("AB", (comparison.a, comparison.b), sources, strict=True)
        ),
    ]
    both = shlex.split(" ".join(sources))
    commands = (shell("report", *both, output="report.html"), shell("compare", *both)) if all(sources) else ()
    again = Section("repeat", "How to repeat it", small_print=page.small_print, commands=commands)
    return Document(
        title=f"{title}: A against B",
        subtitle=f"A: {ledger_documents.headline(a)} | B: {ledger_documents.headline(b)}",
        facts=tuple(_facts(comparison)),
        lines=page.lines,
        sections=(*(one for one in sections if one is not None), again),
        details=_derivations(a),
        rows=lambda: compare_tables.row_table(comparison, folded=False),
        data=page.data,
    )


def _derivations(a: Ledger) -> Details | None:
    """How A's rows are derived; kernels and causes are each side's own, and not of the pair."""
    return None if not a.ops else replace(details_of(a, None), kernels_of={}, lines=(), texts=())


def _facts(comparison: Comparison) -> Iterator[Fact]:
    for line in comparison.totals():
        if line.name.partition(":")[0] in _FIRST and line.a is not None and line.b is not None:
            write = _WRITTEN.get(line.unit, whole_count)
            yield Fact(f"{line.name}, B/A", quotient(line.ratio), f"A {write(line.a)} · B {write(line.b)}")


def _differences(comparison: Comparison) -> Table:
    columns = (column("what"), Column("A", right=False), Column("B", right=False))
    return Table("Not the same", columns, tuple((one.name, one.a, one.b) for one in comparison.differences()))


def _why(comparison: Comparison) -> Section | None:
    tables = tuple(why_tables.why_table(one).titled(one.quantity) for one in comparison.whys)
    if not tables:
        return None
    return Section(
        "why",
        "Why they differ",
        lines=tuple(why_tables.why_lines(comparison)),
        tables=tables,
        small_print=(why_tables.CONVENTIONS,),
    )


def _drawn(comparison: Comparison, devices: Sequence[Device]) -> Iterator[Section]:
    """The same chart of both sides, below one another."""
    made: list[tuple[str, str, Callable[[Ledger], Chart | None]]] = [
        ("roofline", "Rooflines", lambda ledger: roofline_chart(ledger, on=_device(ledger, devices))),
        ("lanes", "The steps over time", lambda ledger: lanes_chart(ledger) if is_measured(ledger) else None),
        ("shares", "Shares by type of layer", shares_chart),
    ]
    for name, title, draw in made:
        charts = tuple(
            replace(chart, name=f"{chart.name}-{side.lower()}", title=f"{side}: {chart.title}")
            for side, of in (("A", comparison.a), ("B", comparison.b))
            if (chart := draw(of.ledger)) is not None
        )
        if charts:
            yield Section(name, title, charts=charts)


def _device(ledger: Ledger, devices: Sequence[Device]) -> Device:
    known = recognise_name(ledger.header.device)
    return known if known is not None and known.kind == "gpu" else devices[0]


def _memory(comparison: Comparison) -> Section | None:
    joined = comparison.memory.joined
    if joined is None:
        return None
    tables = compare_memory_tables.memory_tables(joined, comparison.a.ledger.header.model)
    return Section("memory", "Memory", tables=filled(*tables), small_print=(compare_memory_tables.CONVENTIONS,))


def _origin(name: str, ledger: Ledger, source: str) -> Section:
    found = origins_section(ledger, Measured(ledger), source, ())
    return replace(found, name=f"origins-{name.lower()}", title=f"Origins of {name}")


def _tree(comparison: Comparison) -> Tree:
    rows = comparison.rows()
    own = {row.name: row.own.ops for row in summed(comparison.a)}
    place = {row.name: number for number, row in enumerate(rows)}
    special = (LOSS, OPTIMIZER, SEVERAL, NO_OP, "")
    parents = tuple(None if row.name in special else place.get(row.name.rpartition(".")[0]) for row in rows)
    model = comparison.a.ledger.header.model
    names = tuple(
        model if not row.name else row.name if row.name in special else row.name.rpartition(".")[2] for row in rows
    )
    columns = [column for column in _columns(comparison, rows) if any(value is not None for value in column.values)]
    ops = tuple(own.get(row.name, ()) for row in rows)
    paths = tuple(row.name for row in rows)
    return Tree(names, paths, tuple("module" for _ in rows), parents, ops, tuple(columns))


def _columns(comparison: Comparison, rows: Sequence[PairRow]) -> Iterator[TreeColumn]:
    def made(shown: Column, value: Callable[[PairRow], Any]) -> TreeColumn:
        return TreeColumn(shown, "both", tuple(value(row) for row in rows))

    yield made(column("type", about="the module's class"), lambda row: row.type or None)
    picks: list[tuple[str, str, tuple[str, str], Callable[[Figures], Any]]] = [
        ("kernel_time_s", "time", ("of its kernels or calls",) * 2, lambda side: side.time_s),
        ("flops", "FLOPs", comparison.flops_basis, lambda side: side.flops),
        ("bytes", "bytes", comparison.bytes_basis, lambda side: side.bytes),
    ]
    for metric, title, basis, pick in picks:
        for side, name in enumerate("AB"):
            about = f"{title} of {name}: {basis[side]}"
            yield made(column(metric, heading=f"{title} {name}", about=about), _of(side, pick))
        yield made(Column("B/A", quotient, raw=f"{metric}_ratio", about=f"{title} of B by that of A"), _ratio(pick))
    yield made(
        Column("mainly because of", right=False, about="the largest cause of what was executed"),
        lambda row: mainly(row.why) or None,
    )
    yield made(
        column(
            "unexplained", write=compare_tables.signed_share, about="part of the useful FLOPs that no cause explains"
        ),
        lambda row: why_tables.unexplained(row.why),
    )


def _of(side: int, pick: Callable[[Figures], Any]) -> Callable[[PairRow], Any]:
    def value(row: PairRow) -> Any:
        figures = (row.a, row.b)[side]
        return None if figures is None else pick(figures)

    return value


def _ratio(pick: Callable[[Figures], Any]) -> Callable[[PairRow], Any]:
    return lambda row: row.ratio_of(pick)
