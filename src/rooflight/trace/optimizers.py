"""The optimizer of a step: one of torch.optim by its name, or the caller's own class, factory or instance.

Its state is in place before the step, as after a first one. On tensors without data an instance is copied onto them;
where the step really runs it is used as it is. Either way the caller's is left as it was.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import nn

from rooflight.errors import BadInput, RooflightError, one_line
from rooflight.ledger import Note
from rooflight.spec.fields import own_name
from rooflight.trace.inputs import fake
from rooflight.trace.interception import as_a_mode, below_autograd
from rooflight.trace.options import TensorKind
from rooflight.trace.saved_state import to_meta
from rooflight.trace.step import TrainingChoices, value_or_one

_SINCE = {"adafactor": "2.5", "muon": "2.9"}
"""The first torch that has it."""
_REFUSED = {
    "lbfgs": "lbfgs runs forward and backward as often as the values say, so its step cannot be composed",
    "sparseadam": "sparseadam takes sparse gradients only, and those of a step composed here are dense",
}
_SETTINGS: dict[Any, dict[str, float]] = {
    "momentum": {"lr": 0.01, "momentum": 0.9},
    "sgd": {"lr": 0.01},
    "adam": {"lr": 1e-4},
    "adamw": {"lr": 1e-4},
}
"""Where they are not torch's own."""
_SAYS_ITSELF = "{} is for an optimizer by its name or class: leave it out, and say so where you make yours"
_WARM = 10
"""Steps after which every optimizer does what it goes on doing: RAdam changes its update at the sixth."""
READS_VALUES = Note(
    "optimizer-reads-values", "the optimizer reads values that it has computed: a trace without data takes them as 1"
)
MUON_AND_ADAMW = Note(
    "muon-with-adamw",
    "muon is for matrices: it takes parameters of two dimensions that are no embedding, and AdamW takes the others",
)


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for matrices and AdamW for all else, one after the other, as Muon is used."""

    def __init__(self, muon: Callable[..., torch.optim.Optimizer], model: nn.Module, **of_adamw: Any) -> None:
        embedded = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
        parameters = _trained(model)
        matrices = [p for p in parameters if p.dim() == 2 and id(p) not in embedded]
        hidden = set(map(id, matrices))
        others = [p for p in parameters if id(p) not in hidden]
        super().__init__(parameters, {})
        self.parts: list[torch.optim.Optimizer] = [muon(matrices)] if matrices else []
        self.parts += [torch.optim.AdamW(others, **of_adamw)] if others else []
        for part in self.parts:
            part.state = self.state

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for part in self.parts:
            part.step()


def chosen_optimizer(
    model: nn.Module, training: TrainingChoices, twins: Mapping[int, torch.Tensor] = MappingProxyType({})
) -> torch.optim.Optimizer | None:
    """As it was asked for, over the model's parameters; `None` when nothing is trained. `twins`: what stands for a
    parameter of the caller's, by its id, while the model is borrowed."""
    parameters = _trained(model)
    if not parameters:
        return None
    given = training.optimizer
    if not isinstance(given, torch.optim.Optimizer):
        return _made(model, parameters, training)
    if training.fused or training.foreach is not None:
        raise BadInput("option-not-applicable", _SAYS_ITSELF.format("--fused" if training.fused else "--foreach"))
    optimizer = given if training.runs else _over_twins(given, twins, to_meta if training.on == "meta" else fake)
    if not _held(optimizer, parameters):
        raise BadInput(
            "foreign-optimizer", "the optimizer holds no parameter of this model: make it with model.parameters()"
        )
    return optimizer


def make_state(optimizer: torch.optim.Optimizer, model: nn.Module, training: TrainingChoices) -> None:
    """Let it make its state by a first step, where it has none."""
    if not training.runs:
        _take_versions(optimizer, lists=training.takes_lists)
    if optimizer.state:
        return
    for parameter in _held(optimizer, _trained(model)):
        parameter.grad = torch.zeros_like(parameter)
    try:
        with _ones_for_values(training.on):
            optimizer.step()
    except Exception as error:
        why = "it calls the step itself" if "closure" in str(error) else one_line(error)
        raise BadInput(
            "optimizer-makes-no-step",
            f"{type(optimizer).__name__} makes no step here ({why}): run your own step with it, as "
            "rooflight.estimate(step)",
        ) from error
    optimizer.zero_grad(set_to_none=True)
    if isinstance(optimizer, torch.optim.RAdam):
        for state in optimizer.state.values():
            state["step"] += _WARM


def _trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def _held(optimizer: torch.optim.Optimizer, parameters: list[nn.Parameter]) -> list[nn.Parameter]:
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    return [parameter for parameter in parameters if id(parameter) in held]


