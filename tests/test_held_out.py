"""What was held out when the transfer was tuned: the scripts keep to benchmarks/held_out.toml."""

from __future__ import annotations

import ast
import csv
import json
import re
import sys
import tomllib

import pytest

from rooflight.hardware.calibration import published_name, shipped
from rooflight.hardware.devices import find, known
from rooflight.prediction.tiers import _WITH_CONVOLUTIONS
from tests.fixtures.paths import ROOT

HELD_OUT = tomllib.loads((ROOT / "benchmarks" / "held_out.toml").read_text())


def test_a_gpu_is_tuned_on_or_held_out() -> None:
    tuned, held = (set(HELD_OUT["transfer"][key]) for key in ("tuned_on", "held_out"))
    assert not tuned & held
    assert all(find(name).name == name for name in tuned | held)


def test_published_calibrations_are_made_of_single_ops_alone() -> None:
    names = {
        "NeuSight": "neusight-micro",
        "aiconfigurator": "aic",
        "LLMServingSim": "llmservingsim",
        "DeepBench": "deepbench",
    }
    for device in known():
        calibration = shipped(published_name(device.name))
        if calibration is not None:
            sources = {names[group.source.split(" ")[0]] for group in calibration.points}
            assert sources <= set(HELD_OUT["published"]["made_of"])


def test_the_scripts_that_tune_read_no_step_that_judges() -> None:
    """Neither the transfer's script nor the one that makes the calibrations knows the rows that judge."""
    for name in ("transfer.py", "published_calibrations.py", "hosts.py"):
        source = (ROOT / "benchmarks" / name).read_text()
        tree = ast.parse(source)
        imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names} | {
            str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)
        }
        assert not imported & {"judged_steps", "judged_traces", "accuracy", "published_steps", "predict_published"}
        strings = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        assert not any(word in text for text in strings for word in ("timm-", "kernelbench-", "published_steps.json"))
    tuned = (ROOT / "benchmarks" / "transfer.py").read_text()
    assert '"held_out" if held_out else "tuned_on"' in tuned
    assert set(_WITH_CONVOLUTIONS) <= set(HELD_OUT["transfer"]["tuned_on"])


def test_the_line_of_hosts_is_made_of_those_that_may_be_tuned_on() -> None:
    """Their names in NeuSight's tables begin with those of the database, where there are such."""
    tree = ast.parse((ROOT / "benchmarks" / "hosts.py").read_text())
    (years,) = (
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "YEARS"
    )
    used = sorted(ast.literal_eval(years))
    tuned = sorted(HELD_OUT["hosts"]["tuned_on"])
    assert len(used) == len(tuned) and all(table.startswith(name) for table, name in zip(used, tuned, strict=True))
    assert not set(tuned) & set(HELD_OUT["transfer"]["held_out"])


SEALED = "draw_sealed"
SCRIPTS = ROOT / "benchmarks"
READERS = {"benchmarks/sealed.py", "benchmarks/h200/drawn_steps.py", "tests/test_held_out.py"}
"""What summarises the sealed rows, what measured them, and this test."""


def test_only_the_summary_reads_the_sealed_rows() -> None:
    files = [
        file
        for folder in ("src", "benchmarks", "tests", "studies", "examples")
        for file in (ROOT / folder).rglob("*.py")
    ]
    naming = {str(file.relative_to(ROOT)) for file in files if SEALED in file.read_text()}
    assert naming == READERS
    importing = {
        file.name for file in files if re.search(r"^\s*(from|import) sealed\b", file.read_text(), re.MULTILINE)
    }
    assert importing == {"test_held_out.py"}
    assert "sealed" not in (SCRIPTS / "ratchet.toml").read_text()


def test_a_third_look_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import sealed

    with sealed.LOOKS.open() as file:
        works = [row["work"] for row in csv.DictReader(file)]
    assert works and max(map(works.count, works)) <= sealed.MOST_LOOKS
    assert sealed.looks(works[0]) == works.count(works[0])
    monkeypatch.setattr(sealed, "looks", lambda work: sealed.MOST_LOOKS)
    monkeypatch.setattr(sys, "argv", ["sealed.py", works[0]])
    with pytest.raises(SystemExit, match="2 times already"):
        sealed.main()


def test_the_open_half_of_the_draw_is_whole_and_new() -> None:
    """60 steps of one device and one version of torch, each of another model."""
    half = json.loads((SCRIPTS / "h200" / "results" / "draw_open.json").read_text())
    assert len(half["rows"]) == len({row["model"] for row in half["rows"]}) == 60
    assert {row["step"] for row in half["rows"]} == {"infer", "train"}
    assert {row["dtype"] for row in half["rows"]} == {"bf16", "fp32"}
    assert all(1 <= row["batch"] <= 64 and row["kernel_time_s"] > 0 for row in half["rows"])
