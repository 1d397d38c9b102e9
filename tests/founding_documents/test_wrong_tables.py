"""Tables with one planted mistake: it is called wrong or contradicted, never right; and the rows beside it are not."""

from __future__ import annotations

import pytest

from rooflight.analysis.claims import CheckedTable, check, parse_claims
from tests.founding_documents.claim_tables import ClaimTable
from tests.founding_documents.wrong_tables import MISTAKES, WRONG, counts


def judged(table: ClaimTable, name: str) -> CheckedTable:
    checked = check(table.ledger, parse_claims(table.csv, f"{name}.csv"))
    assert len(checked.rows) == len(table.cells)
    return checked


def test_there_are_sixty_and_each_mistake_is_planted_twice() -> None:
    assert len(WRONG) >= 60
    assert all(sum(places.values()) >= 2 for places in counts().values())
    # Each also sits inside a time, a rate or a ratio.
    assert all(set(places) - {"itself"} for places in counts().values())
    assert sorted(counts()) == sorted(MISTAKES) == list(range(1, 21))


@pytest.mark.parametrize("name", WRONG)
def test_without_its_mistake_the_table_is_right(name: str) -> None:
    checked = judged(WRONG[name].table().right, name)
    assert [row for row in checked.rows if row.verdict in ("wrong", "unreadable")] == []
    assert checked.findings == ()


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_found_and_no_other_row_is_blamed(name: str) -> None:
    table = WRONG[name].table()
    checked = judged(table.wrong, name)
    contradicted = {number for finding in checked.findings for number in finding.rows}
    assert table.planted
    for place in table.planted:
        row = checked.rows[place]
        assert row.verdict == "wrong" or (row.verdict != "right" and row.claim.row in contradicted), row
    blamed = [row for place, row in enumerate(checked.rows) if row.verdict == "wrong" and place not in table.planted]
    assert blamed == []
    assert not checked.passes