def _made(model: nn.Module, parameters: list[nn.Parameter], training: TrainingChoices) -> torch.optim.Optimizer:
    which = training.optimizer
    if not isinstance(which, (str, type)) and (training.fused or training.foreach is not None):
        raise BadInput("option-not-applicable", _SAYS_ITSELF.format("--fused" if training.fused else "--foreach"))
    try:
        kind = _class_of(which) if isinstance(which, str) else which
        versions = _versions(kind, training) if isinstance(kind, type) else {}
        if which == "muon":
            return MuonWithAdamW(kind, model, **_versions(torch.optim.AdamW, training))
        optimizer = kind(parameters, **_SETTINGS.get(which, {}), **versions)
    except RooflightError:
        raise
    except Exception as error:
        raise BadInput(
            "bad-optimizer",
            f"{own_name(which)} is no optimizer of these parameters ({one_line(error)}): give one that is called "
            "with parameters alone, as lambda parameters: SGD(parameters, lr=0.1)",
        ) from error
    if not hasattr(optimizer, "param_groups"):
        raise BadInput("bad-optimizer", f"{own_name(which)} makes a {type(optimizer).__name__}, not an optimizer")
    made: torch.optim.Optimizer = optimizer
    return made


def _class_of(name: str) -> Any:
    if name in _REFUSED:
        raise BadInput(
            "unsupported-optimizer", f"{_REFUSED[name]}: run your own step with it, as rooflight.estimate(step)"
        )
    kinds = {kind.__name__.lower(): kind for kind in vars(torch.optim).values() if isinstance(kind, type)}
    kinds["momentum"] = torch.optim.SGD
    if name not in kinds:
        raise BadInput(
            "unknown-optimizer", f"torch {torch.__version__} has no {name}: it came with torch {_SINCE.get(name, '?')}"
        )
    return kinds[name]


def _versions(kind: type, training: TrainingChoices) -> dict[str, Any]:
    """The keywords that choose among the versions of an optimizer; what it does not have cannot be asked for."""
    has = inspect.signature(kind).parameters
    for name, asked in (("fused", training.fused), ("foreach", training.foreach is not None)):
        if asked and name not in has:
            raise BadInput(
                "unsupported-optimizer", f"{kind.__name__.lower()} has no {name} version: leave --{name} out"
            )
    # Without data the fused version is made of the others afterwards, and torch takes one of the two.
    runs_fused = training.fused and training.runs
    lists = training.takes_lists if training.foreach is None else training.foreach
    given = {"foreach": None if runs_fused else lists, "fused": runs_fused or None}
    given |= {"capturable": True} if training.capturable else {}
    return {name: value for name, value in given.items() if name in has}


def _take_versions(optimizer: torch.optim.Optimizer, *, lists: bool) -> None:
    """torch chooses by the device of the parameters, which is none here: as it would on the target."""
    for group in optimizer.param_groups:
        if group.get("fused"):
            group["fused"], group["foreach"] = False, True
        elif "foreach" in group and group["foreach"] is None:
            group["foreach"] = lists


def _ones_for_values(on: TensorKind) -> AbstractContextManager[None]:
    if on == "meta":
        return below_autograd(value_or_one)
    return as_a_mode(value_or_one) if on == "fake" else nullcontext()


def _over_twins(
    optimizer: torch.optim.Optimizer, twins: Mapping[int, torch.Tensor], convert: Callable[[torch.Tensor], torch.Tensor]
) -> torch.optim.Optimizer:
    """The same class, groups, state and all else, over tensors without data; the caller's is not touched."""
    seen: dict[int, Any] = dict(twins)

    def converted(value: Any) -> Any:
        kind = type(value)
        if id(value) in seen:
            return seen[id(value)]
        if isinstance(value, torch.Tensor):
            # Counts of steps live on the host, and are read there.
            on_host = value.device.type == "cpu" and value.dim() == 0
            seen[id(value)] = value.detach().clone() if on_host else convert(value)
        elif isinstance(value, torch.optim.Optimizer):
            seen[id(value)] = twin = object.__new__(kind)
            twin.__dict__ = {name: converted(held) for name, held in vars(value).items() if name not in _BOUND}
        elif isinstance(value, dict):
            seen[id(value)] = copied = copy.copy(value)
            copied.clear()
            copied.update({converted(key): converted(held) for key, held in value.items()})
        elif kind in (list, tuple, set):
            seen[id(value)] = kind(converted(held) for held in value)
        else:
            return value
        return seen[id(value)]

    made: torch.optim.Optimizer = converted(optimizer)
    return made


_BOUND = ("step", "zero_grad")
"""What schedulers and libraries put in the place of a method, bound to the caller's optimizer."""


def is_fused(optimizer: torch.optim.Optimizer | None) -> bool:
    """Does it do its step in one op?"""
    return optimizer is not None and any(group.get("fused") for group in optimizer.param_groups)
