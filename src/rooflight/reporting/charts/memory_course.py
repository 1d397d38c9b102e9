"""The course of memory through a step, by the layers of a picture or as blocks in a line of text: as predicted, or as
the allocator told it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, pairwise
from typing import Any

from rooflight import formatting
from rooflight.formatting import whole_bytes
from rooflight.hardware.device import Device
from rooflight.hardware.devices import find, known, recognise_name
from rooflight.ledger import Header, Ledger
from rooflight.memory.peak import category_word
from rooflight.memory.result import Memory, Tenant, Timeline
from rooflight.memory.storage_lifetimes import WEIGHT_COPY
from rooflight.prediction.rebuilt import as_run_on, traces_of
from rooflight.prediction.resolve_devices import memories_on
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table, cut
from rooflight.step.costed_step import own_step
from rooflight.summary.activation_gradients import ACTIVATION_GRADIENT
from rooflight.summary.measured import Measured
from rooflight.summary.memory_growth import MemoryMoment

WIDTH = 72
_BLOCKS = "▁▂▃▄▅▆▇█"


def timeline_table(measured: Measured, width: int = WIDTH) -> Table:
    """One block for each op, or for several: the most after any of them. Between two ops it may have been more."""
    moments = _of_first_rank(measured)
    if not moments:
        return Table("", (), ())
    ops = measured.ledger.ops
    most = max(moments, key=lambda moment: moment.after_bytes)
    peak = ops[most.index]
    where = peak.module or measured.ledger.header.model
    lines = drawn([moment.after_bytes for moment in moments], [ops[moment.index].phase for moment in moments], width)
    lines.append(cut(f"most after op {peak.index:,} of {len(ops):,}, {peak.phase}: {peak.name} in {where}", WIDTH))
    of_rank = f", rank {moments[0].rank}" if len(measured.ranks) > 1 else ""
    return Table("", (Column(f"allocated after each op{of_rank}", right=False),), tuple((line,) for line in lines))


def drawn(
    values: Sequence[float], phases: Sequence[str], width: int = WIDTH, *, scale: tuple[float, float] | None = None
) -> list[str]:
    """The blocks, the phases below them, and what the lowest and the highest block stand for.

    `scale`: these two, where several lines are to be read together; else the least and the most of the values.
    """
    parts = _stretches(len(values), width)
    least, most = scale or (min(values), max(values))
    lines = [_blocks([max(values[start:end]) for start, end in parts], least, most)]
    if len(set(phases)) > 1:
        lines.append(_phases([phases[start] for start, _ in parts]))
    lines.append(f"{_BLOCKS[0]} {whole_bytes(least)}   {_BLOCKS[-1]} {whole_bytes(most)}")
    return lines


def _blocks(heights: Sequence[float], least: float, most: float) -> str:
    """From the least to the most: what was there before the step would flatten the line."""
    high, span = len(_BLOCKS) - 1, most - least
    return "".join(_BLOCKS[round(high * (height - least) / span) if span > 0 else 0] for height in heights)


def _phases(firsts: Sequence[str]) -> str:
    """The name of each phase where it begins, as much of it as there is room for."""
    runs = ((phase, len(list(run))) for phase, run in groupby(firsts))
    return "".join(phase[: count - 1].ljust(count, "·") for phase, count in runs)


def _of_first_rank(measured: Measured) -> list[MemoryMoment]:
    moments = measured.timeline.moments
    return [moment for moment in moments if moment.rank == moments[0].rank]


def _stretches(count: int, most: int) -> list[tuple[int, int]]:
    """So many things in at most so many parts, each from its first to the next one's."""
    parts = min(count, most)
    return list(pairwise([count * n // parts for n in range(parts + 1)]))


MOST_PLACES = 300
"""Places on the axis of ops: of a longer step the fullest op of each stretch is drawn."""
_UNLESS_NAMED = "h200"
"""For an estimate that names no device: the one that `rooflight predict` takes, too."""

Row = dict[str, Any]

LAYERS: dict[str, tuple[str, ...]] = {
    "parameters": ("parameter", "buffer", WEIGHT_COPY, "gathered"),
    "optimizer state": ("optimizer-state",),
    "gradients": ("gradient", "bucket"),
    "inputs, outputs, libraries": ("input", "output", "libraries", "rounding"),
    "activations": ("activation",),
    "activation gradients": (ACTIVATION_GRADIENT,),
    "temporaries": ("temporary",),
    "workspace": ("workspace",),
}
"""From the bottom up, what stays for the whole run first: the categories of each."""


def predicted_memory(ledger: Ledger, on: Device | None = None, *, measured: Measured | None = None) -> Memory | None:
    """From the ledger's own ops and storages; `None`: it has none, or those of several ranks.

    `on`: for a GPU step that was not measured on another device. `measured`: of this ledger, where somebody has it.
    """
    if not ledger.ops or not ledger.storages or len({op.rank for op in ledger.ops}) > 1:
        return None
    device = _predicted_on(ledger, on)
    there, _ = as_run_on(ledger, device, traces_of(ledger))
    step = own_step(there) if measured is None or there is not measured.ledger else measured.once(own_step)
    return memories_on(device).of(step, device, timeline=True)


def _predicted_on(ledger: Ledger, on: Device | None) -> Device:
    device = recognise_name(ledger.header.device) or on
    kind = "cpu" if ledger.header.target.partition(":")[0] == "cpu" else "gpu"
    if device is not None and device.kind == kind:
        return device
    return find(_UNLESS_NAMED) if kind == "gpu" else next(device for device in known() if device.kind == "cpu")


def predicted_for(ledger: Ledger, on: Device | None = None) -> str:
    """`predicted for NVIDIA H200 SXM 141 GB`; what a CPU's allocator gives out does not depend on which CPU it is."""
    device = _predicted_on(ledger, on)
    return f"predicted for {device.title if device.kind == 'gpu' else 'a CPU'}"


def course_of(memory: Memory) -> list[Row]:
    """Bytes by layer at each place that is drawn, that of the peak among them as it was there."""
    timeline, peak = memory.timeline, memory.peak
    if timeline is None or not timeline.allocated:
        return []
    workspace = timeline.categories.get("workspace", (0,) * len(timeline.allocated))
    reached = [after + inside for after, inside in zip(timeline.allocated, workspace, strict=True)]
    if is_of_this_course(memory):
        reached[peak.op] = memory.peak_allocated_bytes
    rows = []
    for start, end in _stretches(len(reached), MOST_PLACES):
        op = max(range(start, end), key=lambda place: reached[place])
        at_peak = op == peak.op and is_of_this_course(memory)
        split = by_layer(peak.split if at_peak else split_at(timeline, op))
        rows.append({"op": op, "start": start, "end": end, "bytes": split})
    return rows


def is_of_this_course(memory: Memory) -> bool:
    """The timeline is of a later step: a first step that is higher lacks, until its end, the optimizer's state."""
    timeline = memory.timeline
    if timeline is None or memory.peak.op >= len(timeline.allocated):
        return False
    state = timeline.categories.get("optimizer-state")
    return memory.peak.split.get("optimizer-state", 0) == (state[memory.peak.op] if state else 0)


def split_at(timeline: Timeline, op: int) -> dict[str, int]:
    split = {name: values[op] for name, values in timeline.categories.items()}
    given = sum(split.values()) - split.get("workspace", 0)
    return {**split, "rounding": timeline.allocated[op] - given}


def by_layer(split: dict[str, int]) -> dict[str, int]:
    return {layer: sum(max(split.get(name, 0), 0) for name in names) for layer, names in LAYERS.items()}


def measured_line(measured: Measured | None) -> list[Row]:
    """What the allocator said after each op; of several ranks the first, of each stretch the most."""
    moments = [] if measured is None else _of_first_rank(measured)
    stretches = _stretches(len(moments), MOST_PLACES) if moments else []
    fullest = (max(moments[start:end], key=lambda moment: moment.after_bytes) for start, end in stretches)
    return [{"op": moment.index, "bytes": moment.after_bytes, "side": "measured"} for moment in fullest]


def peak_tenants_table(ledger: Ledger, *, on: Device | None = None, memory: Memory | None = None) -> Table:
    """Memory at the peak, by tensor: identical ones together, the largest first, and the rest. Empty where nothing
    tells it. `memory`: where that is known already."""
    memory = memory or predicted_memory(ledger, on)
    if memory is None:
        return Table("", (), ())
    columns = (
        Column("tensor", right=False),
        Column("module", right=False, optional=2),
        Column("category", right=False),
        Column("shape", right=False, optional=1),
        Column("dtype", right=False, optional=3),
        Column("count", formatting.exact, optional=4),
        column("bytes"),
        column("share"),
    )
    peak_bytes = memory.peak_allocated_bytes
    rows = [_tenant_row(tenant, peak_bytes, ledger.header) for tenant in memory.peak.tenants]
    rest = peak_bytes - sum(tenant.bytes for tenant in memory.peak.tenants)
    if rest > 0:
        rows.append(("everything else", "", "", "", "", None, rest, rest / peak_bytes if peak_bytes else None))
    rows.append(("allocated at the peak", "", "", "", "", None, peak_bytes, 1.0))
    note = f"What is alive at the peak, {predicted_for(ledger, on)}."
    return Table("", columns, tuple(rows), frozenset({len(rows) - 1}), note=note)


def _tenant_row(tenant: Tenant, peak_bytes: int, header: Header) -> tuple[Any, ...]:
    more = f" and {tenant.count - 1} more" if tenant.count > 1 and tenant.module else ""
    return (
        tenant.name.removeprefix("aten::"),
        f"{tenant.module}{more}",
        category_word(tenant.category, header),
        formatting.shape(tenant.shape) if tenant.dtype else "",
        tenant.dtype,
        tenant.count,
        tenant.bytes,
        tenant.bytes / peak_bytes,
    )
