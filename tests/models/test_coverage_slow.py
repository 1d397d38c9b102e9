"""The script that tries the zoos: it finds their models, and ends a step that takes too long."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

import pytest

from tests.fixtures.paths import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def coverage() -> ModuleType:
    """The script, under a name that is not the package's of the same name."""
    spec = importlib.util.spec_from_file_location("coverage_of_zoos", ROOT / "benchmarks" / "coverage.py")
    assert spec is not None and spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_zoo_has_models(coverage: ModuleType) -> None:
    sizes = {zoo: len(specs(False)) for zoo, specs in coverage.ZOOS.items()}
    assert sizes["torchvision"] > 100 and sizes["timm"] > 80 and sizes["hf"] > 200 and sizes["released"] > 100
    assert len(coverage.hf_specs(True)) > sizes["hf"]


def test_a_step_that_takes_too_long_is_ended(coverage: ModuleType) -> None:
    (row,) = coverage.try_all([("released", "llama3.1-405b", "train")], jobs=1, timeout_s=0, memory_gib=6)
    assert row.failure == "took more than 0 s"
