"""The tables of an estimate: the module tree or another grouping, totals, phases, shares by type, memory."""

from __future__ import annotations

from collections.abc import Callable

from rooflight import formatting, summary
from rooflight.ledger import Ledger, Totals, total
from rooflight.reporting.columns import CATALOGUE, column
from rooflight.reporting.sections.layer_rows import fold, layer_label
from rooflight.reporting.table import Column, Label, Table, table_of
from rooflight.summary import By, SummaryRow


def main_table(ledger: Ledger, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """The rows the user asked for, and the total they sum to."""
    rows = summary.rows(ledger, by)
    if by == "module":
        rows = fold(rows) if folded else rows
        rows = [row for row in rows if depth is None or row.depth <= depth]
    everything = total(ledger.ops)
    calls = sum(row.calls for row in rows)
    whole = SummaryRow(
        "total",
        "",
        0,
        calls,
        None,
        summary.params(ledger),
        summary.trainable_params(ledger),
        everything,
        *_phases(ledger),
        1.0,
    )
    columns = _module_columns(ledger) if by == "module" else _group_columns(by)
    columns += _cost_columns(ledger, everything)
    return table_of(columns, [*rows, whole], has_total=True)


_Columns = list[tuple[Column, Callable[[SummaryRow], object]]]


def _module_columns(ledger: Ledger) -> _Columns:
    columns: _Columns = [
        (column("layer"), lambda row: _label(row, ledger)),
        (column("type", optional=4), lambda row: row.type),
        (column("output", optional=2), lambda row: row.output),
        (column("params"), lambda row: row.params),
    ]
    if summary.trainable_params(ledger) != summary.params(ledger):
        columns.append((_shown("params", "trainable"), lambda row: row.trainable_params))
    return columns


def _group_columns(by: By) -> _Columns:
    return [
        (Column(by, right=False), lambda row: row.name),
        (Column("calls" if by == "op" else "ops", formatting.exact), lambda row: row.calls),
    ]


def _cost_columns(ledger: Ledger, everything: Totals) -> _Columns:
    columns = [_cost("macs", lambda row: row.totals.macs, optional=1)]
    if ledger.header.step == "train":
        columns.append(_cost("flops", lambda row: row.forward.flops, "fwd FLOPs"))
        columns.append(_cost("flops", lambda row: row.backward.flops, "bwd FLOPs"))
    else:
        columns.append(_cost("flops", lambda row: row.totals.flops))
    if everything.recompute_flops:
        columns.append(_cost("recompute_flops", lambda row: row.totals.recompute_flops))
    columns.append(_cost("other_flops", lambda row: row.totals.other_flops, "other", optional=5))
    columns.append(_cost("bytes", lambda row: row.totals.bytes))
    if everything.uncounted:
        columns.append((Column("uncounted", formatting.exact), lambda row: sum(e.calls for e in row.totals.uncounted)))
    columns.append((_shown("intensity", optional=3), lambda row: row.totals.intensity))
    columns.append(_cost("share", lambda row: row.share))
    return columns


def _shown(name: str, heading: str = "", *, optional: int = 0) -> Column:
    """A file has the same headings as the screen here."""
    return column(name, heading=heading, optional=optional, raw=heading or CATALOGUE[name].name)


def _cost(
    name: str, value: Callable[[SummaryRow], object], heading: str = "", *, optional: int = 0
) -> tuple[Column, Callable[[SummaryRow], object]]:
    """A column of costs. A row of which nothing is known has none: that is not zero."""

    def known(row: SummaryRow) -> object:
        missing = sum(entry.calls for entry in row.totals.uncounted)
        return None if missing and missing == row.totals.ops else value(row)

    return _shown(name, heading, optional=optional), known


def _phases(ledger: Ledger) -> tuple[Totals, Totals]:
    phases = summary.totals_by_phase(ledger)
    return phases.get("forward", Totals()), phases.get("backward", Totals())


def _label(row: SummaryRow, ledger: Ledger) -> Label:
    return layer_label(row.name, row.depth, ledger.header.model)


def phase_table(ledger: Ledger) -> Table:
    """Forward, backward and optimizer apart."""
    phases = summary.totals_by_phase(ledger)
    columns = (
        column("phase"),
        column("ops"),
        _shown("macs"),
        _shown("flops"),
        _shown("recompute_flops", optional=2),
        _shown("other_flops", "other", optional=1),
        _shown("bytes_read", "bytes read"),
        _shown("bytes_written", "bytes written"),
        _shown("intensity", optional=3),
    )
    sums = {**phases, "step": total(ledger.ops)}
    rows = tuple(
        (name, s.ops, s.macs, s.flops, s.recompute_flops, s.other_flops, s.bytes_read, s.bytes_written, s.intensity)
        for name, s in sums.items()
    )
    return Table("phases" + _without(ledger), columns, rows, frozenset({len(rows) - 1}))


def total_table(ledger: Ledger, *, epochs: int | None = None, dataset_size: int | None = None) -> Table:
    """Totals per step, per sample and per token, and for a whole training run when asked."""
    sums = total(ledger.ops)
    scopes: list[tuple[str, float]] = [("step", 1)]
    if samples := summary.samples(ledger):
        scopes.append(("sample", 1 / samples))
    if tokens := summary.tokens(ledger):
        scopes.append(("token", 1 / tokens))
    if steps := run_steps(ledger, epochs=epochs, dataset_size=dataset_size):
        scopes.append((f"run of {steps:,} steps", steps))
    columns = (
        Column("per", right=False),
        _shown("macs"),
        _shown("flops"),
        _shown("flops_causal", "causal FLOPs"),
        _shown("other_flops", "other"),
        column("bytes"),
    )
    rows = tuple(
        (
            name,
            *(
                _scaled(value, scale)
                for value in (sums.macs, sums.flops, sums.flops_causal, sums.other_flops, sums.bytes)
            ),
        )
        for name, scale in scopes
    )
    return Table("totals" + _without(ledger), columns, rows)


def _without(ledger: Ledger) -> str:
    """What a title says of the ops that its sums do not cover."""
    missing = sum(entry.calls for entry in total(ledger.ops).uncounted)
    return f", without {missing:,} ops that have no formula" if missing else ""


def _scaled(value: int, scale: float) -> int | float:
    scaled = value * scale
    return round(scaled) if abs(scaled - round(scaled)) < 1e-6 * max(1.0, abs(scaled)) else scaled


def run_steps(ledger: Ledger, *, epochs: int | None, dataset_size: int | None) -> int | None:
    """Steps of a whole run: the last, smaller batch of an epoch is a step too."""
    samples = summary.samples(ledger)
    if not epochs or not dataset_size or not samples:
        return None
    return epochs * -(-dataset_size // samples)


def type_table(ledger: Ledger, *, limit: int = 6) -> Table:
    """The share of matrix FLOPs by layer type."""
    rows = [row for row in summary.rows(ledger, "type") if row.totals.flops or row.totals.recompute_flops][:limit]
    columns = (
        Column("layer type", right=False),
        _shown("macs"),
        _shown("flops"),
        column("bytes"),
        column("share"),
    )
    cells = tuple((row.name, row.totals.macs, row.totals.flops, row.totals.bytes, row.share) for row in rows)
    return Table("FLOPs by layer type", columns, cells)


def memory_table(ledger: Ledger) -> Table:
    """Bytes by category. The peak, which is no sum of these, needs the allocator's rules."""
    sizes = summary.sizes(ledger)
    lines: list[tuple[str, int | None]] = [
        ("parameters", sizes.param_bytes),
        ("buffers", sizes.buffer_bytes),
        ("KV cache and inputs" if ledger.header.step == "decode" else "inputs", sizes.input_bytes),
        ("outputs", sum(tensor.nbytes for tensor in set(ledger.header.outputs))),
        ("outputs of all leaf modules", sizes.leaf_output_bytes),
    ]
    if ledger.header.step == "train":
        lines += [
            ("activations kept for backward", sizes.kept_for_backward_bytes),
            ("gradients", sizes.gradient_bytes),
            ("optimizer state", sizes.optimizer_state_bytes),
        ]
    return Table(
        "memory",
        (column("what"), column("bytes"), column("exactly")),
        tuple((name, value, value) for name, value in lines),
    )
