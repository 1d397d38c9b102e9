"""Runs one step of a workload: forward, and for training loss, backward and optimizer.

The reported step is the second one: optimizer state exists, gradients are fresh (`set_to_none`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from rooflight.errors import BadInput
from rooflight.ledger import LOSS
from rooflight.trace.arguments import tensor_leaves
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.recorder import Recorder

LOSSES = ("cross-entropy", "mse", "sum")
OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")


@dataclass(frozen=True)
class Training:
    """How a training step is done."""

    loss: str = "cross-entropy"
    optimizer: str = "momentum"
    foreach: bool = True
    accumulate: int = 1
    """Micro-batches (forward and backward) before the optimizer steps once."""

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise BadInput(f"unknown loss {self.loss!r}; known: {', '.join(LOSSES)}")
        if self.optimizer not in OPTIMIZERS:
            raise BadInput(f"unknown optimizer {self.optimizer!r}; known: {', '.join(OPTIMIZERS)}")
        if self.accumulate < 1:
            raise BadInput(f"--accumulate must be at least 1, got {self.accumulate}")


def make_optimizer(model: nn.Module, training: Training) -> torch.optim.Optimizer | None:
    """The optimizer with its state in place, as after a first step; `None` when nothing is trained."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        return None
    optimizer: torch.optim.Optimizer
    if training.optimizer in ("sgd", "momentum"):
        momentum = 0.9 if training.optimizer == "momentum" else 0.0
        optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=momentum, foreach=training.foreach)
    elif training.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, lr=1e-4, foreach=training.foreach)
    else:
        optimizer = torch.optim.AdamW(parameters, lr=1e-4, foreach=training.foreach)
    for parameter in parameters:
        parameter.grad = torch.empty_like(parameter)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return optimizer


def run_inference(forward: Callable[[], Any], recorder: Recorder) -> Any:
    recorder.phase = "forward"
    with torch.no_grad(), recorder:
        return forward()


def run_training(forward: Callable[[], Any], recorder: Recorder, tracker: ModuleTracker, *,
                 optimizer: torch.optim.Optimizer | None, training: Training,
                 autocast: Callable[[], AbstractContextManager[None]] = nullcontext) -> Any:  # fmt: skip
    """One training step. `autocast` is open around the loss; `forward` opens its own."""
    output: Any = None
    with torch.enable_grad(), recorder:
        for _ in range(training.accumulate):
            recorder.phase = "forward"
            output = None  # the last micro-batch's graph is gone by now
            output = forward()
            for leaf in tensor_leaves(output):
                recorder.storages.mark(leaf, "output")
            tracker.enter(LOSS)
            try:
                with autocast():
                    loss = _loss(output, training.loss, recorder)
                recorder.storages.mark(loss, "output", "loss")
                recorder.storages.mark_alive("activation")
                recorder.phase = "backward"
                if loss.requires_grad:
                    loss.backward()
            finally:
                tracker.leave()
            del loss
        if optimizer is not None:
            recorder.phase = "optimizer"
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


def _loss(output: Any, name: str, recorder: Recorder) -> torch.Tensor:
    """Cross-entropy over the last dimension (dimension 1 of a 4-d output), or the mean square in fp32."""
    given = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(given, torch.Tensor):
        return given
    value = main_output(output)
    if value.dim() == 0:  # the model computes its own loss
        return value
    if name == "mse":
        return value.float().square().mean()
    if name == "sum":
        return value.sum()
    if value.dim() < 2:
        raise BadInput(
            f"cross-entropy needs class scores, but the model's output has shape {tuple(value.shape)}: use --loss mse"
        )
    if value.dim() <= 3:
        value = value.reshape(-1, value.shape[-1])
    # Labels are an input of the step, not an op of it.
    with _disable_current_modes():
        target = torch.zeros(value.shape[0], *value.shape[2:], dtype=torch.long, device=value.device)
    recorder.storages.id_of(target, "input", "labels")
    return torch.nn.functional.cross_entropy(value, target)
