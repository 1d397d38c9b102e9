"""Everything that a step can get at, as text: two of them are equal if nothing was changed.

This walks objects in a way of its own, with nothing of rooflight: what rooflight overlooks is to be seen here.
"""

from __future__ import annotations

import hashlib
import random
import sys
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

_PLAIN = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_OUTSIDE = (types.ModuleType, type, types.BuiltinFunctionType, torch._C.ScriptFunction)


def fingerprint(step: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, str]:
    """By where it is found: the value, or a hash of it."""
    found = {"random.torch": _hash(torch.get_rng_state()), "random.python": str(hash(random.getstate()))}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        found["random.cuda"] = _hash(torch.cuda.get_rng_state())
    if "numpy" in sys.modules:
        found["random.numpy"] = str([str(part) for part in sys.modules["numpy"].random.get_state()])
    seen: dict[int, Any] = {}
    left: deque[tuple[str, Any]] = deque([("step", step), ("args", args)])
    while left and len(seen) < 100_000:
        path, value = left.popleft()
        if isinstance(value, _PLAIN):
            found[path] = repr(value)
        elif isinstance(value, _OUTSIDE):
            continue
        elif id(value) in seen:
            found[path] = f"same as {type(value).__name__}"
        else:
            seen[id(value)] = value
            if isinstance(value, torch.Tensor):
                found |= _of_tensor(path, value)
                left.append((f"{path}.grad", value.grad if value.is_leaf else None))
            left.extend(_inside(path, value))
    return found


def changes(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Where they differ."""
    return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))


def _inside(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, types.FunctionType):
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f"{path}.{name}", cell.cell_contents
            except ValueError:
                continue
    elif isinstance(value, types.MethodType):
        yield f"{path}.self", value.__self__
    elif isinstance(value, dict):
        yield f"{path}.keys", str([key if isinstance(key, _PLAIN) else type(key).__name__ for key in value])
        yield from ((f"{path}[{place}]", held) for place, held in enumerate(value.values()))
    elif isinstance(value, (list, tuple, deque)):
        yield f"{path}.length", len(value)
        yield from ((f"{path}[{place}]", held) for place, held in enumerate(value))
    elif isinstance(value, (set, frozenset)):
        yield f"{path}.length", len(value)
    elif isinstance(value, torch.Generator):
        yield f"{path}.state", value.get_state()
    if isinstance(value, nn.Module):
        yield f"{path}.modules", str([name for name, _ in value.named_modules()])
    if not isinstance(value, (torch.Tensor, types.FunctionType)) and isinstance(getattr(value, "__dict__", None), dict):
        yield f"{path}.__dict__", value.__dict__


def _of_tensor(path: str, tensor: torch.Tensor) -> dict[str, str]:
    about = {
        "type": type(tensor).__name__, "shape": tuple(tensor.shape), "stride": tensor.stride(), "dtype": tensor.dtype,
        "device": tensor.device, "requires_grad": tensor.requires_grad, "version": tensor._version,
        "at": tensor.data_ptr(), "hooks": len(tensor._backward_hooks or ()), "attributes": sorted(vars(tensor)),
    }  # fmt: skip
    return {path: str(about), f"{path}.values": _hash(tensor)}


def _hash(tensor: torch.Tensor) -> str:
    """Of a tensor on a GPU three sums of its bits: to copy it takes longer than everything else."""
    flat = tensor.detach().contiguous().flatten().view(torch.uint8)
    if not flat.numel():
        return ""
    if flat.device.type == "cpu":
        return hashlib.sha256(flat.numpy().tobytes()).hexdigest()
    words = flat.view(torch.int32) if flat.numel() % 4 == 0 and not flat.storage_offset() % 4 else flat
    return str([int(part.sum(dtype=torch.int64)) for part in (words, words[::3], words[1::7])])
