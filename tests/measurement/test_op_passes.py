"""Counters over the steps of a program, which need not be alike: what is counted is that of the op it is said of.

The hardware is pretended: its groups of counters and the passes they take are those of CUPTI's tables for an H100, and
each pass adds a number that tells which op it ran around. A real GPU does it in tests/gpu.
"""

from __future__ import annotations

from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import rooflight
from rooflight.hardware import counter_tables
from rooflight.ledger import Op
from rooflight.measurement.cupti import cupti, gpu, library, ranges
from rooflight.measurement.cupti.op_passes import OpCounterPasses
from rooflight.measurement.cupti.ranges import CountedRange

pytestmark = pytest.mark.skipif(library.find_library() is None, reason="no CUPTI to ask for its tables")
TENSOR = "sm__ops_path_tensor_src_fp16.sum"
READ = "dram__bytes_read.sum"


class Counting:
    """A range gets, by its name and in every pass, what the op does that runs inside."""

    work: dict[str, float] = {}  # noqa: RUF012
    """What the ops of the step that runs do, by the names of their ranges."""

    def __init__(self, names: tuple[str, ...], **options: Any) -> None:
        with cupti.Host("GH100") as host:
            self.left = host.passes(names)
        self.names, self.all = names, self.left
        self.sums: dict[str, float] = {}
        self.last = ""

    def __enter__(self) -> Counting:
        return self

    def start(self) -> None:
        self.left -= 1

    def push(self, name: str) -> None:
        self.last = name

    def pop(self) -> None:
        self.sums[self.last] = self.sums.get(self.last, 0.0) + Counting.work.get(self.last, 0.0) / self.all

    def stop(self) -> bool:
        return not self.left

    def results(self) -> list[CountedRange]:
        return [CountedRange(name, dict.fromkeys(self.names, value)) for name, value in self.sums.items()]

    def close(self) -> None:
        pass


def steps(*sizes: int) -> list[tuple[Op, ...]]:
    """A model behind so many additions."""
    model = nn.Sequential(OrderedDict(a=nn.Linear(4, 4), bbb=nn.ReLU(), ccccc=nn.Linear(4, 4), eeeeeee=nn.Tanh()))

    def step(additions: int) -> torch.Tensor:
        x = torch.ones(2, 4)
        for _ in range(additions):
            x = x + 1
        return model(x)

    return [rooflight.estimate(step, size).ops for size in sizes]


def counted(monkeypatch: pytest.MonkeyPatch, recorded: tuple[Op, ...], *later: tuple[Op, ...]) -> OpCounterPasses:
    """Every op does as much as the name of its module is long, times a million."""
    monkeypatch.setattr(gpu, "device", lambda index: SimpleNamespace(chip="GH100", availability=None))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(ranges, "RangeProfiler", Counting)
    monkeypatch.setattr(counter_tables, "tensor_counters_in_use", lambda chip, scouted: (_counter(),))
    passes = OpCounterPasses(recorded, {op.index for op in recorded})
    following = iter(later)
    while not passes.complete and (ops := next(following, None)) is not None:
        Counting.work = {str(op.index): 1e6 * len(op.module) for op in ops}
        passes.begin()
        for op in ops:
            passes.before(op.index)
            passes.after(op.index)
        passes.end(ops)
    return passes


def _counter() -> Any:
    return counter_tables.Counter(TENSOR, "tensor_flops_fp16")


def wrong(passes: OpCounterPasses, recorded: tuple[Op, ...]) -> list[str]:
    return [
        recorded[index].name
        for index, found in passes.quantities().items()
        for name, value in found.items()
        if name in (READ, TENSOR) and value.value != 1e6 * len(recorded[index].module)
    ]


def test_all_of_steps_that_are_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    (recorded,) = steps(2)
    passes = counted(monkeypatch, recorded, *[recorded] * 20)
    assert passes.complete and passes.missing is None
    assert {index for index, found in passes.quantities().items() if TENSOR in found} == {op.index for op in recorded}
    assert not wrong(passes, recorded)
    assert (
        passes.passes == 1 + 3
    )  # the whole step for what is in use; two together for FLOPs and bytes, one for the rest


def test_steps_of_other_lengths_never_mix_their_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, longer = steps(2, 5)
    passes = counted(monkeypatch, recorded, *[longer, recorded] * 10)
    assert passes.complete
    assert not wrong(passes, recorded)
    assert any(TENSOR in found for found in passes.quantities().values())  # of what lies before the difference


def test_a_group_whose_steps_were_not_alike_is_counted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, longer = steps(2, 5)
    passes = counted(monkeypatch, recorded, recorded, recorded, longer, *[recorded] * 20)
    assert passes.complete and not wrong(passes, recorded)
    assert {index for index, found in passes.quantities().items() if TENSOR in found} == {op.index for op in recorded}
