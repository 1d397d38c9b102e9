"""A document in every form that it can have: one writer a file, all of them reading the same sections and tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from rooflight.errors import BadInput
from rooflight.reporting.charts.chart import Chart, Mode
from rooflight.reporting.charts.pictures import picture
from rooflight.reporting.document import Document
from rooflight.reporting.writers.csv import document_csv
from rooflight.reporting.writers.json import document_json
from rooflight.reporting.writers.latex import document_latex, width_in_pt
from rooflight.reporting.writers.markdown import document_markdown

Form = Literal["html", "md", "latex", "csv", "json", "png", "svg", "pdf"]
FORMS: tuple[Form, ...] = get_args(Form)
ENDINGS: dict[str, Form] = {**{form: form for form in FORMS}, "htm": "html", "tex": "latex"}
"""Of files' names, and the forms that they ask for."""
MUST = "must end in .html, .md, .tex, .csv, .json, .png, .svg or .pdf, or --to says the form"


def form_of(path: Path) -> Form:
    """By the ending of a file's name."""
    ending = path.suffix.lower().removeprefix(".")
    if ending not in ENDINGS:
        raise BadInput("wrong-suffix", f"{path}: the name {MUST}")
    return ENDINGS[ending]


def check_width(width: str | None, form: str | None) -> None:
    """Before the work: may tables be so wide, and are they LaTeX's?"""
    if width is None:
        return
    if form != "latex":
        raise BadInput(
            "option-needs-another",
            "--width is that of LaTeX's tables: it goes with --to=latex, or a file whose name ends in .tex",
        )
    width_in_pt(width)


def write(
    document: Document,
    form: Form,
    *,
    chart: str | None = None,
    sections: Sequence[str] = (),
    mode: Mode = "light",
    width: str | None = None,
    report: bool = True,
) -> bytes:
    """The content of a file. `width`: of LaTeX's tables; `report`: JSON holds what a reader sees, beside the data."""
    check_width(width, form)
    if form == "png" or form == "svg" or form == "pdf":
        if sections:
            raise BadInput(
                "option-conflict", f"--section goes with html, md, latex, csv and json: of a {form} --chart says which"
            )
        return picture(chart_of(document, chart, form), form, mode=mode)
    if chart is not None:
        raise BadInput(
            "option-conflict",
            f"--chart goes with a picture: --to=png, svg or pdf, not {form}; --section={chart} gives its numbers",
        )
    document = document.only(sections)
    match form:
        case "html":
            from rooflight.reporting.writers.page import to_page

            return to_page(document).encode()
        case "json":
            return document_json(document, report=report)
        case "csv":
            return document_csv(document).encode()
        case "latex":
            return document_latex(document, width).encode()
        case _:
            return document_markdown(document).encode()


def chart_of(document: Document, name: str | None, form: str) -> Chart:
    """A chart by its name; the only one that there is where none is named."""
    charts = {chart.name: chart for chart in document.charts}
    there = ", ".join(charts_of(document))
    section = next((section for section in document.sections if section.name == name), None)
    if section is not None and section.missing and name not in charts:
        raise BadInput("unknown-chart", f"there is no chart {name!r} of this: {section.missing}")
    if not charts:
        called = "chart" if name is None else f"chart {name!r}"
        raise BadInput(
            "unknown-chart",
            f"there is no {called} of this to draw as {form}: `rooflight report` of it with --chart list tells which "
            "there are, and -o FILE.md gives its tables",
        )
    if name is None:
        if len(charts) > 1:
            raise BadInput("chart-not-chosen", f"which picture? Add --chart: {there}")
        return next(iter(charts.values()))
    if name not in charts:
        raise BadInput("unknown-chart", f"no chart {name!r} in this report: it has {there}")
    return charts[name]


def charts_of(document: Document) -> dict[str, str]:
    """By name, what can be drawn of it: its charts, and those that are drawn of a quantity that is named."""
    charts = {chart.name: chart.title for chart in document.charts}
    if any(name.startswith("batch-") for name in charts):
        charts["batch"] = "Any quantity of a step or a layer against the batch: --of QUANTITY, --layer LAYER"
    return charts | {"bars": "Bars of any quantity: --of QUANTITY"}
