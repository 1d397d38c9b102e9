"""What is in lists, dicts, sets and deques: read and put back past the methods of a subclass.

A subclass may count, copy or refuse what is done to it: a config that says no to `update`, a list that says no to
`extend`. What it held goes back by the built-in type's own methods, and only where something has changed.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import torch

Contents = tuple[Any, ...]
"""Items of a dict, elements of any other container, in order."""

_KINDS = (dict, list, set, deque)


def contents(container: Any) -> Contents:
    if isinstance(container, OrderedDict):  # a dict that keeps an order of its own beside
        return tuple(OrderedDict.items(container))
    if isinstance(container, dict):
        return tuple(dict.items(container))
    if isinstance(container, list):
        return tuple(list.__iter__(container))
    return tuple(set.__iter__(container) if isinstance(container, set) else deque.__iter__(container))


def put_back(container: Any, content: Contents) -> None:
    """Can be done again where it was broken off."""
    if _same(contents(container), content, pairs=isinstance(container, dict)):
        return
    if isinstance(container, OrderedDict):
        OrderedDict.clear(container)
        for key, value in content:
            OrderedDict.__setitem__(container, key, value)
    elif isinstance(container, dict):
        dict.clear(container)
        dict.update(container, content)
    elif isinstance(container, list):
        list.__setitem__(container, slice(None), content)
    elif isinstance(container, set):
        set.clear(container)
        set.update(container, content)
    else:
        deque.clear(container)
        deque.extend(container, content)


def _same(now: Contents, before: Contents, *, pairs: bool) -> bool:
    """The same objects in the same order; equal ones may be others."""
    if len(now) != len(before):
        return False
    if pairs:
        return all(a is c and b is d for (a, b), (c, d) in zip(now, before, strict=True))
    return all(a is b for a, b in zip(now, before, strict=True))


def inside(value: Any) -> tuple[list[Any], list[torch.Tensor]]:
    """The containers in a value, itself included, and the tensors: however deep, each once."""
    containers: list[Any] = []
    tensors: list[torch.Tensor] = []
    seen: set[int] = set()
    left = [value]
    while left:
        item = left.pop()
        # By its type: a mock or a proxy calls itself whatever it stands for.
        kind = type(item)
        if issubclass(kind, torch.Tensor):
            tensors.append(item)
        elif issubclass(kind, (*_KINDS, tuple)) and id(item) not in seen:
            seen.add(id(item))
            if issubclass(kind, tuple):
                left.extend(tuple.__iter__(item))
                continue
            containers.append(item)
            held = contents(item)
            left.extend([member for _, member in held] if isinstance(item, dict) else held)
    return containers, tensors
