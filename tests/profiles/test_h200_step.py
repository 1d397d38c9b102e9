"""One small training step (two convolutions, batch 64) under ncu 2025.3 on an H200, printed in four ways."""

from __future__ import annotations

import pytest

from rooflight.profiles import read
from tests.fixtures.paths import DATA

NCU = DATA / "ncu"
LOGS = {
    "raw page, base units": "h200_mnist_raw.csv.gz",
    "raw page, ncu's own units": "h200_mnist_auto_units.csv.gz",
    "details page": "h200_mnist_details.csv.gz",
    "console": "h200_mnist_console.log.gz",
}


@pytest.fixture(scope="module", params=list(LOGS), ids=list(LOGS))
def ledger(request):
    return read(NCU / LOGS[request.param])


def test_every_form_tells_the_same_counts(ledger):
    """Counts repeat exactly from run to run of ncu; tensor FLOPs are conv2's three products and what padding adds."""
    (step,) = (row for row in ledger.measurements if row.scope == "step")
    assert len(ledger.kernels) == 36
    assert step.quantities["tensor_flops_tf32"].value == 6_393_692_160
    assert step.quantities["smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"].value == 119_897_381
    assert step.quantities["cuda_flops_fp32"].value == 8_240_092 + 16_972_160 + 2 * 119_897_381


def test_bytes_and_time_differ_by_the_runs_alone(ledger):
    (step,) = (row for row in ledger.measurements if row.scope == "step")
    assert step.quantities["dram_bytes_read"].value == pytest.approx(131_040_512, rel=0.01)
    assert step.quantities["kernel_time_s"].value == pytest.approx(391e-6, rel=0.02)


def test_conv2_forward_is_among_the_kernels(ledger):
    counts = [kernel.quantities["tensor_flops_tf32"].value for kernel in ledger.kernels]
    assert 1_358_954_496 in counts
