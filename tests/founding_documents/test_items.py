"""Every item of the founding documents, done: each command runs, shows what the page says, and the page says no more."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from tests.founding_documents.items import (
    DOCUMENTS,
    MARKED,
    PAGE,
    DocumentItem,
    ItemFailed,
    ItemRun,
    items,
    row,
    tables_part,
)

ITEMS = items()
VERDICTS = ("right", "wrong", "convention", "task", "background")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> ItemRun:
    return ItemRun(tmp_path_factory.mktemp("items"))


def test_all_items_are_there_and_each_has_a_verdict() -> None:
    assert Counter(item.document for item in ITEMS) == {"000": 23, "001": 30, "002": 28, "003": 14, "004": 15}
    for document in DOCUMENTS:
        places = [item.place for item in ITEMS if item.document == document]
        assert places == [f"{document}.{number}" for number in range(1, len(places) + 1)]
    for item in ITEMS:
        word, _, why = item.says.partition(":")
        assert re.split(r"\W", word)[0] in VERDICTS, item
        # What is wrong is one of the twenty mistakes, or is said in words.
        assert not item.says.startswith("wrong") or why.strip(), item
        assert bool(item.run) == bool(item.shows) == (item.place != "001.7")


def test_the_page_has_todays_counts_of_tables() -> None:
    """Of the two sets of tables of claims; what the items show is compared by the slow test."""
    (found,) = (match for match in MARKED.finditer(PAGE.read_text()) if match["name"] == "tables of claims")
    assert tables_part() in found[0], "run: python -m tests.founding_documents.items --write"


@pytest.mark.slow
@pytest.mark.parametrize("item", ITEMS, ids=[item.place for item in ITEMS])
def test_an_item_shows_what_the_page_says(item: DocumentItem, run: ItemRun) -> None:
    if item.missing:
        with pytest.raises(ItemFailed):
            run.result(item)
    shown = "" if item.missing else run.result(item)
    assert row(item, shown) in PAGE.read_text(), "run: python -m tests.founding_documents.items --write"
