"""The tables of a measured step as a whole: its time, speed, self-check, memory and kernels."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any, get_args

from rooflight import units
from rooflight.errors import RooflightError
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Value
from rooflight.measured import Measured
from rooflight.measured.facts import Number
from rooflight.measured.step import (
    Check,
    Counted,
    TimePart,
    busy_s,
    executed,
    moved,
    rates,
    self_check,
    time_parts,
    utilisation,
)
from rooflight.metrics import ratio
from rooflight.prediction.paleo import Scope, ppp_of_step
from rooflight.reporting.columns import column
from rooflight.reporting.measure_text import doubt
from rooflight.reporting.table import Column, Label, Table
from rooflight.reporting.written import figure, kernel_name
from rooflight.units import giga, per_second, seconds, share, signed_percent, tera


def time_table(measured: Measured) -> Table:
    """From the ops to the wall: every gap has a name."""
    parts = time_parts(measured)
    columns = (
        Column(f"where the time of a step goes{' (unreliable)' if doubt(measured) else ''}", right=False),
        Column("time", seconds),
        Column("of wall", share), Column("least to greatest", optional=1),
    )  # fmt: skip
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
        line(f"MFU: useful, of {used[0].peaks_text}", units.percent, used, "mfu")
        line("MFU, causal attention as its half", units.percent, used, "mfu_causal")
        line(f"HFU: executed, by each unit's peak{_of_ranks(measured, done)}", units.percent, used, "hfu")
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
    cells: list[tuple[Column, Callable[[Check], Any]]] = [
        (Column("self-check", right=False), lambda check: check.name),
        (Column(parts, units.exact), lambda check: check.sum_of_ops),
        (Column("one range", units.exact, optional=1), lambda check: check.whole_step),
        (Column("difference", units.exact, optional=2), lambda check: check.difference),
        (Column("relative", signed_percent), lambda check: check.relative),
    ]
    if any(check.spread is not None for check in checks):
        cells.append((Column("spread of the range", _unsigned_percent, optional=3), lambda check: check.spread))
    cells.append((Column("ops without", units.exact, optional=2), lambda check: check.missing))
    columns = tuple(column for column, _ in cells)
    rows = tuple(tuple(value(check) for _, value in cells) for check in checks)
    return Table("", columns, rows)


_MEMORY = (
    ("allocated before the step", "allocated_before_bytes"), ("allocated at the peak", "peak_allocated_bytes"),
    ("reserved at the peak", "peak_reserved_bytes"), ("outside the allocator", "outside_bytes"),
    ("process, after the step", "resident_bytes"), ("process, most", "peak_resident_bytes"),
)  # fmt: skip


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
        Column("oneDNN primitive" if of_cpu else "kernel", right=False), column("calls"),
        Column("time" if of_cpu else "kernel time", seconds), column("share", optional=1),
        Column("of", right=False, optional=2),
    )  # fmt: skip
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
