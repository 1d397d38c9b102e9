"""Functions that modules call have rows, so that at every depth the rows below the model add up to it."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rooflight
from rooflight import summary
from rooflight.ledger import QUANTITIES, total
from rooflight.reporting.report.context import context_of
from rooflight.reporting.sections.layer_rows import fold, fold_measured
from rooflight.reporting.sections.ledger_data import ledger_data
from rooflight.summary.functions import FUNCTIONAL, FUSED, OWN_PARAMETERS
from rooflight.summary.measured import Measured
from tests.fixtures.measured_ledgers import compiled
from tests.fixtures.recordings import recording


class Twice(nn.Module):
    """A shared module called twice, functions called twice, parameters of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.shared, self.scale = nn.Linear(6, 6), nn.Parameter(torch.ones(6))
        self.inner = nn.ModuleList([nn.Sequential(nn.Linear(6, 6), nn.ReLU()) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.shared(x)) * self.scale
        x = F.relu(self.shared(x))
        for block in self.inner:
            x = x + block(x)
        return F.threshold(torch.tanh(x).exp().sqrt().sigmoid(), 0.5, 0.0)


def _twice(step):
    model = Twice().train(step == "train")
    return rooflight.estimate(model, torch.zeros(2, 6), step=step)


SMALL: dict[str, dict[str, Any]] = {
    "mnist-cnn": dict(batch=2),
    "resnet18": dict(batch=2, input_shape="3x32x32"),
    "gpt2": dict(batch=1, seq=8, overrides={"n_layer": "3", "n_embd": "24", "n_head": "2", "vocab_size": "50"}),
    "distilbert": dict(batch=1, seq=8, overrides={"n_layers": "2", "dim": "24", "hidden_dim": "48", "n_heads": "2"}),
    "transformer": dict(batch=1, seq=8),
}


@pytest.fixture(scope="module", params=["infer", "train"])
def ledgers(request):
    found = {}
    for name, options in SMALL.items():
        found[name] = rooflight.estimate(name, step=request.param, **options)
    return found | {"own": _twice(request.param)}


def outermost(rows):
    """Rows with nothing shown below them."""
    holders = {row.name.rpartition(".")[0] for row in rows if row.depth}
    return [row for row in rows if row.name not in holders]


def test_rows_add_up_at_every_depth(ledgers):
    for ledger in ledgers.values():
        whole, rows = total(ledger.ops), summary.rows(ledger)
        for shown in (rows, fold(rows)):
            for depth in range(max(row.depth for row in rows) + 1):
                parts = outermost([row for row in shown if row.depth <= depth])
                for name in QUANTITIES:
                    pick = attrgetter(f"totals.{name}")
                    assert sum(map(pick, parts)) == getattr(whole, name), (ledger.header.model, depth, name)
                assert sum(row.params for row in parts) == summary.params(ledger), (ledger.header.model, depth)
                assert sum(row.trainable_params for row in parts) == summary.trainable_params(ledger)
                assert sum(row.totals.ops for row in parts) == sum(op.kind != "view" for op in ledger.ops)


def test_functions_of_the_mnist_net_by_hand():
    rows = {row.name: row for row in summary.rows(rooflight.estimate("mnist-cnn", batch=1, step="train"))}
    relu, pool, softmax = rows["relu()"], rows["max_pool2d()"], rows["log_softmax()"]
    # 32x26x26, 64x24x24 and 128 values of 4 bytes: forward reads and writes them, backward reads two and writes one.
    values = 32 * 26 * 26 + 64 * 24 * 24 + 128
    assert relu.forward.bytes == values * 4 * 2
    assert relu.backward.bytes == values * 4 * 3
    assert (relu.calls, relu.type, relu.kind, relu.depth) == (3, "3 × function", "function", 1)
    assert relu.output == (1, 32, 26, 26)  # that of the first call, as of modules
    # 2x2 windows: 3 comparisons for each of 64x12x12 results.
    assert pool.forward.other_flops == 3 * 64 * 12 * 12
    assert pool.backward.ops == softmax.backward.ops == 1  # their backwards are in the same rows
    assert [name for name in rows if name][-4:] == ["max_pool2d()", "log_softmax()", "<loss>", "<optimizer>"]


def test_own_parameters_shared_modules_and_many_functions():
    ledger = _twice("train")
    rows = {row.name: row for row in summary.rows(ledger)}
    assert rows[OWN_PARAMETERS].params == 6 and rows[OWN_PARAMETERS].kind == "parameters"
    assert rows["shared"].calls == 2 and rows["shared"].params == 42
    assert rows["relu()"].calls == 2 and rows["add()"].calls == 3
    assert rows["relu()"].backward.ops == 2  # thresholds at 0, where that of the threshold is at 0.5
    assert rows["threshold()"].backward.ops == 1
    folded = {row.name: row for row in fold(list(rows.values()))}
    many = [row for row in rows.values() if row.kind == "function"]
    assert folded[FUNCTIONAL].type == f"{len(many)} functions"
    assert folded[FUNCTIONAL].totals.bytes == sum(row.totals.bytes for row in many)
    assert not any(name.endswith("()") for name in folded)


def test_kinds_in_json():
    kinds = {row["path"]: row["kind"] for row in ledger_data(rooflight.estimate("mnist-cnn", step="train"))["modules"]}
    assert kinds[""] == kinds["conv1"] == "module"
    assert kinds["relu()"] == "function"
    assert kinds["<loss>"] == kinds["<optimizer>"] == "outside"


@pytest.mark.parametrize("name", ["mnist-cnn-train-tf32", "transformer-infer-fp32", "gpt2-infer-bf16-compiled"])
def test_measured_rows_add_up(name):
    measured = Measured(recording(f"h200/{name}"))
    rows = measured.rows("module")
    for shown in (rows, fold_measured(measured, rows)):
        parts = outermost_measured(shown)
        for quantity in ("kernel_time_s", "kernels", "dram_bytes_read", "dram_bytes_written"):
            expected = measured.total.get(quantity)
            if expected is not None:
                found = sum(row.sums.get(quantity) or 0 for row in parts)
                assert found == pytest.approx(expected, rel=1e-9), quantity
        assert sum(row.estimate.totals.flops for row in parts) == total(measured.ledger.ops).flops


def outermost_measured(rows):
    holders = {row.name.rpartition(".")[0] for row in rows if row.estimate.depth}
    return [row for row in rows if row.name not in holders]


def test_kernels_of_several_rows_have_a_row():
    """A kernel that fuses layers is in none of them; with the row for such kernels the parts add up."""
    measured = Measured(compiled())
    rows = {row.name: row for row in measured.rows("module")}
    fused = [row for name, row in rows.items() if name.rpartition(".")[2] == FUSED]
    assert fused and all(row.estimate.kind == "fused" and row.sums.time_s for row in fused)
    parts = outermost_measured(list(rows.values()))
    assert sum(row.sums.time_s or 0 for row in parts) == pytest.approx(measured.total.time_s)


def test_the_tree_of_a_page_holds_ops_below_functions():
    ledger = recording("h200/mnist-cnn-train-tf32")
    tree = context_of(ledger, source="", devices=()).tree
    relu = tree.names.index("relu()")
    held = [tree.names[row] for row, parent in enumerate(tree.parents) if parent == relu]
    assert sorted(held) == ["relu"] * 3 + ["threshold_backward"] * 3
    of_modules = [index for ops, kind in zip(tree.ops, tree.kinds, strict=True) if kind == "module" for index in ops]
    assert len(of_modules) == len(set(of_modules))  # each op is in one row: the panel of a module shows it once
