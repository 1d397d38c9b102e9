"""Remembers what pure operators make of given shapes, so that equal layers do not compute it again.

Working out an output's shape, strides and type on meta tensors runs Python code that takes far longer than all the
rest of a trace; a deep model asks the same question for every layer. Only operators that neither alias nor write their
inputs are remembered, and only results that are plain fresh tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rooflight.trace.storages import span, storage_address

_Form = tuple[torch.Size, tuple[int, ...], torch.dtype]
_UNKNOWN = object()


class ShapeCache:
    """Runs operators on meta tensors, by memory where it has one."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            key = (func, _key(args), _key(kwargs.items()) if kwargs else None)
            recipe = self._results.get(key, _UNKNOWN)
        except TypeError:  # an argument that cannot be remembered
            return func(*args, **kwargs)
        if recipe is None:  # tried before: this result cannot be remembered
            return func(*args, **kwargs)
        if recipe is not _UNKNOWN:
            return _made_again(recipe)
        result = func(*args, **kwargs)
        new_recipe = self._results[key] = _recipe(result, args, kwargs)
        # Looking at a storage leaves a reference to it behind; a fresh result has none.
        return result if new_recipe is None else _made_again(new_recipe)


def _key(values: Any) -> tuple[Any, ...]:
    """What the result depends on. A tensor counts by its form, not by its identity."""
    parts: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            if type(value) not in (torch.Tensor, torch.nn.Parameter) or not value.is_meta:
                raise TypeError
            parts.append((value.shape, value.stride(), value.dtype))
        elif isinstance(value, (list, tuple)):
            parts.append(_key(value))
        else:
            # 1, 1.0 and True are equal as keys but not as arguments.
            parts.append((type(value), value))
    return tuple(parts)


def _recipe(result: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """How to make the result again, or `None` when it is more than fresh tensors."""
    outputs = result if isinstance(result, tuple) else (result,)
    seen: set[int] = set()
    recipe: list[_Form | None] = []
    for output in outputs:
        if output is None:
            recipe.append(None)
            continue
        if not isinstance(output, torch.Tensor) or not output.is_meta or output.layout is not torch.strided:
            return None
        storage, needed = output.untyped_storage(), span(output) * output.element_size()
        if output.storage_offset() or storage._cdata in seen or storage.nbytes() != needed:
            return None
        seen.add(storage._cdata)
        recipe.append((output.shape, output.stride(), output.dtype))
    inputs: set[int] = set()
    torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: inputs.add(storage_address(t)), (args, kwargs))
    if seen & inputs:
        return None
    return tuple(recipe) if isinstance(result, tuple) else recipe[0]


def _made_again(recipe: Any) -> Any:
    if recipe and isinstance(recipe[0], torch.Size):
        return _empty(recipe)
    return tuple(None if output is None else _empty(output) for output in recipe)


def _empty(form: _Form) -> torch.Tensor:
    shape, strides, dtype = form
    return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
