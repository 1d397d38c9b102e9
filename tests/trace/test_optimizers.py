"""The optimizer's part of a step: the ops CUDA runs, on state that is already there."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from rooflight.ledger import OPTIMIZER, total
from rooflight.trace.step import only_writes
from tests.fixtures.recording import meta
from tests.fixtures.tracing import names, rows, train

STATE = {
    "sgd": [],
    "momentum": ["momentum_buffer"],
    "adam": ["exp_avg", "exp_avg_sq"],
    "adamw": ["exp_avg", "exp_avg_sq"],
}
ADAM = ["lerp_", "mul_", "addcmul_", "sqrt", "div", "add_", "addcdiv_"]
# One parameter's second step; adamw decays the weights first.
SINGLE = {"sgd": ["add_"], "momentum": ["mul_", "add_", "add_"], "adam": ADAM, "adamw": ["mul_", *ADAM]}
FOREACH_ADAM = [
    "_foreach_lerp_", "_foreach_mul_", "_foreach_addcmul_", "_foreach_sqrt", "_foreach_div_", "_foreach_add_",
    "_foreach_addcdiv_",
]  # fmt: skip
FOREACH = {
    "sgd": ["_foreach_add_"],
    "momentum": ["_foreach_mul_", "_foreach_add_", "_foreach_add_"],
    "adam": FOREACH_ADAM,
    "adamw": ["_foreach_mul_", *FOREACH_ADAM],
}


@pytest.mark.parametrize("optimizer", STATE)
def test_on_cuda_all_parameters_are_stepped_at_once(optimizer: str) -> None:
    ledger = train(nn.Linear(4, 2), torch.randn(3, 4), optimizer=optimizer)
    assert names(ledger, phase="optimizer") == FOREACH[optimizer]
    for op in rows(ledger, phase="optimizer"):
        assert op.module == OPTIMIZER
        assert [tensor.shape for tensor in op.tensors("self")] == [(2, 4), (2,)]
    assert ledger.header.optimizer == optimizer


@pytest.mark.parametrize("optimizer", STATE)
@pytest.mark.parametrize(("foreach", "target"), [(False, "cuda"), (None, "cpu")], ids=["asked", "cpu"])
def test_without_foreach_every_parameter_is_stepped_for_itself(
    optimizer: str, foreach: bool | None, target: str
) -> None:
    ledger = train(nn.Linear(4, 2), torch.randn(3, 4), optimizer=optimizer, foreach=foreach, target=target)
    assert names(ledger, phase="optimizer") == 2 * SINGLE[optimizer]


@pytest.mark.parametrize("foreach", [True, False])
@pytest.mark.parametrize("optimizer", STATE)
def test_the_state_is_there_before_the_step(optimizer: str, foreach: bool) -> None:
    ledger = train(nn.Linear(4, 2), torch.randn(3, 4), optimizer=optimizer, foreach=foreach)
    state = [s for s in ledger.storages if s.category == "optimizer-state" and not s.host]
    assert sorted((s.name, s.nbytes) for s in state) == sorted(
        (name, size) for name in STATE[optimizer] for size in (32, 8)
    )
    assert all(s.born is None and s.dies is None for s in state)
    # A first step would clone gradients or fill zeros.
    assert not {"clone", "zeros_like"} & set(names(ledger, phase="optimizer"))
    steps = [s for s in ledger.storages if s.name == "step"]
    assert len(steps) == (2 if "adam" in optimizer else 0)
    assert all(s.host for s in steps)


def test_counting_steps_is_work_of_the_host() -> None:
    ledger = train(nn.Linear(4, 2), torch.randn(3, 4), optimizer="adam")
    host = {op.packet for op in ledger.ops if op.kind == "host"}
    assert "aten::_foreach_add_" in host
    assert all(op.cost is not None and op.cost.bytes_read == 0 for op in ledger.ops if op.kind == "host")


@pytest.mark.parametrize("optimizer", STATE)
def test_the_optimizer_does_the_same_arithmetic_either_way(optimizer: str) -> None:
    def optimizer_totals(foreach: bool) -> tuple[int, int, int]:
        ledger = train(nn.Linear(4, 2), torch.randn(3, 4), optimizer=optimizer, foreach=foreach)
        totals = total(op for op in ledger.ops if op.phase == "optimizer")
        assert not totals.uncounted
        return totals.flops, totals.other_flops, len(ledger.ops)

    together, apart = optimizer_totals(True), optimizer_totals(False)
    assert together[:2] == apart[:2]
    assert together[0] == 0


def test_the_optimizer_writes_parameters_and_state_in_place() -> None:
    ledger = train(nn.Linear(4, 2), torch.randn(3, 4), optimizer="momentum")
    kinds = {s.id: s.category for s in ledger.storages}
    written = [{kinds[t.storage] for t in op.tensors("self")} for op in rows(ledger, phase="optimizer")]
    assert written == [{"optimizer-state"}, {"optimizer-state"}, {"parameter"}]
    assert all(op.mutates == ("self",) for op in rows(ledger, phase="optimizer"))


def test_only_lists_without_data_that_fit_are_written_by_nobody() -> None:
    aten, lists, alike = torch.ops.aten, [meta(2, 3), meta(4)], [meta(2, 3), meta(4)]
    assert only_writes(aten._foreach_add_.List, (lists, alike), {"alpha": 2})
    assert only_writes(aten._foreach_addcdiv_.ScalarList, (lists, alike, alike, [1.0, 2.0]), {})
    assert only_writes(aten._foreach_sqrt_.default, (lists,), {})
    # What is wrong torch says; steps are counted on the host, with data; and what is made is to be had.
    assert not only_writes(aten._foreach_add_.List, (lists, [meta(2, 3), meta(5)]), {})
    assert not only_writes(aten._foreach_add_.List, (lists, alike[:1]), {})
    assert not only_writes(aten._foreach_add_.List, (lists, [one.bfloat16() for one in alike]), {})
    assert not only_writes(aten._foreach_add_.Scalar, ([torch.zeros(()), meta(4)], 1), {})
    assert not only_writes(aten._foreach_mul_.Tensor, (lists, meta()), {})
    assert not only_writes(aten._foreach_sqrt.default, (lists,), {})
    assert not only_writes(aten.add_.Tensor, (lists[0], alike[0]), {})
