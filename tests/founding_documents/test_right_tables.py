"""Right tables: no row of them is called wrong, and nothing is said against several rows."""

from __future__ import annotations

import pytest

from tests.founding_documents.judged_tables import faults_of_verdict
from tests.founding_documents.right_tables import RIGHT


def test_there_are_sixty_and_each_says_why_it_is_right() -> None:
    assert len(RIGHT) >= 60
    assert all(table.__doc__ for table in RIGHT.values())
    assert len({table().csv for table in RIGHT.values()}) == len(RIGHT)


@pytest.mark.parametrize("name", RIGHT)
def test_nothing_right_is_called_wrong(name: str) -> None:
    assert faults_of_verdict(RIGHT[name]()) == []
