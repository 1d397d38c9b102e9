"""How each kind of result looks in Python: as text, in a notebook, as a data frame; `rooflight/views.py` asks."""

from __future__ import annotations

from functools import singledispatch
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


@singledispatch
def document(result: object) -> Document:
    """All that is known of a result, in sections."""
    raise TypeError(f"nothing is known of how a {type(result).__name__} looks")


@document.register
def _(result: Document) -> Document:
    return result


@document.register
def _(result: Predictions) -> Document:
    return predict_document.predict_document(result)


@document.register
def _(result: Comparison) -> Document:
    return compare_document(result, depth=2)


@document.register
def _(result: Study) -> Document:
    return study_document(result.rows, result.plan, folder=str(result.folder))


@singledispatch
def text(result: object) -> str:
    raise TypeError(f"nothing is known of how a {type(result).__name__} looks")


@text.register
def _(result: Ledger) -> str:
    return ledger_documents.describe(result)


@text.register
def _(result: Predictions) -> str:
    return predict_document.describe(result)


@text.register
def _(result: Comparison) -> str:
    return "\n".join(compare_document(result, depth=0).lines)


@text.register
def _(result: Study) -> str:
    states = [row.state for row in result.rows]
    counts = ", ".join(f"{states.count(state)} {state}" for state in ("done", "failed", "waiting") if state in states)
    return f"Study({str(result.folder)!r}: {len(result.rows)} cells, {counts})"


def notebook(result: object) -> str:
    """As HTML without scripts."""
    return ledger_notebook(result) if isinstance(result, Ledger) else document_notebook(document(result))


@singledispatch
def frame(result: object, *which: Any) -> Any:
    raise TypeError(f"nothing is known of a {type(result).__name__} as a data frame")


frame.register(Ledger, frames.to_pandas)
frame.register(Comparison, frames.comparison_to_pandas)
frame.register(Predictions, frames.predictions_to_pandas)


@frame.register
def _(result: Study) -> Any:
    return study_tables.to_pandas(result.rows)
