"""Tables with one planted mistake: it is called wrong or contradicted, never right; and the rows beside it are not."""

from __future__ import annotations

import pytest

from tests.founding_documents.judged_tables import faults_of_planted, faults_of_right
from tests.founding_documents.wrong_tables import MISTAKES, WRONG, counts


def test_there_are_sixty_and_each_mistake_is_planted_twice() -> None:
    assert len(WRONG) >= 60
    assert all(sum(places.values()) >= 2 for places in counts().values())
    # Each also sits inside a time, a rate or a ratio.
    assert all(set(places) - {"itself"} for places in counts().values())
    assert sorted(counts()) == sorted(MISTAKES) == list(range(1, 21))


@pytest.mark.parametrize("name", WRONG)
def test_without_its_mistake_the_table_is_right(name: str) -> None:
    assert faults_of_right(WRONG[name].table().right) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_planted_mistake_is_found_and_no_other_row_is_blamed(name: str) -> None:
    assert faults_of_planted(WRONG[name].table()) == []
