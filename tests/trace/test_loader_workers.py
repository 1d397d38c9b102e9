"""Steps that load their data with processes of their own, inside the step or before it."""

from __future__ import annotations

import multiprocessing
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import rooflight
from rooflight.errors import TraceFailed


class Made(Dataset[Tensor]):
    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def __len__(self) -> int:
        return 8

    def __getitem__(self, place: int) -> Tensor:
        if self.fails:
            raise ValueError("no picture")
        return torch.full((4,), float(place)) * 2  # ops of the worker


def loader(*, fails: bool = False, **options: Any) -> DataLoader[Tensor]:
    return DataLoader(Made(fails=fails), batch_size=4, num_workers=1, **options)


def step_of(model: nn.Module, batches: Any) -> Any:
    def step() -> None:
        for batch in batches():
            model(batch)

    return step


def test_workers_that_the_step_starts_work_for_themselves_and_are_gone_afterwards() -> None:
    stays = loader(persistent_workers=True)
    for batches in (loader, lambda: stays):
        ledger = rooflight.estimate(step_of(nn.Linear(4, 2), batches), target="cpu")
        # Two batches; of the data nothing but the seed that the loader draws for its workers.
        assert [op.name for op in ledger.ops if op.phase == "forward"] == ["aten::t", "aten::addmm"] * 2
        seed = ["aten::empty.memory_format", "aten::random_", "aten::_local_scalar_dense"]
        assert [op.name for op in ledger.ops if op.phase == "other"] == seed
        assert [op.tensor("mat1").shape for op in ledger.ops if op.name == "aten::addmm"] == [(4, 4)] * 2
        assert not multiprocessing.active_children()


def test_workers_of_an_iterator_from_before_go_on() -> None:
    model, batches = nn.Linear(4, 2), iter(loader())
    ledger = rooflight.estimate(lambda: model(next(batches)))
    assert [op.name for op in ledger.ops] == ["aten::t", "aten::addmm"]
    assert next(batches).tolist() == [[8.0] * 4, [10.0] * 4, [12.0] * 4, [14.0] * 4]


def test_a_worker_that_fails_is_told_in_a_line_and_leaves_no_process() -> None:
    with pytest.raises(TraceFailed, match="ValueError: Caught ValueError in DataLoader worker process 0") as failed:
        rooflight.estimate(step_of(nn.Linear(4, 2), lambda: loader(fails=True)))
    assert "\n" not in str(failed.value)
    assert not multiprocessing.active_children()
