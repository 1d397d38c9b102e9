"""What was measured as tables: row by row beside the estimate; the whole step's time, memory, kernels and counters."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, get_args

from rooflight import formatting
from rooflight.errors import RooflightError
from rooflight.formatting import giga, per_second, seconds, share, signed_percent, tera, whole_bytes, whole_count
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Ledger, Totals, Value, total
from rooflight.metrics import ratio
from rooflight.prediction.paleo import Scope, ppp_of_step
from rooflight.reporting.columns import column
from rooflight.reporting.sections.layer_rows import NAME_WIDTH, fold_measured, layer_label
from rooflight.reporting.table import Column, Label, Table, cut, figure, is_unknown, kernel_name, table_of
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
from rooflight.summary.sums import Sums


def time_table(measured: Measured) -> Table:
    """From the ops to the wall: every gap has a name."""
    parts = time_parts(measured)
    columns = (
        Column(f"where the time of a step goes{' (unreliable)' if doubt(measured) else ''}", right=False),
        Column("time", seconds),
        Column("of wall", share),
        Column("least to greatest", optional=1),
    )
    rows = tuple((part.name, part.time_s, part.share, _spread(measured, part)) for part in parts)
    return Table("", columns, rows, frozenset(n for n, part in enumerate(parts) if part.is_sum))


def _spread(measured: Measured, part: TimePart) -> str:
    of_rank = measured.step if part.rank is None else measured.steps.get(part.rank, {})
    name = {"GPU-busy": "gpu_busy_s", "wall": "wall_time_s"}.get(part.name.rpartition(": ")[2], "")
    value = of_rank.get(name)
    if value is None or value.low is None or value.high is None:
        return ""
    return f"{seconds(value.low)} to {seconds(value.high)}"


def speed_table(measured: Measured) -> Table:
    """Throughput and utilisation, by the wall and by the time the GPU was busy."""
    kept = 3 if busy_s(measured) else 2
    lines: list[tuple[str, Label, Label]] = []

    def line(name: str, write: Callable[[Any], str], found: list[Any], pick: str) -> None:
        wall, while_busy = (None if one is None else getattr(one, pick) for one in found)
        if wall is not None or while_busy is not None:
            lines.append((name, figure(wall, write), figure(while_busy, write)))

    speeds = [rates(measured, while_busy=busy) for busy in (False, True)]
    line("samples/s", per_second, speeds, "samples_per_s")
    line("tokens/s", per_second, speeds, "tokens_per_s")
    unit, write = ("GFLOP/s", giga) if measured.ledger.header.target == "cpu" else ("TFLOP/s", tera)
    done, traffic = executed(measured), moved(measured)
    line(f"useful {unit}", write, speeds, "useful_flops_per_s")
    line(f"executed {unit}{_of_ranks(measured, done)}", write, speeds, "executed_flops_per_s")
    line(f"DRAM GB/s{_of_ranks(measured, traffic)}", giga, speeds, "dram_bytes_per_s")
    used = [utilisation(measured, while_busy=busy) for busy in (False, True)]
    if used[0] is not None:
        line(f"MFU: useful, of {used[0].peaks_text}", formatting.percent, used, "mfu")
        line("MFU, counting the causal half of attention", formatting.percent, used, "mfu_causal")
        line(f"HFU: executed, by each unit's peak{_of_ranks(measured, done)}", formatting.percent, used, "hfu")
    ppps = _ppps(measured)
    if any(value is not None for value in ppps):
        wall, while_busy = (figure(value, lambda one: "–" if one is None else f"{one:.2f}") for value in ppps)
        lines.append(("PPP: PALEO's percent of peak", wall, while_busy))
    columns = (Column("speed", right=False), Column("by wall time"), Column("while the GPU is busy"))
    return Table("", columns[:kept], tuple(row[:kept] for row in lines))


def _ppps(measured: Measured) -> tuple[float | None, float | None]:
    """What PALEO's constant would have to be for this step, by the wall and by the GPU's time; see `predict --ppp`."""
    device = recognise_name(measured.ledger.header.device or "")
    if device is None or measured.ledger.header.target == "cpu":
        return None, None
    found: list[float | None] = []
    for scope in get_args(Scope)[::-1]:
        try:
            found.append(ppp_of_step(measured.ledger, device, scope=scope).value)
        except RooflightError:
            found.append(None)  # no time, or faster than the peak by what caches gave
    return found[0], found[1]


def _of_ranks(measured: Measured, found: Counted | None) -> str:
    """Which ranks counters were read on, where not all have them."""
    if found is None or len(found.ranks) == len(measured.ranks):
        return ""
    named = ", ".join(map(str, sorted(found.ranks)))
    return f" (rank {named} of {len(measured.ranks)})" if len(found.ranks) == 1 else f" (ranks {named})"


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
    cells: list[tuple[Column, Callable[[SelfCheck], Any]]] = [
        (Column("self-check", right=False), lambda check: check.name),
        (Column(parts, formatting.exact), lambda check: check.sum_of_ops),
        (Column("one range", formatting.exact, optional=1), lambda check: check.whole_step),
        (Column("difference", formatting.exact, optional=2), lambda check: check.difference),
        (Column("relative", signed_percent), lambda check: check.relative),
    ]
    if any(check.spread is not None for check in checks):
        cells.append((Column("spread of the range", _unsigned_percent, optional=3), lambda check: check.spread))
    cells.append((Column("ops without", formatting.exact, optional=2), lambda check: check.missing))
    return table_of(cells, checks)


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
    columns = (Column("memory", right=False), column("bytes"), column("exactly"))
    return Table("", columns, tuple((name, value, value) for name, value in lines))


def _since(value: Value, key: str) -> str:
    """Whether the process' peak is that of the step: not every kernel lets it begin anew."""
    if key != "peak_resident_bytes":
        return ""
    known = ("during the step", "since the process began")
    return f" {next((since for since in known if since in value.origin), 'ever')}"


