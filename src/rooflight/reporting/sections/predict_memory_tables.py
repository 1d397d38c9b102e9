"""Predicted memory as tables: what it is made of at its highest, how it goes through the step, what takes less."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rooflight import formatting
from rooflight.formatting import whole_bytes
from rooflight.ledger import Header
from rooflight.memory.peak import WORDS, category_word
from rooflight.memory.result import Memory, Tenant, Timeline
from rooflight.metrics import fit_text
from rooflight.prediction.result import MemorySaving, Prediction, Predictions, SizeLimit
from rooflight.reporting.charts.memory_course import drawn
from rooflight.reporting.columns import column
from rooflight.reporting.table import Cells, Column, Table, lines_table, table_of

_MOST_STRETCHES = 9
"""With more phases than this, as many micro-batches have, their ends are not listed."""


def split_table(memory: Memory, header: Header, title: str) -> Table:
    """The allocated peak, category by category, then what is around it."""
    allocated, reserved, cached = memory.peak_allocated_bytes, memory.peak_reserved_bytes, memory.cached_bytes
    split = [(category_word(name, header), nbytes) for name, nbytes in memory.peak.split.items()]
    rows = [*((name, nbytes, nbytes / allocated) for name, nbytes in split), ("allocated at the peak", allocated, 1.0)]
    around: list[tuple[str, int]] = []
    if reserved is not None and cached is not None and memory.outside_bytes is not None:
        around = [
            ("cached and fragmented", cached),
            ("reserved at the peak", reserved),
            ("CUDA context and libraries", memory.outside_bytes),
            ("in use on the device", memory.device_bytes),
        ]
    columns: Cells[tuple[str, int, float | None]] = [
        (Column("memory", right=False), lambda row: row[0]),
        (column("bytes"), lambda row: row[1]),
        (column("share", write=_share), lambda row: row[2]),
    ]
    sums = frozenset(range(len(split), len(split) + len(around) + 1, 2))
    table = table_of(columns, [*rows, *((name, nbytes, None) for name, nbytes in around)], title=title)
    return replace(table, emphasised=sums)


def _share(value: float | None) -> str:
    return "" if value is None else formatting.percent(value)


def peak_words(memory: Memory, model: str) -> str:
    """Where it happens."""
    peak = memory.peak
    where = peak.module or model
    return f"in {peak.name.removeprefix('aten::')} of {where}, {peak.phase}"


def tenant_table(memory: Memory, header: Header, title: str) -> Table:
    """The largest things alive at the peak."""
    columns: Cells[Tenant] = [
        (Column("alive at the peak", right=False), lambda tenant: tenant.name.removeprefix("aten::")),
        (Column("module", right=False, optional=2), lambda tenant: tenant.module),
        (Column("category", right=False), lambda tenant: category_word(tenant.category, header)),
        (
            Column("shape", right=False, optional=1),
            lambda tenant: formatting.shape(tenant.shape) if tenant.dtype else "",
        ),
        (Column("dtype", right=False, optional=3), lambda tenant: tenant.dtype),
        (Column("count", formatting.exact), lambda tenant: tenant.count),
        (column("bytes"), lambda tenant: tenant.bytes),
    ]
    return table_of(columns, memory.peak.tenants, title=title)


def timeline_tables(timeline: Timeline, title: str) -> list[Table]:
    """One line of blocks, and what there is of each category at the ends of the phases."""
    blocks = lines_table(f"allocated after each op{title}", drawn(timeline.allocated, _phase_of_every_op(timeline)))
    places = [0, *(start - 1 for _, start in timeline.phases[1:]), len(timeline.allocated) - 1]
    if len(places) > _MOST_STRETCHES:
        return [blocks]

    def at(values: Sequence[int]) -> Callable[[tuple[str, int]], int]:
        return lambda end: values[end[1]]

    columns: Cells[tuple[str, int]] = [
        (Column("live bytes", right=False), lambda end: end[0]),
        (column("peak_allocated_bytes", raw="allocated"), at(timeline.allocated)),
    ]
    shown = [name for name in timeline.categories if name != "workspace"]
    columns += [
        (Column(WORDS[name], whole_bytes, optional=number), at(timeline.categories[name]))
        for number, name in enumerate(shown)
    ]
    names = ["after the first op", *(f"after {phase}" for phase, _ in timeline.phases)]
    return [blocks, table_of(columns, list(zip(names, places, strict=True)))]


def _phase_of_every_op(timeline: Timeline) -> list[str]:
    ends = [start for _, start in timeline.phases[1:]] + [len(timeline.allocated)]
    return [phase for (phase, start), end in zip(timeline.phases, ends, strict=True) for _ in range(end - start)]


def saving_table(savings: Sequence[MemorySaving], title: str) -> Table:
    columns: Cells[MemorySaving] = [
        (Column("with", right=False, whole=True), lambda saving: saving.options),
        (Column("on the device", whole_bytes), lambda saving: saving.device_bytes),
        (column("fit", raw="fits"), lambda saving: saving.fit),
        (column("saved_bytes", raw="saved", optional=1), lambda saving: saving.saved_bytes),
        (column("time_s", optional=2), lambda saving: saving.time_s),
        (column("samples_per_s", optional=3), lambda saving: saving.throughput),
        (column("peak_allocated_bytes", raw="allocated", optional=4), lambda saving: saving.peak_allocated_bytes),
        (Column("what it is", right=False, optional=5, raw="change"), lambda saving: saving.change),
    ]
    return table_of(columns, savings, title=title)


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


def _stage(prediction: Prediction) -> str:
    many, memory = prediction.many, prediction.memory
    if many is None or many.pipeline == 1 or memory is None or memory.stage is None:
        return ""
    return f", on stage {memory.stage + 1} of {many.pipeline}, the fullest"


def tables(predictions: Predictions, prediction: Prediction, of: str) -> list[Table]:
    """What is shown of one prediction's memory."""
    memory, header = prediction.memory, predictions.header
    if memory is None:
        return []
    where = peak_words(memory, header.model)
    shown = [split_table(memory, header, f"memory at the peak, {where}{_stage(prediction)}{of}")]
    if memory.timeline is not None:
        shown += [tenant_table(memory, header, ""), *timeline_tables(memory.timeline, of)]
    if predictions.savings:
        about = predictions.savings[0]
        which = "" if len(predictions) == 1 else f" · {about.device} · batch {about.batch:,}"
        title = f"what would take less memory, predicted in the same way{which}"
        shown.append(saving_table(predictions.savings, title))
    return shown
