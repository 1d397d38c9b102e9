"""A ledger in a notebook."""

from __future__ import annotations

import html

from rooflight.ledger import Ledger
from rooflight.measured import Measured, is_measured
from rooflight.reporting import estimate_tables, measure_tables, measure_text, step_tables, text
from rooflight.reporting.table import to_html as table_to_html


def to_html(ledger: Ledger) -> str:
    """Headline, module tree (equal blocks folded, three levels deep), totals."""
    head = [f"<b>{html.escape(text.headline(ledger))}</b>"]
    if ledger.modules:
        head.append(html.escape(text.parameters_line(ledger)))
    notes = [f"note: {note}" for note in ledger.header.notes]
    if is_measured(ledger):
        measured = Measured(ledger)
        head += map(html.escape, measure_text.headlines(measured))
        tables = [measure_tables.main_table(measured, depth=3)] if ledger.ops else []
        tables += [step_tables.time_table(measured), step_tables.kernel_table(measured)]
        said = [*notes, *measure_text.coverage(measured), *measure_text.provenance(measured), text.provenance(ledger),
                measure_text.conventions(measured)]  # fmt: skip
    else:
        tables = [estimate_tables.main_table(ledger, depth=3), estimate_tables.total_table(ledger)]
        said = [*notes, text.coverage(ledger), text.provenance(ledger), text.CONVENTIONS]
    drawn = "".join(table_to_html(table) for table in tables if table.rows)
    lines = "<br>".join(html.escape(line) for line in said)
    return f"<div>{'<br>'.join(head)}{drawn}<small>{lines}</small></div>"
