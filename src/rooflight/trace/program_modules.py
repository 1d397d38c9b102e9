"""Which module of anybody's code is at work, and what it is called: models are found, not declared."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

import torch
from msgspec.structs import replace
from torch import nn
from torch._C import _current_autograd_node
from torch.utils._pytree import tree_leaves

from rooflight.ledger import LOSS, Module, Op, Storage
from rooflight.trace.modules import ModuleTracker
from rooflight.trace.snapshot import snake_case

WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")
_WRAPPED = ("module.", "_fsdp_wrapped_module.")


class ProgramTracker(ModuleTracker):
    """Several models that nobody declared: by the names the program has for them, or found when they are called."""

    def __init__(
        self, models: Mapping[str, nn.Module], met: Callable[[str, nn.Module], None] = lambda name, model: None
    ) -> None:
        """`met` is told of models that were not known before, when they are called."""
        super().__init__()
        self._met = met
        self.models: dict[str, nn.Module] = {}
        self.first_call: tuple[nn.Module, tuple[Any, ...], dict[str, Any]] | None = None
        self.autocast: str | None = None
        """Type of autocast in that call."""
        self.batches = 0
        """How often the model of that call was given something new with gradients wanted."""
        self.samples = 0
        """First sizes of all that it was given."""
        self.left_out: list[str] = []
        """Modules whose parameters the step neither reads nor trains, without those inside them."""
        self._last_input: weakref.ref[torch.Tensor] | None = None
        for name, model in models.items():
            self._meet(name, model)

    def _meet(self, name: str, model: nn.Module) -> None:
        self.models[name] = model
        self._know(model, prefix=name)

    def found(self, module: nn.Module) -> str | None:
        name, number = snake_case(type(module).__name__), 1
        while name in self._known:
            number += 1
            name = f"{name.rstrip('0123456789')}{number}"
        self._meet(name, module)
        self._met(name, module)
        return name

    def given(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], autocast: str | None) -> None:
        """A model is called from outside of any. What learns comes before what prepares data or makes a loss."""
        if self.first_call is None or (learns(module) and not learns(self.first_call[0])):
            self.first_call, self.autocast, self.batches, self.samples = (module, args, kwargs), autocast, 0, 0
        if module is not self.first_call[0]:
            return
        tensor = next((leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)), None)
        self.samples += _first_size(tensor)
        if not torch.is_grad_enabled():
            return
        if tensor is None or self._last_input is None or self._last_input() is not tensor:
            self.batches += 1
        self._last_input = None if tensor is None else weakref.ref(tensor)

    @property
    def depth(self) -> int:
        """How many calls of modules are open."""
        return len(self._stack) - 1

    def _is_forward(self) -> bool:
        return _current_autograd_node() is None

    def rest_is_loss(self) -> None:
        """A model was called: what comes before backward makes a loss of what it gave."""
        if self._stack[0][0] != LOSS:
            self._stack[0] = (LOSS, self._calls[LOSS])
            self._calls[LOSS] += 1
            self._mark()

    def rest_is_nothing(self) -> None:
        if self._stack[0][0] == LOSS:
            self._stack[0] = ("", 0)
            self._mark()

    def called(self) -> list[str]:
        """Names of the models that ran."""
        ran = {root_of(path, self.models) for path, count in self._calls.items() if count}
        return [name for name in self.models if name in ran]

    def modules(self, in_use: Set[int] | None = None) -> tuple[Module, ...]:
        """`in_use`: ids of the parameters that the step reads or trains; without them all are taken to be."""
        ran = self.called()
        idle = [self._paths[id(one)] for one in self._modules if in_use is not None and _is_idle(one, in_use)]
        self.left_out = [path for path in idle if root_of(path, ran) and not root_of(path.rpartition(".")[0], idle)]
        return tuple(
            row for row in super().modules() if root_of(row.path, ran) is not None and root_of(row.path, idle) is None
        )


def _is_idle(module: nn.Module, in_use: Set[int]) -> bool:
    """An average of its own weights, say, that a model keeps as a part of itself."""
    mine = {id(parameter) for parameter in module.parameters()}
    return bool(mine) and mine.isdisjoint(in_use)


def _first_size(tensor: torch.Tensor | None) -> int:
    if tensor is None:
        return 0
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # all samples of a `vmap` at once
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.shape[0] if tensor.dim() else 1


def learns(module: nn.Module) -> bool:
    """Has it parameters? What prepares data and what makes a loss are modules too."""
    return next(module.parameters(), None) is not None


def root_of(path: str, names: Iterable[str]) -> str | None:
    """Which of the models a path begins with."""
    return next((name for name in names if path == name or path.startswith(f"{name}.")), None)


Rows = tuple[tuple[Op, ...], tuple[Module, ...], tuple[Storage, ...]]


def named_as_known(rows: Rows, tracker: ProgramTracker) -> Rows:
    """Paths as people know them: without the name of the model where there is only one, and without wrappers."""
    ops, modules, storages = rows
    ran = tracker.called()
    prefixes = {name: "" if len(ran) == 1 else name for name in ran}
    wrapped = {name for name in ran if type(tracker.models[name]).__name__ in WRAPPERS}

    @functools.cache
    def known(path: str) -> str:
        root = root_of(path, ran)
        if root is None:
            return path
        rest = path[len(root) + 1 :]
        if root in wrapped:
            rest = "" if rest in ("module", "_fsdp_wrapped_module") else _unwrapped(rest)
        return ".".join(part for part in (prefixes[root], rest) if part)

    named = [replace(row, path=known(row.path)) for row in modules if row.path not in wrapped]
    if len(ran) > 1:  # what they are parts of: the step as a whole
        roots = [row for row in named if row.path in ran]
        learning = [row for row in roots if learns(tracker.models[row.path])]  # a criterion is no model
        types = dict.fromkeys(row.type for row in learning or roots)
        named.insert(0, Module(path="", type=" + ".join(types), calls=1))
    if all(name == known(name) for name in ran) and not wrapped:
        return ops, tuple(named), storages
    return (
        tuple(op if known(op.module) == op.module else replace(op, module=known(op.module)) for op in ops),
        tuple(named),
        tuple(row if known(row.name) == row.name else replace(row, name=known(row.name)) for row in storages),
    )


def _unwrapped(path: str) -> str:
    for wrapper in _WRAPPED:
        path = path.removeprefix(wrapper)
    return path
