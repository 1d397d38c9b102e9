"""`rooflight.report`: what is known of a ledger, a pair or a study, as a page, as tables, or as pictures."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rooflight.analysis.claims import check, read_claims
from rooflight.analysis.claims.claim import Claim
from rooflight.errors import BadInput
from rooflight.files import load, write_atomically
from rooflight.hardware.device import Device
from rooflight.hardware.devices import USUAL, find, recognise_name
from rooflight.ledger import Ledger
from rooflight.prediction.resolve_devices import devices_of
from rooflight.profiles.joined_ranks import join
from rooflight.reporting.charts.bars import bars_chart, usual_amount
from rooflight.reporting.charts.lines import batch_chart
from rooflight.reporting.charts.region_times import course_chart, parts_chart
from rooflight.reporting.charts.roofline import chart_of
from rooflight.reporting.charts.roofline_marks import NoRoofline, marks_of
from rooflight.reporting.document import Document, Section
from rooflight.reporting.report.ledger_report import SECTIONS, ledger_report
from rooflight.reporting.report.origins import origins_section
from rooflight.reporting.report.pair_report import pair_report
from rooflight.reporting.report.step_rows import steps_of_ledger, steps_of_study
from rooflight.reporting.report.steps_report import steps_report
from rooflight.reporting.report.study_report import study_report
from rooflight.reporting.sections import claims_tables
from rooflight.reporting.sections.ledger_documents import is_log, log_document
from rooflight.reporting.writers import Form, check_width, form_of, write
from rooflight.spec import shell
from rooflight.study.api import Study
from rooflight.study.api import load as load_study
from rooflight.study.hypotheses.amount import amount
from rooflight.summary.measured import Measured


def arranged(ledgers: Sequence[Ledger], names: Sequence[str]) -> tuple[list[Ledger], list[str]]:
    """The ranks of one run as one; else all of them. With the names that a command line takes."""
    if len(ledgers) > 1 and len({ledger.header.rank for ledger in ledgers}) == len(ledgers):
        return [join(list(ledgers))], [" ".join(names)]
    return list(ledgers), list(names)


def with_claims(
    report: Document, ledger: Ledger, claims: Sequence[Claim], *, file: str, strict: bool = False
) -> Document:
    """The report with a section for the claims of a file, before its origins."""
    checked = check(ledger, claims, file=file, strict=strict)
    document = claims_tables.claims_document(checked)
    section = Section(
        "claims",
        "Claims",
        lines=(f"{document.title}: {file}", *document.notes),
        tables=tuple(document.tables),
        small_print=(claims_tables.CONVENTIONS,),
    )
    *first, last = report.sections
    return replace(report, sections=(*first, section, last))


_KERNELS = 200


def log_report(ledger: Ledger, *, source: str, on: Device | None = None) -> Document:
    """Kernels with what was counted, or regions with what they cost; under the roofs of their device, or of `on` where
    the log does not name it."""
    document = log_document(ledger, top=_KERNELS)
    try:
        ran_on = recognise_name(ledger.header.device)
        marks = marks_of(ledger, on=on if ran_on is None else None)
        roofline = Section("roofline", "Roofline", charts=(chart_of(marks, ledger),))
    except NoRoofline as error:
        roofline = Section("roofline", "Roofline", missing=error.on_command_line)
    charts = tuple(chart for chart in (parts_chart(ledger), course_chart(ledger)) if chart is not None)
    times = (Section("times", "Where the time goes", charts=charts),) if charts else ()
    return replace(
        document,
        title=ledger.header.model,
        subtitle=document.title,
        sections=(*times, *document.sections, roofline, origins_section(ledger, Measured(ledger), source, ())),
    )


Source = Ledger | Study | str | Path
On = str | Device | Sequence[str | Device]


def report(
    source: Source | Sequence[Source],
    output: str | Path | None = None,
    *,
    to: Form | None = None,
    on: On | None = None,
    chart: str | None = None,
    of: str | None = None,
    sections: Sequence[str] = (),
    claims: str | Path | None = None,
    strict: bool = False,
    width: str | None = None,
    force: bool = False,
) -> Document | Path:
    """The report of a ledger, of two side by side, of several on one roofline, or of a study; in a file where `output`
    names one.

    `source`: a Ledger, a Study, a path, a study's folder, `recorded:NAME`, or several ledgers in a list. `to`: the
    format; by default that of the file's ending. `on`: the devices whose times and memory are
    predicted, by default h200, a100 and v100. `chart`: which
    picture, for png, svg and pdf. `of`: the quantity of `chart="bars"`, such as "params" or
    "flops.measured / flops.estimated". `sections`: only these. `claims`: a table (CSV) to be checked against the
    ledger; `strict`: other conventions are wrong there. `width`: the widest LaTeX table, such as "16cm"; by default the
    text width of an A4 article, 345 pt.

        >>> rooflight.report("recorded:h200/resnet50-train-fp32", "report.html")
    """
    path = None if output is None else Path(output)
    form = None if path is None else to or form_of(path)
    check_width(width, form)
    document = make(source, on=on, claims=claims, strict=strict, chart=chart, of=of)
    if path is None or form is None:
        return document
    write_atomically(path, write(document, form, chart=chart, sections=sections, width=width), force=force)
    return path


def make(
    source: Source | Sequence[Source],
    *,
    on: On | None = None,
    claims: str | Path | None = None,
    strict: bool = False,
    chart: str | None = None,
    of: str | None = None,
) -> Document:
    """The report itself. `chart`: the only one that is asked for, where one is."""
    sources: list[Any] = list(source) if isinstance(source, (list, tuple)) else [source]
    if wrong := [item for item in sources if not isinstance(item, (Ledger, Study, str, Path))]:
        raise BadInput(
            "not-a-ledger", f"a report is of a Ledger, a Study or where one is kept, not of {type(wrong[0]).__name__}"
        )
    results = [_loaded(item) for item in sources]
    study = next((result for result in results if isinstance(result, Study)), None)
    if study is not None:
        if len(results) > 1:
            raise BadInput("study-not-alone", "a study is reported alone: leave the other out")
        if claims is not None:
            raise BadInput(
                "claims-of-study", "a study has its own claims, in its plan: a table of them goes with one ledger"
            )
        return report_of_study(study, chart=chart, of=of)
    ledgers = [result for result in results if isinstance(result, Ledger)]
    ledgers, names = arranged(ledgers, [_name(item) for item in sources])
    given = None if claims is None else Path(claims)
    return named_report(ledgers, names, on=on, claims=given, strict=strict, chart=chart, of=of)


def named_report(
    ledgers: Sequence[Ledger],
    names: Sequence[str],
    *,
    on: On | None = None,
    claims: Path | None = None,
    strict: bool = False,
    say: Callable[[str], None] | None = None,
    chart: str | None = None,
    of: str | None = None,
    together: bool = False,
    command: str = "",
) -> Document:
    """Of one ledger, of two side by side, or of several on one roofline; `names` are where they are from. `say` is told
    what is looked for. `chart`: the only one that is asked for. `of`: what bars are of. `together`: on one roofline,
    where there are but two. `command`: the one that asks for it."""
    devices = devices_of(USUAL if on is None else on, None)
    if not all(device.is_cuda for device in devices):
        raise BadInput(
            "not-a-gpu",
            "a report predicts on GPUs of NVIDIA and AMD: name some with --on (see `rooflight list devices`)",
        )
    ledger = ledgers[0]
    if claims is not None and (len(ledgers) > 1 or ledger.header.step is None):
        raise BadInput("needs-one-ledger", "a table of claims is checked against one step: give one ledger of one")
    if together or len(ledgers) > 2 or chart == BARS:
        return several_report(ledgers, names, devices=devices, of=of, say=say, command=command)
    if len(ledgers) == 2:
        return pair_report(*ledgers, sources=(names[0], names[1]), devices=devices)
    if is_log(ledger):
        return log_report(ledger, source=names[0], on=None if on is None else devices[0])
    rows = None
    if claims is not None:  # before the work: the file may not be there
        rows = read_claims(claims)
    only = chart if chart in SECTIONS else None
    told = {} if say is None else {"say": say}
    document = ledger_report(ledger, source=names[0], devices=devices, only=only, **told)
    if rows is None:
        return document
    return with_claims(document, ledger, rows, file=str(claims), strict=strict)


BARS, BATCH = "bars", "batch"
"""The chart that every report can draw, of a quantity that is named."""


def several_report(
    ledgers: Sequence[Ledger],
    names: Sequence[str],
    *,
    devices: Sequence[Device],
    of: str | None = None,
    say: Callable[[str], None] | None = None,
    command: str = "",
) -> Document:
    """Any number of ledgers, each where it ran, or predicted on these devices. `command`: the one that asks for it."""
    if not ledgers:
        raise BadInput("nothing-to-report", "a report is of one ledger or more: none was given")
    if of is not None:
        amount(of)  # before the work: it may not be one
    steps, notes = [], []
    for ledger, name in zip(ledgers, names, strict=True):
        if say is not None:
            say(ledger.header.model)
        found, said = steps_of_ledger(ledger, name, devices)
        steps += found
        notes += said
    if not steps:
        raise BadInput("nothing-to-report", "; ".join(dict.fromkeys(notes)))
    on = _on(devices)
    words = [word for name in names for word in shlex.split(name)]
    # Names with options of their own cannot stand in one command: it is the one that was typed.
    simple = all(names) and not any(" --" in name for name in names)
    whole = shell("report", *words, on=on, output="report.html") if simple else command
    return steps_report(steps, of=of, notes=notes, repeat=(whole,) if whole else (), on=on)


def report_of_study(
    study: Study, *, chart: str | None = None, of: str | None = None, layer: str | None = None
) -> Document:
    """With the chart that is drawn only where it is asked for."""
    asked = []
    if chart == BARS:
        steps = steps_of_study(study.rows, study.folder)
        asked.append(bars_chart(steps, of or usual_amount(steps)))
    if chart == BATCH:
        asked.append(batch_chart(study.rows, of or "", layer or "", layers=study.plan.layers))
    return study_report(study.rows, study.plan, folder=str(study.folder), asked=asked)


def _on(devices: Sequence[Device]) -> str | None:
    """As a command line names them; `None` where they are the usual ones."""
    names = [device.name for device in devices]
    return None if names == [find(name).name for name in USUAL] else ",".join(names)


def _loaded(source: Source) -> Ledger | Study:
    if isinstance(source, (Ledger, Study)):
        return source
    if Path(source).is_dir():
        return load_study(Path(source))
    return load(source)


def _name(source: Source) -> str:
    """As a command line takes it; a ledger that was never a file has none."""
    if isinstance(source, Ledger):
        return ""
    return shlex.quote(str(source.folder) if isinstance(source, Study) else str(source))
