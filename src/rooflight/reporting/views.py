"""How each kind of result looks in Python: as text, in a notebook, as a data frame; `rooflight/views.py` asks."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rooflight.analysis.comparison.sides import Comparison
from rooflight.errors import RooflightError
from rooflight.ledger import QUANTITIES, Ledger
from rooflight.prediction.accuracy import Accuracy
from rooflight.prediction.result import Predictions
from rooflight.reporting.charts.pictures import mimebundle
from rooflight.reporting.charts.roofline import roofline_of as roofline
from rooflight.reporting.document import Document
from rooflight.reporting.sections import accuracy_document, ledger_documents, predict_document, study_tables
from rooflight.reporting.sections.compare_tables import COMPARED, compare_document
from rooflight.reporting.sections.ledger_data import op_fields
from rooflight.reporting.sections.predict_tables import csv_table
from rooflight.reporting.sections.study_document import study_document
from rooflight.reporting.table import Table
from rooflight.reporting.writers.markdown import document_markdown
from rooflight.reporting.writers.notebook import document_notebook, ledger_notebook
from rooflight.study.api import Study
from rooflight.summary import By
from rooflight.summary.facts import op_values

__all__ = ["document", "document_markdown", "frame", "mimebundle", "notebook", "roofline", "text"]


def document(result: object) -> Document:
    """All that is known of a result, in sections."""
    match result:
        case Document():
            return result
        case Predictions():
            return predict_document.predict_document(result)
        case Accuracy():
            return accuracy_document.accuracy_document(result)
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
        case Accuracy():
            return accuracy_document.describe(result)
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
    """With pandas: a ledger has a row for every op and a column for every measured quantity; predictions have a row for
    every device and batch, a comparison one for every row of its summary. `which`: of a comparison, what a row is."""
    match result:
        case Ledger():
            return _ledger_frame(result)
        case Comparison():
            return _comparison_frame(result, *which)
        case Predictions():
            return _table_frame(csv_table(result))
        case Accuracy():
            return _table_frame(accuracy_document.raw_table(result))
        case Study():
            return _pandas().DataFrame(study_tables.records(result.rows))
    raise TypeError(f"nothing is known of a {type(result).__name__} as a data frame")


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise RooflightError("package-missing", "to_pandas() needs pandas: pip install 'rooflight[pandas]'") from None
    return pandas


def _table_frame(table: Table) -> Any:
    return _pandas().DataFrame(list(table.rows), columns=[column.name for column in table.columns])


def _comparison_frame(comparison: Comparison, by: By) -> Any:
    """Unknown is None; ratios are B by A."""
    records = []
    for row in comparison.rows(by):
        record: dict[str, Any] = {by: row.name, "type": row.type, "depth": row.depth}
        for name in ("time_s", "flops", "bytes", "ops", "only_here"):
            for side, figures in (("a", row.a), ("b", row.b)):
                record[f"{name}_{side}"] = None if figures is None else getattr(figures, name)
        record |= {f"{name}_ratio": quantity.ratio(row) for name, quantity in COMPARED.items()}
        records.append(record)
    return _pandas().DataFrame.from_records(records)


def _ledger_frame(ledger: Ledger) -> Any:
    pandas = _pandas()
    measured = op_values(ledger)
    names = list(dict.fromkeys(name for values in measured for name in values))
    records = []
    for op, values in zip(ledger.ops, measured, strict=True):
        record = op_fields(op)
        record |= {name: None if op.cost is None else getattr(op.cost, name) for name in (*QUANTITIES, "origin")}
        record |= {name: values[name].value if name in values else None for name in names}
        records.append(record)
    frame = pandas.DataFrame.from_records(records)
    whole = [name for name in names if all(isinstance(v[name].value, int) for v in measured if name in v)]
    for quantity in (*QUANTITIES, *whole):
        # Unknown stays unknown: a nullable integer, not a float with NaN. What 64 bits cannot hold stays a Python int.
        if quantity in frame and not any(abs(value) >= 2**63 for value in frame[quantity].dropna()):
            frame[quantity] = frame[quantity].astype("Int64")
    return frame
