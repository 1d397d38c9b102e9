"""A document in a notebook: tables and pictures, without scripts, so that they show wherever the notebook is read."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterable
from dataclasses import replace

from rooflight.errors import RooflightError
from rooflight.hardware.devices import find
from rooflight.ledger import Ledger
from rooflight.reporting.charts.chart import Chart
from rooflight.reporting.charts.pictures import NoPictures, picture
from rooflight.reporting.charts.roofline import chart_of
from rooflight.reporting.charts.roofline_marks import marks_of
from rooflight.reporting.document import Document, Section
from rooflight.reporting.sections.ledger_documents import ledger_document
from rooflight.reporting.writers.html import table_html
from rooflight.summary.measured import is_measured

ROOFLINE_ON = "h200"
"""Where the times of an estimate are predicted when nobody said: the device whose calibration comes along."""


def document_notebook(document: Document) -> str:
    facts = (f"{fact.label}: {fact.value}{f' ({fact.detail})' if fact.detail else ''}" for fact in document.facts)
    lines = filter(None, (document.subtitle, *facts, *document.lines))
    head = [f"<b>{html.escape(document.title)}</b>", *_escaped(lines)]
    parts = []
    for section in document.sections:
        parts += [f"<h4>{line}</h4>" for line in _escaped(filter(None, [section.title]))]
        missing = f"not here: {section.missing}" if section.missing else ""
        parts += [f"<p>{line}</p>" for line in _escaped(filter(None, [missing, *section.lines]))]
        parts += [_picture(chart) for chart in section.charts]
        plain = [] if section.plain is None or not section.plain.rows else [section.plain]
        for table in (*plain, *section.tables):
            parts.append(table_html(table, inline=True))
            parts += _small(filter(None, [table.note]))
        parts += _small([*(f"$ {command}" for command in section.commands), *section.small_print])
    below = "<br>".join(_escaped([*document.notes, *document.small_print]))
    return f"<div>{'<br>'.join(head)}{''.join(parts)}<small>{below}</small></div>"


def _small(lines: Iterable[str]) -> list[str]:
    return [f"<p><small>{line}</small></p>" for line in _escaped(lines)]


def _escaped(lines: Iterable[str]) -> list[str]:
    return [html.escape(line) for line in lines]


def _picture(chart: Chart) -> str:
    """An image with its data inside: notebooks that strip scripts and drawings keep that."""
    try:
        data = b64encode(picture(chart, "svg")).decode()
    except NoPictures as why:
        return f"<p>{html.escape(chart.title)}: {html.escape(str(why))}</p>"
    image = f'<img alt="{html.escape(chart.title)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
    caption = f"<figcaption><small>{html.escape(chart.caption)}</small></figcaption>"
    return f"<figure style='margin:12px 0'>{image}{caption}</figure>"


def ledger_notebook(ledger: Ledger) -> str:
    """What the terminal shows of a ledger, with its roofline."""
    document = ledger_document(ledger)
    return document_notebook(replace(document, sections=(*document.sections, *_roofline(ledger))))


def _roofline(ledger: Ledger) -> Iterable[Section]:
    """Tables must be shown whatever becomes of the picture: what is wrong with it is said in its place."""
    if not ledger.ops or all(op.cost is None for op in ledger.ops):
        return
    try:
        # A step that was measured on an unknown GPU is not held against the roofs of this one.
        on = None if is_measured(ledger) and ledger.header.target != "cpu" else find(ROOFLINE_ON)
        yield Section("roofline", charts=(chart_of(marks_of(ledger, on=on), ledger),))
    except RooflightError as why:
        yield Section("roofline", missing=f"the roofline, {why}")
