"""Right tables: no row of them is called wrong, and nothing is said against several rows."""

from __future__ import annotations

import pytest

from rooflight.analysis.claims import check, parse_claims
from tests.founding_documents.right_tables import RIGHT

KNOWN_FAILING = {
    "a_rate_of_a_time_that_was_rounded",
    "k80_table_of_three_models",
    "recorded_vgg19_beside_both_peaks",
    "resnet18_trial_1",
    "resnet50_trial_2",
    "times_in_tf32_beside_the_fp32_peak",
    "vgg13_measured_on_v100",
    "vgg19_measured_on_v100",
    "vgg_flop_beside_a_device",
    "vgg_flop_measured_and_estimated",
}
"""That today's checker calls wrong: to be emptied."""
XFAIL = pytest.mark.xfail(reason="a right row is called wrong", strict=True)


def test_there_are_sixty_and_each_says_why_it_is_right() -> None:
    assert len(RIGHT) >= 60
    assert all(table.__doc__ for table in RIGHT.values())
    assert len({table().csv for table in RIGHT.values()}) == len(RIGHT)


@pytest.mark.parametrize("name", [pytest.param(name, marks=XFAIL if name in KNOWN_FAILING else ()) for name in RIGHT])
def test_nothing_right_is_called_wrong(name: str) -> None:
    table = RIGHT[name]()
    checked = check(table.ledger, parse_claims(table.csv, f"{name}.csv"))
    assert len(checked.rows) == len(table.cells)
    said = [(row.claim.where, row.claim.value, row.verdict, row.answer, row.because) for row in checked.rows]
    assert [row for row in said if row[2] in ("wrong", "unreadable")] == []
    assert checked.findings == ()
    assert checked.passes is table.checkable, said
