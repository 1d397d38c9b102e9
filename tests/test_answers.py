"""What two recordings of answers differ by: numbers, units and names, not wording and not places."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
ROWS = [{"op": "aten::mm", "flops": 10, "time_s": 0.5}, {"op": "aten::add", "flops": 2, "time_s": 0.25}]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("answers")


@pytest.mark.parametrize(("after", "differences"), [
    (ROWS, 0),
    (ROWS[::-1], 0),
    ([{**ROWS[0], "time_s": 0.5 * (1 + 1e-8)}, ROWS[1]], 0),
    ([{**ROWS[0], "time_s": 0.51}, ROWS[1]], 1),
    ([{**ROWS[0], "flops": 2}, {**ROWS[1], "flops": 10}], 2),
    ([{**ROWS[0], "op": "aten::addmm"}, ROWS[1]], 2),
    (ROWS[:1], 3),
    ([{**ROWS[0], "bytes": 4}, ROWS[1]], 1),
    ([{"op": "aten::mm", "flops": 10, "measured": {"time_s": 0.5}}, ROWS[1]], 0),
])  # fmt: skip
def test_what_differs(answers: ModuleType, after: list[dict[str, Any]], differences: int) -> None:
    assert len(list(answers.differences({"ops": ROWS}, {"ops": after}))) == differences


def test_of_an_answer_names_and_nine_digits_are_kept(answers: ModuleType) -> None:
    answer = {"bound": "memory", "sentence": "bound by memory", "time_s": 1 / 3, "header": {"rooflight": "1.2"}}
    assert answers.reduced(answer, "", answers.UNSTEADY["*"]) == {
        "bound": "memory",
        "time_s": 0.333333333,
        "header": {},
    }


def test_of_a_page_the_numbers_of_tables_are_kept_with_their_units(answers: ModuleType) -> None:
    page = (
        "<p>12 ops</p><table><thead><tr><th>op<th>time<th>of roof</tr></thead>"
        "<tr><td>aten::mm</td><td>1,535.5 µs</td><td>36.5 TFLOP/s, 8%</td></tr></table>"
    )
    assert answers.tables(page) == [{"op": "aten::mm", "time": ["1,535.5µs"], "of roof": ["36.5TFLOP/s", "8%"]}]
