"""Files that rooflight wrote at 6dd1d43, before quantities were renamed and headers grew: still read, by today's names."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import rooflight
from rooflight.files import load
from rooflight.ledger import FORMAT_VERSION
from rooflight.measured import Measured
from rooflight.metrics import QUANTITIES
from rooflight.spec import StepSpec
from rooflight.study.api import load as load_study
from rooflight.study.hypotheses import claims

FOLDER = Path(__file__).parent / "data" / "formats_6dd1d43"


@pytest.mark.parametrize("name", ["estimate", "measured", "regions"])
def test_a_ledger_is_read(name: str) -> None:
    ledger = load(FOLDER / f"{name}.json.gz")
    assert ledger.format_version == FORMAT_VERSION > 3
    held = {one for row in (*ledger.measurements, *ledger.kernels) for one in row.quantities}
    assert "gpu_time_s" not in held and all(one in QUANTITIES or "__" in one for one in held)


def test_what_an_estimate_says_is_what_it_said() -> None:
    """Parameters and useful FLOPs of the MNIST network; 4 samples, forward and backward."""
    ledger = load(FOLDER / "estimate.json.gz")
    assert sum(module.params for module in ledger.modules) == 1_199_882
    again = rooflight.estimate(StepSpec.of(ledger.header))
    assert [op.cost for op in again.ops] == [op.cost for op in ledger.ops]
    asked = "rooflight estimate mnist-cnn --batch 4 --step train --loss cross-entropy --optimizer momentum"
    assert StepSpec.of(ledger.header).command() == asked


def test_a_measurement_of_a_cpu_and_a_recording_keep_their_times() -> None:
    assert Measured(load(FOLDER / "measured.json.gz")).total.get("host_time_s")
    recorded = Measured(load("recorded:h200/resnet50-train-fp32"))
    assert recorded.origin == "recorded" and recorded.total.get("kernel_time_s") == pytest.approx(9.6396e-3, rel=1e-3)


def test_a_study_is_read_and_its_claims_are_understood(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    shutil.copytree(FOLDER / "study", folder)
    rows = load_study(folder).rows
    assert [row.state for row in rows] == ["done", "done"]
    for row in rows:
        assert (
            "gpu_time.predicted" not in row.values and row.values["gpu_busy.predicted"] < row.values["time.predicted"]
        )
        assert 0 < row.values["conv2/kernel_time.predicted"] < row.values["gpu_busy.predicted"]
        assert row.facts["fits"] == "yes"
    (judged,) = claims(load_study(folder).plan.claim, rows)
    assert judged.verdict == "held"
    # As results are passed on, without their journal.
    shutil.rmtree(folder / "journal")
    assert load_study(folder).rows == rows
