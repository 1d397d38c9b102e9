"""Predicted memory against 120 steps that were measured on an H200, and the page that says how far it is off."""

from importlib import import_module
from types import ModuleType
from typing import Any

import pytest

from tests.fixtures.paths import ROOT
from tests.fixtures.torch_versions import needs_torch

PAGE = ROOT / "docs" / "memory-errors.md"
BENCHMARKS_PAGE = ROOT / "docs" / "benchmarks.md"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    """benchmarks/memory.py, as a module."""
    return import_module("memory")


@pytest.fixture(scope="module")
def outcomes(script: ModuleType) -> list[Any]:
    """Every row with what `rooflight.predict` says of it."""
    found: list[Any] = script.outcomes(script.reference_rows())
    return found


def spread(script: ModuleType, outcomes: list[Any], error: str, step: str) -> Any:
    return script.Spread.of(getattr(row, error) for row in outcomes if row.measured.step == step)


# --- against the rows ---


def test_every_row_is_predicted(outcomes: list[Any]) -> None:
    assert len({row.name for row in outcomes}) == len(outcomes) == 120
    for row in outcomes:
        memory = row.memory
        assert memory.fits
        assert memory.before_bytes < memory.peak_allocated_bytes <= memory.peak_reserved_bytes < memory.device_bytes
        assert sum(memory.peak.split.values()) == memory.peak_allocated_bytes
        assert 0 <= memory.peak.split.get("rounding", 0) < 0.06 * memory.peak_allocated_bytes


def test_batches_predicted_together_are_those_predicted_alone(outcomes: list[Any]) -> None:
    from rooflight.prediction.api import predict

    known = {row.name: row.memory for row in outcomes}
    alone = predict("resnet50", on="h200", batch=16, dtype="bf16", advice=False)[0].memory
    together = known["resnet50 infer bf16 b16"]
    assert alone is not None
    assert together.peak_allocated_bytes == alone.peak_allocated_bytes
    assert together.peak_reserved_bytes == alone.peak_reserved_bytes


@pytest.mark.slow
def test_the_largest_batch_is_found(script: ModuleType) -> None:
    """Limits found by halving on the GPU: never above them, at most 5% below, and on the page as they are."""
    limits = script.largest_batches()
    assert {(limit.name, limit.way) for limit in limits} >= {
        (name, way) for name in ("resnet50 fp32", "gpt2 s1024 fp32") for way in ("plain", "expandable")
    }
    for limit in limits:
        assert 0.95 * limit.largest <= limit.predicted <= limit.largest, limit
    assert script.limits_table(limits) in PAGE.read_text(), "run python benchmarks/memory.py --write"


@pytest.fixture(scope="module")
def held_out(script: ModuleType) -> list[Any]:
    """Rows of models that nothing was developed on, and of other ways to run a step."""
    found: list[Any] = script.outcomes(script.held_out_rows())
    return found


@pytest.mark.slow
def test_models_that_nothing_was_developed_on(script: ModuleType, held_out: list[Any]) -> None:
    """Autocast, checkpoints, accumulation, other optimizers and decoding are among them."""
    assert len(held_out) >= 96 and {row.measured.step for row in held_out} == {"infer", "train", "decode"}
    assert script.every_row(held_out) in PAGE.read_text(), "run python benchmarks/memory.py --write"


@pytest.mark.slow
def test_every_row_that_is_far_off_has_a_reason(script: ModuleType, outcomes: list[Any], held_out: list[Any]) -> None:
    """One that holds: played as it was measured, the row comes out right, but for those whose reason is another."""
    far = [row for row in (*outcomes, *held_out) if row.is_off(script.LARGE)]
    assert {row.name for row in far} == script.REASONS.keys()
    for rows, shared in ((outcomes, True), (held_out, False)):
        explained = [row for row in far if row in rows and script.REASONS[row.name] not in script.NOT_PLAYED]
        played = script.reserved_as_measured((row.measured for row in explained), shared_process=shared)
        assert len(explained) > 10
        off = {row.name: played[row.name] / row.measured.reserved - 1 for row in explained}
        assert {name: error for name, error in off.items() if abs(error) > script.PLAYED} == {}


# --- the pages ---


@needs_torch(2, 11, why="a slice that takes everything is an op there")
def test_the_page_has_these_errors(script: ModuleType, outcomes: list[Any]) -> None:
    text = PAGE.read_text()
    assert script.summary(outcomes) in text, "run python benchmarks/memory.py --write"
    assert script.every_row(outcomes) in text, "run python benchmarks/memory.py --write"


def test_every_row_that_is_far_off_has_its_reason_on_the_page(script: ModuleType, outcomes: list[Any]) -> None:
    assert not script.unexplained(outcomes)
    told = PAGE.read_text().partition("## Rows off by more than")[2].partition("## Every row")[0]
    assert [row.name for row in outcomes if row.is_off(script.LARGE) and f"| {row.name} |" not in told] == []


def test_the_table_beside_other_tools_has_these_errors(script: ModuleType, outcomes: list[Any]) -> None:
    parts = [spread(script, outcomes, "allocated_error", step) for step in ("infer", "train")]
    cells = [script.percent(value) for one in parts for value in (one.median, one.p90, one.greatest)]
    row = f"| **rooflight** | 120 | {' | '.join(cells)} |"
    assert row in BENCHMARKS_PAGE.read_text(), "run python benchmarks/memory.py --peers --write"


def test_a_section_of_the_page_is_replaced_alone(script: ModuleType) -> None:
    from peers.sections import memory_section, with_section

    page = "# Page\n\n## Growth\n\ntext\n\n## Predicted time\n\nmore\n"
    first = with_section(page, "## Peak memory\n\none\n\n### Part\n\ntwo")
    assert memory_section(page) == ""
    assert first == page.replace("## Predicted", "## Peak memory\n\none\n\n### Part\n\ntwo\n\n## Predicted")
    assert memory_section(first) == "## Peak memory\n\none\n\n### Part\n\ntwo"
    assert with_section(first, memory_section(first)) == first
    assert with_section(first, "## Peak memory\n\nnew") == page.replace(
        "## Predicted", "## Peak memory\n\nnew\n\n## Predicted"
    )
