"""The memory of two steps as tables and as JSON: where each is at its highest, where they part, both timelines."""

from __future__ import annotations

from typing import Any

from rooflight import formatting
from rooflight.analysis.comparison.memory import ComparedMemory, JoinedMemory, SideMemory
from rooflight.formatting import whole_bytes
from rooflight.ledger import Op
from rooflight.metrics import ratio
from rooflight.reporting.charts.memory_course import drawn
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table

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
    columns = (
        Column("memory at the peak", right=False),
        column("bytes"),
        Column("in", right=False),
        column("layer"),
        column("phase", optional=1),
        column("op", write=formatting.exact, optional=2),
    )
    rows = tuple(
        (f"{name}, {side.kind}", side.highest.allocated_bytes, *_where(side.highest.op, model), side.highest.op.index)
        for name, side in _named(memory)
        if side.highest is not None
    )
    return Table("", columns, rows)


def parting_table(memory: JoinedMemory, model: str) -> Table:
    """Where the two timelines part the most."""
    columns = (
        column("op"),
        column("layer"),
        column("phase", optional=2),
        Column("growth A", _signed),
        Column("growth B", _signed),
        Column("workspace A", whole_bytes, optional=1),
        Column("workspace B", whole_bytes, optional=1),
    )
    rows = tuple(
        (
            *_where(found.op, model),
            found.growth_a_bytes,
            found.growth_b_bytes,
            found.workspace_a_bytes,
            found.workspace_b_bytes,
        )
        for found in memory.partings()
    )
    return Table(f"where memory differs most: {_kinds(memory)}", columns, rows)


def timeline_table(memory: JoinedMemory) -> Table:
    """Two lines of blocks, op under op and with one scale."""
    pairs = memory.joined
    if not pairs:
        return Table("", (), ())
    phases = [a.op.phase for a, _ in pairs]
    allocated = [[a.allocated_bytes for a, _ in pairs], [b.allocated_bytes for _, b in pairs]]
    every = [*allocated[0], *allocated[1]]
    (blocks_a, *_), (blocks_b, *below) = (drawn(line, phases, scale=(min(every), max(every))) for line in allocated)
    lines = [f"A {blocks_a}", f"B {blocks_b}", *(f"  {line}" for line in below)]
    title = f"allocated after each of {len(pairs):,} ops of both: {_kinds(memory)}"
    return Table("", (Column(title, right=False),), tuple((line,) for line in lines))


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
    furthest = memory.furthest
    sides = {name.lower(): _side(side) for name, side in _named(memory)}
    return {
        "left_out": None,
        "device": memory.device,
        **sides,
        "ratios": {name: ratio(sides["b"][name], sides["a"][name]) for name in _FIGURES},
        "joined_ops": len(memory.joined),
        "offset_bytes": memory.offset_bytes,
        "furthest": None
        if furthest is None
        else {
            **_op(furthest[0]),
            "bytes": furthest[1],
            "share_of_peak": memory.furthest_share,
        },
        "differences": [
            {
                **_op(found.op),
                "growth_bytes": {"a": found.growth_a_bytes, "b": found.growth_b_bytes},
                "workspace_bytes": {"a": found.workspace_a_bytes, "b": found.workspace_b_bytes},
            }
            for found in memory.partings()
        ],
        "timeline": {
            "a": [{"op": a.op.index, "allocated_bytes": a.allocated_bytes} for a, _ in memory.joined],
            "b": [{"op": b.op.index, "allocated_bytes": b.allocated_bytes} for _, b in memory.joined],
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


def _where(op: Op, model: str) -> tuple[str, str, str]:
    return op.name.removeprefix("aten::"), op.module or model, op.phase


def _signed(value: float) -> str:
    return f"-{whole_bytes(-value)}" if value < 0 else whole_bytes(value)


def _kinds(memory: JoinedMemory) -> str:
    return f"A {memory.a.kind}, B {memory.b.kind}"


def _named(memory: JoinedMemory) -> tuple[tuple[str, SideMemory], tuple[str, SideMemory]]:
    return ("A", memory.a), ("B", memory.b)
