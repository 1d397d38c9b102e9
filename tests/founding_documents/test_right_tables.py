"""Right tables: no row of them is called wrong, and nothing is said against several rows."""

from __future__ import annotations

import pytest

from rooflight.analysis.claims import check, parse_claims
from tests.founding_documents.right_tables import RIGHT


def test_there_are_sixty_and_each_says_why_it_is_right() -> None:
    assert len(RIGHT) >= 60
    assert all(table.__doc__ for table in RIGHT.values())
    assert len({table().csv for table in RIGHT.values()}) == len(RIGHT)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_right_is_called_wrong(name: str) -> None:
    table = RIGHT[name]()
    checked = check(table.ledger, parse_claims(table.csv, f"{name}.csv"))
    assert len(checked.rows) == len(table.cells)
    said = [(row.claim.where, row.claim.value, row.verdict, row.answer, row.because) for row in checked.rows]
    assert [row for row in said if row[2] in ("wrong", "unreadable")] == []
    assert checked.findings == ()
    assert checked.passes is table.checkable, said
