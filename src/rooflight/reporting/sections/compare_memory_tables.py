"""The memory of two steps as tables and as JSON: where each is at its highest, where they part, both timelines."""

from __future__ import annotations

from typing import Any

from rooflight import formatting
from rooflight.analysis.comparison.memory import ComparedMemory, Highest, JoinedMemory, Parting, SideMemory
from rooflight.formatting import whole_bytes
from rooflight.ledger import Op
from rooflight.metrics import ratio
from rooflight.reporting.charts.memory_course import drawn
from rooflight.reporting.columns import column
from rooflight.reporting.table import Cells, Column, Table, lines_table, table_of

CONVENTIONS = (
    "Memory: growth is what is allocated after an op minus what was allocated after the previous op that both sides "
    "have, frees in between included. Workspace is the temporary memory of an op (predicted), or its peak above the "
    "larger of before and after it (measured). Predicted memory is that of a step after the first, in blocks as "
    "torch's allocator hands them out. Views are left out."
)


def memory_tables(memory: JoinedMemory, model: str) -> list[Table]:
    return [highest_table(memory, model), parting_table(memory, model), timeline_table(memory)]


def highest_table(memory: JoinedMemory, model: str) -> Table:
    """The op with the peak on each side."""
    peaks = [(f"{name}, {side.kind}", side.highest) for name, side in _named(memory) if side.highest is not None]
    columns: Cells[tuple[str, Highest]] = [
        (Column("memory at the peak", right=False), lambda peak: peak[0]),
        (column("bytes"), lambda peak: peak[1].allocated_bytes),
        (Column("in", right=False), lambda peak: _short(peak[1].op)),
        (column("layer"), lambda peak: peak[1].op.module or model),
        (column("phase", optional=1), lambda peak: peak[1].op.phase),
        (column("op", write=formatting.exact, optional=2), lambda peak: peak[1].op.index),
    ]
    return table_of(columns, peaks)


def parting_table(memory: JoinedMemory, model: str) -> Table:
    """Where the two timelines part the most."""
    columns: Cells[Parting] = [
        (column("op"), lambda parting: _short(parting.op)),
        (column("layer"), lambda parting: parting.op.module or model),
        (column("phase", optional=2), lambda parting: parting.op.phase),
        (Column("growth A", _signed), lambda parting: parting.growth_a_bytes),
        (Column("growth B", _signed), lambda parting: parting.growth_b_bytes),
        (Column("workspace A", whole_bytes, optional=1), lambda parting: parting.workspace_a_bytes),
        (Column("workspace B", whole_bytes, optional=1), lambda parting: parting.workspace_b_bytes),
    ]
    return table_of(columns, memory.partings(), title=f"where memory differs most: {_kinds(memory)}")


def timeline_table(memory: JoinedMemory) -> Table:
    """Two lines of blocks, op under op and with one scale."""
    pairs = memory.joined
    if not pairs:
        return Table("", (), ())
    phases = [a.op.phase for a, _ in pairs]
    allocated = [[a.allocated_bytes for a, _ in pairs], [b.allocated_bytes for _, b in pairs]]
    scale = min(map(min, allocated)), max(map(max, allocated))
    (blocks_a, *_), (blocks_b, *below) = (drawn(line, phases, scale=scale) for line in allocated)
    lines = [f"A {blocks_a}", f"B {blocks_b}", *(f"  {line}" for line in below)]
    return lines_table(f"allocated after each of {len(pairs):,} ops of both: {_kinds(memory)}", lines)


def memory_notes(compared: ComparedMemory, executions: tuple[str, str]) -> list[str]:
    """Whose memory is predicted and for what, how far apart the timelines are, or why there is nothing."""
    memory = compared.joined
    if memory is None:
        return [compared.left_out] if compared.left_out else []
    notes = []
    predicted = [name for name, side in _named(memory) if side.kind == "predicted"]
    if predicted:
        eager = ", as an eager step" if set(executions) != {"eager"} else ""
        notes.append(f"memory of {' and '.join(predicted)} is predicted for {memory.device}{eager}")
    notes += [f"{name}: {note}" for name, side in _named(memory) for note in side.notes]
    if predicted and (line := _apart_line(memory)):
        notes.append(line)
    return notes


def _apart_line(memory: JoinedMemory) -> str:
    furthest, offset, share = memory.furthest, memory.offset_bytes, memory.furthest_share
    if furthest is None or offset is None:
        return ""
    op, nbytes = furthest
    of_peak = f", {formatting.percent(share)} of the peak" if share is not None else ""
    line = (
        f"what is allocated after each of {len(memory.joined):,} ops of both differs by at most "
        f"{formatting.bytes_(abs(round(nbytes)))}{of_peak} (after op {op.index:,} of A)"
    )
    return f"{line}, less {formatting.bytes_(abs(round(offset)))} that differ from the first op on" if offset else line


def memory_data(compared: ComparedMemory) -> dict[str, Any] | None:
    """Raw numbers; unknown is null; ratios are B by A. `None`: there is nothing to be said of memory."""
    memory = compared.joined
    if memory is None:
        return {"left_out": compared.left_out} if compared.left_out else None
    sides = {name.lower(): _side(side) for name, side in _named(memory)}
    furthest = None
    if memory.furthest is not None:
        op, nbytes = memory.furthest
        furthest = {**_op(op), "bytes": nbytes, "share_of_peak": memory.furthest_share}
    return {
        "left_out": None,
        "device": memory.device,
        **sides,
        "ratios": {name: ratio(sides["b"][name], sides["a"][name]) for name in _FIGURES},
        "joined_ops": len(memory.joined),
        "offset_bytes": memory.offset_bytes,
        "furthest": furthest,
        "differences": [
            {
                **_op(parting.op),
                "growth_bytes": {"a": parting.growth_a_bytes, "b": parting.growth_b_bytes},
                "workspace_bytes": {"a": parting.workspace_a_bytes, "b": parting.workspace_b_bytes},
            }
            for parting in memory.partings()
        ],
        "timeline": {
            name: [{"op": moment.op.index, "allocated_bytes": moment.allocated_bytes} for moment in moments]
            for name, moments in zip("ab", zip(*memory.joined, strict=True) if memory.joined else ((), ()), strict=True)
        },
    }


_FIGURES = ("allocated_before_bytes", "peak_allocated_bytes", "peak_reserved_bytes", "outside_bytes")


def _side(side: SideMemory) -> dict[str, Any]:
    figures = (side.before_bytes, side.peak_allocated_bytes, side.peak_reserved_bytes, side.outside_bytes)
    highest = side.highest
    return {
        "kind": side.kind,
        **dict(zip(_FIGURES, figures, strict=True)),
        "highest": None if highest is None else {**_op(highest.op), "allocated_bytes": highest.allocated_bytes},
        "notes": list(side.notes),
    }


def _op(op: Op) -> dict[str, Any]:
    return {"op": op.index, "name": op.name, "module": op.module, "phase": op.phase}


def _short(op: Op) -> str:
    return op.name.removeprefix("aten::")


def _signed(value: float) -> str:
    return f"-{whole_bytes(-value)}" if value < 0 else whole_bytes(value)


def _kinds(memory: JoinedMemory) -> str:
    return f"A {memory.a.kind}, B {memory.b.kind}"


def _named(memory: JoinedMemory) -> tuple[tuple[str, SideMemory], tuple[str, SideMemory]]:
    return ("A", memory.a), ("B", memory.b)
