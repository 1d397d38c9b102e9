"""How each kind of result looks in Python: as text, in a notebook, as a data frame; `rooflight/views.py` asks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rooflight.analysis.comparison.sides import Comparison
from rooflight.ledger import Ledger
from rooflight.prediction.result import Predictions
from rooflight.reporting import frames
from rooflight.reporting.charts.pictures import mimebundle
from rooflight.reporting.charts.roofline import roofline_of as roofline
from rooflight.reporting.document import Document
from rooflight.reporting.sections import ledger_documents, predict_document, study_tables
from rooflight.reporting.sections.compare_tables import compare_document
from rooflight.reporting.sections.study_document import study_document
from rooflight.reporting.writers.markdown import document_markdown
from rooflight.reporting.writers.notebook import document_notebook, ledger_notebook
from rooflight.study.api import Study

__all__ = ["document", "document_markdown", "frame", "mimebundle", "notebook", "roofline", "text"]


def document(result: object) -> Document:
    """All that is known of a result, in sections."""
    match result:
        case Document():
            return result
        case Predictions():
            return predict_document.predict_document(result)
        case Comparison():
            return compare_document(result, depth=2)
        case Study():
            return study_document(result.rows, result.plan, folder=str(result.folder))
    raise TypeError(f"nothing is known of how a {type(result).__name__} looks")


def text(result: object) -> str:
    match result:
        case Ledger():
            return ledger_documents.describe(result)
        case Predictions():
            return predict_document.describe(result)
        case Comparison():
            return "\n".join(compare_document(result, depth=0).lines)
        case Study():
            states = Counter(row.state for row in result.rows)
            counts = ", ".join(f"{states[state]} {state}" for state in ("done", "failed", "waiting") if states[state])
            return f"Study({str(result.folder)!r}: {len(result.rows)} cells, {counts})"
    raise TypeError(f"nothing is known of how a {type(result).__name__} looks")


def notebook(result: object) -> str:
    """As HTML without scripts."""
    return ledger_notebook(result) if isinstance(result, Ledger) else document_notebook(document(result))


def frame(result: object, *which: Any) -> Any:
    """`which`: of a comparison, what a row is."""
    match result:
        case Ledger():
            return frames.to_pandas(result)
        case Comparison():
            return frames.comparison_to_pandas(result, *which)
        case Predictions():
            return frames.predictions_to_pandas(result)
        case Study():
            return study_tables.to_pandas(result.rows)
    raise TypeError(f"nothing is known of a {type(result).__name__} as a data frame")
