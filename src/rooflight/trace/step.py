"""Runs one step of a workload: forward, and for training loss, backward and optimizer.

The reported step is the second one: optimizer state exists, gradients are fresh (`set_to_none`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Self, get_args

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from rooflight.errors import BadInput
from rooflight.ledger import LOSS, Phase
from rooflight.models.workload import Loss, Optimizer
from rooflight.trace.inputs import tensor_leaves
from rooflight.trace.interception import nothing_handed_over

LOSSES = (*get_args(Loss), "sum")
OWN_LOSS = "model's own"
"""What a ledger says of the loss where the model's output is or has one."""
OPTIMIZERS = get_args(Optimizer)


@dataclass(frozen=True)
class TrainingChoices:
    """How a training step is done."""

    loss: str = "cross-entropy"
    optimizer: str = "momentum"
    foreach: bool = True
    fused: bool = False
    accumulate: int = 1
    """Micro-batches (forward and backward) before the optimizer steps once."""
    capturable: bool = False

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise BadInput(f"unknown loss {self.loss!r}; known: {', '.join(LOSSES)}")
        if self.optimizer not in OPTIMIZERS:
            raise BadInput(f"unknown optimizer {self.optimizer!r}; known: {', '.join(OPTIMIZERS)}")
        if self.accumulate < 1:
            raise BadInput(f"--accumulate must be at least 1, got {self.accumulate}")


def make_optimizer(model: nn.Module, training: TrainingChoices) -> torch.optim.Optimizer | None:
    """The optimizer with its state in place, as after a first step; `None` when nothing is trained."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    optimizer: torch.optim.Optimizer
    fused = training.fused or None
    foreach = None if fused else training.foreach  # torch takes one of them
    if training.optimizer in ("sgd", "momentum"):
        momentum = 0.9 if training.optimizer == "momentum" else 0.0
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=momentum, foreach=foreach, fused=fused)
    else:
        kind = torch.optim.Adam if training.optimizer == "adam" else torch.optim.AdamW
        optimizer = kind(parameters, lr=1e-4, foreach=foreach, fused=fused, capturable=training.capturable)
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


class StepFollower:
    """Whoever follows a step: entered while it runs, and told how far it is.

    This one follows nothing: the plain step, as a user would run it.
    """

    phase: Phase = "forward"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: Any) -> None:
        return None

    def forward_done(self, leaves: list[torch.Tensor]) -> None:
        """The model has given these."""

    def loss_made(self, loss: torch.Tensor) -> None: ...

    def labels_made(self, labels: torch.Tensor) -> None: ...

    def enter(self, path: str) -> None:
        """The step comes to a place that is no module."""

    def leave(self) -> None: ...


class StepLabels:
    """The labels of a step: an input of it, not an op of it, so they are made once and outside of what is recorded."""

    def __init__(self) -> None:
        self._made: dict[tuple[Any, ...], torch.Tensor] = {}

    def like(self, value: torch.Tensor) -> torch.Tensor:
        shape = (value.shape[0], *value.shape[2:])
        key = (shape, value.device)
        if key not in self._made:
            with nothing_handed_over():
                self._made[key] = torch.zeros(shape, dtype=torch.long, device=value.device)
        return self._made[key]


def run_inference(forward: Callable[[], Any], follower: StepFollower) -> Any:
    follower.phase = "forward"
    with torch.no_grad(), follower:
        return forward()


def run_training(
    forward: Callable[[], Any],
    follower: StepFollower,
    *,
    optimizer: torch.optim.Optimizer | None,
    training: TrainingChoices,
    labels: StepLabels,
    autocast: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> Any:
    """One training step. `autocast` is open around the loss; `forward` opens its own."""
    output: Any = None
    with torch.enable_grad(), follower:
        for _ in range(training.accumulate):
            follower.phase = "forward"
            output = None  # the last micro-batch's graph is gone by now
            output = forward()
            follower.forward_done(tensor_leaves(output))
            follower.enter(LOSS)
            try:
                with autocast():
                    loss = _loss(output, training.loss, follower, labels)
                follower.loss_made(loss)
                follower.phase = "backward"
                if loss.requires_grad:
                    loss.backward()
            finally:
                follower.leave()
            del loss
        if optimizer is not None:
            follower.phase = "optimizer"
            optimizer.step()
    return output


def main_output(output: Any) -> torch.Tensor:
    """The tensor a loss is taken of: logits if the output names them, else its first floating tensor."""
    for name in ("logits", "last_hidden_state"):
        value = output.get(name) if isinstance(output, dict) else getattr(output, name, None)
        if isinstance(value, torch.Tensor):
            return value
    for leaf in tree_leaves(dict(output) if isinstance(output, dict) else output):
        if isinstance(leaf, torch.Tensor) and leaf.is_floating_point():
            return leaf
    raise BadInput("the model gives no floating-point tensor to take a loss of: train it with a wrapper that does")


def own_loss(output: Any) -> torch.Tensor | None:
    """The loss that the model computes itself."""
    given = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(given, torch.Tensor):
        return given
    value = main_output(output)
    return value if value.dim() == 0 else None


def _loss(output: Any, name: str, follower: StepFollower, labels: StepLabels) -> torch.Tensor:
    """Cross-entropy over the last dimension (dimension 1 of a 4-d output), or the mean square in fp32."""
    given = own_loss(output)
    if given is not None:
        return given
    value = main_output(output)
    if name == "mse":
        return value.float().square().mean()
    if name == "sum":
        return value.sum()
    if value.dim() < 2:
        raise BadInput(
            f"cross-entropy needs class scores, but the model's output has shape {tuple(value.shape)}: use --loss=mse"
        )
    if value.dim() <= 3:
        value = value.reshape(-1, value.shape[-1])
    target = labels.like(value)
    follower.labels_made(target)
    return torch.nn.functional.cross_entropy(value, target)
