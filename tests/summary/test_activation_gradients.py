"""Gradients of activations: told apart from those of parameters, and a line of their own where memory is split."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import rooflight
from rooflight import summary
from rooflight.hardware.devices import find
from rooflight.prediction.resolve_devices import memories_on
from rooflight.step.costed_step import own_step
from rooflight.summary.activation_gradients import ACTIVATION_GRADIENT, activation_gradients


class Tied(nn.Module):
    """A weight that is used twice has its gradient in two parts."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


def shapes_of(ledger):
    """Of the activation gradients, in the order in which they are made."""
    places = activation_gradients(ledger)
    ids = {ledger.storages[place].id for place in places}
    made: dict[int, tuple[int, ...]] = {}
    for op in ledger.ops:
        for tensor in op.outputs:
            if tensor.storage in ids:
                made.setdefault(tensor.storage, tensor.shape)
    return list(made.values())


def test_errors_of_the_mnist_net_by_hand():
    sizes = summary.sizes(rooflight.estimate("mnist-cnn", batch=64, step="train"))
    # From the loss down: nll, log_softmax of the loss and of the net (10 each); fc2's input, dropout, relu (128); fc1's
    # input, dropout (64x12x12); pool, relu (64x24x24); conv2's input, relu (32x26x26); conv1's input needs none.
    floats = 3 * 10 + 3 * 128 + 2 * 64 * 12 * 12 + 2 * 64 * 24 * 24 + 2 * 32 * 26 * 26
    assert sizes.activation_gradient_bytes == 64 * 4 * floats + 4  # and the loss's own, which is 1
    # The largest two at once: a relu reads the gradient of what it gave, and makes that of what it got.
    assert sizes.live_activation_gradient_bytes == 64 * 4 * 2 * 64 * 24 * 24 + 4
    assert summary.sizes(rooflight.estimate("mnist-cnn", batch=64)).activation_gradient_bytes is None


def test_what_backward_makes_of_activations_alone_is_no_gradient():
    """The derivative of x³ is 3x²: the square and its product with 3 are made of x, and only then meet the gradient."""

    class Cubed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.linear(x) ** 3

    ledger = rooflight.estimate(Cubed(), torch.zeros(7, 5), step="train", loss="sum")
    made = [op.packet for op in ledger.ops if op.phase == "backward" and op.outputs and op.outputs[0].shape == (7, 3)]
    assert "aten::pow" in made
    # The sum's gradient is one number, spread without a copy; the cube's is 7 x 3; the net's input needs none.
    assert summary.sizes(ledger).activation_gradient_bytes == 4 + 4 * 7 * 3


@pytest.mark.parametrize("autocast", [None, "bf16"])
def test_parts_of_a_parameters_gradient_are_none(autocast):
    ledger = rooflight.estimate(Tied(), torch.zeros(7, 4), step="train", loss="sum", autocast=autocast)
    shapes = shapes_of(ledger)
    assert (7, 4) in shapes and (4, 4) not in shapes
    parts = [op for op in ledger.ops if op.phase == "backward" and op.outputs and op.outputs[0].shape == (4, 4)]
    assert len([op for op in parts if op.cost is not None and op.cost.macs]) == 2  # there were two to tell apart


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("mnist-cnn", {"batch": 64}),
        ("resnet18", {"batch": 2, "accumulate": 2}),
        ("gpt2", {"batch": 2, "seq": 64, "checkpoint": "blocks", "overrides": {"n_layer": "2"}}),
        ("distilbert", {"batch": 2, "seq": 64, "autocast": "bf16", "overrides": {"n_layers": "2"}}),
    ],
)
def test_the_split_still_adds_up_to_the_peak(model, options):
    device, step = find("a100-sxm-40"), own_step(rooflight.estimate(model, step="train", **options))
    memory = memories_on(device).of(step, device, timeline=True)
    assert sum(memory.peak.split.values()) == memory.peak_allocated_bytes
    errors = step.once(activation_gradients)
    most = max(memory.timeline.categories[ACTIVATION_GRADIENT])
    sizes = summary.sizes(step.ledger)
    assert 0 < most == sizes.live_activation_gradient_bytes
    assert all(step.ledger.storages[place].category == "temporary" for place in errors)
