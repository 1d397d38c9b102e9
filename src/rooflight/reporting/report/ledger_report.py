"""The report of one step: an estimate, or a measurement beside the estimate of the same ops. First the few figures that
a reader wants, then its sections."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from rooflight import formatting, recordings, summary
from rooflight.analysis import verdict_text
from rooflight.analysis.comparison.sides import with_its_estimate
from rooflight.analysis.inferred_counts import inferred_hfu, inferred_step
from rooflight.analysis.verdict_text import far_text
from rooflight.errors import RooflightError
from rooflight.files import load
from rooflight.formatting import per_second, quotient, seconds, whole_bytes, whole_count
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger, total
from rooflight.metrics import ONCE_IT_FITS, fit_text, gain_text, percent_text, text
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.devices import devices_chart
from rooflight.reporting.charts.lanes import lanes_chart
from rooflight.reporting.charts.memory import memory_chart
from rooflight.reporting.charts.memory_course import peak_tenants_table, predicted_memory
from rooflight.reporting.charts.roofline import chart_of
from rooflight.reporting.charts.roofline_marks import NoRoofline, marks_of
from rooflight.reporting.charts.scaling import scaling_chart
from rooflight.reporting.charts.shares import shares_chart
from rooflight.reporting.charts.sweep import sweep_chart
from rooflight.reporting.document import DEPTH, Document, Fact, Section, filled
from rooflight.reporting.report.context import ReportContext, context_of
from rooflight.reporting.report.origins import origins_section
from rooflight.reporting.report.predictions import PredictedPart
from rooflight.reporting.sections import (
    estimate_tables,
    ledger_documents,
    measure_tables,
    measure_text,
    predict_tables,
    verdict_tables,
    why_tables,
)
from rooflight.reporting.sections.layer_columns import uncounted
from rooflight.reporting.sections.ledger_data import ledger_data
from rooflight.reporting.sections.predict_document import MANY_CONVENTIONS, checked_lines, conventions
from rooflight.reporting.sections.predict_tables import between
from rooflight.reporting.table import Table
from rooflight.step.changes import COMPILE_ASSUMES
from rooflight.summary.measured_step import busy_s, rates, utilisation, wall_s
from rooflight.summary.reliability import doubt


def facts_of(context: ReportContext) -> Iterator[Fact]:
    """Those that are known; what cannot be had is left out."""
    for part in (_work, _measured, _predicted_time, _bound, _memory_fact, _to_do):
        try:
            yield from part(context)
        except RooflightError:
            continue  # its section says why


def _work(context: ReportContext) -> Iterator[Fact]:
    """What the mathematics asks for, as far as formulas tell."""
    ledger = context.ledger
    if not ledger.ops:
        return
    sums = total(ledger.ops)
    unknown = uncounted(sums)
    ranks = len({op.rank for op in ledger.ops})
    label = "useful FLOPs of a step" + (f", of {ranks} ranks together" if ranks > 1 else "")
    if all(op.cost is None for op in ledger.ops):
        yield Fact(label, "–", "no op of it has a formula")
        return
    parts = [f"{formatting.count(sums.macs)} MACs"]
    parts += [f"{formatting.count(summary.params(ledger))} parameters"] if ledger.modules else []
    parts.append(f"{formatting.bytes_(sums.bytes)} moved at least")
    parts += [f"{unknown:,} ops without a formula are not in it"] if unknown else []
    yield Fact(label, f"{'≥ ' if unknown else ''}{formatting.count(sums.flops)}", " · ".join(parts))


def _measured(context: ReportContext) -> Iterator[Fact]:
    if not context.is_measured:
        return
    measured = context.measured
    wall, busy = wall_s(measured), busy_s(measured)
    used, speed = utilisation(measured), rates(measured)
    where = context.ledger.header.device or context.ledger.header.target
    if wall is not None:
        parts = [where]
        parts += [f"GPU busy {seconds(busy)}"] if busy is not None else []
        parts += [f"{per_second(speed.samples_per_s)} samples/s"] if speed.samples_per_s is not None else []
        parts += [f"MFU {formatting.percent(used.mfu)}"] if used is not None else []
        doubtful = " (unreliable, see below)" if doubt(measured) else ""
        yield Fact(f"time of a step, {measured.origin}{doubtful}", seconds(wall), " · ".join(parts))
    sums = measured.total
    if sums.executed_flops is not None:
        over = sums.executed_per_useful
        useful = total(context.ledger.ops).flops
        parts = [f"{quotient(sums.executed_flops / useful)} × the useful"] if useful else []
        parts += [f"{quotient(over)} × in ops with matrix work"] if over is not None else []
        parts += [f"DRAM {whole_bytes(sums.dram_bytes)}"] if sums.dram_bytes is not None else []
        yield Fact("executed FLOPs, counted", whole_count(sums.executed_flops), " · ".join(parts))
    elif (inferred := inferred_step(measured)) is not None:
        parts = [] if inferred.dram_bytes is None else [f"DRAM {whole_bytes(inferred.dram_bytes)}"]
        hfu = inferred_hfu(measured, inferred)
        parts += [] if hfu is None else [f"HFU {formatting.percent(hfu)}"]
        parts += [f"{len(inferred.untold):,} ops are not in it"] if inferred.untold else []
        parts.append("all by kernel names, grids and shapes")
        yield Fact("executed FLOPs, inferred, not counted", whole_count(inferred.executed), " · ".join(parts))


def _predicted_time(context: ReportContext) -> Iterator[Fact]:
    predictions = None if context.is_measured else context.predictions.devices.answer
    if not predictions:
        return
    first = predictions[0]
    yield Fact(
        f"time of a step, predicted on {first.device}",
        seconds(first.time_s),
        f"90% interval {between(first.time_interval_s)} · {per_second(first.throughput)} samples/s · "
        f"MFU {text('mfu', first.mfu)} · {text('intensity', first.intensity)} FLOP/byte · {first.tier}"
        + ("" if first.checked is None else f", {first.checked.text}"),
    )


def _bound(context: ReportContext) -> Iterator[Fact]:
    step = context.roofed.step()
    if step.bound is None:
        return
    parts = []
    if step.busy_share is not None:
        parts.append(f"the GPU is busy {min(step.busy_share, 1):.0%} of the time")
    if step.percent_of_roof is not None:
        parts.append(f"{percent_text(step.percent_of_roof)} of the attainable roof while it works")
    parts += [far_text(step)] if step.far else []
    yield Fact(f"bound by{_there(context)}", step.bound, " · ".join(parts))


def _there(context: ReportContext) -> str:
    """Where a verdict is not of the run itself."""
    step = context.roofed.step()
    return f", predicted on {step.device}" if step.times == "predicted" else ""


def _memory_fact(context: ReportContext) -> Iterator[Fact]:
    peak = context.measured.step.get("peak_allocated_bytes") if context.is_measured else None
    fits = [prediction for prediction in context.predictions.devices.answer or () if prediction.memory is not None]
    verdicts = [f"{prediction.device}: {fit_text(prediction.fit)}" for prediction in fits]
    memory = fits[0].memory if fits else None
    if peak is not None and context.ledger.header.target != "cpu":
        reserved = context.measured.step.get("peak_reserved_bytes")
        parts = [f"{whole_bytes(reserved.value)} reserved"] if reserved is not None else []
        yield Fact(
            f"memory at the peak, {context.measured.origin}", whole_bytes(peak.value), " · ".join([*parts, *verdicts])
        )
    elif memory is not None:
        yield Fact(
            f"memory at the peak, predicted on {fits[0].device}",
            whole_bytes(memory.peak_allocated_bytes),
            " · ".join([f"{whole_bytes(memory.device_bytes)} in use on the device", *verdicts]),
        )


def _to_do(context: ReportContext) -> Iterator[Fact]:
    step = context.roofed.step()
    if not step.advice:
        return
    best = step.advice[0]
    after = best.changed_kernel_time_s if best.time_s is None else best.time_s
    before = best.kernel_time_s if best.time_s is None else best.wall_time_s
    detail = f"{seconds(after)} predicted, instead of {seconds(before)} {step.times}"
    first = ONCE_IT_FITS if step.fit == "does not fit" else ""
    yield Fact(
        f"what would help most{_there(context)}{first}", best.how, f"{gain_text(best.gain)} throughput · {detail}"
    )


Said = Callable[[str], None]


def _quietly(_: str) -> None:
    pass


def ledger_report(
    ledger: Ledger, *, source: str, devices: Sequence[Device], say: Said = _quietly, only: str | None = None
) -> Document:
    """`say` is told what is being looked for, for a progress bar. `only`: one section, and no headline."""
    context = context_of(ledger, source=source, devices=devices)
    sections = []
    for name, title, section in _SECTIONS:
        if only not in (None, name):
            continue
        say(title.partition(",")[0].lower())
        try:
            part = section(context)
        except RooflightError as error:  # one that cannot be made must not take the others with it
            part = Section(missing=error.on_command_line)
        if part is not None:
            sections.append(replace(part, name=name, title=title))
    say("headline")
    return Document(
        title=ledger.header.model,
        subtitle=ledger_documents.headline(ledger),
        facts=tuple(facts_of(context)) if only is None else (),
        lines=tuple(_lines(context)) if only is None else (),
        sections=tuple(sections),
        details=context.details if ledger.ops else None,
        rows=(lambda: _plain(context, None)) if ledger.ops else None,
        data=lambda: ledger_data(ledger),
    )


def _lines(context: ReportContext) -> Iterator[str]:
    """What it costs, what bounds it, why, and what to do: a sentence each."""
    if context.is_measured:
        yield from measure_text.headlines(context.measured)
    step = context.roofed.step()
    if step.bound is not None:
        where = "" if context.roofed is context.judge else f"on {step.device}, predicted: "
        yield where + verdict_text.step_line(step)
    if context.is_measured and any(op.cost is not None for op in context.ledger.ops):
        lines = why_tables.why_lines(context.with_estimate)
        if lines:
            yield f"why estimate and measurement differ: {'; '.join(lines)}"


def _roofline(context: ReportContext) -> Section | None:
    if not context.ledger.ops:
        return None
    try:
        marks = marks_of(context.elsewhere, on=context.roofed.device, judge=context.roofed)
    except NoRoofline as error:
        return Section(missing=error.on_command_line)
    return Section(charts=(chart_of(marks, context.elsewhere),))


def _layers(context: ReportContext) -> Section | None:
    if not context.ledger.ops:
        return None
    return Section(lines=("Every module with all ops inside it.",), tree=context.tree, plain=_plain(context, DEPTH))


def _plain(context: ReportContext, depth: int | None) -> Table:
    """The tree where it cannot be folded."""
    if context.is_measured:
        return measure_tables.main_table(context.measured, depth=depth, folded=depth is not None)
    return estimate_tables.main_table(context.ledger, depth=depth, folded=depth is not None)


def _why(context: ReportContext) -> Section | None:
    if not context.is_measured or not context.ledger.ops:
        return None
    if all(op.cost is None for op in context.ledger.ops):
        return Section(missing="no op of this step has a formula, so there is nothing to compare with")
    whys = context.with_estimate
    return why_tables.why_section(whys) if whys.whys else _why_elsewhere(context.ledger)


def _why_elsewhere(ledger: Ledger) -> Section:
    """Counters were not read in this run: where a recording has the like of it, its account shows what they say."""
    header = ledger.header
    alike = [name for name in recordings.names() if f"/{header.model}-{header.step}-" in name]
    alike.sort(key=lambda name: not name.endswith(f"-{header.dtype}"))
    if not alike:
        return Section(missing="counters were not read in this run, so there is nothing to explain")
    name = f"recorded:{alike[0]}"
    recorded = load(name)
    section = why_tables.why_section(with_its_estimate(recorded, alike[0]), f", of {name}")
    line = (
        f"Counters were not read in this run. What they show of such a step stands here from {name}: "
        f"{ledger_documents.headline(recorded)}."
    )
    return replace(section, lines=(line, *section.lines))


def _advice(context: ReportContext) -> Section | None:
    judge = context.roofed
    step = judge.step()
    if step.bound is None:
        return Section(missing=step.reason)
    page = verdict_tables.verdict_document(judge, depth=2)
    where = [] if judge is context.judge else [f"It ran on a CPU: what follows is predicted on {step.device}."]
    layers, *changes = page.tables
    tables = (
        *(table.titled("Changes of the whole step") for table in changes),
        layers.titled("Layers under their roofs"),
    )
    return Section(lines=(*where, *page.lines, *page.notes), tables=tables, small_print=(verdict_text.CONVENTIONS,))


def _memory(context: ReportContext) -> Section | None:
    if not context.ledger.ops:
        return None
    on = context.devices[0] if context.devices else None
    memory = predicted_memory(context.ledger, on, measured=context.measured_or_none)
    chart = memory_chart(context.ledger, on=on, memory=memory, measured=context.measured_or_none)
    tables = [peak_tenants_table(context.ledger, on=on, memory=memory).titled("Memory at the peak, by tensor")]
    if context.is_measured:
        tables.append(measure_tables.memory_table(context.measured).titled(f"As {context.measured.origin}"))
    return Section(charts=_charts(chart), tables=filled(*tables))


def _lanes(context: ReportContext) -> Section | None:
    if not context.is_measured:
        return None
    chart = lanes_chart(context.ledger, measured=context.measured)
    tables = (
        measure_tables.time_table(context.measured).titled("Where the time of a step goes"),
        measure_tables.kernel_table(context.measured).titled("Kernels"),
    )
    missing = "" if chart is not None else "this run has no start times of kernels"
    return Section(charts=_charts(chart), tables=filled(*tables), missing=missing)


def _shares(context: ReportContext) -> Section | None:
    chart = shares_chart(context.ledger, measured=context.measured_or_none) if context.ledger.ops else None
    return None if chart is None else Section(charts=_charts(chart))


def _unanswered(part: PredictedPart) -> Section:
    return Section(missing=part.missing, commands=(part.command,) if part.command else ())


def _sweep(context: ReportContext) -> Section | None:
    part = context.predictions.sweep
    if part.answer is None:
        return _unanswered(part)
    return Section(
        charts=_charts(sweep_chart(part.answer)),
        tables=filled(*predict_tables.pivot_tables(part.answer)),
        lines=("Predicted for each batch and device, without running it there.", *_as_what(context.ledger)),
    )


def _as_what(ledger: Ledger) -> tuple[str, ...]:
    """How the step is predicted where that is not how it ran."""
    return (f"Predicted as compiled: {COMPILE_ASSUMES}.",) if ledger.header.is_compiled else ()


def _devices(context: ReportContext) -> Section | None:
    part = context.predictions.devices
    if part.answer is None:
        return Section(missing=part.missing, lines=context.left_out)
    return Section(
        charts=_charts(devices_chart(part.answer)),
        tables=filled(predict_tables.main_table(part.answer)),
        lines=(*_as_what(context.ledger), *context.left_out, *map(str, part.answer.notes), *checked_lines(part.answer)),
        small_print=tuple(conventions(part.answer)),
    )


def _scaling(context: ReportContext) -> Section | None:
    if context.ledger.header.step != "train":
        return None
    part = context.predictions.scaling
    many = None if part.answer is None else part.answer[0].many
    if part.answer is None or many is None:
        return _unanswered(part)
    tables = (
        predict_tables.scaling_table("weak", many.weak).titled("Weak scaling: each GPU keeps its batch"),
        predict_tables.scaling_table("strong", many.strong).titled("Strong scaling: the whole batch is divided"),
    )
    where = f"Data parallel on {part.answer[0].device}, predicted."
    return Section(
        charts=_charts(scaling_chart(part.answer)),
        tables=filled(*tables),
        lines=(where, *_as_what(context.ledger), *many.assumptions, *map(str, many.notes)),
        small_print=(MANY_CONVENTIONS,),
    )


def _origins(context: ReportContext) -> Section | None:
    return origins_section(context.given, context.measured, context.source, context.devices)


_SECTIONS: tuple[tuple[str, str, Callable[[ReportContext], Section | None]], ...] = (
    ("roofline", "Roofline", _roofline),
    ("layers", "Layers", _layers),
    ("why", "Why estimate and measurement differ", _why),
    ("verdict", "What bounds it, and what would help", _advice),
    ("memory", "Memory", _memory),
    ("lanes", "The step over time", _lanes),
    ("shares", "Shares by type of layer", _shares),
    ("sweep", "Other batches", _sweep),
    ("devices", "Other devices", _devices),
    ("scaling", "Many GPUs", _scaling),
    ("origins", "Conventions, origins, and how to repeat it", _origins),
)
"""In the order of the page."""
SECTIONS = tuple(name for name, _, _ in _SECTIONS)
STEPS = len(_SECTIONS) + 1
"""How often `say` is called: for each section, and for the headline."""


def _charts(chart: Chart | None) -> tuple[Chart, ...]:
    return () if chart is None else (chart,)
