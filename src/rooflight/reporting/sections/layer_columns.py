"""The columns of a layer, each once: in the table of a terminal or a file, in the tree of a page, and in JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Generic, Literal

import msgspec

from rooflight import formatting, summary
from rooflight.analysis.inferred_counts import InferredOp, inferred_step
from rooflight.formatting import giga, tera, whole_count
from rooflight.ledger import QUANTITIES, Ledger, Totals, total
from rooflight.metrics import ratio
from rooflight.reporting.columns import CATALOGUE, column
from rooflight.reporting.table import Cells, Column, RowT
from rooflight.summary import SummaryRow
from rooflight.summary.measured import Measured
from rooflight.summary.measured_rows import MeasuredRow

Side = Literal["estimate", "measurement", "prediction", "both"]


@dataclass(frozen=True)
class LayerColumn(Generic[RowT]):
    """What a column shows of a row, and where it stands."""

    value: Callable[[RowT], Any]
    table: Column | None = None
    """In the table of a terminal or a file; `None`: not there."""
    page: Column | None = None
    """In the tree of a page; `None`: not there."""
    place: int = 0
    """The columns of a page stand in the order of these."""
    side: Side | None = None
    """Whose value a page calls it; `None`: of who tells the times, a measurement or a prediction."""
    cost: bool = False
    """In a table, a row of which nothing is known has none: that is not zero."""
    sparse: bool = False
    """A page leaves zeros and empty words out."""
    when: Callable[[Ledger], Any] = lambda _: True
    """The ledgers whose tables have it."""

    def on_page(self, row: RowT) -> Any:
        value = self.value(row)
        return value or None if self.sparse else value


def shown(name: str, heading: str = "", *, optional: int = 0) -> Column:
    """In the tables of an estimate a file has the same headings as the screen."""
    return column(name, heading=heading, optional=optional, raw=heading or CATALOGUE[name].name)


def uncounted(sums: Totals) -> int:
    """Ops without a formula."""
    return sum(entry.calls for entry in sums.uncounted)


def is_unknown_cost(row: SummaryRow) -> bool:
    """No op of it has a formula."""
    missing = uncounted(row.totals)
    return bool(missing) and missing == row.totals.ops


def _is_training(ledger: Ledger) -> bool:
    return ledger.header.step == "train"


def _estimate(
    name: str,
    value: Callable[[SummaryRow], Any],
    heading: str = "",
    *,
    optional: int = 0,
    place: int = 0,
    cost: bool = True,
    sparse: bool = False,
    when: Callable[[Ledger], Any] = lambda _: True,
) -> LayerColumn[SummaryRow]:
    """A column of the catalogue; with a `place` it is on a page too."""
    page = CATALOGUE[name] if place else None
    table = shown(name, heading, optional=optional)
    return LayerColumn(value, table, page, place, side="estimate", cost=cost, sparse=sparse, when=when)


OF_MODULES: tuple[LayerColumn[SummaryRow], ...] = (
    LayerColumn(
        lambda row: row.type,
        column("type", optional=4),
        column("type", about="the module's class; of an op its phase"),
        place=10,
        side="both",
        sparse=True,
    ),
    LayerColumn(
        lambda row: row.output,
        column("output", optional=2),
        replace(column("output"), right=False),
        place=50,
        side="estimate",
    ),
    replace(_estimate("params", lambda row: row.params, cost=False, sparse=True, place=51), table=column("params")),
    _estimate(
        "params",
        lambda row: row.trainable_params,
        "trainable",
        cost=False,
        when=lambda ledger: summary.trainable_params(ledger) != summary.params(ledger),
    ),
)
"""What only modules have."""
ESTIMATED: tuple[LayerColumn[SummaryRow], ...] = (
    _estimate("macs", lambda row: row.totals.macs, optional=1, place=52),
    _estimate("flops", lambda row: row.totals.flops, place=11, when=lambda ledger: not _is_training(ledger)),
    _estimate("flops", lambda row: row.forward.flops, "fwd FLOPs", when=_is_training),
    _estimate("flops", lambda row: row.backward.flops, "bwd FLOPs", when=_is_training),
    _estimate(
        "recompute_flops",
        lambda row: row.totals.recompute_flops,
        place=54,
        sparse=True,
        when=lambda ledger: total(ledger.ops).recompute_flops,
    ),
    _estimate("other_flops", lambda row: row.totals.other_flops, "other", optional=5, place=53),
    _estimate("bytes", lambda row: row.totals.bytes, place=12),
    LayerColumn(
        lambda row: uncounted(row.totals),
        Column("uncounted", formatting.exact),
        when=lambda ledger: total(ledger.ops).uncounted,
    ),
    _estimate("intensity", lambda row: row.totals.intensity, optional=3, place=13, cost=False),
    _estimate("share", lambda row: row.share),
)
"""What formulas say of any row."""


def estimate_cells(columns: Iterable[LayerColumn[SummaryRow]], ledger: Ledger) -> Cells[SummaryRow]:
    """Those that the table of a ledger has."""

    def known(value: Callable[[SummaryRow], Any]) -> Callable[[SummaryRow], Any]:
        return lambda row: None if is_unknown_cost(row) else value(row)

    return [
        (entry.table, known(entry.value) if entry.cost else entry.value)
        for entry in columns
        if entry.table is not None and entry.when(ledger)
    ]


def estimate_fields(row: SummaryRow) -> dict[str, Any]:
    """A row for programs: the fields that it always had, and the columns that came later under their names."""
    fields = {
        "path": row.name,
        "kind": row.kind,
        **{name: getattr(row, name) for name in ("type", "depth", "calls", "output", "params", "trainable_params")},
        **sum_fields(row.totals),
        "share": row.share,
        "forward_flops": row.forward.flops,
        "backward_flops": row.backward.flops,
        "uncounted": msgspec.to_builtins(row.totals.uncounted),
    }
    named = {entry.page.raw: entry.value for entry in ESTIMATED if entry.page is not None}
    return fields | {name: value(row) for name, value in named.items() if name not in fields}


def sum_fields(sums: Totals) -> dict[str, Any]:
    return {name: getattr(sums, name) for name in (*QUANTITIES, "bytes", "intensity")}


def quantity(name: str, heading: str = "", *, optional: int = 0) -> LayerColumn[MeasuredRow]:
    """A quantity of the ledger, under its own name where values stand as they are."""
    return LayerColumn(lambda row: row.sums.get(name), column(name, heading=heading, optional=optional))


def rate_of(ledger: Ledger) -> tuple[str, Callable[[Any], str]]:
    """A GPU is spoken of in TFLOP/s, a CPU in GFLOP/s."""
    return ("GFLOP/s", giga) if ledger.header.target == "cpu" else ("TFLOP/s", tera)


def _estimated(value: Callable[[MeasuredRow], Any]) -> Callable[[MeasuredRow], Any]:
    """Nothing is known of ops without a formula, nor of what is no group of ops; a module that ran nothing cost 0."""

    def known(row: MeasuredRow) -> Any:
        nothing = not row.estimate.totals.ops and (not row.estimate.type or row.estimate.kind == "fused")
        return None if nothing or is_unknown_cost(row.estimate) else value(row)

    return known


def measured_columns(measured: Measured, times: str = "") -> list[LayerColumn[MeasuredRow]]:
    """Time, work and traffic. The number is the order in which columns go when the terminal is narrow.

    `times`: what a page says of times that were predicted.
    """
    of_cpu = measured.total.get("kernel_time_s") is None and not times
    time = column("host_time_s" if of_cpu else "kernel_time_s", heading="time")
    about = "part of the time of all ops"
    return [
        LayerColumn(lambda row: row.sums.time_s, None, replace(time, about=time.about + times), place=20),
        quantity("kernel_time_s"),
        quantity("host_time_s", "CPU time"),
        LayerColumn(lambda row: row.share, column("share", optional=3), column("share", about=about), place=21),
        *_work_and_traffic(counted=measured.total.executed_flops is not None),
        *_inferred(measured),
        *_rates(measured),
        quantity("growth_bytes", optional=11),
        quantity("workspace_bytes", optional=10),
    ]


def _work_and_traffic(*, counted: bool) -> list[LayerColumn[MeasuredRow]]:
    """`counted`: all that was executed; else a page has none of it."""

    def on_page(name: str, heading: str = "") -> Column | None:
        return column(name, heading=heading) if counted else None

    return [
        LayerColumn(_estimated(lambda row: row.estimate.totals.flops), column("flops", heading="useful")),
        LayerColumn(
            lambda row: row.sums.executed_flops,
            page=on_page("executed_flops", "executed"),
            place=30,
            side="measurement",
        ),
        LayerColumn(lambda row: row.sums.tensor_flops, Column("tensor", whole_count, raw="tensor_flops")),
        LayerColumn(lambda row: row.sums.cuda_flops, Column("CUDA core", whole_count, optional=2, raw="cuda_flops")),
        LayerColumn(
            lambda row: row.sums.executed_per_useful,
            shown("executed_per_useful", optional=4),
            on_page("executed_per_useful"),
            place=31,
            side="both",
        ),
        quantity("dram_bytes_read", "DRAM read", optional=1),
        quantity("dram_bytes_written", "written", optional=2),
        LayerColumn(lambda row: row.sums.dram_bytes, page=on_page("dram_bytes"), place=33, side="measurement"),
        LayerColumn(
            _estimated(lambda row: row.estimate.totals.bytes), column("bytes", heading="compulsory", optional=8)
        ),
        LayerColumn(
            lambda row: row.sums.dram_per_compulsory,
            shown("dram_per_compulsory", optional=7),
            on_page("dram_per_compulsory"),
            place=34,
            side="both",
        ),
        quantity("l2_bytes", "L2", optional=9),
        quantity("l1_bytes", "L1", optional=9),
    ]


def _inferred(measured: Measured) -> list[LayerColumn[MeasuredRow]]:
    """Beside nothing that was counted, and headed so that nobody takes it for that."""
    sums = inferred_step(measured)
    if sums is None:
        return []

    def of(pick: Callable[[InferredOp], float | None]) -> Callable[[MeasuredRow], float | None]:
        return lambda row: sums.of(row.group.ops, pick)

    flops, traffic = column("inferred_flops", optional=1), column("inferred_dram_bytes", optional=2)
    return [
        LayerColumn(of(lambda one: one.executed), flops, flops, place=30, side="measurement"),
        LayerColumn(of(lambda one: one.dram_bytes), traffic, traffic, place=33, side="measurement"),
    ]


def _rates(measured: Measured) -> list[LayerColumn[MeasuredRow]]:
    counted = measured.total.executed_flops is not None
    # Beside the executed FLOPs of some units (a CUDA graph's tensor cores) it must be said which the rate is of.
    partly = not counted and measured.total.tensor_flops is not None
    unit, write = rate_of(measured.ledger)
    heading, raw = f"useful {unit}" if partly else unit, "executed_flops_per_s" if counted else "flops_per_s"
    useful = _estimated(lambda row: ratio(row.estimate.totals.flops, row.sums.time_s))
    traffic = column("dram_bytes_per_s", heading="GB/s", write=giga, optional=5)
    return [
        LayerColumn(
            (lambda row: row.sums.executed_flops_per_s) if counted else useful,
            Column(heading, write, optional=6, raw=raw),
        ),
        LayerColumn(lambda row: row.sums.dram_bytes_per_s, traffic),
    ]
