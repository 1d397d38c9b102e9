"""The tables of an imported log: its kernels, grouped or one by one, and their totals with the origin of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from rooflight import units
from rooflight.ledger import Kernel, Ledger, Value
from rooflight.metrics import CUDA_FLOPS, DRAM_BYTES, QUANTITIES, TENSOR_FLOPS
from rooflight.reporting.columns import column
from rooflight.reporting.kernel_groups import COPIED, SEVERAL, By, Group, Number, groups
from rooflight.reporting.table import Cell, Column, Label, Table
from rooflight.reporting.written import kernel_name
from rooflight.units import seconds, whole_bytes

NAME_WIDTH = 46
_FLOPS_SMALL_PRINT = (
    "FLOPs are executed ones, as the counters saw them: a multiply-add is 2, padding is in them; CUDA FLOPs are the "
    "CUDA cores' add + mul + 2 × fma; FLOP/B = all FLOPs / (DRAM read + written); – is unknown, 0 was counted."
)
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
    "flops_per_s": "rate",
}
_MOVED = (*DRAM_BYTES, "l2_bytes", "l1_bytes", COPIED)


def kernel_table(ledger: Ledger, by: By = "kernel", *, top: int | None = None, name_width: int = NAME_WIDTH) -> Table:
    """One row for a group of launches, or for each; with `top` that many, and one more for the others."""
    rows = groups(ledger, by)
    if top is not None and len(rows) > top + 1:
        rest = [kernel for group in rows[top:] for kernel in group.kernels]
        rows = [*rows[:top], Group(f"… {len(rows) - top:,} more", rest, gathered=True)]
    rows.append(_whole(ledger))
    time = rows[-1].time_s
    entries = _columns(by, name_width, lambda group: (group.time_s or 0.0) / time if time else None)
    cells = [[entry.value(group) for entry in entries] for group in rows]
    # A column that has nothing to say is left out: a trace has no FLOPs, a log of counters may have no times.
    kept = [place for place, entry in enumerate(entries) if entry.always or any(_says(row[place]) for row in cells)]
    table = tuple(tuple(row[place] for place in kept) for row in cells)
    return Table("", tuple(entries[place].column for place in kept), table, frozenset({len(rows) - 1}))


def _whole(ledger: Ledger) -> Group:
    return Group("total", ledger.kernels, gathered=True)


@dataclass(frozen=True)
class _Entry:
    column: Column
    value: Callable[[Group], Cell]
    always: bool = False


def _says(cell: Cell) -> bool:
    return cell is not None and cell != "" and cell != SEVERAL


def _columns(by: By, width: int, share: Callable[[Group], float | None]) -> list[_Entry]:
    what = "range" if by == "range" else "kernel"
    first = [_Entry(Column(what, right=False), lambda g: _label(g, by, width), always=True)]
    if by == "launch":
        first.append(_Entry(Column("range", _end, right=False, optional=5), lambda g: _range(g)))
    else:
        first.append(_Entry(column("calls"), lambda g: len(g.kernels), always=True))
    if by != "range":
        first.append(_Entry(Column("grid", _size, optional=3), lambda g: g.shared(lambda kernel: kernel.grid)))
        first.append(_Entry(Column("block", _size, optional=4), lambda g: g.shared(lambda kernel: kernel.block)))
    return [
        *first,
        _Entry(column("kernel_time_s", heading="time"), lambda g: g.time_s),
        _Entry(column("share", optional=6), share),
        _Entry(Column("tensor FLOPs", units.count, raw="tensor_flops"), lambda g: g.tensor_flops),
        _Entry(Column("CUDA FLOPs", units.count, raw="cuda_flops"), lambda g: g.cuda_flops),
        _Entry(column("dram_bytes_read", heading="DRAM read", optional=2), lambda g: g.sum("dram_bytes_read")),
        _Entry(
            column("dram_bytes_written", heading="DRAM write", optional=2),
            lambda g: g.sum("dram_bytes_written"),
        ),
        _Entry(Column("copied", _copied, optional=2, raw="copied_bytes"), lambda g: _copies(g)),
        _Entry(column("flops_per_s", write=units.count, optional=1), lambda g: g.flops_per_s),
        _Entry(column("intensity", raw="flops_per_byte", optional=7), lambda g: g.intensity),
    ]


def _label(group: Group, by: By, width: int) -> Label:
    if by == "range":
        return Label(group.name, _end(group.name, width) or "(outside all ranges)")
    return kernel_name(group.name, width)


def _range(group: Group) -> str:
    return group.kernels[0].label if len(group.kernels) == 1 else ""


def _copies(group: Group) -> Number | str | None:
    return group.sum(COPIED) if any(kernel.kind in ("copy", "set") for kernel in group.kernels) else ""


def _copied(value: Any) -> str:
    return "" if value == "" else whole_bytes(value)


def _end(path: str, width: int = NAME_WIDTH) -> str:
    """The inner ranges of a path too long to show."""
    return path if len(path) <= width else f"…{path[1 - width :]}"


def _size(value: Any) -> str:
    """`22×1×64`, and `256` for 256×1×1."""
    return value if isinstance(value, str) else units.shape(value).removesuffix("×1").removesuffix("×1")


def totals_table(ledger: Ledger) -> Table:
    """Everything that adds up, exactly."""
    rows = tuple((_ROWS[name], _written(name, found.value), _exactly(name, found.value))
                 for name, found in _added_up(ledger))  # fmt: skip
    return Table("", (Column("totals", right=False), Column("value"), column("exactly", write=str)), rows)


def origins(ledger: Ledger) -> tuple[str, ...]:
    """The counter that each of them comes from."""
    return tuple(f"{_ROWS[name]}: {found.origin}" for name, found in _added_up(ledger))


def _added_up(ledger: Ledger) -> list[tuple[str, Value]]:
    found = totals(ledger)
    whole = _whole(ledger)
    if whole.flops is not None:
        found["flops"] = Value(whole.flops, "tensor + CUDA cores")
    if whole.intensity is not None:
        found["intensity"] = Value(whole.intensity, "all FLOPs / DRAM bytes")
    if whole.flops_per_s is not None:
        found["flops_per_s"] = Value(whole.flops_per_s, "all FLOPs / sum of kernel times")
    return [(name, found[name]) for name in _ROWS if name in found]


def _written(name: str, value: Number) -> str:
    if name == "intensity":
        return f"{units.ratio(value)} FLOP/B"
    if name == "flops_per_s":
        return f"{units.count(value)}FLOP/s"
    if name.endswith("_s"):
        return seconds(value)
    return whole_bytes(value) if name in _MOVED else units.count(value)


def _exactly(name: str, value: Number) -> str:
    if name in ("intensity", "flops_per_s"):
        return ""
    return f"{value:.9g} s" if name.endswith("_s") else units.exact(value)


def totals(ledger: Ledger) -> dict[str, Value]:
    """The measurement over all of the log."""
    return dict(next((row.quantities for row in ledger.measurements if row.scope == "step"), {}))


def flop_count_line(ledger: Ledger) -> str | None:
    """What those see who count as nvprof did, next to what was executed."""
    count = totals(ledger).get("flop_count_sp")
    whole = _whole(ledger)
    if count is None:
        return None
    line = f"flop_count_sp (fadd + fmul + 2 × ffma, as nvprof counts): {units.exact(count.value)}"
    if not whole.flops or whole.tensor_flops is None:
        return f"{line}; whether that is all cannot be said without the tensor cores"
    share = units.percent(count.value / whole.flops)
    more = ": the tensor cores did the rest" if whole.tensor_flops > 0.5 * whole.flops else ""
    return f"{line}, {share} of the {units.exact(whole.flops)} FLOPs executed{more}"


def small_print(ledger: Ledger) -> tuple[str, ...]:
    """The conventions of what is shown."""
    found = totals(ledger)
    whole = _whole(ledger)
    flops = whole.tensor_flops is not None or whole.cuda_flops is not None
    return (*((_FLOPS_SMALL_PRINT,) if flops else ()), *((_TIMES_SMALL_PRINT,) if "gpu_busy_s" in found else ()))


def headline(ledger: Ledger) -> str:
    """`mnist_conv2_64_tf32 · ncu CSV, raw page · 4 kernels · NVIDIA H200 (capability 9.0)`."""
    header = ledger.header
    count = sum(kernel.kind == "kernel" for kernel in ledger.kernels)
    others = len(ledger.kernels) - count
    parts = [header.model, header.conditions.get("log", "imported log"), f"{count:,} kernel{'s' if count != 1 else ''}"]
    if others:
        parts[-1] += f", {others:,} copies and fills"
    capability = header.target.removeprefix("cuda:") if header.target.startswith("cuda:") else ""
    shown = f"capability {capability[:-1]}.{capability[-1]}" if capability else ""
    if header.device:
        parts.append(f"{header.device} ({shown})" if shown else header.device)
    elif shown:
        parts.append(f"a GPU of {shown}")
    return " · ".join(parts)


def log_data(ledger: Ledger) -> dict[str, Any]:
    """Raw numbers under the names of the ledger; unknown is null. What a name was read from stands in `origins`."""
    whole = _whole(ledger)
    found = totals(ledger)
    known = {name: None for name in _ROWS if name in QUANTITIES}
    origins = {name: value.origin for kernel in reversed(ledger.kernels) for name, value in kernel.quantities.items()}
    return {
        "header": msgspec.to_builtins(msgspec.structs.asdict(ledger.header)),
        "totals": {
            **known,
            **{name: value.value for name, value in found.items()},
            "tensor_flops": whole.tensor_flops,
            "cuda_flops": whole.cuda_flops,
            "flops": whole.flops,
            "dram_bytes": whole.dram_bytes,
            "intensity": whole.intensity,
            "flops_per_s": whole.flops_per_s,
        },
        "origins": {**origins, **{name: value.origin for name, value in found.items()}},
        "kernels": [_row(kernel) for kernel in ledger.kernels],
    }


def _row(kernel: Kernel) -> dict[str, Any]:
    return {
        "name": kernel.name, "kind": kernel.kind, "label": kernel.label, "grid": kernel.grid, "block": kernel.block,
        "stream": kernel.stream, "start_s": kernel.start_s, "time_s": kernel.time_s,
        "quantities": {name: value.value for name, value in kernel.quantities.items()},
    }  # fmt: skip
