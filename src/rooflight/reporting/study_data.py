"""A study as one JSON document: raw numbers, SI units, unknown is absent or null."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from rooflight.reporting.study_document import CONVENTIONS, replication
from rooflight.study.cell import QUANTITIES, Row
from rooflight.study.hypotheses import Judged, claims
from rooflight.study.trends import trends

if TYPE_CHECKING:
    from rooflight.study.plan import Plan


def study_data(rows: Sequence[Row], plan: Plan, *, folder: str | None = None) -> dict[str, Any]:
    """Plan, claims with all they were judged by, rows, trends."""
    return {
        "title": plan.title,
        "about": plan.about,
        "plan": msgspec.to_builtins(plan),
        "claims": [claim_data(one) for one in claims(plan.claim, rows)],
        "rows": [{"id": row.cell.id, **msgspec.to_builtins(row)} for row in rows],
        "trends": msgspec.to_builtins(trends(rows)),
        "units": {name: quantity.unit for name, quantity in QUANTITIES.items()},
        "replicate": replication(folder),
        "conventions": list(CONVENTIONS),
    }


def claim_data(one: Judged) -> dict[str, Any]:
    made: dict[str, Any] = msgspec.to_builtins(one)
    made["judged_at"] = len(one.points)
    made["held_at"] = one.held
    made["sides"] = one.sides
    return made
