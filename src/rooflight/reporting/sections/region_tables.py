"""The regions of a program: one row each, and as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rooflight.formatting import percent, seconds, whole_count
from rooflight.ledger import Ledger, Measurement, Value
from rooflight.metrics import EXECUTED_FLOPS
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Label, Table, says_nothing, table_of
from rooflight.summary.region_tree import RegionNode, region_tree, regions_of, uncovered
from rooflight.summary.reliability import crowded

CONVENTIONS = (
    "values are per execution; time is by the host's clock with the GPU synchronised, the median of `timed` "
    "executions without counters; share is of the time of the region that it stands under, over the same executions: "
    "by the clock on a CPU, by events on a GPU; the program is from its first region to its last; GPU span is from the "
    "start of the first to the end of the last GPU work; FLOPs are executed ones, by unit, a multiply-add as 2, fp16 "
    "on CUDA cores only beside 16-bit tensor work or under autocast; FLOP/B is executed FLOPs per byte of DRAM "
    "traffic; growth is memory after minus before: of torch's allocator on a GPU, of the whole process (resident) "
    "without one, which says little about one region."
)
_SHARE = "part of the time of the region, or of the program, that it stands under"
_WORTH_A_LINE = 0.05
_UNITS = {"tensor": "tensor", "cuda": "CUDA"}


def headline(ledger: Ledger) -> str:
    """`main.py · 2 regions · NVIDIA H200 · torch 2.11.0`."""
    header = ledger.header
    count = len(regions_of(ledger))
    parts = [header.model, f"{count} region{'' if count == 1 else 's'}", header.device]
    parts.append(f"{header.world} processes" if header.world > 1 else None)
    parts.append(f"torch {header.torch}" if header.torch is not None else None)
    return " · ".join(part for part in parts if part)


def covered_line(ledger: Ledger) -> str:
    """What of the program no region says anything about; empty where that is not known, or is nothing."""
    program = next((row for row in ledger.measurements if row.scope == "program"), None)
    rest = None if program is None else uncovered(program)
    if program is None or rest is None or rest < _WORTH_A_LINE:
        return ""
    span = seconds(program.quantities["wall_time_s"].value)
    return (
        f"{percent(rest)} of the {span} from the first region to the last are not in any region: loading data, for "
        "example; a region around it would tell"
    )


def region_table(ledger: Ledger) -> Table:
    """Regions as they are inside each other. A column is there when some region has a value for it."""
    nodes = region_tree(ledger)
    if all(node.depth == 0 for node in nodes):
        nodes = [node for node in nodes if node.row is None or node.row.scope == "region"]
    return _table(nodes, _indented)


def _indented(node: RegionNode) -> str | Label:
    return Label(node.name, "  " * node.depth + node.name) if node.depth else node.name


def region_values(ledger: Ledger) -> Table:
    """The same for programs: a row a region, and the one it is in."""
    nodes = [node for node in region_tree(ledger) if node.row is not None and node.row.scope == "region"]
    return _table(nodes, lambda node: node.name, inside=True)


def _table(nodes: Sequence[RegionNode], name: Callable[[RegionNode], Any], *, inside: bool = False) -> Table:
    columns: list[tuple[Column, Callable[[RegionNode], Any]]] = [(Column("region", right=False), name)]
    if inside:
        columns.append((Column("inside", right=False, optional=1), lambda node: node.inside or ""))
    columns.append((Column("share", percent, raw="share_of_parent", optional=1, about=_SHARE), lambda node: node.share))
    for shown, value in _columns([node.row for node in nodes if node.row is not None]):
        columns.append((shown, _of_row(value)))
    return table_of(
        columns, nodes, leave_out=lambda column, cells: bool(column.optional) and says_nothing(column, cells)
    )


def _of_row(value: Callable[[Measurement], Any]) -> Callable[[RegionNode], Any]:
    return lambda node: None if node.row is None or node.again else value(node.row)


_ColumnOf = tuple[Column, Callable[[Measurement], Any]]


def _columns(rows: Sequence[Measurement]) -> list[_ColumnOf]:
    columns: list[_ColumnOf] = [
        (column("executions"), lambda row: None if row.scope == "program" else _value(row, "executions") or 0),
        _quantity("timed_executions", optional=3),
        (column("wall_time_s", heading="time"), lambda row: _value(row, "wall_time_s")),
        (Column("least", seconds, optional=3, raw="wall_time_s_least"), lambda row: _time(row).low),
        (Column("most", seconds, optional=3, raw="wall_time_s_most"), lambda row: _time(row).high),
        (column("gpu_span_s", optional=1), lambda row: _value(row, "gpu_span_s")),
    ]
    used = [name for name in EXECUTED_FLOPS if any(_in_total(row, name) for row in rows)]
    columns += [_unit(name) for name in used]
    # One unit alone is the total.
    if len(used) != 1:
        columns.append(_quantity("executed_flops", "FLOPs", optional=1))
    columns += [
        _quantity("dram_bytes_read", "DRAM read", optional=1),
        _quantity("dram_bytes_written", "DRAM written", optional=1),
        _quantity("l2_bytes", "L2", optional=3),
        _quantity("l1_bytes", "L1", optional=3),
        (column("intensity", raw="FLOP/B", optional=2), intensity),
        _quantity("growth_bytes", optional=3),
        # On a CPU there is only the process's peak so far, which says nothing about one region.
        _quantity("peak_allocated_bytes", "peak", optional=4),
    ]
    return columns


def _quantity(name: str, heading: str = "", *, optional: int) -> _ColumnOf:
    return column(name, heading=heading, optional=optional), lambda row: _value(row, name)


def _unit(name: str) -> _ColumnOf:
    return Column(_unit_name(name), whole_count, optional=2, raw=name), lambda row: _in_total(row, name)


def _in_total(row: Measurement, name: str) -> Any:
    """The FLOPs of a unit. fp16 of the CUDA cores may be constants: where the total leaves it out, so does its column,
    so that the columns add up.
    """
    value, total = _value(row, name), _value(row, "executed_flops")
    if name != "cuda_flops_fp16" or not value:
        return value
    return value if total == sum(_value(row, unit) or 0 for unit in EXECUTED_FLOPS) else None


def _unit_name(name: str) -> str:
    """`tensor_flops_tf32` is `tf32 tensor`."""
    unit, _, precision = name.partition("_flops_")
    return f"{precision} {_UNITS[unit]}"


def _time(row: Measurement) -> Value:
    return row.quantities.get("wall_time_s", Value(0.0, ""))


def _value(row: Measurement, name: str) -> Any:
    value = row.quantities.get(name)
    return None if value is None else value.value


def intensity(row: Measurement) -> float | None:
    """Executed FLOPs for every byte of DRAM traffic."""
    flops, read, written = (_value(row, n) for n in ("executed_flops", "dram_bytes_read", "dram_bytes_written"))
    if flops is None or read is None or written is None or not read + written:
        return None
    return float(flops / (read + written))


def peak_bytes(row: Measurement) -> int | float | None:
    """Of torch's allocator on a GPU; of the whole process on a CPU."""
    peak: int | float | None = _value(row, "peak_allocated_bytes")
    return _value(row, "peak_resident_bytes") if peak is None else peak


