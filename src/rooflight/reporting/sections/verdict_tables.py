"""Verdicts as tables, as a page and as one JSON document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from rooflight import formatting
from rooflight.analysis.verdict_text import CONVENTIONS, advised, place, step_advised, step_line
from rooflight.analysis.verdicts import Judge, StepVerdict, Verdict
from rooflight.formatting import seconds, tera
from rooflight.ledger import Ledger
from rooflight.prediction.result import Advice
from rooflight.reporting.columns import column
from rooflight.reporting.document import Document, table_sections
from rooflight.reporting.sections import ledger_documents
from rooflight.reporting.sections.layer_rows import layer_label, listed
from rooflight.reporting.table import Cells, Column, Label, Table, says_nothing, table_of
from rooflight.summary import By
from rooflight.summary.measured_step import rates

_ADVISED_ROWS = 8
_SIDES = {"memory": "left: memory", "compute": "right: compute", None: "–"}


def verdict_table(of: Ledger | Judge, by: By = "module", *, depth: int | None = None, folded: bool = True) -> Table:
    """One row a layer, type or op, and the whole step as the last."""
    judge = _judge(of)
    return _table(judge, by, _rows(judge, by, depth, folded=folded))


def _table(judge: Judge, by: By, rows: Sequence[Verdict]) -> Table:
    step = judge.step()
    columns = _columns(judge, by, step)
    return table_of(columns, [*rows, step.whole], has_total=True, leave_out=says_nothing)


def advice_lines(of: Ledger | Judge, by: By = "module", *, depth: int | None = None, folded: bool = True) -> list[str]:
    """What would help its rows, in sentences."""
    judge = _judge(of)
    return _advice_lines(judge, _rows(judge, by, depth, folded=folded))


def _advice_lines(judge: Judge, rows: Sequence[Verdict]) -> list[str]:
    """A sentence for each of the rows that would gain most; of nested layers, for those that have none inside."""
    gaining = [row for row in rows if row.advice is not None]
    gaining = [row for row in gaining if not any(_is_inside(other, row) for other in gaining)]
    gaining.sort(key=lambda row: -row.advice.saved_s if row.advice else 0.0)
    return [f"{_label(judge, row).full}: {advised(row)}" for row in gaining[:_ADVISED_ROWS]]


def step_table(of: Ledger | Judge) -> Table:
    """Changes of the whole step, best first."""
    judge = _judge(of)
    step = judge.step()
    speed = rates(judge.measured).samples_per_s

    def changed(name: str, now: Any) -> Callable[[Advice | None], Any]:
        """What a change makes of it; of no change, as it is now."""
        return lambda advice: now if advice is None else getattr(advice, name)

    columns: Cells[Advice | None] = [
        (Column("the step", right=False), changed("how", "as it is")),
        (Column("options", right=False, optional=2), changed("options", "")),
        (column("kernel_time_s"), changed("changed_kernel_time_s", judge.advisor.kernel_s)),
        (column("wall_time_s"), changed("time_s", step.wall_s)),
        (column("throughput"), changed("throughput", speed)),
        (column("gain"), changed("gain", None)),
        (Column("found by", right=False, optional=1), changed("origin", step.times)),
    ]
    return table_of(columns, (None, *step.advice) if step.bound else ())


def verdict_document(of: Ledger | Judge, *, by: By = "module", depth: int | None = 3, folded: bool = True) -> Document:
    """What bounds the step and its layers, and what would help."""
    judge = _judge(of)
    step = judge.step()
    summary = [step_line(step)]
    if step.whole.side is not None:
        summary.append(f"the whole step: {place(step.whole)}")
        summary.append(f"  {step.whole.evidence}")
    rows = _rows(judge, by, depth, folded=folded)
    tables = (_table(judge, by, rows), step_table(judge))
    notes = (*_advice_lines(judge, rows), *_notes(judge, step))
    return Document(
        ledger_documents.headline(judge.measured.ledger),
        lines=tuple(summary),
        sections=table_sections(tables),
        notes=notes,
        small_print=(CONVENTIONS,),
    )


def _notes(judge: Judge, step: StepVerdict) -> list[str]:
    notes = [f"times are {step.times}; gains are predicted ({step.predictor})"] if step.predictor else []
    notes += [judge.otherwise] if judge.otherwise else []
    notes += dict.fromkeys(advice.assumption for advice in step.advice if advice.assumption)
    if step.bound is not None and judge.advisor.reason:
        notes.append(f"no gains are predicted: {judge.advisor.reason}")
    rows = judge.verdicts("op", advised=False)
    bases = {basis for row in rows for basis in (row.flops_basis, row.bytes_basis)}
    if bases & {"useful", "compulsory"}:
        which = (
            "FLOPs and bytes are" if step.times == "predicted" else "some FLOPs or bytes were not counted: those are"
        )
        notes.append(f"{which} by formula, and bytes that come from a cache can put work above its roof")
    return notes


def verdict_data(of: Ledger | Judge, by: By = "module") -> dict[str, Any]:
    """Raw numbers; unknown is null. Sentences and evidence stand beside them."""
    judge = _judge(of)
    step = judge.step()
    return {
        "step": {
            **msgspec.to_builtins(step),
            "whole": _plain(step.whole),
            "sentence": step_line(step),
            "gain": step.gain,
            "percent_of_op_roofs": step.percent_of_op_roofs,
            "advice": [{**_advice(advice), "sentence": step_advised(advice)} for advice in step.advice],
        },
        "rows": [_plain(row) for row in judge.verdicts(by)],
        "conventions": [CONVENTIONS],
    }


def _plain(row: Verdict) -> dict[str, Any]:
    return {
        **msgspec.to_builtins(row),
        "advice": None if row.advice is None else _advice(row.advice),
        "place": place(row),
        "sentence": advised(row),
        "evidence": row.evidence,
    }


def _advice(advice: Advice) -> dict[str, Any]:
    return {**msgspec.to_builtins(advice), "saved_s": advice.saved_s}


def _judge(of: Ledger | Judge) -> Judge:
    return of if isinstance(of, Judge) else Judge(of)


def _rows(judge: Judge, by: By, depth: int | None, *, folded: bool) -> list[Verdict]:
    if judge.regions:
        return judge.verdicts(by)
    return judge.of(listed(judge.measured, judge.rows(by), by, depth=depth, folded=folded))


def _is_inside(row: Verdict, other: Verdict) -> bool:
    """Is a row a layer inside another? Types and ops are not nested."""
    if row.name == other.name or not row.depth:
        return False
    return other.name == "" or row.name.startswith(f"{other.name}.")


def _columns(judge: Judge, by: By, step: StepVerdict) -> Cells[Verdict]:
    return [
        (Column("layer" if by == "module" else by, right=False), lambda row: _label(judge, row)),
        (column("type", optional=9), lambda row: row.type),
        (column("kernel_time_s"), lambda row: row.time_s),
        (column("share", optional=2), lambda row: row.share),
        (column("intensity"), lambda row: row.intensity),
        (
            Column("by formula", formatting.ratio, optional=7, raw="estimated_intensity"),
            lambda row: row.estimated_intensity,
        ),
        (column("ridge", optional=4), lambda row: row.ridge),
        (Column("side", right=False, whole=True, optional=3), lambda row: _SIDES[row.side]),
        (column("flops_per_s", heading="TFLOP/s", write=tera, optional=8), lambda row: row.flops_per_s),
        (column("attainable_flops_per_s", write=tera, optional=5), lambda row: row.attainable_flops_per_s),
        (column("percent_of_roof"), lambda row: row.percent_of_roof),
        (column("bound"), lambda row: (step.bound if row is step.whole else row.bound) or ""),
        (column("far", optional=6), lambda row: row.far),
        (Column("would help", right=False, whole=True, optional=1), lambda row: row.advice.key if row.advice else ""),
        (Column("saves", _seconds, optional=1, raw="saved_s"), lambda row: row.advice.saved_s if row.advice else None),
    ]


def _seconds(value: float | None) -> str:
    return "" if value is None else seconds(value)


def _label(judge: Judge, row: Verdict) -> Label:
    return layer_label(row.name, row.depth, judge.measured.ledger.header.model)
