"""The report of a study: its claims with their verdicts, charts against the batch, cells, trends, and what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rooflight.reporting.charts.lines import study_charts
from rooflight.reporting.report.model import Fact, Report, Section, Titled
from rooflight.reporting.report.of_page import sections_of
from rooflight.reporting.study_page import study_page
from rooflight.spec import shell
from rooflight.study.cell import Row
from rooflight.study.hypotheses import claims
from rooflight.study.plan import Plan


def study_report(rows: Sequence[Row], plan: Plan, *, folder: str) -> Report:
    """`folder`: where the study is, for the commands that make it again."""
    page = study_page(rows, plan, folder=folder, spell_out=False)
    claimed = [section for section in sections_of(page) if section.title in ("Claims", "Counter-examples")]
    others = [section for section in sections_of(page) if section.title not in ("Claims", "Counter-examples")]
    charts = tuple(study_charts(rows))
    title = "Charts of the cells" if all(chart.name == "cells" for chart in charts) else "Against the batch"
    drawn = [Section("charts", title, charts=charts)] if charts else []
    again = Section("replicate", "How to repeat it", commands=(
        shell("study", f"{folder}/study.toml", output="ANOTHER-FOLDER"), shell("report", folder),
        shell("report", folder, output="report.html"),
    ))  # fmt: skip
    name = plan.title or folder.rpartition("/")[2]
    return Report(title=name, subtitle=page.headline, facts=tuple(_facts(rows, plan)),
                  lines=page.summary, sections=(*_merged(claimed), *drawn, *others, again))  # fmt: skip


def _merged(claimed: list[Section]) -> list[Section]:
    """Counter-examples stand below the claims that they refute."""
    if not claimed:
        return []
    tables = [Titled("" if not number else section.title, section.tables[0].table)
              for number, section in enumerate(claimed)]  # fmt: skip
    return [Section("claims", "Claims", tables=tuple(tables))]


def _facts(rows: Sequence[Row], plan: Plan) -> Iterator[Fact]:
    states = Counter(row.state for row in rows)
    told = ", ".join(f"{number:,} {state}" for state, number in states.items())
    models = dict.fromkeys(row.cell.model for row in rows)
    named = ", ".join(models) if len(models) <= 4 else f"{len(models)} models"
    yield Fact("cells", f"{len(rows):,}", f"{told} · {named}")
    measured = [row for row in rows if "measured" in row.ledgers]
    devices = dict.fromkeys(str(row.facts["device"]) for row in measured if row.facts.get("device"))
    if measured:
        yield Fact("measured", f"{len(measured):,}", " · ".join(devices))
    judged = claims(plan.claim, rows)
    found = Counter(one.verdict for one in judged)
    if judged:
        rest = f" · {found['not measured']} not measured" if found["not measured"] else ""
        yield Fact("claims held", f"{found['held']} of {len(judged)}", f"{found['refuted']} refuted{rest}")
