"""Ledgers, comparisons, predictions and studies in a notebook: tables and pictures, without scripts, so that they show
wherever the notebook is read."""

from __future__ import annotations

import html
from base64 import b64encode
from collections.abc import Iterable

from rooflight.errors import RooflightError
from rooflight.ledger import Ledger
from rooflight.measured import Measured, is_measured
from rooflight.reporting import estimate_tables, measure_tables, measure_text, step_tables, text
from rooflight.reporting.page import Page
from rooflight.reporting.table import Table
from rooflight.reporting.table import to_html as table_to_html

ROOFLINE_ON = "h200"
"""Where the times of an estimate are predicted when nobody said: the device whose calibration comes along."""


def to_html(ledger: Ledger) -> str:
    """Headline, module tree (equal blocks folded, three levels deep), totals, roofline."""
    head = [text.headline(ledger)]
    if ledger.modules:
        head.append(text.parameters_line(ledger))
    notes = [f"note: {note}" for note in ledger.header.notes]
    if is_measured(ledger):
        measured = Measured(ledger)
        head += measure_text.headlines(measured)
        tables = [measure_tables.main_table(measured, depth=3)] if ledger.ops else []
        tables += [step_tables.time_table(measured), step_tables.kernel_table(measured)]
        said = [*notes, *measure_text.coverage(measured), *measure_text.provenance(measured), text.provenance(ledger),
                measure_text.conventions(measured)]  # fmt: skip
    else:
        tables = [estimate_tables.main_table(ledger, depth=3), estimate_tables.total_table(ledger)]
        said = [*notes, text.coverage(ledger), text.provenance(ledger), text.CONVENTIONS]
    return _shown(head, tables, said, picture=_roofline(ledger))


def page_to_html(page: Page) -> str:
    """A page as it stands in the terminal."""
    return _shown([page.headline, *page.summary], page.tables, [*page.notes, *page.small_print])


def _shown(head: Iterable[str], tables: Iterable[Table], said: Iterable[str], *, picture: str = "") -> str:
    first, *others = map(html.escape, head)
    drawn = "".join(table_to_html(table) for table in tables if table.rows)
    lines = "<br>".join(map(html.escape, said))
    return f"<div>{'<br>'.join([f'<b>{first}</b>', *others])}{drawn}{picture}<small>{lines}</small></div>"


def _roofline(ledger: Ledger) -> str:
    """As an image with its data inside: notebooks that strip scripts and drawings keep that. A table must be shown
    whatever becomes of the picture, so what is wrong with it is said in its place."""
    from rooflight.hardware.devices import find
    from rooflight.reporting.charts.pictures import picture
    from rooflight.reporting.charts.roofline import chart_of
    from rooflight.reporting.roofline_marks import marks_of

    if not ledger.ops or all(op.cost is None for op in ledger.ops):
        return ""
    try:
        # A step that was measured on an unknown GPU is not held against the roofs of this one.
        on = None if is_measured(ledger) and ledger.header.target != "cpu" else find(ROOFLINE_ON)
        chart = chart_of(marks_of(ledger, on=on), ledger)
    except RooflightError as why:
        return f"<p><small>no roofline: {html.escape(str(why))}</small></p>"
    data = b64encode(picture(chart, "svg")).decode()
    image = f'<img alt="{html.escape(chart.title)}" style="max-width:100%" src="data:image/svg+xml;base64,{data}">'
    caption = f"<figcaption><small>{html.escape(chart.caption)}</small></figcaption>"
    return f"<figure style='margin:12px 0'>{image}{caption}</figure>"
