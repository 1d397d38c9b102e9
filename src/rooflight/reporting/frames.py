"""Pandas data frames: a ledger has a row for every op and a column for every measured quantity; predictions have a row
for every device and batch, a comparison one for every row of its summary."""

from __future__ import annotations

from operator import attrgetter
from typing import TYPE_CHECKING, Any

from rooflight.errors import RooflightError
from rooflight.ledger import QUANTITIES, Ledger
from rooflight.reporting.sections.predict_tables import csv_table
from rooflight.summary.facts import op_values

if TYPE_CHECKING:
    from rooflight.analysis.comparison.sides import Comparison
    from rooflight.prediction.result import Predictions
    from rooflight.summary import By


def _pandas() -> Any:
    try:
        import pandas
    except ImportError:
        raise RooflightError("to_pandas() needs pandas: pip install pandas") from None
    return pandas


def predictions_to_pandas(predictions: Predictions) -> Any:
    table = csv_table(predictions)
    return _pandas().DataFrame(list(table.rows), columns=[column.name for column in table.columns])


def comparison_to_pandas(comparison: Comparison, by: By) -> Any:
    """Unknown is None; ratios are B by A."""
    records = []
    for row in comparison.rows(by):
        record: dict[str, Any] = {by: row.name, "type": row.type, "depth": row.depth}
        for name in ("time_s", "flops", "bytes", "ops", "only_here"):
            for side, figures in (("a", row.a), ("b", row.b)):
                record[f"{name}_{side}"] = None if figures is None else getattr(figures, name)
        for name in ("time_s", "flops", "bytes"):
            record[f"{name.removesuffix('_s')}_ratio"] = row.ratio_of(attrgetter(name))
        records.append(record)
    return _pandas().DataFrame.from_records(records)


def to_pandas(ledger: Ledger) -> Any:
    pandas = _pandas()
    measured = op_values(ledger)
    names = list(dict.fromkeys(name for values in measured for name in values))
    records = []
    for op, values in zip(ledger.ops, measured, strict=True):
        record: dict[str, Any] = {
            name: getattr(op, "name" if name == "op" else name)
            for name in ("phase", "module", "call", "op", "ordinal", "kind", "precision", "recompute")
        }
        record |= {name: [tensor.shape for tensor in getattr(op, name)] for name in ("inputs", "outputs")}
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