def kernel_table(measured: Measured, *, limit: int = 10) -> Table:
    """The kernels that took the most time, equal names together."""
    groups: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in measured.ledger.kernels:
        groups[kernel.name].append(kernel)
    everything = _time(measured.ledger.kernels)
    order = sorted(groups.items(), key=lambda entry: (_time(entry[1]) or 0, len(entry[1])), reverse=True)
    shown = [
        (kernel_name(name), len(found), _time(found), ratio(_time(found), everything), _ops(measured, found))
        for name, found in order[:limit]
    ]
    if len(order) > limit:
        rest = [kernel for _, found in order[limit:] for kernel in found]
        label = f"{len(order) - limit} more kernels"
        shown.append((Label(label, label), len(rest), _time(rest), ratio(_time(rest), everything), ""))
    of_cpu = any(kernel.kind == "primitive" for kernel in measured.ledger.kernels)
    columns = (
        Column("oneDNN primitive" if of_cpu else "kernel", right=False),
        column("calls"),
        Column("time" if of_cpu else "kernel time", seconds),
        column("share", optional=1),
        Column("of", right=False, optional=2),
    )
    return Table("", columns, tuple(shown))


def _time(kernels: Any) -> Number | None:
    known = [kernel.time_s for kernel in kernels if kernel.time_s is not None]
    return sum(known) if known else None


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


_Columns = list[tuple[Column, Callable[[MeasuredRow], object]]]


