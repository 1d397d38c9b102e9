"""Predicted memory as tables: what it is made of at its highest, how it goes through the step, what takes less."""

from __future__ import annotations

from collections.abc import Sequence

from rooflight import formatting
from rooflight.formatting import whole_bytes
from rooflight.ledger import Header
from rooflight.memory.peak import WORDS, category_word
from rooflight.memory.result import Memory, Timeline
from rooflight.metrics import fit_text
from rooflight.prediction.result import MemorySaving, Prediction, Predictions, SizeLimit
from rooflight.reporting.charts.memory_course import drawn
from rooflight.reporting.columns import column
from rooflight.reporting.table import Column, Table

_MOST_STRETCHES = 9
"""With more phases than this, as many micro-batches have, their ends are not listed."""


def split_table(memory: Memory, header: Header, title: str) -> Table:
    """The allocated peak, category by category, then what is around it."""
    rows: list[tuple[str, int, float | None]] = [
        (category_word(name, header), nbytes, nbytes / memory.peak_allocated_bytes)
        for name, nbytes in memory.peak.split.items()
    ]
    rows.append(("allocated at the peak", memory.peak_allocated_bytes, 1.0))
    emphasised = {len(rows) - 1}
    if memory.peak_reserved_bytes is not None and memory.outside_bytes is not None:
        rows += [
            ("cached and fragmented", memory.peak_reserved_bytes - memory.peak_allocated_bytes, None),
            ("reserved at the peak", memory.peak_reserved_bytes, None),
            ("CUDA context and libraries", memory.outside_bytes, None),
            ("in use on the device", memory.device_bytes, None),
        ]
        emphasised |= {len(rows) - 3, len(rows) - 1}
    columns = (Column("memory", right=False), column("bytes"), column("share", write=_share))
    return Table(title, columns, tuple(rows), emphasised=frozenset(emphasised))


def _share(value: float | None) -> str:
    return "" if value is None else formatting.percent(value)


def peak_words(memory: Memory, model: str) -> str:
    """Where it happens."""
    peak = memory.peak
    where = peak.module or model
    return f"in {peak.name.removeprefix('aten::')} of {where}, {peak.phase}"


def tenant_table(memory: Memory, header: Header, title: str) -> Table:
    """The largest things alive at the peak."""
    columns = (
        Column("alive at the peak", right=False),
        Column("module", right=False, optional=2),
        Column("category", right=False),
        Column("shape", right=False, optional=1),
        Column("dtype", right=False, optional=3),
        Column("count", formatting.exact),
        column("bytes"),
    )
    rows = tuple(
        (
            one.name.removeprefix("aten::"),
            one.module,
            category_word(one.category, header),
            formatting.shape(one.shape) if one.dtype else "",
            one.dtype,
            one.count,
            one.bytes,
        )
        for one in memory.peak.tenants
    )
    return Table(title, columns, rows)


def timeline_tables(timeline: Timeline, title: str) -> list[Table]:
    """One line of blocks, and what there is of each category at the ends of the phases."""
    phases = _phase_of_every_op(timeline)
    lines = drawn(timeline.allocated, phases)
    made = [Table("", (Column(f"allocated after each op{title}", right=False),), tuple((line,) for line in lines))]
    places = [0, *(start - 1 for _, start in timeline.phases[1:]), len(timeline.allocated) - 1]
    names = ["after the first op", *(f"after {phase}" for phase, _ in timeline.phases)]
    if len(places) > _MOST_STRETCHES:
        return made
    shown = [name for name in timeline.categories if name != "workspace"]
    columns = [Column("live bytes", right=False), column("peak_allocated_bytes", raw="allocated")]
    columns += [Column(WORDS[name], whole_bytes, optional=number) for number, name in enumerate(shown)]
    rows = tuple(
        (name, timeline.allocated[place], *(timeline.categories[kind][place] for kind in shown))
        for name, place in zip(names, places, strict=True)
    )
    return [*made, Table("", tuple(columns), rows)]


def _phase_of_every_op(timeline: Timeline) -> list[str]:
    ends = [start for _, start in timeline.phases[1:]] + [len(timeline.allocated)]
    return [phase for (phase, start), end in zip(timeline.phases, ends, strict=True) for _ in range(end - start)]


