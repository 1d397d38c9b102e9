"""Predicted memory against the GPU that is here: the allocator's model, workspaces, and whole steps."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

import rooflight
from rooflight.calibration.workspaces import record
from rooflight.hardware.devices import recognise_name
from rooflight.memory.allocator import CachingAllocator, MemoryBlock


@pytest.mark.parametrize("seed", range(6))
def test_the_model_follows_torchs_allocator(seed: int) -> None:
    """Allocated and reserved after each of 300 random events, to the byte."""
    draw = random.Random(seed)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    if before != (0, 0):
        pytest.skip("something else is allocated in this process: what is free of its segments is not known")
    model = CachingAllocator()
    live: dict[int, tuple[torch.Tensor, MemoryBlock | None]] = {}
    for number in range(300):
        if live and draw.random() < 0.45:
            which = draw.choice(sorted(live))
            model.free(live[which][1])
            del live[which]
        else:
            nbytes = int(2 ** draw.uniform(0, 27))
            tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
            live[number] = tensor, model.allocate(nbytes, tensor.data_ptr())
            del tensor
        assert torch.cuda.memory_allocated() == model.allocated, number
        assert torch.cuda.memory_reserved() == model.reserved, number


CASES: list[dict[str, Any]] = [
    {"model": "resnet18", "batch": 16},
    {"model": "resnet18", "batch": 16, "step": "train"},
    {"model": "gpt2", "batch": 4, "seq": 256, "step": "train", "overrides": {"n_layer": "4"}},
    {"model": "gpt2", "batch": 4, "seq": 256, "step": "train", "autocast": "bf16", "overrides": {"n_layer": "4"}},
    {
        "model": "gpt2",
        "batch": 4,
        "seq": 256,
        "step": "train",
        "checkpoint": "blocks",
        "overrides": {"n_layer": "4"},
    },
    {"model": "gpt2", "batch": 4, "seq": 256, "step": "train", "accumulate": 2, "overrides": {"n_layer": "4"}},
    {"model": "distilbert", "batch": 4, "seq": 128, "dtype": "bf16"},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_step_takes_what_is_predicted(case: dict[str, Any]) -> None:
    """The allocated peak within 5%, and what is there before the step."""
    device = recognise_name(torch.cuda.get_device_name())
    if device is None:
        pytest.skip("this GPU is not in the database")
    torch._C._cuda_clearCublasWorkspaces()
    measured = rooflight.measure(**case, counters="none", repeat=1)
    step = next(one for one in measured.measurements if one.scope == "step").quantities
    memory = rooflight.predict(**case, on=device.name, advice=False)[0].memory
    assert memory is not None
    assert memory.peak_allocated_bytes == pytest.approx(step["peak_allocated_bytes"].value, rel=0.05)
    assert memory.before_bytes == pytest.approx(step["allocated_before_bytes"].value, rel=0.05)


def test_workspaces_are_recorded() -> None:
    found = record(torch.device("cuda"), 6.0, lambda _: None)
    assert {points.precision for points in found.points} == {"tf32", "bf16", "fp32"}
    assert any(max(row[-3:]) > 1_000_000 for points in found.points for row in points.rows)
