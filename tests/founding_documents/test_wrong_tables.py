"""Tables with one planted mistake: it is called wrong or contradicted, never right; and the rows beside it are not."""

from __future__ import annotations

import pytest

from rooflight.analysis.claims import CheckedTable, check, parse_claims
from tests.founding_documents.claim_tables import ClaimTable
from tests.founding_documents.wrong_tables import MISTAKES, WRONG, counts

KNOWN_FAILING = {
    "macs_over_a_peak_in_a_wide_table",
    "macs_over_the_peak_of_a_k80",
    "macs_over_the_peak_of_a_v100",
    "memory_side_of_the_ridge",
    "time_by_the_boards_peak",
    "time_of_another_model",
    "workspace_for_the_output",
}
"""Whose planted row is not found today, or whose right neighbour is blamed: to be emptied."""
KNOWN_FAILING_WITHOUT_IT = {
    "batch_in_a_recorded_throughput",
    "gpu_busy_for_the_wall",
    "parameters_for_the_peak_memory",
    "tensor_work_missing_in_a_rate",
    "tensor_work_missing_in_an_intensity",
    "tensor_work_missing_of_mnist",
    "throughput_by_gpu_busy",
}
"""Whose right table is contradicted before anything is planted: to be emptied."""
XFAIL = pytest.mark.xfail(reason="not found, or a right row is blamed", strict=True)


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


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=XFAIL if name in KNOWN_FAILING_WITHOUT_IT else ()) for name in WRONG]
)
def test_without_its_mistake_the_table_is_right(name: str) -> None:
    checked = judged(WRONG[name].table().right, name)
    assert [row for row in checked.rows if row.verdict in ("wrong", "unreadable")] == []
    assert checked.findings == ()


@pytest.mark.parametrize("name", [pytest.param(name, marks=XFAIL if name in KNOWN_FAILING else ()) for name in WRONG])
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
