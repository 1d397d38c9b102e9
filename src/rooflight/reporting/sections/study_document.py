"""A study as a document: its claims with their verdicts first, then the cells, then what they show together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rooflight import formatting
from rooflight.reporting.document import Document, Section, filled, table_sections
from rooflight.reporting.sections.study_claims import (
    claim_table,
    counted,
    counter_table,
    gap_table,
    open_table,
    spelled_out,
)
from rooflight.reporting.sections.study_layers import layer_table, speed_table
from rooflight.reporting.sections.study_tables import (
    cell_table,
    csv_table,
    headline,
    impossible_lines,
    place_columns,
    unreliable,
)
from rooflight.reporting.sections.study_trends import trend_tables
from rooflight.reporting.table import Cells, Column, Table, table_of
from rooflight.spec import shell
from rooflight.study.cell import QUANTITIES, StudyRow
from rooflight.study.hypotheses import JudgedHypothesis, claims
from rooflight.study.trends import trends

if TYPE_CHECKING:
    from rooflight.study.plan import StudyPlan

MOST_CELLS = 200
"""Lines of the table of cells; --csv has all of them."""
_NOTES = 12
CONVENTIONS = (
    "estimated: useful FLOPs of matrix work, 1 multiply-add = 2 FLOP; bytes are compulsory, without reuse between ops",
    "predicted and measured: the wall time of a step, memory allocated at its peak, samples per second; a measured "
    "time is the median of its steps, measured FLOPs are those counted in ops with matrix work",
    "on several GPUs each has the cell's batch: FLOPs, bytes and memory are of one of them, samples per second of all",
    "a claim is checked at every combination of axes for which all its terms have a cell that can be; held: true at "
    "all of them; refuted: false at one or more; undecided: neither, as it could be true or false inside the 90% "
    "intervals of predictions; not measured: a value that it needs is missing; a quantity that does not say measured, "
    "predicted or estimated is the first of these that all terms of the comparison have",
    "forms are fitted by least squares of relative errors: error is their root mean square, corrected for the "
    "number of fitted constants; the knee is the batch at which the part that grows with the batch becomes as large "
    "as the constant part, with its 95% confidence interval if the form is right; throughput is saturated from the "
    "smallest batch within 5% of the best",
)


def study_document(
    rows: Sequence[StudyRow], plan: StudyPlan, *, folder: str | None = None, spell_out: bool = True
) -> Document:
    """All of it. `folder`: where the study is, for the command that makes it again.

    `spell_out`: claims stand below the tables once more, in full, where the table may have cut them short.
    """
    judged = claims(plan.claim, rows)
    axes, shown = place_columns(rows), rows[:MOST_CELLS]
    tables = [
        gap_table(judged),
        cell_table(rows, shown),
        layer_table(shown, plan.layers, axes),
        speed_table(shown, axes),
        *trend_tables(trends(rows)),
        failure_table(rows),
    ]
    # Counter-examples stand below the claims that they refute, and what is open below those that it leaves so.
    claimed = filled(claim_table(judged), counter_table(judged), open_table(judged))
    about = (" ".join(plan.about.split()), *unreliable(rows), counted(judged) if judged else "")
    return Document(
        title=headline(rows, plan),
        lines=tuple(line for line in about if line),
        sections=(*([Section("claims", tables=claimed)] if claimed else []), *table_sections(tables)),
        notes=(*(spelled_out(judged) if spell_out else ()), *_notes(rows)),
        small_print=(replication(folder), *CONVENTIONS),
        rows=lambda: csv_table(rows),
        data=lambda: study_data(rows, plan, folder=folder),
    )


def failure_table(rows: Sequence[StudyRow]) -> Table:
    """What went wrong, in which cells: the same reason once."""
    groups: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        for side, reason in row.failures.items():
            groups.setdefault((side, reason), []).append(row.cell.slug)

    def which(failure: tuple[str, str]) -> str:
        first, *others = groups[failure]
        return f"{first}, ..." if others else first

    columns: Cells[tuple[str, str]] = [
        (Column("not", right=False, whole=True), lambda failure: failure[0]),
        (Column("cells", formatting.exact), lambda failure: len(groups[failure])),
        (Column("which", right=False), which),
        (Column("why", right=False), lambda failure: failure[1]),
    ]
    return table_of(columns, list(groups), title="what failed")


def replication(folder: str | None) -> str:
    """How to do the same again."""
    where = folder or "FOLDER"
    again, shown = shell("study", f"{where}/study.toml", output="ANOTHER-FOLDER"), shell("report", where)
    return (
        f"to replicate: {again}; to see this again: {shown}; every number is in {where}/ledgers, or in one table "
        "with --csv"
    )


def _notes(rows: Sequence[StudyRow]) -> list[str]:
    """What cells noted, the same once, with how many said so."""
    cells_of: dict[str, list[str]] = {}
    for row in rows:
        for note in row.notes if row.state != "impossible" else ():
            cells_of.setdefault(str(note), []).append(row.cell.slug)
    lines = [
        f"note: {cells[0]}{f' and {len(cells) - 1} more' if len(cells) > 1 else ''}: {note}"
        for note, cells in cells_of.items()
    ]
    devices = dict.fromkeys(device for row in rows if (device := row.facts.get("device")))
    first = [f"measured on {', '.join(devices)}"] if devices else []
    more = [f"and {len(lines) - _NOTES} more notes: --json has them"] if len(lines) > _NOTES else []
    return [*first, *impossible_lines(rows), *lines[:_NOTES], *more]


def study_data(rows: Sequence[StudyRow], plan: StudyPlan, *, folder: str | None = None) -> dict[str, Any]:
    """One JSON document: plan, claims with all they were judged by, rows, trends. Numbers are raw and in SI units,
    unknown is absent or null."""
    return {
        "title": plan.title,
        "about": plan.about,
        "plan": msgspec.to_builtins(plan),
        "claims": [claim_data(claim) for claim in claims(plan.claim, rows)],
        "rows": [{"id": row.cell.id, **msgspec.to_builtins(row)} for row in rows],
        "trends": msgspec.to_builtins(trends(rows)),
        "units": {name: quantity.unit for name, quantity in QUANTITIES.items()},
        "replicate": replication(folder),
        "conventions": list(CONVENTIONS),
    }


def claim_data(claim: JudgedHypothesis) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(claim)
    return fields | {
        "judged_at": len(claim.points),
        "held_at": claim.held,
        "undecided_at": claim.undecided,
        "sides": claim.sides,
    }
