"""A report computes each thing once: what was traced, bundled or read serves all who ask for it."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from rooflight.hardware.calibration import shipped
from rooflight.hardware.devices import find
from rooflight.ledger import Ledger
from rooflight.models.workload import Workload
from rooflight.reporting.charts import pictures
from rooflight.reporting.report.context import context_of
from rooflight.trace import TraceOptions, tracer
from tests.fixtures.recordings import recording


def test_a_step_is_traced_once_for_every_generation(monkeypatch: pytest.MonkeyPatch) -> None:
    traced: list[str] = []

    def counted(workload: Workload, options: TraceOptions) -> Ledger:
        traced.append(options.target)
        return plain(workload, options)

    plain = tracer.trace
    monkeypatch.setattr(tracer, "trace", counted)
    ledger = recording("h200/mnist-cnn-train-tf32")
    context = context_of(ledger, source="", devices=[find(name) for name in ("h200", "a100", "v100")])
    predictions = context.predictions
    assert not (predictions.devices.missing or predictions.sweep.missing or predictions.scaling.missing)
    # A V100 has no TF32, so that its step is another one; all batches, devices and numbers of GPUs share the rest.
    assert traced == ["cuda", "cuda:70"]


def test_the_bundle_is_made_once_and_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Mock(return_value="window.vega = 1; // é")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pictures, "_bundled", made)
    assert [pictures.vega_bundle.__wrapped__() for _ in range(2)] == ["window.vega = 1; // é"] * 2
    made.assert_called_once_with()
    (kept,) = (tmp_path / "cache" / "rooflight").iterdir()
    assert kept.name.startswith("vega-") and kept.suffix == ".kept"


def test_a_cache_that_cannot_be_written_is_no_hindrance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(pictures, "_bundled", lambda: "window.vega = 1")
    assert pictures.vega_bundle.__wrapped__() == "window.vega = 1"


def test_a_shipped_calibration_is_read_once() -> None:
    assert shipped("h200") is shipped("h200")