def main_table(measured: Measured, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """The rows the user asked for, and the total they sum to."""
    found = rows(measured, by)
    if by == "module":
        found = fold_measured(measured, found) if folded else found
        found = [row for row in found if depth is None or row.estimate.depth <= depth]
    everything = total_row(measured, calls=sum(row.estimate.calls for row in found))
    columns = _name_columns(measured.ledger, by) + _figures(measured)
    return table_of(columns, [*found, everything], has_total=True, leave_out=is_unknown)


def total_row(measured: Measured, *, calls: int = 0) -> MeasuredRow:
    ledger = measured.ledger
    estimate = SummaryRow("total", "", 0, calls, None, 0, 0, total(ledger.ops), Totals(), Totals(), 1.0)
    share = None if measured.total.time_s is None else 1.0
    return MeasuredRow(estimate, measured.whole, measured.whole, measured.total, measured.total, share)


def _name_columns(ledger: Ledger, by: By) -> _Columns:
    if by == "module":
        return [
            (column("layer"), lambda row: _label(row, ledger)),
            (column("type", optional=12), lambda row: row.estimate.type),
        ]
    return [
        (Column(by, right=False), lambda row: Label(row.name, cut(row.name, NAME_WIDTH))),
        (Column("calls" if by == "op" else "ops", formatting.exact, optional=10), lambda row: row.estimate.calls),
    ]


def _label(row: MeasuredRow, ledger: Ledger) -> Label:
    return layer_label(row.name, row.estimate.depth, ledger.header.model)


def _figures(measured: Measured) -> _Columns:
    """Time, work and traffic. The number is the order in which columns go when the terminal is narrow."""
    counted = measured.total.executed_flops is not None
    # Beside the executed FLOPs of some units (a CUDA graph's tensor cores) it must be said which the rate is of.
    partly = not counted and measured.total.tensor_flops is not None
    rate, write = _rate(measured.ledger)
    return [
        *_quantity("kernel_time_s"),
        *_quantity("host_time_s", "CPU time"),
        (column("share", optional=3), lambda row: row.share),
        (column("flops", heading="useful"), _useful),
        *_measured(Column("tensor", whole_count, raw="tensor_flops"), lambda sums: sums.tensor_flops),
        *_measured(Column("CUDA core", whole_count, optional=2, raw="cuda_flops"), lambda sums: sums.cuda_flops),
        *_measured(Column("CPU FLOPs", whole_count, raw="cpu_flops"), lambda sums: sums.cpu_flops),
        *_measured(column("executed_per_useful", raw="exec/useful", optional=4), lambda sums: sums.executed_per_useful),
        *_quantity("dram_bytes_read", "DRAM read", optional=1),
        *_quantity("dram_bytes_written", "written", optional=2),
        (column("bytes", heading="compulsory", optional=8), _compulsory),
        *_measured(column("dram_per_compulsory", raw="DRAM/comp.", optional=7), lambda sums: sums.dram_per_compulsory),
        *_quantity("l2_bytes", "L2", optional=9),
        *_quantity("l1_bytes", "L1", optional=9),
        (
            Column(
                f"useful {rate}" if partly else rate,
                write,
                optional=6,
                raw="executed_flops_per_s" if counted else "flops_per_s",
            ),
            _executed_rate if counted else _useful_rate,
        ),
        *_measured(
            column("dram_bytes_per_s", heading="GB/s", write=giga, optional=5), lambda sums: sums.dram_bytes_per_s
        ),
        *_quantity("growth_bytes", optional=11),
        *_quantity("workspace_bytes", optional=10),
    ]


def _measured(shown: Column, value: Callable[[Sums], object]) -> _Columns:
    return [(shown, lambda row: value(row.sums))]


def _quantity(name: str, heading: str = "", *, optional: int = 0) -> _Columns:
    """A quantity of the ledger, under its own name where values stand as they are."""
    return _measured(column(name, heading=heading, optional=optional), lambda sums: sums.get(name))


def _rate(ledger: Ledger) -> tuple[str, Callable[[Any], str]]:
    """A GPU is spoken of in TFLOP/s, a CPU in GFLOP/s."""
    return ("GFLOP/s", giga) if ledger.header.target == "cpu" else ("TFLOP/s", tera)


def _useful(row: MeasuredRow) -> int | None:
    return None if _unknown(row.estimate) else row.estimate.totals.flops


def _compulsory(row: MeasuredRow) -> int | None:
    return None if _unknown(row.estimate) else row.estimate.totals.bytes


def _unknown(row: SummaryRow) -> bool:
    """Nothing is known of ops without a formula, nor of what is no group of ops; a module that ran nothing cost 0."""
    if not row.totals.ops:
        return not row.type
    return sum(entry.calls for entry in row.totals.uncounted) == row.totals.ops


def _executed_rate(row: MeasuredRow) -> float | None:
    return row.sums.executed_flops_per_s


def _useful_rate(row: MeasuredRow) -> float | None:
    time = row.sums.time_s
    return row.estimate.totals.flops / time if time and not _unknown(row.estimate) else None


def phase_table(measured: Measured) -> Table:
    """Forward, backward and optimizer apart."""
    columns: _Columns = [
        (column("phase"), lambda row: row.name),
        (column("ops", optional=10), lambda row: row.sums.ran),
        *_quantity("kernels", optional=9),
    ]
    rows = [*phases(measured), total_row(measured)]
    return table_of(columns + _figures(measured), rows, title="phases", has_total=True, leave_out=is_unknown)


def operator_memory_table(measured: Measured, by: By = "op", *, depth: int | None = None) -> Table:
    """What the allocator saw of each op, layer type or module: with all that runs inside, and of its own ops alone."""
    found = [row for row in rows(measured, by) if row.sums.get("allocations") is not None]
    if by == "module" and depth is not None:
        found = [row for row in found if row.estimate.depth <= depth]
    found.sort(key=lambda row: abs(row.sums.get("growth_bytes") or 0), reverse=True)
    columns: _Columns = [
        (Column(by if by != "module" else "layer", right=False), lambda row: _label(row, measured.ledger).full),
        (column("calls"), lambda row: row.estimate.calls),
        *_quantity("growth_bytes"),
        (Column("self growth", whole_bytes), lambda row: row.own_sums.get("growth_bytes")),
        *_quantity("allocations", optional=2),
        *_quantity("output_bytes", optional=1),
        *_quantity("workspace_bytes", optional=3),
    ]
    if not found:
        return Table("", (), ())
    calls = sum(row.estimate.calls for row in found)
    whole = [*found, total_row(measured, calls=calls)]
    return table_of(columns, whole, title=f"memory by {by}", has_total=True, leave_out=is_unknown)
