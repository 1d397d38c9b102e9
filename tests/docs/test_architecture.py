"""The page of the architecture says what the source is."""

from __future__ import annotations

import importlib
import re
import sys

import pytest

from tests.fixtures.paths import ROOT

sys.path.insert(0, str(ROOT / "docs" / "_ext"))

from rooflight_docs import architecture

PAGE = architecture.PAGE.read_text()
WHERE = PAGE[PAGE.index("## Where a number is made") :]
MADE = [
    (path, name)
    for cell in re.findall(r"^\|[^|]*\|(.*)\|$", WHERE, re.MULTILINE)
    for path, names in re.findall(r"`([\w/]+\.py)(?:: (\w+))?`", cell)
    for name in [names]
    if "FAMILY" not in path
]


def test_the_table_and_the_picture_are_those_of_the_source() -> None:
    assert architecture.page(PAGE) == PAGE, "python docs/_ext/rooflight_docs/architecture.py writes them anew"
    assert architecture.picture() == architecture.PICTURE.read_text()


@pytest.mark.parametrize(("start", "end"), architecture.FLOW)
def test_every_arrow_is_an_import(start: str, end: str) -> None:
    assert start in architecture.imports()[end]


def test_every_room_says_what_it_holds() -> None:
    rooms = architecture.layers()
    assert [room for room in rooms if len(architecture.about(room)) < 20] == []
    assert {room for _, row in architecture.ROWS for room in row} <= set(rooms)


@pytest.mark.parametrize(("path", "name"), MADE)
def test_where_a_number_is_made(path: str, name: str) -> None:
    assert (architecture.SOURCE / path).is_file()
    if name:
        module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        assert callable(getattr(importlib.import_module(f"rooflight.{module}"), name))


def test_numbers_are_listed() -> None:
    assert len(MADE) > 20
