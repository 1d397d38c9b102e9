"""Document 003's pipeline on real logs: ncu's counters of three VGGs on an H200, joined with times of another run.

The same networks were counted by CUPTI in other processes on other days (studies/recorded/h200/vgg-roofline): what the
mathematics fixes must be the same to the last digit, what runs differ in must be near.
"""

from __future__ import annotations

from math import fsum

import pytest

import rooflight
from rooflight.ledger import Ledger
from rooflight.profiles import read
from rooflight.summary.measured import Measured
from tests.fixtures.notes import note_texts
from tests.fixtures.paths import DATA, ROOT

LOGS, STUDY = DATA / "vgg_logs", ROOT / "studies" / "recorded" / "h200" / "vgg-roofline" / "ledgers"
NETWORKS = ("vgg11", "vgg13", "vgg19")


def of_logs(network: str) -> Ledger:
    return read(LOGS / f"{network}.ncu.csv.gz", LOGS / f"{network}.trace.json.gz")


def summed(ledger: Ledger, name: str) -> float:
    return sum(kernel.quantities[name].value for kernel in ledger.kernels)


def counted_by_cupti(network: str, name: str) -> list[float]:
    measured = (Measured(rooflight.load(path)) for path in STUDY.glob(f"{network}-b16-infer-fp32-*"))
    return [values[name].value for step in measured for values in step.steps.values()]


@pytest.mark.parametrize("network", NETWORKS)
def test_ncu_and_cupti_count_the_same_tensor_work(network):
    tensor = summed(of_logs(network), "tensor_flops_tf32")
    # The study has the step with TF32 in convolutions, as here, and in other precisions.
    assert tensor in counted_by_cupti(network, "tensor_flops_tf32")


@pytest.mark.parametrize("network", NETWORKS)
def test_every_launch_has_the_time_of_the_other_log(network):
    ledger = of_logs(network)
    assert all(kernel.time_s for kernel in ledger.kernels)
    assert any("in the same order" in note for note in note_texts(ledger.header.notes))
    # Kernels that ncu runs alone take a little longer than in the running step; not a third more.
    alone = fsum(kernel.time_s for kernel in read(LOGS / f"{network}.ncu.csv.gz").kernels)
    together = fsum(kernel.time_s for kernel in ledger.kernels)
    assert 1 < alone / together < 1.34
