"""The report of two ledgers side by side: what differs, in which layers, and why."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rooflight.analysis.comparison.sides import Comparison, Difference, PairRow
from rooflight.formatting import quotient
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Ledger
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.lanes import lanes_chart
from rooflight.reporting.charts.roofline import roofline_chart
from rooflight.reporting.charts.shares import shares_chart
from rooflight.reporting.charts.waterfall import waterfall_chart
from rooflight.reporting.columns import column
from rooflight.reporting.document import Document, Fact, Section, filled
from rooflight.reporting.report.origins import origins_section
from rooflight.reporting.report.step_rows import steps_of_ledger
from rooflight.reporting.report.steps_report import roofline_section
from rooflight.reporting.report.tree import Details, Tree, TreeColumn, details_of, node_of, own_ops
from rooflight.reporting.sections import (
    bridge_tables,
    compare_memory_tables,
    compare_tables,
    ledger_documents,
    why_tables,
)
from rooflight.reporting.sections.why_tables import why_section
from rooflight.reporting.table import Cells, Column, Table, table_of
from rooflight.spec import shell
from rooflight.summary.measured import Measured, is_measured
from rooflight.summary.measured_rows import rows as summed

_FIRST = ("wall time", "GPU-busy", "useful FLOPs", "allocated at the peak")


def pair_report(a: Ledger, b: Ledger, *, sources: tuple[str, str], devices: Sequence[Device]) -> Document:
    comparison = Comparison(a, b)
    page = compare_tables.compare_document(comparison, depth=1)
    title = a.header.model if a.header.model == b.header.model else f"{a.header.model} and {b.header.model}"
    sections = [
        Section(
            "totals", "The whole step", tables=filled(compare_tables.totals_table(comparison), _differences(comparison))
        ),
        _why(comparison) if comparison.bridges else None,
        Section(
            "layers",
            "Layers",
            tree=_tree(comparison),
            lines=("B/A under 1: B is less.",),
            plain=compare_tables.row_table(comparison, depth=2),
        ),
        None if comparison.bridges else _why(comparison),
        _common(comparison, sources, devices),
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
        sections=(*(section for section in sections if section is not None), again),
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
            write = why_tables.WRITTEN[line.unit]
            yield Fact(f"{line.name}, B/A", quotient(line.ratio), f"A {write(line.a)} · B {write(line.b)}")


def _differences(comparison: Comparison) -> Table:
    columns: Cells[Difference] = [
        (column("what"), lambda difference: difference.name),
        (Column("A", right=False), lambda difference: difference.a),
        (Column("B", right=False), lambda difference: difference.b),
    ]
    return table_of(columns, comparison.differences(), title="Not the same")


def _why(comparison: Comparison) -> Section | None:
    """From one run to another; an estimate beside a run by what makes the run differ from the formula."""
    if comparison.bridges:
        chart = waterfall_chart(comparison)
        return Section(
            "why",
            "From A to B",
            lines=tuple(bridge_tables.bridge_sentences(comparison)),
            charts=() if chart is None else (chart,),
            tables=tuple(bridge_tables.bridge_tables(comparison)),
            small_print=(bridge_tables.CONVENTIONS,),
        )
    if not comparison.whys:
        return None
    of = compare_tables.why_title(comparison)
    title = of[:1].upper() + of[1:] if of else "Why they differ"
    return replace(why_section(comparison), name="why", title=title)


def _common(comparison: Comparison, sources: tuple[str, str], devices: Sequence[Device]) -> Section | None:
    """Both on one roofline: where they ran; an estimate as predicted where the other one ran."""
    ledgers = (comparison.a.ledger, comparison.b.ledger)
    sides = zip(ledgers, sources, strict=True)
    measured = [_device(ledger, devices) for ledger in ledgers if is_measured(ledger)]
    devices = list({device.name: device for device in measured}.values()) or devices
    steps = [step for ledger, source in sides for step in steps_of_ledger(ledger, source, devices)[0]]
    section = roofline_section(steps, "Both on one roofline")
    return replace(section, name="both") if section.charts else None


def _drawn(comparison: Comparison, devices: Sequence[Device]) -> Iterator[Section]:
    """The same chart of both sides, below one another."""
    drawings: list[tuple[str, str, Callable[[Ledger], Chart | None]]] = [
        ("roofline", "Rooflines", lambda ledger: roofline_chart(ledger, on=_device(ledger, devices))),
        ("lanes", "The steps over time", lambda ledger: lanes_chart(ledger) if is_measured(ledger) else None),
        ("shares", "Shares by type of layer", shares_chart),
    ]
    for name, title, draw in drawings:
        charts = tuple(
            replace(chart, name=f"{chart.name}-{side.lower()}", title=f"{side}: {chart.title}")
            for side, of in (("A", comparison.a), ("B", comparison.b))
            if (chart := draw(of.ledger)) is not None
        )
        if charts:
            yield Section(name, title, charts=charts)


def _device(ledger: Ledger, devices: Sequence[Device]) -> Device:
    ran_on = recognise_name(ledger.header.device)
    return ran_on if ran_on is not None and ran_on.kind == "gpu" else devices[0]


def _memory(comparison: Comparison) -> Section | None:
    joined = comparison.memory.joined
    if joined is None:
        return None
    tables = compare_memory_tables.memory_tables(joined, comparison.a.ledger.header.model)
    return Section("memory", "Memory", tables=filled(*tables), small_print=(compare_memory_tables.CONVENTIONS,))


def _origin(name: str, ledger: Ledger, source: str) -> Section:
    section = origins_section(ledger, Measured(ledger), source, ())
    return replace(section, name=f"origins-{name.lower()}", title=f"Origins of {name}")


def _tree(comparison: Comparison) -> Tree:
    rows = comparison.rows()
    of_a = summed(comparison.a)
    ops_of = {row.name: ops for row, ops in zip(of_a, own_ops(of_a), strict=True)}
    place = {row.name: number for number, row in enumerate(rows)}
    nodes = [node_of(row.name, comparison.a.ledger.header.model, place) for row in rows]
    names, parents = tuple(name for name, _ in nodes), tuple(parent for _, parent in nodes)
    columns = [TreeColumn(shown, "both", tuple(map(value, rows))) for shown, value in _columns(comparison)]
    filled_columns = (shown for shown in columns if any(cell is not None for cell in shown.values))
    ops = tuple(ops_of.get(row.name, ()) for row in rows)
    paths = tuple(row.name for row in rows)
    return Tree(names, paths, tuple("module" for _ in rows), parents, ops, tuple(filled_columns))


def _columns(comparison: Comparison) -> Iterator[tuple[Column, Callable[[PairRow], Any]]]:
    yield column("type", about="the module's class"), lambda row: row.type or None
    bases = (("of its kernels or calls",) * 2, comparison.flops_basis, comparison.bytes_basis)
    for quantity, basis in zip(compare_tables.COMPARED.values(), bases, strict=True):
        title, metric = quantity.title, quantity.metric
        for name, kind, value in (("A", basis[0], quantity.of("a")), ("B", basis[1], quantity.of("b"))):
            yield column(metric, heading=f"{title} {name}", about=f"{title} of {name}: {kind}"), value
        yield Column("B/A", quotient, raw=f"{metric}_ratio", about=f"{title} of B by that of A"), quantity.ratio
    if comparison.bridges:
        return
    cause = Column("mainly because of", right=False, about="the largest cause of what was executed")
    yield cause, lambda row: why_tables.mainly(row.why) or None
    about = "part of the useful FLOPs that no cause explains"
    shown = column("unexplained", write=compare_tables.signed_share, about=about)
    yield shown, lambda row: why_tables.unexplained(row.why)
