"""What was measured as tables: row by row beside the estimate; the whole step's time, memory, kernels and counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from rooflight import formatting
from rooflight.analysis.inferred_counts import inferred_hfu, inferred_step
from rooflight.formatting import giga, per_second, seconds, share, signed_percent, whole_bytes
from rooflight.ledger import Kernel, Totals, Value, total
from rooflight.metrics import ratio
from rooflight.prediction.paleo import measured_ppp
from rooflight.reporting.columns import column
from rooflight.reporting.sections.estimate_tables import bytes_table
from rooflight.reporting.sections.layer_columns import LayerColumn, measured_columns, quantity, rate_of
from rooflight.reporting.sections.layer_rows import NAME_WIDTH, layer_label, listed
from rooflight.reporting.table import Cells, Column, Label, Table, cut, figure, is_unknown, kernel_name, table_of
from rooflight.summary import By, SummaryRow
from rooflight.summary.facts import Number
from rooflight.summary.measured import Measured
from rooflight.summary.measured_rows import MeasuredRow, phases, rows
from rooflight.summary.measured_step import (
    Counted,
    SelfCheck,
    TimePart,
    busy_s,
    executed,
    moved,
    rates,
    self_check,
    time_parts,
    utilisation,
)
from rooflight.summary.reliability import doubt


def time_table(measured: Measured) -> Table:
    """From the ops to the wall: every gap has a name."""
    parts = time_parts(measured)
    unreliable = " (unreliable)" if doubt(measured) else ""
    columns: Cells[TimePart] = [
        (Column(f"where the time of a step goes{unreliable}", right=False), lambda part: part.name),
        (Column("time", seconds), lambda part: part.time_s),
        (Column("of wall", share), lambda part: part.share),
        (Column("least to greatest", optional=1), lambda part: _spread(measured, part)),
    ]
    sums = frozenset(number for number, part in enumerate(parts) if part.is_sum)
    return replace(table_of(columns, parts), emphasised=sums)


def _spread(measured: Measured, part: TimePart) -> str:
    of_rank = measured.step if part.rank is None else measured.steps.get(part.rank, {})
    name = {"GPU-busy": "gpu_busy_s", "wall": "wall_time_s"}.get(part.name.rpartition(": ")[2], "")
    value = of_rank.get(name)
    if value is None or value.low is None or value.high is None:
        return ""
    return f"{seconds(value.low)} to {seconds(value.high)}"


def speed_table(measured: Measured) -> Table:
    """Throughput and utilisation, by the wall and by the time the GPU was busy."""
    lines: list[tuple[str, Label, Label]] = []

    def line(name: str, write: Callable[[Any], str], both: Sequence[Any], pick: str = "") -> None:
        wall, while_busy = (getattr(value, pick, None) if pick else value for value in both)
        if wall is not None or while_busy is not None:
            lines.append((name, figure(wall, write), figure(while_busy, write)))

    speeds = [rates(measured, while_busy=busy) for busy in (False, True)]
    line("samples/s", per_second, speeds, "samples_per_s")
    line("tokens/s", per_second, speeds, "tokens_per_s")
    unit, write = rate_of(measured.ledger)
    done, traffic = executed(measured), moved(measured)
    line(f"useful {unit}", write, speeds, "useful_flops_per_s")
    line(f"executed {unit}{_of_ranks(measured, done)}", write, speeds, "executed_flops_per_s")
    line(f"DRAM GB/s{_of_ranks(measured, traffic)}", giga, speeds, "dram_bytes_per_s")
    used = [utilisation(measured, while_busy=busy) for busy in (False, True)]
    if used[0] is not None:
        line(f"MFU: useful, of {used[0].peaks_text}", formatting.percent, used, "mfu")
        line("MFU, counting the causal half of attention", formatting.percent, used, "mfu_causal")
        line(f"HFU: executed, by each unit's peak{_of_ranks(measured, done)}", formatting.percent, used, "hfu")
    if (sums := inferred_step(measured)) is not None:
        hfus = [inferred_hfu(measured, sums, while_busy=busy) for busy in (False, True)]
        line("HFU, inferred: not counted, by each unit's peak", formatting.percent, hfus)
    line("PPP: PALEO's percent of peak", lambda value: "–" if value is None else f"{value:.2f}", _ppps(measured))
    columns: Cells[tuple[str, Label, Label]] = [
        (Column("speed", right=False), lambda line: line[0]),
        (Column("by wall time"), lambda line: line[1]),
        (Column("while the GPU is busy"), lambda line: line[2]),
    ]
    return table_of(columns if busy_s(measured) else columns[:2], lines)


def _ppps(measured: Measured) -> tuple[float | None, float | None]:
    """What PALEO's constant would have to be for this step, by the wall and by the GPU's time; see `predict --ppp`."""
    return measured_ppp(measured.ledger, scope="wall"), measured_ppp(measured.ledger, scope="gpu-busy")


def _of_ranks(measured: Measured, counted: Counted | None) -> str:
    """Which ranks counters were read on, where not all have them."""
    if counted is None or len(counted.ranks) == len(measured.ranks):
        return ""
    named = ", ".join(map(str, sorted(counted.ranks)))
    return f" (rank {named} of {len(measured.ranks)})" if len(counted.ranks) == 1 else f" (ranks {named})"


_BEHIND = (
    "dram__bytes_",
    "lts__t_bytes.",
    "l1tex__t_bytes.",
    "sm__ops_path_tensor_",
    "smsp__sass_thread_inst_executed_op_",
)
"""Counters that quantities are made of: to show both would be to say it twice."""


def _unsigned_percent(value: float | None) -> str:
    return signed_percent(value).removeprefix("+")


def check_table(measured: Measured) -> Table:
    """The self-check: the sum over ops against one range around the step."""
    parts = "sum of ops" if measured.ledger.header.execution == "eager" else "sum of kernels"
    checks = [check for check in self_check(measured) if not check.name.startswith(_BEHIND)]
    columns: Cells[SelfCheck] = [
        (Column("self-check", right=False), lambda check: check.name),
        (Column(parts, formatting.exact), lambda check: check.sum_of_ops),
        (Column("one range", formatting.exact, optional=1), lambda check: check.whole_step),
        (Column("difference", formatting.exact, optional=2), lambda check: check.difference),
        (Column("relative", signed_percent), lambda check: check.relative),
    ]
    if any(check.spread is not None for check in checks):
        columns.append((Column("spread of the range", _unsigned_percent, optional=3), lambda check: check.spread))
    columns.append((Column("ops without", formatting.exact, optional=2), lambda check: check.missing))
    return table_of(columns, checks)


_MEMORY = (
    ("allocated before the step", "allocated_before_bytes"),
    ("allocated at the peak", "peak_allocated_bytes"),
    ("reserved at the peak", "peak_reserved_bytes"),
    ("outside the allocator", "outside_bytes"),
    ("process, after the step", "resident_bytes"),
    ("process, most", "peak_resident_bytes"),
)


def memory_table(measured: Measured) -> Table:
    """What the step needed of the device (or of the process, on a CPU)."""
    lines = [
        (name + _since(measured.step[key], key), measured.step[key].value)
        for name, key in _MEMORY
        if key in measured.step
    ]
    for name, key in (("outputs of all ops", "output_bytes"), ("largest workspace of an op", "workspace_bytes")):
        if (value := measured.total.get(key)) is not None:
            lines.append((name, value))
    return bytes_table("", Column("memory", right=False), lines)


_OF_RANKS = (
    "wall_time_s",
    "gpu_busy_s",
    "peak_allocated_bytes",
    "peak_reserved_bytes",
    "peak_resident_bytes",
    "all_reduced_bytes",
)


def rank_table(measured: Measured) -> Table:
    """The processes of one step beside each other: each has its own time and its own memory."""

    def of(name: str) -> Callable[[tuple[int, Mapping[str, Value]]], Number | None]:
        return lambda row: row[1][name].value if name in row[1] else None

    columns: Cells[tuple[int, Mapping[str, Value]]] = [(Column("rank"), lambda row: row[0])]
    columns += [(column(name), of(name)) for name in _OF_RANKS]
    rows = list(measured.steps.items()) if len(measured.steps) > 1 else []
    return table_of(columns, rows, leave_out=is_unknown)


def _since(value: Value, key: str) -> str:
    """Whether the process' peak is that of the step: not every kernel lets it begin anew."""
    if key != "peak_resident_bytes":
        return ""
    since = ("during the step", "since the process began")
    return f" {next((words for words in since if words in value.origin), 'ever')}"


