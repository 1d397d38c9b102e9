"""Somebody's own table in a report: every row with its verdict, and the mistakes behind the wrong ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rooflight.claims import check
from rooflight.claims.claim import Claim
from rooflight.ledger import Ledger
from rooflight.reporting import claims_tables
from rooflight.reporting.document import Document, Section


def with_claims(report: Document, ledger: Ledger, claims: Sequence[Claim], *, file: str) -> Document:
    """The report with a section for the claims of a file, before its origins."""
    checked = check(ledger, claims, file=file)
    found = claims_tables.claims_document(checked)
    section = Section("claims", "Claims", lines=(f"{found.title}: {file}", *found.notes), tables=tuple(found.tables),
                      small_print=(claims_tables.CONVENTIONS,))  # fmt: skip
    *first, last = report.sections
    return replace(report, sections=(*first, section, last))
