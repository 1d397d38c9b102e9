"""The report of a study: its claims with their verdicts, charts against the batch, cells, trends, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.lines import study_charts
from rooflight.reporting.charts.study_scaling import study_scaling_charts
from rooflight.reporting.document import Document, Fact, Section
from rooflight.reporting.report.step_rows import steps_of_study
from rooflight.reporting.report.steps_report import roofline_section
from rooflight.reporting.sections.study_document import study_document
from rooflight.spec import shell
from rooflight.study.cell import StudyRow
from rooflight.study.hypotheses import claims
from rooflight.study.hypotheses.verdict import Verdict
from rooflight.study.plan import StudyPlan
from rooflight.study.trends import scaling


def study_report(rows: Sequence[StudyRow], plan: StudyPlan, *, folder: str, asked: Sequence[Chart] = ()) -> Document:
    """`folder`: where the study is, for its ledgers, and for the commands that make it again. `asked`: charts beside
    those that every study has."""
    document = study_document(rows, plan, folder=folder, spell_out=False)
    claimed = [section for section in document.sections if section.name == "claims"]
    others = [section for section in document.sections if section.name != "claims"]
    charts = (*study_charts(rows, plan.layers), *study_scaling_charts(scaling(rows)), *asked)
    title = "Charts of the cells" if all(chart.name == "cells" for chart in charts) else "Against the batch"
    drawn = [Section("charts", title, charts=charts)] if charts else []
    roofline = roofline_section(steps_of_study(rows, Path(folder)), "All cells on one roofline")
    drawn += [roofline] if roofline.charts else []
    again = Section(
        "replicate",
        "How to repeat it",
        commands=(
            shell("study", f"{folder}/study.toml", output="ANOTHER-FOLDER"),
            shell("report", folder),
            shell("report", folder, output="report.html"),
        ),
    )
    return replace(
        document,
        title=plan.title or folder.rpartition("/")[2],
        subtitle=document.title,
        facts=tuple(_facts(rows, plan)),
        sections=(*claimed, *drawn, *others, again),
    )


def _facts(rows: Sequence[StudyRow], plan: StudyPlan) -> Iterator[Fact]:
    states = Counter(row.state for row in rows)
    counts = ", ".join(f"{number:,} {state}" for state, number in states.items())
    models = dict.fromkeys(row.cell.model for row in rows)
    named = ", ".join(models) if len(models) <= 4 else f"{len(models)} models"
    yield Fact("cells", f"{len(rows):,}", f"{counts} · {named}")
    measured = [row for row in rows if "measured" in row.ledgers]
    devices = dict.fromkeys(str(row.facts["device"]) for row in measured if row.facts.get("device"))
    if measured:
        yield Fact("measured", f"{len(measured):,}", " · ".join(devices))
    judged = claims(plan.claim, rows)
    verdicts = Counter(claim.verdict for claim in judged)
    if judged:
        others: tuple[Verdict, ...] = ("undecided", "not measured")
        rest = "".join(f" · {verdicts[verdict]} {verdict}" for verdict in others if verdicts[verdict])
        yield Fact("claims held", f"{verdicts['held']} of {len(judged)}", f"{verdicts['refuted']} refuted{rest}")