def saving_table(savings: Sequence[MemorySaving], title: str) -> Table:
    columns = (
        Column("with", right=False, whole=True),
        Column("on the device", whole_bytes),
        column("fit", raw="fits"),
        column("saved_bytes", raw="saved", optional=1),
        column("time_s", optional=2),
        column("samples_per_s", optional=3),
        column("peak_allocated_bytes", raw="allocated", optional=4),
        Column("what it is", right=False, optional=5, raw="change"),
    )
    rows = tuple(
        (
            one.options,
            one.device_bytes,
            one.fit,
            one.saved_bytes,
            one.time_s,
            one.throughput,
            one.peak_allocated_bytes,
            one.change,
        )
        for one in savings
    )
    return Table(title, columns, rows)


def limit_line(limit: SizeLimit, *, several: bool, many: bool = False, decoding: bool = False) -> str:
    """`the largest batch that fits: 1,464 (149 GB of 150 GB; 1,465 would not), ...`."""
    if limit.what == "batch":
        what = "batch of a replica" if many else "batch"
    else:
        what = "sequence in the cache" if decoding else "sequence"
    best = "largest" if limit.what == "batch" else "longest"
    at = f" at batch {limit.batch:,}" if limit.batch is not None else ""
    on = f" on {limit.device}" if several else ""
    wide = limit.with_expandable_segments
    more = f"; {wide:,} with PYTORCH_CUDA_ALLOC_CONF={limit.expandable_settings}" if (wide or 0) > limit.value else ""
    if not limit.value:
        return f"no {what} fits{on}{at}: {limit.why or f'not even {limit.fails or 1}'}{more}"
    needs = ""
    if limit.memory is not None:
        needs = f"{formatting.bytes_(limit.memory.device_bytes)} of {formatting.bytes_(limit.memory.usable_bytes)}"
    careful = int(0.9 * limit.value) // limit.unit * limit.unit
    margin = f"; about {careful:,} with a margin of 10%" if careful else ""
    after = f"{limit.fails:,} would not{margin}" if limit.fails is not None else limit.why or "no larger one was tried"
    said = "; ".join(part for part in (needs, after) if part)
    return f"the {best} {what} that fits{on}{at}: {limit.value:,} ({said}){more}; {limit.how}"


def memory_line(memory: Memory, *, each: bool) -> str:
    """The three numbers, and whether it fits."""
    verdict = fit_text(memory.fit)
    if memory.fit == "barely":
        verdict += ": cached blocks are given back, which waits for the GPU"
    has = formatting.bytes_(memory.usable_bytes)
    if memory.peak_reserved_bytes is None:
        return f"memory: {formatting.bytes_(memory.peak_allocated_bytes)} allocated at its peak, of {has}: {verdict}"
    of_each = " of each GPU" if each else ""
    return (
        f"memory{of_each}: {formatting.bytes_(memory.peak_allocated_bytes)} allocated at its peak, "
        f"{formatting.bytes_(memory.peak_reserved_bytes)} reserved, {formatting.bytes_(memory.device_bytes)} with "
        f"context and libraries, of {has}: {verdict}"
    )


def _stage(one: Prediction) -> str:
    many, memory = one.many, one.memory
    if many is None or many.pipeline == 1 or memory is None or memory.stage is None:
        return ""
    return f", on stage {memory.stage + 1} of {many.pipeline}, the fullest"


def tables(found: Predictions, one: Prediction, of: str) -> list[Table]:
    """What is shown of one prediction's memory."""
    memory = one.memory
    if memory is None:
        return []
    where = peak_words(memory, found.header.model)
    made = [split_table(memory, found.header, f"memory at the peak, {where}{_stage(one)}{of}")]
    if memory.timeline is not None:
        made += [tenant_table(memory, found.header, ""), *timeline_tables(memory.timeline, of)]
    if found.savings:
        about = found.savings[0]
        which = "" if len(found) == 1 else f" · {about.device} · batch {about.batch:,}"
        made.append(saving_table(found.savings, f"what would take less memory, predicted in the same way{which}"))
    return made