def region_data(ledger: Ledger, *, exit_code: int | None = None) -> dict[str, Any]:
    """Raw numbers under the names of the ledger; unknown is null. `exit_code` is the program's."""
    return {
        "header": msgspec.to_builtins(msgspec.structs.asdict(ledger.header)),
        "regions": [_region(row) for row in regions_of(ledger)],
        "program": next((_program(row) for row in ledger.measurements if row.scope == "program"), None),
        "doubt": crowded(ledger) or None,
        "exit_code": exit_code,
    }


def _region(row: Measurement) -> dict[str, Any]:
    return {
        "name": row.name,
        "executions": _value(row, "executions") or 0,
        "time_s": _value(row, "wall_time_s"),
        "gpu_time_s": _value(row, "gpu_span_s"),
        "gpu_span_s": _value(row, "gpu_span_s"),
        "flops": _value(row, "executed_flops"),
        "bytes_read": _value(row, "dram_bytes_read"),
        "bytes_written": _value(row, "dram_bytes_written"),
        "intensity": intensity(row),
        "growth_bytes": _value(row, "growth_bytes"),
        "peak_bytes": peak_bytes(row),
        "parts": row.parts,
        "uncovered": uncovered(row),
        "times_s": row.times_s,
        "quantities": {name: msgspec.to_builtins(value) for name, value in row.quantities.items()},
    }


def _program(row: Measurement) -> dict[str, Any]:
    return {"time_s": _value(row, "wall_time_s"), "parts": row.parts, "uncovered": uncovered(row)}