def kernel_table(measured: Measured, *, limit: int = 10) -> Table:
    """The kernels that took the most time, equal names together."""
    kernels = measured.ledger.kernels
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[kernel.name].append(kernel)
    order = sorted(groups.items(), key=lambda entry: (_time(entry[1]) or 0, len(entry[1])), reverse=True)
    rows = [(kernel_name(name), group, _ops(measured, group)) for name, group in order[:limit]]
    if len(order) > limit:
        label = f"{len(order) - limit} more kernels"
        rows.append((Label(label, label), [kernel for _, group in order[limit:] for kernel in group], ""))
    everything = _time(kernels)
    columns: Cells[tuple[Label, list[Kernel], str]] = [
        (Column("kernel", right=False), lambda row: row[0]),
        (column("calls"), lambda row: len(row[1])),
        (Column("kernel time", seconds), lambda row: _time(row[1])),
        (column("share", optional=1), lambda row: ratio(_time(row[1]), everything)),
        (Column("of", right=False, optional=2), lambda row: row[2]),
    ]
    return table_of(columns, rows)


def _time(kernels: Iterable[Kernel]) -> Number | None:
    times = [kernel.time_s for kernel in kernels if kernel.time_s is not None]
    return sum(times) if times else None


def _ops(measured: Measured, kernels: list[Kernel]) -> str:
    """The ops that launched it: `convolution (12 layers)`."""
    ops = measured.ledger.ops
    names = Counter(ops[index].packet.removeprefix("aten::") for kernel in kernels for index in kernel.ops)
    places = {ops[index].module for kernel in kernels for index in kernel.ops}
    if not names:
        return "–"
    more = f" + {len(names) - 1} more" if len(names) > 1 else ""
    where = next(iter(places)) if len(places) == 1 else f"{len(places)} layers"
    return f"{names.most_common(1)[0][0]}{more} ({where or measured.ledger.header.model})"


