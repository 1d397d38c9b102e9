"""The report of what has no ops to be taken apart: a log from elsewhere, or the regions of a program."""

from __future__ import annotations

from dataclasses import replace

from rooflight.ledger import Ledger
from rooflight.measured import Measured
from rooflight.reporting.document import Document
from rooflight.reporting.ledger_documents import log_document
from rooflight.reporting.report.origins import origins_section

_KERNELS = 200


def log_report(ledger: Ledger, *, source: str) -> Document:
    """Kernels with what was counted, or regions with what they cost."""
    found = log_document(ledger, top=_KERNELS)
    return replace(found, title=ledger.header.model, subtitle=found.title,
                   sections=(*found.sections, origins_section(ledger, Measured(ledger), source, ())))  # fmt: skip
