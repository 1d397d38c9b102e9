"""What a program keeps outside of its modules and optimizers, as it is now, and how it is put back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from types import BuiltinFunctionType, CellType, FunctionType, ModuleType
from typing import Any

import torch
from torch import nn

from rooflight.trace.containers import contents, put_back
from rooflight.trace.reach import ABSENT, Reach
from rooflight.trace.snapshots import Restoring

_MOST_BYTES = 2**26
_DEFINED = (type, ModuleType, FunctionType, BuiltinFunctionType)
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def state_of(reach: Reach, tensors: Iterable[torch.Tensor], *, on_data: bool) -> list[Restoring]:
    """`tensors`: all that have hooks. `on_data`: what functions remember of real data stays."""
    modules = [module for model in reach.modules.values() for module in model.modules()]
    steps: list[Restoring] = [
        *(("the class of a module", partial(_class_back, module, type(module))) for module in modules),
        *(("what a container held", partial(put_back, held, contents(held))) for held in reach.holders),
        *(("a name", partial(_rename, *name)) for name in reach.names),
        *(("a variable", partial(_cell_back, *cell)) for cell in reach.cells),
        *(("an attribute", partial(_slot_back, *slot)) for slot in reach.slots),
        *(("the attributes of a class", partial(_owner_back, one, dict(vars(one)))) for one in reach.owners),
        *(("an array", partial(_array_back, array, array.copy())) for array in _small(reach.arrays)),
        ("a setting of torch", partial(_settings_back, _settings())),
        *(("a random generator", _generator_back(generator)) for generator in reach.generators),
        *(("a hook", _hooks_back(tensor)) for tensor in tensors),
    ]
    if not on_data:
        steps += [("a cache", partial(_cache_back, one, one.cache_info())) for one in reach.caches]
    return steps


def _rename(names: dict[str, Any], name: str, value: Any) -> None:
    if value is ABSENT:
        names.pop(name, None)
    elif names.get(name) is not value:
        names[name] = value


def _cell_back(cell: CellType, value: Any) -> None:
    if value is not ABSENT:
        cell.cell_contents = value
    elif cell != CellType():
        del cell.cell_contents


def _slot_back(descriptor: Any, owner: Any, value: Any) -> None:
    """By the descriptor itself: a frozen object refuses to be set, and may answer to a name that is not filled."""
    if value is not ABSENT:
        descriptor.__set__(owner, value)
    else:
        with suppress(AttributeError):  # still not filled
            descriptor.__delete__(owner)


def _class_back(module: nn.Module, kind: type[nn.Module]) -> None:
    """Parametrizations give a module a class of its own."""
    if type(module) is not kind:
        module.__class__ = kind


def _owner_back(owner: Any, attributes: dict[str, Any]) -> None:
    """Of a class or a module; what the step has defined or imported there stays."""
    change, remove = (type.__setattr__, type.__delattr__) if isinstance(owner, type) else (setattr, delattr)
    for name, value in tuple(vars(owner).items()):
        if name not in attributes and not name.startswith("__") and not isinstance(value, _DEFINED):
            remove(owner, name)
    for name, value in attributes.items():
        if vars(owner).get(name, ABSENT) is not value and not name.startswith("__"):
            change(owner, name, value)


def _small(arrays: Iterable[Any]) -> list[Any]:
    """A large array is a data set, which a step only reads."""
    return [array for array in arrays if array.nbytes <= _MOST_BYTES and array.flags.writeable]


def _array_back(array: Any, values: Any) -> None:
    array[...] = values


def _cache_back(cache: Any, before: Any) -> None:
    """What it learnt without data is of no use with it."""
    if cache.cache_info().misses != before.misses:
        cache.cache_clear()


def _hooks_back(tensor: Any) -> Callable[[], None]:
    kept = [(name, held := getattr(tensor, name), contents(held or {})) for name in _HOOKS]

    def back() -> None:
        for name, held, content in kept:
            if held is not None:
                put_back(held, content)
            if getattr(tensor, name) is not held:
                setattr(tensor, name, held)

    return back


def _settings() -> tuple[Any, ...]:
    cudnn = torch.backends.cudnn
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return (
        torch.get_default_dtype(),
        deterministic,
        (cudnn.enabled, cudnn.benchmark, cudnn.deterministic, cudnn.allow_tf32),
        torch.get_float32_matmul_precision(),
    )


def _settings_back(kept: tuple[Any, ...]) -> None:
    if _settings() == kept:
        return
    dtype, (deterministic, warn_only), cudnn, matmul = kept
    torch.set_default_dtype(dtype)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    for name, value in zip(("enabled", "benchmark", "deterministic", "allow_tf32"), cudnn, strict=True):
        setattr(torch.backends.cudnn, name, value)
    torch.set_float32_matmul_precision(matmul)


def _generator_back(generator: Any) -> Callable[[], object]:
    if isinstance(generator, torch.Generator):
        return partial(generator.set_state, generator.get_state())
    if hasattr(generator, "bit_generator"):  # numpy's
        return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)
    if hasattr(generator, "set_state"):  # numpy's older one
        return partial(generator.set_state, generator.get_state())
    return partial(generator.setstate, generator.getstate())