def main_table(measured: Measured, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """The rows the user asked for, and the total they sum to."""
    layers = listed(measured, rows(measured, by), by, depth=depth, folded=folded)
    if by == "module":
        names: Cells[MeasuredRow] = [
            (column("layer"), lambda row: _label(row, measured)),
            (column("type", optional=12), lambda row: row.estimate.type),
        ]
    else:
        names = [
            (Column(by, right=False), lambda row: Label(row.name, cut(row.name, NAME_WIDTH))),
            (Column("calls" if by == "op" else "ops", formatting.exact, optional=10), lambda row: row.estimate.calls),
        ]
    return _with_total(measured, names + _cells(measured_columns(measured)), layers)


def _cells(columns: Iterable[LayerColumn[MeasuredRow]]) -> Cells[MeasuredRow]:
    return [(entry.table, entry.value) for entry in columns if entry.table is not None]


def _with_total(measured: Measured, columns: Cells[MeasuredRow], layers: list[MeasuredRow], title: str = "") -> Table:
    everything = total_row(measured, calls=sum(row.estimate.calls for row in layers))
    return table_of(columns, [*layers, everything], title=title, has_total=True, leave_out=is_unknown)


def total_row(measured: Measured, *, calls: int = 0) -> MeasuredRow:
    ledger = measured.ledger
    estimate = SummaryRow("total", "", 0, calls, None, 0, 0, total(ledger.ops), Totals(), Totals(), 1.0)
    share = None if measured.total.time_s is None else 1.0
    return MeasuredRow(estimate, measured.whole, measured.whole, measured.total, measured.total, share)


def _label(row: MeasuredRow, measured: Measured) -> Label:
    return layer_label(row.name, row.estimate.depth, measured.ledger.header.model)


def phase_table(measured: Measured) -> Table:
    """The phases apart."""
    columns: Cells[MeasuredRow] = [
        (column("phase"), lambda row: row.name),
        (column("ops", optional=10), lambda row: row.sums.ran),
        *_cells([quantity("kernels", optional=9), *measured_columns(measured)]),
    ]
    return _with_total(measured, columns, phases(measured), "phases")


def operator_memory_table(measured: Measured, by: By = "op", *, depth: int | None = None) -> Table:
    """What the allocator saw of each op, layer type or module: with all that runs inside, and of its own ops alone."""
    layers = listed(measured, rows(measured, by), by, depth=depth, folded=False)
    layers = [row for row in layers if row.sums.get("allocations") is not None]
    if not layers:
        return Table("", (), ())
    layers.sort(key=lambda row: abs(row.sums.get("growth_bytes") or 0), reverse=True)
    own: Cells[MeasuredRow] = [(Column("self growth", whole_bytes), lambda row: row.own_sums.get("growth_bytes"))]
    columns: Cells[MeasuredRow] = [
        (Column(by if by != "module" else "layer", right=False), lambda row: _label(row, measured).full),
        (column("calls"), lambda row: row.estimate.calls),
        *_cells([quantity("growth_bytes")]),
        *(own if by == "module" else ()),  # of ops and types it is the growth
        *_cells(
            [
                quantity("allocations", optional=2),
                quantity("output_bytes", optional=1),
                quantity("workspace_bytes", optional=3),
            ]
        ),
    ]
    return _with_total(measured, columns, layers, f"memory by {by}")
