"""Gradients that were there before a step are put back, and hold no memory meanwhile."""

from __future__ import annotations

import torch
from torch import nn

import rooflight
from rooflight.trace.gradients import CopiedGradient, LentGradient


def with_gradient() -> nn.Parameter:
    parameter = nn.Parameter(torch.randn(3, 4).t())
    (parameter * torch.randn(4, 3)).sum().backward()
    return parameter


def test_a_lent_gradient_has_no_memory_and_comes_back() -> None:
    parameter = with_gradient()
    gradient = parameter.grad
    assert gradient is not None
    values = gradient.clone()
    kept = LentGradient(parameter)
    kept.lend()
    assert parameter.grad is not gradient
    assert torch.equal(parameter.grad, values)
    assert gradient.untyped_storage().nbytes() == 0
    kept.restore_memory()
    gradient.copy_(values)
    kept.restore()
    assert parameter.grad is gradient


def test_memory_that_others_have_a_part_in_is_not_freed() -> None:
    flat = torch.zeros(12)
    parameter = nn.Parameter(torch.randn(12))
    parameter.grad = flat.view(12)
    kept = LentGradient(parameter)
    kept.lend()
    assert flat.untyped_storage().nbytes() == 48


def test_a_copied_gradient_is_another_each_time() -> None:
    parameter = with_gradient()
    assert parameter.grad is not None
    values = parameter.grad.clone()
    kept = CopiedGradient(parameter)
    for _ in range(2):
        parameter.grad = None
        kept.restore()
        assert torch.equal(parameter.grad, values)
        assert parameter.grad is not None
        parameter.grad.zero_()


def test_a_step_that_adds_to_its_gradients_finds_them() -> None:
    """Without `zero_grad`: what was there before is part of what comes out, and is there again afterwards."""
    model = nn.Linear(4, 1, bias=False)
    x = torch.ones(1, 4)
    model(x).sum().backward()
    gradient = model.weight.grad

    def step() -> None:
        model(x).sum().backward()
        assert float(model.weight.grad.min()) >= 2

    rooflight.measure(step, repeat=1)
    assert model.weight.grad is gradient
    assert torch.equal(gradient, torch.ones(1, 4))


def test_last_steps_gradients_do_not_count() -> None:
    """Of a step that lets them go before it makes new ones."""
    model = nn.Linear(512, 512, bias=False)
    x = torch.ones(1, 512)

    def step() -> None:
        model.zero_grad()
        model(x).sum().backward()

    peaks, befores = [], []
    for _ in range(2):  # without a gradient before, and with one
        ledger = rooflight.measure(step, repeat=1)
        rows = next(row for row in ledger.measurements if row.scope == "step").quantities
        peaks.append(rows["peak_allocated_bytes"].value - rows["allocated_before_bytes"].value)
        befores.append(rows["allocated_before_bytes"].value)
        step()
    assert befores[1] == befores[0]  # the gradient is lent, and not there twice
    assert peaks[1] < 2**20  # the gradients' own size: one is freed before the other is made
