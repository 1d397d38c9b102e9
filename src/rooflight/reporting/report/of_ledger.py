"""The report of one step: an estimate, or a measurement beside the estimate of the same ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace as replace_section

from rooflight import recorded
from rooflight.comparison.sides import Comparison, with_its_estimate
from rooflight.errors import RooflightError
from rooflight.files import load
from rooflight.hardware.device import Device
from rooflight.ledger import Ledger
from rooflight.prediction.changes import COMPILE_ASSUMES
from rooflight.reporting import (
    estimate_tables,
    measure_tables,
    measure_text,
    predict_tables,
    step_tables,
    text,
    verdict_tables,
    verdict_text,
    why_tables,
)
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.document import DEPTH, Document, Section, filled
from rooflight.reporting.ledger_data import ledger_data
from rooflight.reporting.report.headline import facts_of
from rooflight.reporting.report.origins import origins_section
from rooflight.reporting.report.told import Told, told_of
from rooflight.reporting.table import Table

Said = Callable[[str], None]


def _quietly(_: str) -> None:
    pass


def ledger_report(ledger: Ledger, *, source: str, devices: Sequence[Device], say: Said = _quietly) -> Document:
    """`say` is told what is being looked for, for a progress bar."""
    told = told_of(ledger, source=source, devices=devices)
    sections = []
    for name, title, section in _SECTIONS:
        say(title.partition(",")[0].lower())
        try:
            found = section(told)
        except RooflightError as error:  # one that cannot be made must not take the others with it
            found = Section(name, title, missing=error.on_command_line)
        if found is not None:
            sections.append(replace_section(found, name=name, title=title))
    say("headline")
    return Document(
        title=ledger.header.model, subtitle=text.headline(ledger), facts=tuple(facts_of(told)),
        lines=tuple(_lines(told)), sections=tuple(sections), details=told.details if ledger.ops else None,
        rows=(lambda: _plain(told, None)) if ledger.ops else None, data=lambda: ledger_data(ledger),
    )  # fmt: skip


def _lines(told: Told) -> Iterator[str]:
    """What it costs, what bounds it, why, and what to do: a sentence each."""
    if told.is_measured:
        yield from measure_text.headlines(told.measured)
    step = told.roofed.step()
    if step.bound is not None:
        where = "" if told.roofed is told.judge else f"on {step.device}, predicted: "
        yield where + verdict_text.step_line(step)
    if told.is_measured and any(op.cost is not None for op in told.ledger.ops):
        lines = why_tables.why_lines(told.with_estimate)
        if lines:
            yield f"why estimate and measurement differ: {'; '.join(lines)}"


def _roofline(told: Told) -> Section | None:
    from rooflight.reporting.charts.roofline import chart_of
    from rooflight.reporting.roofline_marks import NoRoofline, marks_of

    if not told.ledger.ops:
        return None
    try:
        marks = marks_of(told.elsewhere, on=told.roofed.device, judge=told.roofed)
    except NoRoofline as error:
        return Section(missing=error.on_command_line)
    return Section(charts=(chart_of(marks, told.elsewhere),))


def _layers(told: Told) -> Section | None:
    if not told.ledger.ops:
        return None
    return Section(lines=("Every module with all that runs inside it.",), tree=told.tree, plain=_plain(told, DEPTH))


def _plain(told: Told, depth: int | None) -> Table:
    """The tree where it cannot be folded."""
    if told.is_measured:
        return measure_tables.main_table(told.measured, depth=depth, folded=depth is not None)
    return estimate_tables.main_table(told.ledger, depth=depth, folded=depth is not None)


def _why(told: Told) -> Section | None:
    if not told.is_measured or not told.ledger.ops:
        return None
    if all(op.cost is None for op in told.ledger.ops):
        return Section(missing="no op of this step has a formula, so there is nothing to compare with")
    whys = told.with_estimate
    if not whys.whys:
        return _why_elsewhere(told.ledger)
    return Section(lines=tuple(why_tables.why_lines(whys)), tables=_why_tables(whys),
                   small_print=(why_tables.CONVENTIONS,))  # fmt: skip


def _why_tables(comparison: Comparison, of: str = "") -> tuple[Table, ...]:
    return tuple(why_tables.why_table(one).titled(f"{one.quantity}{of}") for one in comparison.whys)


def _why_elsewhere(ledger: Ledger) -> Section:
    """Counters were not read in this run: where a recording has the like of it, its account shows what they say."""
    header = ledger.header
    alike = [name for name in recorded.names() if f"/{header.model}-{header.step}-" in name]
    alike.sort(key=lambda name: not name.endswith(f"-{header.dtype}"))
    if not alike:
        return Section(missing="counters were not read in this run, so there is nothing to explain")
    name = alike[0]
    found = load(f"recorded:{name}")
    comparison = with_its_estimate(found, name)
    said = (f"Counters were not read in this run. What they show of such a step stands here from recorded:{name}: "
            f"{text.headline(found)}.")  # fmt: skip
    tables = _why_tables(comparison, f", of recorded:{name}")
    return Section(lines=(said, *why_tables.why_lines(comparison)), tables=tables,
                   small_print=(why_tables.CONVENTIONS,))  # fmt: skip


def _advice(told: Told) -> Section | None:
    judge = told.roofed
    step = judge.step()
    if step.bound is None:
        return Section(missing=step.reason)
    page = verdict_tables.verdict_document(judge, depth=2)
    where = [] if judge is told.judge else [f"It ran on a CPU: what follows is predicted on {step.device}."]
    tables = (verdict_tables.step_table(judge).titled("Changes of the whole step"),
              verdict_tables.verdict_table(judge, depth=2).titled("Layers under their roofs"))  # fmt: skip
    return Section(lines=(*where, *page.lines, *page.notes),
                   tables=filled(*tables), small_print=(verdict_text.CONVENTIONS,))  # fmt: skip


def _memory(told: Told) -> Section | None:
    from rooflight.reporting.charts.memory import memory_chart
    from rooflight.reporting.charts.memory_course import peak_tenants_table, predicted_memory

    if not told.ledger.ops:
        return None
    on = told.devices[0] if told.devices else None
    memory = predicted_memory(told.ledger, on)
    chart = memory_chart(told.ledger, on=on, memory=memory)
    tables = [peak_tenants_table(told.ledger, on=on, memory=memory).titled("Memory at the peak, by tensor")]
    if told.is_measured:
        tables.append(step_tables.memory_table(told.measured).titled(f"As {told.measured.origin}"))
    return Section(charts=_charts(chart), tables=filled(*tables))


def _lanes(told: Told) -> Section | None:
    from rooflight.reporting.charts.lanes import lanes_chart

    if not told.is_measured:
        return None
    chart = lanes_chart(told.ledger)
    tables = (step_tables.time_table(told.measured).titled("Where the time of a step goes"),
              step_tables.kernel_table(told.measured).titled("Kernels"))  # fmt: skip
    missing = "" if chart is not None else "nothing in this run tells when its kernels ran"
    return Section(charts=_charts(chart), tables=filled(*tables), missing=missing)


def _shares(told: Told) -> Section | None:
    from rooflight.reporting.charts.shares import shares_chart

    chart = shares_chart(told.ledger) if told.ledger.ops else None
    return None if chart is None else Section(charts=_charts(chart))


def _sweep(told: Told) -> Section | None:
    from rooflight.reporting.charts.sweep import sweep_chart

    part = told.outlook.sweep
    found = part.found
    if found is None:
        return Section(missing=part.missing, commands=(part.command,) if part.command else ())
    tables = predict_tables.pivot_tables(found)
    said = ("Predicted, each batch on each device, before anything ran there.", *_as_what(told.ledger))
    return Section(charts=_charts(sweep_chart(found)), tables=filled(*tables), lines=said)  # fmt: skip


def _as_what(ledger: Ledger) -> tuple[str, ...]:
    """How the step is predicted where that is not how it ran."""
    if not ledger.header.is_compiled:
        return ()
    return (f"Predicted as compiled: {COMPILE_ASSUMES}.",)


def _devices(told: Told) -> Section | None:
    from rooflight.reporting.charts.devices import devices_chart

    found, missing = told.outlook.devices.found, told.outlook.devices.missing
    if found is None:
        return Section(missing=missing, lines=told.left_out)
    from rooflight.reporting.predict_document import conventions

    return Section(charts=_charts(devices_chart(found)), tables=filled(predict_tables.main_table(found)),
                   lines=(*_as_what(told.ledger), *told.left_out, *found.notes),
                   small_print=tuple(conventions(found)))  # fmt: skip


def _scaling(told: Told) -> Section | None:
    from rooflight.reporting import predict_many_tables
    from rooflight.reporting.charts.scaling import scaling_chart
    from rooflight.reporting.predict_document import MANY_CONVENTIONS

    if told.ledger.header.step != "train":
        return None
    part = told.outlook.scaling
    found = part.found
    many = None if found is None else found[0].many
    if found is None or many is None:
        return Section(missing=part.missing, commands=(part.command,) if part.command else ())
    tables = (predict_many_tables.scaling_table("weak", many.weak).titled("Weak scaling: each GPU keeps its batch"),
              predict_many_tables.scaling_table("strong", many.strong).titled(
                  "Strong scaling: the whole batch is divided"))  # fmt: skip
    return Section(charts=_charts(scaling_chart(found)), tables=filled(*tables),
                   lines=(f"Data parallel on {found[0].device}, predicted.", *_as_what(told.ledger), *many.assumptions,
                          *many.notes), small_print=(MANY_CONVENTIONS,))  # fmt: skip


def _origins(told: Told) -> Section | None:
    return origins_section(told.given, told.measured, told.source, told.devices)


_SECTIONS: tuple[tuple[str, str, Callable[[Told], Section | None]], ...] = (
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
STEPS = len(_SECTIONS) + 1
"""How often `say` is called: for each section, and for the headline."""


def _charts(chart: Chart | None) -> tuple[Chart, ...]:
    return () if chart is None else (chart,)
