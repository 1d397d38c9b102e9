"""A short calibration of the GPU that is here, and what it predicts beside what is measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rooflight
from rooflight.hardware.calibration import read
from rooflight.summary.measured import Measured
from rooflight.summary.measured_step import busy_s

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("calibration") / "here.json.gz"
    command = [sys.executable, "-m", "rooflight", "calibrate", "--seconds", "20", "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return path


def test_every_chapter_has_points(calibrated):
    found = read(calibrated)
    families = {points.family for points in found.points if points.rows}
    assert {"gemm", "conv-forward", "conv-wgrad", "attention-efficient-backward", "plain", "foreach"} <= families
    assert found.ceilings["copy"].value > 1e11
    assert {"conv.infer", "conv.infer.bf16", "gemm.backward", "launch.infer", "module.forward"} <= found.host.keys()
    assert found.host["gap"].value > found.host["gap.graph"].value > 0


def test_a_step_is_predicted_by_it(calibrated):
    measured = Measured(rooflight.measure("resnet18", batch=16, counters="none"))
    predicted = rooflight.predict("resnet18", on="here", batch=16, calibration=read(calibrated))[0]
    assert predicted.tier == "calibrated"
    assert predicted.gpu_time_s == pytest.approx(busy_s(measured), rel=0.4)  # twenty seconds are a rough calibration
