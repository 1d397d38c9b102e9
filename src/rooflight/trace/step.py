"""Runs one step of a workload: forward, and for training loss, backward and optimizer.

The reported step is the second one: optimizer state exists, gradients are fresh (`set_to_none`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any, Self, get_args

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, is_fake
from torch.utils._pytree import tree_leaves

from rooflight.errors import BadInput, TraceFailed
from rooflight.ledger import LOSS, Phase
from rooflight.spec.definition import Loss, Optimizer
from rooflight.spec.fields import own_name
from rooflight.trace.inputs import tensor_leaves
from rooflight.trace.interception import nothing_handed_over
from rooflight.trace.options import TensorKind

LOSSES = get_args(Loss)
OPTIMIZERS = get_args(Optimizer)


@dataclass(frozen=True)
class TrainingChoices:
    """How a training step is done."""

    loss: str | Callable[..., Any] = "cross-entropy"
    optimizer: Any = "momentum"
    """A name, a class, a function that makes one of parameters, or one that is there already."""
    foreach: bool | None = None
    """`None`: as torch chooses."""
    takes_lists: bool = True
    """Would torch choose the foreach version?"""
    fused: bool = False
    accumulate: int = 1
    """Micro-batches (forward and backward) before the optimizer steps once."""
    capturable: bool = False
    on: TensorKind = "meta"

    @property
    def runs(self) -> bool:
        """Does the step really run, on data?"""
        return self.on in ("cpu", "cuda")

    def __post_init__(self) -> None:
        if isinstance(self.loss, str) and self.loss not in LOSSES:
            raise BadInput("unknown-choice", f"unknown loss {self.loss!r}; known: {', '.join(LOSSES)}")
        if isinstance(self.optimizer, str) and self.optimizer not in OPTIMIZERS:
            raise BadInput("unknown-choice", f"unknown optimizer {self.optimizer!r}; known: {', '.join(OPTIMIZERS)}")
        if self.accumulate < 1:
            raise BadInput("out-of-range", f"--accumulate must be at least 1, got {self.accumulate}")


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

    def __init__(self, given: Any = None) -> None:
        self.given = given
        """The caller's own."""
        self._made: dict[tuple[Any, ...], torch.Tensor] = {}

    def like(self, value: torch.Tensor, *, same: bool = False) -> torch.Tensor:
        """A class for every place of the scores; or, where a loss takes them so, of the `same` shape and type."""
        shape = tuple(value.shape) if same else (value.shape[0], *value.shape[2:])
        dtype = value.dtype if same else torch.long
        key = (shape, dtype, value.device)
        if key not in self._made:
            with nothing_handed_over():
                self._made[key] = torch.zeros(shape, dtype=dtype, device=value.device)
        return self._made[key]


