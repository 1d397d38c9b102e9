"""Somebody's own table in a report: every row with its verdict, and the mistakes behind the wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflight.claims import check
from rooflight.claims.claim import Claim
from rooflight.ledger import Ledger
from rooflight.reporting import claims_tables
from rooflight.reporting.report.model import Report, Section, Titled


def with_claims(report: Report, ledger: Ledger, claims: Sequence[Claim], *, file: str) -> Report:
    """The report with a section for the claims of a file, before its origins."""
    checked = check(ledger, claims, file=file)
    page = claims_tables.claims_page(checked)
    tables = tuple(Titled("", table) for table in page.tables)
    section = Section("claims", "Claims", lines=(f"{page.headline}: {file}", *page.notes), tables=tables,
                      small_print=(claims_tables.CONVENTIONS,))  # fmt: skip
    *first, last = report.sections
    return replace(report, sections=(*first, section, last))
