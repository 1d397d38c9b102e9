"""Remembers what pure operators make of given shapes, so that equal layers do not compute it again.

Working out an output's shape, strides and type on meta tensors runs Python code that takes far longer than all the
rest of a trace; a deep model asks the same question for every layer. Only operators that neither alias nor write their
inputs are remembered, and only results that are plain fresh tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from rooflight.trace.storages import storage_address

_Made = tuple[torch.Size, tuple[int, ...], torch.dtype]
_UNKNOWN = object()


class ShapeCache:
    """Runs operators on meta tensors, by memory where it has one."""

    def __init__(self) -> None:
        self._results: dict[Any, Any] = {}

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        try:
            key = (func, _key(args), _key(kwargs.items()) if kwargs else None)
            known = self._results.get(key, _UNKNOWN)
        except TypeError:  # an argument that cannot be remembered
            return func(*args, **kwargs)
        if known is None:  # tried before: this result cannot be remembered
            return func(*args, **kwargs)
        if known is not _UNKNOWN:
            return _made_again(known)
        result = func(*args, **kwargs)
        recipe = self._results[key] = _recipe(result, args, kwargs)
        # Looking at a storage leaves a reference to it behind; a fresh result has none.
        return result if recipe is None else _made_again(recipe)


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
    recipe: list[_Made | None] = []
    for output in outputs:
        if output is None:
            recipe.append(None)
            continue
        if not isinstance(output, torch.Tensor) or not output.is_meta or output.layout is not torch.strided:
            return None
        storage = output.untyped_storage()
        if output.storage_offset() or storage._cdata in seen or storage.nbytes() != _needed(output):
            return None
        seen.add(storage._cdata)
        recipe.append((output.shape, output.stride(), output.dtype))
    inputs: set[int] = set()
    torch.utils._pytree.tree_map_only(torch.Tensor, lambda t: inputs.add(storage_address(t)), (args, kwargs))
    if seen & inputs:
        return None
    return tuple(recipe) if isinstance(result, tuple) else recipe[0]


def _needed(tensor: torch.Tensor) -> int:
    if not tensor.numel():
        return 0
    return (1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))) * tensor.element_size()


def _made_again(recipe: Any) -> Any:
    if recipe and isinstance(recipe[0], torch.Size):
        shape, strides, dtype = recipe
        return torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return tuple(
        None if made is None else torch.empty_strided(made[0], made[1], dtype=made[2], device="meta") for made in recipe
    )
