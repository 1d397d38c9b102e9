"""An estimate is the same wherever it is asked for: under anomaly detection, inside a compiled function."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn

import rooflight
from rooflight.ledger import Ledger
from rooflight.trace.options import TensorKind
from tests.fixtures.notes import note_texts

X = torch.randn(4, 8)


@pytest.fixture
def model() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize("on", ["meta", "fake", "cpu"])
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_anomaly_detection_is_no_part_of_a_step(model: nn.Module, on: TensorKind) -> None:
    plain = rooflight.estimate(model, X, step="train", on=on)
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        found = rooflight.estimate(model, X, step="train", on=on)
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert found.ops == plain.ops
    assert [note for note in note_texts(found.header.notes) if note not in note_texts(plain.header.notes)] == [
        "autograd's anomaly detection was off for this step: its checks are no part of it"
    ]
    assert not torch.is_anomaly_enabled()


def test_inside_a_compiled_function(model: nn.Module) -> None:
    @torch.compile(backend="eager")
    def doubled(x: Tensor) -> tuple[Tensor, Ledger]:
        y = x * 2
        ledger = rooflight.estimate(model, y, step="train")
        return y + 1, ledger

    result, ledger = doubled(X)
    assert torch.equal(result, X * 2 + 1)
    assert ledger.ops == rooflight.estimate(model, X, step="train").ops


def test_a_graph_that_must_be_whole_is_refused_with_what_to_do(model: nn.Module) -> None:
    @torch.compile(backend="eager", fullgraph=True)
    def estimated(x: Tensor) -> Ledger:
        return rooflight.estimate(model, x)

    with pytest.raises(RuntimeError, match=r"rooflight\.estimate cannot be a part of a graph: call it outside"):
        estimated(X)


def test_a_plain_estimate_needs_no_closed_forms() -> None:
    # torch itself may import sympy, which of ours only the closed forms do.
    script = (
        "import sys, rooflight; rooflight.estimate('mnist-cnn')\n"
        "assert 'rooflight.estimation.symbolic' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
