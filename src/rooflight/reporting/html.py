"""A ledger in a notebook."""

from __future__ import annotations

import html

from rooflight.ledger import Ledger
from rooflight.reporting import estimate_tables, text
from rooflight.reporting.table import to_html as table_to_html


def to_html(ledger: Ledger) -> str:
    """Headline, module tree (equal blocks folded, three levels deep), totals."""
    tree = table_to_html(estimate_tables.main_table(ledger, depth=3))
    sums = table_to_html(estimate_tables.total_table(ledger))
    notes = [f"note: {note}" for note in ledger.header.notes]
    said = [*notes, text.coverage(ledger), text.provenance(ledger), text.CONVENTIONS]
    lines = "<br>".join(html.escape(line) for line in said)
    head = f"<b>{html.escape(text.headline(ledger))}</b><br>{html.escape(text.parameters_line(ledger))}"
    return f"<div>{head}{tree}{sums}<small>{lines}</small></div>"
