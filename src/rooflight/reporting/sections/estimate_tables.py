"""The tables of an estimate: the module tree or another grouping, totals, phases, shares by type, memory."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight import formatting, summary
from rooflight.ledger import Ledger, Totals, total
from rooflight.reporting.columns import column
from rooflight.reporting.sections.layer_columns import ESTIMATED, OF_MODULES, estimate_cells, shown, uncounted
from rooflight.reporting.sections.layer_rows import fold, layer_label
from rooflight.reporting.table import Cells, Column, Table, table_of
from rooflight.summary import By, SummaryRow


def main_table(ledger: Ledger, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """The rows the user asked for, and the total they sum to."""
    rows = summary.rows(ledger, by)
    if by == "module":
        rows = fold(rows) if folded else rows
        rows = [row for row in rows if depth is None or row.depth <= depth]
    phases = summary.totals_by_phase(ledger)
    whole = SummaryRow(
        name="total",
        type="",
        depth=0,
        calls=sum(row.calls for row in rows),
        output=None,
        params=summary.params(ledger),
        trainable_params=summary.trainable_params(ledger),
        totals=total(ledger.ops),
        forward=phases.get("forward", Totals()),
        backward=phases.get("backward", Totals()),
        share=1.0,
    )
    names: Cells[SummaryRow] = [
        (Column(by, right=False), lambda row: row.name),
        (Column("calls" if by == "op" else "ops", formatting.exact), lambda row: row.calls),
    ]
    if by == "module":
        names = [
            (column("layer"), lambda row: layer_label(row.name, row.depth, ledger.header.model)),
            *estimate_cells(OF_MODULES, ledger),
        ]
    return table_of(names + estimate_cells(ESTIMATED, ledger), [*rows, whole], has_total=True)


def phase_table(ledger: Ledger) -> Table:
    """The phases apart."""
    sums = {**summary.totals_by_phase(ledger), "step": total(ledger.ops)}
    columns: Cells[str] = [
        (column("phase"), str),
        (column("ops"), lambda phase: sums[phase].ops),
        (shown("macs"), lambda phase: sums[phase].macs),
        (shown("flops"), lambda phase: sums[phase].flops),
        (shown("recompute_flops", optional=2), lambda phase: sums[phase].recompute_flops),
        (shown("other_flops", "other", optional=1), lambda phase: sums[phase].other_flops),
        (shown("bytes_read", "bytes read"), lambda phase: sums[phase].bytes_read),
        (shown("bytes_written", "bytes written"), lambda phase: sums[phase].bytes_written),
        (shown("intensity", optional=3), lambda phase: sums[phase].intensity),
    ]
    return table_of(columns, list(sums), title="phases" + _without(ledger), has_total=True)


def total_table(ledger: Ledger, *, epochs: int | None = None, dataset_size: int | None = None) -> Table:
    """Totals per step, per sample and per token, and for a whole training run when asked."""
    sums = total(ledger.ops)
    scopes: dict[str, float] = {"step": 1}
    if samples := summary.samples(ledger):
        scopes["sample"] = 1 / samples
    if tokens := summary.tokens(ledger):
        scopes["token"] = 1 / tokens
    if steps := run_steps(ledger, epochs=epochs, dataset_size=dataset_size):
        scopes[f"run of {steps:,} steps"] = steps
    columns: Cells[str] = [
        (Column("per", right=False), str),
        (shown("macs"), lambda scope: _scaled(sums.macs, scopes[scope])),
        (shown("flops"), lambda scope: _scaled(sums.flops, scopes[scope])),
        (shown("flops_causal", "causal FLOPs"), lambda scope: _scaled(sums.flops_causal, scopes[scope])),
        (shown("other_flops", "other"), lambda scope: _scaled(sums.other_flops, scopes[scope])),
        (column("bytes"), lambda scope: _scaled(sums.bytes, scopes[scope])),
    ]
    return table_of(columns, list(scopes), title="totals" + _without(ledger))


def _without(ledger: Ledger) -> str:
    """What a title says of the ops that its sums do not cover."""
    missing = uncounted(total(ledger.ops))
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
    rows = [row for row in summary.rows(ledger, "type") if row.totals.flops or row.totals.recompute_flops]
    columns: Cells[SummaryRow] = [
        (Column("layer type", right=False), lambda row: row.name),
        (shown("macs"), lambda row: row.totals.macs),
        (shown("flops"), lambda row: row.totals.flops),
        (column("bytes"), lambda row: row.totals.bytes),
        (column("share"), lambda row: row.share),
    ]
    return table_of(columns, rows[:limit], title="FLOPs by layer type")


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
            ("activation gradients (errors), all together", sizes.activation_gradient_bytes),
            ("of these the most at once", sizes.live_activation_gradient_bytes),
            ("gradients", sizes.gradient_bytes),
            ("optimizer state", sizes.optimizer_state_bytes),
        ]
    return bytes_table("memory", column("what"), lines)


def bytes_table(title: str, what: Column, lines: Sequence[tuple[str, float | None]]) -> Table:
    """So many bytes each, in short and exactly."""
    columns: Cells[tuple[str, float | None]] = [
        (what, lambda line: line[0]),
        (column("bytes"), lambda line: line[1]),
        (column("exactly"), lambda line: line[1]),
    ]
    return table_of(columns, lines, title=title)
