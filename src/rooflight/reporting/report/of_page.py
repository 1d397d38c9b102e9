"""The report of what has no ops to be taken apart: a log from elsewhere, or the regions of a program."""

from __future__ import annotations

from rooflight.ledger import Ledger
from rooflight.measured import Measured
from rooflight.reporting.page import Page, log_page, region_page
from rooflight.reporting.report.model import Report, Section, Titled
from rooflight.reporting.report.origins import origins_section

_KERNELS = 200


def log_report(ledger: Ledger, *, source: str) -> Report:
    """Kernels with what was counted, or regions with what they cost."""
    regions = any(row.scope == "region" for row in ledger.measurements)
    page = region_page(ledger) if regions else log_page(ledger, kernels=_KERNELS)
    sections = [*sections_of(page), origins_section(ledger, Measured(ledger), source, ())]
    return Report(title=ledger.header.model, subtitle=page.headline, facts=(), lines=page.summary,
                  sections=tuple(sections))  # fmt: skip


def sections_of(page: Page) -> list[Section]:
    """A section for every table, and one for what is said about them."""
    found = [
        Section(f"table-{number}", _title(table.title or table.columns[0].name), tables=(Titled("", table),))
        for number, table in enumerate(page.tables)
    ]
    if page.notes or page.small_print:
        found.append(Section("notes", "Notes", lines=page.notes, small_print=page.small_print))
    return found


def _title(text: str) -> str:
    return text[:1].upper() + text[1:]
