"""The kernels of an imported log as tables: grouped or one by one, and their totals with the origin of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rooflight import formatting
from rooflight.formatting import seconds, whole_bytes
from rooflight.hardware.device import Device
from rooflight.hardware.devices import recognise_name
from rooflight.ledger import Kernel, Ledger, Value
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, QUANTITIES, TENSOR_FLOPS, Number, ratio
from rooflight.reporting.columns import column
from rooflight.reporting.sections.collective_tables import collective_data
from rooflight.reporting.sections.kernel_groups import COPIED, SEVERAL, By, KernelGroup, LaunchedOps, groups
from rooflight.reporting.table import Cell, Cells, Column, Label, Table, kernel_name, table_of
from rooflight.summary.facts import step_values, steps_of_ranks

NAME_WIDTH = 46
_FLOPS_SMALL_PRINT = (
    "FLOPs are executed ones, as counted: a multiply-add is 2, padding is included; CUDA FLOPs are the CUDA cores' "
    "add + mul + 2 × fma; FLOP/B = all FLOPs / (DRAM read + written); – is unknown, 0 was counted."
)
_ESTIMATED_FLOPS = column(
    "flops",
    heading="est. FLOPs",
    raw="estimated_flops",
    about="all that the op must compute, by its formula and the shapes that the log notes; an op counts once, on the "
    "kernel that computes it, and is left out where several may",
)
_ESTIMATED_SPEED = column("flops_per_s", heading="est. FLOP/s", write=formatting.count, raw="estimated_flops_per_s")
_ESTIMATED_BYTES = column("bytes", heading="est. bytes", raw="estimated_bytes", optional=2)
_TIMES_SMALL_PRINT = (
    "GPU busy is the time in which at least one kernel, copy or fill ran; where they overlap, their sum is larger."
)
_ROWS = {
    **{name: f"tensor FLOPs, {name.removeprefix('tensor_flops_')}" for name in TENSOR_FLOPS},
    **{name: f"CUDA-core FLOPs, {name.removeprefix('cuda_flops_')}" for name in CUDA_FLOPS},
    "flops": "all FLOPs",
    "dram_bytes_read": "DRAM read",
    "dram_bytes_written": "DRAM written",
    "intensity": "arithmetic intensity",
    "l2_bytes": "through L2",
    "l1_bytes": "through L1",
    COPIED: "copied and filled",
    "wall_time_s": "wall time",
    "gpu_busy_s": "GPU busy",
    "kernel_time_s": "sum of kernel times",
    "host_time_s": "sum of ops' times",
    "flops_per_s": "rate",
}
_MOVED = (*DRAM_BYTES, "l2_bytes", "l1_bytes", COPIED)


def kernel_table(ledger: Ledger, by: By = "kernel", *, top: int | None = None, name_width: int = NAME_WIDTH) -> Table:
    """One row for a group of launches, or for each; with `top` that many, and one more for the others."""
    rows = groups(ledger, by)
    if top is not None and len(rows) > top + 1:
        rest = [kernel for group in rows[top:] for kernel in group.kernels]
        more = KernelGroup(f"… {len(rows) - top:,} more", rest, gathered=True, launched=LaunchedOps.of(ledger))
        rows = [*rows[:top], more]
    rows.append(_whole(ledger))
    columns = _columns(ledger, by, name_width, rows[-1].time_s)
    return table_of(columns, rows, has_total=True, leave_out=_is_idle)


def _whole(ledger: Ledger) -> KernelGroup:
    return KernelGroup("total", ledger.kernels, gathered=True, launched=LaunchedOps.of(ledger))


def _is_idle(column: Column, cells: Sequence[Cell]) -> bool:
    """It has nothing to say: a trace has no FLOPs, a log of counters may have no times."""
    return all(cell is None or cell in ("", SEVERAL) for cell in cells)


def _is_of_cpu(ledger: Ledger) -> bool:
    return any(kernel.kind == "op" for kernel in ledger.kernels)


def _columns(ledger: Ledger, by: By, width: int, time_s: float | None) -> Cells[KernelGroup]:
    device = recognise_name(ledger.header.device)
    what = "range" if by == "range" else "op" if _is_of_cpu(ledger) else "kernel"
    columns: Cells[KernelGroup] = [(Column(what, right=False), lambda group: _label(group, by, width))]
    if by == "launch":
        columns.append((Column("range", _end, right=False, optional=5), _range))
    else:
        columns.append((column("calls"), lambda group: group.calls))
    if by != "range":
        columns.append((Column("grid", _size, optional=3), lambda group: group.shared(lambda kernel: kernel.grid)))
        columns.append((Column("block", _size, optional=4), lambda group: group.shared(lambda kernel: kernel.block)))
    return [
        *columns,
        (column("kernel_time_s", heading="time"), lambda group: group.time_s),
        (column("share", optional=6), lambda group: ratio(group.time_s or 0.0, time_s)),
        (Column("tensor FLOPs", formatting.count, raw="tensor_flops"), lambda group: group.tensor_flops),
        (Column("CUDA FLOPs", formatting.count, raw="cuda_flops"), lambda group: group.cuda_flops),
        (column("dram_bytes_read", heading="DRAM read", optional=2), lambda group: group.sum("dram_bytes_read")),
        (column("dram_bytes_written", heading="DRAM write", optional=2), lambda group: group.sum("dram_bytes_written")),
        (_ESTIMATED_FLOPS, lambda group: _estimated(group, "work_flops")),
        (_ESTIMATED_BYTES, lambda group: _estimated(group, "bytes")),
        (_ESTIMATED_SPEED, lambda group: _speed(group, device)),
        (Column("copied", _copied, optional=2, raw="copied_bytes"), _copies),
        (column("flops_per_s", write=formatting.count, optional=1), lambda group: group.flops_per_s),
        (column("intensity", raw="flops_per_byte", optional=7), lambda group: group.intensity),
    ]


def _estimated(group: KernelGroup, name: str) -> Number | None:
    sums = group.estimate
    return None if sums is None else getattr(sums, name)


def _speed(group: KernelGroup, device: Device | None) -> float | None:
    """Of what must be computed; of all rows together none, for most of their time is others'. What is faster than the
    device can be did less than the formula says (a fast convolution, a mask), and has no speed that is known."""
    speed = None if group.gathered else ratio(_estimated(group, "work_flops"), group.time_s)
    peaks = [device.peak(precision) for precision in group.precisions] if device is not None else []
    known = [peak.value for peak in peaks if peak is not None]
    return None if speed is not None and known and speed > max(known) else speed


def _label(group: KernelGroup, by: By, width: int) -> Label:
    if by == "range":
        return Label(group.name, _end(group.name, width) or "(outside all ranges)")
    return kernel_name(group.name, width)


def _range(group: KernelGroup) -> str:
    return group.kernels[0].label if len(group.kernels) == 1 else ""


def _copies(group: KernelGroup) -> Number | str | None:
    return group.sum(COPIED) if any(kernel.kind in ("copy", "set") for kernel in group.kernels) else ""


def _copied(value: Any) -> str:
    return "" if value == "" else whole_bytes(value)


def _end(path: str, width: int = NAME_WIDTH) -> str:
    """The inner ranges of a path too long to show."""
    return path if len(path) <= width else f"…{path[1 - width :]}"


def _size(value: Any) -> str:
    """`22×1×64`, and `256` for 256×1×1."""
    return value if isinstance(value, str) else formatting.shape(value).removesuffix("×1").removesuffix("×1")


def totals_table(ledger: Ledger) -> Table:
    """Everything that adds up, exactly."""
    columns: Cells[tuple[str, Value]] = [
        (Column("totals", right=False), lambda row: _ROWS[row[0]]),
        (Column("value"), lambda row: _written(row[0], row[1].value)),
        (column("exactly", write=str), lambda row: _exactly(row[0], row[1].value)),
    ]
    return table_of(columns, _added_up(ledger))


def origins(ledger: Ledger) -> tuple[str, ...]:
    """The counter that each of them comes from."""
    return tuple(f"{_ROWS[name]}: {value.origin}" for name, value in _added_up(ledger))


_DERIVED = {
    "flops": "tensor + CUDA cores",
    "intensity": "all FLOPs / DRAM bytes",
    "flops_per_s": "all FLOPs / sum of kernel times",
}


def _added_up(ledger: Ledger) -> list[tuple[str, Value]]:
    values, whole = totals(ledger), _whole(ledger)
    for name, origin in _DERIVED.items():
        if (value := getattr(whole, name)) is not None:
            values[name] = Value(value, origin)
    return [(name, values[name]) for name in _ROWS if name in values]


def _written(name: str, value: Number) -> str:
    if name == "intensity":
        return f"{formatting.ratio(value)} FLOP/B"
    if name == "flops_per_s":
        return f"{formatting.count(value)}FLOP/s"
    if name.endswith("_s"):
        return seconds(value)
    return whole_bytes(value) if name in _MOVED else formatting.count(value)


def _exactly(name: str, value: Number) -> str:
    if name in ("intensity", "flops_per_s"):
        return ""
    return f"{value:.9g} s" if name.endswith("_s") else formatting.exact(value)


_SUMMED = (COPIED, "kernel_time_s", "host_time_s")
"""Of several ranks, as the rows of the table are."""


def totals(ledger: Ledger) -> dict[str, Value]:
    """The measurement over all of the log; of several ranks counts are summed, of most times the longest stands."""
    steps = steps_of_ranks(ledger)
    values = step_values(steps)
    for name in _SUMMED if len(steps) > 1 else ():
        parts = [own[name] for own in steps.values() if name in own]
        if parts:
            whole = sum(value.value for value in parts)
            values[name] = Value(whole, f"{parts[0].origin} on the first of {len(parts)} ranks, sum of all")
    return values


def flop_count_line(ledger: Ledger) -> str | None:
    """What those see who count as nvprof did, next to what was executed."""
    count = totals(ledger).get("flop_count_sp")
    whole = _whole(ledger)
    if count is None:
        return None
    line = f"flop_count_sp (fadd + fmul + 2 × ffma, as nvprof counts): {formatting.exact(count.value)}"
    if not whole.flops or whole.tensor_flops is None:
        return f"{line}; whether that is all cannot be said without the tensor cores"
    share = formatting.percent(count.value / whole.flops)
    more = ": the tensor cores did the rest" if whole.tensor_flops > 0.5 * whole.flops else ""
    return f"{line}, {share} of the {formatting.exact(whole.flops)} FLOPs executed{more}"


def small_print(ledger: Ledger) -> tuple[str, ...]:
    """The conventions of what is shown."""
    whole = _whole(ledger)
    flops = whole.tensor_flops is not None or whole.cuda_flops is not None
    times = "gpu_busy_s" in totals(ledger)
    return (*((_FLOPS_SMALL_PRINT,) if flops else ()), *((_TIMES_SMALL_PRINT,) if times else ()))


def headline(ledger: Ledger) -> str:
    """`mnist_conv2_64_tf32 · ncu CSV, raw page · 4 kernels · NVIDIA H200 (capability 9.0)`."""
    header = ledger.header
    parts = [header.model, header.conditions.get("log", "imported log")]
    if (ranks := len(steps_of_ranks(ledger))) > 1:
        parts.append(f"{ranks:,} ranks")
    if _is_of_cpu(ledger):
        return " · ".join([*parts, f"{len(ledger.kernels):,} calls of ops"])
    count = sum(kernel.calls for kernel in ledger.kernels if kernel.kind == "kernel")
    others = _whole(ledger).calls - count
    parts.append(f"{count:,} kernel{'s' if count != 1 else ''}{f', {others:,} copies and fills' if others else ''}")
    capability = header.target.removeprefix("cuda:") if header.target.startswith("cuda:") else ""
    shown = f"capability {capability[:-1]}.{capability[-1]}" if capability else ""
    if header.device:
        parts.append(f"{header.device} ({shown})" if shown else header.device)
    elif shown:
        parts.append(f"a GPU of {shown}")
    return " · ".join(parts)


_SUMS = ("tensor_flops", "cuda_flops", "flops", "dram_bytes", "intensity", "flops_per_s")


def log_data(ledger: Ledger) -> dict[str, Any]:
    """Raw numbers under the names of the ledger; unknown is null. What a name was read from stands in `origins`."""
    whole, values, launched = _whole(ledger), totals(ledger), LaunchedOps.of(ledger)
    origins = {name: value.origin for kernel in reversed(ledger.kernels) for name, value in kernel.quantities.items()}
    return {
        "header": msgspec.to_builtins(msgspec.structs.asdict(ledger.header)),
        "totals": {
            **{name: None for name in _ROWS if name in QUANTITIES},
            **{name: value.value for name, value in values.items()},
            **{name: getattr(whole, name) for name in _SUMS},
        },
        "origins": {**origins, **{name: value.origin for name, value in values.items()}},
        **_of_ranks(ledger),
        "kernels": [{**_row(kernel), **_estimates(kernel, launched)} for kernel in ledger.kernels],
    }


def _of_ranks(ledger: Ledger) -> dict[str, Any]:
    """Each rank for itself, and what they did together, where the log is of several."""
    steps = steps_of_ranks(ledger)
    if len(steps) < 2:
        return {}
    ranks = [{"rank": rank, **{name: value.value for name, value in own.items()}} for rank, own in steps.items()]
    return {"ranks": ranks, "collectives": collective_data(ledger)}


def _estimates(kernel: Kernel, launched: LaunchedOps) -> dict[str, Any]:
    """Beside the time, where some row of the log tells what it was called with."""
    group = KernelGroup(kernel.name, [kernel], launched=launched)
    names = {"estimated_flops": "work_flops", "estimated_bytes": "bytes"} if launched.ops else {}
    return {name: _estimated(group, sums) for name, sums in names.items()}


def _row(kernel: Kernel) -> dict[str, Any]:
    fields = ("name", "kind", "label", "grid", "block", "stream", "start_s", "time_s", "calls")
    return {
        **{name: getattr(kernel, name) for name in fields},
        "quantities": {name: value.value for name, value in kernel.quantities.items()},
    }