def value_or_one(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Runs it; where an optimizer reads the value of a tensor that has none, that is 1."""
    if only_writes(function, args, kwargs):
        return None
    if function is not torch.ops.aten._local_scalar_dense.default or not (args[0].is_meta or is_fake(args[0])):
        return function(*args, **kwargs)
    try:
        return function(*args, **kwargs)  # a fake tensor knows what was counted up from a constant
    except (RuntimeError, DataDependentOutputException):
        return 1.0 if args[0].is_floating_point() else 1


def only_writes(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Does it write lists of tensors without data, where all fit? There is nothing to do then. An optimizer has a few
    such calls, of all parameters each, and torch goes over every tensor of them in Python."""
    if not _writes_lists(function):
        return False
    values = (*args, *kwargs.values())
    lists = [value for value in values if isinstance(value, (list, tuple)) and any(map(torch.is_tensor, value))]
    if not lists or any(map(torch.is_tensor, values)):
        return False
    forms = [[(tensor.is_meta, tensor.shape, tensor.dtype) for tensor in tensors] for tensors in lists]
    return all(is_meta for is_meta, *_ in forms[0]) and all(other == forms[0] for other in forms)


@cache
def _writes_lists(function: Any) -> bool:
    schema = function._schema
    return bool(schema.name.startswith("aten::_foreach_") and schema.is_mutable and not schema.returns)


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
    raise BadInput(
        "no-loss-tensor",
        "the model gives no floating-point tensor to take a loss of: train it with a wrapper that does",
    )


def computes_loss(output: Any, training: TrainingChoices) -> bool:
    """Is the loss the model's own? A caller's own goes before it."""
    return isinstance(training.loss, str) and own_loss(output) is not None


def own_loss(output: Any) -> torch.Tensor | None:
    """The loss that the model computes itself."""
    given = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
    if isinstance(given, torch.Tensor):
        return given
    value = main_output(output)
    if value.dim():
        return None
    # A dict of numbers is one of losses, as detectors give them.
    terms = output.values() if isinstance(output, dict) else ()
    summed = all(isinstance(term, torch.Tensor) and not term.dim() for term in terms)
    return sum(list(terms)[1:], start=next(iter(terms))) if terms and summed else value


def _loss(output: Any, loss: str | Callable[..., Any], follower: StepFollower, labels: StepLabels) -> torch.Tensor:
    """The caller's own; or cross-entropy over the last dimension (dimension 1 of a 4-d output), or the mean square in
    fp32."""
    if not isinstance(loss, str):
        return _called_loss(output, loss, follower, labels)
    given = own_loss(output)
    if given is not None:
        return given
    value = main_output(output)
    if loss == "mse":
        return value.float().square().mean()
    if loss == "sum":
        return value.sum()
    if value.dim() < 2:
        raise BadInput(
            "wrong-loss",
            f"cross-entropy needs class scores, but the model's output has shape {tuple(value.shape)}: use --loss=mse",
        )
    if value.dim() <= 3:
        value = value.reshape(-1, value.shape[-1])
    target = labels.like(value)
    follower.labels_made(target)
    return torch.nn.functional.cross_entropy(value, target)


def _called_loss(output: Any, loss: Callable[..., Any], follower: StepFollower, labels: StepLabels) -> torch.Tensor:
    """What the caller's loss makes of the output and, where it takes more than that, of labels."""
    count = _positional(loss)
    beside: tuple[Any, ...] = ()
    if labels.given is not None:
        beside = labels.given if count > 2 and isinstance(labels.given, tuple) else (labels.given,)
    elif count == 2:
        beside = (labels.like(main_output(output), same=isinstance(loss, _ELEMENTWISE)),)
    elif count > 2:
        raise BadInput(
            "missing-labels",
            f"the loss {own_name(loss)} takes {count} values: give those after the output as --labels, a tuple",
        )
    for leaf in tensor_leaves(beside):
        follower.labels_made(leaf)
    try:
        value = loss(output, *beside)
    except (RuntimeError, ValueError, IndexError, TypeError, AttributeError) as error:
        if isinstance(loss, nn.Module) and not isinstance(output, torch.Tensor):
            raise TraceFailed(
                "wrong-loss-input",
                f"the loss {own_name(loss)} is called with what the model gives, a {type(output).__name__}: give a "
                "function that takes the tensor out of it, as lambda output, labels: criterion(output.logits, labels)",
            ) from error
        if labels.given is not None or not beside:
            raise
        made = f"{str(beside[0].dtype).removeprefix('torch.')} of {tuple(beside[0].shape)}"
        raise TraceFailed(
            "missing-labels",
            f"the loss {own_name(loss)} takes no labels made for it, {made}: give yours as --labels "
            f"({str(error).strip().splitlines()[0]})",
        ) from error
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value
    got = f"a tensor of {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
    raise BadInput(
        "wrong-loss-output",
        f"the loss {own_name(loss)} gives {got}, and backward needs a tensor of one number"
        + (": give an instance of the class" if isinstance(loss, type) else ""),
    )


_ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
    nn.KLDivLoss,
    nn.PoissonNLLLoss,
    nn.SoftMarginLoss,
    nn.MultiLabelSoftMarginLoss,
)
"""Losses whose labels are of the output's shape."""


def modules_beside(loss: Any, model: nn.Module) -> list[nn.Module]:
    """What a caller's loss is, or has from around it, and is no part of the model: a criterion, a teacher."""
    around: list[Any] = [loss, getattr(loss, "__self__", None)]
    while hasattr(loss, "func"):  # a partial
        around += [*loss.args, *loss.keywords.values(), loss.func]
        loss = loss.func
    if inspect.isfunction(loss):
        names = inspect.getclosurevars(loss)
        around += [*names.nonlocals.values(), *names.globals.values()]
    own = set(map(id, model.modules()))
    found = {id(value): value for value in around if isinstance(value, nn.Module) and id(value) not in own}
    return list(found.values())


def _positional(loss: Callable[..., Any]) -> int:
    """How many values it must be called with."""
    try:
        parameters = inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters.values()
    except (TypeError, ValueError):  # of a function in C
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds and parameter.default is parameter.empty for parameter in parameters)
