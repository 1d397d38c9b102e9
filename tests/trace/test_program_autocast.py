"""Autocast in steps of a program's own, whose tensors without data are not on the target: as the target takes it."""

from __future__ import annotations

import threading
import types
import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import rooflight

pytestmark = pytest.mark.filterwarnings("ignore:.*Disabling autocast")


@pytest.mark.parametrize(
    ("tensors_on", "context", "target", "precision"),
    [
        ("cpu", "cuda", "cuda", "bf16"),
        ("meta", "cuda", "cuda", "bf16"),
        ("meta", "cpu", "cuda", "bf16"),
        ("meta", "cpu", "cpu", "bf16"),
        ("cpu", "cpu", "cuda", "bf16"),  # what says x.device.type on a laptop
        ("cpu", "cpu", "cpu", "bf16"),
        ("cpu", "cuda", "cpu", "fp32"),  # a CPU knows nothing of it
        ("meta", "cuda", "cpu", "fp32"),
    ],
)
@pytest.mark.parametrize("made", ["in the step", "before"])
def test_autocast_is_what_the_target_takes_it_for(
    tensors_on: str, context: str, target: str, precision: str, made: str
) -> None:
    with warnings.catch_warnings():  # torch switches CUDA's off where there is none
        warnings.simplefilter("ignore")
        before = torch.autocast(context, dtype=torch.bfloat16)
    model = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 8), nn.Softmax(-1)).to(tensors_on)

    def step(x: torch.Tensor) -> None:
        with before if made == "before" else torch.autocast(context, dtype=torch.bfloat16):
            loss = model(x).square().mean()
        loss.backward()

    ledger = rooflight.estimate(step, torch.ones(2, 4, device=tensors_on), target=target)
    products = {op.precision for op in ledger.ops if op.packet in ("aten::addmm", "aten::mm")}
    assert products == {precision}
    if target == "cuda":
        assert ledger.header.autocast == "bf16"
        assert {op.outputs[0].dtype for op in ledger.ops if op.packet == "aten::_softmax"} == {"fp32"}


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("tensors_on", ["cpu", "meta"])
def test_checkpoints_run_again_in_the_autocast_they_ran_in(tensors_on: str, reentrant: bool) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8)).to(tensors_on)

    def step(x: torch.Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = checkpoint(model, x, use_reentrant=reentrant)
        y.float().sum().backward()

    ledger = rooflight.estimate(step, torch.ones(2, 4, device=tensors_on, requires_grad=True))
    products = [op for op in ledger.ops if op.packet in ("aten::addmm", "aten::mm")]
    assert {op.precision for op in products} == {"bf16"} and any(op.recompute for op in products)


def test_programs_are_told_of_autocast_and_keep_their_contexts() -> None:
    """One that is made in the step and kept where nobody looks is torch's own afterwards."""
    library = types.ModuleType("library")
    library.__file__ = "/lib/site-packages/library.py"

    def step() -> None:
        library.context = torch.autocast("cuda", dtype=torch.bfloat16)  # type: ignore[attr-defined]
        with library.context:
            library.said = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")  # type: ignore[attr-defined]
            torch.ones(2, 2) @ torch.ones(2, 2)

    ledger = rooflight.estimate(step)
    assert library.said == (True, torch.bfloat16)
    assert {op.precision for op in ledger.ops if op.packet == "aten::mm"} == {"bf16"}
    with library.context:
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32


def test_autocast_of_other_threads_is_theirs() -> None:
    y, stop, seen = torch.ones(2, 2), threading.Event(), set()

    def work() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            while not stop.is_set():
                with torch.autocast("cuda", dtype=torch.bfloat16):
                    seen.add((y @ y).dtype)

    def step(x: torch.Tensor) -> None:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = x @ x
        loss.sum().backward()

    thread = threading.Thread(target=work)
    thread.start()
    try:
        ledgers = [rooflight.estimate(step, torch.ones(2, 2, requires_grad=True)) for _ in range(5)]
    finally:
        stop.set()
        thread.join()
    assert {op.precision for ledger in ledgers for op in ledger.ops if op.packet == "aten::mm"} == {"bf16"}
    assert seen == {torch.float32}
